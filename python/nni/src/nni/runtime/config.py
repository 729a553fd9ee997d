"""The folder of NNI's settings, in which `trial-manager` finds algorithms that were registered with NNI."""

from __future__ import annotations

import os
import sys
from pathlib import Path

__all__ = ["get_config_directory", "get_config_file"]


def get_config_directory() -> Path:
    """Creates and returns ``$NNI_CONFIG_DIR``, ``nni`` in an environment, or ``~/.config/nni``."""
    given = os.environ.get("NNI_CONFIG_DIR")
    is_environment = sys.prefix != sys.base_prefix or Path(sys.prefix, "conda-meta").is_dir()
    if given is not None:
        folder = Path(given)
    else:
        folder = Path(sys.prefix, "nni") if is_environment else Path.home() / ".config" / "nni"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def get_config_file(name: str) -> Path:
    """Returns a file of the folder.

    :raises FileNotFoundError: if it does not exist. Unlike NNI, this package has no default files to copy.
    """
    file = get_config_directory() / name
    file.stat()
    return file
