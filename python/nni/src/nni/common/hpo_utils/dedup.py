"""A helper of custom tuners that never propose the same parameters twice."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from typing import Any

from nni import NoMoreTrialError
from nni.common.hpo_utils.formatting import (
    FormattedParameters,
    FormattedSearchSpace,
    ParameterSpec,
    deformat_parameters,
)

__all__ = ["Deduplicator"]


class Deduplicator:
    """Returns the parameters that it is called with, or others if it has returned equal ones before.

    The others are those of a grid, which is finer with each pass over the space. The order differs from NNI's.

    :param formatted_search_space: the space, from :func:`nni.common.hpo_utils.format_search_space`.
    """

    def __init__(self, formatted_search_space: FormattedSearchSpace) -> None:
        self._space = formatted_search_space
        self._is_unique = any(_is_continuous(spec) for spec in formatted_search_space.values())
        self._history: set[str] = set()
        self._grid = self._points()

    def __call__(self, formatted_parameters: FormattedParameters) -> FormattedParameters:
        """Returns parameters that were not returned before.

        :raises nni.NoMoreTrialError: if there are none.
        """
        if self._is_unique or self._is_new(formatted_parameters):
            return formatted_parameters
        for point in self._grid:
            if self._is_new(point):
                return point
        raise NoMoreTrialError

    def add_history(self, formatted_parameters: FormattedParameters) -> None:
        """Makes parameters count as returned."""
        self._is_new(formatted_parameters)

    def _is_new(self, parameters: FormattedParameters) -> bool:
        text = json.dumps(deformat_parameters(parameters, self._space), sort_keys=True, default=str)
        is_new = text not in self._history
        self._history.add(text)
        return is_new

    def _points(self) -> Iterator[FormattedParameters]:
        """Yields the points of finer and finer grids, until a grid has no point that the one before lacks."""
        seen = -1
        for depth in range(1, 64):
            found = set()
            for point in self._grid_of({}, list(self._space.values()), depth):
                found.add(json.dumps(deformat_parameters(point, self._space), sort_keys=True, default=str))
                yield point
            if len(found) == seen:
                return
            seen = len(found)

    def _grid_of(
        self, chosen: FormattedParameters, rest: list[ParameterSpec], depth: int
    ) -> Iterator[FormattedParameters]:
        if not rest:
            yield dict(chosen)
        elif not rest[0].is_activated_in(chosen):
            yield from self._grid_of(chosen, rest[1:], depth)
        else:
            for value in _values(rest[0], depth):
                yield from self._grid_of({**chosen, rest[0].key: value}, rest[1:], depth)


def _is_continuous(spec: ParameterSpec) -> bool:
    """Returns whether two drawn values are never equal. A parameter of an option may be absent from both."""
    return not spec.is_nested() and not spec.categorical and spec.q is None


def _values(spec: ParameterSpec, depth: int) -> Iterator[Any]:
    if spec.categorical:
        yield from range(spec.size)
        return
    count = 2**depth
    for index in range(count + 1):
        share = index / count
        if spec.normal_distributed:
            # The ends of a normal distribution are infinite.
            if 0 < index < count:
                yield spec.mu + spec.sigma * math.log(share / (1 - share)) * math.sqrt(3) / math.pi
        else:
            yield spec.low + share * (spec.high - spec.low)
