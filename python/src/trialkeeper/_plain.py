"""Converts values of configurations into those that JSON has."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from trialkeeper.errors import ConfigurationError

__all__ = ["plain"]


def plain(value: Any, place: str = "") -> Any:
    """Returns a value as JSON gives it back: tuples, ranges and arrays become lists, paths become text.

    NumPy's scalars become numbers, and durations seconds with the unit ``s``.

    :param place: the path of the value, for the message.
    :raises ConfigurationError: if JSON has no such value. The message names its place.
    """
    if value is None or isinstance(value, (bool, str)):
        return value
    if type(value) in (int, float):
        return _finite(value, place)
    if isinstance(value, Mapping):
        inner = f"{place}." if place else ""
        return {_name(name, place): plain(item, f"{inner}{name}") for name, item in value.items()}
    if isinstance(value, (list, tuple, range)):
        return [plain(item, f"{place}[{index}]") for index, item in enumerate(value)]
    if isinstance(value, os.PathLike):
        return os.fsdecode(value)
    if isinstance(value, timedelta):
        return f"{math.ceil(value.total_seconds())}s"
    # NumPy's scalars and arrays, and those of other libraries.
    if callable(getattr(value, "tolist", None)):
        return plain(value.tolist(), place)
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        return _finite(float(value), place)
    raise ConfigurationError(f"{place}: a {type(value).__name__} cannot be used here: {value!r:.80}")


def _name(name: Any, place: str) -> str:
    if isinstance(name, (str, int)) and not isinstance(name, bool):
        return str(name)
    where = f"{place}: " if place else ""
    raise ConfigurationError(f"{where}the name {name!r:.80} is a {type(name).__name__}, not text")


def _finite(value: float, place: str) -> float:
    if math.isfinite(value):
        return value
    raise ConfigurationError(f"{place}: the number {value} is not finite")
