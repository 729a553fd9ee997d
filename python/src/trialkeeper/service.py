"""The base class of custom training services, which define how a job is started, stopped and polled.

    from trialkeeper.service import Gone, Running, TrainingService

    class MyService(TrainingService):
        def start(self, job):             # returns a handle: any text that identifies the job
            return submit_somewhere(job.name, job.argv)
        def stop(self, handle, job, force):
            end_somewhere(handle, force)
        def poll(self, jobs):             # {handle: job} -> {handle: Running() | Waiting(why) | Gone(code=0)}
            return {handle: look_somewhere(handle) for handle in jobs}

    MyService().serve()

The experiment file names the program: ``trainingService: {platform: plugin, command: [python3, my_service.py]}``.
The class implements the protocol (docs/plugins.md), stores a record of each job, and makes requests idempotent.
"""

from __future__ import annotations

import base64
import fcntl
import json
import os
import shlex
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Callable, Optional, TextIO, Union

__all__ = [
    "Gone",
    "Job",
    "NoRoom",
    "Problem",
    "Refused",
    "Running",
    "ServiceError",
    "State",
    "TrainingService",
    "Transient",
    "Unavailable",
    "Waiting",
    "agent_lives",
]

PROTOCOL = 1
_IN_FLIGHT = 8
_REPLAY_SECONDS = 60
_OUTPUT_WAIT_SECONDS = 1.0
_OUTPUT_PAUSE_SECONDS = 0.1
_OUTPUT_PIECE = 1 << 20
# The manager asks for new output only with the greatest offset. No file or platform has one of this size.
_FROM_THE_END = 1 << 62


class ServiceError(Exception):
    """A request that has no result. The subclass determines what the manager does."""

    code = -32603
    after: Optional[float] = None


class Refused(ServiceError):
    """The job is rejected permanently: the trial fails and is not retried."""

    code = -32001


class Transient(ServiceError):
    """The attempt failed; the next one may succeed."""

    code = -32002


class NoRoom(ServiceError):
    """There is currently no room: the trial waits. ``after``: seconds until the next try. Nothing was started."""

    code = -32003

    def __init__(self, message: str, after: Optional[float] = None) -> None:
        super().__init__(message)
        self.after = after


class Unavailable(ServiceError):
    """The platform does not answer: the trial waits, and its job may run. ``after``: seconds until the next try.

    Raise this for an expired token, too: a new token fixes it, and the trial is not the cause.
    """

    code = -32004

    def __init__(self, message: str, after: Optional[float] = None) -> None:
        super().__init__(message)
        self.after = after


class _InvalidSettings(ServiceError):
    code = -32008


class _UnsupportedVersion(ServiceError):
    code = -32007


class _CancelledAttempt(ServiceError):
    code = -32006


class _BadRequest(ServiceError):
    code = -32602


class _UnknownJob(ServiceError):
    code = -32005


@dataclass(frozen=True)
class Running:
    """The job runs."""


@dataclass(frozen=True)
class Waiting:
    """The job waits for its start."""

    why: str


@dataclass(frozen=True)
class Gone:
    """The job has ended. Omit unknown fields.

    ``reason``: exit, cancelled, timeout, oom, preempted, node_lost, start_failed, revoked or unknown.
    ``fault``: user-error, transient or permanent, which decides about a retry. None: the reason decides.
    """

    code: Optional[int] = None
    signal: Optional[int] = None
    reason: str = "exit"
    message: Optional[str] = None
    fault: Optional[str] = None

    @classmethod
    def of(cls, returncode: Optional[int]) -> Gone:
        """Creates an instance from a return code of ``subprocess``, which is negative for a signal."""
        if returncode is None:
            return cls(reason="unknown")
        return cls(signal=-returncode) if returncode < 0 else cls(code=returncode)


State = Union[Running, Waiting, Gone]


@dataclass(frozen=True)
class Problem:
    """A problem that ``check`` found. ``level``: error or warning; ``path``: the setting that causes it."""

    message: str
    level: str = "error"
    path: str = ""
    advice: str = ""


@dataclass(frozen=True)
class Job:
    """An attempt of a trial."""

    name: str
    """A unique name for the platform: letters, digits and dashes."""
    argv: list[str]
    """The complete command line of the agent."""
    folder: str
    """The folder of the trial."""
    trial: str
    attempt: str
    experiment: str
    gpus: Optional[int] = None
    """The number of GPUs that the trial needs. None: not specified."""
    grace: float = 35.0
    """The maximum time in seconds for the agent to exit after SIGTERM."""
    resources: dict[str, Any] = field(default_factory=dict)

    def script(self, head: str = "") -> str:
        """Returns a shell script that replaces the shell with the agent."""
        return f"#!/bin/sh\n{head}\nexec {shlex.join(self.argv)}\n"


def agent_lives(folder: Union[str, Path]) -> bool:
    """Returns whether the agent in a job's folder is running. The agent holds a lock while it runs."""
    try:
        with open(Path(folder) / "spool" / "lock", "rb") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False


class _Record:
    """The record of an attempt, in a file that is written before each action."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.lock = threading.RLock()
        self.data: dict[str, Any] = {}
        self.told_why: Optional[str] = None
        self.force_at: Optional[float] = None
        if path.exists():
            self.data = json.loads(path.read_text(encoding="utf-8"))

    def write(self, **changes: Any) -> None:
        self.data.update(changes)
        new = self.path.with_suffix(".new")
        with open(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w", encoding="utf-8") as file:
            json.dump(self.data, file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(new, self.path)

    def forget(self) -> None:
        self.data = {}
        self.path.unlink(missing_ok=True)

    @property
    def handle(self) -> Optional[str]:
        handle = self.data.get("handle")
        return None if handle is None else str(handle)

    @property
    def gone(self) -> Optional[dict[str, Any]]:
        return self.data.get("gone")

    @property
    def lives(self) -> bool:
        return self.handle is not None and self.gone is None

    def job(self) -> Job:
        return Job(**self.data["job"])


class TrainingService:
    """The base class of services. Implement ``start``, ``stop`` and ``poll``, and call ``serve``."""

    poll_seconds: float = 2.0
    """The interval between two calls of ``poll``."""
    name: str = ""
    """The service's name in messages. The default is the name of the class."""
    version: str = ""
    queues: bool = False
    """`True` if a job that the platform has no room for waits in the platform's queue."""

    def __init__(self) -> None:
        self.settings: dict[str, Any] = {}
        """``trainingService.settings`` of the experiment file."""
        self.gpus: Optional[int] = None
        """The number of GPUs that each trial needs. None: not specified."""
        self.state_dir = Path(".")
        """A folder for this service's files of the experiment."""
        self.experiment = ""
        self.agent = ""
        """The path of the agent. ``open`` may replace it with a copy that the platform's machines can read."""
        self._files: dict[str, str] = {}
        self._records: dict[str, _Record] = {}
        self._records_lock = threading.Lock()
        self._out: Optional[TextIO] = None
        self._out_lock = threading.Lock()
        self._poll_request = threading.Event()
        self._stopped = threading.Event()

    # To override.

    def start(self, job: Job) -> str:
        """Starts a job and returns its handle. Called once for each attempt, unless ``find`` finds the job."""
        raise NotImplementedError

    def stop(self, handle: str, job: Job, force: bool) -> None:
        """Stops a job with SIGTERM to the agent, or immediately with ``force``.

        May be called repeatedly, and after the end of the job.
        """
        raise NotImplementedError

    def poll(self, jobs: Mapping[str, Job]) -> Mapping[str, State]:
        """Returns the states of jobs by their handles. Omit jobs whose state is unknown; they continue."""
        raise NotImplementedError

    def find(self, job: Job) -> Optional[str]:
        """Finds a job whose ``start`` may have succeeded without a record. Returns its handle.

        Include jobs that have ended. None: the job was not started, and will be started again.
        """
        return None

    def check(self) -> list[Problem]:
        """Checks settings and platform for ``trial-manager doctor``. Changes nothing."""
        return []

    def open(self) -> None:
        """Prepares the service. Called in every process before the first job."""

    def ended(self, handle: str, job: Job) -> None:
        """Removes the leftovers of an ended job from the platform. Called after its end has been recorded."""

    def output(self, job: Job, stream: str, offset: int, size: int) -> bytes:
        """Returns at most ``size`` bytes of output from a byte offset, or nothing at its end.

        ``stream``: stdout or stderr. The default reads the job's folder.
        """
        try:
            with open(Path(job.folder) / stream, "rb") as file:
                file.seek(offset)
                return file.read(size)
        except FileNotFoundError:
            return b""

    def output_size(self, job: Job, stream: str) -> int:
        """Returns the size of the output so far, in bytes.

        Override it with ``output`` if the platform knows the size. Otherwise, the default reads all output.
        """
        if type(self).output is not TrainingService.output:
            size = 0
            while piece := self.output(job, stream, size, _OUTPUT_PIECE):
                size += len(piece)
            return size
        try:
            return (Path(job.folder) / stream).stat().st_size
        except FileNotFoundError:
            return 0

    def clean(self, job: Job) -> None:
        """Removes everything that a job left on the platform."""

    def close(self) -> None:
        """Releases resources before the process exits. Jobs continue."""

    def room(self) -> Optional[int]:
        """Returns how many more jobs, each with ``gpus``, can start now. None: currently unknown."""
        return None

    def room_changed(self) -> None:
        """Notifies the manager that there may be room. The manager submits waiting jobs and requests ``room``."""
        self._notify("room", {})

    def living(self) -> list[Job]:
        """Returns the jobs that were started and have not ended."""
        return [record.job() for record in self._all() if record.lives]

    def look_soon(self) -> None:
        """Triggers an immediate call of ``poll`` after an event."""
        self._poll_request.set()

    def log(self, message: str) -> None:
        """Writes a line into the manager's log."""
        self._notify("log", {"level": "info", "message": message})

    # The protocol.

    def serve(self) -> None:
        """Serves the manager until it closes standard input."""
        if os.environ.get("TRIALKEEPER_PLUGIN") != "1":
            sys.exit(
                "This is a training service of TrialKeeper. An experiment file names it: "
                "trainingService: {platform: plugin, command: [...]}; then `trial-manager run FILE` starts it."
            )
        # All other output, of this process and its children, goes to standard error.
        self._out = os.fdopen(os.dup(1), "w", encoding="utf-8")
        os.dup2(2, 1)
        sys.stdout = sys.stderr
        watcher = threading.Thread(target=self._watch, daemon=True)
        message = None
        with ThreadPoolExecutor(max_workers=_IN_FLIGHT) as pool:
            for line in sys.stdin.buffer:
                message = self._read(line)
                if message is None:
                    continue
                if message.get("method") in ("initialize", "open"):
                    # These requests are handled in order, because all others depend on them.
                    self._answer(message)
                    if message["method"] == "open" and not watcher.is_alive():
                        watcher.start()
                elif message.get("method") == "close":
                    break
                else:
                    pool.submit(self._answer, message)
        self._stopped.set()
        self._poll_request.set()
        self.close()
        if message is not None and message.get("method") == "close":
            self._answer({**message, "method": "ping"})
        self._out.close()

    def _read(self, line: bytes) -> Optional[dict[str, Any]]:
        try:
            message = json.loads(line)
        except ValueError:
            message = None
        if not isinstance(message, dict) or "id" not in message:
            print(f"not a request: {line[:80]!r}", file=sys.stderr)
            return None
        return message

    def _answer(self, message: dict[str, Any]) -> None:
        answer: dict[str, Any] = {"jsonrpc": "2.0", "id": message["id"]}
        try:
            result = self._result(str(message.get("method")), message.get("params") or {})
            # A result that cannot be encoded as JSON is also an error of this request.
            answer["result"] = json.loads(json.dumps(result))
        except ServiceError as error:
            answer["error"] = {"code": error.code, "message": str(error)}
            if error.after is not None:
                answer["error"]["data"] = {"after_ms": int(error.after * 1000)}
        except BaseException as error:
            # Includes `sys.exit` in the plugin: the manager restarts a process that does not answer.
            traceback.print_exc()
            answer["error"] = {"code": -32603, "message": f"{type(error).__name__}: {error}"}
        self._write(answer)

    def _write(self, message: dict[str, Any]) -> None:
        line = json.dumps(message) + "\n"
        with self._out_lock:
            if self._out is None or self._out.closed:
                return
            try:
                self._out.write(line)
                self._out.flush()
            except OSError:
                # The manager has exited, which also closes standard input.
                self._stopped.set()

    def _notify(self, method: str, params: dict[str, Any]) -> None:
        self._write({"jsonrpc": "2.0", "method": method, "params": params})

    def _result(self, method: str, params: dict[str, Any]) -> dict[str, Any]:
        if method == "initialize":
            return self._initialize(params)
        if method == "check":
            problems = [vars(problem) for problem in self.check()]
            return {"problems": problems}
        if method == "open":
            self.agent = str(params["agent"])
            self._files = {str(file["name"]): str(file["path"]) for file in params["files"]}
            self.open()
            return {}
        if method == "ping":
            return {}
        if method == "room":
            free = self.room()
            return {} if free is None else {"free": max(free, 0)}
        if method == "list":
            return {"jobs": [self._listed(record) for record in self._all() if record.data.get("job")]}
        if method == "clean_up":
            return self._clean_up()
        if method == "output":
            # Called without the record's lock, because it may wait.
            return self._output(self._record(params), params)
        by_key: dict[str, Callable[[_Record, dict[str, Any]], dict[str, Any]]] = {
            "submit": self._submit,
            "cancel": self._cancel,
            "finish": self._finish,
            "adopt": self._adopt,
            "recover": self._recover,
        }
        handler = by_key.get(method)
        if handler is None:
            raise _BadRequest(f"unknown request {method!r}")
        record = self._record(params)
        with record.lock:
            return handler(record, params)

    def _initialize(self, params: dict[str, Any]) -> dict[str, Any]:
        versions = params["protocol"]
        if not versions["min"] <= PROTOCOL <= versions["max"]:
            older = "the plugin" if versions["min"] > PROTOCOL else "trial-manager"
            raise _UnsupportedVersion(
                f"this plugin uses version {PROTOCOL} of the protocol, and trial-manager uses versions "
                f"{versions['min']} to {versions['max']}; update {older}"
            )
        settings = params.get("settings") or {}
        if not isinstance(settings, dict):
            raise _InvalidSettings("settings: expected an object")
        self.settings = settings
        self.gpus = (params.get("resources") or {}).get("gpus")
        self.state_dir = Path(params["state_dir"])
        self.experiment = str(params["experiment"]["id"])
        (self.state_dir / "jobs").mkdir(mode=0o700, parents=True, exist_ok=True)
        for path in sorted((self.state_dir / "jobs").glob("*.json")):
            self._records[path.stem] = _Record(path)
        capabilities = {name: True for name in ("adopt", "check", "clean_up", "finish", "output", "recover")}
        # The manager requests `room` only from plugins that override it.
        capabilities["room"] = type(self).room is not TrainingService.room
        capabilities["queue"] = self.queues
        return {
            "protocol": PROTOCOL,
            "service": {"name": self.name or type(self).__name__, "version": self.version},
            "capabilities": capabilities,
            "limits": {"in_flight": _IN_FLIGHT},
        }

    def _all(self) -> list[_Record]:
        with self._records_lock:
            return list(self._records.values())

    def _record(self, params: dict[str, Any]) -> _Record:
        attempt = str(params["key"]["attempt"])
        if not attempt or not all(letter.isalnum() or letter in "_-" for letter in attempt):
            raise _BadRequest(f"{attempt!r} is not the id of an attempt")
        with self._records_lock:
            if attempt not in self._records:
                self._records[attempt] = _Record(self.state_dir / "jobs" / f"{attempt}.json")
            return self._records[attempt]

    def _job(self, params: dict[str, Any]) -> Job:
        files = {str(file["name"]): str(file["path"]) for file in params.get("files", [])}
        folder = str(params["folder"])

        def word(item: Any) -> str:
            if isinstance(item, str):
                return item
            name = item.get("name", "")
            if item["in"] == "shared":
                return self._files[name]
            return files[name] if item["in"] == "job" else os.path.join(folder, name)

        resources = params.get("resources") or {}
        return Job(
            name=str(params["name"]),
            argv=[self.agent, *(word(item) for item in params["args"])],
            folder=folder,
            trial=str(params["key"]["trial"]),
            attempt=str(params["key"]["attempt"]),
            experiment=str(params["key"]["experiment"]),
            gpus=resources.get("gpus"),
            grace=params.get("grace_ms", 35_000) / 1000,
            resources=resources,
        )

    def _submit(self, record: _Record, params: dict[str, Any]) -> dict[str, Any]:
        if record.gone is not None:
            self._tell_gone(record)
            return {"handle": record.handle, "created": False}
        if record.handle is not None:
            return {"handle": record.handle, "created": False}
        if record.data.get("cancelled"):
            raise _CancelledAttempt("the attempt was cancelled before it was submitted")
        job = self._job(params)
        may_run = bool(record.data.get("job"))
        handle = self.find(job) if may_run else None
        created = handle is None
        if handle is None:
            # Written before the start: a record without a handle makes the next process look for the job first.
            record.write(key=params["key"], job=vars(job))
            try:
                handle = self.start(job)
            except (Refused, NoRoom):
                # An earlier start without an answer may have succeeded, so `clean_up` looks for that job.
                if not may_run:
                    record.forget()
                raise
        record.write(key=params["key"], job=vars(job), handle=str(handle))
        self.look_soon()
        return {"handle": record.handle, "created": created}

    def _cancel(self, record: _Record, params: dict[str, Any]) -> dict[str, Any]:
        if record.gone is not None:
            self._tell_gone(record)
            return {"known": False}
        record.write(key=params["key"], cancelled=True)
        if record.handle is None:
            return {"known": False}
        job, force = record.job(), bool(params.get("force"))
        record.force_at = time.monotonic() + job.grace
        self.stop(record.handle, job, force)
        self.look_soon()
        return {"known": True}

    def _finish(self, record: _Record, params: dict[str, Any]) -> dict[str, Any]:
        return self._cancel(record, {**params, "force": True})

    def _adopt(self, record: _Record, params: dict[str, Any]) -> dict[str, Any]:
        if record.handle is None and record.data.get("job"):
            handle = self.find(record.job())
            if handle is None:
                record.forget()
            else:
                record.write(handle=str(handle))
        if record.handle is None:
            return {"phase": "unknown"}
        return self._listed(record)

    def _listed(self, record: _Record) -> dict[str, Any]:
        listed = {"key": record.data["key"], "handle": record.handle, "phase": "running"}
        if record.gone is not None:
            listed.update(phase="gone", gone=record.gone)
        elif record.told_why is not None or record.handle is None:
            listed["phase"] = "waiting"
        return listed

    def _recover(self, record: _Record, params: dict[str, Any]) -> dict[str, Any]:
        if not record.data.get("job"):
            return {"left": 0}
        job = record.job()
        words = {flag: job.argv[job.argv.index(flag) + 1] for flag in _REPLAY_FLAGS if flag in job.argv}
        argv = [job.argv[0], "replay", job.folder, *(word for pair in words.items() for word in pair)]
        done = subprocess.run(
            argv, capture_output=True, text=True, timeout=_REPLAY_SECONDS, stdin=subprocess.DEVNULL
        )
        if done.returncode != 0:
            raise Transient(done.stderr.strip() or f"trialkeeper replay ended with {done.returncode}")
        return {"left": 0}

    def _output(self, record: _Record, params: dict[str, Any]) -> dict[str, Any]:
        if not record.data.get("job"):
            raise _UnknownJob("there is no such job")
        stream = str(params.get("stream", "stdout"))
        if stream not in ("stdout", "stderr"):
            raise _BadRequest(f"there is no stream {stream!r}")
        job, size = record.job(), int(params.get("max_bytes", 65536))
        offset = self._output_offset(job, stream, int(params.get("offset", 0)))
        # A waiting request occupies a thread.
        until = time.monotonic() + min(int(params.get("wait_ms", 0)) / 1000, _OUTPUT_WAIT_SECONDS)
        while True:
            has_ended = not record.lives
            data = self.output(job, stream, offset, size)
            if data or has_ended or time.monotonic() >= until:
                text = base64.b64encode(data).decode("ascii")
                return {"offset": offset, "data": text, "end": has_ended and not data}
            time.sleep(_OUTPUT_PAUSE_SECONDS)

    def _output_offset(self, job: Job, stream: str, offset: int) -> int:
        """Returns the offset to read from. An offset beyond the end means the end, which skips earlier output."""
        own = type(self)
        knows_size = own.output is TrainingService.output or own.output_size is not TrainingService.output_size
        if knows_size or offset >= _FROM_THE_END:
            return min(offset, self.output_size(job, stream))
        return offset

    def _clean_up(self) -> dict[str, Any]:
        left = []
        for record in self._all():
            with record.lock:
                if not record.data.get("job"):
                    continue
                try:
                    job = record.job()
                    handle = record.handle or self.find(job)
                    if handle is not None and record.gone is None:
                        self.stop(handle, job, True)
                    self.clean(job)
                    record.forget()
                except Exception as error:
                    left.append({"place": record.handle or record.data["job"]["name"], "why": str(error)})
        return {"left": left}

    # The states of jobs.

    def _watch(self) -> None:
        pause = self.poll_seconds
        while not self._stopped.is_set():
            try:
                self._poll_all()
                pause = self.poll_seconds
            except Exception as error:
                # An error of the platform ends no job.
                pause = min(max(pause * 2, 1.0), 60.0)
                print(f"cannot poll the jobs; the next try is in {pause:.0f} s: {error}", file=sys.stderr)
            if self._poll_request.wait(pause):
                self._poll_request.clear()

    def _poll_all(self) -> None:
        living = {record.handle: record for record in self._all() if record.lives}
        jobs = {handle: record.job() for handle, record in living.items() if handle is not None}
        if not jobs:
            return
        for handle, state in self.poll(jobs).items():
            record = living.get(handle)
            if record is None:
                continue
            with record.lock:
                self._take(record, jobs[handle], state)

    def _take(self, record: _Record, job: Job, state: State) -> None:
        if not record.lives:
            return
        if isinstance(state, Gone):
            self._keep_gone(record, job, state)
            return
        why = state.why if isinstance(state, Waiting) else None
        if why is not None and why != record.told_why:
            self._notify("waits", {"key": record.data["key"], "why": why})
        record.told_why = why
        if record.force_at is not None and time.monotonic() > record.force_at and record.handle:
            record.force_at = None
            self.stop(record.handle, job, True)

    def _keep_gone(self, record: _Record, job: Job, state: Gone) -> None:
        reason = "cancelled" if state.reason == "revoked" and record.data.get("cancelled") else state.reason
        gone: dict[str, Any] = {"key": record.data["key"], "reason": reason}
        ends = {"code": state.code, "signal": state.signal}
        gone["exit"] = {name: value for name, value in ends.items() if value is not None}
        if state.message:
            gone["message"] = state.message
        if state.fault:
            gone["class"] = state.fault
        if any((Path(job.folder) / "spool").glob("*/*.seg")):
            gone["spool"] = "left"
        record.write(gone=gone)
        self._tell_gone(record)
        try:
            self.ended(str(record.handle), job)
        except Exception as error:
            print(f"the remains of {record.handle} stay until clean_up: {error}", file=sys.stderr)

    def _tell_gone(self, record: _Record) -> None:
        if record.gone is not None:
            self._notify("gone", record.gone)


_REPLAY_FLAGS = ("--manager-file", "--token-file", "--ca-file")
