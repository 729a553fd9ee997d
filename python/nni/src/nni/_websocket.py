"""A minimal WebSocket client (RFC 6455) for the manager's channel to tuners."""

from __future__ import annotations

import base64
import os
import socket
import struct
import threading
from typing import Optional
from urllib.parse import urlsplit

__all__ = ["WebSocket"]

_TEXT, _CLOSE, _PING, _PONG = 0x1, 0x8, 0x9, 0xA
#: The maximum time in seconds for the manager to accept the connection.
_CONNECT_TIMEOUT_S = 10.0


class WebSocket:
    """An open connection. A thread can receive while other threads send."""

    def __init__(self, url: str) -> None:
        """Connects to ``ws://HOST:PORT/PATH``.

        :raises OSError: if no WebSocket is served there.
        """
        parts = urlsplit(url)
        if parts.scheme != "ws" or parts.hostname is None:
            raise OSError(f"{url}: not an address of the form ws://HOST:PORT/PATH")
        self._socket = socket.create_connection((parts.hostname, parts.port or 80), _CONNECT_TIMEOUT_S)
        self._received = b""
        self._sending = threading.Lock()
        key = base64.b64encode(os.urandom(16)).decode()
        self._socket.sendall(
            f"GET {parts.path or '/'} HTTP/1.1\r\nHost: {parts.netloc}\r\nUpgrade: websocket\r\n"
            f"Connection: Upgrade\r\nSec-WebSocket-Key: {key}\r\nSec-WebSocket-Version: 13\r\n\r\n".encode()
        )
        while b"\r\n\r\n" not in self._received:
            self._read_more()
        head, _, self._received = self._received.partition(b"\r\n\r\n")
        status = head.split(b"\r\n")[0].decode(errors="replace")
        if " 101 " not in f"{status} ":
            raise OSError(f"{parts.hostname}:{parts.port} refused the connection: {status}")
        self._socket.settimeout(None)

    def send(self, text: str) -> None:
        """Sends a text."""
        self._send_frame(_TEXT, text.encode())

    def receive(self) -> Optional[str]:
        """Waits for the next text; ``None`` when the connection is closed."""
        message = b""
        while True:
            try:
                last, opcode, payload = self._read_frame()
            except OSError:
                return None
            if opcode == _CLOSE:
                self.close()
                return None
            if opcode == _PING:
                self._send_frame(_PONG, payload)
            elif opcode != _PONG:
                message += payload
                if last:
                    return message.decode()

    def close(self) -> None:
        """Closes the connection; does nothing if it is closed."""
        try:
            self._send_frame(_CLOSE, struct.pack("!H", 1000))
            self._socket.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass  # The peer closed the connection first.
        self._socket.close()

    def _send_frame(self, opcode: int, payload: bytes) -> None:
        length = len(payload)
        if length < 126:
            head = struct.pack("!BB", 0x80 | opcode, 0x80 | length)
        elif length < 1 << 16:
            head = struct.pack("!BBH", 0x80 | opcode, 0x80 | 126, length)
        else:
            head = struct.pack("!BBQ", 0x80 | opcode, 0x80 | 127, length)
        # Clients must mask frames. A mask of zeros is valid and leaves the payload unchanged.
        with self._sending:
            self._socket.sendall(head + bytes(4) + payload)

    def _read_frame(self) -> tuple[bool, int, bytes]:
        first, second = self._read(2)
        length = second & 0x7F
        if length == 126:
            (length,) = struct.unpack("!H", self._read(2))
        elif length == 127:
            (length,) = struct.unpack("!Q", self._read(8))
        return bool(first & 0x80), first & 0x0F, self._read(length)

    def _read(self, length: int) -> bytes:
        while len(self._received) < length:
            self._read_more()
        data, self._received = self._received[:length], self._received[length:]
        return data

    def _read_more(self) -> None:
        data = self._socket.recv(1 << 16)
        if not data:
            raise ConnectionError("the manager has closed the connection")
        self._received += data
