"""Values of spaces and fields that JSON does not have."""

import os
from datetime import timedelta
from pathlib import Path

import pytest

import trialkeeper as tk
from trialkeeper._plain import plain


class Scalar:
    """A scalar or array of another library, such as NumPy's."""

    def __init__(self, value):
        self.value = value

    def tolist(self):
        return self.value


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ((1, 2), [1, 2]),
        (range(3), [0, 1, 2]),
        ({"a": ({"b": (True, None)},)}, {"a": [{"b": [True, None]}]}),
        (Path("/a/b"), "/a/b"),
        (timedelta(hours=1), "3600s"),
        (Scalar(2.5), 2.5),
        (Scalar([1, 2]), [1, 2]),
        ({1: "a"}, {"1": "a"}),
    ],
)
def test_values_become_those_of_json(value, expected):
    assert plain(value) == expected


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ({"a": [1, {2, 3}]}, r"a\[1\]: a set cannot be used here"),
        ({"a": {"b": float("nan")}}, r"a\.b: the number nan is not finite"),
        ({"a": {(1, 2): 3}}, r"a: the name \(1, 2\) is a tuple"),
        ({"a": object}, "a: a type cannot be used here"),
    ],
)
def test_other_values_are_refused_with_their_place(value, message):
    with pytest.raises(tk.ConfigurationError, match=message):
        plain(value)


def test_a_study_with_tuples_and_arrays_is_opened_again(tmp_path):
    space = {"x": {"_type": "choice", "_value": (1, 2)}, "y": {"_type": "uniform", "_value": Scalar([0, 1])}}
    for _ in range(2):
        with tk.Study(space, path=tmp_path / "study.jsonl", class_args={"seed": Scalar(5)}) as study:
            study.tell(study.ask(), 1)
    assert len(study.trials) == 2


@pytest.mark.parametrize("seed", ["a", -1, 1.5, True])
def test_a_seed_that_is_none_is_refused(seed):
    with pytest.raises(tk.ConfigurationError, match="seed: expected a whole number"):
        tk.Study({"x": {"_type": "uniform", "_value": [0, 1]}}, seed=seed)


def test_a_forked_child_cannot_use_its_parents_study():
    with tk.Study({"x": {"_type": "uniform", "_value": [0, 1]}}) as study:
        child = os.fork()
        if child == 0:
            try:
                study.ask()
            except tk.ManagerError as error:
                os._exit(7 if "forked child" in str(error) else 1)
            os._exit(2)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
        assert study.tell(study.ask().number, 1).value == 1
