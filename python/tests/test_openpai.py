"""Trials on OpenPAI, on a scripted REST server."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from openpai_server import TOKEN, Server

from trialkeeper import _programs
from trialkeeper.openpai import OpenPai, free_jobs, job_document, job_end
from trialkeeper.service import Gone, Job, NoRoom, Refused, Running, Unavailable, Waiting

SOURCE = Path(__file__).parent.parent / "src"


@pytest.fixture
def server():
    server = Server()
    yield server
    for job in server.jobs.values():
        if job["process"] is not None and job["process"].poll() is None:
            os.killpg(job["process"].pid, 9)
            job["process"].wait()
    server.shutdown()
    server.server_close()


@pytest.fixture
def service(server, tmp_path):
    """A service with its storage at `share` on this machine and at `inside` in containers."""
    share, inside = tmp_path / "share", tmp_path / "inside"
    share.mkdir()
    inside.symlink_to(share)
    service = OpenPai()
    service.settings = server.settings(share, inside)
    service.experiment = "e"
    return service


def job(share, argv=("run", "--shell", "true"), attempt="t-1"):
    agent = share / "agent"
    if not agent.exists():
        agent.write_text('#!/bin/sh\nfor word; do last=$word; done\nexec sh -c "$last"\n')
        agent.chmod(0o755)
    folder = share / "experiments" / "e" / "t"
    folder.mkdir(parents=True, exist_ok=True)
    return Job(
        name=f"tk-e-{attempt}",
        argv=[str(agent), *argv],
        folder=str(folder),
        trial="t",
        attempt=attempt,
        experiment="e",
    )


def poll_until(service, job, kind):
    from time import monotonic, sleep

    until = monotonic() + 20
    handle = service.handle(job)
    while True:
        state = service.poll({handle: job}).get(handle)
        if isinstance(state, kind):
            return state
        assert monotonic() < until, state
        sleep(0.05)


def test_a_job_is_submitted_in_protocol_2_with_the_containers_paths(server, service, tmp_path):
    share = tmp_path / "share"
    service.settings["virtualCluster"] = "gpu"
    argv = [
        "run",
        "--output-dir",
        f"{share}/experiments/e/t",
        "--objective",
        "/loss",
        "--shell",
        f"cd {share}; a 'b'",
    ]
    wanted = job(share, argv)
    wanted = Job(**{**vars(wanted), "gpus": 2})
    assert service.start(wanted) == "me~tk_e_t-1"
    document = server.jobs["tk_e_t-1"]["job"]
    role = document["taskRoles"]["taskrole"]
    inside = tmp_path / "inside"
    command = role.pop("commands")[1]
    # Paths in the user's command are not replaced.
    expected = f"{inside}/agent run --output-dir {inside}/experiments/e/t --objective /loss --shell "
    assert command.startswith(expected + f"'cd {share}; a ")
    assert role["resourcePerInstance"] == {"cpu": 1, "memoryMB": 2048, "gpu": 2}
    assert role["completion"] == {"minFailedInstances": 1, "minSucceededInstances": 1}
    assert (document["jobRetryCount"], role["taskRetryCount"]) == (0, 0)
    assert document["defaults"] == {"virtualCluster": "gpu"}
    assert document["extras"] == {"storages": [{"name": "nfs", "mountPath": str(inside)}]}
    assert TOKEN not in json.dumps(document)


def test_a_job_of_the_users_own_keeps_all_but_name_and_commands(service, tmp_path):
    own = {
        "protocolVersion": 2,
        "type": "job",
        "name": "theirs",
        "jobRetryCount": 3,
        "taskRoles": {"worker": {"commands": ["theirs"], "instances": 1}, "ps": {"commands": ["ps"]}},
        "extras": {"storages": [{"name": "nfs"}], "hivedScheduler": {}},
    }
    document = job_document(job(tmp_path), "tk_e_t-1", {**service.settings, "openpaiConfig": own}, ["ours"])
    assert document["taskRoles"] == {"worker": {"commands": ["ours"], "instances": 1}, "ps": {"commands": ["ps"]}}
    assert document["extras"] == own["extras"]
    assert (document["name"], document["jobRetryCount"], own["name"]) == ("tk_e_t-1", 0, "theirs")


@pytest.mark.parametrize(
    ("inside", "storage"),
    [
        ("/mnt/nfs", {"name": "nfs"}),
        ("/mnt/nfs/me", {"name": "nfs"}),
        ("/data", {"name": "nfs", "mountPath": "/data"}),
    ],
)
def test_a_storage_is_mounted_where_the_file_says(service, tmp_path, inside, storage):
    settings = {**service.settings, "containerStorageMountPoint": inside}
    assert job_document(job(tmp_path), "n", settings, [])["extras"] == {"storages": [storage]}


def test_a_second_submission_adopts_the_job(server, service, tmp_path):
    wanted = job(tmp_path / "share")
    # The first response is lost.
    server.next["POST", "jobs"] = [(None, None)]
    with pytest.raises(Unavailable):
        service.start(wanted)
    assert service.find(wanted) is None
    assert service.start(wanted) == service.start(wanted) == service.find(wanted) == "me~tk_e_t-1"
    assert len(server.jobs) == 1


def test_a_command_with_an_expression_of_openpais_reaches_the_shell_as_it_is(server, service, tmp_path):
    out = tmp_path / "out"
    wanted = job(tmp_path / "share", ("run", "--shell", f"printf %s '<% $secrets.x %>' \"it's\" >{out}"))
    service.start(wanted)
    assert poll_until(service, wanted, Gone) == Gone(code=0)
    assert out.read_text() == "<% $secrets.x %>it's"


def test_a_job_that_the_platform_starts_again_does_not_run_twice(service, server, tmp_path):
    out = tmp_path / "out"
    server.variables = {"FC_FRAMEWORK_ATTEMPT_ID": "1"}
    wanted = job(tmp_path / "share", ("run", "--shell", f"touch {out}"))
    service.start(wanted)
    assert poll_until(service, wanted, Gone).code == 125
    assert not out.exists()
    again = {"state": "FAILED", "appExitCode": 125, "retries": 1}
    assert job_end(again).reason == "node_lost"


def test_a_stop_lets_the_agent_end_and_force_ends_the_job(server, service, tmp_path):
    share = tmp_path / "share"
    polite = job(share, ("run", "--shell", "trap 'exit 7' TERM; while :; do sleep 0.05; done"))
    service.start(polite)
    poll_until(service, polite, Running)
    service.stop(service.handle(polite), polite, False)
    assert poll_until(service, polite, Gone) == Gone(code=7)
    assert not any(method == "PUT" for method, _ in server.requests)
    # A late stop, even if OpenPAI returns 500 for an ended job.
    service.stop(service.handle(polite), polite, True)
    deaf = job(share, ("run", "--shell", "trap '' TERM; while :; do sleep 0.05; done"), "t-2")
    service.start(deaf)
    service.stop(service.handle(deaf), deaf, True)
    assert poll_until(service, deaf, Gone).reason == "revoked"


def test_a_job_that_waits_is_stopped_at_once(server, service, tmp_path):
    server.full = True
    wanted = job(tmp_path / "share")
    service.start(wanted)
    assert poll_until(service, wanted, Waiting) == Waiting("OpenPAI: AttemptCreationPending")
    service.stop(service.handle(wanted), wanted, False)
    assert poll_until(service, wanted, Gone).reason == "revoked"


def test_a_job_is_gone_only_when_openpai_says_so(server, service, tmp_path):
    wanted = job(tmp_path / "share", ("run", "--shell", "sleep 600"))
    handle = service.start(wanted)
    entry = {"name": "tk_e_t-1", "state": "RUNNING", "subState": "AttemptCompleted", "appExitCode": 1}
    odd = {"name": "tk_e_t-1", "state": "UNKNOWN"}
    server.next["GET", "jobs"] = [(200, [entry]), (200, [odd]), (200, []), (200, [None, 3]), (200, [])]
    assert service.poll({handle: wanted}) == {handle: Running()}
    for _ in range(4):
        assert service.poll({handle: wanted}) == {}
    # A stop of a job that OpenPAI has lost.
    os.killpg(server.jobs["tk_e_t-1"]["process"].pid, 9)
    server.jobs.pop("tk_e_t-1")["process"].wait()
    assert service.poll({handle: wanted})[handle].reason == "unknown"


@pytest.mark.parametrize(
    ("status", "gone"),
    [
        ({"state": "SUCCEEDED", "appExitCode": 0}, Gone(code=0)),
        ({"state": "FAILED", "appExitCode": 3}, Gone(code=3)),
        ({"state": "STOPPED", "appExitCode": -210}, Gone(reason="revoked", message="job was stopped in OpenPAI")),
        ({"state": "FAILED", "appExitCode": -1000}, Gone(reason="node_lost")),
        ({"state": "FAILED", "appExitCode": -1003}, Gone(reason="preempted")),
        ({"state": "FAILED", "appExitCode": -1004}, Gone(reason="timeout")),
        ({"state": "FAILED", "appExitCode": -1200}, Gone(reason="oom")),
        (
            {
                "state": "FAILED",
                "appExitCode": 137,
                "appExitSpec": {"type": "PLATFORM_FAILURE", "phrase": "Killed"},
            },
            Gone(code=137, message="Killed", fault="transient"),
        ),
        (
            {
                "state": "FAILED",
                "appExitCode": -100,
                "appExitSpec": {"type": "PLATFORM_FAILURE"},
                "appExitDiagnostics": "node is gone",
            },
            Gone(reason="unknown", message="node is gone", fault="transient"),
        ),
        (
            {
                "state": "FAILED",
                "appExitCode": -1100,
                "appExitSpec": {"type": "USER_FAILURE", "reason": "bad spec"},
            },
            Gone(reason="start_failed", message="bad spec", fault="permanent"),
        ),
        (
            {"state": "FAILED", "appExitCode": -8000, "appExitSpec": {"type": "UNKNOWN_FAILURE"}},
            Gone(reason="unknown"),
        ),
        ({"state": "FAILED"}, Gone(reason="unknown", message="OpenPAI reports no exit code")),
    ],
)
def test_ends_are_translated(status, gone):
    assert job_end(status) == gone


def test_a_token_that_has_expired_fails_no_trial(server, service, tmp_path):
    file = tmp_path / "token"
    file.write_text("expired\n")
    service.settings["tokenFile"] = str(file)
    wanted = job(tmp_path / "share")
    for ask in (lambda: service.start(wanted), lambda: service.poll({"h": wanted}), lambda: service.find(wanted)):
        with pytest.raises(Unavailable, match=f"the token has expired or was revoked: put a new one into {file}"):
            ask()
    file.write_text(TOKEN)
    assert service.start(wanted) == "me~tk_e_t-1"
    for text in ("two\nlines", "", "\u00e9"):
        file.write_text(text)
        with pytest.raises(Unavailable, match=f"{file} contains no token$"):
            service.poll({"h": wanted})
    file.unlink()
    with pytest.raises(Unavailable, match=r"trainingService\.tokenFile: .*No such file"):
        service.poll({"h": wanted})


@pytest.mark.parametrize(
    ("answer", "error", "message"),
    [
        ((400, {"code": "InvalidProtocolError", "message": "should be integer"}), Refused, "should be integer"),
        ((403, {"code": "ForbiddenUserError", "message": "not allowed in vc"}), Refused, "not allowed in vc"),
        ((404, {"code": "NoStorageError", "message": "Storage is not found."}), Refused, "Storage is not found"),
        (
            (429, {"code": "TooManyRequestsError", "message": "slowly", "headers": {"Retry-After": "7"}}),
            NoRoom,
            "slowly",
        ),
        ((500, {"code": "UnknownError", "message": "database"}), Unavailable, "database"),
        ((502, b"<html>Bad Gateway</html>"), Unavailable, "Bad Gateway"),
        (
            (302, {"headers": {"Location": "https://pai.example.org/"}}),
            Unavailable,
            "redirect to https://pai.example",
        ),
        ((202, b"\xff no JSON"), Unavailable, "does not answer"),
    ],
)
def test_an_answer_says_what_helps(server, service, tmp_path, answer, error, message):
    server.next["POST", "jobs"] = [answer]
    with pytest.raises(error, match=message) as caught:
        service.start(job(tmp_path / "share"))
    assert caught.type is error
    if error is NoRoom:
        assert caught.value.after == 7


@pytest.mark.parametrize(
    ("what", "settings", "gpus", "free"),
    [
        ("memory", {"trialMemorySize": 2048}, None, 2),
        ("processors", {"trialCpuNumber": 2, "trialMemorySize": 1}, None, 2),
        ("GPUs", {"trialMemorySize": 1}, 2, 1),
        ("a cluster without unused resources", {"virtualCluster": "gpu"}, None, 0),
        ("a cluster that the user may not use", {"virtualCluster": "other"}, None, None),
    ],
)
def test_room_is_what_fits_into_the_virtual_cluster(service, what, settings, gpus, free):
    service.settings.update(settings)
    service.gpus = gpus
    assert service.room() == free, what


def test_room_for_a_job_of_the_users_own_is_that_for_all_its_roles(server, service):
    role = {"instances": 2, "resourcePerInstance": {"cpu": 1, "memoryMB": 100, "gpu": 0}}
    one = {"resourcePerInstance": {"cpu": 0, "memoryMB": 1, "gpu": 1}}
    service.settings["openpaiConfig"] = {"taskRoles": {"worker": role, "ps": one}}
    assert service.room() == 2
    service.settings["openpaiConfig"]["defaults"] = {"virtualCluster": "gpu"}
    assert service.room() == 0
    server.next["GET", "virtual-clusters"] = [(500, {"code": "UnknownError", "message": "database"})]
    with pytest.raises(Unavailable):
        service.room()


@pytest.mark.parametrize(
    "cluster",
    [{}, {"resourcesTotal": {"vCores": 4}, "resourcesUsed": {"vCores": 1}}, {"resourcesTotal": {"cpu": "4"}}],
)
def test_room_is_unknown_if_the_answer_has_another_form(cluster):
    assert free_jobs(cluster, {"cpu": 1, "memory": 0, "gpu": 0}) is None


def test_a_server_that_is_away_ends_no_job(server, service, tmp_path):
    service.settings["host"] = "http://127.0.0.1:1"
    with pytest.raises(
        Unavailable, match=r"OpenPAI does not answer at http://127\.0\.0\.1:1/rest-server/api/v2/info"
    ):
        service.poll({"h": job(tmp_path / "share")})


@pytest.mark.parametrize(
    ("root", "path"), [("/rest-server", ""), ("", ""), ("/own", "/own"), ("/rest-server", "/")]
)
def test_the_api_is_found_below_the_proxy_or_not(service, root, path):
    server = Server(root)
    service.settings["host"] = server.host + path
    assert [problem for problem in service.check() if problem.level == "error"] == []
    server.shutdown()
    server.server_close()


def test_check_names_the_field_that_is_wrong(server, service, tmp_path):
    good = dict(service.settings)
    file = tmp_path / "token"
    file.write_text(TOKEN)
    table = [
        ({}, "trainingService.token", "is in the experiment file"),
        ({"tokenFile": str(file)}, "trainingService.tokenFile", "other users can read it"),
        ({"tokenFile": str(tmp_path / "none")}, "trainingService.tokenFile", "is not a file"),
        (
            {"virtualCluster": "vc9"},
            "trainingService.virtualCluster",
            "there is no virtual cluster vc9 for this user",
        ),
        ({"storageConfigName": "s"}, "trainingService.storageConfigName", "there is no storage s for this user"),
        ({"localStorageMountPoint": "/none"}, "trainingService.localStorageMountPoint", "/none is not a folder"),
        ({"token": "old"}, "", "the token has expired or was revoked: put a new one into trainingService.token"),
        ({"host": "http://127.0.0.1:1"}, "", "OpenPAI does not answer"),
        ({"caFile": "/none/ca.pem"}, "", "trainingService.caFile: /none/ca.pem: "),
        ({"host": "https://127.0.0.1:1 x"}, "", "OpenPAI does not answer"),
        ({"host": f"{server.host}/pai"}, "", "trainingService.host: there is no OpenPAI at"),
    ]
    for changes, path, message in table:
        service.settings, service._api = {**good, **changes}, None
        found = [problem for problem in service.check() if problem.path == path and message in problem.message]
        assert found, (changes, service.check())
    file.chmod(0o600)
    service.settings, service._api = {**good, "tokenFile": str(file), "virtualCluster": "gpu"}, None
    assert [problem.path for problem in service.check()] == ["trainingService.host"]


def test_an_experiment_that_containers_do_not_see_is_refused_with_what_to_do(service, tmp_path):
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    with pytest.raises(Refused, match=f"start with --data-dir {tmp_path}/share/experiments"):
        service.start(job(elsewhere))


def test_the_agent_is_copied_to_the_storage_when_it_changes(service, tmp_path):
    service.state_dir = tmp_path / "share"
    program = tmp_path / "program"
    for content in ("one", "two", "two"):
        program.write_text(content)
        service.agent = str(program)
        service.open()
        assert service.agent == f"{tmp_path}/share/trialkeeper"
        assert Path(service.agent).read_text() == content and os.access(service.agent, os.X_OK)


def test_openpai_passes_the_conformance_story(server, service, tmp_path):
    folder = tmp_path / "share" / "experiments"
    folder.mkdir()
    (tmp_path / "settings.json").write_text(json.dumps(service.settings))
    manager = str(_programs.find_program("trial-manager"))
    fast = "from trialkeeper.openpai import *\nOpenPai.poll_seconds = 0.2; OpenPai().serve()"
    program = ["env", f"PYTHONPATH={SOURCE}", sys.executable, "-c", fast]
    argv = [manager, "conformance", "--settings", str(tmp_path / "settings.json"), "--", *program]
    done = subprocess.run(argv, cwd=folder, capture_output=True, text=True, timeout=540)
    assert done.returncode == 0, done.stdout + done.stderr
    assert TOKEN not in done.stdout + done.stderr


def test_a_search_of_an_experiment_file_runs_on_openpai(server, tmp_path):
    share, inside, programs = tmp_path / "share", tmp_path / "inside", tmp_path / "programs"
    share.mkdir()
    inside.symlink_to(share)
    code = tmp_path / "code"
    code.mkdir()
    # The `python3` on the PATH is this interpreter.
    programs.mkdir()
    (programs / "python3").symlink_to(sys.executable)
    token = tmp_path / "token"
    token.write_text(TOKEN)
    token.chmod(0o600)
    service = {
        **server.settings(share, inside),
        "platform": "openpai",
        "tokenFile": str(token),
        "virtualCluster": "gpu",
    }
    del service["token"]
    document = {
        "trialCommand": "echo loss=$TRIALKEEPER_PARAM_x; pwd",
        "searchSpace": {"x": {"_type": "choice", "_value": [1, 2]}},
        "tuner": {"name": "GridSearch", "classArgs": {"optimize_mode": "minimize"}},
        "trialConcurrency": 2,
        "nniManagerIp": "127.0.0.1",
        "trainingService": service,
    }
    (code / "experiment.json").write_text(json.dumps(document))
    manager = str(_programs.find_program("trial-manager"))
    place = ["--data-dir", str(share / "experiments"), "--port", "0"]
    environment = {**os.environ, "PYTHONPATH": str(SOURCE), "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}"}

    def run(*words):
        return subprocess.run(
            [manager, *words, *place], cwd=code, capture_output=True, text=True, timeout=300, env=environment
        )

    done = run("run", "experiment.json", "--id", "pai", "--output", "json")
    assert done.returncode == 0, done.stdout + done.stderr
    assert [trial["state"] for trial in json.loads(done.stdout)["trials"]] == ["SUCCEEDED"] * 2
    assert {job["job"]["defaults"]["virtualCluster"] for job in server.jobs.values()} == {"gpu"}
    assert all(name.startswith("tk_pai_") for name in server.jobs) and len(server.jobs) == 2
    # Errors are reported before the start, with the name of NNI's field.
    service["virtualCluster"] = "vc9"
    (code / "experiment.json").write_text(json.dumps(document))
    refused = run("run", "experiment.json")
    assert refused.returncode == 2
    assert "trainingService.virtualCluster: there is no virtual cluster vc9" in refused.stderr
    assert TOKEN not in done.stderr + refused.stderr
