"""The helpers of custom tuners: checks and the flat form of search spaces."""

import copy
import math

import pytest

import nni
from nni.common.hpo_utils import (
    Deduplicator,
    deformat_parameters,
    format_parameters,
    format_search_space,
    validate_search_space,
)

SPACE = {
    "plain": {"_type": "choice", "_value": ["a", "b", 3]},
    "count": {"_type": "randint", "_value": [2, 6]},
    "rate": {"_type": "loguniform", "_value": [0.001, 1]},
    "step": {"_type": "quniform", "_value": [0, 1, 0.25]},
    "noise": {"_type": "qnormal", "_value": [5, 1, 2]},
    "net": {
        "_type": "choice",
        "_value": [
            {"_name": "none"},
            {
                "_name": "deep",
                "size": {"_type": "randint", "_value": [1, 4]},
                "inner": {
                    "_type": "choice",
                    "_value": [{"_name": "x", "z": {"_type": "uniform", "_value": [0, 1]}}],
                },
            },
        ],
    },
}


def test_a_space_is_flat_and_ordered():
    space = format_search_space(SPACE)
    assert list(space) == [
        ("plain",),
        ("count",),
        ("rate",),
        ("step",),
        ("noise",),
        ("net",),
        ("net", 1, "size"),
        ("net", 1, "inner"),
        ("net", 1, "inner", 0, "z"),
    ]
    assert (space["plain",].categorical, space["plain",].size, space["count",].size) == (True, 3, 4)
    rate = space["rate",]
    assert (rate.low, rate.high, rate.log_distributed, rate.q) == (math.log(0.001), 0, True, None)
    step = space["step",]
    assert (step.low, step.high, step.q, step.clip) == (0, 1, 0.25, (0, 1))
    noise = space["noise",]
    assert (noise.normal_distributed, noise.mu, noise.sigma, noise.clip) == (True, 5, 1, None)
    size = space["net", 1, "size"]
    assert size.is_nested() and size.is_activated_in({("net",): 1}) and not size.is_activated_in({("net",): 0})


@pytest.mark.parametrize(
    ("flat", "parameters"),
    [
        (
            {
                ("plain",): 2,
                ("count",): 3,
                ("rate",): math.log(0.1),
                ("step",): 0.6,
                ("noise",): 6.9,
                ("net",): 1,
                ("net", 1, "size"): 0,
                ("net", 1, "inner"): 0,
                ("net", 1, "inner", 0, "z"): 0.5,
            },
            {
                "plain": 3,
                "count": 5,
                "rate": pytest.approx(0.1),
                "step": 0.5,
                "noise": 6,
                "net": {"_name": "deep", "size": 1, "inner": {"_name": "x", "z": 0.5}},
            },
        ),
        (
            {("plain",): 0, ("count",): 0, ("rate",): 0, ("step",): 9, ("noise",): -3.1, ("net",): 0},
            {"plain": "a", "count": 2, "rate": 1, "step": 1, "noise": -4, "net": {"_name": "none"}},
        ),
    ],
)
def test_flat_parameters_are_those_of_a_trial(flat, parameters):
    space = format_search_space(SPACE)
    made = deformat_parameters(flat, space)
    assert made == parameters
    again = format_parameters(made, space)
    assert deformat_parameters(again, space) == made
    assert set(again) == set(flat)


@pytest.mark.parametrize(
    ("space", "problem"),
    [
        (SPACE, None),
        ({}, None),
        ([1], "a search space is a dict"),
        ({"x": 3}, "expected a dict with `_type` and `_value`"),
        ({"x": {"_type": "choice"}}, "expected a dict with `_type` and `_value`"),
        ({"x": {"_type": "float", "_value": [0, 1]}}, "the type 'float' is not supported"),
        ({"x": {"_type": "uniform", "_value": (0, 1)}}, "`_value` is not a list"),
        ({"x": {"_type": "choice", "_value": [[1]]}}, "options are numbers, texts, or dicts with `_name`"),
        ({"x": {"_type": "quniform", "_value": [0, 1]}}, "must have 3 numbers"),
        ({"x": {"_type": "uniform", "_value": [0, 1, 2]}}, "must have 2 numbers"),
        ({"x": {"_type": "uniform", "_value": ["0", 1]}}, "must have only numbers"),
        ({"x": {"_type": "randint", "_value": [0, 1.5]}}, "must have only integers"),
        ({"x": {"_type": "uniform", "_value": [1, 1]}}, "must be less than the high end"),
        ({"x": {"_type": "loguniform", "_value": [0, 1]}}, "must be greater than 0"),
        ({"x": {"_type": "normal", "_value": [0, 0]}}, "sigma must be greater than 0"),
    ],
)
def test_a_space_is_checked(space, problem, caplog):
    assert validate_search_space(space) is (problem is None)
    assert problem is None or problem in caplog.text
    if problem is not None:
        with pytest.raises(ValueError, match="search space"):
            validate_search_space(space, raise_exception=True)


def test_the_supported_types_can_be_named():
    space = {"x": {"_type": "choice", "_value": [1]}}
    assert validate_search_space(space, ["choice"]) and not validate_search_space(space, ["uniform"])


def test_equal_proposals_are_replaced_until_none_is_left():
    space = {"a": {"_type": "choice", "_value": [1, 2]}, "b": {"_type": "quniform", "_value": [0, 1, 0.25]}}
    formatted = format_search_space(space)
    once = Deduplicator(formatted)
    once.add_history({("a",): 1, ("b",): 0.0})
    found = [deformat_parameters(once({("a",): 0, ("b",): 0.1}), formatted) for _ in range(9)]
    assert sorted((point["a"], point["b"]) for point in found) == sorted(
        (a, b) for a in (1, 2) for b in (0, 0.25, 0.5, 0.75, 1) if (a, b) != (2, 0)
    )
    with pytest.raises(nni.NoMoreTrialError):
        once({("a",): 0, ("b",): 0.1})


def test_equal_proposals_of_nested_choices_are_replaced():
    space = copy.deepcopy({"net": SPACE["net"], "plain": SPACE["plain"]})
    del space["net"]["_value"][1]["inner"]
    formatted = format_search_space(space)
    once = Deduplicator(formatted)
    found = [str(deformat_parameters(once({("net",): 0, ("plain",): 0}), formatted)) for _ in range(12)]
    assert len(set(found)) == 12
    with pytest.raises(nni.NoMoreTrialError):
        once({("net",): 0, ("plain",): 0})


def test_values_from_a_range_of_real_numbers_are_never_equal():
    formatted = format_search_space({"x": {"_type": "uniform", "_value": [0, 1]}})
    once = Deduplicator(formatted)
    assert [once({("x",): 0.5}) for _ in range(2)] == [{("x",): 0.5}] * 2
