"""The JSON form of Python's and NumPy's values that JSON does not have, as ``json-tricks`` and so NNI write it."""

from __future__ import annotations

import datetime
import enum
import importlib
from decimal import Decimal
from fractions import Fraction
from pathlib import Path, PurePath
from typing import Any, Callable

__all__ = ["decoded", "encoded", "is_plain"]

_DATE = ("year", "month", "day")
_TIME = ("hour", "minute", "second", "microsecond")
_SPAN = ("days", "seconds", "microseconds")


def is_plain(value: Any) -> bool:
    """Returns whether JSON has the value's type."""
    return value is None or isinstance(value, (bool, int, float, str, list, tuple, dict))


def encoded(value: Any, convert: Callable[[Any], Any]) -> Any:
    """Returns a value in its JSON form.

    :param convert: converts all values of other types than those of this module.
    """
    if isinstance(value, enum.Enum) and not is_plain(value):
        place = {"__enum_instance_type__": [type(value).__module__, type(value).__name__]}
        return {"__enum__": {"name": value.name, **place}}
    if isinstance(value, dict):
        return {key: encoded(member, convert) for key, member in value.items()}
    if isinstance(value, (list, tuple)):
        return [encoded(member, convert) for member in value]
    if is_plain(value):
        return value
    known = _record(value)
    if known is not None:
        return encoded(known, convert)
    if type(value).__module__.partition(".")[0] == "numpy" and hasattr(value, "dtype"):
        return _array_record(value)
    return encoded(convert(value), convert)


def _record(value: Any) -> Any:
    """Returns the record of a value of the standard library; ``None`` for others."""
    if isinstance(value, PurePath):
        return {"__pathlib__": str(value)}
    if isinstance(value, (set, frozenset)):
        try:
            return {"__set__": sorted(value)}
        except TypeError:  # Members without an order.
            return {"__set__": list(value)}
    if isinstance(value, complex):
        return {"__complex__": [value.real, value.imag]}
    if isinstance(value, Decimal):
        return {"__decimal__": str(value)}
    if isinstance(value, Fraction):
        return {"__fraction__": True, "numerator": value.numerator, "denominator": value.denominator}
    if isinstance(value, datetime.datetime) and value.tzinfo is None:
        return {"__datetime__": None, **_parts(value, (*_DATE, *_TIME))}
    if isinstance(value, datetime.date) and not isinstance(value, datetime.datetime):
        return {"__date__": None, **_parts(value, _DATE)}
    if isinstance(value, datetime.time) and value.tzinfo is None:
        return {"__time__": None, **_parts(value, _TIME)}
    if isinstance(value, datetime.timedelta):
        return {"__timedelta__": None, **_parts(value, _SPAN)}
    return None


def _parts(value: Any, names: tuple[str, ...]) -> dict[str, int]:
    return {name: getattr(value, name) for name in names if getattr(value, name)}


def _array_record(value: Any) -> Any:
    if not hasattr(value, "__array_interface__") or type(value).__name__ != "ndarray":
        return value.item()  # A number.
    record = {"__ndarray__": value.tolist(), "dtype": str(value.dtype), "shape": list(value.shape)}
    if value.ndim > 1:
        record["Corder"] = bool(value.flags["C_CONTIGUOUS"])
    return record


def decoded(members: dict[str, Any]) -> Any:
    """Returns the value of a record; an object that is no record is unchanged."""
    for mark, read in _READERS.items():
        if mark in members:
            return read(members)
    return members


def _array(members: dict[str, Any]) -> Any:
    import numpy

    order = "C" if members.get("Corder", True) else "F"
    array: Any = numpy.asarray(members["__ndarray__"], dtype=members["dtype"], order=order)  # type: ignore[call-overload]
    return array.reshape(members["shape"])


def _enum(members: dict[str, Any]) -> Any:
    record = members["__enum__"]
    module, name = record["__enum_instance_type__"]
    return getattr(importlib.import_module(module), name)[record["name"]]


def _rest(members: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in members.items() if not name.startswith("__")}


def _time_zone_free(cls: Any) -> Callable[[dict[str, Any]], Any]:
    return lambda members: cls(**_rest(members))


_READERS: dict[str, Callable[[dict[str, Any]], Any]] = {
    "__ndarray__": _array,
    "__enum__": _enum,
    "__pathlib__": lambda members: Path(members["__pathlib__"]),
    "__set__": lambda members: set(members["__set__"]),
    "__complex__": lambda members: complex(*members["__complex__"]),
    "__decimal__": lambda members: Decimal(members["__decimal__"]),
    "__fraction__": lambda members: Fraction(members["numerator"], members["denominator"]),
    "__datetime__": _time_zone_free(datetime.datetime),
    "__date__": _time_zone_free(datetime.date),
    "__time__": _time_zone_free(datetime.time),
    "__timedelta__": _time_zone_free(datetime.timedelta),
}
