"""The class ``Experiment``: NNI's methods, implemented with ``trialkeeper.Experiment`` and ``trial-manager``."""

from __future__ import annotations

import atexit
import contextlib
import http.client
import json
import logging
import re
import secrets
import string
import subprocess
import time
from datetime import datetime
from enum import Enum
from pathlib import Path
from typing import Any, Callable, Optional, Union
from urllib.parse import urlsplit

import trialkeeper
import trialkeeper._rest
from nni._archive import configuration
from nni._stdout import say
from nni.experiment import _places
from nni.experiment._rest import NotRunning, RestError, ask, wait_until_answered, wait_until_gone
from nni.experiment._viewer import Viewer
from nni.experiment.config import ExperimentConfig
from nni.experiment.data import TrialJob, TrialMetricData, TrialResult
from trialkeeper._programs import find_program
from trialkeeper.experiment import default_data_dir

__all__ = ["Experiment", "InvalidConfiguration", "RunMode", "explain_port", "list_experiments", "report"]

_logger = logging.getLogger("nni.experiment")

#: The interval at which a running search is checked, in seconds.
_POLL_S = 0.5
#: The maximum time in seconds for a manager to answer on its port.
_CONNECT_S = 5.0
#: Seconds after which an experiment counts as held if it is stopped but its manager runs.
_HELD_S = 2.0


_ID = re.compile(r"[A-Za-z0-9_-]{1,32}")
#: The manager's words for an algorithm that it does not start again.
_LOST = re.compile(r"the (tuner|assessor|advisor) is lost\b")


class InvalidConfiguration(trialkeeper.ConfigurationError, ValueError):
    """The configuration, the port or the id cannot be used. NNI raises ``ValueError`` or ``RuntimeError``."""


class RunMode(Enum):
    """The lifetime of an experiment's manager."""

    #: Until the script exits.
    Background = "background"
    #: Until the script exits. Unlike NNI, it prints no progress, which ``trial-manager top`` shows.
    Foreground = "foreground"
    #: Until the experiment is stopped.
    Detach = "detach"


class Experiment:
    """An experiment: configured by ``config``, run by :meth:`run`.

    >>> experiment = Experiment('local')
    >>> experiment.config.trial_command = 'python3 trial.py'
    >>> experiment.config.tuner.name = 'TPE'

    :param config_or_platform: a configuration, or the name of a platform, for which you then fill in ``config``.
    :param id: the id of an existing experiment, for :meth:`resume` and :meth:`view`, or of the new one; random if
        absent.
    """

    def __init__(
        self, config_or_platform: Union[ExperimentConfig, str, list[str], None] = None, id: Optional[str] = None
    ) -> None:
        if id is not None and not _ID.fullmatch(id):
            raise ValueError(
                f"Invalid experiment ID: {id}. It has 1 to 32 letters of A to Z, digits, hyphens and underscores."
            )
        self.config: Any = config_or_platform
        if isinstance(config_or_platform, (str, list)):
            self.config = ExperimentConfig(config_or_platform)
        #: The experiment's id. Each start of a new experiment without an id of your own has another one.
        self.id: str = id or _new_id()
        #: The port of the web pages; ``None`` while the experiment does not run.
        self.port: Optional[int] = None
        #: A path, such as ``search``, below which the next start serves everything, too.
        self.url_prefix: Optional[str] = None
        self._given_id = id
        self._experiment: Optional[trialkeeper.Experiment] = None
        self._viewer: Optional[Viewer] = None
        self._last_trouble: Optional[str] = None

    # Lifecycle.

    def start(self, port: int = 8080, debug: bool = False, run_mode: RunMode = RunMode.Background) -> None:
        """Starts the experiment in the background. It stops when the script exits, except with ``RunMode.Detach``.

        :raises InvalidConfiguration: if the configuration, the port or the id cannot be used.
        """
        self._refuse_if_running()
        fields = self._file()
        if self._experiment is not None and self._given_id is None:
            self.id = _new_id()
        experiment = trialkeeper.Experiment(fields, id=self.id, data_dir=self._data_dir())
        options: dict[str, Any] = {"url_prefix": self.url_prefix, "detach": run_mode is RunMode.Detach}
        self._begin(lambda: experiment.start(port=port, keep_serving=True, **options), run_mode, port)

    def run(self, port: int = 8080, wait_completion: bool = True, debug: bool = False) -> Optional[bool]:
        """Runs the experiment and waits for its end; Ctrl-C stops it.

        The manager then runs until :meth:`stop` or the exit of the script, so that results can be queried.

        :return: whether the search ended without an error; ``None`` without ``wait_completion`` and after Ctrl-C.
        """
        return self._run(lambda: self.start(port, debug), wait_completion)

    def resume(
        self: Union[Experiment, str], port: int = 8080, wait_completion: bool = True, debug: bool = False
    ) -> Optional[bool]:
        """Continues a stopped experiment, as :meth:`run` runs a new one.

        Also ``Experiment.resume(id, port)``.
        """
        experiment = _of(self)
        return experiment._run(lambda: experiment._resume(port), wait_completion)

    def run_or_resume(self, port: int = 8080, wait_completion: bool = True, debug: bool = False) -> Optional[bool]:
        """Resumes the experiment if its id exists, and runs it otherwise."""
        method = self.resume if self.has_checkpoint() else self.run
        return method(port, wait_completion, debug)

    def view(self: Union[Experiment, str], port: int = 8080, non_blocking: bool = False) -> Experiment:
        """Shows a stopped experiment on its pages, until Ctrl-C or, with ``non_blocking``, until :meth:`stop`.

        Also ``Experiment.view(id, port)``.
        """
        experiment = _of(self)
        existing = experiment._existing()
        experiment.load_checkpoint()
        experiment._viewer = viewer = Viewer(existing.folder, port)
        atexit.register(experiment.stop)
        experiment._experiment = existing
        experiment.port = port
        if not non_blocking:
            try:
                viewer.process.wait()
            except KeyboardInterrupt:
                pass
            finally:
                experiment.stop()
        return experiment

    def stop(self) -> None:
        """Stops the experiment's trials and its manager, if it is running; :meth:`resume` continues it."""
        atexit.unregister(self.stop)
        if self._viewer is not None:
            self._viewer.stop()
            self._viewer = None
        elif self._experiment is not None and self.port is not None:
            report("Stopping experiment, please wait...")
            self._experiment.stop()
            wait_until_gone(self._experiment.folder)
            report("Experiment stopped.")
        self.port = None

    @classmethod
    def connect(cls, port: int) -> Experiment:
        """Returns the experiment whose manager listens on a port of this machine.

        :raises ConnectionError: if there is none.
        """
        folder = _listening(port)
        if folder is None:
            # The manager of trials on other machines encrypts its port.
            listed = [row for row in list_experiments(default_data_dir()) if row["url"]]
            found = [default_data_dir() / row["id"] for row in listed if urlsplit(row["url"]).port == port]
            if not found:
                running = ", ".join(f"{row['id']} on {row['url']}" for row in listed) or "none"
                raise NotRunning(f"none of your experiments listens on port {port}; running: {running}")
            folder = found[0]
        experiment = cls(id=folder.name)
        experiment._experiment = trialkeeper.connect(folder.name, data_dir=folder.parent)
        experiment.port = port
        return experiment

    def has_checkpoint(self) -> bool:
        """Returns whether an experiment with this id exists."""
        try:
            self._existing()
        except trialkeeper.ManagerError:
            return False
        return True

    def load_checkpoint(self) -> None:
        """Loads the configuration of the existing, running or stopped experiment, unless it is set already.

        :raises ValueError: if its record cannot be read.
        """
        if self.config is not None:
            return
        folder = self._existing().folder
        fields = configuration(folder)
        if not fields:
            raise ValueError(f"the configuration of experiment {self.id} cannot be read from {folder}")
        self.config = ExperimentConfig(**fields)
        # The working directory in the file has no effect on an existing experiment.
        self.config.experiment_working_directory = str(folder.parent.resolve())

    def save_checkpoint(self) -> None:
        """Does nothing, because the manager stores everything immediately."""

    # Queries.

    def get_status(self) -> str:
        """Returns ``RUNNING``, ``DONE``, ``STOPPED``, …; ``VIEWED`` while :meth:`view` shows it."""
        return "VIEWED" if self._viewer is not None else str(self._ask("GET", "/check-status")["status"])

    def get_trial_job(self, trial_job_id: str) -> TrialJob:
        """Returns a trial."""
        return TrialJob._read(self._ask("GET", f"/trial-jobs/{trial_job_id}"))

    def list_trial_jobs(self) -> list[TrialJob]:
        """Returns all trials, ordered by number."""
        return [TrialJob._read(row) for row in self._ask("GET", "/trial-jobs")]

    def get_job_statistics(self) -> list[dict[str, Any]]:
        """Returns the number of trials in each state."""
        answer: list[dict[str, Any]] = self._ask("GET", "/job-statistics")
        return answer

    def get_job_metrics(self, trial_job_id: Optional[str] = None) -> dict[str, list[TrialMetricData]]:
        """Returns the results of all trials, or of one trial, by trial id. A trial without results is absent."""
        path = f"/metric-data/{trial_job_id}" if trial_job_id else "/metric-data"
        metrics: dict[str, list[TrialMetricData]] = {}
        try:
            rows = self._ask("GET", path)
        except RestError as error:
            if error.status != 404:
                raise
            rows = []  # As in NNI, an unknown trial has no results.
        for row in rows:
            metrics.setdefault(row["trialJobId"], []).append(TrialMetricData._read(row))
        return metrics

    def get_experiment_profile(self) -> dict[str, Any]:
        """Returns the configuration and the state."""
        profile: dict[str, Any] = self._ask("GET", "/experiment")
        return profile

    def get_all_experiments_metadata(self) -> list[dict[str, Any]]:
        """Returns the metadata of each experiment of this user on this machine."""
        own: list[dict[str, Any]] = self._ask("GET", "/experiments-info")
        rows = [(data_dir, row) for data_dir in _places.data_dirs() for row in list_experiments(data_dir)]
        return [*own, *(_metadata(data_dir, row) for data_dir, row in rows if row["id"] != own[0]["id"])]

    def get_experiment_metadata(self, exp_id: str) -> dict[str, Any]:
        """Returns the metadata of an experiment; an empty ``dict`` if it is unknown."""
        return next((row for row in self.get_all_experiments_metadata() if row["id"] == exp_id), {})

    def export_data(self) -> list[TrialResult]:
        """Returns the parameters and the final result of each trial with a result."""
        return [TrialResult._read(row) for row in self._ask("GET", "/export-data")]

    # Changes.

    def update_trial_concurrency(self, value: int) -> None:
        """Changes the number of trials that run at the same time."""
        self._update("TRIAL_CONCURRENCY", "trialConcurrency", value)

    def update_max_experiment_duration(self, value: Union[str, int]) -> None:
        """Changes the maximum duration of the search, such as ``2h``."""
        self._update("MAX_EXEC_DURATION", "maxExperimentDuration", value)

    def update_search_space(self, value: dict[str, Any]) -> None:
        """Changes the search space."""
        self._update("SEARCH_SPACE", "searchSpace", value)

    def update_max_trial_number(self, value: int) -> None:
        """Changes the maximum number of trials."""
        self._update("MAX_TRIAL_NUM", "maxTrialNumber", value)

    def kill_trial_job(self, trial_job_id: str) -> None:
        """Stops a trial."""
        self._ask("DELETE", f"/trial-jobs/{trial_job_id}")

    # Helpers.

    def _run(self, begin: Callable[[], None], wait_completion: bool) -> Optional[bool]:
        """Begins a search, and waits for its end if wanted; Ctrl-C stops the search."""
        try:
            begin()
        except KeyboardInterrupt:
            self.stop()
            return None
        return self._wait_completion() if wait_completion else None

    def _resume(self, port: int) -> None:
        existing = self._existing()
        self._refuse_if_running()
        self.load_checkpoint()
        prefix = self.url_prefix
        self._begin(
            lambda: existing.resume(port=port, url_prefix=prefix, keep_serving=True), RunMode.Background, port
        )
        self._wait_until_resumed()

    def _file(self) -> dict[str, Any]:
        """Returns the content of the experiment file."""
        if not isinstance(self.config, ExperimentConfig):
            raise ValueError("the experiment has no configuration: use Experiment('local') and fill in its config")
        fields: dict[str, Any] = self.config._experiment_file()
        return fields

    def _data_dir(self) -> Optional[Path]:
        """Returns the folder of all experiments if it is not the default."""
        folder = self.config.experiment_working_directory if isinstance(self.config, ExperimentConfig) else None
        if folder is None:
            return None
        data_dir: Path = (self.config._base_path / Path(folder).expanduser()).resolve()
        return None if data_dir == default_data_dir().resolve() else data_dir

    def _existing(self) -> trialkeeper.Experiment:
        data_dir = self._data_dir() or _places.find(self.id)
        return self._experiment or trialkeeper.connect(self.id, data_dir=data_dir)

    def _refuse_if_running(self) -> None:
        """Raises if this object or another process runs the experiment: its manager would be lost, or refuse.

        :raises trialkeeper.ManagerError: if it is running. The message contains its address.
        """
        if self._experiment is not None and self._experiment.url is not None:
            raise trialkeeper.ManagerError(f"experiment {self.id} is already running on {self._experiment.url}")
        if not self.has_checkpoint():
            return
        folder = self._existing().folder
        url = next((row["url"] for row in list_experiments(folder.parent) if row["id"] == folder.name), None)
        if url is not None and _is_served(folder):
            raise trialkeeper.ManagerError(f"experiment {self.id} is already running on {url}")

    def _begin(self, start: Any, run_mode: RunMode, port: int) -> None:
        report(f"Creating experiment, Experiment ID: {self.id}")
        try:
            self._experiment = experiment = start()
        except trialkeeper.ConfigurationError as error:
            raise InvalidConfiguration(explain_port(str(error), port)) from None
        self.id = experiment.folder.name
        _places.record(experiment.folder)
        self.port = urlsplit(experiment.url or "").port
        if run_mode is not RunMode.Detach:
            atexit.register(self.stop)
        wait_until_answered(experiment.folder, self._lives)
        prefix = (self.url_prefix or "").strip("/")
        report(f"Web portal URLs: {experiment.url}{f'/{prefix}' if prefix else ''}")

    def _wait_until_resumed(self) -> None:
        """Waits while the status is still that of the stop. Scripts loop while an experiment is running.

        An experiment that stays stopped is held.
        """
        deadline = time.monotonic() + _HELD_S
        with contextlib.suppress(NotRunning):
            while self.get_status() == "STOPPED" and time.monotonic() < deadline:
                time.sleep(0.02)

    def _lives(self) -> bool:
        """Returns whether the manager that this process started is running."""
        return self._experiment is not None and self._experiment.url is not None

    def _wait_completion(self) -> Optional[bool]:
        """Waits for the end of the search. Scripts use this name of NNI."""
        try:
            ran_at, restarts = time.monotonic(), 0
            while True:
                try:
                    status = self.get_status()
                except NotRunning:
                    if self._lives():
                        time.sleep(_POLL_S)
                    elif self._is_to_restart(restarts):
                        restarts += 1
                        self._restart()
                        ran_at = time.monotonic()
                    else:
                        return self._ended_state()
                    continue
                self._warn_of_trouble()
                if status == "DONE":
                    return not self._is_algorithm_lost()
                if status != "STOPPED":
                    ran_at = time.monotonic()
                # A manager exits when the user stops its experiment. If it keeps running, the experiment is
                # held until a problem is fixed. A resumed experiment is also stopped for a moment.
                if status == "ERROR" or time.monotonic() - ran_at > _HELD_S:
                    _logger.error("experiment %s is held: %s", self.id, self._trouble())
                    return False
                time.sleep(_POLL_S)
        except KeyboardInterrupt:
            _logger.warning("KeyboardInterrupt detected")
            self.stop()
            return None

    def _is_to_restart(self, restarts: int) -> bool:
        return self._experiment is not None and self._experiment._is_to_restart(restarts)

    def _restart(self) -> None:
        """Continues a search whose manager was killed, on the same port."""
        experiment = self._existing().resume(port=self.port or 0, url_prefix=self.url_prefix, keep_serving=True)
        wait_until_answered(experiment.folder, self._lives)

    def _warn_of_trouble(self) -> None:
        """Logs the trouble of the experiment, as of a tuner that has failed, when it changes."""
        trouble = self._existing().show().get("trouble")
        if trouble and trouble != self._last_trouble:
            _logger.warning("experiment %s: %s", self.id, trouble)
        self._last_trouble = trouble or self._last_trouble

    def _is_algorithm_lost(self) -> bool:
        """Returns whether the tuner or the assessor has failed for good."""
        return bool(_LOST.match(str(self._existing().show().get("trouble") or "")))

    def _trouble(self) -> str:
        shown = self._existing().show()
        return str(shown.get("trouble") or f"{shown['counts']}, {shown['causes']}")

    def _ended_state(self) -> bool:
        """Returns whether the search of an exited manager succeeded. Raises if the manager failed."""
        self.port = None
        try:
            self._existing().wait()
        except trialkeeper.ExperimentInterrupted:
            pass  # NNI counts a stopped experiment as completed.
        except trialkeeper.ExperimentFailed as error:
            _logger.error("%s", error)
            return False
        self._warn_of_trouble()
        return not self._is_algorithm_lost()

    def _update(self, kind: str, field: str, value: Any) -> None:
        profile = self.get_experiment_profile()
        profile["params"][field] = value
        self._ask("PUT", f"/experiment?update_type={kind}", profile)
        report(f"Successfully update {field}.")

    def _ask(self, method: str, path: str, body: Any = None) -> Any:
        if self._experiment is None:
            raise NotRunning("the experiment is not running: run(), start(), resume() or connect() it first")
        return ask(self._experiment.folder, method, path, body)


def report(event: str) -> None:
    """Prints a line with NNI's words, which scripts read."""
    _logger.info("%s", event)
    say(f"[{datetime.now():%F %T}] {event}")


def _metadata(data_dir: Path, row: dict[str, Any]) -> dict[str, Any]:
    """Returns NNI's metadata of an experiment of :func:`list_experiments`."""
    folder = data_dir / row["id"]
    with contextlib.suppress(NotRunning, RestError):
        running: list[dict[str, Any]] = trialkeeper._rest.ask(folder, "GET", "/api/v1/nni/experiments-info")
        return running[0]
    service = configuration(folder).get("trainingService")
    is_over = row["state"] in ("DONE", "ERROR")
    return {
        "id": row["id"],
        "port": None,
        "startTime": row["created_at_ms"],
        "endTime": row["ended_at_ms"] or "N/A",
        # NNI shows an experiment without a manager as stopped.
        "status": row["state"] if is_over else "STOPPED",
        "platform": service.get("platform") if isinstance(service, dict) else "hybrid" if service else None,
        "experimentName": row["name"],
        "tag": [],
        "pid": None,
        "webuiUrl": [],
        "logDir": str(data_dir),
        "prefixUrl": None,
    }


def _is_served(folder: Path) -> bool:
    """Returns whether a manager runs the experiment. A viewer does not count."""
    try:
        trialkeeper._rest.ask(folder, "GET", "/api/v1/nni/check-status")
    except (NotRunning, OSError):
        return False
    return True


def _new_id() -> str:
    """Returns an id in NNI's form."""
    return "".join(secrets.choice(string.ascii_lowercase + string.digits) for _ in range(8))


def _listening(port: int) -> Optional[Path]:
    """Returns the folder of the experiment that answers on a port of this machine, in any data directory."""
    connection = http.client.HTTPConnection("localhost", port, timeout=_CONNECT_S)
    try:
        connection.request("GET", "/api/v1/nni/experiment")
        answer = connection.getresponse()
        return Path(json.loads(answer.read())["logDir"]) if answer.status == 200 else None
    except (OSError, http.client.HTTPException, ValueError, KeyError, TypeError):
        return None
    finally:
        connection.close()


def explain_port(message: str, port: int) -> str:
    """Returns a message of ``trial-manager``. If another experiment uses the port, the message names it."""
    if f":{port}" not in message or "in use" not in message:
        return message
    folder = _listening(port)
    holder = (
        "" if folder is None else f"; experiment {folder.name} uses it, and `nnictl stop {folder.name}` stops it"
    )
    return re.sub("; (--port |port=)0 picks a free port", "", message) + f"{holder}; choose another port"


def _of(experiment: Union[Experiment, str]) -> Experiment:
    """Returns the experiment of an id, which NNI 3.0 still accepts in place of the object."""
    return Experiment(id=experiment) if isinstance(experiment, str) else experiment


def list_experiments(data_dir: Path) -> list[dict[str, Any]]:
    """Returns the experiments on this machine from ``trial-manager experiment ls``."""
    command = [str(find_program("trial-manager")), "experiment", "ls", "-o", "json", "--data-dir", str(data_dir)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise trialkeeper.ManagerError(done.stderr.strip())
    rows: list[dict[str, Any]] = json.loads(done.stdout)
    return rows
