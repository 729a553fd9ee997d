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

__all__ = ["ConfigBase", "config", "path", "required"]

_logger = logging.getLogger("nni.experiment.config")


def required(convert: Optional[Callable[[Any], Any]] = None) -> Any:
    """Declares a required field. ``convert`` converts a ``dict`` into a configuration."""
    return dataclasses.field(default=None, metadata={"required": True, "convert": convert})


def config(convert: Callable[[Any], Any], default: Any = None) -> Any:
    """Declares a field that holds a configuration. ``convert`` converts a ``dict``."""
    return dataclasses.field(default=default, metadata={"convert": convert})


def path(default: Optional[str] = None) -> Any:
    """Declares a field that holds a path, relative to the folder of the configuration file."""
    return dataclasses.field(default=default, metadata={"path": True})


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
        content = _parse(file)
        if not isinstance(content, dict):
            raise TypeError(f"{file}: an experiment file is an object, and this is {type(content).__name__}")
        loaded = cls(**content)
        loaded._set_base_path(file.resolve().parent)
        return loaded

    def canonical_copy(self) -> Any:
        """Returns a validated copy, with absolute paths and inherited values."""
        made = copy.deepcopy(self)
        made._canonicalize([])
        made.validate()
        return made

    def validate(self) -> None:
        """Checks that the required fields are set. The manager checks everything else.

        :raises ValueError: if a required field is not set.
        """
        for field in dataclasses.fields(self):  # type: ignore[arg-type]
            value = getattr(self, field.name)
            if field.metadata.get("required") and value is None:
                raise ValueError(f"{type(self).__name__}: {field.name} is not set")
            for child in _children(value):
                child.validate()

    def json(self) -> dict[str, Any]:
        """Returns the configuration as the content of an experiment file, in camelCase."""
        written: dict[str, Any] = self.canonical_copy()._written()
        return written

    def _canonicalize(self, parents: list[Any]) -> None:
        for field in dataclasses.fields(self):  # type: ignore[arg-type]
            value = getattr(self, field.name)
            if field.metadata.get("path") and isinstance(value, (str, os.PathLike)) and str(value):
                setattr(self, field.name, str((self._base_path / Path(value).expanduser()).resolve()))
            for child in _children(value):
                child._canonicalize([self, *parents])

    def _written(self) -> dict[str, Any]:
        made = {}
        for field in dataclasses.fields(self):  # type: ignore[arg-type]
            value = getattr(self, field.name)
            if value is not None:
                made[_camel(field.name)] = _plain(value)
        return made

    def _set_base_path(self, base: Path) -> None:
        self._base_path = base
        for field in dataclasses.fields(self):  # type: ignore[arg-type]
            for child in _children(getattr(self, field.name)):
                child._set_base_path(base)

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


def _children(value: Any) -> list[ConfigBase]:
    values = value if isinstance(value, list) else [value]
    return [child for child in values if isinstance(child, ConfigBase)]


def _plain(value: Any) -> Any:
    if isinstance(value, ConfigBase):
        return value._written()
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    return value


def _fold(name: str) -> str:
    return name.lower().replace("_", "")


def _camel(name: str) -> str:
    head, *rest = name.split("_")
    return head + "".join(word.capitalize() for word in rest)


def _list(names: list[str]) -> str:
    return f"its fields are {', '.join(names)}"


def _parse(file: Path) -> Any:
    """Parses a file with the manager's own reader, so that it has the same meaning for ``nnictl create``.

    :raises ValueError: if the file cannot be read. The message contains the position.
    """
    command = [str(find_program("trial-manager")), "to-json", "--", str(file)]
    done = subprocess.run(command, capture_output=True, check=False)
    if done.returncode != 0:
        raise ValueError(str(failure(done.returncode, done.stderr.decode(errors="replace"))))
    return json.loads(done.stdout)
