"""The output of this package itself, and NNI's two functions that choose it."""

from __future__ import annotations

__all__ = ["enable_global_logging", "say", "silence_stdout"]

_is_silent = False


def say(line: str) -> None:
    """Prints a line, unless the user wants none of this package."""
    if not _is_silent:
        print(line, flush=True)


def silence_stdout() -> None:
    """Has this package print nothing of its own from now on."""
    global _is_silent
    _is_silent = True


def enable_global_logging(enable: bool = True) -> None:
    """Does nothing: this package installs no handlers, so all modules' logs go where the user sends them."""
