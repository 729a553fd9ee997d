"""The base class of configurations, whose fields accept several spellings and which accept only fields."""

from __future__ import annotations

import copy
import dataclasses
import difflib
import functools
import json
import logging
import os
import subprocess
from pathlib import Path
from typing import Any, Callable, Optional

from trialkeeper._foreign import counterpart
from trialkeeper._manager import failure
from trialkeeper._programs import find_program

__all__ = ["ConfigBase", "chosen", "config", "implied", "parse_file", "path", "required"]

_logger = logging.getLogger("nni.experiment.config")


def required(convert: Optional[Callable[[Any], Any]] = None, *, path: bool = False) -> Any:
    """Declares a required field.

    :param convert: converts a ``dict`` into a configuration.
    :param path: whether it is a path, as for :func:`path`.
    """
    return dataclasses.field(default=None, metadata={"required": True, "convert": convert, "path": path})


def config(convert: Callable[[Any], Any], default: Any = None) -> Any:
    """Declares a field that holds a configuration. ``convert`` converts a ``dict``."""
    return dataclasses.field(default=default, metadata={"convert": convert})


def path(default: Optional[str] = None) -> Any:
    """Declares a field that holds a path, relative to the folder of the configuration file."""
    return dataclasses.field(default=default, metadata={"path": True})


def implied(default: Any) -> Any:
    """Declares a field with NNI's default, which is also the manager's. Experiment files omit it."""
    return dataclasses.field(default=default, metadata={"implied": True})


def chosen(nni: Any, *, path: bool = False) -> Any:
    """Declares a field for which the manager chooses the value if it is not set.

    :param nni: NNI's default, which the canonical form contains instead.
    """
    return dataclasses.field(default=None, metadata={"nni": nni, "path": path})


class ConfigBase:
    """A configuration: a dataclass whose fields may be written in any case, with or without underscores.

    ``gpuNumber``, ``gpu_number`` and ``GPUNumber`` are the same field, as an attribute, a keyword and in a file.
    Unknown names are rejected, and the message suggests the nearest field.
    """

    def __init__(self, **kwargs: Any) -> None:
        # Relative paths start at the working directory of this moment.
        self._base_path = Path.cwd()
        for field in dataclasses.fields(self):  # type: ignore[arg-type]
            setattr(self, field.name, copy.deepcopy(field.default))
        for name, value in kwargs.items():
            # NNI also accepts keywords in any spelling.
            setattr(self, self._field(name).name, value)

    def __setattr__(self, name: str, value: Any) -> None:
        if name.startswith("_"):
            object.__setattr__(self, name, value)
            return
        field = self._field(name)
        if name != field.name:
            _note_spelling(type(self).__name__, name, field.name)
        convert = field.metadata.get("convert")
        if convert is not None and value is not None:
            value = [convert(item) for item in value] if isinstance(value, list) else convert(value)
        object.__setattr__(self, field.name, value)

    def __getattr__(self, name: str) -> Any:
        # Python calls this only for names that are not attributes in this spelling.
        if name.startswith("_"):
            raise AttributeError(name)
        return object.__getattribute__(self, self._field(name).name)

    @classmethod
    def _field(cls, name: str) -> dataclasses.Field[Any]:
        fields = {_fold(field.name): field for field in dataclasses.fields(cls)}  # type: ignore[arg-type]
        found = fields.get(_fold(name))
        if found is not None:
            return found
        names = [field.name for field in fields.values()]
        meant = counterpart(name)
        close = difflib.get_close_matches(_fold(name), fields, n=1, cutoff=0.6)
        if meant is not None and meant.partition(".")[0] in names:
            advice = f"here it is {meant}"
        else:
            advice = f"did you mean {fields[close[0]].name}?" if close else _list(names)
        raise AttributeError(f"{cls.__name__} has no field {name}; {advice}")

    @classmethod
    def load(cls, path: Any) -> Any:
        """Returns the configuration in a file, YAML or JSON.

        :raises AttributeError: if the file has an unknown field.
        :raises FileNotFoundError: if the file does not exist.
        :raises ValueError: if the file is neither. The message contains the position.
        """
        file = Path(path)
        file.stat()
        content = parse_file(file)
        if not isinstance(content, dict):
            raise TypeError(f"{file}: an experiment file is an object, and this is {type(content).__name__}")
        loaded = cls(**content)
        loaded._set_base_path(file.resolve().parent)
        return loaded

    def canonical_copy(self) -> Any:
        """Returns a validated copy in NNI's canonical form: with absolute paths, defaults and inherited values.

        :raises ValueError: if the configuration is invalid.
        """
        made = copy.deepcopy(self)
        made._require()
        made._canonicalize([])
        made._check_canonical()
        return made

    def validate(self) -> None:
        """Checks the configuration, as NNI does. The manager checks more, and reports all errors at once.

        :raises ValueError: if it is invalid.
        """
        self.canonical_copy()

    def json(self) -> dict[str, Any]:
        """Returns NNI's canonical form, in camelCase. It is also the content of an experiment file."""
        written: dict[str, Any] = self.canonical_copy()._written()
        return written

    def _experiment_file(self) -> dict[str, Any]:
        """Returns the experiment file of a run: only what is set, because the manager has its own defaults."""
        made = copy.deepcopy(self)
        made._require()
        made._resolve()
        written: dict[str, Any] = made._written(with_implied=False)
        return written

    def _require(self) -> None:
        """Checks that the required fields are set."""
        for field in dataclasses.fields(self):  # type: ignore[arg-type]
            value = getattr(self, field.name)
            if field.metadata.get("required") and value is None:
                raise ValueError(f"{type(self).__name__}: {field.name} is not set")
        for child in self._children():
            child._require()

    def _resolve(self) -> None:
        """Makes all paths absolute."""
        self._resolve_own()
        for child in self._children():
            child._resolve()

    def _resolve_own(self) -> None:
        for field in dataclasses.fields(self):  # type: ignore[arg-type]
            value = getattr(self, field.name)
            if field.metadata.get("path") and isinstance(value, (str, os.PathLike)) and str(value):
                setattr(self, field.name, str((self._base_path / Path(value).expanduser()).resolve()))

    def _canonicalize(self, parents: list[Any]) -> None:
        """Converts this configuration into NNI's canonical form. Subclasses also copy values of ``parents``."""
        for field in dataclasses.fields(self):  # type: ignore[arg-type]
            if getattr(self, field.name) is None and "nni" in field.metadata:
                setattr(self, field.name, field.metadata["nni"])
        self._resolve_own()
        for child in self._children():
            child._canonicalize([self, *parents])

    def _check_canonical(self) -> None:
        """Checks the canonical form. Subclasses add checks of their fields."""
        for child in self._children():
            child._check_canonical()

    def _written(self, with_implied: bool = True) -> dict[str, Any]:
        made = {}
        for field in dataclasses.fields(self):  # type: ignore[arg-type]
            value = getattr(self, field.name)
            is_implied = bool(field.metadata.get("implied")) and value == field.default
            if value is not None and (with_implied or not is_implied):
                made[_camel(field.name)] = _plain(value, with_implied)
        return made

    def _set_base_path(self, base: Path) -> None:
        self._base_path = base
        for child in self._children():
            child._set_base_path(base)

    def _children(self) -> list[ConfigBase]:
        """Returns the configurations in this one's fields."""
        values = [getattr(self, field.name) for field in dataclasses.fields(self)]  # type: ignore[arg-type]
        members = [member for value in values for member in (value if isinstance(value, list) else [value])]
        return [member for member in members if isinstance(member, ConfigBase)]

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and isinstance(other, ConfigBase) and self._written() == other._written()

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        fields = ", ".join(
            f"{field.name}={value!r}"
            for field in dataclasses.fields(self)  # type: ignore[arg-type]
            if (value := getattr(self, field.name)) is not None
        )
        return f"{type(self).__name__}({fields})"


@functools.cache
def _note_spelling(cls: str, name: str, field: str) -> None:
    """Warns once per class that a misspelled attribute is accepted."""
    _logger.warning("%s: `%s` is taken as `%s`; NNI 3.0 refuses this spelling", cls, name, field)


def _plain(value: Any, with_implied: bool) -> Any:
    if isinstance(value, ConfigBase):
        return value._written(with_implied)
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if isinstance(value, (list, tuple)):
        return [_plain(item, with_implied) for item in value]
    if isinstance(value, dict):
        return {key: _plain(item, with_implied) for key, item in value.items()}
    return value


def _fold(name: str) -> str:
    return name.lower().replace("_", "")


def _camel(name: str) -> str:
    head, *rest = name.split("_")
    return head + "".join(word.capitalize() for word in rest)


def _list(names: list[str]) -> str:
    return f"its fields are {', '.join(names)}"


def parse_file(file: Path) -> Any:
    """Parses a file with the manager's own reader, so that it has the same meaning for ``nnictl create``.

    :raises ValueError: if the file cannot be read. The message contains the position.
    """
    command = [str(find_program("trial-manager")), "to-json", "--", str(file)]
    done = subprocess.run(command, capture_output=True, check=False)
    if done.returncode != 0:
        raise ValueError(str(failure(done.returncode, done.stderr.decode(errors="replace"))))
    return json.loads(done.stdout)
