"""The output of this package, and NNI's two functions that configure it."""

from __future__ import annotations

import contextlib

__all__ = ["enable_global_logging", "say", "silence_stdout"]

_is_silent = False


def say(line: str) -> None:
    """Prints a line, unless the user has silenced this package or nothing reads the output."""
    if not _is_silent:
        with contextlib.suppress(OSError, ValueError):
            print(line, flush=True)


def silence_stdout() -> None:
    """Silences this package."""
    global _is_silent
    _is_silent = True


def enable_global_logging(enable: bool = True) -> None:
    """Does nothing, because this package installs no log handlers. The user's handlers receive all logs."""
