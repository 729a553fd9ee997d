"""Names, paths and addresses."""

from __future__ import annotations

import dataclasses
import os
import socket
from pathlib import Path
from typing import Any, Union

from nni.experiment.config.base import _camel, _fold

__all__ = ["camel_case", "case_insensitive", "fields", "get_ipv4_address", "resolve_path"]


def camel_case(key: str) -> str:
    """Returns the name of a field in a file: ``trial_command`` is ``trialCommand``."""
    return _camel(key.strip("_"))


def case_insensitive(key: str) -> str:
    """Returns the form of a name that is the same for all of its spellings."""
    return _fold(key)


def fields(config: Any) -> list[dataclasses.Field[Any]]:
    """Returns the fields of a configuration or of its class."""
    return list(dataclasses.fields(config))


def resolve_path(path: Union[str, Path], base_path: Union[str, Path]) -> str:
    """Returns the absolute path; a relative one starts at ``base_path``."""
    return os.path.realpath(Path(base_path) / Path(path).expanduser())


def get_ipv4_address() -> str:
    """Returns the address of this machine in its network. Nothing is sent.

    :raises OSError: if the machine has no network.
    """
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as connection:
        # An address for documentation, which needs the default route.
        connection.connect(("192.0.2.0", 80))
        return str(connection.getsockname()[0])
