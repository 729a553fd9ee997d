"""Traced objects, which remember how they were made, and NNI's JSON for them and for other values.

The JSON has NNI's form, so that either package can load what the other has dumped. Functions, classes and objects
that cannot be imported by name are pickled. As with pickle, load only what you trust: loading calls functions.
"""

from __future__ import annotations

import base64
import copy
import functools
import importlib
import inspect
import json
import os
import pickle
import re
import types
from collections.abc import MutableMapping, MutableSequence, MutableSet
from typing import Any, Callable, Optional

from nni.common import _json

__all__ = ["PayloadTooLarge", "Traceable", "dump", "is_traceable", "is_wrapped_with_trace", "load", "trace"]

#: The largest pickle in a dump, in bytes, unless the caller allows more.
_PICKLE_LIMIT = 4096

_FUNCTIONS = (types.FunctionType, types.BuiltinFunctionType, types.MethodType)


class PayloadTooLarge(Exception):
    """An object needs a larger pickle than allowed."""


class Traceable:
    """The members of traced objects."""

    @property
    def trace_symbol(self) -> Any:
        """The class or the function that made the object."""
        return self._trace("symbol").symbol

    @trace_symbol.setter
    def trace_symbol(self, symbol: Any) -> None:
        self.__dict__["_nni_symbol"] = _Symbol(symbol)

    @property
    def trace_args(self) -> list[Any]:
        """The positional arguments; usually empty, because arguments are stored by their names."""
        args: list[Any] = self._trace("args")
        return args

    @trace_args.setter
    def trace_args(self, args: list[Any]) -> None:
        self.__dict__["_nni_args"] = args

    @property
    def trace_kwargs(self) -> dict[str, Any]:
        """The arguments by their names. Changes take effect in :meth:`trace_copy` and in a dump."""
        kwargs: dict[str, Any] = self._trace("kwargs")
        return kwargs

    @trace_kwargs.setter
    def trace_kwargs(self, kwargs: dict[str, Any]) -> None:
        self.__dict__["_nni_kwargs"] = kwargs

    def trace_copy(self) -> SerializableObject:
        """Returns only the symbol and the arguments, to change them before ``get()`` makes another object."""
        return SerializableObject(self.trace_symbol, list(self.trace_args), dict(self.trace_kwargs))

    def get(self) -> Any:
        """Returns the object."""
        return self

    def _trace(self, name: str) -> Any:
        try:
            return self.__dict__[f"_nni_{name}"]
        except KeyError:
            raise AttributeError(f"{type(self).__name__} is not traced") from None


class SerializableObject(Traceable):
    """A symbol and its arguments, without the object that they make."""

    def __init__(self, symbol: Any, args: Any, kwargs: Any) -> None:
        _inject(self, symbol, args, kwargs)

    def get(self, traceable: bool = True) -> Any:
        """Makes the object. It is traced unless ``traceable`` is false."""
        symbol = trace(self.trace_symbol) if traceable else self.trace_symbol
        return symbol(*self.trace_args, **self.trace_kwargs)

    def __repr__(self) -> str:
        parts = [f"type={self.trace_symbol.__name__}", *map(repr, self.trace_args)]
        parts += [f"{name}={value!r}" for name, value in self.trace_kwargs.items()]
        return f"SerializableObject({', '.join(parts)})"


def trace(cls_or_func: Any = None, *, kw_only: bool = True, inheritable: bool = False) -> Any:
    """Makes a class or a function trace its objects: they remember the symbol and the arguments.

    Use it as a decorator, or for a class of another package: ``nni.trace(Adam)(lr=0.1)``. A dump of a traced
    object contains only its symbol and arguments, and ``load`` makes it again.

    :param kw_only: whether positional arguments are stored by their names, if they have names.
    :param inheritable: whether objects of subclasses are traced, too. Otherwise they need their own ``trace``.
    :raises TypeError: if it is neither a class nor a function.
    """
    if cls_or_func is None:
        return functools.partial(trace, kw_only=kw_only, inheritable=inheritable)
    if os.environ.get("NNI_TRACE_FLAG", "").lower() == "disable" or is_wrapped_with_trace(cls_or_func):
        return cls_or_func
    if isinstance(cls_or_func, type):
        wrapped: Any = _trace_class(cls_or_func, kw_only, inheritable)
    elif isinstance(cls_or_func, _FUNCTIONS):
        wrapped = _trace_function(cls_or_func, kw_only)
    else:
        raise TypeError(f"{cls_or_func!r} is neither a class nor a function, so it cannot be traced")
    wrapped._traced = True
    return wrapped


def is_traceable(obj: Any, must_be_instance: bool = False) -> bool:
    """Returns whether an object, or its class, has the members of :class:`Traceable`.

    :param must_be_instance: whether a class does not count.
    """
    if must_be_instance and is_wrapped_with_trace(obj):
        return False
    names = ("trace_copy", "trace_symbol", "trace_args", "trace_kwargs")
    return all(hasattr(obj, name) for name in names)


def is_wrapped_with_trace(cls_or_func: Any) -> bool:
    """Returns whether a class or a function was traced itself. A traced base class does not count."""
    return bool(getattr(cls_or_func, "__dict__", {}).get("_traced", False))


def dump(
    obj: Any,
    fp: Any = None,
    *,
    use_trace: bool = True,
    pickle_size_limit: int = _PICKLE_LIMIT,
    allow_nan: bool = True,
    **json_kwargs: Any,
) -> str:
    """Returns JSON that :func:`load` turns into an equal value. Tuples become lists, and keys become strings.

    :param fp: a path or an open file, to which the JSON is also written.
    :param use_trace: whether traced objects are stored as symbol and arguments. Otherwise they are pickled.
    :param pickle_size_limit: the largest pickle in bytes; -1 for no limit.
    :param json_kwargs: arguments of ``json.dumps``, such as ``indent``.
    :raises PayloadTooLarge: if an object needs a larger pickle.
    :raises TypeError: if a value can be neither converted nor pickled.
    """
    limit = pickle_size_limit

    def convert(value: Any) -> Any:
        if isinstance(value, (type, *_FUNCTIONS)):
            return {"__nni_type__": _symbol_text(value, limit)}
        if use_trace and is_traceable(value, must_be_instance=True) and not _json.is_plain(value):
            return _traced_record(value, limit)
        if hasattr(value, "_dump") and hasattr(value, "_load"):
            return _custom_record(value, limit)
        if hasattr(value, "__dict__") or hasattr(value, "__slots__"):
            return {"__nni_obj__": _pickled(value, limit)}
        raise TypeError(f"{value!r}, of the type {type(value).__name__}, cannot be dumped")

    text = json.dumps(_json.encoded(obj, convert), allow_nan=allow_nan, **json_kwargs)
    if fp is None:
        return text
    if isinstance(fp, (str, os.PathLike)):
        with open(fp, "w", encoding="utf-8") as file:
            file.write(text)
    else:
        fp.write(text)
    return text


def load(
    string: Optional[str] = None, *, fp: Any = None, preserve_order: bool = False, ignore_comments: bool = True
) -> Any:
    """Returns the value of a dump.

    :param string: the JSON.
    :param fp: a path or an open file with the JSON, instead of ``string``.
    :param preserve_order: no effect, because every ``dict`` has an order.
    :param ignore_comments: whether text from ``#`` or ``//`` to the end of a line is skipped.
    :raises TypeError: if neither is given, or a file is given as ``string``.
    """
    if string is None and fp is None:
        raise TypeError("load() needs the JSON, or a file: load(fp=…)")
    if string is None:
        if isinstance(fp, (str, os.PathLike)):
            with open(fp, encoding="utf-8") as file:
                string = file.read()
        else:
            string = fp.read()
    elif hasattr(string, "read"):
        raise TypeError(f"expected JSON, found {string!r}; for a file, write load(fp=file)")
    text = string.decode() if isinstance(string, bytes) else str(string)
    if ignore_comments:
        text = _without_comments(text)
    return json.loads(text, object_hook=_decoded)


def _decoded(members: dict[str, Any]) -> Any:
    if "__symbol__" in members:
        symbol = trace(_symbol_of(members["__symbol__"]))
        return symbol(*members.get("__args__", []), **members.get("__kwargs__", {}))
    if "__instance_type__" in members:
        cls = _symbol_of(members["__instance_type__"])
        return cls._load(**{name: value for name, value in members.items() if name != "__instance_type__"})
    if "__nni_type__" in members:
        return _symbol_of(members["__nni_type__"])
    if "__nni_obj__" in members:
        return pickle.loads(base64.b64decode(members["__nni_obj__"]))
    return _json.decoded(members)


def _traced_record(value: Any, limit: int) -> dict[str, Any]:
    record: dict[str, Any] = {"__symbol__": _symbol_text(value.trace_symbol, limit)}
    if value.trace_args:
        record["__args__"] = list(value.trace_args)
    if value.trace_kwargs:
        record["__kwargs__"] = dict(value.trace_kwargs)
    return record


def _custom_record(value: Any, limit: int) -> dict[str, Any]:
    record = value._dump()
    if not isinstance(record, dict) or "__instance_type__" in record:
        raise ValueError(f"{type(value).__name__}._dump() must return a dict without the key '__instance_type__'")
    return {**record, "__instance_type__": _symbol_text(type(value), limit)}


_COMMENT = re.compile(r'("(?:[^"\\]|\\.)*")|(?:#|//)[^\n]*')


def _without_comments(text: str) -> str:
    return _COMMENT.sub(lambda found: found.group(1) or "", text)


# Symbols: a path such as `torch.nn.Linear`, or a pickle for those that cannot be imported.


def _symbol_text(symbol: Any, limit: int) -> str:
    symbol = _inner(symbol)
    path = _path_of(symbol)
    return f"path:{path}" if path is not None else f"bytes:{_pickled(symbol, limit)}"


def _path_of(symbol: Any, in_main: bool = False) -> Optional[str]:
    """Returns the name by which another process can import a symbol; ``None`` if there is none.

    :param in_main: whether the script itself counts as a module, as for a child of ``multiprocessing``.
    """
    module, name = getattr(symbol, "__module__", None), getattr(symbol, "__name__", None)
    if module is None or name is None or (module == "__main__" and not in_main):
        return None
    try:
        found = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError):
        return None
    return f"{module}.{name}" if _inner(found) is symbol else None


def _symbol_of(text: str) -> Any:
    kind, _, rest = text.partition(":")
    if kind == "bytes":
        return pickle.loads(base64.b64decode(rest))
    module, _, name = (rest if kind == "path" else text).rpartition(".")
    return getattr(importlib.import_module(module), name)


def _pickled(value: Any, limit: int) -> str:
    try:
        import cloudpickle as pickler
    except ImportError:
        pickler = pickle
    try:
        data = pickler.dumps(value)
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        advice = "; pip install cloudpickle, which pickles more" if pickler is pickle else ""
        raise TypeError(f"{value!r} cannot be dumped: {error}{advice}") from error
    if len(data) > limit > 0:
        raise PayloadTooLarge(
            f"the pickle of {value!r:.80} has {len(data)} bytes, more than {limit}: decorate its class with "
            "@nni.trace, or raise pickle_size_limit"
        )
    return base64.b64encode(data).decode()


# Tracing.


def _trace_class(base: Any, kw_only: bool, inheritable: bool) -> Any:
    bases = (base,) if issubclass(base, Traceable) else (Traceable, base)

    class Wrapper(*bases):  # type: ignore[misc]
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            # An object of a subclass is not made by this symbol and these arguments.
            if type(self) is not Wrapper and not inheritable:
                base.__init__(self, *args, **kwargs)
                return
            args, kwargs = _by_name(base.__init__, args, kwargs, kw_only, is_method=True)
            _inject(self, base, args, kwargs)
            base.__init__(self, *map(_passed, args), **{name: _passed(value) for name, value in kwargs.items()})

        def __reduce_ex__(self, protocol: Any) -> Any:
            # Pickle finds a class by its name, and the name may be that of the inner class.
            if type(self) is not Wrapper:
                return super().__reduce_ex__(protocol)
            state = self.__getstate__() if hasattr(self, "__getstate__") else self.__dict__
            return _unpickled, (_Symbol(base), kw_only, inheritable), state

    for name in functools.WRAPPER_ASSIGNMENTS:
        if hasattr(base, name):
            setattr(Wrapper, name, getattr(base, name))
    Wrapper.__wrapped__ = base
    return Wrapper


class _Symbol:
    """A class or a function without its tracing. Pickle refuses it, because the traced one has its name."""

    def __init__(self, symbol: Any) -> None:
        self.symbol = symbol

    def __reduce__(self) -> Any:
        path = _path_of(self.symbol, in_main=True)
        return _symbol_from, (f"bytes:{_pickled(self.symbol, -1)}" if path is None else f"path:{path}",)


def _symbol_from(text: str) -> _Symbol:
    return _Symbol(_inner(_symbol_of(text)))


def _unpickled(base: _Symbol, kw_only: bool, inheritable: bool) -> Any:
    cls = trace(base.symbol, kw_only=kw_only, inheritable=inheritable)
    return cls.__new__(cls)


def _trace_function(function: Callable[..., Any], kw_only: bool) -> Any:
    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        args, kwargs = _by_name(function, args, kwargs, kw_only)
        made = function(*map(_passed, args), **{name: _passed(value) for name, value in kwargs.items()})
        if made is None:
            return SerializableObject(function, args, kwargs)
        if isinstance(made, (type, types.ModuleType, *_FUNCTIONS)):
            raise TypeError(f"{function.__name__} returned {made!r}, and a function or a module cannot be traced")
        if not hasattr(made, "__dict__"):
            # A built-in object has no place for the arguments. A dump contains only its value.
            made = type("Traced", (Traceable, type(made)), {})(made)
        elif not isinstance(made, Traceable):
            _add_members(type(made))
        _inject(made, function, args, kwargs)
        return made

    return wrapper


def _add_members(cls: Any) -> None:
    """Gives a class the members of :class:`Traceable`. Unlike a subclass, it can still be pickled by its name."""
    for name, member in vars(Traceable).items():
        if (name == "get" or "trace" in name) and not hasattr(cls, name):
            setattr(cls, name, member)


def _inject(made: Any, symbol: Any, args: Any, kwargs: Any) -> None:
    # The class may have its own `__setattr__`.
    made.__dict__.update(_nni_symbol=_Symbol(symbol), _nni_args=args, _nni_kwargs=kwargs)


def _inner(symbol: Any) -> Any:
    """Returns the class or the function without its tracing."""
    return symbol.__wrapped__ if is_wrapped_with_trace(symbol) else symbol


def _passed(value: Any) -> Any:
    """Returns the argument that the function gets. A copy protects the stored one from changes."""
    if hasattr(value, "_unwrap_parameter"):
        value = value._unwrap_parameter()
    is_mutable = isinstance(value, (MutableMapping, MutableSequence, MutableSet))
    return copy.copy(value) if is_mutable else value


def _by_name(function: Any, args: Any, kwargs: Any, kw_only: bool, is_method: bool = False) -> tuple[Any, Any]:
    """Returns the arguments, as many of them as possible by their names. Generators become lists."""
    args = [list(value) if isinstance(value, types.GeneratorType) else value for value in args]
    kwargs = {name: list(v) if isinstance(v, types.GeneratorType) else v for name, v in kwargs.items()}
    if not kw_only or not args:
        return args, kwargs
    try:
        parameters = list(inspect.signature(function).parameters.values())[int(is_method) :]
    except ValueError:  # A built-in function without a signature.
        return args, kwargs
    kinds = [parameter.kind for parameter in parameters[: len(args)]]
    by_place = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    if len(kinds) < len(args) or not all(kind in by_place for kind in kinds):
        # Too many arguments, which the call reports, or a `*args`, before which all stay positional.
        return args, kwargs
    first = kinds.count(inspect.Parameter.POSITIONAL_ONLY)
    by_name = {parameter.name: value for parameter, value in zip(parameters[first:], args[first:])}
    return args[:first], {**by_name, **kwargs}
