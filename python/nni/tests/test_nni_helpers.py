"""The helpers that custom tuners import besides their base class."""

import pytest

from nni import ClassArgsValidator, parameter_expressions
from nni.utils import OptimizeMode, extract_scalar_history, extract_scalar_reward


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


def test_arguments_are_checked():
    validator = ClassArgsValidator()
    assert validator.range("n", int, 1, 3)(2) == 2
    with pytest.raises(ValueError, match="n should be of the type int and from 1 to 3, and is 4"):
        validator.range("n", int, 1, 3)(4)
    with pytest.raises(ValueError, match="mode should be one of"):
        validator.choices("mode", "a", "b")("c")
    with pytest.raises(ValueError, match="a path that exists"):
        validator.path("p")("/no/such/path")
