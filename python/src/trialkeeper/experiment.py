"""The search's side: describe a search, run it, look at its results.

Everything goes through ``trial-manager``'s documented command line, which asks the experiment's manager while one
runs and its store afterwards. So an :class:`Experiment` of last month answers as one that runs now.
"""

from __future__ import annotations

import asyncio
import html
import json
import math
import os
import re
import subprocess
import tempfile
import threading
import time
from collections.abc import AsyncIterator, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Optional, Union

from trialkeeper._programs import find_program
from trialkeeper.errors import (
    ConfigurationError,
    ExperimentFailed,
    ExperimentInterrupted,
    ManagerError,
)

if TYPE_CHECKING:
    import pandas
    from typing_extensions import Self

__all__ = ["Experiment", "Metric", "Trial", "connect", "default_data_dir"]

#: The states that a trial does not leave by itself.
ENDED_STATES = frozenset(["SUCCEEDED", "FAILED", "USER_CANCELED", "SYS_CANCELED", "EARLY_STOPPED"])

_STARTED = re.compile(r"^experiment (\S+) on (\S+)$", re.MULTILINE)
#: How long the manager may take to check the experiment file and to listen, in seconds.
_START_TIMEOUT_S = 60.0
#: Pause between two looks at a search that runs, in seconds.
_POLL_S = 0.5


@dataclass(frozen=True)
class Metric:
    """One value that a trial has reported."""

    #: The metric's name; ``default`` for one without a name.
    name: str
    #: ``intermediate`` or ``final``.
    type: str
    #: The position on the curve, from 0.
    step: Optional[int]
    #: A number, or the object that NNI's SDK reported.
    value: Any
    #: When the agent saw it.
    observed_at: datetime


@dataclass(frozen=True)
class Trial:
    """One evaluation of one set of parameters, as it stood when it was asked for."""

    id: str
    #: The number of the trial in its experiment, from 0.
    number: int
    state: str
    parameters: Mapping[str, Any]
    #: The final result that was reported; ``None`` if there is none.
    final: Any
    #: Why the trial ended, such as ``exit`` or ``oom-cuda``; ``None`` while it runs.
    cause: Optional[str]
    exit_code: Optional[int]
    started_at: Optional[datetime]
    ended_at: Optional[datetime]
    _experiment: Experiment = field(repr=False, compare=False)

    @property
    def value(self) -> Optional[float]:
        """The final result as a number: an object's ``default``; ``None`` if there is none."""
        result = self.final.get("default") if isinstance(self.final, Mapping) else self.final
        return None if result is None else float(result)

    @property
    def duration_s(self) -> Optional[float]:
        """How long the trial ran, in seconds; ``None`` if it has not ended."""
        if self.started_at is None or self.ended_at is None:
            return None
        return (self.ended_at - self.started_at).total_seconds()

    def metrics(self) -> list[Metric]:
        """Returns everything that the trial's latest attempt has reported, oldest first."""
        rows = self._experiment._ask("metrics", self.id)
        return [
            Metric(
                name=row["name"],
                type=row["type"],
                step=row["step"],
                value=_number(row["value"]),
                observed_at=_when(row["observed_at_ms"]) or datetime.fromtimestamp(0, timezone.utc),
            )
            for row in rows
        ]

    def why(self) -> dict[str, Any]:
        """Returns the verdict, its evidence and the timeline, as the REST API gives them."""
        answer: dict[str, Any] = self._experiment._ask("trial", "why", self.id)
        return answer

    def output(self, *, stderr: bool = False) -> str:
        """Returns what the trial has printed."""
        words = ["trial", "logs", self.id, *(["--stderr"] if stderr else [])]
        return self._experiment._run(words).stdout

    def kill(self) -> None:
        """Stops the trial."""
        self._experiment._run(["trial", "kill", self.id])

    def retry(self) -> None:
        """Runs the ended trial once more, as a new attempt."""
        self._experiment._run(["trial", "retry", self.id])


class Experiment:
    """A search over a search space.

    The configuration is a file, a mapping, keywords, or a file or mapping with keywords over it. Keywords are the
    fields of the experiment file, in its camelCase or in snake_case:

    >>> experiment = Experiment(
    ...     trial_command="python3 train.py",
    ...     search_space={"lr": {"_type": "loguniform", "_value": [1e-4, 1e-1]}},
    ...     tuner={"name": "TPE", "classArgs": {"optimize_mode": "minimize"}},
    ...     max_trial_number=20,
    ...     trial_concurrency=2,
    ... )
    >>> experiment.config["maxTrialNumber"]
    20

    As a context manager it stops the search that it has started.
    """

    def __init__(
        self,
        config: Union[str, os.PathLike[str], Mapping[str, Any], None] = None,
        *,
        data_dir: Union[str, os.PathLike[str], None] = None,
        **fields: Any,
    ) -> None:
        self._file = Path(config) if isinstance(config, (str, os.PathLike)) else None
        if self._file is not None and fields:
            raise ConfigurationError(
                f"{self._file}: fields beside a file are not merged; change the file, or give a mapping"
            )
        own = dict(config) if isinstance(config, Mapping) else {}
        #: The configuration as it is handed to the manager; empty for a file and for a connected experiment.
        self.config: dict[str, Any] = {**own, **{_camel(name): value for name, value in fields.items()}}
        if self.config:
            self.config.setdefault("trainingService", {"platform": "local"})
            self.config.setdefault("trialConcurrency", 1)
        self._data_dir = Path(data_dir) if data_dir is not None else None
        self._id: Optional[str] = None
        self._url: Optional[str] = None
        self._process: Optional[subprocess.Popen[str]] = None
        self._stderr: Optional[IO[bytes]] = None

    # Life.

    def start(self, *, port: int = 0, host: Optional[str] = None, keep_serving: bool = False) -> Self:
        """Starts the search in the background and returns once its manager listens.

        :param port: where the manager listens; 0 for any free port.
        :param host: the address to listen on; the loopback interface for local trials if absent.
        :param keep_serving: whether the manager stays when the search is over, until :meth:`stop`. :meth:`wait`
            waits for its end, so look at :attr:`state` instead.
        :raises ConfigurationError: if the configuration, the port or the data directory cannot be used.
        """
        source = "-" if self._file is None else str(self._file)
        return self._start(["run", source], port, host, keep_serving)

    def resume(self, *, port: int = 0, host: Optional[str] = None, keep_serving: bool = False) -> Self:
        """Goes on with a search that was stopped or whose manager died, in the background."""
        return self._start(["resume", self.id], port, host, keep_serving)

    def run(self, *, port: int = 0, host: Optional[str] = None) -> Self:
        """Runs the search to its end. Ctrl-C stops its trials politely and raises ``KeyboardInterrupt``.

        :raises ExperimentFailed: if no trial succeeded with a result.
        """
        self.start(port=port, host=host)
        try:
            self.wait()
        except KeyboardInterrupt:
            self.stop()
            raise
        return self

    def wait(self, timeout: Optional[float] = None) -> str:
        """Waits for the end of the search and returns its state.

        :param timeout: in seconds; for ever if absent.
        :raises TimeoutError: if the search still runs then.
        :raises ExperimentFailed: if it has ended and no trial succeeded with a result.
        :raises ExperimentInterrupted: if it was stopped before its end.
        """
        if self._process is not None:
            try:
                code = self._process.wait(timeout)
            except subprocess.TimeoutExpired:
                raise TimeoutError(f"experiment {self.id} still runs after {timeout} s") from None
            return self._ended(code)
        deadline = None if timeout is None else time.monotonic() + timeout
        while (state := self.state) in ("INITIALIZED", "RUNNING", "NO_MORE_TRIAL", "TUNER_NO_MORE_TRIAL"):
            if deadline is not None and time.monotonic() > deadline:
                raise TimeoutError(f"experiment {self.id} still runs after {timeout} s")
            time.sleep(_POLL_S)
        return state

    async def wait_async(self) -> str:
        """Like :meth:`wait`, for ``async`` code."""
        return await asyncio.get_running_loop().run_in_executor(None, self.wait)

    def stop(self) -> None:
        """Stops the trials and leaves the experiment resumable; waits until the manager has ended."""
        process = self._process
        if process is None:
            self._run(["experiment", "stop", self.id])
            return
        if process.poll() is None:
            # A program started in the background ignores SIGINT, and so does its manager.
            process.terminate()
        process.wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._process is not None:
            self.stop()

    # Results.

    @property
    def id(self) -> str:
        """The experiment's id, which it gets when it is started."""
        if self._id is None:
            raise ManagerError("the experiment has no id yet: start() or run() it first")
        return self._id

    @property
    def folder(self) -> Path:
        """The experiment's folder: its store, its trials' folders and the file ``user.token``."""
        return (self._data_dir or default_data_dir()) / self.id

    @property
    def url(self) -> Optional[str]:
        """The address of the portal while the experiment runs; ``None`` otherwise."""
        return self._url if self._process is not None and self._process.poll() is None else None

    def show(self) -> dict[str, Any]:
        """Returns how the search stands: counts, limits, causes of failure, the best trial."""
        answer: dict[str, Any] = self._ask("experiment", "show")
        return answer

    @property
    def state(self) -> str:
        """``RUNNING``, ``DONE``, ``STOPPED``, … as in the REST API."""
        return str(self.show()["state"])

    @property
    def best(self) -> Optional[Trial]:
        """The best trial so far; ``None`` while no trial has a result."""
        row = self.show()["best"]
        return None if row is None else self._trial(row)

    @property
    def pareto(self) -> list[Trial]:
        """The trials that no other one dominates, where there are several objectives; else an empty list."""
        return [self._trial(row) for row in self.show().get("pareto", [])]

    def trials(self, state: Optional[str] = None) -> list[Trial]:
        """Returns the trials in their order, all or those in one state."""
        words = ["--state", state] if state else []
        return [self._trial(row) for row in self._ask("trial", "ls", *words)]

    def watch(self) -> Iterator[Trial]:
        """Yields each trial when it has ended, until the search is over.

        A manager that is started again in between does no harm: results are read, not listened for.
        """
        seen: set[tuple[str, str]] = set()
        while True:
            over = self._process.poll() is not None if self._process else self.state in ("DONE", "STOPPED")
            for trial in self.trials():
                if trial.state in ENDED_STATES and (trial.id, trial.state) not in seen:
                    seen.add((trial.id, trial.state))
                    yield trial
            if over:
                return
            time.sleep(_POLL_S)

    async def watch_async(self) -> AsyncIterator[Trial]:
        """Like :meth:`watch`, for ``async`` code."""
        loop, ended = asyncio.get_running_loop(), object()
        trials = self.watch()
        while (trial := await loop.run_in_executor(None, next, trials, ended)) is not ended:
            assert isinstance(trial, Trial)
            yield trial

    def to_pandas(self) -> pandas.DataFrame:
        """Returns a row for each trial: number, id, state, result, duration and a column for each parameter.

        :raises ImportError: without pandas; ``pip install trialkeeper[pandas]`` brings it.
        """
        try:
            import pandas
        except ImportError as error:
            raise ImportError("to_pandas() needs pandas: pip install 'trialkeeper[pandas]'") from error
        return pandas.DataFrame(
            [
                {
                    "number": trial.number,
                    "id": trial.id,
                    "state": trial.state,
                    "value": trial.value,
                    "duration_s": trial.duration_s,
                    **{f"params_{name}": value for name, value in trial.parameters.items()},
                }
                for trial in self.trials()
            ]
        )

    def __repr__(self) -> str:
        return f"Experiment(id={self._id!r})"

    def _repr_html_(self) -> str:
        """Shows the search in a notebook: its numbers and its best trials."""
        if self._id is None:
            return "<p>An experiment that has not been started.</p>"
        shown = self.show()
        best = shown["best"]
        counts = ", ".join(f"{count} {state.lower()}" for state, count in shown["counts"].items())
        link = f' <a href="{html.escape(self.url)}">portal</a>' if self.url else ""
        rows = "".join(
            f"<tr><th>{html.escape(str(name))}</th><td>{html.escape(str(value))}</td></tr>"
            for name, value in (best or {}).get("parameters", {}).items()
        )
        result = "" if best is None else f"<p>best: {html.escape(str(best['final']))}</p><table>{rows}</table>"
        return (
            f"<div><p><b>{html.escape(self._id)}</b> {html.escape(shown['state'])}: "
            f"{html.escape(counts)}.{link}</p>{result}</div>"
        )

    # The program.

    def _start(self, words: list[str], port: int, host: Optional[str], keep_serving: bool) -> Self:
        if self._process is not None and self._process.poll() is None:
            raise ManagerError(f"experiment {self._id} is already running")
        command = [str(find_program("trial-manager")), *words, "--port", str(port), "--output", "json"]
        if host is not None:
            command += ["--host", host]
        if keep_serving:
            command.append("--keep-serving")
        # What the manager says goes to a file: a pipe that is not read would stop it one day.
        self._stderr = tempfile.TemporaryFile()
        self._process = subprocess.Popen(
            command + self._place(),
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=self._stderr,
            text=True,
            # A notebook's interrupt is for Python; stop() tells the manager.
            start_new_session=True,
        )
        assert self._process.stdin is not None
        try:
            if words[-1] == "-":
                json.dump(self.config, self._process.stdin)
            self._process.stdin.close()
        except BrokenPipeError:
            pass  # The manager has refused its command line; its message follows.
        self._wait_until_started()
        return self

    def _wait_until_started(self) -> None:
        assert self._process is not None
        deadline = time.monotonic() + _START_TIMEOUT_S
        while True:
            code = self._process.poll()
            said = self._said()
            if started := _STARTED.search(said):
                self._id, self._url = started.groups()
                return
            if code == 0:
                return  # Nothing was left to do: a search that is over has been resumed.
            if code is not None:
                raise _failure(code, said)
            if time.monotonic() > deadline:
                self._process.terminate()
                raise ManagerError(f"trial-manager has not started within {_START_TIMEOUT_S:.0f} s: {said}")
            threading.Event().wait(0.01)

    def _ended(self, code: int) -> str:
        if code == 0:
            return self.state
        if code == 1:
            raise ExperimentFailed(self._said().strip() or "no trial succeeded with a result", self)
        if code == 130:
            raise ExperimentInterrupted(f"experiment {self.id} was stopped; resume() goes on with it")
        raise _failure(code, self._said())

    def _said(self) -> str:
        assert self._stderr is not None
        # The manager writes at the position of this open file, which seek() would move under its hands.
        said = os.pread(self._stderr.fileno(), os.fstat(self._stderr.fileno()).st_size, 0)
        return said.decode(errors="replace")

    def _place(self) -> list[str]:
        return [] if self._data_dir is None else ["--data-dir", str(self._data_dir)]

    def _ask(self, *words: str) -> Any:
        return json.loads(self._run([*words, "-o", "json"]).stdout)

    def _run(self, words: list[str]) -> subprocess.CompletedProcess[str]:
        command = [str(find_program("trial-manager")), *words, "--experiment", self.id, *self._place()]
        done = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False)
        if done.returncode != 0:
            raise _failure(done.returncode, done.stderr)
        return done

    def _trial(self, row: Mapping[str, Any]) -> Trial:
        return Trial(
            id=row["id"],
            number=row["sequence"],
            state=row["state"],
            parameters=row["parameters"],
            final=_number(row["final"]),
            cause=row.get("cause"),
            exit_code=row.get("exit_code"),
            started_at=_when(row.get("started_at_ms")),
            ended_at=_when(row.get("ended_at_ms")),
            _experiment=self,
        )


def default_data_dir() -> Path:
    """Returns the folder of all experiments where ``data_dir`` is absent, as ``trial-manager`` chooses it."""
    given = os.environ.get("TRIAL_MANAGER_DATA_DIR")
    if given:
        return Path(given)
    base = os.environ.get("XDG_DATA_HOME", "")
    # The XDG specification has relative paths ignored.
    return (Path(base) if os.path.isabs(base) else Path.home() / ".local" / "share") / "trialkeeper"


def connect(id: str, *, data_dir: Union[str, os.PathLike[str], None] = None) -> Experiment:
    """Returns the experiment of this id in a data directory, whether it runs or has ended.

    :raises ManagerError: if there is none.
    """
    experiment = Experiment(data_dir=data_dir)
    experiment._id = id
    experiment.show()
    return experiment


def _failure(code: int, said: str) -> ManagerError:
    message = said.strip() or f"trial-manager ended with exit code {code}"
    return ConfigurationError(message) if code == 2 else ManagerError(message)


def _camel(name: str) -> str:
    head, *rest = name.split("_")
    return head + "".join(word[:1].upper() + word[1:] for word in rest)


def _number(value: Any) -> Any:
    """Returns a value of the REST API, in which texts stand for what JSON lacks."""
    return (
        {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}.get(value, value)
        if isinstance(value, str)
        else value
    )


def _when(at_ms: Optional[int]) -> Optional[datetime]:
    return None if at_ms is None else datetime.fromtimestamp(at_ms / 1000, timezone.utc)
