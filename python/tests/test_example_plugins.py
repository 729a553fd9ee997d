"""The plugins in examples/plugins: containers by their command lines, and HTTPS jobs on a test server."""

import http.server
import json
import os
import signal
import ssl
import subprocess
import sys
import threading
import urllib.parse
from pathlib import Path
from typing import ClassVar

import pytest

from trialkeeper import _programs
from trialkeeper.service import Gone, Job, NoRoom, Refused, Running, Unavailable

EXAMPLES = Path(__file__).parent.parent.parent / "examples" / "plugins"
SOURCE = Path(__file__).parent.parent / "src"
if not EXAMPLES.is_dir():
    pytest.skip("the tests run outside the source tree", allow_module_level=True)
sys.path.insert(0, str(EXAMPLES))

from containers import Containers  # noqa: E402
from https_jobs import HttpsJobs  # noqa: E402


def job(folder, gpus=None, name="tk-e-t-1"):
    agent = folder / "trialkeeper"
    agent.touch()
    argv = [str(agent), "run", "--output-dir", str(folder / "t"), "--shell", "a b"]
    return Job(name=name, argv=argv, folder=str(folder / "t"), trial="t", attempt="t-1", experiment="e", gpus=gpus)


def containers(tmp_path, monkeypatch, program):
    """A service whose program records its arguments and prints the content of the file `says`."""
    path = tmp_path / program
    path.write_text(
        f'#!/bin/sh\nprintf "%s\\n" "$@" >{tmp_path}/words\n[ -e {tmp_path}/says ] && . {tmp_path}/says\nexit 0\n'
    )
    path.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}/usr/bin{os.pathsep}/bin")
    service = Containers()
    service.settings = {"program": program, "image": "python:3.12", "memory": "8g", "cpus": 4, "gpus": 2}
    return service


@pytest.fixture
def docker(tmp_path, monkeypatch):
    return containers(tmp_path, monkeypatch, "docker")


@pytest.mark.parametrize(("user", "expected"), [(1000, ["--userns=keep-id"]), (0, [])])
def test_podman_leaves_the_user_its_id_where_it_would_change_it(tmp_path, monkeypatch, user, expected):
    podman = containers(tmp_path, monkeypatch, "podman")
    (tmp_path / "says").write_text('[ "$1" = --version ] && echo "podman version 4.3.1"')
    monkeypatch.setattr(os, "getuid", lambda: user)
    podman.start(job(tmp_path, gpus=2))
    words = (tmp_path / "words").read_text().splitlines()
    assert [word for word in words if word.startswith("--userns")] == expected
    assert [word for word in words if "gpu" in word] == [
        "trialkeeper.gpus=0,1",
        "--device=nvidia.com/gpu=0",
        "--device=nvidia.com/gpu=1",
    ]


def test_a_stop_that_comes_too_late_for_podman_is_no_failure(tmp_path, monkeypatch):
    podman = containers(tmp_path, monkeypatch, "podman")
    late = "Error: can only kill running containers. 7b6a is in state exited: container state improper"
    (tmp_path / "says").write_text(f'echo "{late}" >&2; exit 125')
    podman.stop("tk-e-t-1", None, False)


def test_a_container_sees_its_folder_and_the_agent_and_nothing_else(docker, tmp_path):
    assert docker.start(job(tmp_path)) == "tk-e-t-1"
    words = (tmp_path / "words").read_text().splitlines()
    volumes = [words[at + 1] for at, word in enumerate(words) if word == "--volume"]
    agent = tmp_path / "trialkeeper"
    assert volumes == [f"{tmp_path}/t:{tmp_path}/t", f"{agent}:{agent}:ro"]
    assert words[words.index("python:3.12") + 1 :] == ["run", "--output-dir", f"{tmp_path}/t", "--shell", "a b"]
    assert "--memory=8g" in words and "--cpus=4" in words
    assert "--privileged" not in words and "--gpus" not in words


def test_gpus_are_given_once_also_by_the_next_process(docker, tmp_path):
    docker.settings["gpus"] = 3
    docker.start(job(tmp_path, gpus=2))
    words = (tmp_path / "words").read_text().splitlines()
    assert words[words.index("--gpus") + 1] == '"device=0,1"'
    assert "trialkeeper.gpus=0,1" in words
    # Their only record is the output of `docker ps`.
    (tmp_path / "says").write_text('[ "$1" = ps ] && echo 0,2')
    docker.start(job(tmp_path, gpus=1, name="other"))
    words = (tmp_path / "words").read_text().splitlines()
    assert words[words.index("--gpus") + 1] == '"device=1"'
    with pytest.raises(NoRoom, match="1 of 3"):
        docker.start(job(tmp_path, gpus=2, name="other"))
    with pytest.raises(Refused, match="wants 4 GPUs, and there are 3"):
        docker.start(job(tmp_path, gpus=4, name="other"))


def test_experiments_that_start_together_take_different_gpus(docker, tmp_path):
    # A container is listed only after the daemon has created it.
    (tmp_path / "says").write_text(
        f'[ "$1" != ps ] || cat {tmp_path}/labels; sleep 0.2\n'
        f'[ "$1" != run ] || echo "$*" | sed "s/.*trialkeeper.gpus=//; s/ .*//" >>{tmp_path}/labels'
    )
    (tmp_path / "labels").touch()
    other = Containers()
    other.settings = docker.settings
    both = [
        threading.Thread(target=service.start, args=[job(tmp_path, gpus=1, name=f"tk-{at}-t-1")])
        for at, service in enumerate([docker, other])
    ]
    for thread in both:
        thread.start()
    for thread in both:
        thread.join()
    assert sorted((tmp_path / "labels").read_text().split()) == ["0", "1"]


@pytest.mark.parametrize(
    ("settings", "refused"),
    [
        ({"volumes": ["/var/run/docker.sock:/var/run/docker.sock"]}, True),
        ({"volumes": ["/var/run:/var/run"]}, True),
        ({"volumes": ["/:/host:ro"]}, True),
        ({"volumes": ["/run/podman:/run/podman"]}, True),
        ({"volumes": ["{folder}/link:/x"]}, True),
        ({"volumes": ["{folder}/elsewhere:/x"]}, True),
        ({"volumes": ["/data:/data:ro", "/data:/var/run"]}, False),
        ({"options": ["-v", "/var/run/docker.sock:/s"]}, True),
        ({"options": ["-v/var/run:/s"]}, True),
        ({"options": ["--volume=/var:/host"]}, True),
        ({"options": ["--mount", "type=bind,source=/run,target=/x"]}, True),
        ({"options": ["--mount=type=bind,src=/,target=/x"]}, True),
        ({"options": ["--workdir=/", "-v", "/data:/run", "--env", "A=/run"]}, False),
    ],
)
def test_no_mount_gives_a_trial_the_socket_of_the_daemon(docker, tmp_path, monkeypatch, settings, refused):
    (tmp_path / "link").symlink_to("/var/run")
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/elsewhere/docker.sock")
    for name, words in settings.items():
        docker.settings[name] = [word.replace("{folder}", str(tmp_path)) for word in words]
    messages = [problem.message for problem in docker.check()]
    assert [message.endswith("it contains the daemon's socket") for message in messages] == [True] * refused


def test_a_container_of_a_killed_run_is_started(docker, tmp_path):
    says = tmp_path / "says"
    for state, started in [("created", True), ("running", False), ("exited", False)]:
        says.write_text(f'[ "$1" != inspect ] || echo {state}')
        assert docker.find(job(tmp_path)) == "tk-e-t-1"
        assert (tmp_path / "words").read_text().split()[0] == ("start" if started else "inspect"), state
    # The daemon may create the container after it was looked for.
    conflict = 'Conflict. The container name "/tk-e-t-1" is already in use by container "7b6a".'
    run = f"[ \"$1\" != run ] || {{ echo '{conflict}' >&2; exit 125; }}"
    says.write_text(f'{run}; [ "$1" != inspect ] || echo created')
    assert docker.start(job(tmp_path)) == "tk-e-t-1"
    assert (tmp_path / "words").read_text().split() == ["start", "tk-e-t-1"]


def test_a_command_that_fails_ends_no_job(docker, tmp_path):
    says = tmp_path / "says"
    says.write_text('echo "Error response from daemon: dial timeout" >&2; exit 1')
    for ask in (
        lambda: docker.poll({"tk-e-t-1": None}),
        lambda: docker.find(job(tmp_path)),
        lambda: docker.stop("tk-e-t-1", None, False),
    ):
        with pytest.raises(Unavailable, match="dial timeout"):
            ask()
    says.write_text('echo "[]"; echo "Error: No such container: tk-e-t-1" >&2; exit 1')
    assert docker.find(job(tmp_path)) is None
    assert docker.poll({"tk-e-t-1": None}) == {
        "tk-e-t-1": Gone(reason="unknown", message="the container was removed")
    }
    docker.stop("tk-e-t-1", None, True)


def test_an_image_is_pulled_before_the_first_job(docker, tmp_path):
    docker.open()
    assert (tmp_path / "words").read_text().split() == ["image", "inspect", "python:3.12"]
    (tmp_path / "says").write_text('[ "$1" = image ] && exit 1')
    docker.open()
    assert (tmp_path / "words").read_text().split() == ["pull", "python:3.12"]


@pytest.mark.parametrize(
    ("state", "expected"),
    [
        ({"Status": "running"}, Running()),
        ({"Status": "exited", "ExitCode": 3}, Gone(code=3)),
        ({"Status": "exited", "ExitCode": 137, "OOMKilled": True}, Gone(code=137, reason="oom")),
        (None, Gone(reason="unknown", message="the container was removed")),
    ],
)
def test_states_of_containers_are_translated(docker, state, expected):
    assert docker.look(state) == expected


def test_what_docker_says_is_passed_on(docker, tmp_path):
    says = tmp_path / "says"
    says.write_text('echo "Unable to find image" >&2; exit 125')
    with pytest.raises(Refused, match="Unable to find image"):
        docker.start(job(tmp_path))
    says.write_text('echo "Cannot connect to the Docker daemon at unix:///x" >&2; exit 1')
    with pytest.raises(Unavailable):
        docker.start(job(tmp_path))


def test_settings_that_would_give_away_the_machine_are_refused(docker):
    docker.settings = {"volumes": ["/var/run/docker.sock:/var/run/docker.sock"], "imagee": "x"}
    assert {problem.path for problem in docker.check()} == {
        "settings.image",
        "settings.imagee",
        "settings.volumes",
    }


class Jobs(http.server.BaseHTTPRequestHandler):
    """A job API that runs scripts as local processes."""

    processes: ClassVar[dict] = {}
    refusal = None

    def log_message(self, *_):
        pass

    def handle_request(self, body=b""):
        if self.headers["Authorization"] != "Bearer a secret":
            return 401, {"error": "who are you?"}
        if Jobs.refusal is not None:
            return Jobs.refusal, {"error": "not now"}
        address = urllib.parse.urlparse(self.path)
        query = urllib.parse.parse_qs(address.query)
        if self.command == "POST":
            wanted = json.loads(body)
            if wanted["name"] in Jobs.processes:
                return 409, {"id": wanted["name"]}
            pipe = subprocess.DEVNULL
            process = subprocess.Popen(["/bin/sh", "-c", wanted["script"]], stdin=pipe, stdout=pipe, stderr=pipe)
            Jobs.processes[wanted["name"]] = process
            return 201, {"id": wanted["name"]}
        if self.command == "GET":
            asked = query.get("ids", [""])[0].split(",")
            return 200, {"jobs": [self.shown(name) for name in asked if name in Jobs.processes]}
        process = Jobs.processes.get(address.path.rsplit("/", 1)[1])
        if process is not None and process.poll() is None:
            process.send_signal(signal.SIGKILL if "force" in query else signal.SIGTERM)
        return 200, {}

    def shown(self, name):
        code = Jobs.processes[name].poll()
        if code is None:
            return {"id": name, "state": "running"}
        return {"id": name, "state": "ended", "exit_code": code if code >= 0 else 128 - code}

    def do_POST(self):
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        status, answer = self.handle_request(body)
        text = json.dumps(answer).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    do_GET = do_DELETE = do_POST  # noqa: N815


@pytest.fixture(scope="module")
def api(tmp_path_factory):
    folder = tmp_path_factory.mktemp("api")
    key, certificate, token = folder / "key.pem", folder / "ca.pem", folder / "token"
    names = ["-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost"]
    argv = [
        "openssl",
        "req",
        "-x509",
        "-newkey",
        "rsa:2048",
        "-nodes",
        "-days",
        "2",
        "-keyout",
        key,
        "-out",
        certificate,
    ]
    subprocess.run([*argv, *names], check=True, capture_output=True)
    token.write_text("a secret\n")
    token.chmod(0o600)
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Jobs)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield {"url": f"https://localhost:{server.server_port}", "tokenFile": str(token), "caFile": str(certificate)}
    server.shutdown()


@pytest.mark.parametrize(
    "case", ["reports the e", "submitted three times", "stopped", "finds its jobs", "many jobs"]
)
def test_jobs_over_https_pass_the_conformance_story(api, tmp_path, case):
    (tmp_path / "settings.json").write_text(json.dumps(api))
    manager = str(_programs.find_program("trial-manager"))
    program = ["env", f"PYTHONPATH={SOURCE}", sys.executable, "-c"]
    fast = f"import sys; sys.path.insert(0, {str(EXAMPLES)!r})\nfrom https_jobs import *\n"
    fast += "HttpsJobs.poll_seconds = 0.2; HttpsJobs().serve()"
    argv = [manager, "conformance", "--case", case, "--settings", "settings.json", "--", *program, fast]
    done = subprocess.run(argv, cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0 and done.stdout.startswith("ok "), done.stdout + done.stderr


@pytest.mark.parametrize(
    ("status", "error"), [(400, Refused), (403, Refused), (429, NoRoom), (500, Unavailable), (503, Unavailable)]
)
def test_a_status_says_what_helps(api, tmp_path, monkeypatch, status, error):
    service = HttpsJobs()
    service.settings = api
    monkeypatch.setattr(Jobs, "refusal", status)
    with pytest.raises(error, match="not now"):
        service.start(job(tmp_path))


def test_a_token_that_has_expired_fails_no_trial(api, tmp_path):
    service = HttpsJobs()
    old = tmp_path / "old"
    old.write_text("expired")
    service.settings = {**api, "tokenFile": str(old)}
    with pytest.raises(Unavailable, match=f"who are you.*; write a new token to {old}"):
        service.start(job(tmp_path))
    # The next request uses the new token.
    old.write_text("a secret")
    assert service.poll({"7": None})["7"].reason == "unknown"


def test_a_server_that_is_away_ends_no_job(api, tmp_path):
    service = HttpsJobs()
    service.settings = {**api, "url": "https://localhost:1"}
    with pytest.raises(Unavailable):
        service.poll({"7": None})
    # A server with an unknown certificate is rejected.
    service.settings = {**api, "caFile": None}
    with pytest.raises(Unavailable, match="CERTIFICATE_VERIFY_FAILED"):
        service.start(job(tmp_path))


def test_a_token_that_others_may_read_is_refused(api, tmp_path):
    service = HttpsJobs()
    service.settings = {**api, "url": "http://localhost", "tokenFile": str(tmp_path / "token")}
    (tmp_path / "token").write_text("a secret")
    (tmp_path / "token").chmod(0o644)
    assert [problem.path for problem in service.check()] == ["settings.url", "settings.tokenFile"]
