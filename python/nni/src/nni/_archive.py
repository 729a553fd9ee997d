"""Archives of stopped experiments: ``nnictl experiment save`` and ``load``."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import sqlite3
import sys
import tempfile
import zipfile
from collections.abc import Container, Mapping
from pathlib import Path
from typing import Any, Optional

__all__ = ["ArchiveError", "configuration", "load", "save"]

_RECORD = "trialkeeper.db"


class ArchiveError(Exception):
    """The archive cannot be written or read. The message contains the cause."""


def configuration(folder: Path) -> dict[str, Any]:
    """Reads the configuration from an experiment's record; returns an empty one if the record is unreadable."""
    try:
        with contextlib.closing(sqlite3.connect(f"{(folder / _RECORD).as_uri()}?mode=ro", uri=True)) as record:
            (text,) = record.execute("SELECT canonical FROM experiment").fetchone()
        configuration = json.loads(text)
    except (sqlite3.Error, TypeError, ValueError):
        return {}
    return configuration if isinstance(configuration, dict) else {}


def save(target: Path, folder: Path, about: Mapping[str, Any], with_code: bool) -> None:
    """Writes an experiment's folder and the code that ``about`` names into an archive."""
    target.parent.mkdir(parents=True, exist_ok=True)
    # The archive appears as a whole: a full disk leaves no part of it, and does not destroy an older archive. The
    # folder contains the experiment's token, so only the owner may read the archive, which `mkstemp` ensures.
    number, name = tempfile.mkstemp(prefix=f".{target.name}.", dir=target.parent)
    partial = Path(name)
    left_out = {target.resolve(), partial.resolve()}
    try:
        with os.fdopen(number, "wb") as file, zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr("nnictl/.experiment", json.dumps(about))
            _pack(archive, folder, "experiment", left_out)
            if with_code:
                _pack(archive, Path(about["trialCodeDirectory"]), "code", left_out)
        partial.replace(target)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise


def load(path: Path, data_dir: Path, code_dir: Optional[Path]) -> str:
    """Restores an experiment and returns its id. ``code_dir``: the folder for its code; None: the original."""
    try:
        archive = zipfile.ZipFile(path)
        about = json.loads(archive.read("nnictl/.experiment"))
        id, saved = str(about["id"]), Path(about["trialCodeDirectory"])
    except (OSError, zipfile.BadZipFile, KeyError, ValueError, TypeError) as error:
        raise ArchiveError(f"{path}: not an archive of `nnictl experiment save`: {error}") from None
    if not re.fullmatch(r"[A-Za-z0-9_-]{1,32}", id):
        raise ArchiveError(f"{path}: {id!r} is not an experiment's id")
    folder, code = data_dir / id, code_dir or saved
    if folder.exists():
        raise ArchiveError(f"experiment {id} exists already; `nnictl experiment delete {id}` removes it")
    with archive:
        _unpack(archive, "experiment", folder)
        if code_dir or not code.exists():
            _unpack(archive, "code", code)
    if code != saved:
        _move_code(folder, saved, code)
    if not code.exists():
        print(f"WARNING: its code is not in the archive: put it into {code}", file=sys.stderr)
    return id


def _pack(archive: zipfile.ZipFile, folder: Path, name: str, left_out: Container[Path]) -> None:
    """Adds the files of a folder to an archive, except sockets, links and the archive itself."""
    for path in sorted(folder.rglob("*")):
        if path.is_file() and not path.is_symlink() and path.resolve() not in left_out:
            archive.write(path, f"{name}/{path.relative_to(folder)}")


def _move_code(folder: Path, saved: Path, code: Path) -> None:
    """Changes the code folder in the record of a loaded experiment."""

    def moved(value: Any) -> Any:
        if isinstance(value, dict):
            return {
                name: _below(path, saved, code) if name.endswith(("Directory", "directory")) else moved(path)
                for name, path in value.items()
            }
        return [moved(item) for item in value] if isinstance(value, list) else value

    known = configuration(folder)
    if not known:
        raise ArchiveError(
            f"{folder / _RECORD} holds no experiment; the archive is loaded, but its code is not found in {code}"
        )
    text = json.dumps(moved(known))
    with contextlib.closing(sqlite3.connect(folder / _RECORD)) as record, record:
        record.execute("UPDATE experiment SET canonical = ?", (text,))


def _below(path: Any, saved: Path, code: Path) -> Any:
    """Moves a path below ``saved`` to ``code``; returns any other value unchanged."""
    if not isinstance(path, str) or not Path(path).is_relative_to(saved):
        return path
    return str(code / Path(path).relative_to(saved))


def _unpack(archive: zipfile.ZipFile, name: str, folder: Path) -> None:
    """Extracts the files below ``name`` of an archive into a folder, and writes nothing outside the folder."""
    for member in archive.infolist():
        parts = Path(member.filename).parts
        if member.is_dir() or parts[:1] != (name,) or ".." in parts:
            continue
        target = folder.joinpath(*parts[1:])
        if target.exists():
            print(f"WARNING: {target} exists already and is not changed", file=sys.stderr)
            continue
        target.parent.mkdir(parents=True, exist_ok=True)
        mode = member.external_attr >> 16 & 0o777 or 0o600
        with (
            archive.open(member) as source,
            os.fdopen(os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file,
        ):
            shutil.copyfileobj(source, file)
