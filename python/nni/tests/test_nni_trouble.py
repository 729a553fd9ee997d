"""Experiments whose own tuner or assessor fails, and experiments that run already."""

import logging
import socket
import sys
import time

import pytest

import trialkeeper
from nni.experiment import CustomAlgorithmConfig, Experiment

SPACE = {"x": {"_type": "uniform", "_value": [0, 1]}}
TRIAL = """
import nni
x = nni.get_next_parameter()["x"]
nni.report_intermediate_result(x)
nni.report_final_result(x)
"""
ALGORITHMS = """
from nni.assessor import Assessor
from nni.tuner import Tuner

class BadTuner(Tuner):
    def update_search_space(self, space): pass
    def generate_parameters(self, parameter_id, **kwargs): return {"x": 0.5}
    def receive_trial_result(self, *args, **kwargs): raise ValueError("boom")

class BadAssessor(Assessor):
    def assess_trial(self, *args):
        with open(__file__ + ".failures", "a") as failures:
            failures.write("x")
        raise ValueError("boom")
"""


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@pytest.fixture
def port():
    return free_port()


@pytest.fixture
def experiment(tmp_path):
    (tmp_path / "trial.py").write_text(TRIAL)
    (tmp_path / "algorithms.py").write_text(ALGORITHMS)
    experiment = Experiment("local")
    config = experiment.config
    config.trial_command = f"{sys.executable} trial.py"
    config.trial_code_directory = tmp_path
    config.search_space = SPACE
    config.max_trial_number = 4
    config.trial_concurrency = 1
    config.tuner.name = "Random"
    config.experiment_working_directory = tmp_path / "experiments"
    yield experiment
    experiment.stop()


# An assessor is lost only if it dies three times before the last trial has ended. The first trial waits for that.
@pytest.mark.parametrize(
    ("section", "name", "trials", "result"),
    [("tuner", "BadTuner", 4, True), ("assessor", "BadAssessor", 12, False)],
)
def test_a_failing_algorithm_is_logged_and_a_lost_one_fails_the_search(
    experiment, port, tmp_path, caplog, section, name, trials, result
):
    experiment.config.max_trial_number = trials
    if section == "assessor":
        failures = tmp_path / "algorithms.py.failures"
        experiment.config.trial_command += f"; until grep -qs xxx {failures}; do sleep 0.02; done"
    algorithm = CustomAlgorithmConfig(class_name=f"algorithms.{name}", code_directory=str(tmp_path))
    setattr(experiment.config, section, algorithm)
    with caplog.at_level(logging.WARNING, "nni.experiment"):
        assert experiment.run(port) is result
    assert "boom" in caplog.text


def test_an_experiment_that_runs_is_not_started_again(experiment, port):
    experiment.config.trial_command = "sleep 60"
    experiment.start(port)
    said = f"experiment {experiment.id} is already running on http://127.0.0.1:{port}"
    other = Experiment(experiment.config, id=experiment.id)
    for begin in (experiment.start, experiment.resume, other.run_or_resume):
        with pytest.raises(trialkeeper.ManagerError, match=said):
            begin(port + 1)
    assert experiment.get_status() in ("INITIALIZED", "RUNNING")


def test_a_viewed_experiment_stops_at_once(experiment, port):
    experiment.config.max_trial_number = 1
    assert experiment.run(port)
    experiment.stop()
    with Viewing(experiment) as viewer:
        experiment.config.max_trial_number = 2
        assert experiment.resume(port) is True
        began = time.monotonic()
        experiment.stop()
        assert time.monotonic() - began < 20
        assert viewer.get_status() == "VIEWED"


class Viewing:
    def __init__(self, experiment):
        self.viewer = Experiment(experiment.config, id=experiment.id)

    def __enter__(self):
        return self.viewer.view(free_port(), non_blocking=True)

    def __exit__(self, *_):
        self.viewer.stop()
