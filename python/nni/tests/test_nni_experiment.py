"""`nni.experiment.Experiment` with the real manager."""

import json
import re
import socket
import sys
import time
import urllib.request
from datetime import date
from pathlib import Path

import pytest

import nni
import trialkeeper
from nni.experiment import CustomAlgorithmConfig, Experiment
from nni.experiment._rest import ask

SPACE = {"x": {"_type": "uniform", "_value": [0, 1]}}
#: A training script for NNI, which this package runs unchanged.
TRIAL = """
import nni, os, sys, time
x = nni.get_next_parameter()["x"]
open(os.path.join(os.environ["NNI_OUTPUT_DIR"], "model"), "w").close()
nni.report_intermediate_result(x / 2)
while len(sys.argv) > 1 and not os.path.exists(sys.argv[1]):
    time.sleep(0.02)
nni.report_final_result({"default": x, "n": nni.get_sequence_id()})
"""
ALGORITHMS = """
import os
from datetime import date
from pathlib import Path
from nni import NoMoreTrialError
from nni.assessor import Assessor, AssessResult
from nni.tuner import Tuner

class Three(Tuner):
    def __init__(self, first):
        self.next = first
    def update_search_space(self, space):
        assert list(space) == ["x"]
    def generate_parameters(self, parameter_id, **kwargs):
        if parameter_id == 3:
            raise NoMoreTrialError
        self.next += 1
        return {"x": self.next}
    def receive_trial_result(self, parameter_id, parameters, value, **kwargs):
        print("result", parameter_id, parameters["x"], value["default"], flush=True)
    def trial_end(self, parameter_id, success, **kwargs):
        print("end", parameter_id, success, flush=True)

class Typed(Three):
    def generate_parameters(self, parameter_id, **kwargs):
        return {"x": 0.5, "file": Path("a b"), "day": date(2026, 1, 2)}
    def import_data(self, data):
        print("import", data[0]["parameter"] == self.generate_parameters(0), flush=True)

class Accepting(Three):
    def __init__(self, first):
        super().__init__(first)
        self._accept_customized_trials()
    def generate_parameters(self, parameter_id, **kwargs):
        return {"x": 1}
    def receive_trial_result(self, parameter_id, parameters, value, **kwargs):
        print(parameters["x"], value["default"], kwargs["customized"], flush=True)

class Saving(Three):
    def load_checkpoint(self):
        print("loaded", flush=True)
    def update_search_space(self, space):
        print("space", flush=True)
    def import_data(self, data):
        print("import", len(data), flush=True)
    def receive_trial_result(self, *args, **kwargs):
        print("dies", flush=True)
        os._exit(1)

class Raises(Three):
    def generate_parameters(self, parameter_id, **kwargs):
        raise RuntimeError("the tuner is broken on purpose")

class Limit(Assessor):
    def assess_trial(self, trial, history):
        return AssessResult.Bad if history[-1] > 6 else AssessResult.Good
"""

#: An advisor as in NNI's documentation: it handles the manager's messages itself.
ADVISOR = """
import nni
from nni.runtime.msg_dispatcher_base import MsgDispatcherBase
from nni.runtime.tuner_command_channel import CommandType
from nni.utils import MetricType, extract_scalar_reward

class CustomAdvisor(MsgDispatcherBase):
    def __init__(self, first=0, fails=False):
        super(CustomAdvisor, self).__init__()
        self.count, self.fails = first, fails

    def handle_initialize(self, data):
        self.handle_update_search_space(data)
        self.send(CommandType.Initialized, "")

    def handle_update_search_space(self, data):
        assert list(data) == ["x"]

    def handle_request_trial_jobs(self, data):
        for _ in range(data):
            self.count += 1
            trial = {"parameter_id": self.count, "parameters": {"x": self.count}, "parameter_source": "algorithm"}
            self.send(CommandType.NewTrialJob, nni.dump(trial))

    def handle_report_metric_data(self, data):
        value = extract_scalar_reward(nni.load(data["value"]))
        print(data["type"], data["parameter_id"], value, flush=True)
        if self.fails:
            raise RuntimeError("the advisor is broken on purpose")
        if data["type"] == MetricType.PERIODICAL and value > 5:
            self.send(CommandType.KillTrialJob, nni.dump(data["trial_job_id"]))

    def handle_trial_end(self, data):
        print(data["event"], nni.load(data["hyper_params"])["parameter_id"], flush=True)

    def handle_import_data(self, data):
        pass
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    (tmp_path / "trial.py").write_text(TRIAL)
    (tmp_path / "my_advisor.py").write_text(ADVISOR)
    (tmp_path / "mine.py").write_text(ALGORITHMS)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def local(command="trial.py", trials=3):
    experiment = Experiment("local")
    experiment.config.trial_command = f"{sys.executable} {command}"
    experiment.config.search_space = SPACE
    experiment.config.tuner.name = "Random"
    experiment.config.tuner.class_args["optimize_mode"] = "maximize"
    experiment.config.trial_concurrency = 1
    experiment.config.max_trial_number = trials
    return experiment


def test_an_experiment_runs_answers_and_stops(folder):
    experiment = local()
    try:
        assert experiment.run(0) is True
        jobs = experiment.list_trial_jobs()
        assert [(job.sequenceId, job.status) for job in jobs] == [(n, "SUCCEEDED") for n in range(3)]
        assert experiment.get_trial_job(jobs[1].trialJobId) == jobs[1]
        x = jobs[0].hyperParameters[0].parameters["x"]
        assert jobs[0].finalMetricData[0].data == {"default": x, "n": 0}
        metrics = experiment.get_job_metrics()
        first = metrics[jobs[0].trialJobId][0]
        assert (first.type, first.data) == ("PERIODICAL", x / 2)
        assert experiment.get_job_metrics(jobs[2].trialJobId).keys() == {jobs[2].trialJobId}
        assert experiment.get_job_metrics("nosuch") == {}
        assert experiment.export_data()[0].value == {"default": x, "n": 0}
        assert experiment.get_job_statistics() == [{"trialJobStatus": "SUCCEEDED", "trialJobNumber": 3}]
        assert experiment.get_experiment_profile()["id"] == experiment.id
        assert experiment.get_experiment_metadata(experiment.id)["status"] == "DONE"
        connected = Experiment.connect(experiment.port)
        assert (connected.id, connected.get_status()) == (experiment.id, "DONE")
        connected.stop()
        with pytest.raises(ConnectionError, match="not running"):
            connected.get_status()
    finally:
        experiment.stop()
    with pytest.raises(ConnectionError, match=r"not running.*view\(\)"):
        experiment.get_status()


def test_a_search_that_runs_is_changed_stopped_resumed_and_viewed(folder):
    gate = folder / "gate"
    experiment = local(f"trial.py {gate}", trials=2)
    try:
        assert experiment.run(0, wait_completion=False) is None
        wait_for(experiment.list_trial_jobs, "no trial has begun")
        experiment.update_trial_concurrency(2)
        experiment.update_max_trial_number(4)
        experiment.update_max_experiment_duration("2h")
        experiment.update_search_space({"x": {"_type": "uniform", "_value": [2, 3]}})
        params = experiment.get_experiment_profile()["params"]
        assert (params["trialConcurrency"], params["maxTrialNumber"]) == (2, 4)
        assert params["searchSpace"]["x"]["_value"] == [2, 3]
        killed = experiment.list_trial_jobs()[0].trialJobId
        experiment.kill_trial_job(killed)
        wait_for(lambda: experiment.get_trial_job(killed).status == "USER_CANCELED", "the trial is not stopped")
        experiment.stop()
        gate.touch()
        again = Experiment(id=experiment.id)
        assert again.resume(0) is True
        again.stop()
        shown = Experiment(id=experiment.id).view(_free_port(), non_blocking=True)
        try:
            assert shown.get_job_statistics()[0]["trialJobNumber"] >= 1
        finally:
            shown.stop()
    finally:
        experiment.stop()


def test_a_manager_that_is_killed_is_replaced_on_its_port(folder):
    gate = folder / "gate"
    experiment = local(f"trial.py {gate}", trials=2)
    experiment.config.max_trial_retries = 2
    try:
        experiment.run(0, wait_completion=False)
        port = experiment.port
        wait_for(experiment.list_trial_jobs, "no trial has begun")
        experiment._experiment._manager._process.kill()
        gate.touch()
        with pytest.warns(RuntimeWarning, match=r"was killed by SIGKILL; restarting it \(1 of 3\)"):
            assert experiment._wait_completion() is True
        assert Experiment.connect(port).id == experiment.id
        assert [job.status for job in experiment.list_trial_jobs()] == ["SUCCEEDED"] * 2
    finally:
        experiment.stop()


def test_an_id_stands_for_the_experiment_as_nni_takes_it(folder):
    gate = folder / "gate"
    experiment = local(f"trial.py {gate}", trials=1)
    experiment.run(0, wait_completion=False)
    experiment.stop()
    shown = Experiment.view(experiment.id, _free_port(), non_blocking=True)
    try:
        assert (shown.id, shown.get_status()) == (experiment.id, "VIEWED")
    finally:
        shown.stop()
    gate.touch()
    assert Experiment.resume(experiment.id, 0) is True


def test_an_experiment_elsewhere_is_found_by_its_port_and_its_id(folder):
    experiment = local(trials=1)
    experiment.config.experiment_working_directory = "elsewhere"
    known = experiment.id
    with pytest.raises(RuntimeError, match="not running"):
        experiment.get_status()
    try:
        assert experiment.run(0) is True
        assert (experiment.id, (folder / "elsewhere" / known).is_dir()) == (known, True)
        connected = Experiment.connect(experiment.port)
        assert (connected.id, connected.get_status()) == (known, "DONE")
    finally:
        experiment.stop()
    shown = Experiment.view(known, _free_port(), non_blocking=True)
    try:
        assert len(shown.list_trial_jobs()) == 1
    finally:
        shown.stop()
    try:
        assert experiment.run(0) is True
        assert experiment.id != known
    finally:
        experiment.stop()


def test_a_search_that_is_done_continues_with_more_trials(folder):
    experiment = local(trials=1)
    try:
        assert experiment.run(0) is True
        experiment.kill_trial_job(experiment.list_trial_jobs()[0].trialJobId)
        experiment.update_max_trial_number(2)
        wait_for(lambda: len(experiment.export_data()) == 2, "no trial has begun")
        assert experiment._wait_completion() is True
        experiment.stop()
        again = Experiment(id=experiment.id)
        assert again.resume(0) is True
        again.update_max_trial_number(3)
        wait_for(lambda: len(again.export_data()) == 3, "no trial has begun")
        again.stop()
    finally:
        experiment.stop()


def test_a_resumed_experiment_does_not_count_as_stopped(folder):
    """Scripts that wait while an experiment is running would end at once."""
    experiment = local(trials=2)
    experiment.config.trial_command += f" {folder / 'gate'}"
    experiment.run(0, wait_completion=False)
    experiment.stop()
    resumed = Experiment(id=experiment.id)
    try:
        resumed.resume(0, wait_completion=False)
        assert resumed.get_status() in ("RUNNING", "NO_MORE_TRIAL")
    finally:
        resumed.stop()


def test_the_configuration_of_a_stopped_experiment_is_loaded(folder):
    experiment = local(trials=1)
    experiment.config.trial_command += f" {folder / 'gate'}"
    experiment.run(0, wait_completion=False)
    experiment.update_max_trial_number(2)
    experiment.stop()
    loaded = Experiment(None, experiment.id)
    loaded.load_checkpoint()
    assert loaded.config.trial_command == experiment.config.trial_command
    assert (loaded.config.max_trial_number, loaded.config.training_service.platform) == (2, "local")
    assert loaded.config.json()["tuner"] == experiment.config.json()["tuner"]
    assert loaded.has_checkpoint(), "it is looked for where it is"
    (folder / "gate").touch()
    resumed = Experiment(None, experiment.id)
    try:
        assert resumed.resume(0) is True
        assert resumed.config == loaded.config
        given = Experiment(experiment.config, experiment.id)
        given.load_checkpoint()
        assert given.config is experiment.config
    finally:
        resumed.stop()


def test_a_tuner_and_an_assessor_of_ones_own_run_without_nni(folder):
    experiment = local(trials=9)
    experiment.config.tuner = CustomAlgorithmConfig(class_name="mine.Three", class_args={"first": 10})
    experiment.config.assessor = CustomAlgorithmConfig(class_name="mine.Limit")
    experiment.config.trial_command += " gate"
    (folder / "gate").symlink_to(folder / "trial.py")
    try:
        assert experiment.run(0) is True
        jobs = experiment.list_trial_jobs()
        assert [job.hyperParameters[0].parameters for job in jobs] == [{"x": 11}, {"x": 12}, {"x": 13}]
        output = (experiment._experiment.folder / "dispatcher" / "output").read_text().splitlines()
        # The end of a trial comes after its result.
        assert output[:2] == ["result 0 11 11", "end 0 True"]
    finally:
        experiment.stop()


def test_values_that_json_lacks_reach_trials_and_results(folder):
    (folder / "typed.py").write_text(
        "import nni\nparameters = nni.get_next_parameter()\n"
        "result = {'day': parameters['day'], 'at': parameters['file'] / 'c'}\n"
        "nni.report_final_result({'default': parameters['x'], **result})\n"
    )
    experiment = local("typed.py", trials=1)
    experiment.config.tuner = CustomAlgorithmConfig(class_name="mine.Typed", class_args={"first": 0})
    try:
        assert experiment.run(0) is True
        (job,) = experiment.list_trial_jobs()
        assert job.hyperParameters[0].parameters["file"] == {"__pathlib__": "a b"}
        data = job.finalMetricData[0].data
        assert nni.load(json.dumps(data)) == {"default": 0.5, "day": date(2026, 1, 2), "at": Path("a b/c")}
        experiment.stop()
        assert experiment.resume(0) is True
        experiment.update_max_trial_number(2)
        output = experiment._experiment.folder / "dispatcher" / "output"
        wait_for(lambda: "import True\n" in output.read_text(), "the tuner gets no earlier result")
    finally:
        experiment.stop()


def test_a_tuner_that_accepts_them_gets_the_users_trials(folder):
    # The manager sends the end of a trial after the next proposal.
    experiment = local("trial.py gate", trials=99)
    experiment.config.tuner = CustomAlgorithmConfig(class_name="mine.Accepting", class_args={"first": 0})
    try:
        experiment.start(0)
        place = experiment._experiment.folder
        ask(place, "POST", "/trial-jobs", {"x": 0.25})
        (folder / "gate").touch()
        output, lines = place / "dispatcher" / "output", {"0.25 0.25 True", "1 1 False"}
        wait_for(lambda: lines <= set(output.read_text().splitlines()), f"the tuner did not get {lines}")
    finally:
        experiment.stop()


def test_a_tuner_that_died_loads_its_checkpoint_before_the_history(folder):
    experiment = local("trial.py", trials=2)
    experiment.config.tuner = CustomAlgorithmConfig(class_name="mine.Saving", class_args={"first": 0})
    try:
        experiment.start(0)
        output = experiment._experiment.folder / "dispatcher" / "output"
        expected = ["space", "dies", "loaded", "space", "import 1"]
        wait_for(lambda: output.exists() and output.read_text().split("\n")[:5] == expected, "it is not loaded")
    finally:
        experiment.stop()


def test_an_assessor_of_ones_own_ends_a_hopeless_trial(folder):
    experiment = local(f"trial.py {folder / 'never'}", trials=1)
    experiment.config.tuner = CustomAlgorithmConfig(class_name="mine.Three", class_args={"first": 20})
    experiment.config.assessor = CustomAlgorithmConfig(class_name="mine.Limit")
    try:
        assert experiment.run(0) is True
        assert [job.status for job in experiment.list_trial_jobs()] == ["EARLY_STOPPED"]
    finally:
        experiment.stop()


def test_an_advisor_of_ones_own_proposes_trials_and_stops_them(folder):
    (folder / "gate").touch()
    experiment = local("trial.py gate", trials=1)
    advisor = CustomAlgorithmConfig(class_name="my_advisor.CustomAdvisor")
    experiment.config.tuner = None
    experiment.config.advisor = advisor
    try:
        assert experiment.run(0) is True
        assert experiment.list_trial_jobs()[0].hyperParameters[0].parameters == {"x": 1}
        output = (experiment._experiment.folder / "dispatcher" / "output").read_text().splitlines()
        assert sorted(output)[:2] == ["FINAL 1 1", "PERIODICAL 1 0.5"]
        (folder / "gate").unlink()
        # As in NNI 3, an advisor may also be the tuner.
        advisor.class_args = {"first": 20}
        experiment.config.tuner, experiment.config.advisor = advisor, None
        experiment.stop()
        assert experiment.run(0) is True
        assert [job.status for job in experiment.list_trial_jobs()] == ["EARLY_STOPPED"]
    finally:
        experiment.stop()


def test_an_advisor_that_raises_is_reported(folder):
    # The trial waits at the gate, so that the search does not end before the advisor fails.
    experiment = local("trial.py gate", trials=3)
    experiment.config.tuner = CustomAlgorithmConfig(
        class_name="my_advisor.CustomAdvisor", class_args={"fails": True}
    )
    try:
        experiment.start(0)
        wait_for(lambda: "the advisor is broken on purpose" in experiment._trouble(), "the advisor's failure")
    finally:
        experiment.stop()


def test_a_tuner_that_raises_holds_the_search_and_its_words_are_told(folder, caplog):
    experiment = local()
    experiment.config.tuner = CustomAlgorithmConfig(class_name="mine.Raises", class_args={"first": 1})
    try:
        assert experiment.run(0) is False
        assert "the tuner is broken on purpose" in caplog.text
    finally:
        experiment.stop()


def test_what_the_manager_refuses_is_raised_with_its_words(folder):
    experiment = local()
    experiment.config.max_trial_number = -1
    for error in (trialkeeper.ConfigurationError, ValueError):
        with pytest.raises(error, match="maxTrialNumber"):
            experiment.run(0)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(trialkeeper.ConfigurationError, match=str(port)):
            local().run(port)


def test_an_id_of_ones_own_is_the_managers_too(folder):
    experiment = Experiment(local().config, id="mine")
    assert experiment.run_or_resume(0) is True
    assert experiment.id == "mine" and (folder / "data" / "mine").is_dir()
    experiment.stop()
    with pytest.raises(trialkeeper.ConfigurationError, match="experiment mine already exists"):
        Experiment(local().config, id="mine").run(0)
    with pytest.raises(ValueError, match="Invalid experiment ID: not an id"):
        Experiment("local", "not an id")
    assert not Experiment(id="unknown1").has_checkpoint()
    with pytest.raises(ConnectionError, match="port 1; running: none"):
        Experiment.connect(1)


def test_the_words_that_scripts_read_are_printed(folder, capsys):
    experiment = local(trials=1)
    experiment.url_prefix = "/search/"
    port = _free_port()
    try:
        assert experiment.run(port) is True
        experiment.update_trial_concurrency(2)
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/search/api/v1/nni/check-status") as page:
            assert page.status == 200
    finally:
        experiment.stop()
    lines = capsys.readouterr().out.splitlines()
    assert all(re.match(r"\[\d{4}-\d\d-\d\d \d\d:\d\d:\d\d] ", line) for line in lines)
    assert [line[22:] for line in lines] == [
        f"Creating experiment, Experiment ID: {experiment.id}",
        f"Web portal URLs: http://127.0.0.1:{port}/search",
        "Successfully update trialConcurrency.",
        "Stopping experiment, please wait...",
        "Experiment stopped.",
    ]


def test_the_metadata_of_all_experiments_is_returned(folder):
    """Like NNI's, which keeps one list for the machine."""
    ended, elsewhere, running = local(trials=1), local(trials=1), local(trials=1)
    elsewhere.config.experiment_working_directory = "elsewhere"
    elsewhere.config.experiment_name = "named"
    try:
        for experiment in (ended, elsewhere, running):
            assert experiment.run(0) is True
        ended.stop()
        known = {metadata["id"]: metadata for metadata in running.get_all_experiments_metadata()}
        assert list(known) == [running.id, ended.id, elsewhere.id]
        assert len({tuple(metadata) for metadata in known.values()}) == 1, "all have the same members"
        assert known[elsewhere.id] == elsewhere.get_experiment_metadata(elsewhere.id)
        assert known[elsewhere.id]["logDir"] == str(folder / "elsewhere")
        assert (known[ended.id]["status"], known[ended.id]["platform"]) == ("DONE", "local")
        assert running.get_experiment_metadata("nosuch") == {}
    finally:
        for experiment in (ended, elsewhere, running):
            experiment.stop()


def _free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def wait_for(look, what):
    """Waits at most a minute until ``look`` returns a value, and returns it."""
    deadline = time.monotonic() + 60
    while not (found := look()):
        assert time.monotonic() < deadline, what
    return found


@pytest.mark.parametrize(
    ("words", "before"),
    [
        ("trial.py > train.log 2>&1", ""),
        ("trial.py > /dev/null", ""),
        ("trial.py", "sys.stdout = open(os.devnull, 'w')"),
        ("trial.py", "print('\\rEpoch 0: 100%|####|', end='', flush=True)"),
        ("trial.py", "if os.fork(): os.wait(); os._exit(0)"),
    ],
)
def test_results_arrive_whatever_happens_to_the_output(tmp_path, words, before):
    code = (
        f"import os, signal, sys, nni\nnni.get_next_parameter()\n{before}\n"
        "for step in range(3): nni.report_intermediate_result(step)\n"
        "nni.report_final_result(0.5)\nos.kill(os.getpid(), signal.SIGKILL)\n"
    )
    (tmp_path / "trial.py").write_text(code)
    experiment = trialkeeper.Experiment(
        trial_command=f"{sys.executable} {words} || true",
        trial_code_directory=str(tmp_path),
        search_space=SPACE,
        tuner={"name": "Random"},
        max_trial_number=1,
        data_dir=tmp_path / "data",
    ).run()
    assert [metric.value for metric in experiment.best.metrics()] == [0, 1, 2, 0.5]
