"""Experiments: describe a search, run it, look at its results.

While an experiment runs, its manager answers queries over the Unix socket in the experiment's folder. Afterwards,
the command line of ``trial-manager`` reads them from the store. Both return the same data.
"""

from __future__ import annotations

import asyncio
import contextlib
import html
import inspect
import json
import math
import os
import re
import subprocess
import time
import warnings
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Callable, Optional, Union

from trialkeeper._follower import Follower
from trialkeeper._foreign import ForeignNames, check_words
from trialkeeper._manager import ManagerProcess, failure
from trialkeeper._plain import plain
from trialkeeper._programs import find_program
from trialkeeper._progress import Progress, choose_progress
from trialkeeper._rest import NotRunning, ask, read_events, read_events_async, request
from trialkeeper.errors import (
    ConfigurationError,
    ExperimentFailed,
    ExperimentInterrupted,
    ManagerError,
)
from trialkeeper.results import Metric, Trial, decode_value

if TYPE_CHECKING:
    import pandas
    from typing_extensions import Self

__all__ = ["Callback", "Experiment", "Metric", "Trial", "connect", "default_data_dir"]

#: A function that is called with the experiment and each ended trial.
Callback = Callable[["Experiment", Trial], object]

#: The interval at which a running search is checked, in seconds.
_POLL_S = 0.25
#: The interval at which a running search is checked for trouble, in seconds.
_TROUBLE_CHECK_S = 2.0
#: The maximum number of times that :meth:`Experiment.run` restarts a killed manager.
_MAX_RESTARTS = 3
#: The maximum number of trials or metrics in one response.
_TRIALS_PAGE, _METRICS_PAGE = 1000, 10000


#: The words of other tools for the members of :class:`Experiment`.
_EXPERIMENT_ADVICE = {
    "best_trial": "`best`",
    "best_params": "`best.parameters`",
    "best_value": "`best.value`",
    "best_parameters": "`best.parameters`",
    "best_result": "`best`",
    "get_best_result": "`best`",
    "get_dataframe": "`to_pandas()`",
    "trials_dataframe": "`to_pandas()`",
    "get_trials": "`trials()`",
    "list_trial_jobs": "`trials()`",
    "export_data": "`trials()`",
    "get_status": "`state`",
    "optimize": "`run()`",
    "fit": "`run()`",
}
#: The manager's lines about progress, which an exception does not repeat.
_PROGRESS = re.compile(r"experiment \S+ on |  results are stored in |trial \d+ |    \||\d+ of \d+ trials? ended")
#: The number of the last lines of a trial's error output in an exception.
_STDERR_LINES = 12


class Experiment(ForeignNames):
    """A search over a search space.

    The configuration is a file, a mapping, keywords, or a mapping with keywords that override it. Keywords are the
    fields of the experiment file, in camelCase or in snake_case:

    >>> experiment = Experiment(
    ...     trial_command="python3 train.py",
    ...     search_space={"lr": {"_type": "loguniform", "_value": [1e-4, 1e-1]}},
    ...     tuner={"name": "TPE", "class_args": {"optimize_mode": "minimize"}},
    ...     max_trial_number=20,
    ...     trial_concurrency=2,
    ... )
    >>> experiment.config["maxTrialNumber"], experiment.config["tuner"]["classArgs"]
    (20, {'optimize_mode': 'minimize'})

    As a context manager, it stops the search that it started.

    :param id: the id of the search, up to 32 characters of ``A-Z a-z 0-9 _ -``; random if absent. :meth:`start`
        and :meth:`run` reject the id of an existing experiment; :meth:`resume` continues that experiment.
    :raises ConfigurationError: if fields are given together with a file, or have another tool's names.
    """

    _FOREIGN = _EXPERIMENT_ADVICE

    def __init__(
        self,
        config: Union[str, os.PathLike[str], Mapping[str, Any], None] = None,
        *,
        id: Optional[str] = None,
        data_dir: Union[str, os.PathLike[str], None] = None,
        **fields: Any,
    ) -> None:
        self._file = Path(config) if isinstance(config, (str, os.PathLike)) else None
        if self._file is not None and fields:
            raise ConfigurationError(
                f"{self._file}: a file cannot be combined with fields; change the file, or pass a mapping"
            )
        own = dict(config) if isinstance(config, Mapping) else {}
        check_words([*own, *fields])
        #: The configuration as the manager receives it; empty for a file and for a connected experiment.
        self.config: dict[str, Any] = plain(_in_camel_case({**own, **fields}))
        if self.config:
            self.config.setdefault("trainingService", {"platform": "local"})
            self.config.setdefault("trialConcurrency", 1)
        self._data_dir = Path(data_dir) if data_dir is not None else None
        self._chosen_id = id
        self._id: Optional[str] = None
        self._manager: Optional[ManagerProcess] = None
        self._keeps_serving = False
        #: Set if :meth:`stop` was called since the last start.
        self._was_stopped_here = False

    # Lifecycle.

    def start(
        self,
        *,
        port: int = 0,
        host: Optional[str] = None,
        url_prefix: Optional[str] = None,
        keep_serving: bool = False,
        detach: bool = False,
    ) -> Self:
        """Starts the search in the background and returns once its manager listens.

        :param port: where the manager listens; 0 for any free port.
        :param host: the address to listen on; the loopback interface for local trials if absent.
        :param url_prefix: a path, such as ``/search``, below which everything is served, too.
        :param keep_serving: whether the manager runs on after the search, until :meth:`stop`.
        :param detach: whether the search continues when this process exits; otherwise it is stopped.
        :raises ConfigurationError: if the configuration, the port or the data directory cannot be used.
        """
        source = "-" if self._file is None else str(self._file)
        chosen = [] if self._chosen_id is None else [f"--id={self._chosen_id}"]
        return self._start(["run", source, *chosen, *_prefix(url_prefix)], port, host, keep_serving, detach)

    def resume(
        self,
        *,
        port: int = 0,
        host: Optional[str] = None,
        url_prefix: Optional[str] = None,
        keep_serving: bool = False,
        detach: bool = False,
        trial_concurrency: Optional[int] = None,
        max_trial_number: Optional[int] = None,
        max_experiment_duration: Optional[str] = None,
    ) -> Self:
        """Continues a search that was stopped or whose manager died, in the background.

        Higher limits also continue a search that is done. The limits are recorded with the search.

        :param trial_concurrency: the new number of trials that run at the same time.
        :param max_trial_number: the new number of trials in total.
        :param max_experiment_duration: the new running time in total, such as ``90m``.
        """
        limits = {
            "--trial-concurrency": trial_concurrency,
            "--max-trial-number": max_trial_number,
            "--max-experiment-duration": max_experiment_duration,
        }
        flags = [f"{name}={value}" for name, value in limits.items() if value is not None]
        words = ["resume", self.id, *flags, *_prefix(url_prefix)]
        return self._start(words, port, host, keep_serving, detach)

    def run(
        self,
        *,
        port: int = 0,
        host: Optional[str] = None,
        callbacks: Sequence[Callback] = (),
        progress: Optional[bool] = None,
    ) -> Self:
        """Runs the search to its end. Ctrl-C stops its trials gracefully and raises ``KeyboardInterrupt``.

        A killed manager is restarted, up to three times, with a warning.

        :param callbacks: functions that are called with the experiment and each ended trial. The first exception
            of a callback is logged as a warning, and the search continues. A callback may end the search with
            ``experiment.stop()``.
        :param progress: whether to show each trial; by default in a terminal and in a notebook.
        :raises ExperimentFailed: if no trial succeeded with a result.
        """
        watch, restarts = _Watch(self, callbacks), 0
        try:
            self.start(port=port, host=host)
            watch.begin(progress)
            while True:
                for trial in self._follow(watch.follower):
                    watch.show(trial)
                if not self._is_to_restart(restarts):
                    break
                restarts += 1
                self.resume(port=port, host=host)
            self._raise_unless_ended()
        except BaseException:
            self._stop_own()
            raise
        finally:
            watch.end()
        return self

    def wait(
        self,
        timeout: Optional[float] = None,
        *,
        callbacks: Sequence[Callback] = (),
        progress: Optional[bool] = False,
    ) -> str:
        """Waits for the end of the search and returns its state.

        :param timeout: in seconds; no limit if absent.
        :param callbacks: as in :meth:`run`; also called for the trials that have ended already.
        :param progress: as in :meth:`run`, but off by default.
        :raises TimeoutError: if the search still runs after the timeout.
        :raises ExperimentFailed: if it has ended and no trial succeeded with a result.
        :raises ExperimentInterrupted: if it was stopped before its end.
        :raises ManagerError: if its manager was killed; :meth:`resume` continues the search.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        watch = _Watch(self, callbacks)
        watch.begin(progress)
        try:
            for trial in self._follow(watch.follower):
                watch.show(trial)
                if trial is None and deadline is not None and time.monotonic() > deadline:
                    raise TimeoutError(f"experiment {self.id} is still running after {timeout} s")
        finally:
            watch.end()
        return self._raise_for_exit()

    def stop(self) -> None:
        """Stops the trials and waits until the manager has exited. The experiment can be resumed."""
        self._was_stopped_here = True
        if self._manager is not None:
            self._manager.stop()
            return
        self._run(["experiment", "stop", self.id])
        with contextlib.suppress(NotRunning):
            while True:
                ask(self.folder, "GET", "/api/v1/experiment")
                time.sleep(_POLL_S)

    # The same for ``async`` code. A cancelled task stops its search.

    async def start_async(self, *, port: int = 0, host: Optional[str] = None, keep_serving: bool = False) -> Self:
        """Like :meth:`start`."""
        await self._begin_async(lambda: self.start(port=port, host=host, keep_serving=keep_serving))
        return self

    async def run_async(
        self,
        *,
        port: int = 0,
        host: Optional[str] = None,
        callbacks: Sequence[Callback] = (),
        progress: Optional[bool] = None,
    ) -> Self:
        """Like :meth:`run`."""
        watch, restarts = _Watch(self, callbacks), 0
        try:
            await self.start_async(port=port, host=host)
            watch.begin(progress)
            while True:
                async for trial in self._follow_async(watch.follower):
                    watch.show(trial)
                if not self._is_to_restart(restarts):
                    break
                restarts += 1
                await self._begin_async(lambda: self.resume(port=port, host=host))
            self._raise_unless_ended()
        except BaseException:
            await self.stop_async()
            raise
        finally:
            watch.end()
        return self

    async def wait_async(self) -> str:
        """Like :meth:`wait`; use ``asyncio.wait_for`` for a timeout."""
        watch = _Watch(self, ())
        try:
            async for trial in self._follow_async(watch.follower):
                watch.show(trial)
        finally:
            watch.end()
        return self._raise_for_exit()

    async def stop_async(self) -> None:
        """Like :meth:`stop`."""
        self._was_stopped_here = True
        if self._manager is None:
            if self._id is not None:
                await _in_thread(self.stop)
            return
        self._manager.terminate()
        while self._manager.is_running:
            await asyncio.sleep(0.05)

    async def watch_async(self) -> AsyncIterator[Trial]:
        """Like :meth:`watch`."""
        async for trial in self._follow_async(Follower(self)):
            if trial is not None:
                yield trial

    def __getstate__(self) -> dict[str, Any]:
        """Returns the state of a copy, which asks the running manager as :func:`connect` does."""
        return {**vars(self), "_manager": None}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stop_own()

    # Results.

    @property
    def id(self) -> str:
        """The experiment's id: the chosen one, or the one that it receives at its start."""
        known = self._id or self._chosen_id
        if known is None:
            raise ManagerError("the experiment has no id yet: start() or run() it first")
        return known

    @property
    def folder(self) -> Path:
        """The experiment's folder: its store, its trials' folders and the file ``user.token``."""
        return (self._data_dir or default_data_dir()) / self.id

    @property
    def url(self) -> Optional[str]:
        """The address of the portal while this object runs the experiment; ``None`` otherwise."""
        return self._manager.url if self._manager is not None and self._manager.is_running else None

    def login_url(self) -> Optional[str]:
        """Returns an address of the portal that logs in one browser, once and within five minutes.

        ``None`` if :attr:`url` is. The address expires, so a notebook may store it.
        """
        if self.url is None:
            return None
        try:
            return self.url.rstrip("/") + str(ask(self.folder, "POST", "/api/v1/session/ticket")["path"])
        except NotRunning:
            return None

    def show(self) -> dict[str, Any]:
        """Returns the status of the search: counts, limits, causes of failure, the best trial."""
        answer: dict[str, Any] = self._ask("/experiment", "experiment", "show")
        return answer

    @property
    def state(self) -> str:
        """``RUNNING``, ``DONE``, ``STOPPED``, ``INTERRUPTED``, … as in the REST API."""
        return str(self.show()["state"])

    @property
    def best(self) -> Optional[Trial]:
        """The best trial so far; ``None`` while no trial has a result."""
        row = self.show()["best"]
        return None if row is None else Trial._of(row, self)

    @property
    def pareto(self) -> list[Trial]:
        """The trials on the Pareto front if there are several objectives; otherwise an empty list."""
        return [Trial._of(row, self) for row in self.show().get("pareto", [])]

    def trials(self, state: Optional[str] = None) -> list[Trial]:
        """Returns all trials, or those in one state, ordered by number."""
        query = f"sort=sequence&limit={_TRIALS_PAGE}" + (f"&state={state}" if state else "")
        try:
            rows = list(self._pages(f"/trials?{query}&cursor=", "", "trials"))
        except NotRunning:
            rows = self._print("trial", "ls", *(["--state", state] if state else []))
        return [Trial._of(row, self) for row in rows]

    def watch(self) -> Iterator[Trial]:
        """Yields the trials that have ended, then each further trial when it ends, until the search is over.

        A restart of the manager loses no trial, because the results are read from the store.

        :raises ManagerError: if the manager was killed; :meth:`resume` continues the search.
        """
        for trial in self._follow(Follower(self)):
            if trial is not None:
                yield trial

    def to_pandas(self) -> pandas.DataFrame:
        """Returns a row for each trial: number, id, state, result, duration and a column for each parameter.

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
        return f"Experiment(id={self._id or self._chosen_id!r})"

    def _repr_html_(self) -> str:
        """Shows the search in a notebook: its numbers and its best trial."""
        return self._html(self.login_url())

    def _html(self, login: Optional[str]) -> str:
        """Returns the HTML that a notebook shows, with a login link."""
        if self._id is None:
            return "<p>This experiment has not been started.</p>"
        shown = self.show()
        best, limit = shown["best"], shown["max_trial_number"]
        counts = ", ".join(f"{count} {state.lower()}" for state, count in shown["counts"].items())
        link = ""
        if self.url and login:
            link = (
                f' <a href="{html.escape(self.url)}">portal</a>, '
                f'<a href="{html.escape(login)}" target="_blank" rel="noreferrer">log in</a>'
            )
        ended = sum(count for state, count in shown["counts"].items() if state not in ("WAITING", "RUNNING"))
        bar = f'<progress max="{limit}" value="{ended}"></progress> ' if limit else ""
        rows = "".join(
            f"<tr><th>{html.escape(str(name))}</th><td>{html.escape(str(value))}</td></tr>"
            for name, value in (best or {}).get("parameters", {}).items()
        )
        result = ""
        if best is not None:
            result = f"<p>best: {html.escape(str(decode_value(best['final'])))}</p><table>{rows}</table>"
        return (
            f"<div><p>{bar}<b>{html.escape(self._id)}</b> {html.escape(shown['state'])}: "
            f"{html.escape(counts)}.{link}</p>{result}</div>"
        )

    # The manager.

    def _start(self, words: list[str], port: int, host: Optional[str], keep_serving: bool, detach: bool) -> Self:
        if self._manager is not None and self._manager.is_running:
            raise ManagerError(f"experiment {self._id} is already running")
        command = [*words, "--port", str(port), "--output", "json"]
        if host is not None:
            command += ["--host", host]
        if keep_serving:
            command.append("--keep-serving")
        config = self.config if words[:2] == ["run", "-"] else None
        self._manager = ManagerProcess(command + self._place(), config, detach=detach)
        self._id = self._manager.id or self._id
        self._keeps_serving = keep_serving
        self._was_stopped_here = False
        return self

    def _stop_own(self) -> None:
        if self._manager is not None:
            self._manager.stop()

    def _was_killed(self) -> bool:
        """Returns whether a signal or a panic ended the manager."""
        code = None if self._manager is None else self._manager.exit_code
        return code is not None and (code < 0 or code == 101)

    def _is_to_restart(self, restarts: int) -> bool:
        """Returns whether the manager was killed and may be restarted, and warns if so."""
        if self._manager is None or not self._was_killed() or restarts >= _MAX_RESTARTS:
            return False
        warnings.warn(
            f"the manager of experiment {self.id} {self._manager.describe_end()}; "
            f"restarting it ({restarts + 1} of {_MAX_RESTARTS})",
            RuntimeWarning,
            stacklevel=3,
        )
        return True

    async def _begin_async(self, begin: Callable[[], Self]) -> None:
        """Starts the search in a thread. If the task is cancelled, it stops the search."""
        beginning = asyncio.ensure_future(_in_thread(begin))
        try:
            await asyncio.shield(beginning)
        except asyncio.CancelledError:
            with contextlib.suppress(ManagerError):
                await beginning
            await self.stop_async()
            raise

    def _raise_unless_ended(self) -> None:
        """Raises the error of an ended :meth:`run`. A search that a callback stopped has no error."""
        try:
            self._raise_for_exit()
        except ExperimentInterrupted:
            if not self._was_stopped_here:
                raise

    def _raise_for_exit(self) -> str:
        """Returns the state of an ended search, or raises the error that matches its manager's exit code."""
        code = None if self._manager is None else self._manager.exit_code
        if self._manager is None or code is None:
            return self.state
        if code == 0:
            shown = self.show()
            if shown["best"] is not None or shown.get("pareto") or not self._has_only_infinite_results():
                return str(shown["state"])
        said = self._manager.output()
        if code in (0, 1):
            raise ExperimentFailed(self._describe_failure(said), self)
        if code == 130:
            raise ExperimentInterrupted(f"experiment {self.id} was stopped; resume() continues it")
        if self._was_killed():
            raise ManagerError(
                f"the manager of experiment {self.id} {self._manager.describe_end()}; "
                f"resume() continues it\n{said}".rstrip()
            )
        raise failure(code, said)

    def _has_only_infinite_results(self) -> bool:
        """Returns whether the search has results, of which none can be the best."""
        numbers = [trial.value for trial in self.trials("SUCCEEDED") if trial.value is not None]
        return bool(numbers) and not any(map(math.isfinite, numbers))

    def _describe_failure(self, said: str) -> str:
        """Returns the reason of the first trial, its last error output, and the manager's advice."""
        lines = said.splitlines()
        first = next((line for line in lines if line.startswith("trial ")), None)
        described = ["no trial succeeded with a result" + (f"; {first}" if first else "")]
        with contextlib.suppress(ManagerError, OSError):
            trials = self.trials()
            shown = next((trial for trial in trials if trial.state == "FAILED"), trials[0] if trials else None)
            output = "" if shown is None else shown.output(stderr=True)
            described += [f"    | {line}" for line in output.splitlines()[-_STDERR_LINES:]]
        described += [line for line in lines if line.strip() and not _PROGRESS.match(line)]
        described.append(f"everything is stored in {self.folder}")
        return "\n".join(described)

    def _follow(self, follower: Follower) -> Iterator[Optional[Trial]]:
        """Yields each trial that has ended until the search is over, and ``None`` after each short silence."""
        while not follower.is_over():
            if not follower.is_leaving():
                with contextlib.suppress(NotRunning):
                    with contextlib.closing(read_events(self.folder, follower.after)) as events:
                        for event in events:
                            yield follower.take(event)
                            if follower.is_settled():
                                break
            yield None
            if not follower.is_settled():
                time.sleep(follower.pause_s())
        for trial in self.trials():
            if follower.add(trial):
                yield trial

    async def _follow_async(self, follower: Follower) -> AsyncIterator[Optional[Trial]]:
        """Yields what :meth:`_follow` yields."""
        while not await _in_thread(follower.is_over):
            if not follower.is_leaving():
                with contextlib.suppress(NotRunning):
                    events = read_events_async(self.folder, follower.after)
                    try:
                        async for event in events:
                            yield follower.take(event)
                            if follower.is_settled():
                                break
                    finally:
                        await events.aclose()
            yield None
            if not follower.is_settled():
                await asyncio.sleep(follower.pause_s())
        for trial in await _in_thread(self.trials):
            if follower.add(trial):
                yield trial

    def _place(self) -> list[str]:
        return [] if self._data_dir is None else ["--data-dir", str(self._data_dir)]

    def _ask(self, path: str, *words: str) -> Any:
        """Returns the manager's response to ``GET path``; without a manager, the output of ``trial-manager``."""
        try:
            return ask(self.folder, "GET", f"/api/v1{path}")
        except NotRunning:
            return self._print(*words)

    def _read(self, path: str, *words: str) -> bytes:
        """Returns what :meth:`_ask` returns, as bytes."""
        try:
            return request(self.folder, "GET", f"/api/v1{path}")
        except NotRunning:
            return self._run(list(words)).stdout

    def _metrics(self, trial: str) -> list[Any]:
        try:
            return list(self._pages(f"/trials/{trial}/metrics?limit={_METRICS_PAGE}&after=", "-1", "metrics"))
        except NotRunning:
            rows: list[Any] = self._print("metrics", trial)
            return rows

    def _pages(self, path: str, cursor: str, name: str) -> Iterator[Any]:
        while True:
            page = ask(self.folder, "GET", f"/api/v1{path}{cursor}")
            yield from page[name]
            if page.get("next") is None:
                return
            cursor = page["next"]

    def _print(self, *words: str) -> Any:
        return json.loads(self._run([*words, "-o", "json"]).stdout)

    def _run(self, words: list[str]) -> subprocess.CompletedProcess[bytes]:
        command = [str(find_program("trial-manager")), *words, "--experiment", self.id, *self._place()]
        done = subprocess.run(command, capture_output=True, check=False)
        if done.returncode != 0:
            raise failure(done.returncode, done.stderr.decode(errors="replace"))
        return done


class _Watch:
    """The callbacks and the progress of one search."""

    def __init__(self, experiment: Experiment, callbacks: Sequence[Callback]) -> None:
        self.follower = Follower(experiment)
        self._experiment = experiment
        self._callbacks = _checked(callbacks)
        self._warned: set[int] = set()
        self._progress: Optional[Progress] = None
        self._trouble: Optional[str] = None
        self._checked_at = -math.inf

    def begin(self, progress: Optional[bool]) -> None:
        """Begins to show the started search; ``progress`` as in :meth:`Experiment.run`."""
        chosen = choose_progress(self._experiment, progress)
        if chosen is not None:
            chosen.begin()
        self._progress = chosen

    def show(self, trial: Optional[Trial]) -> None:
        """Shows an ended trial, or other changes."""
        if trial is None:
            if self._progress is not None:
                self._progress.tick()
            if time.monotonic() - self._checked_at >= _TROUBLE_CHECK_S:
                self._warn_of_trouble()
            return
        if self._progress is not None:
            self._progress.add(trial)
        for number, callback in enumerate(self._callbacks):
            try:
                callback(self._experiment, trial)
            except Exception as error:
                if number not in self._warned:
                    self._warned.add(number)
                    warnings.warn(
                        f"the callback {callback!r} raised {type(error).__name__} for trial {trial.number}: "
                        f"{error}; the search continues, and further exceptions of this callback are not shown",
                        RuntimeWarning,
                        stacklevel=3,
                    )

    def end(self) -> None:
        """Shows the current state of the search."""
        self._warn_of_trouble()
        if self._progress is not None:
            self._progress.end()

    def _warn_of_trouble(self) -> None:
        """Warns of the search's trouble when it changes, as of a tuner that has failed.

        It also passes on the manager's own warnings.
        """
        self._checked_at = time.monotonic()
        with contextlib.suppress(ManagerError, OSError):
            trouble = self._experiment.show().get("trouble")
            if trouble and trouble != self._trouble:
                self._warn(trouble)
            self._trouble = trouble or self._trouble
        manager = self._experiment._manager
        for warning in [] if manager is None else manager.new_warnings():
            # The manager also logs some troubles.
            if warning != self._trouble:
                self._warn(warning)

    def _warn(self, message: str) -> None:
        warnings.warn(f"experiment {self._experiment.id}: {message}", RuntimeWarning, stacklevel=5)


def _checked(callbacks: Union[Sequence[Callback], Callback, None]) -> list[Callback]:
    """Returns the callbacks.

    :raises TypeError: if one of them cannot be called, or returns a coroutine that would never run.
    """
    given = [] if callbacks is None else [callbacks] if callable(callbacks) else list(callbacks)
    for callback in given:
        if not callable(callback):
            raise TypeError(f"callbacks: {callback!r} is not a function")
        if inspect.iscoroutinefunction(callback):
            raise TypeError(f"callbacks: {callback!r} is an `async def`; pass a plain function")
    return given


def default_data_dir() -> Path:
    """Returns the default data directory, as ``trial-manager`` chooses it."""
    given = os.environ.get("TRIAL_MANAGER_DATA_DIR")
    if given:
        return Path(given)
    base = os.environ.get("XDG_DATA_HOME", "")
    # The XDG specification requires that relative paths are ignored.
    return (Path(base) if os.path.isabs(base) else Path.home() / ".local" / "share") / "trialkeeper"


def _prefix(path: Optional[str]) -> list[str]:
    """Returns the words of the command line for a path below which everything is served, too."""
    trimmed = (path or "").strip("/")
    return [f"--url-prefix=/{trimmed}"] if trimmed else []


def connect(id: str, *, data_dir: Union[str, os.PathLike[str], None] = None) -> Experiment:
    """Returns the running or ended experiment with this id in a data directory.

    :raises ManagerError: if there is none.
    """
    experiment = Experiment(data_dir=data_dir)
    experiment._id = id
    experiment.show()
    return experiment


async def _in_thread(function: Callable[[], Any]) -> Any:
    return await asyncio.get_running_loop().run_in_executor(None, function)


#: The sections of the experiment file whose members can also be in snake_case.
_SECTIONS = frozenset(["tuner", "assessor", "advisor", "trainingService", "sharedStorage"])
#: The members of a training service that are such sections or lists of them.
_SERVICE_SECTIONS = frozenset(["storage", "machineList", "taskRoles", "worker", "ps", "master"])


def _in_camel_case(config: Mapping[str, Any], sections: frozenset[str] = _SECTIONS) -> dict[str, Any]:
    """Returns the configuration with its field names in camelCase. Names that the user chose are unchanged."""
    written = {}
    for given, value in config.items():
        name = _camel(given)
        inner = _SERVICE_SECTIONS if name == "trainingService" else frozenset()
        if name in sections and isinstance(value, Mapping):
            value = _in_camel_case(value, inner)
        elif name in sections and isinstance(value, list):
            value = [_in_camel_case(item, inner) if isinstance(item, Mapping) else item for item in value]
        written[name] = value
    return written


def _camel(name: str) -> str:
    head, *rest = name.split("_")
    return head + "".join(word[:1].upper() + word[1:] for word in rest)
