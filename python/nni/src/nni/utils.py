"""NNI's helpers for trials, tuners and assessors."""

from __future__ import annotations

import copy
import os
from collections.abc import Iterator
from enum import Enum
from typing import Any, Optional, TypeVar

from nni import parameter_expressions

__all__ = [
    "ClassArgsValidator",
    "MetricType",
    "NodeType",
    "OptimizeMode",
    "convert_dict2tuple",
    "extract_scalar_history",
    "extract_scalar_reward",
    "json2parameter",
    "json2space",
    "merge_parameter",
    "split_index",
]

_Parameters = TypeVar("_Parameters")


class OptimizeMode(Enum):
    """The direction of the search."""

    Minimize = "minimize"
    Maximize = "maximize"


class MetricType:
    """The kinds of messages that a trial sends."""

    PERIODICAL = "PERIODICAL"
    FINAL = "FINAL"
    REQUEST_PARAMETER = "REQUEST_PARAMETER"


class NodeType:
    """The keys of search spaces, and the name of their root."""

    ROOT = "root"
    TYPE = "_type"
    VALUE = "_value"
    INDEX = "_index"
    NAME = "_name"


def split_index(params: Any) -> Any:
    """Returns parameters of :func:`json2parameter` as a trial gets them: options without their indices."""
    if not isinstance(params, dict):
        return params
    if NodeType.INDEX in params:
        return split_index(params[NodeType.VALUE])
    return {name: split_index(value) for name, value in params.items()}


def convert_dict2tuple(value: Any) -> Any:
    """Returns a hashable form of parameters."""
    if not isinstance(value, dict):
        return value
    return tuple(sorted((name, convert_dict2tuple(member)) for name, member in value.items()))


def _children(space: Any, name: str) -> Iterator[tuple[Any, Any, str]]:
    """Yields the key, the space and the name of each part of a space or of a list of options."""
    if isinstance(space, dict):
        for key, part in space.items():
            yield key, part, f"{name}[{key}]"
    elif isinstance(space, list):
        for index, option in enumerate(space):
            if isinstance(option, dict) and NodeType.NAME not in option:
                raise RuntimeError(f"the option {option!r} of a nested search space has no {NodeType.NAME!r}")
            yield index, option, f"{name}[{index}]"


def _is_parameter(space: Any) -> bool:
    return isinstance(space, dict) and NodeType.TYPE in space


def json2space(x: Any, oldy: Any = None, name: str = NodeType.ROOT) -> list[str]:
    """Returns the names of the parameters of a search space, or of those that the parameters ``oldy`` contain."""
    if not _is_parameter(x):
        parts = [json2space(part, oldy[key] if oldy else None, path) for key, part, path in _children(x, name)]
        return [found for part in parts for found in part]
    name = f"{name}-{x[NodeType.TYPE]}"
    if x[NodeType.TYPE] != "choice":
        return [name]
    if oldy is None:
        return [*json2space(x[NodeType.VALUE], None, name), name]
    index = oldy[NodeType.INDEX]
    return [*json2space(x[NodeType.VALUE][index], oldy[NodeType.VALUE], f"{name}[{index}]"), name]


def json2parameter(
    x: Any,
    is_rand: dict[str, bool],
    random_state: Any,
    oldy: Any = None,
    Rand: bool = False,  # noqa: N803
    name: str = NodeType.ROOT,
) -> Any:
    """Draws the parameters whose names are true in ``is_rand``, and takes the others from ``oldy``."""
    if not _is_parameter(x):
        if not isinstance(x, (dict, list)):
            return copy.deepcopy(x)
        drawn = {
            key: json2parameter(part, is_rand, random_state, oldy[key] if oldy else None, Rand, path)
            for key, part, path in _children(x, name)
        }
        return drawn if isinstance(x, dict) else list(drawn.values())
    kind, value = x[NodeType.TYPE], x[NodeType.VALUE]
    name = f"{name}-{kind}"
    if not (Rand or is_rand[name]):
        return copy.deepcopy(oldy)
    if kind != "choice":
        return getattr(parameter_expressions, kind)(*value, random_state)
    index = int(random_state.randint(len(value)))
    option = json2parameter(value[index], is_rand, random_state, None, True, f"{name}[{index}]")
    return {NodeType.INDEX: index, NodeType.VALUE: option}


def extract_scalar_reward(value: Any, scalar_key: str = "default") -> float:
    """Returns the number of a result: the result itself, or a mapping's member ``scalar_key``.

    :raises RuntimeError: if there is no number.
    """
    number = value.get(scalar_key) if isinstance(value, dict) else value
    if isinstance(number, bool) or not isinstance(number, (int, float)):
        raise RuntimeError(f"a result must be a number, or an object with the number {scalar_key!r}: {value!r}")
    return number


def extract_scalar_history(trial_history: list[Any], scalar_key: str = "default") -> list[float]:
    """Returns the numbers in the results of a trial."""
    return [extract_scalar_reward(value, scalar_key) for value in trial_history]


def merge_parameter(base_params: _Parameters, override_params: Optional[dict[str, Any]]) -> _Parameters:
    """Sets the members of ``base_params``, a ``dict`` or an object, to the trial's parameters, and returns it.

    :raises ValueError: if a parameter has no counterpart, or one of another type.
    """
    if override_params is None:
        return base_params
    for name, value in override_params.items():
        if not (name in base_params if isinstance(base_params, dict) else hasattr(base_params, name)):
            members: Any = base_params if isinstance(base_params, dict) else vars(base_params)
            known = ", ".join(key for key in members if not key.startswith("_"))
            raise ValueError(f"the parameter {name!r} is not among the base parameters: {known}")
        base = base_params[name] if isinstance(base_params, dict) else getattr(base_params, name)
        if isinstance(base, float) and isinstance(value, int):
            value = float(value)
        if base is not None and not isinstance(value, type(base)):
            raise ValueError(
                f"the parameter {name!r} should be of the type {type(base).__name__}, and is {value!r} "
                f"({type(value).__name__})"
            )
        if isinstance(base_params, dict):
            base_params[name] = value
        else:
            setattr(base_params, name, value)
    return base_params


class ClassArgsValidator:
    """The base class of NNI's checks of a tuner's arguments. TrialKeeper does not call them."""

    def validate_class_args(self, **kwargs: Any) -> None:
        """Raises if the arguments of a tuner or an assessor are wrong."""

    def choices(self, key: str, *args: Any) -> Any:
        """Returns a function that accepts the values in ``args``."""
        return _check(lambda value: value in args, f"{key} should be one of {args}")

    def range(self, key: str, keyType: type, start: Any, end: Any) -> Any:  # noqa: N803
        """Returns a function that accepts values of a type from ``start`` to ``end``."""
        return _check(
            lambda value: isinstance(value, keyType) and start <= value <= end,
            f"{key} should be of the type {keyType.__name__} and from {start} to {end}",
        )

    def path(self, key: str) -> Any:
        """Returns a function that accepts paths that exist."""
        return _check(lambda value: os.path.exists(value), f"{key} should be a path that exists")


def _check(accepts: Any, message: str) -> Any:
    def check(value: Any) -> Any:
        if not accepts(value):
            raise ValueError(f"{message}, and is {value!r}")
        return value

    return check
