"""The REST API of a manager on this machine, over the Unix socket in the experiment's folder.

The folder is the user's alone. A program that can connect may also change something, whatever the manager listens
on beside the socket, encrypted or not.
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

#: How long a manager may take to answer, in seconds; NNI's limit.
_TIMEOUT_S = 20.0
#: Longest silence of a stream of events between two ticks, in seconds.
_TICK_S = 0.5


class NotRunning(ConnectionError):
    """No manager serves the experiment."""


class RestError(ManagerError):
    """The manager has refused a request; the message is its own."""


@dataclass(frozen=True)
class Event:
    """One server-sent event of ``/api/v1/events``."""

    #: ``trial``, ``experiment`` or ``end``.
    name: str
    #: Sent back as ``after``, the stream goes on behind this event.
    id: str
    data: Any


def ask(
    folder: Path, method: str, path: str, body: Any = None, sockets: tuple[str, ...] = ("manager.sock",)
) -> Any:
    """Sends a request to the experiment's manager and returns the answer's JSON, ``None`` if it is empty.

    :param folder: the experiment's folder.
    :param sockets: names of the sockets to try, in their order.
    :raises NotRunning: if no manager serves the experiment.
    :raises RestError: if the manager refuses.
    """
    text = request(folder, method, path, body, sockets)
    return json.loads(text) if text.strip() else None


def request(
    folder: Path, method: str, path: str, body: Any = None, sockets: tuple[str, ...] = ("manager.sock",)
) -> bytes:
    """Sends a request as :func:`ask` does and returns the answer's bytes."""
    headers = {"Authorization": f"Bearer {_token(folder)}", "Content-Type": "application/json"}
    payload = None if body is None else json.dumps(body).encode()
    for name in sockets:
        connection = _Connection(folder / name)
        try:
            connection.request(method, path, payload, headers)
            answer = connection.getresponse()
            content = answer.read()
        except (FileNotFoundError, ConnectionError, http.client.IncompleteRead):
            # There is no socket, no manager listens on it, or the manager has died over the request.
            continue
        except socket.timeout:
            raise ManagerError(
                f"the manager of experiment {folder.name} has not answered within {_TIMEOUT_S:.0f} s"
            ) from None
        finally:
            connection.close()
        if answer.status >= 400:
            message = _message(content) or f"{method} {path} was answered with {answer.status}"
            raise RestError(message)
        return content
    raise NotRunning(f"experiment {folder.name} is not running; resume() goes on with it")


def read_events(folder: Path, after: str) -> Generator[Optional[Event]]:
    """Yields the experiment's events behind ``after`` until the manager goes; ``None`` after each short silence.

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
                    return  # The manager waits for its listeners to go.


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
    """Reads the answer to a request for server-sent events, head included, in whatever pieces it comes."""

    def __init__(self) -> None:
        self._rest = b""
        self._in_head = True
        self._fields: dict[str, str] = {}

    def feed(self, received: bytes) -> list[Event]:
        """Returns the events that the bytes complete. An event that is not JSON is passed over."""
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
    # In HTTP 1.0 the answer has no chunks and ends with the connection.
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
        # NNI's routes have `error`, the others are problem documents (RFC 9457).
        return str(problem.get("error") or problem.get("detail") or problem.get("title") or text)
    except (ValueError, AttributeError):
        return text


@contextlib.contextmanager
def _short_path(path: Path) -> Iterator[str]:
    """A path of the socket by way of its open folder: a socket's path has at most 107 bytes."""
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
