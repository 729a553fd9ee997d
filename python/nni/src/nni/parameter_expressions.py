"""Random draws for each type of a search space, for custom tuners.

Each function takes the members of ``_value`` and a random state of NumPy (``numpy.random.RandomState``).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

__all__ = [
    "choice",
    "lognormal",
    "loguniform",
    "normal",
    "qlognormal",
    "qloguniform",
    "qnormal",
    "quniform",
    "randint",
    "uniform",
]


def choice(options: Sequence[Any], random_state: Any) -> Any:
    """Returns an option."""
    return options[int(random_state.randint(len(options)))]


def randint(lower: int, upper: int, random_state: Any) -> int:
    """Returns an integer from ``lower`` to ``upper`` - 1."""
    return int(random_state.randint(lower, upper))


def uniform(low: float, high: float, random_state: Any) -> float:
    """Returns a number between ``low`` and ``high``."""
    return float(random_state.uniform(low, high))


def quniform(low: float, high: float, q: float, random_state: Any) -> float:
    """Returns a multiple of ``q``, clipped to the range from ``low`` to ``high``."""
    return min(max(_rounded(uniform(low, high, random_state), q), low), high)


def loguniform(low: float, high: float, random_state: Any) -> float:
    """Returns a number between ``low`` and ``high`` whose logarithm is uniform."""
    return math.exp(uniform(math.log(low), math.log(high), random_state))


def qloguniform(low: float, high: float, q: float, random_state: Any) -> float:
    """Returns :func:`loguniform` rounded to a multiple of ``q``, clipped to the range from ``low`` to ``high``."""
    return min(max(_rounded(loguniform(low, high, random_state), q), low), high)


def normal(mu: float, sigma: float, random_state: Any) -> float:
    """Returns a normally distributed number."""
    return float(random_state.normal(mu, sigma))


def qnormal(mu: float, sigma: float, q: float, random_state: Any) -> float:
    """Returns :func:`normal` rounded to a multiple of ``q``."""
    return _rounded(normal(mu, sigma, random_state), q)


def lognormal(mu: float, sigma: float, random_state: Any) -> float:
    """Returns a number whose logarithm is normally distributed."""
    return math.exp(normal(mu, sigma, random_state))


def qlognormal(mu: float, sigma: float, q: float, random_state: Any) -> float:
    """Returns :func:`lognormal` rounded to a multiple of ``q``."""
    return _rounded(lognormal(mu, sigma, random_state), q)


def _rounded(value: float, q: float) -> float:
    # Rounds half to even, as the manager does.
    return round(value / q) * q
