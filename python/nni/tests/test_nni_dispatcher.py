"""The process for custom tuners: the calls that the manager's messages cause, and the answers."""

import json
import math
import os
import subprocess
import sys

import pytest

import nni
from nni import NoMoreTrialError
from nni._dispatcher import Dispatcher, create_algorithm
from nni.assessor import Assessor, AssessResult
from nni.tuner import Tuner


class Recorder(Tuner):
    def __init__(self, stock=10):
        self.calls = []
        self.stock = stock

    def generate_parameters(self, parameter_id, **kwargs):
        if parameter_id >= self.stock:
            raise NoMoreTrialError
        return {"x": parameter_id}

    def update_search_space(self, search_space):
        self.calls.append(("space", search_space))

    def receive_trial_result(self, parameter_id, parameters, value, **kwargs):
        self.calls.append(("result", parameter_id, parameters, value))

    def trial_end(self, parameter_id, success, **kwargs):
        self.calls.append(("end", parameter_id, success))

    def import_data(self, data):
        self.calls.append(("import", data))


class Largest(Assessor):
    def __init__(self):
        self.seen = []

    def assess_trial(self, trial_job_id, trial_history):
        self.seen.append(list(trial_history))
        return trial_history[-1] < 5  # A bool is accepted, as in NNI.

    def trial_end(self, trial_job_id, success):
        self.seen.append((trial_job_id, success))


@pytest.fixture
def talk():
    sent = []
    dispatcher = Dispatcher(Recorder(stock=3), Largest(), lambda kind, content: sent.append((kind, content)))

    def say(kind, content=None):
        sent.clear()
        dispatcher.handle(kind, content)
        return list(sent)

    say.tuner, say.assessor = dispatcher._tuner, dispatcher._assessor
    return say


def metric(kind, sequence, value, parameter_id=0, trial="abcde"):
    return {
        "parameter_id": parameter_id,
        "trial_job_id": trial,
        "type": kind,
        "sequence": sequence,
        "value": value,
    }


def end(event, parameter_id=0, trial="abcde"):
    record = json.dumps({"parameter_id": parameter_id, "parameters": {"x": 5}})
    return {"trial_job_id": trial, "event": event, "hyper_params": record}


def test_proposals_are_numbered_and_their_end_is_said(talk):
    assert talk("IN", {"x": {}}) == [("ID", "")]
    records = [json.loads(content) for kind, content in talk("GE", 2) if kind == "TR"]
    assert [(record["parameter_id"], record["parameters"]) for record in records] == [(0, {"x": 0}), (1, {"x": 1})]
    assert [kind for kind, _ in talk("GE", 2)] == ["TR", "NO"]
    assert talk.tuner.calls == [("space", {"x": {}})]


def test_proposals_have_nnis_form_of_arrays(talk):
    numpy = pytest.importorskip("numpy")
    talk.tuner.generate_parameters = lambda *_, **__: {"w": numpy.array([0.5]), "n": numpy.int64(3), "s": {1}}
    ((_, content),) = talk("GE", 1)
    parameters = nni.load(content)["parameters"]
    assert isinstance(parameters["w"], numpy.ndarray) and parameters["w"] == numpy.array([0.5])
    assert (parameters["n"], parameters["s"]) == (3, {1})


def test_a_result_goes_to_the_tuner_before_the_end(talk):
    talk("GE", 1)
    talk("ME", metric("FINAL", 0, '{"default": NaN}'))
    assert talk("EN", end("SUCCEEDED")) == [("_done_", "1")]
    (_, number, parameters, value), ended = talk.tuner.calls
    assert (number, parameters, ended) == (0, {"x": 0}, ("end", 0, True))
    assert math.isnan(value["default"])


def test_only_a_tuner_that_accepts_them_gets_results_of_the_users_trials(talk):
    for expected in ([], [("result", None, {"x": 5}, 1)]):
        talk("ME", metric("FINAL", 0, "1", parameter_id=None))
        talk("EN", end("SUCCEEDED", parameter_id=None))
        assert talk.tuner.calls == expected
        talk.tuner._accept_customized_trials()


def test_an_assessor_sees_results_without_a_gap_and_a_bad_trial_is_named(talk):
    talk("GE", 1)
    assert talk("ME", metric("PERIODICAL", 1, "2")) == [("_done_", "1")]
    assert talk.assessor.seen == []
    assert talk("ME", metric("PERIODICAL", 0, "1")) == [("_done_", "2")]
    assert talk("ME", metric("PERIODICAL", 2, "9")) == [("KI", '"abcde"'), ("_done_", "3")]
    assert talk("EN", end("EARLY_STOPPED")) == [("_done_", "4")]
    talk("ME", metric("PERIODICAL", 3, "9"))
    assert talk.assessor.seen == [[1, 2], [1, 2, 9], ("abcde", False)]


def test_imported_results_are_decoded(talk):
    talk("FD", [{"parameter": {"x": 1}, "value": "0.5"}, {"parameter": {"x": 2}, "value": {"default": 1}}])
    assert talk.tuner.calls[0][1] == [
        {"parameter": {"x": 1}, "value": 0.5},
        {"parameter": {"x": 2}, "value": {"default": 1}},
    ]


def test_an_assessor_that_returns_nothing_is_an_error(talk):
    talk.assessor.assess_trial = lambda *_: None
    with pytest.raises(TypeError, match="assess_trial returned None"):
        talk("ME", metric("PERIODICAL", 0, "1"))
    assert AssessResult(True) is AssessResult.Good


@pytest.mark.parametrize(
    ("section", "error", "message"),
    [
        ({"name": "SMAC"}, ValueError, "SMAC runs in Microsoft's nni==3.0 only"),
        ({"className": "Tuner"}, ValueError, "has no module"),
        ({"className": "json.JSONDecoder"}, TypeError, r"JSONDecoder has no method update_search_space"),
        ({"className": "no_such_module.X"}, ModuleNotFoundError, "no_such_module"),
        ({"className": "nni._dispatcher.X"}, AttributeError, r"_dispatcher\.py has no X; its .* Tuners: NoTuner$"),
    ],
)
def test_a_class_that_cannot_be_used_is_named(section, error, message):
    with pytest.raises(error, match=message):
        create_algorithm(section, Tuner)


class Duck:
    """An algorithm without NNI's base classes, and with only the methods that it needs."""

    def __init__(self):
        self.calls = []

    def update_search_space(self, search_space):
        self.calls.append(search_space)

    def generate_multiple_parameters(self, parameter_id_list, **kwargs):
        return [{"x": number} for number in parameter_id_list]

    def receive_trial_result(self, parameter_id, parameters, value, **kwargs):
        self.calls.append((parameters, value))

    def assess_trial(self, trial_job_id, trial_history):
        return AssessResult.Bad


def make_duck():
    return Duck()


@pytest.mark.parametrize("name", ["Duck", "make_duck"])
def test_an_algorithm_needs_no_base_class(name):
    section = {"className": f"{__name__}.{name}"}
    tuner, assessor = create_algorithm(section, Tuner), create_algorithm(section, Assessor)
    sent = []
    dispatcher = Dispatcher(tuner, assessor, lambda *message: sent.append(message))
    for kind, content in [
        ("IN", {}),
        ("FD", []),
        ("GE", 1),
        ("ME", metric("PERIODICAL", 0, "1")),
        ("ME", metric("FINAL", 0, "2")),
        ("ME", metric("FINAL", 0, "3", parameter_id=None)),
        ("EN", end("SUCCEEDED")),
    ]:
        dispatcher.handle(kind, content)
    assert tuner.calls == [{}, ({"x": 0}, 2)]
    assert [kind for kind, _ in sent] == ["ID", "TR", "KI", "_done_", "_done_"]


def test_without_a_manager_the_process_says_what_is_missing():
    surroundings = {**os.environ, "NNI_TUNER_COMMAND_CHANNEL": "ws://127.0.0.1:1/x/tuner"}
    command = [sys.executable, "-m", "nni", "--exp_params", "e30="]
    done = subprocess.run(command, capture_output=True, text=True, env=surroundings)
    assert done.returncode == 1
    assert "refused" in done.stderr
