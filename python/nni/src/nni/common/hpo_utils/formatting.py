"""A flat form of search spaces and parameters, for custom tuners with nested choices.

A parameter is identified by its key, such as ``("net", 1, "size")`` for the parameter ``size`` of the second
option of ``net``. In the flat form, the value of a ``choice`` or a ``randint`` is an index. The value of a
type with ``log`` is its logarithm.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple, Optional, Union

from nni.typehint import Parameters, SearchSpace

__all__ = ["ParameterSpec", "deformat_parameters", "format_parameters", "format_search_space"]

_Key = tuple[Union[str, int], ...]
FormattedParameters = dict[_Key, Union[float, int]]
FormattedSearchSpace = dict[_Key, "ParameterSpec"]


class ParameterSpec(NamedTuple):
    """The description of one parameter."""

    name: str
    #: The ``_type`` of the search space.
    type: str
    #: The ``_value`` of the search space.
    values: list[Any]
    key: _Key
    #: Whether the value is an index without an order.
    categorical: bool
    #: The number of options of a categorical parameter.
    size: Any = None
    chosen_size: Optional[int] = 1
    #: The bounds of a uniform distribution, as logarithms for a type with ``log``.
    low: Any = None
    high: Any = None
    normal_distributed: Any = None
    mu: Any = None
    sigma: Any = None
    #: The step of a type with ``q``.
    q: Optional[float] = None
    #: The bounds of a type with ``q``, not as logarithms.
    clip: Optional[tuple[float, float]] = None
    log_distributed: Any = None

    def is_nested(self) -> bool:
        """Returns whether the parameter belongs to an option of a choice."""
        return len(self.key) >= 2 and isinstance(self.key[-2], int)

    def is_activated_in(self, partial_parameters: FormattedParameters) -> bool:
        """Returns whether the parameter's option is the chosen one, or the parameter belongs to none."""
        return not self.is_nested() or partial_parameters.get(self.key[:-2]) == self.key[-2]


def format_search_space(search_space: SearchSpace) -> FormattedSearchSpace:
    """Returns the parameters of a space by their keys, each before those of its options."""
    return {spec.key: spec for spec in _specs((), search_space)}


def deformat_parameters(
    formatted_parameters: FormattedParameters, formatted_search_space: FormattedSearchSpace
) -> Parameters:
    """Returns parameters as trials get them. Values of a type with ``q`` are rounded and kept in their bounds."""
    made: Parameters = {}
    for key, value in formatted_parameters.items():
        spec = formatted_search_space[key]
        members = made
        # The options of nested choices have no level of their own in the result.
        *path, name = [part for part in key if isinstance(part, str)]
        for part in path:
            members = members.setdefault(part, {})
        if spec.type == "choice" and _is_nested(spec.values):
            members.setdefault(name, {})["_name"] = spec.values[int(value)]["_name"]
        else:
            members[name] = _value_of(spec, value)
    return made


def format_parameters(parameters: Parameters, formatted_search_space: FormattedSearchSpace) -> FormattedParameters:
    """Returns the flat form of parameters. It is exact except for equal options and types with ``q``.

    :raises KeyError: if a parameter is missing.
    :raises ValueError: if a value is none of its options.
    """
    made: FormattedParameters = {}
    for key, spec in formatted_search_space.items():
        if not spec.is_activated_in(made):
            continue
        value: Any = parameters
        for part in key:
            value = value[part] if isinstance(part, str) else value
        if spec.type == "randint":
            made[key] = value - _lowest(spec.values)
        elif spec.type == "choice" and _is_nested(spec.values):
            made[key] = [option["_name"] for option in spec.values].index(value["_name"])
        elif spec.type == "choice":
            made[key] = spec.values.index(value)
        else:
            made[key] = math.log(value) if spec.log_distributed else value
    return made


def _specs(parent: _Key, space: Any) -> list[ParameterSpec]:
    specs = []
    for name, entry in space.items():
        if name == "_name":
            continue
        key = (*parent, name)
        kind, values = entry["_type"], entry["_value"]
        specs.append(_spec(name, key, kind, values))
        if kind == "choice" and _is_nested(values):
            for index, option in enumerate(values):
                specs += _specs((*key, index), option)
    return specs


def _spec(name: str, key: _Key, kind: str, values: list[Any]) -> ParameterSpec:
    if kind in ("choice", "randint"):
        size = len(values) if kind == "choice" else math.ceil(float(values[1])) - _lowest(values)
        return ParameterSpec(name, kind, values, key, True, size)
    first, second = float(values[0]), float(values[1])
    is_log, is_normal = "log" in kind, "normal" in kind
    q = float(values[2]) if kind.startswith("q") else None
    if is_normal:
        ends: dict[str, Any] = {"mu": first, "sigma": second}
    else:
        ends = {
            "low": math.log(first) if is_log else first,
            "high": math.log(second) if is_log else second,
            "clip": (first, second) if q is not None else None,
        }
    return ParameterSpec(
        name, kind, values, key, False, normal_distributed=is_normal, q=q, log_distributed=is_log, **ends
    )


def _value_of(spec: ParameterSpec, value: Any) -> Any:
    if spec.type == "choice":
        return spec.values[int(value)]
    if spec.type == "randint":
        return _lowest(spec.values) + int(value)
    if spec.log_distributed:
        value = math.exp(value)
    if spec.q is not None:
        value = round(value / spec.q) * spec.q
    if spec.clip is not None:
        value = min(max(value, spec.clip[0]), spec.clip[1])
    # Trials get plain numbers, not those of NumPy.
    return value.item() if hasattr(value, "item") else value


def _lowest(values: list[Any]) -> int:
    return min(math.ceil(float(value)) for value in values)


def _is_nested(options: list[Any]) -> bool:
    return all(isinstance(option, dict) and "_name" in option for option in options)
