"""Finds the programs of the wheel."""

from __future__ import annotations

import os
import shutil
import sys
import sysconfig
from pathlib import Path

from trialkeeper.errors import ManagerError

__all__ = ["find_program"]


def find_program(name: str) -> Path:
    """Returns the path of ``trial-manager`` or ``trialkeeper``.

    The environment of this module comes before ``PATH``, whose programs may have another version.
    ``TRIALKEEPER_PROGRAMS`` names a folder that comes before all others.

    :raises ManagerError: if the program is missing. The message names every folder that was searched.
    """
    looked_at = []
    for folder in _folders():
        path = folder / name
        if path.is_file() and os.access(path, os.X_OK):
            return path
        looked_at.append(str(folder))
    on_path = shutil.which(name)
    if on_path:
        return Path(on_path)
    places = ", ".join(looked_at)
    raise ManagerError(
        f"the program {name} is missing: it is neither in {places} nor on PATH. "
        "Reinstall the package (pip install --force-reinstall trialkeeper), or name the folder that holds "
        "the programs in TRIALKEEPER_PROGRAMS"
    )


def _folders() -> list[Path]:
    folders = []
    override = os.environ.get("TRIALKEEPER_PROGRAMS")
    if override:
        folders.append(Path(override))
    folders.append(Path(sysconfig.get_path("scripts")))
    if sys.prefix != sys.base_prefix:
        folders.append(Path(sysconfig.get_path("scripts", vars={"base": sys.base_prefix})))
    user_scheme = sysconfig.get_preferred_scheme("user") if sys.version_info >= (3, 10) else "posix_user"
    folders.append(Path(sysconfig.get_path("scripts", scheme=user_scheme)))
    here = Path(__file__).resolve()
    # A source tree that `pip install -e` has added to the path: python/src/trialkeeper/_programs.py.
    if here.parts[-4:-2] == ("python", "src"):
        folders.append(here.parents[3] / "target" / "debug")
    # `pip install --target DIR` puts the programs into DIR/bin, beside the package.
    folders.append(here.parents[1] / "bin")
    # `pip install --prefix DIR`: this file is DIR/lib/pythonX.Y/site-packages/trialkeeper/_programs.py.
    if len(here.parents) > 4:
        folders.append(here.parents[4] / "bin")
    return folders
