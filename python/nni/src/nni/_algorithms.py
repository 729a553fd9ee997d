"""The registry of algorithms: ``nnictl algo``. ``trial-manager`` replaces a registered name by its class."""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path
from typing import Any

import nni
from nni.experiment.config.base import parse_file
from nni.runtime.config import get_config_directory

__all__ = ["RegistryError", "describe", "find", "read", "register", "unregister"]

#: NNI's file, which is YAML. This package writes JSON, which is YAML, too.
_FILE = "registered_algorithms.yml"
#: The list in the file for each type of algorithm.
_LISTS = {"tuner": "tuners", "assessor": "assessors", "advisor": "tuners"}
#: The members of a description that are stored, besides `source` and `nniVersion`.
_MEMBERS = ("builtinName", "alias", "className", "acceptClassArgs", "classArgs", "classArgsValidator", "isAdvisor")


class RegistryError(Exception):
    """The registry, or a description of an algorithm, cannot be used. The message contains the cause."""


def register(meta_path: Path) -> list[str]:
    """Registers the algorithms that a file describes, in place of others of the same name. Returns their names.

    :raises RegistryError: if a description is incomplete or its class cannot be imported.
    """
    try:
        content = parse_file(meta_path)
    except ValueError as error:
        raise RegistryError(str(error)) from None
    described = content.get("algorithms") or [content] if isinstance(content, dict) else content
    registry = read()
    for meta in described:
        kind = _check(meta, meta_path)
        entry = {name: meta[name] for name in _MEMBERS if name in meta}
        if kind == "advisor":
            entry["isAdvisor"] = True
        _remove(registry, entry["builtinName"])
        registry.setdefault(_LISTS[kind], []).append({**entry, "source": "user", "nniVersion": nni.__version__})
    _write(registry)
    return [meta["builtinName"] for meta in described]


def unregister(name: str) -> None:
    """Removes an algorithm from the registry.

    :raises RegistryError: if it is not registered.
    """
    find(name)
    registry = read()
    _remove(registry, name)
    _write(registry)


def find(name: str) -> dict[str, Any]:
    """Returns the entry of a registered algorithm.

    :raises RegistryError: if it is not registered.
    """
    for _, entry in describe(read()):
        if name.lower() in (str(entry["builtinName"]).lower(), str(entry.get("alias", "")).lower()):
            return entry
    raise RegistryError(f"{name} is not registered; `nnictl algo list` lists the registered algorithms")


def describe(registry: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    """Returns the type and the entry of each algorithm of the user."""
    return [
        ("assessor" if name == "assessors" else "tuner", entry)
        for name in ("tuners", "assessors", "advisors")
        for entry in registry.get(name) or []
        if entry.get("source") != "nni"
    ]


def read() -> dict[str, Any]:
    """Returns the registry; an empty one if there is none.

    :raises RegistryError: if it cannot be read.
    """
    file = get_config_directory() / _FILE
    if not file.exists():
        return {}
    try:
        registry: dict[str, Any] = parse_file(file) or {}
    except ValueError as error:
        raise RegistryError(str(error)) from None
    return registry


def _check(meta: Any, file: Path) -> str:
    """Checks a description and returns the type of its algorithm."""
    for name in ("algoType", "builtinName", "className"):
        if not isinstance(meta, dict) or not isinstance(meta.get(name), str):
            raise RegistryError(f"{file}: {name} is missing")
    if meta["algoType"] not in _LISTS:
        raise RegistryError(f"{file}: algoType {meta['algoType']!r} is not one of {', '.join(_LISTS)}")
    for name in ("className", "classArgsValidator"):
        if meta.get(name):
            _import(meta[name])
    return str(meta["algoType"])


def _import(class_name: str) -> None:
    module, _, name = class_name.rpartition(".")
    try:
        getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise RegistryError(
            f"{class_name} cannot be imported with {sys.executable}: {error}; install its package there first"
        ) from None


def _remove(registry: dict[str, Any], name: str) -> None:
    for kind in ("tuners", "assessors", "advisors"):
        kept = [
            entry
            for entry in registry.get(kind) or []
            if entry.get("source") == "nni" or str(entry["builtinName"]).lower() != name.lower()
        ]
        if kept or kind in registry:
            registry[kind] = kept


def _write(registry: dict[str, Any]) -> None:
    file = get_config_directory() / _FILE
    draft = file.with_suffix(".partial")
    draft.write_text(json.dumps(registry, indent=2) + "\n", encoding="utf-8")
    draft.replace(file)
