"""Converts the values of a trial for other tools."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from trialkeeper.results import Metric

__all__ = ["flat", "numbers", "texts"]


def flat(parameters: Mapping[str, Any], before: str = "") -> dict[str, Any]:
    """Flattens parameters. Those of a nested choice get names such as ``optimizer.lr``."""
    found: dict[str, Any] = {}
    for name, value in parameters.items():
        if isinstance(value, Mapping):
            found.update(flat(value, f"{before}{name}."))
        else:
            found[f"{before}{name}"] = value
    return found


def texts(parameters: Mapping[str, Any]) -> dict[str, str]:
    """Returns parameters as strings."""
    return {
        name: value if isinstance(value, str) else json.dumps(value) for name, value in flat(parameters).items()
    }


def numbers(metric: Metric) -> dict[str, float]:
    """Returns the numbers of a metric: one number, or the members of an object that NNI's SDK reported."""
    value = metric.value
    if not isinstance(value, Mapping):
        value = {metric.name: value}
    # Of an object's members, `default` is the metric itself.
    named = {metric.name if name == "default" else str(name): number for name, number in value.items()}
    return {name: float(number) for name, number in named.items() if isinstance(number, (int, float))}
