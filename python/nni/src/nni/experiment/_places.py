"""The folders of experiments outside the default data directory, which NNI finds by their ids."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Optional

from trialkeeper.experiment import default_data_dir

__all__ = ["find", "record"]

#: The file with one JSON object per line, in the default data directory.
_FILE = ".nni-places"


def record(folder: Path) -> None:
    """Records the folder of an experiment if it is outside the default data directory."""
    default = default_data_dir()
    if folder.parent.resolve() == default.resolve():
        return
    default.mkdir(parents=True, exist_ok=True)
    with (default / _FILE).open("a", encoding="utf-8") as file:
        file.write(json.dumps({"id": folder.name, "folder": str(folder.resolve())}) + "\n")


def find(id: str) -> Optional[Path]:
    """Returns the data directory of an experiment that was recorded, if its folder still exists."""
    try:
        lines = (default_data_dir() / _FILE).read_text(encoding="utf-8").splitlines()
    except OSError:
        return None
    for line in reversed(lines):
        try:
            place = json.loads(line)
            if place["id"] == id and Path(place["folder"]).is_dir():
                return Path(place["folder"]).parent
        except (ValueError, KeyError, TypeError):
            continue  # A line that was only partly written.
    return None
