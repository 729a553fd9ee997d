"""The output of this package, and NNI's two functions that configure it."""

from __future__ import annotations

import contextlib

__all__ = ["LOG_FORMAT", "enable_global_logging", "say", "silence_stdout"]

#: NNI's format of the logs of trials and tuners.
LOG_FORMAT = "[%(asctime)s] %(levelname)s (%(name)s/%(threadName)s) %(message)s"

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
    """Prints the logs of all modules from ``INFO`` on to standard error, which the portal shows.

    In a trial, the import of this package calls this function.

    The handlers of the user have precedence. NNI's handler of the root logger would disable a later
    ``logging.basicConfig``, and print the lines of loggers with own handlers twice.
    """
    import logging

    if enable:
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter(LOG_FORMAT, "%Y-%m-%d %H:%M:%S"))
        logging.lastResort = handler
        root = logging.getLogger()
        root.setLevel(min(root.level, logging.INFO))
    elif logging.lastResort is not None:
        logging.lastResort.setLevel(logging.WARNING)
