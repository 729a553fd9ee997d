"""A server that shows an experiment without a manager: ``trial-manager serve``."""

from __future__ import annotations

import subprocess
import tempfile
import time
from pathlib import Path

import trialkeeper
from nni.experiment._rest import NotRunning, ask
from trialkeeper._programs import find_program

__all__ = ["Viewer"]

#: The maximum time in seconds for the server to listen.
_START_TIMEOUT_S = 20.0


class Viewer:
    """A server in its own session, which answers :func:`nni.experiment._rest.ask` until :meth:`stop`."""

    def __init__(self, folder: Path, port: int = 0) -> None:
        """Starts the server and returns when it answers.

        :param folder: the experiment's folder.
        :param port: the port of the pages; 0 for any free port.
        :raises trialkeeper.ManagerError: if the server cannot be started.
        """
        words = ["serve", "--experiment", folder.name, "--port", str(port), "--data-dir", str(folder.parent)]
        with tempfile.TemporaryFile("w+", errors="replace") as output:
            self.process = subprocess.Popen(
                [str(find_program("trial-manager")), *words],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=output,
                start_new_session=True,
            )
            deadline = time.monotonic() + _START_TIMEOUT_S
            while not _answers(folder):
                if self.process.poll() is not None or time.monotonic() > deadline:
                    self.stop()
                    output.seek(0)
                    message = output.read().strip() or f"experiment {folder.name} cannot be shown"
                    raise trialkeeper.ManagerError(message)
                time.sleep(0.02)

    def stop(self) -> None:
        """Stops the server."""
        self.process.terminate()
        self.process.wait()


def _answers(folder: Path) -> bool:
    try:
        ask(folder, "GET", "/check-status")
    except NotRunning:
        return False
    return True
