"""The REST API of a manager on this machine, over the Unix socket in the experiment's folder.

Only the user can enter the folder, so every program that can connect has all rights. This does not depend on the
other addresses of the manager.
"""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import json
import os
import socket
from collections.abc import AsyncGenerator, Generator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Optional

from trialkeeper.errors import ManagerError

__all__ = ["Event", "EventParser", "NotRunning", "RestError", "ask", "read_events", "read_events_async", "request"]

#: The maximum time in seconds for a manager to answer, as in NNI.
_TIMEOUT_S = 20.0
#: The maximum silence of a stream of events before it yields ``None``, in seconds.
_TICK_S = 0.5


class NotRunning(ConnectionError, RuntimeError):
    """No manager serves the experiment. NNI raises ``RuntimeError``."""


class RestError(ManagerError):
    """The manager rejected a request. The message is the manager's."""

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        #: The HTTP status of the response, from 400.
        self.status = status

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (*self.args, self.status)


@dataclass(frozen=True)
class Event:
    """One server-sent event of ``/api/v1/events``."""

    #: ``trial``, ``experiment`` or ``end``.
    name: str
    #: As the parameter ``after``, this makes the stream continue after this event.
    id: str
    data: Any


def ask(
    folder: Path, method: str, path: str, body: Any = None, sockets: tuple[str, ...] = ("manager.sock",)
) -> Any:
    """Sends a request to the experiment's manager. Returns the JSON of the response, or ``None`` if it is empty.

    :param folder: the experiment's folder.
    :param sockets: names of the sockets to try, in this order.
    :raises NotRunning: if no manager serves the experiment.
    :raises RestError: if the manager rejects the request.
    """
    text = request(folder, method, path, body, sockets)
    return json.loads(text) if text.strip() else None


def request(
    folder: Path, method: str, path: str, body: Any = None, sockets: tuple[str, ...] = ("manager.sock",)
) -> bytes:
    """Sends a request as :func:`ask` does and returns the bytes of the response."""
    headers = {"Authorization": f"Bearer {_token(folder)}", "Content-Type": "application/json"}
    payload = None if body is None else json.dumps(body).encode()
    for name in sockets:
        connection = _Connection(folder / name)
        try:
            connection.request(method, path, payload, headers)
            answer = connection.getresponse()
            content = answer.read()
        except (FileNotFoundError, ConnectionError, http.client.IncompleteRead):
            # There is no socket, no manager listens on it, or the manager died during the request.
            continue
        except socket.timeout:
            raise ManagerError(
                f"the manager of experiment {folder.name} has not answered within {_TIMEOUT_S:.0f} s"
            ) from None
        finally:
            connection.close()
        if answer.status >= 400:
            message = _message(content) or f"{method} {path} was answered with {answer.status}"
            raise RestError(message, answer.status)
        return content
    raise NotRunning(f"experiment {folder.name} is not running; resume() continues it")


def read_events(folder: Path, after: str) -> Generator[Optional[Event]]:
    """Yields the experiment's events after ``after`` until the manager exits. Yields ``None`` in silences.

    :raises NotRunning: if no manager serves the experiment.
    """
    parser = EventParser()
    with contextlib.ExitStack() as stack:
        connection = _Connection(folder / "manager.sock")
        stack.callback(connection.close)
        try:
            connection.connect()
            connection.sock.sendall(_events_request(folder, after))
            connection.sock.settimeout(_TICK_S)
        except OSError as error:
            raise NotRunning(f"experiment {folder.name} is not running: {error}") from error
        while True:
            try:
                received = connection.sock.recv(65536)
            except socket.timeout:
                yield None
                continue
            except OSError:
                return
            if not received:
                return
            for event in parser.feed(received):
                yield event
                if event.name == "end":
                    return  # An exiting manager waits until its listeners disconnect.


async def read_events_async(folder: Path, after: str) -> AsyncGenerator[Optional[Event]]:
    """Yields what :func:`read_events` yields."""
    parser = EventParser()
    writer: Optional[asyncio.StreamWriter] = None
    try:
        try:
            with _short_path(folder / "manager.sock") as path:
                reader, writer = await asyncio.open_unix_connection(path)
            writer.write(_events_request(folder, after))
            await writer.drain()
        except OSError as error:
            raise NotRunning(f"experiment {folder.name} is not running: {error}") from error
        reading = asyncio.ensure_future(reader.read(65536))
        try:
            while True:
                done, _ = await asyncio.wait([reading], timeout=_TICK_S)
                if not done:
                    yield None
                    continue
                try:
                    received = reading.result()
                except OSError:
                    return
                if not received:
                    return
                for event in parser.feed(received):
                    yield event
                    if event.name == "end":
                        return
                reading = asyncio.ensure_future(reader.read(65536))
        finally:
            reading.cancel()
    finally:
        if writer is not None:
            writer.close()


class EventParser:
    """Parses a response with server-sent events, including its head, from pieces of any size."""

    def __init__(self) -> None:
        self._rest = b""
        self._in_head = True
        self._fields: dict[str, str] = {}

    def feed(self, received: bytes) -> list[Event]:
        """Returns the events that the bytes complete. Events that are not JSON are skipped."""
        *lines, self._rest = (self._rest + received).split(b"\n")
        events = []
        for raw in lines:
            line = raw.rstrip(b"\r").decode(errors="replace")
            if self._in_head:
                self._in_head = line != ""
            elif line:
                name, _, value = line.partition(":")
                self._fields[name] = value[1:] if value.startswith(" ") else value
            else:
                events += self._complete()
        return events

    def _complete(self) -> list[Event]:
        fields, self._fields = self._fields, {}
        try:
            return [Event(fields["event"], fields.get("id", ""), json.loads(fields["data"]))]
        except (KeyError, ValueError, RecursionError):
            return []


def _events_request(folder: Path, after: str) -> bytes:
    # An HTTP 1.0 response has no chunks and ends with the connection.
    return (
        f"GET /api/v1/events?after={after} HTTP/1.0\r\nHost: localhost\r\n"
        f"Authorization: Bearer {_token(folder)}\r\nAccept: text/event-stream\r\n\r\n"
    ).encode()


def _token(folder: Path) -> str:
    try:
        return (folder / "user.token").read_text(encoding="utf-8").strip()
    except OSError as error:
        raise NotRunning(f"experiment {folder.name} cannot be asked: {error}") from error


def _message(content: bytes) -> str:
    text = content.decode(errors="replace").strip()
    try:
        problem = json.loads(text)
        # NNI's routes return `error`, all others problem documents (RFC 9457).
        return str(problem.get("error") or problem.get("detail") or problem.get("title") or text)
    except (ValueError, AttributeError):
        return text


@contextlib.contextmanager
def _short_path(path: Path) -> Iterator[str]:
    """Returns a path of the socket through its open folder, because the path of a socket has at most 107 bytes."""
    folder = os.open(path.parent, os.O_PATH | os.O_DIRECTORY)
    try:
        yield f"/proc/self/fd/{folder}/{path.name}"
    finally:
        os.close(folder)


class _Connection(http.client.HTTPConnection):
    """A connection to a Unix socket."""

    def __init__(self, path: Path) -> None:
        super().__init__("localhost", timeout=_TIMEOUT_S)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        with _short_path(self._path) as path:
            self.sock.connect(path)
