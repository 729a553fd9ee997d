"""NNI's REST API of a running manager, over the Unix socket in the experiment's folder."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import trialkeeper._rest
from trialkeeper._rest import NotRunning, RestError

__all__ = ["NotRunning", "RestError", "ask", "wait_until_answered", "wait_until_gone"]

#: The maximum time in seconds for a manager to exit. Its trials have 20 s, unless configured otherwise.
_STOP_TIMEOUT_S = 60.0
#: The sockets of ``trial-manager run`` and of ``trial-manager serve``.
_SOCKETS = ("manager.sock", "view.sock")


def ask(folder: Path, method: str, path: str, body: Any = None) -> Any:
    """Sends a request to ``/api/v1/nni``. Returns the JSON of the response, or ``None`` if it is empty.

    :param folder: the experiment's folder.
    :raises NotRunning: if no manager serves the experiment.
    :raises RestError: if the manager rejects the request.
    """
    try:
        return trialkeeper._rest.ask(folder, method, f"/api/v1/nni{path}", body, _SOCKETS)
    except NotRunning as error:
        raise NotRunning(f"{error}, view() shows it") from None


def wait_until_answered(folder: Path, is_alive: Callable[[], bool]) -> None:
    """Waits for the manager's socket, which opens just after the manager prints its address, or for its exit."""
    while is_alive():
        try:
            ask(folder, "GET", "/check-status")
            return
        except NotRunning:
            time.sleep(0.01)


def wait_until_gone(folder: Path) -> None:
    """Waits until no manager serves the experiment. A stopped manager first stops its trials.

    :raises TimeoutError: if a manager still serves it after a minute.
    """
    deadline = time.monotonic() + _STOP_TIMEOUT_S
    while time.monotonic() < deadline:
        try:
            # Not the socket of a viewer, which may show the stopped experiment.
            trialkeeper._rest.ask(folder, "GET", "/api/v1/nni/check-status")
        except (NotRunning, OSError):
            return
        time.sleep(0.05)
    raise TimeoutError(f"the manager of experiment {folder.name} is still running after {_STOP_TIMEOUT_S:.0f} s")
