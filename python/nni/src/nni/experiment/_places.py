"""The folders of experiments outside the default data directory, which NNI finds by their ids."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Optional

from trialkeeper.experiment import default_data_dir

__all__ = ["data_dirs", "find", "record"]

#: The file with one JSON object per line, in the default data directory.
_FILE = ".nni-places"


def record(folder: Path) -> None:
    """Records the folder of an experiment if it is outside the default data directory, which may be read-only."""
    default = default_data_dir()
    if folder.parent.resolve() in (default.resolve(), find(folder.name)):
        return
    with contextlib.suppress(OSError):
        default.mkdir(parents=True, exist_ok=True)
        with (default / _FILE).open("a", encoding="utf-8") as file:
            file.write(json.dumps({"id": folder.name, "folder": str(folder.resolve())}) + "\n")


def find(id: str) -> Optional[Path]:
    """Returns the data directory of an experiment that was recorded, if its folder still exists."""
    return next((folder.parent for folder in reversed(_recorded()) if folder.name == id), None)


def data_dirs() -> list[Path]:
    """Returns the default data directory, and those of recorded experiments that still exist."""
    return list(dict.fromkeys([default_data_dir(), *(folder.parent for folder in _recorded())]))


def _recorded() -> list[Path]:
    """Returns the folders of recorded experiments that still exist, oldest first."""
    try:
        lines = (default_data_dir() / _FILE).read_text(encoding="utf-8").splitlines()
    except OSError:
        return []
    folders = []
    for line in lines:
        try:
            folders.append(Path(json.loads(line)["folder"]))
        except (ValueError, KeyError, TypeError):
            continue  # A line that was only partly written.
    return [folder for folder in folders if folder.is_dir()]
