"""The helpers that custom tuners import besides their base class."""

import pytest

from nni import ClassArgsValidator, parameter_expressions
from nni.utils import (
    OptimizeMode,
    convert_dict2tuple,
    extract_scalar_history,
    extract_scalar_reward,
    json2parameter,
    json2space,
    split_index,
)


class Halfway:
    """A random state that always draws the middle."""

    def uniform(self, low, high):
        return (low + high) / 2

    def normal(self, mu, sigma):
        return mu

    def randint(self, low, high=None):
        low, high = (0, low) if high is None else (low, high)
        return (low + high) // 2


@pytest.mark.parametrize(
    ("name", "value", "drawn"),
    [
        ("choice", [["a", "b", "c"]], "b"),
        ("randint", [0, 10], 5),
        ("uniform", [1, 2], 1.5),
        ("quniform", [0, 5, 1], 2.0),  # 2.5 is rounded half to even.
        ("quniform", [0.4, 0.6, 2], 0.4),
        ("loguniform", [0.01, 1], 0.1),
        ("qloguniform", [0.01, 1, 0.25], 0.01),
        ("normal", [3, 1], 3.0),
        ("qnormal", [3.3, 1, 0.5], 3.5),
        ("lognormal", [0, 1], 1.0),
        ("qlognormal", [0, 1, 0.3], 0.9),
    ],
)
def test_each_type_of_the_search_space_is_drawn(name, value, drawn):
    result = getattr(parameter_expressions, name)(*value, Halfway())
    assert result == (drawn if isinstance(drawn, str) else pytest.approx(drawn))


def test_numpys_random_state_draws():
    numpy = pytest.importorskip("numpy")
    random = numpy.random.RandomState(1)
    assert 0 <= parameter_expressions.uniform(0, 1, random) <= 1
    assert parameter_expressions.choice([{"a": 1}], random) == {"a": 1}


def test_the_number_of_a_result_is_found():
    assert extract_scalar_history([1, {"default": 0.5}]) == [1, 0.5]
    for value in ("1", {"loss": 1}, None, True):
        with pytest.raises(RuntimeError, match="default"):
            extract_scalar_reward(value)
    assert OptimizeMode("minimize") is OptimizeMode.Minimize


def test_a_tuner_of_nnis_kind_draws_parts_of_a_space():
    space = {
        "lr": {"_type": "uniform", "_value": [0, 1]},
        "layer": {
            "_type": "choice",
            "_value": [{"_name": "a"}, {"_name": "b", "n": {"_type": "randint", "_value": [0, 10]}}],
        },
    }
    names = json2space(space)
    inner = "root[layer]-choice[1][n]-randint"
    assert names == ["root[lr]-uniform", inner, "root[layer]-choice"]
    drawn = json2parameter(space, dict.fromkeys(names, True), Halfway())
    option = {"_name": "b", "n": 5}
    assert drawn == {"lr": 0.5, "layer": {"_index": 1, "_value": option}}
    assert split_index(drawn) == {"lr": 0.5, "layer": option}
    assert json2space(space, drawn) == names
    assert json2space(space, {"lr": 0, "layer": {"_index": 0, "_value": {"_name": "a"}}}) == [names[0], names[2]]
    drawn["lr"], drawn["layer"]["_value"]["n"] = 0.25, 7
    kept = json2parameter(space, {**dict.fromkeys(names, False), "root[lr]-uniform": True}, Halfway(), drawn)
    assert kept == {"lr": 0.5, "layer": drawn["layer"]}
    assert convert_dict2tuple({"b": {"c": 1}, "a": 2}) == (("a", 2), ("b", (("c", 1),)))
    with pytest.raises(RuntimeError, match="_name"):
        json2space({"x": {"_type": "choice", "_value": [{"n": 1}]}})


def test_arguments_are_checked():
    validator = ClassArgsValidator()
    assert validator.range("n", int, 1, 3)(2) == 2
    with pytest.raises(ValueError, match="n should be of the type int and from 1 to 3, and is 4"):
        validator.range("n", int, 1, 3)(4)
    with pytest.raises(ValueError, match="mode should be one of"):
        validator.choices("mode", "a", "b")("c")
    with pytest.raises(ValueError, match="a path that exists"):
        validator.path("p")("/no/such/path")
