"""The commands of `nnictl` with the real manager, run as in a shell."""

import argparse
import csv
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.request
import zipfile

import pytest

from nni import nnictl as nnictl_module

FILE = """
trialCommand: 'echo "loss=$TRIALKEEPER_PARAM_x"; while [ ! -e gate ]; do sleep 0.02; done; echo "loss=2"'
maxTrialNumber: {trials}
trialConcurrency: 2
searchSpace: {{x: {{_type: uniform, _value: [0, 1]}}}}
tuner: {{name: Random, classArgs: {{optimize_mode: minimize}}}}
trainingService: {{platform: local}}
"""


SERVICE = """
import pathlib, subprocess
from trialkeeper.service import Gone, Running, TrainingService

class Service(TrainingService):
    poll_seconds = 0.1
    child = None
    def start(self, job):
        self.child = subprocess.Popen(job.argv, cwd=job.folder, stdin=subprocess.DEVNULL, start_new_session=True)
        return job.name
    def stop(self, handle, job, force):
        pass
    def poll(self, jobs):
        code = self.child and self.child.poll()
        return {handle: Running() if code is None else Gone.of(code) for handle in jobs}
    def clean(self, job):
        pathlib.Path("cleaned").touch()

Service().serve()
"""


@pytest.fixture
def nnictl(tmp_path, monkeypatch):
    """Runs nnictl, and stops all experiments at the end."""
    monkeypatch.chdir(tmp_path)

    def run(*words, code=0, answer=""):
        command = [sys.executable, "-m", "nni.nnictl", *map(str, words)]
        done = subprocess.run(command, capture_output=True, text=True, input=answer, timeout=120)
        assert done.returncode == code, (words, done.stdout, done.stderr)
        return done.stdout + done.stderr

    yield run
    subprocess.run([sys.executable, "-m", "nni.nnictl", "stop", "--all"], capture_output=True, timeout=120)


@pytest.fixture
def port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def create(nnictl, folder, port, trials=4):
    (folder / "experiment.yml").write_text(FILE.format(trials=trials))
    said = nnictl("create", "-c", "experiment.yml", "-p", port)
    assert f"The Web UI urls are: http://127.0.0.1:{port}" in said
    (line,) = [line for line in said.splitlines() if line.startswith("The experiment id is ")]
    return line.split()[-1]


def wait_for(look, what):
    deadline = time.monotonic() + 60
    while not (found := look()):
        assert time.monotonic() < deadline, what
    return found


def status(nnictl):
    return json.loads(nnictl("experiment", "status"))["status"]


@pytest.mark.parametrize("is_own", [True, False], ids=["its-own-folder", "the-folder-above"])
def test_an_experiment_elsewhere_is_resumed_and_viewed(nnictl, tmp_path, port, is_own):
    id = create(nnictl, tmp_path, port)
    nnictl("stop", id)
    elsewhere = tmp_path / "else where"
    (tmp_path / "data").rename(elsewhere)
    folder = elsewhere / id if is_own else elsewhere
    assert "there is no experiment" in nnictl("resume", id, code=1)
    assert f"{tmp_path} is neither the folder" in nnictl("view", id, "-e", tmp_path, code=1)
    nnictl("view", id, "-p", port, "--experiment_dir", folder)
    nnictl("stop", id)
    (tmp_path / "gate").touch()
    nnictl("resume", id, "-p", port, "-e", folder)
    wait_for(lambda: status(nnictl) == "DONE", "the search is not done")
    nnictl("stop", id)
    nnictl("view", id, "-p", port)


def test_the_working_directory_of_a_file_is_used_by_all_commands(nnictl, tmp_path, port):
    (tmp_path / "experiment.yml").write_text(FILE.format(trials=4) + "experimentWorkingDirectory: else where\n")
    said = nnictl("create", "-c", "experiment.yml", "-p", port)
    id = re.search(r"Experiment ID: (\w+)\n", said)[1]
    assert (tmp_path / "else where" / id / "log" / "nnictl_stderr.log").is_file()
    assert f"Id: {id} " in nnictl("experiment", "list")
    assert "success" in nnictl("update", "trialnum", "-v", 1)
    (tmp_path / "gate").touch()
    wait_for(lambda: status(nnictl) == "DONE", "the search is not done")
    assert len(json.loads(nnictl("trial", "ls", id))) >= 1
    nnictl("stop", id)
    nnictl("view", id, "-p", port)
    nnictl("stop", "-p", port)
    nnictl("experiment", "delete", id, answer="y\n")
    assert not (tmp_path / "else where" / id).exists()


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("experimentWorkingDirectory: below", "below"),
        ("experiment_working_directory: below", "below"),
        ("logDir: below", "below"),  # Version 1.
        ("trialCommand: x", "data"),
        ("not: [valid", "data"),
        ("- 1", "data"),
    ],
)
def test_the_working_directory_is_read_from_the_file(tmp_path, text, named):
    (tmp_path / "experiment.yml").write_text(text)
    assert nnictl_module._working_directory(tmp_path / "experiment.yml") == tmp_path / named


def test_a_session_as_nni_documents_it(nnictl, tmp_path, port):
    assert nnictl("stop") == "ERROR: There is no experiment running...\n"
    id = create(nnictl, tmp_path, port)
    wait_for(lambda: status(nnictl) == "RUNNING", "the search does not run")
    listed = nnictl("experiment", "list")
    assert f"Id: {id}    Name: N/A    Status: RUNNING    Port: {port}    Platform: local    StartTime: " in listed
    assert nnictl("webui", "url") == f"INFO:  Web UI url: http://127.0.0.1:{port}\n"
    assert json.loads(nnictl("config", "show"))["maxTrialNumber"] == 4
    assert json.loads(nnictl("experiment", "show", id))["id"] == id
    log = nnictl("log", "stderr")
    assert "Experiment start time" in log and f"experiment {id} on" in log
    path = nnictl("log", "stderr", id, "--path").strip()
    assert path == str(tmp_path / "data" / id / "log" / "nnictl_stderr.log")
    assert nnictl("log", "stderr", "--tail", 1).count("\n") == 1

    running = wait_for(
        lambda: [t for t in json.loads(nnictl("trial", "ls")) if t["status"] == "RUNNING"], "no trial runs"
    )
    trial = running[0]["trialJobId"]
    assert f"INFO:  id:{trial} path:{tmp_path}/data/{id}/{trial}/" in nnictl("log", "trial", "-T", trial)
    nnictl("trial", "kill", "-T", trial)
    assert "there is no trial nosuch" in nnictl("trial", "kill", "-T", "nosuch", code=1)
    states = lambda: {t["trialJobId"]: t["status"] for t in json.loads(nnictl("trial", "ls"))}  # noqa: E731
    wait_for(lambda: states()[trial] == "USER_CANCELED", "the trial is not stopped")
    nnictl("trial", "kill", id, "-T", trial)  # As in NNI, it may have ended already.

    assert nnictl("update", "concurrency", "--value", 1) == "INFO:  Update concurrency success!\n"
    assert nnictl("update", "trialnum", "-v", 5) == "INFO:  Update trialnum success!\n"
    assert nnictl("update", "duration", "-v", "2h") == "INFO:  Update duration success!\n"
    (tmp_path / "space.json").write_text('{"x": {"_type": "uniform", "_value": [0, 2]}}')
    assert nnictl("update", "searchspace", "-f", "space.json") == "INFO:  Update searchSpace success!\n"
    (tmp_path / "known.json").write_text('[{"parameter": {"x": 0.5}, "value": 0.03}]')
    nnictl("experiment", "import", "-f", "known.json")

    def limits() -> tuple[int, int]:
        shown = json.loads(nnictl("config", "show"))
        return shown["trialConcurrency"], shown["maxTrialNumber"]

    wait_for(lambda: limits() == (1, 5), "the new limits are not shown")

    assert nnictl("stop", id[:4]) == f"INFO:  Stopping experiment {id}\nINFO:  Stop experiment success.\n"
    none = nnictl("experiment", "list")
    assert none.startswith("WARNING: There is no experiment running...\n") and "--all" in none
    assert f"Id: {id}    Name: N/A    Status: STOPPED" in nnictl("experiment", "list", "--all")
    assert "Platform: local" in nnictl("experiment", "list", "--all")
    (tmp_path / "gate").touch()
    nnictl("resume", id, "-p", port)
    wait_for(lambda: status(nnictl) == "DONE", "the search is not done")
    assert nnictl("log", "stderr", id).count("Experiment start time") == 2
    nnictl("stop", "-p", port)


def test_dict_results_are_exported_whole_with_their_intermediate_ones(nnictl, tmp_path, port):
    report = "import nni\nfor say in (nni.report_intermediate_result, nni.report_final_result):\n"
    report += "    say({'default': 0.5, 'loss': 2})\n"
    (tmp_path / "report.py").write_text(report)
    trial = f"trialCommand: '{sys.executable} report.py'\n"
    lines = FILE.format(trials=1).splitlines(keepends=True)
    text = "".join(trial if line.startswith("trialCommand:") else line for line in lines)
    (tmp_path / "experiment.yml").write_text(text)
    nnictl("create", "-c", "experiment.yml", "-p", port)
    wait_for(lambda: status(nnictl) == "DONE", "the search is not done")
    nnictl("stop")
    whole = {"default": 0.5, "loss": 2}
    nnictl("experiment", "export", "-t", "json", "-f", "out.json", "-i")
    (record,) = json.loads((tmp_path / "out.json").read_text())
    assert json.loads(record["value"]) == whole
    assert [json.loads(value) for value in record["intermediate"]] == [whole]
    nnictl("experiment", "export", "-t", "csv", "-f", "out.csv", "-i")
    with open(tmp_path / "out.csv", newline="") as file:
        (row,) = csv.DictReader(file)
    assert (row["default"], row["loss"]) == ("0.5", "2")
    assert json.loads(row["intermediate"]) == [whole]


def test_results_are_exported_in_nnis_form_also_from_a_stopped_experiment(nnictl, tmp_path, port):
    (tmp_path / "gate").touch()
    id = create(nnictl, tmp_path, port)
    wait_for(lambda: status(nnictl) == "DONE", "the search is not done")
    nnictl("stop")
    nnictl("experiment", "export", "-t", "json", "-f", "out.json", "-i")
    records = json.loads((tmp_path / "out.json").read_text())
    assert [record["value"] for record in records] == ["2"] * 4
    assert records[0]["intermediate"][-1] == "2"
    nnictl("experiment", "export", id, "--type", "csv", "--filename", "out.csv")
    with open(tmp_path / "out.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert list(rows[0]) == ["x", "reward", "trialJobId"]
    assert {row["trialJobId"] for row in rows} == {record["trialJobId"] for record in records}
    assert len(json.loads(nnictl("trial", "ls", "--tail", 2))) == 2

    assert f"http://127.0.0.1:{port}" in nnictl("view", id, "-p", port)
    assert status(nnictl) == "VIEWED"
    assert f"Id: {id}    Name: N/A    Status: VIEWED    Port: {port}    " in nnictl("experiment", "list")
    assert nnictl("webui", "url") == f"INFO:  Web UI url: http://127.0.0.1:{port}\n"
    assert "Stop experiment success" in nnictl("stop", "-p", port)
    assert status(nnictl) == "DONE"
    assert "it's not recoverable" in nnictl("experiment", "delete", id, answer="n\n")
    assert (tmp_path / "data" / id).is_dir()
    nnictl("experiment", "delete", id, answer="y\n")
    assert not list((tmp_path / "data").iterdir())


def test_a_saved_experiment_is_loaded_with_its_code_and_goes_on(nnictl, tmp_path, port):
    code = tmp_path / "code"
    code.mkdir()
    (code / "gate").touch()
    (code / "experiment.yml").write_text(FILE.format(trials=1))
    said = nnictl("create", "-c", "code/experiment.yml", "-p", port)
    (id,) = [line.split()[-1] for line in said.splitlines() if line.startswith("The experiment id is ")]
    wait_for(lambda: status(nnictl) == "DONE", "the search is not done")
    assert "Can only save stopped experiment!" in nnictl("experiment", "save", id, code=1)
    nnictl("stop")
    archive = tmp_path / "out" / f"nni_experiment_{id}.zip"
    assert str(archive.name) in nnictl("experiment", "save", id, "-p", "out", "--saveCodeDir")
    assert archive.stat().st_mode & 0o777 == 0o600
    assert "exists already" in nnictl("experiment", "load", "-p", archive, code=1)
    nnictl("experiment", "delete", id, answer="y\n")
    shutil.rmtree(code)
    assert f"Load experiment {id} success!" in nnictl("experiment", "load", "-p", archive)
    assert (code / "gate").is_file()
    assert len(json.loads(nnictl("trial", "ls", id))) == 1


def test_a_saved_experiment_is_loaded_with_its_code_elsewhere(nnictl, tmp_path, port):
    code = tmp_path / "code"
    code.mkdir()
    (code / "note").touch()
    (code / "experiment.yml").write_text(FILE.format(trials=2))
    said = nnictl("create", "-c", "code/experiment.yml", "-p", port)
    (id,) = [line.split()[-1] for line in said.splitlines() if line.startswith("The experiment id is ")]
    nnictl("stop")
    nnictl("experiment", "save", id, "--saveCodeDir")
    nnictl("experiment", "delete", id, answer="y\n")
    shutil.rmtree(code)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "note").write_text("mine")
    # Its trials end where this is.
    (elsewhere / "gate").touch()
    said = nnictl("experiment", "load", "-p", f"nni_experiment_{id}.zip", "--codeDir", "elsewhere")
    assert f"WARNING: {elsewhere}/note exists already" in said and f"Load experiment {id} success!" in said
    assert (elsewhere / "note").read_text() == "mine" and (elsewhere / "experiment.yml").is_file()
    assert not code.exists()
    assert json.loads(nnictl("config", "show", id))["trialCodeDirectory"] == str(elsewhere)
    nnictl("resume", id, "-p", port)
    wait_for(lambda: status(nnictl) == "DONE", "the search is not done")


def test_pages_are_served_below_a_prefix(nnictl, tmp_path, port):
    (tmp_path / "experiment.yml").write_text(FILE.format(trials=1))
    said = nnictl("create", "-c", "experiment.yml", "-p", port, "-u", "my/search")
    assert f"The Web UI urls are: http://127.0.0.1:{port}/my/search\n" in said
    for prefix in ("", "/my/search"):
        address = f"http://127.0.0.1:{port}{prefix}/api/v1/nni/check-status"
        with urllib.request.urlopen(address, timeout=10) as answer:
            assert json.load(answer)["status"] in ("RUNNING", "NO_MORE_TRIAL")
    nnictl("stop")
    assert "such as /search" in nnictl("create", "-c", "experiment.yml", "-p", port, "-u", "a b", code=1)


def test_a_platform_is_cleaned_of_what_stopped_experiments_left(nnictl, tmp_path, port):
    (tmp_path / "gate").touch()
    (tmp_path / "service.py").write_text(SERVICE)
    text = FILE.format(trials=1).replace(
        "{platform: local}", "\n  platform: plugin\n  command: [python3, service.py]"
    )
    (tmp_path / "experiment.yml").write_text(text)
    assert "no stopped experiment" in nnictl("platform", "clean", "-c", "experiment.yml")
    nnictl("create", "-c", "experiment.yml", "-p", port)
    wait_for(lambda: status(nnictl) == "DONE", "the search is not done")
    nnictl("stop")
    nnictl("platform", "clean", "--config", "experiment.yml", answer="n\n")
    assert not (tmp_path / "cleaned").exists()
    said = nnictl("platform", "clean", "--config", "experiment.yml", answer="y\n")
    assert "Platform: plugin" in said and said.endswith("INFO:  Done.\n")
    assert (tmp_path / "cleaned").exists()
    (tmp_path / "legacy.yml").write_text("trainingServicePlatform: local\n")
    assert "need to clean local platform" in nnictl("platform", "clean", "-c", "legacy.yml")
    assert "no such file" in nnictl("platform", "clean", "-c", "nowhere.yml", code=1)
    (tmp_path / "none.yml").write_text("trialCommand: a\n")
    assert "names no platform" in nnictl("platform", "clean", "-c", "none.yml", code=1)


def test_an_archive_writes_nothing_outside_of_its_folders(nnictl, tmp_path):
    for name, about in [("a", {"id": "../../evil", "trialCodeDirectory": "/x"}), ("b", []), ("c", {"id": "x"})]:
        with zipfile.ZipFile(tmp_path / name, "w") as archive:
            archive.writestr("nnictl/.experiment", json.dumps(about))
        assert "ERROR" in nnictl("experiment", "load", "-p", name, code=1)
    (tmp_path / "d").write_text("no archive")
    assert "not an archive" in nnictl("experiment", "load", "-p", "d", code=1)
    with zipfile.ZipFile(tmp_path / "e", "w") as archive:
        archive.writestr("nnictl/.experiment", json.dumps({"id": "x", "trialCodeDirectory": str(tmp_path)}))
        archive.writestr("experiment/../../../outside", "evil")
        archive.writestr("experiment/inside", "good")
    nnictl("experiment", "load", "-p", "e")
    assert (tmp_path / "data" / "x" / "inside").is_file()
    assert not list(tmp_path.rglob("outside"))


def test_what_cannot_be_started_says_why_and_leaves_nothing(nnictl, tmp_path, port):
    assert "nowhere.yml: no such file" in nnictl("create", "-c", "nowhere.yml", code=1)
    (tmp_path / "experiment.yml").write_text(FILE.format(trials=-1))
    assert "maxTrialNumber" in nnictl("create", "-c", "experiment.yml", "-p", port, code=1)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", port))
        taken.listen()
        (tmp_path / "experiment.yml").write_text(FILE.format(trials=1))
        assert str(port) in nnictl("create", "-c", "experiment.yml", "-p", port, code=1)
    assert not [path for path in (tmp_path / "data").iterdir() if path.name.startswith(".nnictl")]
    assert "no experiment" in nnictl("experiment", "show", code=1)
    assert "only for nni nas programming interface" in nnictl("trial", "codegen", "x")
    assert "not part of trialkeeper-nni" in nnictl("hello", code=2)
    assert "invalid choice" in nnictl("bogus", code=2)
    for words in ([], ["experiment"]):
        assert nnictl(*words) == 'Please run "nnictl {positional argument} --help" to see nnictl guidance.\n'


def test_one_of_several_experiments_is_to_be_named(nnictl, tmp_path, port):
    first = create(nnictl, tmp_path, port)
    second = create(nnictl, tmp_path, _another(port))
    said = nnictl("experiment", "status", code=1)
    assert "name one by its id" in said and first in said and second in said
    assert "several" in nnictl("stop", code=1)
    said = nnictl("stop", "-a")
    assert {line.split()[-1] for line in said.splitlines() if "Stopping" in line} == {first, second}


def test_an_algorithm_that_is_registered_is_used_by_its_name(nnictl, tmp_path, port, monkeypatch):
    monkeypatch.setenv("NNI_CONFIG_DIR", str(tmp_path / "config"))
    (tmp_path / "meta.yml").write_text(
        "algoType: tuner\nbuiltinName: demotuner\nclassName: demo.Tuner\nclassArgsValidator: demo.Validator\n"
    )
    assert "No module named 'demo'" in nnictl("algo", "register", "--meta", "meta.yml", code=1)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    (tmp_path / "demo.py").write_text(
        "import nni.tuner\nclass Tuner(nni.tuner.Tuner):\n"
        "    def __init__(self, x): self.x = x\n"
        "    def update_search_space(self, space): pass\n"
        "    def generate_parameters(self, parameter_id, **kwargs): return {'x': self.x}\n"
        "    def receive_trial_result(self, *args, **kwargs): pass\n"
        "class Validator(nni.ClassArgsValidator): pass\n"
    )
    for _ in range(2):  # The second replaces the first.
        assert nnictl("algo", "reg", "-m", "meta.yml") == "INFO:  demotuner registered successfully!\n"
    assert nnictl("algo", "list").count("| demotuner       | tuner      | demo.Tuner") == 1
    assert json.loads(nnictl("algo", "show", "DemoTuner"))["className"] == "demo.Tuner"
    text = FILE.format(trials=1).replace("name: Random, classArgs: {", "name: demotuner, classArgs: {x: 0.25, ")
    (tmp_path / "experiment.yml").write_text(text.replace(", optimize_mode: minimize", ""))
    (tmp_path / "gate").touch()
    nnictl("create", "-c", "experiment.yml", "-p", port)
    wait_for(lambda: status(nnictl) == "DONE", "the search is not done")
    assert '"parameters\\":{\\"x\\":0.25}' in nnictl("trial", "ls")
    assert "unregistered" in nnictl("algo", "unreg", "demotuner")
    assert "demotuner is not registered" in nnictl("algo", "unregister", "demotuner", code=1)
    (tmp_path / "meta.yml").write_text("{algoType: x, builtinName: b, className: demo.Tuner}")
    assert "algoType 'x' is not one of tuner, assessor, advisor" in nnictl(
        "algo", "register", "-m", "meta.yml", code=1
    )


@pytest.mark.parametrize("words", [(), ("-f",)])
def test_an_own_class_runs_in_the_python_of_nnictl(nnictl, tmp_path, port, monkeypatch, words):
    code, path = tmp_path / "code", tmp_path / "path"
    code.mkdir()
    path.mkdir()
    (path / "python3").write_text("#!/bin/sh\nexit 1\n")
    (path / "python3").chmod(0o755)
    monkeypatch.setenv("PATH", str(path), prepend=os.pathsep)
    (code / "demo.py").write_text(
        "class Tuner:\n    def update_search_space(self, space): pass\n"
        "    def generate_multiple_parameters(self, ids, **_): return [{'x': 0.25} for _ in ids]\n"
        "    def receive_trial_result(self, *_, **__): pass\n"
    )
    (code / "gate").touch()
    own = "className: demo.Tuner}}  # NNI needs no interpreter."
    text = FILE.replace("name: Random, classArgs: {{optimize_mode: minimize}}}}", own)
    (code / "experiment.yml").write_text(text.format(trials=-1))
    said = nnictl("create", "-c", "code/experiment.yml", "-p", port, code=1)
    assert "code/experiment.yml: line 3, column 1: maxTrialNumber" in said
    (code / "experiment.yml").write_text(text.format(trials=1))
    nnictl("create", "-c", "code/experiment.yml", "-p", port, *words)
    wait_for(lambda: status(nnictl) == "DONE", "the search is not done")
    assert '"parameters\\":{\\"x\\":0.25}' in nnictl("trial", "ls")
    assert json.loads(nnictl("config", "show"))["pythonInterpreter"] == sys.executable


def test_the_foreground_ends_with_the_search(nnictl, tmp_path, port):
    (tmp_path / "gate").touch()
    (tmp_path / "experiment.yml").write_text(FILE.format(trials=1))
    assert "DONE: 1 trial, 1 succeeded" in nnictl("create", "-c", "experiment.yml", "-p", port, "-f")
    assert "Experiment start time" in nnictl("log", "stdout") and "DONE: 1 trial" in nnictl("log", "stdout")
    assert f"on http://127.0.0.1:{port}" in nnictl("log", "stderr")
    assert not list((tmp_path / "data").glob(".nnictl*"))


def test_a_stop_without_an_experiment_succeeds(nnictl, tmp_path, port):
    """As in NNI, because scripts stop what may have ended."""
    assert "there is no experiment nosuch" in nnictl("stop", "nosuch")
    assert "nnictl stop --all" in nnictl("stop", "all", code=1)
    id = create(nnictl, tmp_path, port)
    assert f"no running experiment has the port {port + 1}" in nnictl("stop", "-p", port + 1)
    nnictl("stop", id)
    assert f"experiment {id} is not running" in nnictl("stop", id)
    assert "There is no experiment running" in nnictl("stop")


def test_the_beginning_of_several_ids_stops_none(monkeypatch, capsys):
    rows = [argparse.Namespace(id=id, pages="http://x", port=1) for id in ("ab", "ac", "b")]
    monkeypatch.setattr(nnictl_module, "_rows", lambda: rows)
    nnictl_module._stop(argparse.Namespace(id="a", port=None, all=False))
    assert capsys.readouterr().err == "ERROR: a is ambiguous: ab, ac\n"


def test_ctrl_c_in_the_foreground_stops_the_search(nnictl, tmp_path, port):
    (tmp_path / "experiment.yml").write_text(FILE.format(trials=1))
    words = [sys.executable, "-m", "nni.nnictl", "create", "-c", "experiment.yml", "-p", str(port), "-f"]
    process = subprocess.Popen(words, stderr=subprocess.PIPE, text=True, start_new_session=True)
    with process:
        assert any(" on http" in line for line in process.stderr)
        os.killpg(process.pid, signal.SIGINT)
        said = process.stderr.read()
    assert process.returncode == 130
    assert "stopping the trials" in said


def test_a_stranger_with_the_number_of_the_viewer_is_left_alone(nnictl, tmp_path, port):
    (tmp_path / "gate").touch()
    id = create(nnictl, tmp_path, port, trials=1)
    wait_for(lambda: status(nnictl) == "DONE", "the search is not done")
    nnictl("stop")
    stranger = subprocess.Popen(["sleep", "600"])
    try:
        note = tmp_path / "data" / id / "log" / "nnictl_view.json"
        note.write_text(json.dumps({"pid": stranger.pid, "started": "1"}))
        assert "is not running" in nnictl("stop", id)
        assert stranger.poll() is None
    finally:
        os.kill(stranger.pid, signal.SIGKILL)
        stranger.wait()


def _another(port):
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        other = probe.getsockname()[1]
    return other if other != port else _another(port)


def test_an_archive_does_not_contain_itself_and_appears_as_a_whole(tmp_path, monkeypatch):
    import zipfile

    from nni import _archive

    code, folder = tmp_path / "code", tmp_path / "record"
    code.mkdir()
    folder.mkdir()
    (code / "train.py").write_text("print(1)\n")
    (folder / "log").write_text("a log\n")
    about, target = {"trialCodeDirectory": str(code)}, code / "saved.zip"
    for _ in range(2):  # The second archive replaces the first one, and does not contain it.
        _archive.save(target, folder, about, with_code=True)
        names = sorted(zipfile.ZipFile(target).namelist())
        assert names == ["code/train.py", "experiment/log", "nnictl/.experiment"]
        assert target.stat().st_mode & 0o777 == 0o600

    def fail(*_):
        raise OSError(28, "No space left on device")

    before = target.read_bytes()
    monkeypatch.setattr(zipfile.ZipFile, "write", fail)
    with pytest.raises(OSError, match="No space left"):
        _archive.save(target, folder, about, with_code=True)
    assert (target.read_bytes(), sorted(path.name for path in code.iterdir())) == (
        before,
        ["saved.zip", "train.py"],
    )


def test_a_reader_that_closes_the_output_is_no_error(nnictl, tmp_path, port):
    create(nnictl, tmp_path, port)
    reader, writer = os.pipe()
    os.close(reader)
    env = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    for words in (["trial", "ls"], ["experiment", "list"], ["log", "stderr"], ["--help"], ["--version"]):
        for unbuffered in ({}, {"PYTHONUNBUFFERED": "1"}):
            command = [sys.executable, "-m", "nni.nnictl", *words]
            done = subprocess.run(
                command, stdout=writer, stderr=subprocess.PIPE, text=True, env={**env, **unbuffered}, timeout=60
            )
            assert (done.returncode, done.stderr) == (0, ""), words
    os.close(writer)


def test_an_output_that_cannot_be_written_is_an_error():
    with open("/dev/full", "w") as full:
        command = [sys.executable, "-m", "nni.nnictl", "--version"]
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, timeout=60)
    assert done.returncode == 1
    assert done.stderr.startswith("ERROR: the output cannot be written: ") and done.stderr.count("\n") == 1


def test_a_port_in_use_names_the_experiment_that_uses_it(nnictl, tmp_path, port):
    id = create(nnictl, tmp_path, port)
    said = nnictl("create", "-c", "experiment.yml", "-p", port, code=1)
    assert f"experiment {id} uses it, and `nnictl stop {id}` stops it; choose another port" in said
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        said = nnictl("create", "-c", "experiment.yml", "-p", other.getsockname()[1], code=1)
    assert said.strip().endswith("choose another port") and "experiment" not in said
