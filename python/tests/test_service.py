"""The base class of training services, driven by the manager's requests."""

import base64
import json
import os
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from trialkeeper.service import TrainingService

SOURCE = Path(__file__).parent.parent / "src"

SERVICE = """
import os, pathlib, sys
from trialkeeper.service import *

class Fake(TrainingService):
    poll_seconds = 0.05
    def start(self, job):
        print("a print of the author's")
        os.system("echo a print of a child")
        with open("started", "a") as file:
            print(job.attempt, *job.argv, file=file)
        what = job.argv[-1]
        if what == "refused":
            raise Refused("never")
        if what == "full":
            raise NoRoom("later", after=2)
        if what == "away":
            raise Unavailable("the platform is down")
        if what == "bug":
            raise KeyError("a bug")
        if what == "exits":
            sys.exit("enough")
        if what == "dies":
            os._exit(1)
        if what == "number":
            return 17
        return "h-" + job.attempt
    def find(self, job):
        return "found" if pathlib.Path("found").exists() else None
    def ended(self, handle, job):
        record = self._records[job.attempt].data
        pathlib.Path("removed").write_text(f"{handle} {record['gone']['reason']}")
        raise OSError("the platform is down")
    def stop(self, handle, job, force):
        pathlib.Path("stopped").open("a").write(f"{handle} {force}\\n")
    def room(self):
        return 1 - len(self.living()) if self.settings == {} else None
    def poll(self, jobs):
        ended = pathlib.Path("ended").read_text().split() if pathlib.Path("ended").exists() else []
        return {handle: Gone(code=3) if handle in ended else Waiting("in a queue") for handle in jobs}

Fake().serve()
"""


class Plugin:
    """A process of the service, and the manager's side of the protocol."""

    def __init__(self, folder):
        self.folder = folder
        (folder / "service.py").write_text(textwrap.dedent(SERVICE))
        environment = {**os.environ, "PYTHONPATH": str(SOURCE), "TRIALKEEPER_PLUGIN": "1"}
        pipe = subprocess.PIPE
        argv = [sys.executable, "service.py"]
        self.errors = open(folder / "stderr", "ab")
        self.process = subprocess.Popen(
            argv, cwd=folder, stdin=pipe, stdout=pipe, stderr=self.errors, env=environment
        )
        self.last_id = 0
        self.told = []

    def begin(self):
        experiment = {"id": "e"}
        params = {
            "protocol": {"min": 1, "max": 1},
            "experiment": experiment,
            "state_dir": str(self.folder / "state"),
        }
        hello = self.ask("initialize", {**params, "settings": {}})
        files = [{"name": "manager.url", "path": "/e/manager.url"}]
        self.ask("open", {"agent": "/agent", "files": files})
        return hello

    def send(self, method, params):
        self.last_id += 1
        message = {"jsonrpc": "2.0", "id": self.last_id, "method": method, "params": params}
        self.process.stdin.write(json.dumps(message).encode() + b"\n")
        self.process.stdin.flush()
        return self.last_id

    def next(self):
        line = self.process.stdout.readline()
        assert line, "the plugin ended"
        return json.loads(line)

    def ask(self, method, params):
        wanted = self.send(method, params)
        while True:
            message = self.next()
            if message.get("id") == wanted:
                return message.get("result", message.get("error"))
            self.told.append(message)

    def hear(self, method):
        """Returns the next notification of this kind."""
        while True:
            for at, message in enumerate(self.told):
                if message.get("method") == method:
                    return self.told.pop(at)["params"]
            self.told.append(self.next())

    def submit(self, attempt="t-1", what="train"):
        return self.ask("submit", self.submission(attempt, what))

    def submission(self, attempt, what):
        places = [
            {"in": "shared", "name": "manager.url"},
            {"in": "job", "name": "token"},
            {"in": "work", "name": "spool"},
        ]
        return {
            "key": self.key(attempt),
            "name": f"tk-e-{attempt}",
            "sequence": 0,
            "folder": str(self.folder / "t"),
            "args": ["run", *places, "--shell", what],
            "files": [{"name": "token", "path": "/e/t/token"}],
            "resources": {"gpus": 1},
            "grace_ms": 300,
        }

    def key(self, attempt):
        return {"experiment": "e", "trial": "t", "attempt": attempt}

    def started(self):
        file = self.folder / "started"
        return file.read_text().splitlines() if file.exists() else []

    def end(self):
        self.process.stdin.close()
        code = self.process.wait(10)
        self.process.stdout.close()
        self.errors.close()
        return code


@pytest.fixture
def plugin(tmp_path):
    plugin = Plugin(tmp_path)
    plugin.begin()
    yield plugin
    plugin.end()


def test_a_job_is_started_once_however_often_it_is_submitted(plugin):
    assert plugin.submit() == {"handle": "h-t-1", "created": True}
    assert plugin.submit() == {"handle": "h-t-1", "created": False}
    assert plugin.started() == [f"t-1 /agent run /e/manager.url /e/t/token {plugin.folder}/t/spool --shell train"]


def test_submits_of_one_attempt_at_a_time_start_it_once(plugin):
    ids = [plugin.send("submit", plugin.submission("t-1", "train")) for _ in range(5)]
    answers = []
    while len(answers) < len(ids):
        message = plugin.next()
        if message.get("id") in ids:
            answers.append(message["result"]["created"])
    assert sorted(answers) == [False] * 4 + [True]
    assert len(plugin.started()) == 1


@pytest.mark.parametrize(
    ("what", "code", "message", "starts"),
    [
        ("refused", -32001, "never", 2),
        ("full", -32003, "later", 2),
        ("away", -32004, "the platform is down", 2),
        ("bug", -32603, "KeyError: 'a bug'", 2),
        ("exits", -32603, "SystemExit: enough", 2),
    ],
)
def test_an_exception_says_what_helps(plugin, what, code, message, starts):
    for _ in range(2):
        error = plugin.submit(what=what)
        assert (error["code"], error["message"]) == (code, message)
    assert len(plugin.started()) == starts
    if what == "full":
        assert error["data"] == {"after_ms": 2000}


def test_a_handle_that_is_no_text_becomes_one(plugin):
    assert plugin.submit(what="number") == {"handle": "17", "created": True}
    assert plugin.submit(what="number") == {"handle": "17", "created": False}


def test_a_job_that_may_run_is_not_forgotten_when_its_next_start_is_refused(plugin):
    assert plugin.submit(what="away")["code"] == -32004
    assert plugin.submit(what="refused")["code"] == -32001
    (plugin.folder / "found").touch()
    assert plugin.ask("clean_up", {}) == {"left": []}
    assert (plugin.folder / "stopped").read_text() == "found True\n"


def test_output_is_read_from_the_jobs_folder(plugin):
    plugin.submit()
    key = {"key": plugin.key("t-1"), "stream": "stdout"}
    nothing = {"offset": 0, "data": "", "end": False}
    assert plugin.ask("output", {**key, "offset": 0, "max_bytes": 5}) == nothing
    (plugin.folder / "t").mkdir()
    (plugin.folder / "t" / "stdout").write_bytes(b"hello\xff\n")
    first = plugin.ask("output", {**key, "offset": 0, "max_bytes": 5, "wait_ms": 20000})
    assert first == {"offset": 0, "data": "aGVsbG8=", "end": False}
    rest = plugin.ask("output", {**key, "offset": 5, "max_bytes": 99})
    assert base64.b64decode(rest["data"]) == b"\xff\n"
    # Only new output, as the manager requests it.
    assert plugin.ask("output", {**key, "offset": 2**64 - 1}) == {"offset": 7, "data": "", "end": False}
    (plugin.folder / "ended").write_text("h-t-1")
    plugin.hear("gone")
    assert plugin.ask("output", {**key, "offset": 7, "wait_ms": 20000})["end"] is True
    assert plugin.ask("output", {**key, "stream": "../token"})["code"] == -32602
    assert plugin.ask("output", {"key": plugin.key("t-9")})["code"] == -32005


class Remote(TrainingService):
    """A service whose output is not in the jobs' folders. It overrides one method."""

    def start(self, job):
        return job.name

    def output(self, job, stream, offset, size):
        return b"hello\nworld\n"[offset : offset + min(size, 4)]


class Sized(Remote):
    def output_size(self, job, stream):
        return 7


@pytest.mark.parametrize(
    "service, asked, expected",
    [
        (Remote, 0, (0, b"hell")),
        (Remote, 4, (4, b"o\nwo")),
        (Remote, 12, (12, b"")),
        # Only new output, as the manager requests it.
        (Remote, 2**64 - 1, (12, b"")),
        (Sized, 2**64 - 1, (7, b"orld")),
        (Sized, 4, (4, b"o\nwo")),
    ],
)
def test_output_needs_one_method(tmp_path, service, asked, expected):
    service = service()
    params = {"protocol": {"min": 1, "max": 1}, "experiment": {"id": "e"}, "state_dir": str(tmp_path)}
    service._result("initialize", params)
    key = {"experiment": "e", "trial": "t", "attempt": "t-1"}
    service._result("submit", {"key": key, "name": "j", "folder": str(tmp_path / "t"), "args": []})
    answer = service._result("output", {"key": key, "offset": asked, "max_bytes": 5})
    assert (answer["offset"], base64.b64decode(answer["data"])) == expected


def test_what_an_ended_job_leaves_is_removed_after_its_end_is_recorded(plugin):
    plugin.submit()
    (plugin.folder / "ended").write_text("h-t-1")
    plugin.hear("gone")
    until = time.monotonic() + 20
    removed = plugin.folder / "removed"
    while not removed.exists() or not removed.read_text():
        assert time.monotonic() < until
        time.sleep(0.02)
    assert removed.read_text() == "h-t-1 exit"
    assert plugin.ask("ping", {}) == {}


def test_a_start_that_may_have_succeeded_is_looked_for(plugin):
    assert plugin.submit(what="away")["code"] == -32004
    (plugin.folder / "found").touch()
    assert plugin.submit() == {"handle": "found", "created": False}
    assert len(plugin.started()) == 1


def test_a_process_that_dies_while_it_starts_a_job_is_followed_by_one_that_looks_for_it(tmp_path):
    first = Plugin(tmp_path)
    first.begin()
    first.send("submit", first.submission("t-1", "dies"))
    assert first.process.wait(10) == 1
    (tmp_path / "found").touch()
    second = Plugin(tmp_path)
    second.begin()
    assert second.ask("adopt", {"key": second.key("t-1")})["phase"] == "running"
    assert second.submit() == {"handle": "found", "created": False}
    assert len(second.started()) == 1
    second.end()


def test_a_job_that_waits_and_ends_is_told(plugin):
    plugin.submit()
    assert plugin.hear("waits") == {"key": plugin.key("t-1"), "why": "in a queue"}
    (plugin.folder / "ended").write_text("h-t-1")
    gone = {"key": plugin.key("t-1"), "exit": {"code": 3}, "reason": "exit"}
    assert plugin.hear("gone") == gone
    listed = {"key": plugin.key("t-1"), "handle": "h-t-1", "phase": "gone", "gone": gone}
    assert plugin.ask("adopt", {"key": plugin.key("t-1")}) == listed
    assert plugin.ask("list", {}) == {"jobs": [listed]}
    # A manager that missed the end polls again and receives it again.
    plugin.submit()
    assert plugin.hear("gone") == gone
    assert plugin.ask("cancel", {"key": plugin.key("t-1")}) == {"known": False}


def test_room_is_a_number_of_jobs_that_is_not_below_zero(plugin):
    assert plugin.ask("room", {}) == {"free": 1}
    plugin.submit("t-1")
    plugin.submit("t-2")
    assert plugin.ask("room", {}) == {"free": 0}
    (plugin.folder / "ended").write_text("h-t-1 h-t-2")
    plugin.hear("gone")
    plugin.hear("gone")
    assert plugin.ask("room", {}) == {"free": 1}


def test_a_service_learns_the_gpus_of_a_trial_and_may_have_a_queue(tmp_path):
    class Cluster(TrainingService):
        queues = True

        def room(self):
            return 8 // self.gpus if self.gpus else None

    for resources, gpus, room in (({"gpus": 4}, 4, {"free": 2}), ({}, None, {})):
        cluster = Cluster()
        params = {"protocol": {"min": 1, "max": 1}, "experiment": {"id": "e"}, "state_dir": str(tmp_path)}
        capabilities = cluster._result("initialize", {**params, "resources": resources})["capabilities"]
        assert (capabilities["room"], capabilities["queue"], cluster.gpus) == (True, True, gpus)
        assert cluster._result("room", {}) == room


def test_a_job_is_stopped_politely_and_then_by_force(plugin):
    plugin.submit()
    assert plugin.ask("cancel", {"key": plugin.key("t-1")}) == {"known": True}
    stopped = plugin.folder / "stopped"
    until = time.monotonic() + 20
    while stopped.read_text() != "h-t-1 False\nh-t-1 True\n":
        assert time.monotonic() < until, stopped.read_text()
        time.sleep(0.02)


def test_an_attempt_that_was_cancelled_first_never_starts(plugin):
    assert plugin.ask("cancel", {"key": plugin.key("t-1")}) == {"known": False}
    assert plugin.submit()["code"] == -32006
    assert plugin.submit("t-2")["created"] is True
    assert len(plugin.started()) == 1


def test_jobs_outlive_the_process(tmp_path):
    first = Plugin(tmp_path)
    first.begin()
    first.submit()
    first.process.kill()
    first.process.wait()
    second = Plugin(tmp_path)
    second.begin()
    assert second.ask("adopt", {"key": second.key("t-1")})["phase"] in ("running", "waiting")
    assert second.ask("adopt", {"key": second.key("t-9")}) == {"phase": "unknown"}
    assert second.ask("clean_up", {}) == {"left": []}
    assert (tmp_path / "stopped").read_text() == "h-t-1 True\n"
    assert second.ask("list", {}) == {"jobs": []}
    assert second.end() == 0


def test_what_is_wrong_is_said(plugin):
    assert plugin.ask("dance", {})["code"] == -32602
    assert plugin.ask("adopt", {"key": {"attempt": "../x"}})["code"] == -32602
    assert plugin.ask("submit", {"key": plugin.key("t-1")})["code"] == -32603
    for line in (b"no json", b"[]", b"\xff"):
        plugin.process.stdin.write(line + b"\n")
    assert plugin.ask("ping", {}) == {}


def test_a_manager_that_closes_at_once_ends_the_service(tmp_path):
    plugin = Plugin(tmp_path)
    assert plugin.end() == 0
    assert (tmp_path / "stderr").read_text() == ""


@pytest.mark.parametrize("least, most, older", [(7, 9, "update the plugin"), (0, 0, "update trial-manager")])
def test_another_version_is_refused(tmp_path, least, most, older):
    plugin = Plugin(tmp_path)
    versions = {"min": least, "max": most}
    error = plugin.ask("initialize", {"protocol": versions, "experiment": {"id": "e"}, "state_dir": "."})
    assert error["code"] == -32007
    assert error["message"] == (
        f"this plugin uses version 1 of the protocol, and trial-manager uses versions {least} to {most}; {older}"
    )
    plugin.end()


def test_a_service_that_is_started_by_hand_says_what_it_is(tmp_path):
    (tmp_path / "service.py").write_text(textwrap.dedent(SERVICE))
    environment = {**os.environ, "PYTHONPATH": str(SOURCE)}
    done = subprocess.run(
        [sys.executable, "service.py"], cwd=tmp_path, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 1
    assert "trainingService: {platform: plugin" in done.stderr
