"""NNI's REST API of a running manager, asked over the Unix socket in the experiment's folder.

The folder is the user's alone, so whoever can connect may also change something, whatever the manager listens on
beside it, encrypted or not.
"""

from __future__ import annotations

import http.client
import json
import os
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Optional

__all__ = ["NotRunning", "RestError", "ask", "wait_until_answered", "wait_until_gone"]

#: How long a manager may take to answer, in seconds; NNI's limit.
_TIMEOUT_S = 20.0
#: How long a manager may take to end, in seconds: its trials have 20 s, unless configured otherwise.
_STOP_TIMEOUT_S = 60.0
#: The sockets of ``trial-manager run`` and of ``trial-manager serve``.
_SOCKETS = ("manager.sock", "view.sock")


class NotRunning(ConnectionError):
    """No manager serves the experiment."""


class RestError(RuntimeError):
    """The manager has refused a request; the message is its own."""


def ask(folder: Path, method: str, path: str, body: Any = None) -> Any:
    """Sends a request to ``/api/v1/nni`` and returns the answer's JSON, ``None`` if it is empty.

    :param folder: the experiment's folder.
    :raises NotRunning: if no manager serves the experiment.
    :raises RestError: if the manager refuses.
    """
    try:
        token = (folder / "user.token").read_text(encoding="utf-8").strip()
    except OSError as error:
        raise NotRunning(f"experiment {folder.name} cannot be asked: {error}") from error
    headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
    payload = None if body is None else json.dumps(body).encode()
    for name in _SOCKETS:
        connection = _Connection(folder / name)
        try:
            connection.request(method, f"/api/v1/nni{path}", payload, headers)
            answer = connection.getresponse()
            text = answer.read().decode()
        except (FileNotFoundError, ConnectionRefusedError):
            continue
        finally:
            connection.close()
        if answer.status >= 400:
            raise RestError(_message(text) or f"{method} {path} was answered with {answer.status}")
        return json.loads(text) if text.strip() else None
    raise NotRunning(f"experiment {folder.name} is not running; resume() goes on with it, view() shows it")


def wait_until_answered(folder: Path, is_alive: Callable[[], bool]) -> None:
    """Waits for the manager's socket, which it opens just after it has told its address, or for its end."""
    while is_alive():
        try:
            ask(folder, "GET", "/check-status")
            return
        except NotRunning:
            time.sleep(0.01)


def wait_until_gone(folder: Path) -> None:
    """Waits until no manager serves the experiment: one that has been stopped still ends its trials.

    :raises TimeoutError: if one still does after a minute.
    """
    deadline = time.monotonic() + _STOP_TIMEOUT_S
    while time.monotonic() < deadline:
        try:
            ask(folder, "GET", "/check-status")
        except (NotRunning, OSError, http.client.HTTPException):
            return
        time.sleep(0.05)
    raise TimeoutError(f"the manager of experiment {folder.name} still runs after {_STOP_TIMEOUT_S:.0f} s")


def _message(text: str) -> str:
    try:
        return str(json.loads(text)["error"])
    except (ValueError, KeyError, TypeError):
        return text.strip()


class _Connection(http.client.HTTPConnection):
    """A connection to a Unix socket."""

    def __init__(self, path: Path) -> None:
        super().__init__("localhost", timeout=_TIMEOUT_S)
        self._path = path
        self._folder: Optional[int] = None

    def connect(self) -> None:
        # A socket's path has at most 107 bytes; by way of the open folder it is short.
        self._folder = os.open(self._path.parent, os.O_PATH | os.O_DIRECTORY)
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(f"/proc/self/fd/{self._folder}/{self._path.name}")

    def close(self) -> None:
        super().close()
        if self._folder is not None:
            os.close(self._folder)
            self._folder = None
