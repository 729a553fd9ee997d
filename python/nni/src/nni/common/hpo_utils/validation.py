"""Checks of search spaces, for custom tuners. The manager checks the spaces of the built-in tuners itself."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any, Optional

__all__ = ["common_search_space_types", "validate_search_space"]

_logger = logging.getLogger("nni.common.hpo_utils")

#: The types of parameters that all tuners should support.
common_search_space_types = [
    "choice",
    "randint",
    "uniform",
    "quniform",
    "loguniform",
    "qloguniform",
    "normal",
    "qnormal",
    "lognormal",
    "qlognormal",
]


def validate_search_space(
    search_space: Any, support_types: Optional[Sequence[str]] = None, raise_exception: bool = False
) -> bool:
    """Returns whether a search space is valid. The reason of an invalid one is logged.

    :param support_types: the types of parameters that the tuner supports; NNI's common ones if absent.
    :param raise_exception: whether to raise the reason instead.
    :raises ValueError: if the space is invalid and ``raise_exception`` is set.
    """
    types = common_search_space_types if support_types is None else support_types
    try:
        if not isinstance(search_space, dict):
            raise ValueError(f"a search space is a dict, and this is {search_space!r}")
        for name, entry in search_space.items():
            problem = _problem_of(entry, types)
            if problem is not None:
                raise ValueError(f"search space {name!r}: {problem}: {entry!r}")
    except ValueError as error:
        if raise_exception:
            raise
        _logger.error("%s", error)
        return False
    return True


def _problem_of(entry: Any, types: Sequence[str]) -> Optional[str]:
    """Returns the problem with a parameter; ``None`` if it is valid."""
    if not isinstance(entry, dict) or "_type" not in entry or "_value" not in entry:
        return "expected a dict with `_type` and `_value`"
    kind, values = entry["_type"], entry["_value"]
    if kind not in types:
        return f"the type {kind!r} is not supported; supported: {', '.join(types)}"
    if not isinstance(values, list):
        return "`_value` is not a list"
    if kind == "choice":
        is_plain = all(isinstance(value, (float, int, str)) for value in values)
        is_nested = bool(values) and isinstance(values[0], dict) and "_name" in values[0]
        return None if is_plain or is_nested else "options are numbers, texts, or dicts with `_name`"
    count = 3 if kind.startswith("q") else 2
    if len(values) != count:
        return f"`_value` must have {count} numbers"
    numbers = int if kind == "randint" else (float, int)
    if not all(isinstance(value, numbers) for value in values):
        return f"`_value` must have only {'integers' if kind == 'randint' else 'numbers'}"
    if "normal" in kind:
        return None if values[1] > 0 else "sigma must be greater than 0"
    if values[0] >= values[1]:
        return "the low end must be less than the high end"
    return "the low end must be greater than 0" if "log" in kind and values[0] <= 0 else None
