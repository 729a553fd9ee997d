"""NNI's helpers for trials, tuners and assessors."""

from __future__ import annotations

import os
from enum import Enum
from typing import Any, Optional, TypeVar

__all__ = [
    "ClassArgsValidator",
    "MetricType",
    "OptimizeMode",
    "extract_scalar_history",
    "extract_scalar_reward",
    "merge_parameter",
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
    """Sets the members of ``base_params``, a ``dict`` or a namespace, to the trial's parameters, and returns it.

    :raises ValueError: if a parameter has no counterpart, or one of another type.
    """
    if override_params is None:
        return base_params
    members = base_params if isinstance(base_params, dict) else vars(base_params)
    for name, value in override_params.items():
        if name not in members:
            raise ValueError(f"the parameter {name!r} is not among the base parameters: {', '.join(members)}")
        base = members[name]
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
