"""Runs custom tuners and assessors for the manager, over NNI's dispatcher protocol.

Messages are handled one by one, in the order in which the manager sends them. A tuner therefore always receives
the result of a trial before its end.
"""

from __future__ import annotations

import argparse
import base64
import importlib
import json
import logging
import os
import queue
import sys
import threading
import traceback
from pathlib import Path
from typing import Any, Callable, Optional

from nni._stdout import LOG_FORMAT
from nni._websocket import WebSocket
from nni.assessor import Assessor, AssessResult
from nni.runtime.msg_dispatcher_base import MsgDispatcherBase
from nni.trial import loaded, nni_form, plain
from nni.tuner import Tuner

__all__ = ["Dispatcher", "create_algorithm", "main"]

_logger = logging.getLogger("nni.dispatcher")

#: The methods without which an algorithm cannot work. It need not derive from NNI's base class.
_NEEDED_METHODS: dict[type, tuple[str, ...]] = {
    Tuner: ("update_search_space", "generate_multiple_parameters", "receive_trial_result"),
    Assessor: ("assess_trial",),
}


class NoTuner(Tuner):
    """A placeholder for the tuner if the manager needs only an assessor. It is never called."""

    def update_search_space(self, search_space: Any) -> None:
        """Ignores the search space."""

    def receive_trial_result(self, parameter_id: int, parameters: Any, value: Any, **kwargs: Any) -> None:
        """Ignores the result."""


class Dispatcher:
    """Translates the manager's messages into calls of a tuner and an assessor.

    :param send: a function that sends a message with a type and a content to the manager.
    """

    def __init__(self, tuner: Any, assessor: Any, send: Callable[[str, str], None]) -> None:
        self._tuner = tuner
        self._assessor = assessor
        self._send = send
        self._parameters: dict[int, Any] = {}
        self._next_parameter_id = 0
        #: Intermediate results by trial and position.
        self._history: dict[str, dict[int, Any]] = {}
        self._ended: set[str] = set()
        #: Results of the user's own trials, whose parameters are known at their end.
        self._customized: dict[Optional[str], Any] = {}
        #: The number of ends and intermediate results that have been handled.
        self._done = 0

    def handle(self, kind: str, content: Any) -> None:
        """Handles a message. Exceptions of the tuner and the assessor reach the caller."""
        if kind == "IN":
            self._tuner.update_search_space(content)
            self._send("ID", "")
        elif kind == "GE":
            self._propose(int(content))
        elif kind == "SS":
            self._tuner.update_search_space(content)
        elif kind == "FD":
            _call(self._tuner, "import_data", [{**entry, "value": _decoded(entry["value"])} for entry in content])
        elif kind == "ME":
            self._learn(content)
        elif kind == "EN":
            self._end(content)
            self._count()
        elif kind not in ("AD", "PI", "_nop_"):
            _logger.warning("ignoring a message of the unknown type %s", kind)

    def _propose(self, count: int) -> None:
        ids = list(range(self._next_parameter_id, self._next_parameter_id + count))
        self._next_parameter_id += count
        proposals = self._tuner.generate_multiple_parameters(ids, st_callback=self._send_proposal)
        for parameter_id, parameters in zip(ids, proposals):
            self._send_proposal(parameter_id, parameters)
        if len(proposals) < count:
            self._send("NO", _record(ids[0], ""))

    def _send_proposal(self, parameter_id: int, parameters: Any) -> None:
        self._parameters[parameter_id] = parameters
        self._send("TR", _record(parameter_id, parameters))

    def _learn(self, metric: dict[str, Any]) -> None:
        value = _decoded(metric["value"])
        if metric["type"] == "FINAL":
            self._learn_result(metric.get("parameter_id"), value, metric.get("trial_job_id"))
        elif metric["type"] == "PERIODICAL":
            self._assess(metric["trial_job_id"], metric["sequence"], value)
            self._count()

    def _learn_result(self, parameter_id: Any, value: Any, trial: Optional[str]) -> None:
        if parameter_id in self._parameters:
            parameters = self._parameters[parameter_id]
            self._tuner.receive_trial_result(parameter_id, parameters, value, customized=False, trial_job_id=trial)
        elif getattr(self._tuner, "_accept_customized", False):
            self._customized[trial] = value
        else:
            _logger.info("ignoring the result of trial %s, which the tuner did not propose", trial)

    def _assess(self, trial: str, sequence: int, value: Any) -> None:
        if self._assessor is None or trial in self._ended:
            return
        history = self._history.setdefault(trial, {})
        history[sequence] = value
        # The assessor receives the results up to the first gap.
        shown: list[Any] = []
        while len(shown) in history:
            shown.append(history[len(shown)])
        if len(shown) <= sequence:
            return
        verdict = self._assessor.assess_trial(trial, shown)
        if isinstance(verdict, bool):
            verdict = AssessResult(verdict)
        if not isinstance(verdict, AssessResult):
            name = type(self._assessor).__name__
            raise TypeError(f"{name}.assess_trial returned {verdict!r}, which is not an AssessResult")
        if verdict is AssessResult.Bad:
            self._send("KI", json.dumps(trial))

    def _end(self, end: dict[str, Any]) -> None:
        trial, success = end["trial_job_id"], end["event"] == "SUCCEEDED"
        self._ended.add(trial)
        if self._history.pop(trial, None) is not None and self._assessor is not None:
            _call(self._assessor, "trial_end", trial, success)
        record = loaded(end["hyper_params"])
        parameter_id = record["parameter_id"]
        if parameter_id in self._parameters:
            _call(self._tuner, "trial_end", parameter_id, success)
        elif trial in self._customized:
            value = self._customized.pop(trial)
            self._tuner.receive_trial_result(
                parameter_id, record["parameters"], value, customized=True, trial_job_id=trial
            )

    def _count(self) -> None:
        self._done += 1
        self._send("_done_", str(self._done))


def create_algorithm(section: dict[str, Any], base: type) -> Any:
    """Creates the tuner or assessor that a section of the configuration describes.

    An advisor is created in place of a tuner.

    :raises ValueError: if it names an algorithm of NNI that this package does not contain.
    :raises AttributeError: if the module has no such class. The message lists those that it has.
    :raises TypeError: if the algorithm lacks a method. The message names it.
    """
    class_name = section.get("className")
    if not class_name:
        name = str(section.get("name"))
        if name.lower() == "random":
            return NoTuner()
        raise ValueError(
            f"{name} runs in Microsoft's nni==3.0 only, and this Python has trialkeeper-nni: "
            "set `pythonInterpreter` to one that has nni==3.0, or choose a built-in algorithm"
        )
    folder = section.get("codeDirectory")
    if folder:
        sys.path.insert(0, folder)
    module_name, _, name = class_name.rpartition(".")
    if not module_name:
        raise ValueError(f"className {class_name!r} has no module; expected `module.Class`")
    module = importlib.import_module(module_name)
    if not hasattr(module, name):
        found = ", ".join(key for key, value in vars(module).items() if _is_own(value, base, module)) or "none"
        raise AttributeError(f"{module.__file__} has no {name}; its classes of {base.__name__}s: {found}")
    algorithm = getattr(module, name)(**(section.get("classArgs") or {}))
    if base is Tuner and isinstance(algorithm, MsgDispatcherBase):
        return algorithm
    for method in _NEEDED_METHODS[base]:
        if not callable(getattr(algorithm, method, None)):
            raise TypeError(f"{class_name} has no method {method}, which every {base.__name__} needs")
    return algorithm


def _call(algorithm: Any, method: str, *arguments: Any) -> None:
    """Calls a method that only NNI's base classes always have."""
    if hasattr(algorithm, method):
        getattr(algorithm, method)(*arguments)


def _is_own(value: Any, base: type, module: Any) -> bool:
    """Returns whether a value is an algorithm that the module itself defines."""
    return isinstance(value, type) and issubclass(value, base) and value.__module__ == module.__name__


def main(words: list[str]) -> int:
    """Runs until the manager closes the connection. Returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m nni", description="Runs a tuner for trial-manager.")
    parser.add_argument("--exp_params", required=True, help="the experiment's algorithms, base64 of JSON")
    args, _ = parser.parse_known_args(words)
    params = json.loads(base64.b64decode(args.exp_params))
    _log_to_file()
    try:
        tuner = create_algorithm(params.get("tuner") or {"name": "Random"}, Tuner)
    except Exception:
        return _fail([], _connect())
    if isinstance(tuner, MsgDispatcherBase):
        return _run_advisor(tuner)
    return _run(tuner, params.get("assessor"))


def _connect() -> WebSocket:
    return WebSocket(os.environ["NNI_TUNER_COMMAND_CHANNEL"])


def _run_advisor(advisor: MsgDispatcherBase) -> int:
    try:
        advisor.run()
    except Exception:
        # The advisor has reported it to the manager.
        traceback.print_exc()
        return 1
    return 0


def _run(tuner: Tuner, assessor_section: Optional[dict[str, Any]]) -> int:
    """Runs a tuner, and the assessor of a section, until the manager closes the connection."""
    channel = _connect()
    algorithms: list[Any] = [tuner]
    try:
        assessor = None
        if assessor_section:
            assessor = create_algorithm(assessor_section, Assessor)
            algorithms.append(assessor)
        # As in NNI, before the search space and earlier results.
        if os.environ.get("NNI_MODE") == "resume":
            for algorithm in algorithms:
                _call(algorithm, "load_checkpoint")
        _converse(channel, Dispatcher(tuner, assessor, lambda kind, content: _send(channel, kind, content)))
        for algorithm in algorithms:
            _call(algorithm, "_on_exit")
    except Exception:
        return _fail(algorithms, channel)
    finally:
        channel.close()
    return 0


def _fail(algorithms: list[Any], channel: WebSocket) -> int:
    """Reports the current exception to the algorithms and to the manager. Returns the exit code."""
    for algorithm in algorithms:
        _call(algorithm, "_on_error")
    _logger.error("the tuner or the assessor has raised", exc_info=True)
    traceback.print_exc()
    try:
        _send(channel, "ER", traceback.format_exc())
    except OSError:
        pass  # The manager reads the error from the output.
    return 1


def _send(channel: WebSocket, kind: str, content: str) -> None:
    channel.send(json.dumps({"type": kind, "content": content}))


def _converse(channel: WebSocket, dispatcher: Dispatcher) -> None:
    messages: queue.Queue[Optional[str]] = queue.Queue()

    def receive() -> None:
        # A separate thread answers pings while the tuner computes.
        while (text := channel.receive()) is not None:
            messages.put(text)
        messages.put(None)

    threading.Thread(target=receive, daemon=True).start()
    while (text := messages.get()) is not None:
        message = json.loads(text)
        if message["type"] in ("TE", "_bye_"):
            return
        dispatcher.handle(message["type"], loaded(message.get("content") or "null"))


def _log_to_file() -> None:
    folder = os.environ.get("NNI_LOG_DIRECTORY")
    if folder and Path(folder).is_dir():
        logging.basicConfig(
            filename=Path(folder) / "dispatcher.log",
            level=os.environ.get("NNI_LOG_LEVEL", "info").upper(),
            format=LOG_FORMAT,
        )


def _record(parameter_id: int, parameters: Any) -> str:
    record = {
        "parameter_id": parameter_id,
        "parameter_source": "algorithm",
        "parameters": parameters,
        "parameter_index": 0,
    }
    return json.dumps(record, default=_converted)


def _converted(value: Any) -> Any:
    # Trials need no PyTorch for a tensor, which NNI pickles.
    return plain(value) if hasattr(value, "numel") else nni_form(value)


def _decoded(value: Any) -> Any:
    """Decodes a result, which trials encode as JSON text."""
    return json.loads(value) if isinstance(value, str) else value
