"""Durations, sizes and numbers of GPUs as NNI's users write them."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any, Optional, Union

__all__ = [
    "PathLike",
    "canonical_gpu_indices",
    "is_missing",
    "parse_memory_size",
    "parse_time",
    "validate_gpu_indices",
]

PathLike = Union[Path, str]

_SECONDS = {"d": 86400, "h": 3600, "m": 60, "s": 1}
_BYTES = {"tb": 1024**4, "gb": 1024**3, "mb": 1024**2, "kb": 1024, "b": 1}


def is_missing(value: Any) -> bool:
    """Returns whether a field was never set. Here, such a field is ``None``."""
    return value is None


def canonical_gpu_indices(indices: Union[list[int], int, str, None]) -> Optional[list[int]]:
    """Returns the indices in ``"0,2"``, or of one GPU, as a list."""
    if isinstance(indices, str):
        return [int(index) for index in indices.split(",")]
    return [indices] if isinstance(indices, int) else indices


def validate_gpu_indices(indices: Optional[list[int]]) -> None:
    """Checks a list of indices.

    :raises ValueError: if an index is repeated or negative.
    """
    given = indices or []
    if len(set(given)) < len(given) or any(index < 0 for index in given):
        raise ValueError(f"GPU indices must be different and at least 0: {indices}")


def parse_time(value: Union[str, int]) -> int:
    """Returns a duration such as ``90m`` in seconds. A number is unchanged."""
    return _parsed(value, _SECONDS, 1)


def parse_memory_size(value: Union[str, int]) -> int:
    """Returns a size such as ``4gb`` in megabytes. A number is unchanged."""
    return _parsed(value, _BYTES, _BYTES["mb"])


def _parsed(value: Union[str, int], units: dict[str, int], unit: int) -> int:
    if not isinstance(value, str):
        return value
    text = value.lower()
    for name, factor in units.items():
        if text.endswith(name):
            return math.ceil(float(text.removesuffix(name)) * factor / unit)
    raise ValueError(f"{value!r} has no unit; the units are {', '.join(units)}")
