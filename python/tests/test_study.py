"""Ask and tell, with the real tuners."""

import json
import math

import pytest

import trialkeeper as tk

SPACE = {"x": {"_type": "uniform", "_value": [0, 10]}}


def search(study, count):
    for _ in range(count):
        suggestion = study.ask()
        study.tell(suggestion, (suggestion.parameters["x"] - 3) ** 2)


def numbers(study):
    return [trial.parameters["x"] for trial in study.trials]


def test_a_loop_of_the_users_own_is_driven_to_the_minimum():
    with tk.Study(SPACE, direction="minimize", seed=1) as study:
        search(study, 40)
        assert abs(study.best.parameters["x"] - 3) < 0.5
        assert study.best.value == min(trial.value for trial in study.trials)
        assert [trial.number for trial in study.trials] == list(range(40))
    with tk.Study(SPACE, direction="maximize", seed=1) as study:
        search(study, 40)
        assert study.best.value == max(trial.value for trial in study.trials)
        assert study.best.parameters["x"] > 8


def test_equal_seeds_make_equal_searches_and_others_do_not():
    found = []
    for seed in (1, 1, 2):
        with tk.Study(SPACE, seed=seed) as study:
            search(study, 25)
            found.append(numbers(study))
    assert found[0] == found[1] != found[2]


def test_suggestions_may_be_told_in_any_order_or_fail():
    with tk.Study(SPACE, tuner="Random", seed=1) as study:
        first, second, third = study.ask(), study.ask(), study.ask()
        assert study.open == [first, second, third]
        assert study.tell(third, 3).state == "SUCCEEDED"
        assert study.tell(first.number, failed=True).state == "FAILED"
        assert study.tell(second, math.nan).value is None
        assert study.open == []
        assert study.best.number == 2
        for wrong, message in [(third, "already has a result"), (7, "does not belong to this study")]:
            with pytest.raises(ValueError, match=message):
                study.tell(wrong, 1)
        with pytest.raises(ValueError, match="either a value or failed"):
            study.tell(study.ask())


def test_a_study_of_a_file_goes_on_as_if_it_had_not_been_interrupted(tmp_path):
    file = tmp_path / "study.jsonl"
    with tk.Study(SPACE, seed=5) as whole:
        search(whole, 30)
        with tk.Study(SPACE, path=file, seed=5) as study:
            search(study, 20)
        # The process was killed during a write.
        with open(file, "a") as kept:
            kept.write('{"type": "lau')
        with tk.Study(SPACE, path=file) as study:
            assert len(study.trials) == 20
            search(study, 10)
            assert numbers(study) == numbers(whole)
            last = study.ask()
        with tk.Study(SPACE, path=file) as study:
            assert study.open == [last]
            study.tell(last, 1)


def interrupt_once(study, name, is_done):
    """Raises Ctrl-C before or after a method of the study."""
    method = getattr(study, name)

    def interrupted(*arguments):
        delattr(study, name)
        if is_done:
            method(*arguments)
        raise KeyboardInterrupt

    setattr(study, name, interrupted)


@pytest.mark.parametrize("file", [None, "study.jsonl"])
@pytest.mark.parametrize(("name", "is_done"), [("_send", False), ("_send", True), ("_keep", False)])
def test_an_interrupted_ask_may_be_asked_again(tmp_path, file, name, is_done):
    """The request was sent. Its response must not count as the response to the next request."""
    with tk.Study(SPACE, seed=5) as whole, tk.Study(SPACE, seed=5, path=file and tmp_path / file) as study:
        search(whole, 30)
        search(study, 25)
        interrupt_once(study, name, is_done)
        with pytest.raises(KeyboardInterrupt):
            study.ask()
        search(study, 5)
        assert numbers(study) == numbers(whole)
        assert [trial.number for trial in study.trials] == list(range(30))


@pytest.mark.parametrize("file", [None, "study.jsonl"])
@pytest.mark.parametrize(("name", "is_done"), [("_keep", True), ("_launch", False), ("_launch", True)])
def test_an_ask_that_is_interrupted_late_leaves_an_open_suggestion(tmp_path, file, name, is_done):
    path = file and tmp_path / file
    with tk.Study(SPACE, seed=5, path=path) as study:
        search(study, 3)
        interrupt_once(study, name, is_done)
        with pytest.raises(KeyboardInterrupt):
            study.ask()
        assert study.ask().number == 4
        (lost, last) = study.open
        assert (lost.number, last.number) == (3, 4)
        assert study.tell(lost, 1).state == "SUCCEEDED"
        trials = study.trials
    if path:
        with tk.Study(SPACE, path=path) as study:
            assert study.trials == trials


@pytest.mark.parametrize("file", [None, "study.jsonl"])
@pytest.mark.parametrize(
    ("name", "is_done", "value"), [("_send", True, 2), ("_keep", False, 2), ("_keep", True, 1), ("_end", False, 1)]
)
def test_an_interrupted_tell_is_done_once(tmp_path, file, name, is_done, value):
    path = file and tmp_path / file
    with tk.Study(SPACE, seed=5, path=path) as study:
        suggestion = study.ask()
        interrupt_once(study, name, is_done)
        with pytest.raises(KeyboardInterrupt):
            study.tell(suggestion, 1)
        try:
            study.tell(suggestion, 2)
        except ValueError as error:
            assert "already has a result" in str(error)
        (trial,) = study.trials
        assert trial.value == value
    if path:
        with tk.Study(SPACE, path=path) as study:
            assert study.trials == [trial]


def test_a_program_that_dies_is_replaced_by_the_next_question():
    with tk.Study(SPACE, seed=5) as whole, tk.Study(SPACE, seed=5) as study:
        search(whole, 30)
        search(study, 25)
        study._process.kill()
        with pytest.raises(tk.ManagerError):
            study.ask()
        search(study, 5)
        assert numbers(study) == numbers(whole)


def test_a_file_of_another_study_or_of_none_is_refused(tmp_path):
    file = tmp_path / "study.jsonl"
    with tk.Study(SPACE, path=file):
        with pytest.raises(tk.ConfigurationError, match="another study has the file open"):
            tk.Study(SPACE, path=file)
    with pytest.raises(tk.ConfigurationError, match="its tuner is 'TPE', not 'Random'"):
        tk.Study(SPACE, path=file, tuner="Random")
    for content in ["text\n", "text", "[1]\n", '{"type": 1}\n', '{"type": "launched"}\n', "[" * 100_000 + "\n"]:
        file.write_text(content)
        with pytest.raises(tk.ConfigurationError, match="not a study's file"):
            tk.Study(SPACE, path=file)


def test_results_from_elsewhere_are_learnt(tmp_path):
    file = tmp_path / "study.jsonl"
    with tk.Study(SPACE, path=file) as study:
        study.add({"x": 3.1}, 0.01)
        with pytest.raises(ValueError, match=r"x"):
            study.add({"x": 30}, 0.01)
        assert study.best.number is None and study.best.value == 0.01
        assert study.ask().number == 0
    with tk.Study(SPACE, path=file) as study:
        assert [trial.number for trial in study.trials] == [None, 0]


def test_a_space_that_is_used_up_says_so():
    with tk.Study({"x": {"_type": "choice", "_value": [1, 2]}}, tuner="GridSearch") as study:
        assert {study.ask().parameters["x"], study.ask().parameters["x"]} == {1, 2}
        with pytest.raises(tk.NoSuggestion) as nothing:
            study.ask()
        assert nothing.value.is_final


def test_a_tuner_that_waits_says_what_for():
    with tk.Study(SPACE, tuner="Hyperband", class_args={"R": 4, "eta": 2, "exec_mode": "serial"}) as study:
        waiting = []
        with pytest.raises(tk.NoSuggestion, match="waits for results") as nothing:
            while True:
                waiting.append(study.ask())
        assert not nothing.value.is_final
        for suggestion in waiting:
            assert suggestion.parameters["TRIAL_BUDGET"]
            study.tell(suggestion, 1)
        study.ask()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"space": {"x": {"_type": "unifrom", "_value": [0, 1]}}}, "search_space.x"),
        ({"tuner": "TPEE"}, "TPE"),
        ({"class_args": {"sede": 1}}, "sede"),
        ({"direction": "up"}, "direction"),
    ],
)
def test_what_is_wrong_is_named(arguments, message):
    with pytest.raises(tk.ConfigurationError, match=message):
        tk.Study(**{"space": SPACE, **arguments})


def test_a_closed_study_says_so(tmp_path):
    study = tk.Study(SPACE, path=tmp_path / "study.jsonl")
    study.close()
    study.close()
    with pytest.raises(tk.ManagerError, match="the study is closed"):
        study.ask()


def test_the_table_has_a_row_for_each_trial():
    pytest.importorskip("pandas")
    with tk.Study(SPACE) as study:
        search(study, 3)
        assert list(study.to_pandas().columns) == ["number", "state", "value", "params_x"]


def test_infinite_results_are_kept(tmp_path):
    file = tmp_path / "study.jsonl"
    with tk.Study(SPACE, path=file) as study:
        study.tell(study.ask(), math.inf)
    for line in file.read_text().splitlines():
        json.loads(line, parse_constant=pytest.fail)
    with tk.Study(SPACE, path=file) as study:
        assert study.trials[0].value == math.inf
