"""The API for training scripts: parameters in, results out.

:func:`report`, :func:`final` and :func:`should_stop` never raise into a training loop. If a value cannot be
reported or standard output is closed, they only warn, because the training is more important than its report.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import stat
import sys
import threading
import warnings
from collections.abc import Mapping
from pathlib import Path
from types import FrameType
from typing import Any, Optional, SupportsFloat, Union

__all__ = ["Value", "final", "output_dir", "params", "report", "should_stop", "trial_id"]

#: The values that can be reported: any number, including NumPy's, and a tensor with one element.
Value = Union[SupportsFloat, int, float]

#: The members that describe a line. Metrics cannot have these names.
_RESERVED = ("type", "step")

_write_lock = threading.Lock()
_stop_lock = threading.Lock()
_stop_requested = threading.Event()
#: The process that handles SIGTERM, and the handler that it replaced. Forked processes inherit both.
_handling_process: Optional[int] = None
_previous_handler: Any = signal.SIG_DFL
#: The descriptor of the output that the agent reads.
_STDOUT = 1
_redirection_warned = False
_has_reported = False


def params(**defaults: Any) -> dict[str, Any]:
    """Returns the trial's parameters, and ``defaults`` for missing ones.

    Outside a trial, it returns the defaults, so that the script also runs by hand:

    >>> params(learning_rate=0.1)["learning_rate"]
    0.1

    :raises ValueError: if the parameters from the agent are not a JSON object. With the defaults, the trial would
        report the result of another point.
    """
    text = os.environ.get("TRIALKEEPER_PARAMETERS")
    source = "TRIALKEEPER_PARAMETERS"
    if not text:
        file = os.environ.get("TRIALKEEPER_PARAMETERS_FILE")
        if not file:
            return dict(defaults)
        source = file
        text = Path(file).read_text(encoding="utf-8")
    try:
        own = json.loads(text)
    except ValueError as error:
        raise ValueError(f"{source}: the trial's parameters are not JSON: {error}") from error
    if not isinstance(own, dict):
        raise ValueError(f"{source}: the trial's parameters are not an object: {text[:80]}")
    return {**defaults, **own}


def report(
    metrics: Union[Mapping[str, Value], Value, None] = None, step: Optional[int] = None, **named: Value
) -> None:
    """Reports intermediate results, as ``report(step=3, loss=0.5)`` or ``report({"val/acc": 0.9})``.

    A single number without a name is the metric ``default``. Each call prints one line of JSON on the standard
    output of the process, which the agent reads. Outside a trial, the line is only printed to ``sys.stdout``.

    :param metrics: results whose names are not Python identifiers, or a single number.
    :param step: the position on the curve, such as the epoch; counted from 0 if absent.
    """
    _print_metrics("intermediate", step, _named(metrics, named))


def final(value: Union[Mapping[str, Value], Value, None] = None, **named: Value) -> None:
    """Reports the trial's final result: ``final(0.93)``, ``final(accuracy=0.93, loss=0.2)`` or a mapping.

    A single number without a name is the metric ``default``. If ``final`` is never called, the last intermediate
    result is the final result.
    """
    _print_metrics("final", None, _named(value, named))


def has_reported() -> bool:
    """Returns whether this process has reported a number."""
    return _has_reported


def output_dir() -> Path:
    """Returns the trial's own existing directory, for checkpoints and other files.

    Trials on one machine may share their working directory. With
    ``torch.save(model, output_dir() / "model.pt")``, their models do not overwrite each other. Outside a trial,
    this is the working directory.
    """
    path = os.environ.get("TRIALKEEPER_OUTPUT_DIR") or os.environ.get("NNI_OUTPUT_DIR") or "."
    directory = Path(path)
    directory.mkdir(parents=True, exist_ok=True)
    return directory


def trial_id() -> Optional[str]:
    """Returns the trial's id; ``None`` outside a trial."""
    return os.environ.get("NNI_TRIAL_JOB_ID") or None


def should_stop() -> bool:
    """Returns whether the trial should stop. Call it once per epoch.

    The first call must come from the main thread and catches SIGTERM. From then on, the trial must exit by itself
    within the grace period of the agent (20 s unless configured). A second SIGTERM ends it as if the first one
    had not been caught. In forked processes that do not call it, SIGTERM has its former effect.
    """
    _catch_sigterm()
    return _stop_requested.is_set()


def _catch_sigterm() -> None:
    global _handling_process, _previous_handler
    with _stop_lock:
        if _handling_process == os.getpid():
            return
        if threading.current_thread() is not threading.main_thread():
            _warn("should_stop() must first be called from the main thread; SIGTERM is not caught")
            return
        previous = signal.getsignal(signal.SIGTERM)
        if previous is not _on_sigterm:
            # There is no function for a handler that C code has installed.
            _previous_handler = signal.SIG_DFL if previous is None else previous
        _handling_process = os.getpid()
        signal.signal(signal.SIGTERM, _on_sigterm)


def _on_sigterm(number: int, frame: Optional[FrameType]) -> None:
    if _handling_process != os.getpid():
        # A forked process, such as a worker of `multiprocessing`, which ends its workers with SIGTERM.
        _raise_again(_previous_handler)
        return
    if _stop_requested.is_set():
        _raise_again(signal.SIG_DFL)
    _stop_requested.set()
    if callable(_previous_handler):
        _previous_handler(number, frame)


def _raise_again(handler: Any) -> None:
    """Sends this process SIGTERM for another handler."""
    signal.signal(signal.SIGTERM, handler)
    os.kill(os.getpid(), signal.SIGTERM)


def _named(values: Union[Mapping[str, Value], Value, None], named: Mapping[str, Value]) -> dict[str, Value]:
    """Returns the metrics of a call by their names."""
    if values is None:
        return dict(named)
    own = values if isinstance(values, Mapping) else {"default": values}
    return {**{str(name): value for name, value in own.items()}, **named}


def _print_metrics(kind: str, step: Optional[Value], metrics: dict[str, Value]) -> None:
    head: dict[str, Any] = {"type": kind}
    if step is None:
        step = metrics.pop("step", None)
    if step is not None:
        # The conversion runs code of the value, which may raise any exception.
        try:
            head["step"] = int(float(step))
        except Exception as error:
            _warn(f"the step {step!r} is ignored: it is not a number ({error})")
    if not metrics:
        _warn("nothing is reported: no metric was given")
    numbers = {}
    for name, value in metrics.items():
        if name in _RESERVED:
            _warn(f"metric {name!r} is not reported: the name has another meaning; choose another name")
            continue
        try:
            numbers[name] = float(value)
        except Exception as error:
            _warn(f"metric {name!r} is not reported: {value!r} is not a number ({error})")
    if numbers:
        global _has_reported
        _has_reported = True
        # The agent reads NaN and infinities, although JSON has none.
        _write(json.dumps({**head, **numbers}, ensure_ascii=False) + "\n")


def _write(text: str) -> None:
    with _write_lock:
        try:
            if os.environ.get("TRIALKEEPER_RUN"):
                _write_to_agent(text)
            else:
                sys.stdout.write(text)
                sys.stdout.flush()
        except (OSError, ValueError) as error:
            _warn(f"a result could not be printed: {error}")


def _write_to_agent(text: str) -> None:
    """Writes lines to the process's standard output, even if ``sys.stdout`` is something else.

    If the output is redirected, the lines go to a file that the agent reads instead. A copy in the user's log
    would count twice as soon as the trial prints its log.
    """
    global _redirection_warned
    with contextlib.suppress(OSError, ValueError, AttributeError):
        sys.stdout.flush()
    lines = text.encode()
    is_redirected = _is_redirected()
    if is_redirected and _append_to_reports(lines):
        return
    # One write, because other threads and processes write to the same pipe. The agent also finds a report at the
    # end of a line that a progress bar or `print(..., end="")` has left unfinished.
    _write_all(_STDOUT, lines)
    if is_redirected and not _redirection_warned:
        _redirection_warned = True
        _warn(
            "standard output is redirected, so the agent does not see this result: remove the redirection from "
            "the trial's command, or print to the log with `| tee FILE`"
        )


def _is_redirected() -> bool:
    """Returns whether standard output is a file, ``/dev/null`` or closed, so that the agent does not read it."""
    try:
        output = os.fstat(_STDOUT)
        return stat.S_ISREG(output.st_mode) or os.path.samestat(output, os.stat(os.devnull))
    except OSError:
        return True


def _append_to_reports(lines: bytes) -> bool:
    """Appends lines to the file that the agent reads besides the output. Returns whether all were written.

    There is no such file if the user has named files of metrics, because the agent may read the redirected output.
    """
    path = os.environ.get("TRIALKEEPER_REPORTS_FILE")
    if not path:
        return False
    try:
        os.makedirs(os.path.dirname(path), exist_ok=True)
        file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            # One write, because other processes of the trial append to the same file.
            return os.write(file, lines) == len(lines)
        finally:
            os.close(file)
    except OSError:
        return False


def _write_all(file: int, data: bytes) -> None:
    while data:
        data = data[os.write(file, data) :]


def _warn(message: str) -> None:
    warnings.warn(message, RuntimeWarning, stacklevel=4)
