"""The training service for ``platform: openpai``, which runs trials as jobs of OpenPAI. See docs/openpai.md.

Each attempt is a job of protocol 2, which the service finds by its unique name. The job runs the agent from the
storage that this machine and the containers share.
"""

from __future__ import annotations

import copy
import http.client
import json
import os
import re
import shlex
import shutil
import ssl
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Optional

from trialkeeper.service import (
    Gone,
    Job,
    NoRoom,
    Problem,
    Refused,
    Running,
    ServiceError,
    State,
    TrainingService,
    Unavailable,
    Waiting,
)

__all__ = ["OpenPai", "free_jobs", "job_document", "job_end"]

_REQUEST_SECONDS = 15.0
_ANSWER_BYTES = 64 << 20
_LIST_LIMIT = 50_000
_ENDED = ("SUCCEEDED", "FAILED", "STOPPED")
_MISSES = 3
"""The number of consecutive lists without a job after which the job counts as gone."""

_IS_RETRY = 125
"""The exit code of a job that the platform restarted. Its attempt must not run twice."""

_PATH_FLAGS = {
    "--manager-file",
    "--token-file",
    "--output-dir",
    "--spool-dir",
    "--parameters",
    "--code-archive",
    "--log-file",
    "--ca-file",
}

_REASONS = {-1000: "node_lost", -1001: "node_lost", -1003: "preempted", -1004: "timeout", -1200: "oom"}
_STOPPED = (-210, -220, -230)
_FAULTS = {
    "PLATFORM_FAILURE": "transient",
    "RESOURCE_ALLOCATION_TIMEOUT": "transient",
    "USER_FAILURE": "permanent",
}


class _Answer(Exception):
    """An error response of OpenPAI."""

    def __init__(self, status: int, code: str, message: str, after: Optional[float]) -> None:
        super().__init__(f"OpenPAI says: {message or code or status}")
        self.status = status
        self.code = code
        self.after = after


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    # A redirect would send the token to another server.
    def redirect_request(self, *_: Any) -> None:
        return None


def job_document(job: Job, name: str, settings: Mapping[str, Any], commands: list[str]) -> dict[str, Any]:
    """Creates a job of protocol 2: the user's job with its name and commands replaced, or a job with one task."""
    document: dict[str, Any] = copy.deepcopy(settings.get("openpaiConfig") or {}) or {
        "protocolVersion": 2,
        "type": "job",
        "prerequisites": [
            {"protocolVersion": 2, "type": "dockerimage", "name": "image", "uri": settings["dockerImage"]}
        ],
        "taskRoles": {
            "taskrole": {
                "instances": 1,
                "completion": {"minFailedInstances": 1, "minSucceededInstances": 1},
                "taskRetryCount": 0,
                "dockerImage": "image",
                "resourcePerInstance": {
                    "cpu": settings["trialCpuNumber"],
                    "memoryMB": settings["trialMemorySize"],
                    "gpu": job.gpus or 0,
                },
            }
        },
    }
    document.update(name=name, jobRetryCount=0)
    first = next(iter(document["taskRoles"].values()))
    first["commands"] = commands
    if settings.get("virtualCluster"):
        document.setdefault("defaults", {})["virtualCluster"] = settings["virtualCluster"]
    storage, inside = settings["storageConfigName"], settings["containerStorageMountPoint"]
    storages = document.setdefault("extras", {}).setdefault("storages", [])
    if all(known.get("name") != storage for known in storages):
        wanted = {"name": storage}
        default = f"/mnt/{storage}"
        if inside != default and not inside.startswith(default + "/"):
            wanted["mountPath"] = inside
        storages.append(wanted)
    return document


def job_end(status: Mapping[str, Any]) -> Gone:
    """Translates the ``jobStatus`` of a job that has ended."""
    code = status.get("appExitCode")
    spec = status.get("appExitSpec") or {}
    if status.get("state") == "SUCCEEDED" or code == 0:
        return Gone(code=0)
    if not isinstance(code, int):
        return Gone(reason="unknown", message="OpenPAI reports no exit code")
    if code in _STOPPED:
        return Gone(reason="revoked", message="job was stopped in OpenPAI")
    if code == _IS_RETRY and status.get("retries"):
        return Gone(reason="node_lost", message="OpenPAI restarted the job, which ended this attempt")
    parts = [spec.get("reason") or spec.get("phrase"), status.get("appExitDiagnostics")]
    message = ": ".join(str(part).strip()[:1000] for part in parts if part) or None
    fault = _FAULTS.get(str(spec.get("type")))
    if code in _REASONS:
        return Gone(reason=_REASONS[code], message=message)
    if code < 0:
        # The container has no exit code: it was not started, or the platform ended it.
        reason = "start_failed" if fault == "permanent" else "unknown"
        return Gone(reason=reason, message=message, fault=fault)
    return Gone(code=code, message=message, fault=fault if fault == "transient" else None)


def free_jobs(cluster: Mapping[str, Any], size: Mapping[str, int]) -> Optional[int]:
    """Counts the jobs of this size that fit into a virtual cluster of ``GET /virtual-clusters``. None: unknown."""
    # Guaranteed resources are those of healthy nodes. OpenPAI before 1.0 does not list them.
    usable = cluster.get("resourcesGuaranteed") or cluster.get("resourcesTotal") or {}
    used = cluster.get("resourcesUsed") or {}
    try:
        rooms = [int((usable[name] - used[name]) // each) for name, each in size.items() if each > 0]
    except (KeyError, TypeError):
        return None
    return max(min(rooms), 0) if rooms else None


class OpenPai(TrainingService):
    """The training service."""

    name = "openpai"
    poll_seconds = 5.0
    queues = True

    def __init__(self) -> None:
        super().__init__()
        self._api: Optional[str] = None
        self._missing: dict[str, int] = {}

    # The REST API.

    def token(self) -> str:
        """Reads the token. A file is read each time, so that a new token takes effect immediately."""
        file = self.settings.get("tokenFile")
        try:
            token = str(self.settings["token"]) if file is None else Path(file).expanduser().read_text("utf-8")
        except (OSError, UnicodeError) as error:
            raise Unavailable(f"trainingService.tokenFile: {error}") from error
        token = token.strip()
        # The error for other characters in a header contains the token, which must not reach a log.
        if not re.fullmatch("[!-~]+", token):
            raise Unavailable(f"{file or 'trainingService.token'} contains no token", after=60)
        return token

    def api(self) -> str:
        """Returns the address of the REST API, with or without the path of the host's proxy."""
        if self._api is None:
            host = str(self.settings["host"]).rstrip("/")
            bare = urllib.parse.urlsplit(host).path == ""
            candidates = [f"{host}/rest-server/api/v2", f"{host}/api/v2"] if bare else [f"{host}/api/v2"]
            for candidate in candidates:
                try:
                    self.request("GET", f"{candidate}/info", token=None)
                    self._api = candidate
                    break
                except _Answer as answer:
                    if answer.status != 404:
                        raise Unavailable(f"trainingService.host: {host}: {answer}", answer.after) from answer
            else:
                raise Unavailable(f"trainingService.host: there is no OpenPAI at {' or '.join(candidates)}")
        return self._api

    def ask(self, method: str, path: str, body: Any = None) -> Any:
        """Sends a request to the REST API as the user."""
        try:
            return self.request(method, self.api() + path, self.token(), body)
        except _Answer as answer:
            if answer.status == 401:
                place = self.settings.get("tokenFile") or "trainingService.token"
                raise Unavailable(
                    f"{answer}; the token has expired or was revoked: put a new one into {place}", after=60
                ) from answer
            if answer.status == 429:
                raise Unavailable(str(answer), answer.after) from answer
            raise

    def request(self, method: str, url: str, token: Optional[str], body: Any = None) -> Any:
        """Sends a request and returns the JSON of the response."""
        headers = {"Accept": "application/json"}
        if token is not None:
            headers["Authorization"] = f"Bearer {token}"
        if body is not None:
            # The API expects jobs as YAML, which includes JSON.
            headers["Content-Type"] = "text/yaml" if method == "POST" else "application/json"
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(url, method=method, data=data, headers=headers)
        try:
            context = ssl.create_default_context(cafile=self.settings.get("caFile"))
        except OSError as error:
            raise Unavailable(f"trainingService.caFile: {self.settings['caFile']}: {error}") from error
        opener = urllib.request.build_opener(_NoRedirect, urllib.request.HTTPSHandler(context=context))
        try:
            with opener.open(request, timeout=_REQUEST_SECONDS) as answer:
                return json.loads(answer.read(_ANSWER_BYTES) or b"null")
        except urllib.error.HTTPError as error:
            raise _answer(error) from error
        except (OSError, ValueError, http.client.HTTPException) as error:
            # The request may have arrived. A second submission with the same name is answered with 409.
            raise Unavailable(f"OpenPAI does not answer at {url}: {error}") from error

    # The settings.

    def check(self) -> list[Problem]:
        """Checks the token's file, the storage, and the user's rights in OpenPAI."""
        problems = [*self._check_token(), *self._check_storage()]
        if any(problem.level == "error" for problem in problems):
            return problems
        wanted = [
            ("virtualCluster", "/virtual-clusters", "virtual cluster", self.settings.get("virtualCluster")),
            ("storageConfigName", "/storages", "storage", self.settings["storageConfigName"]),
        ]
        try:
            for field, path, what, name in wanted:
                names = _names(self.ask("GET", path))
                if name is not None and name not in names:
                    advice = f"you may use {', '.join(sorted(names)) or 'none'}"
                    problem = f"there is no {what} {name} for this user"
                    problems.append(Problem(problem, path=f"trainingService.{field}", advice=advice))
        except (ServiceError, _Answer) as error:
            problems.append(Problem(str(error)))
        return problems

    def _check_token(self) -> list[Problem]:
        problems = []
        if str(self.settings["host"]).startswith("http://"):
            message = "the token is sent unencrypted; use https:// if OpenPAI supports it"
            problems.append(Problem(message, level="warning", path="trainingService.host"))
        if self.settings.get("tokenFile") is None:
            message = "is in the experiment file; move it into a private file and name that file in tokenFile"
            return [*problems, Problem(message, level="warning", path="trainingService.token")]
        path = Path(self.settings["tokenFile"]).expanduser()
        if not path.is_file():
            problems.append(Problem(f"{path} is not a file", path="trainingService.tokenFile"))
        elif path.stat().st_mode & 0o077:
            advice = f"chmod 600 {path}"
            problems.append(Problem("other users can read it", path="trainingService.tokenFile", advice=advice))
        return problems

    def _check_storage(self) -> list[Problem]:
        folder = Path(self.settings["localStorageMountPoint"])
        if folder.is_dir():
            return []
        advice = "mount the storage on this machine first"
        path = "trainingService.localStorageMountPoint"
        return [Problem(f"{folder} is not a folder", path=path, advice=advice)]

    # Jobs.

    def open(self) -> None:
        """Copies the agent into the experiment's folder, which containers can read."""
        copied = self.state_dir / "trialkeeper"
        source = Path(self.agent).stat()
        known = copied.stat() if copied.exists() else None
        if known is None or (known.st_size, known.st_mtime_ns) != (source.st_size, source.st_mtime_ns):
            new = copied.with_suffix(".new")
            shutil.copy2(self.agent, new)
            new.chmod(0o755)
            os.replace(new, copied)
        self.agent = str(copied)

    def inside(self, path: str) -> str:
        """Translates a path into the path in containers."""
        local = os.path.realpath(self.settings["localStorageMountPoint"])
        relative = os.path.relpath(os.path.realpath(path), local)
        if relative == ".." or relative.startswith("../"):
            raise Refused(
                f"containers cannot access {path}: the experiments' folder must be below "
                f"trainingService.localStorageMountPoint; start with --data-dir {local}/experiments"
            )
        return os.path.normpath(os.path.join(self.settings["containerStorageMountPoint"], relative))

    def job_name(self, job: Job) -> str:
        """Returns the unique name of an attempt's job."""
        return f"tk_{job.experiment}_{job.attempt}"

    def handle(self, job: Job) -> str:
        """Returns the name of a job with its user, in the form of the REST API."""
        return f"{self.settings['username']}~{self.job_name(job)}"

    def commands(self, job: Job) -> list[str]:
        """Returns the lines of a container's shell script."""
        words = [self.inside(job.argv[0])]
        for before, word in zip(job.argv, job.argv[1:]):
            words.append(self.inside(word) if before in _PATH_FLAGS else word)
        stop = shlex.quote(self.inside(_stop_file(job)))
        lines = [
            f'if [ "${{FC_FRAMEWORK_ATTEMPT_ID:-0}}${{FC_TASK_ATTEMPT_ID:-0}}" != 00 ]; then exit {_IS_RETRY}; fi',
            f"{shlex.join(words)} & agent=$!",
            # OpenPAI ends a container with SIGKILL. This lets the agent stop its trial gracefully.
            f'(until [ -e {stop} ]; do sleep 1; done; kill -TERM "$agent") & watch=$!',
            'wait "$agent"; code=$?; kill "$watch" 2>/dev/null; exit "$code"',
        ]
        # OpenPAI substitutes <% … %>. All words are quoted, so an inserted pair of quotes changes nothing.
        return [line.replace("<%", "<''%") for line in lines]

    def start(self, job: Job) -> str:
        document = job_document(job, self.job_name(job), self.settings, self.commands(job))
        try:
            self.ask("POST", "/jobs", document)
        except _Answer as answer:
            # The name is taken permanently: an earlier submission has arrived.
            if answer.status != 409:
                raise _refusal(answer) from answer
        except Unavailable as error:
            if isinstance(error.__cause__, _Answer) and error.__cause__.status == 429:
                raise NoRoom(str(error), error.after) from error
            raise
        return self.handle(job)

    def find(self, job: Job) -> Optional[str]:
        return None if self._status(self.handle(job)) is None else self.handle(job)

    def stop(self, handle: str, job: Job, force: bool) -> None:
        if not force:
            Path(_stop_file(job)).touch()
            status = self._status(handle)
            if status is None or status.get("state") != "WAITING":
                return
        try:
            self.ask("PUT", f"/jobs/{_quoted(handle)}/executionType", {"value": "STOP"})
        except _Answer as answer:
            # For an ended job, the response is 404 or 500.
            status = self._status(handle)
            if status is not None and status.get("state") not in _ENDED:
                raise _refusal(answer) from answer

    def poll(self, jobs: Mapping[str, Job]) -> dict[str, State]:
        query = {"username": self.settings["username"], "keyword": f"tk_{self.experiment}_", "limit": _LIST_LIMIT}
        try:
            listed = self.ask("GET", f"/jobs?{urllib.parse.urlencode(query)}")
        except _Answer as answer:
            raise _refusal(answer) from answer
        entries = listed if isinstance(listed, list) else []
        found = {entry.get("name"): entry for entry in entries if isinstance(entry, dict)}
        states: dict[str, State] = {}
        for handle, job in jobs.items():
            state = self._state_of(handle, found.get(self.job_name(job)))
            if state is not None:
                states[handle] = state
        return states

    def room(self) -> Optional[int]:
        """Returns how many jobs fit into the unused resources of the virtual cluster."""
        own = self.settings.get("openpaiConfig") or {}
        cluster = self.settings.get("virtualCluster") or (own.get("defaults") or {}).get("virtualCluster")
        try:
            clusters = self.ask("GET", "/virtual-clusters")
        except _Answer as answer:
            raise _refusal(answer) from answer
        known = clusters.get(cluster or "default") if isinstance(clusters, dict) else None
        return None if known is None else free_jobs(known, self._size())

    def _size(self) -> dict[str, int]:
        """Returns the resources of a job, by their names in a virtual cluster."""
        roles = (self.settings.get("openpaiConfig") or {}).get("taskRoles")
        if not roles:
            cpu, memory = self.settings["trialCpuNumber"], self.settings["trialMemorySize"]
            return {"cpu": cpu, "memory": memory, "gpu": self.gpus or 0}
        size = {"cpu": 0, "memory": 0, "gpu": 0}
        for role in roles.values():
            each = role.get("resourcePerInstance") or {}
            for name, field in (("cpu", "cpu"), ("memory", "memoryMB"), ("gpu", "gpu")):
                size[name] += role.get("instances", 1) * each.get(field, 0)
        return size

    def _state_of(self, handle: str, entry: Optional[dict[str, Any]]) -> Optional[State]:
        if entry is None:
            self._missing[handle] = self._missing.get(handle, 0) + 1
            if self._missing[handle] < _MISSES or self._status(handle) is not None:
                return None
            return Gone(reason="unknown", message="OpenPAI no longer knows the job")
        self._missing.pop(handle, None)
        state = entry.get("state")
        if state == "WAITING":
            return Waiting(f"OpenPAI: {entry.get('subState') or 'waiting'}")
        if state in _ENDED:
            status = self._status(handle)
            return None if status is None else job_end(status)
        # The job can have an exit code while it is still running.
        return Running() if state in ("RUNNING", "STOPPING") else None

    def _status(self, handle: str) -> Optional[dict[str, Any]]:
        """Returns the ``jobStatus`` of a job; None if OpenPAI does not know the job."""
        try:
            detail = self.ask("GET", f"/jobs/{_quoted(handle)}")
        except _Answer as answer:
            if answer.status == 404:
                return None
            raise _refusal(answer) from answer
        status = detail.get("jobStatus") if isinstance(detail, dict) else None
        if not isinstance(status, dict):
            raise Unavailable(f"OpenPAI describes {handle} without a jobStatus")
        return status


def _answer(error: urllib.error.HTTPError) -> _Answer:
    text = error.read(4096).decode(errors="replace")
    try:
        body = json.loads(text)
    except ValueError:
        body = None
    body = body if isinstance(body, dict) else {"message": text.strip()[:200]}
    if 300 <= error.code < 400:
        body = {"message": f"a redirect to {error.headers.get('Location')}; write that address into host"}
    after = error.headers.get("Retry-After") or ""
    pause = float(after) if after.isdigit() else None
    return _Answer(error.code, str(body.get("code", "")), str(body.get("message", "")), pause)


def _refusal(answer: _Answer) -> ServiceError:
    if answer.status >= 500 or answer.status < 400:
        return Unavailable(str(answer), answer.after)
    return Refused(str(answer))


def _names(listed: Any) -> set[str]:
    """Reads names from ``{"storages": [{"name"}]}`` or ``{"default": {…}}``."""
    if isinstance(listed, dict) and isinstance(listed.get("storages"), list):
        return {str(one.get("name")) for one in listed["storages"] if isinstance(one, dict)}
    return set(listed) if isinstance(listed, dict) else set()


def _quoted(handle: str) -> str:
    return urllib.parse.quote(handle, safe="~")


def _stop_file(job: Job) -> str:
    return os.path.join(job.folder, f"openpai.stop-{job.attempt}")


def main() -> None:
    """Serves the manager that started this program."""
    OpenPai().serve()


if __name__ == "__main__":
    main()
