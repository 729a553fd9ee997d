"""NNI's functions for logs."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Union

from nni._stdout import enable_global_logging, silence_stdout

__all__ = [
    "enable_global_logging",
    "silence_stdout",
    "start_experiment_logging",
    "stop_experiment_logging",
]

_handlers: dict[str, logging.Handler] = {}


def start_experiment_logging(experiment_id: str, log_file: Union[str, Path], level: str) -> None:
    """Writes the messages of the logger ``nni`` to a file, until :func:`stop_experiment_logging`."""
    if experiment_id in _handlers:
        return
    handler = logging.FileHandler(log_file, encoding="utf-8")
    handler.setFormatter(logging.Formatter("[%(asctime)s] %(levelname)s (%(name)s) %(message)s"))
    handler.setLevel(level.upper())
    logger = logging.getLogger("nni")
    # NNI's logger has this level from its import on.
    if logger.level == logging.NOTSET:
        logger.setLevel(logging.INFO)
    logger.addHandler(handler)
    _handlers[experiment_id] = handler


def stop_experiment_logging(experiment_id: str) -> None:
    """Ends :func:`start_experiment_logging`."""
    handler = _handlers.pop(experiment_id, None)
    if handler is not None:
        logging.getLogger("nni").removeHandler(handler)
        handler.close()
