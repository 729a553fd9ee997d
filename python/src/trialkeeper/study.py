"""Ask and tell: the tuners of ``trial-manager`` suggest parameters to the user's own loop.

A study starts only ``trial-manager suggest``, which answers over pipes. The loop evaluates the suggestions itself,
in any order and anywhere.
"""

from __future__ import annotations

import atexit
import contextlib
import difflib
import fcntl
import json
import math
import operator
import os
import random
import subprocess
import tempfile
import threading
import weakref
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, NoReturn, Optional, SupportsFloat, Union

from trialkeeper._foreign import ForeignNames, counterpart
from trialkeeper._manager import failure
from trialkeeper._plain import plain
from trialkeeper._programs import find_program
from trialkeeper.errors import ConfigurationError, ManagerError, NoSuggestion

if TYPE_CHECKING:
    import pandas
    from typing_extensions import Self

__all__ = ["Study", "StudyTrial", "Suggestion"]

_FORMAT = 1
_open_studies: weakref.WeakSet[Study] = weakref.WeakSet()


#: The words of other tools for what this module has, for the errors of unknown names.
_TRIAL_ADVICE = {
    "params": "`parameters`",
    "suggest_": "in the study's space, and its value in `parameters`",
    "report": "`tell(suggestion, value)` of the study, with the final value only",
    "should_prune": "an `assessor` of tk.Experiment or tk.search",
    "set_user_attr": "not available; keep your own values by the suggestion's number",
}
_STUDY_ADVICE = {
    "optimize": "tk.search(objective, space, max_trials=…), or a loop of ask() and tell()",
    "best_trial": "`best`",
    "best_params": "`best.parameters`",
    "best_value": "`best.value`",
    "get_trials": "`trials`",
    "trials_dataframe": "`to_pandas()`",
    "add_trial": "`add(parameters, value)`",
}
#: The words of other tools for the arguments of :class:`Study`.
_ARGUMENTS = {
    "sampler": "tuner",
    "search_alg": "tuner",
    "algorithm": "tuner",
    "mode": "direction",
    "optimize_mode": "direction",
    "search_space": "space",
    "param_space": "space",
    "parameters": "space",
    "storage": "path",
    "study_name": "path",
    "name": "path",
    "random_state": "seed",
}


@dataclass(frozen=True)
class Suggestion(ForeignNames):
    """Parameters to evaluate."""

    _FOREIGN = _TRIAL_ADVICE

    #: The number of the suggestion in its study, from 0.
    number: int
    parameters: Mapping[str, Any]


@dataclass(frozen=True)
class StudyTrial(ForeignNames):
    """A suggestion, or a result from elsewhere, with its state and value."""

    _FOREIGN = _TRIAL_ADVICE

    #: The number of the suggestion; ``None`` for a result from elsewhere.
    number: Optional[int]
    parameters: Mapping[str, Any]
    #: ``RUNNING``, ``SUCCEEDED`` or ``FAILED``.
    state: str
    #: The result; ``None`` unless the trial succeeded.
    value: Optional[float]


class Study(ForeignNames):
    """A search in the user's own process.

    >>> space = {"x": {"_type": "uniform", "_value": [0, 10]}}
    >>> with Study(space, direction="minimize", seed=1) as study:
    ...     for _ in range(20):
    ...         suggestion = study.ask()
    ...         _ = study.tell(suggestion, (suggestion.parameters["x"] - 3) ** 2)
    >>> abs(study.best.parameters["x"] - 3) < 2
    True

    With ``path``, the study is stored in a file of JSON lines. A new study with the same file continues the old
    one: it has the trials, and suggestions without a result are in :attr:`open`. Ctrl-C may interrupt any call:
    the call either takes effect or does not, and the study stays usable.

    :param space: the search space, as in the experiment file.
    :param tuner: a built-in tuner: ``TPE``, ``GP``, ``CMA-ES``, ``NSGA-II``, ``Anneal``, ``Evolution``,
        ``Random``, ``QMC``, ``GridSearch``, ``Batch``, ``Hyperband`` or ``BOHB``.
    :param direction: ``minimize`` or ``maximize``.
    :param seed: makes the search repeatable; a random one if absent.
    :param class_args: further arguments of the tuner.
    :raises ConfigurationError: if the space or the tuner cannot be used, or the file belongs to another study.
    """

    _FOREIGN = _STUDY_ADVICE

    def __init__(
        self,
        space: Mapping[str, Any],
        *,
        tuner: str = "TPE",
        direction: str = "minimize",
        seed: Optional[int] = None,
        class_args: Optional[Mapping[str, Any]] = None,
        path: Union[str, os.PathLike[str], None] = None,
        **unknown: NoReturn,
    ) -> None:
        _refuse(unknown)
        if not isinstance(space, Mapping):
            raise ConfigurationError(f"space: expected a mapping of parameters, found {space!r:.80}")
        if seed is not None and not _is_seed(seed):
            raise ConfigurationError(f"seed: expected a whole number from 0 to 2^64 - 1, found {seed!r}")
        if direction not in ("minimize", "maximize"):
            raise ConfigurationError(f"direction: expected 'minimize' or 'maximize', found {direction!r}")
        self.direction = direction
        self._pid = os.getpid()
        self._trials: list[StudyTrial] = []
        #: The position of each suggestion in the list of trials.
        self._places: dict[int, int] = {}
        self._lock = threading.RLock()
        self._tuner = tuner
        self._hello: dict[str, Any] = {
            "type": "hello",
            "format": _FORMAT,
            "tuner": tuner,
            "search_space": plain(space, "space"),
            "optimize_mode": direction,
            "class_args": plain(class_args or {}, "class_args"),
            "seed": random.SystemRandom().randrange(1 << 32) if seed is None else operator.index(seed),
        }
        self._seed_is_given = seed is not None
        self._process: Optional[subprocess.Popen[str]] = None
        #: ``True`` while the program and this object have the same state.
        self._is_in_step = False
        self._is_closed = False
        # The loop may change the working directory.
        self._path = None if path is None else Path(path).absolute()
        self._file: Optional[IO[str]] = None
        #: The records of a study without a file.
        self._records: list[Mapping[str, Any]] = []
        self._stderr = tempfile.TemporaryFile("w+", errors="replace")
        try:
            if self._path is not None:
                self._file = _open_alone(self._path)
            self._settle()
        except BaseException:
            self.close()
            raise
        _open_studies.add(self)

    # The loop.

    def ask(self) -> Suggestion:
        """Returns parameters to evaluate. Several may be open at a time.

        :raises NoSuggestion: if the space is exhausted, or if the tuner waits for results of open suggestions.
        """
        with self._exchange():
            number = len(self._places)
            answer = self._request({"type": "propose", "id": number})
            if answer["type"] == "proposal":
                self._keep({"type": "launched", "id": number, "parameters": answer["parameters"]})
                self._launch(number, answer["parameters"])
        if answer["type"] == "exhausted":
            raise NoSuggestion("the search space is exhausted: there is nothing more to suggest", is_final=True)
        if answer["type"] == "wait":
            message = "the tuner waits for results: tell() the results of the open suggestions first"
            raise NoSuggestion(message, is_final=False)
        return Suggestion(number, answer["parameters"])

    def tell(
        self,
        suggestion: Union[Suggestion, int],
        value: Optional[SupportsFloat] = None,
        *,
        failed: bool = False,
    ) -> StudyTrial:
        """Records the result or the failure of a suggestion and returns the trial. NaN is a failure.

        :param suggestion: the suggestion or its number.
        :raises ValueError: if the suggestion is unknown or already has a result, or if neither a value nor
            ``failed`` is given.
        """
        number = suggestion.number if isinstance(suggestion, Suggestion) else operator.index(suggestion)
        if failed == (value is not None):
            raise ValueError("tell() needs either a value or failed=True")
        result = None if value is None else _number_in(value)
        if result is not None and math.isnan(result):
            result = None
        with self._lock:
            self._settle()
            if number not in self._places:
                raise ValueError(f"suggestion {number} does not belong to this study")
            trial = self._trials[self._places[number]]
            if trial.state != "RUNNING":
                raise ValueError(f"suggestion {number} already has a result: {trial.state}")
            with self._exchange():
                record = _ended(number, result)
                self._send(record)
                self._keep(record)
                return self._end(number, result)

    def add(self, parameters: Mapping[str, Any], value: SupportsFloat) -> None:
        """Adds a result from elsewhere, from which the tuner learns.

        :raises ValueError: if the parameters do not match the search space, or the value is not finite.
        """
        parameters = plain(parameters, "parameters")
        record = {"type": "import", "samples": [{"parameters": parameters, "value": _written(float(value))}]}
        with self._exchange():
            answer = self._request({**record, "id": len(self._trials)})
            if answer["type"] == "imported":
                self._keep(record)
                self._trials.append(StudyTrial(None, parameters, "SUCCEEDED", float(value)))
        if answer["type"] != "imported":
            raise ValueError(str(answer.get("problem", answer)))

    # Results.

    @property
    def trials(self) -> list[StudyTrial]:
        """All suggestions and results from elsewhere, oldest first."""
        return list(self._trials)

    @property
    def open(self) -> list[Suggestion]:
        """The suggestions that have no result yet."""
        return [
            Suggestion(trial.number, trial.parameters)
            for trial in self._trials
            if trial.state == "RUNNING" and trial.number is not None
        ]

    @property
    def best(self) -> Optional[StudyTrial]:
        """The best trial, or the first of several equal ones; ``None`` while no trial has succeeded."""
        sign = 1 if self.direction == "minimize" else -1
        succeeded = [trial for trial in self._trials if trial.value is not None]
        return min(succeeded, key=lambda trial: sign * (trial.value or 0.0), default=None)

    def to_pandas(self) -> pandas.DataFrame:
        """Returns a row for each trial: number, state, result and a column for each parameter.

        :raises ImportError: without pandas; ``pip install trialkeeper[pandas]`` installs it.
        """
        try:
            import pandas
        except ImportError as error:
            raise ImportError("to_pandas() needs pandas: pip install 'trialkeeper[pandas]'") from error
        return pandas.DataFrame(
            [
                {
                    "number": trial.number,
                    "state": trial.state,
                    "value": trial.value,
                    **{f"params_{name}": value for name, value in trial.parameters.items()},
                }
                for trial in self._trials
            ]
        )

    def close(self) -> None:
        """Closes the study. Its trials remain available, and its file is kept."""
        _open_studies.discard(self)
        self._is_closed = True
        if os.getpid() != self._pid:
            return  # The program and the file are still the parent's.
        self._end_process()
        if self._file is not None:
            self._file.close()
        self._stderr.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"Study(tuner={self._tuner!r}, direction={self.direction!r}, trials={len(self._trials)})"

    # The program.

    @contextlib.contextmanager
    def _exchange(self) -> Iterator[None]:
        """Guards an exchange between this object and the program.

        After an interrupted exchange, for example by Ctrl-C, the state of the program is unknown. The next
        exchange therefore starts a new program and replays the records.
        """
        with self._lock:
            self._settle()
            self._is_in_step = False
            yield
            self._is_in_step = True

    def _settle(self) -> None:
        """Makes the program and this object have exactly the state of the records.

        :raises ManagerError: if the study is closed.
        """
        if os.getpid() != self._pid:
            # Both processes would read each other's answers.
            raise ManagerError("the study belongs to the process that created it, not to its forked child")
        if self._is_closed:
            raise ManagerError("the study is closed; one with a path can be opened again")
        if self._is_in_step:
            return
        self._end_process()
        records = self._kept()
        if records and self._path is not None:
            self._check_same(records[0], self._path)
        self._trials, self._places = [], {}
        self._begin(records)
        if not records:
            self._keep(self._hello)
        self._is_in_step = True

    def _begin(self, records: Sequence[Mapping[str, Any]]) -> None:
        self._stderr.seek(0)
        self._stderr.truncate()
        self._process = subprocess.Popen(
            [str(find_program("trial-manager")), "suggest", self._tuner],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._stderr,
            encoding="utf-8",
            # The interrupt of a notebook must reach only Python.
            start_new_session=True,
        )
        self._request(self._hello)
        for record in records[1:]:
            self._send(record)
            if record["type"] == "launched":
                self._launch(record["id"], record["parameters"])
            elif record["type"] == "ended":
                self._end(record["id"], _read_value(record["value"]))
            elif record["type"] == "import":
                self._trials += [
                    StudyTrial(None, sample["parameters"], "SUCCEEDED", _read_value(sample["value"]))
                    for sample in record["samples"]
                ]

    def _end_process(self) -> None:
        process = self._process
        if process is None:
            return
        assert process.stdin is not None and process.stdout is not None
        if not self._is_in_step:
            process.kill()  # The program may be in a long calculation.
        with contextlib.suppress(OSError):
            process.stdin.close()
        process.wait()
        process.stdout.close()
        self._process = None

    def _launch(self, number: int, parameters: Mapping[str, Any]) -> None:
        self._places[number] = len(self._trials)
        self._trials.append(StudyTrial(number, parameters, "RUNNING", None))

    def _end(self, number: int, value: Optional[float]) -> StudyTrial:
        place = self._places[number]
        state = "FAILED" if value is None else "SUCCEEDED"
        self._trials[place] = replace(self._trials[place], state=state, value=value)
        return self._trials[place]

    def _check_same(self, kept: Mapping[str, Any], path: Path) -> None:
        """Adopts the seed of the file. Raises if the file belongs to another study."""
        if not self._seed_is_given:
            self._hello["seed"] = kept.get("seed")
        for name in ("format", "tuner", "search_space", "optimize_mode", "class_args", "seed"):
            if kept.get(name) != self._hello[name]:
                raise ConfigurationError(
                    f"{path}: the file belongs to another study: its {name} is {kept.get(name)!r}, not "
                    f"{self._hello[name]!r}; choose another path"
                )

    def _keep(self, record: Mapping[str, Any]) -> None:
        if self._file is None:
            self._records.append(record)
        else:
            self._file.write(json.dumps(record) + "\n")
            self._file.flush()

    def _kept(self) -> Sequence[Mapping[str, Any]]:
        if self._file is None or self._path is None:
            return self._records
        self._file.flush()  # An interrupted write may have left a part of a line.
        return _read(self._path)

    def _request(self, message: Mapping[str, Any]) -> dict[str, Any]:
        self._send(message)
        assert self._process is not None and self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise self._failure()
        answer: dict[str, Any] = json.loads(line)
        return answer

    def _send(self, message: Mapping[str, Any]) -> None:
        assert self._process is not None and self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(message) + "\n")
            self._process.stdin.flush()
        except OSError:
            raise self._failure() from None

    def _failure(self) -> ManagerError:
        assert self._process is not None
        code = self._process.wait()
        self._stderr.seek(0)
        # The lines of this object are none of the user's.
        said = self._stderr.read().replace("trial-manager: line 1: ", "trial-manager: ", 1)
        return failure(code, said)


def _refuse(unknown: Mapping[str, Any]) -> None:
    """Raises for an unknown argument, and names the one that is meant."""
    for name in unknown:
        word = name.replace("-", "_")
        if word in _ARGUMENTS:
            raise ConfigurationError(f"{name}: unknown argument of tk.Study; here it is `{_ARGUMENTS[word]}`")
        if counterpart(name) is not None:
            raise ConfigurationError(
                f"{name}: unknown argument of tk.Study, whose loop decides about it; tk.search(objective, space) "
                "runs a loop for you"
            )
        known = ("space", "tuner", "direction", "seed", "class_args", "path")
        close = difflib.get_close_matches(name, known, n=1)
        advice = f"did you mean `{close[0]}`?" if close else f"its arguments are {', '.join(known)}"
        raise TypeError(f"{name}: unknown argument of tk.Study; {advice}")


def _number_in(value: Any) -> float:
    try:
        return float(value)
    except (TypeError, ValueError) as error:
        advice = "; tell the number that the study optimises" if isinstance(value, Mapping) else ""
        raise type(error)(f"tell(): expected a number, found {value!r:.80}{advice}") from None


def _is_seed(seed: object) -> bool:
    try:
        return not isinstance(seed, bool) and 0 <= operator.index(seed) < 1 << 64  # type: ignore[arg-type]
    except TypeError:
        return False


def _ended(number: int, value: Optional[float]) -> dict[str, Any]:
    state = "FAILED" if value is None else "SUCCEEDED"
    return {"type": "ended", "id": number, "state": state, "value": _written(value)}


def _written(value: Optional[float]) -> Union[float, str, None]:
    """Returns a result in the form of JSON."""
    if value is None or math.isfinite(value):
        return value
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


def _read_value(value: Union[float, str, None]) -> Optional[float]:
    return None if value is None else float(value)


def _open_alone(path: Path) -> IO[str]:
    """Opens a file for appending, and locks it against other studies.

    :raises ConfigurationError: if another study has it open.
    """
    file = open(path, "a", encoding="utf-8")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        file.close()
        raise ConfigurationError(f"{path}: another study has the file open; close() it first") from None
    return file


def _read(path: Path) -> list[dict[str, Any]]:
    """Returns the records of a study's file. Removes an incomplete last line, which a killed study leaves.

    :raises ConfigurationError: if it is not the file of a study.
    """
    content = path.read_bytes()
    whole = content[: content.rfind(b"\n") + 1]
    records = []
    for number, line in enumerate(whole.splitlines(), 1):
        try:
            record = json.loads(line)
            if not isinstance(record, dict) or not isinstance(record["type"], str):
                raise ValueError("not a record of a study")
        except (ValueError, KeyError, RecursionError) as error:
            raise ConfigurationError(f"{path}, line {number}: not a study's file: {error}") from None
        records.append(record)
    if (records and records[0]["type"] != "hello") or (content and not records):
        raise ConfigurationError(f"{path}: not a study's file: its first line is not `hello`")
    if len(whole) < len(content):
        os.truncate(path, len(whole))
    return records


@atexit.register
def _close_all() -> None:
    for study in list(_open_studies):
        study.close()
