"""The connection of an advisor to the manager."""

from __future__ import annotations

import json
from typing import Any, Optional

from nni._websocket import WebSocket
from nni.runtime.tuner_command_channel.command_type import CommandType

__all__ = ["TunerCommandChannel"]

#: TrialKeeper's own messages, which an advisor does not handle.
_OWN = ("_nop_", "_bye_")


class TunerCommandChannel:
    """Sends and receives messages of the types :class:`CommandType`, after :meth:`connect`."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._channel = _JsonChannel()

    def connect(self) -> None:
        """Connects to the manager.

        :raises OSError: if it does not answer.
        """
        self._channel.socket = WebSocket(self._url)

    def disconnect(self) -> None:
        """Closes the connection."""
        if self._channel.socket is not None:
            self._channel.socket.close()

    def _send(self, command: CommandType, data: str) -> None:
        self._channel.send({"type": command.value, "content": data})

    def _receive(self) -> tuple[Optional[CommandType], Optional[str]]:
        """Waits for the next message. Both values are ``None`` when the connection is closed."""
        while (message := self._channel.receive()) is not None:
            if message["type"] not in _OWN:
                return CommandType(message["type"]), message.get("content") or ""
            if message["type"] == "_bye_":
                break
        return None, None


class _JsonChannel:
    """A connection for JSON objects. The manager's start-up code sends its reports through it."""

    def __init__(self) -> None:
        self.socket: Optional[WebSocket] = None

    def send(self, message: dict[str, Any]) -> None:
        if self.socket is None:
            raise ConnectionError("the channel is not connected")
        self.socket.send(json.dumps(message))

    def receive(self) -> Optional[dict[str, Any]]:
        text = None if self.socket is None else self.socket.receive()
        if text is None:
            return None
        message: dict[str, Any] = json.loads(text)
        return message
