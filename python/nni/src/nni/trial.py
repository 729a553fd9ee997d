"""The trial SDK: parameters in, results out.

With a manager that serves NNI's commands over HTTP (``NNI_TRIAL_COMMAND_CHANNEL``), the SDK uses them. Otherwise,
the parameters come from ``$NNI_SYS_DIR/parameter.cfg``. Each result is a record in
``$NNI_SYS_DIR/.nni/metrics``, which the agent reads. Without the agent or the file, it is a marked line on
standard output. Outside a trial, there are no parameters, and results are printed.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
import warnings
from typing import Any, Optional

from nni._stdout import say

__all__ = [
    "get_current_parameter",
    "get_experiment_id",
    "get_next_parameter",
    "get_next_parameters",
    "get_sequence_id",
    "get_trial_id",
    "report_final_result",
    "report_intermediate_result",
]

#: The record of a result must be shorter than this number of characters, as in NNI.
_LONGEST_RECORD = 1_000_000
#: The metric file gives the length of a record in six digits.
_LARGEST_PAYLOAD = 999_999
#: The maximum time in seconds for the channel to answer a request.
_CHANNEL_TIMEOUT_S = 30.0

_lock = threading.Lock()
_record: Optional[dict[str, Any]] = None
_sequence = 0


def get_next_parameter() -> Any:
    """Returns the trial's parameters, usually a ``dict``; an empty ``dict`` outside a trial.

    :raises RuntimeError: if the parameters of the trial cannot be read. Without them, the trial would report the
        result of another point.
    """
    global _record
    if not is_in_trial():
        _record = {"parameters": {}}
        warnings.warn(
            "nni.get_next_parameter(): no parameters, because NNI_PLATFORM is not set: this is not a trial",
            RuntimeWarning,
            stacklevel=2,
        )
        return _record["parameters"]
    return _load_record()["parameters"]


def get_next_parameters() -> Any:
    """An alias of :func:`get_next_parameter`."""
    return get_next_parameter()


def get_current_parameter(tag: Optional[str] = None) -> Any:
    """Returns the parameters from :func:`get_next_parameter`, or only the one named ``tag``.

    Returns ``None`` before that call.
    """
    if _record is None:
        return None
    return _record["parameters"] if tag is None else _record["parameters"][tag]


def get_experiment_id() -> str:
    """Returns the experiment's id; ``STANDALONE`` outside a trial."""
    return os.environ.get("NNI_EXP_ID") or "STANDALONE"


def get_trial_id() -> str:
    """Returns the trial's id; ``STANDALONE`` outside a trial."""
    return os.environ.get("NNI_TRIAL_JOB_ID") or "STANDALONE"


def get_sequence_id() -> int:
    """Returns the number of the trial in its experiment, from 0; 0 outside a trial."""
    return int(os.environ.get("NNI_TRIAL_SEQ_ID") or 0)


def report_intermediate_result(metric: Any) -> None:
    """Reports the result of a step: a number, or a mapping with the number ``default``.

    :raises TypeError: if a value can be neither converted for JSON nor pickled.
    """
    global _sequence
    with _lock:
        sequence = _sequence
        _report("PERIODICAL", sequence, metric)
        _sequence = sequence + 1


def report_final_result(metric: Any) -> None:
    """Reports the trial's result: a number, or a mapping with the number ``default``.

    :raises TypeError: if a value can be neither converted for JSON nor pickled.
    """
    with _lock:
        _report("FINAL", 0, metric)


def overwrite_intermediate_seq(value: int) -> None:
    """Sets the number of the next intermediate result, for a training that continues from a checkpoint."""
    global _sequence
    with _lock:
        _sequence = int(value)


def is_in_trial() -> bool:
    return os.environ.get("NNI_PLATFORM") not in (None, "", "unittest")


def _load_record() -> dict[str, Any]:
    """Returns the record of the trial's parameters, which is read only once."""
    global _record
    if _record is None:
        channel = os.environ.get("NNI_TRIAL_COMMAND_CHANNEL")
        text = _ask_channel(channel) if channel else _read_file()
        try:
            record = loaded(text)
        except ValueError as error:
            raise RuntimeError(f"the trial's parameters are not JSON ({error}): {text[:80]}") from error
        if not isinstance(record, dict) or "parameters" not in record:
            raise RuntimeError(f"the trial's parameters have no member `parameters`: {text[:80]}")
        _record = record
    return _record


def _read_file() -> str:
    folder = os.environ.get("NNI_SYS_DIR")
    if not folder:
        raise RuntimeError("the trial's parameters cannot be found: NNI_PLATFORM is set and NNI_SYS_DIR is not")
    try:
        with open(os.path.join(folder, "parameter.cfg"), encoding="utf-8") as file:
            return file.read()
    except OSError as error:
        raise RuntimeError(f"the trial's parameters cannot be read: {error}") from error


def _report(kind: str, sequence: int, value: Any) -> None:
    text = json.dumps(value, default=_converted)
    if not is_in_trial():
        say(f"nni: {'final' if kind == 'FINAL' else 'intermediate'} result {text}")
        return
    record = {
        "parameter_id": _load_record().get("parameter_id"),
        "trial_job_id": os.environ.get("NNI_TRIAL_JOB_ID"),
        "type": kind,
        "sequence": sequence,
        # NNI encodes the value separately. NaN and Infinity in it have Python's form.
        "value": text,
    }
    line = json.dumps(record)
    if len(line) >= _LONGEST_RECORD:
        raise ValueError(f"a result of {len(line)} characters is too long; the limit is {_LONGEST_RECORD}")
    channel = os.environ.get("NNI_TRIAL_COMMAND_CHANNEL")
    if channel:
        _send(channel, {"type": "metric", "metric": line})
        return
    if _append(f"{line}\n".encode()):
        return
    try:
        # Each line is one write, because other threads and processes write to the same pipe.
        sys.stdout.write(f"NNISDK_MEb'{line}'\n")
        sys.stdout.flush()
    except (OSError, ValueError) as error:
        warnings.warn(f"a result could not be printed: {error}", RuntimeWarning, stacklevel=4)


def _append(payload: bytes) -> bool:
    """Appends a record to the file that the agent reads. Returns ``False`` if the result must be printed.

    Unlike standard output, the file does not depend on redirections of the trial's output.
    """
    folder = os.environ.get("NNI_SYS_DIR")
    # Another keeper than TrialKeeper's agent may read only the output.
    if not folder or not os.environ.get("TRIALKEEPER_RUN") or len(payload) > _LARGEST_PAYLOAD:
        return False
    record = b"ME%06d%b" % (len(payload), payload)
    try:
        os.makedirs(os.path.join(folder, ".nni"), exist_ok=True)
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC
        file = os.open(os.path.join(folder, ".nni", "metrics"), flags, 0o644)
        try:
            # One write, because other processes of the trial append to the same file. The agent skips a record
            # of which a full disk took only a part.
            return os.write(file, record) == len(record)
        finally:
            os.close(file)
    except OSError:
        return False


def loaded(text: str) -> Any:
    """Returns the value of JSON that may contain NNI's form of values that JSON lacks."""
    if '"__' not in text:
        return json.loads(text)  # The common case needs no serializer.
    from nni.common.serializer import load

    return load(text)


def nni_form(value: Any) -> Any:
    """Converts a value for JSON as ``nni.dump`` does."""
    from nni.common.serializer import dump

    return json.loads(dump(value))


def _converted(value: Any) -> Any:
    # The portal shows numbers and lists, unlike NNI's form of them.
    try:
        return plain(value)
    except TypeError:
        return nni_form(value)


def plain(value: Any) -> Any:
    """Converts numbers and arrays of NumPy and other libraries for JSON."""
    if getattr(value, "size", None) == 1 or getattr(value, "shape", None) == ():
        if hasattr(value, "item"):
            return value.item()
    if callable(getattr(value, "numel", None)) and value.numel() == 1:
        return value.item()
    if hasattr(value, "tolist"):
        return value.tolist()
    if isinstance(value, (set, frozenset)):
        return list(value)
    raise TypeError(f"{value!r}, of the type {type(value).__name__}, is neither a number nor an array")


# NNI's HTTP channel: PUT sends commands, and GET fetches answers (NNI 3.0, `trial_command_channel`).


def _send(channel: str, command: dict[str, str]) -> None:
    import urllib.request

    body = json.dumps(command).encode()
    request = urllib.request.Request(channel, body, {"Content-Type": "application/json"}, method="PUT")
    try:
        with urllib.request.urlopen(request, timeout=_CHANNEL_TIMEOUT_S):
            pass
    except OSError as error:
        # The training is more important than its report.
        warnings.warn(f"{channel} did not accept a {command['type']}: {error}", RuntimeWarning, stacklevel=4)


def _ask_channel(channel: str) -> str:
    import urllib.error
    import urllib.request

    _send(channel, {"type": "request_parameter"})
    while True:
        try:
            with urllib.request.urlopen(channel, timeout=_CHANNEL_TIMEOUT_S) as answer:
                command = json.load(answer)
        except urllib.error.HTTPError as error:
            if error.code == 408:  # Nothing yet.
                time.sleep(0.05)
                continue
            raise RuntimeError(f"{channel} gave no parameters: {error}") from error
        except OSError as error:
            raise RuntimeError(f"{channel} gave no parameters: {error}") from error
        if command.get("type") == "parameter":
            return str(command["parameter"])
