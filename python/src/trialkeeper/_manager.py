"""The process ``trial-manager run`` or ``resume`` that this process started."""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import re
import signal
import subprocess
import tempfile
import time
import weakref
from collections.abc import Mapping, Sequence
from typing import Any, Optional

from trialkeeper._programs import find_program
from trialkeeper.errors import ConfigurationError, ManagerError

__all__ = ["ManagerProcess", "failure"]

_STDIN = "standard input: "
_PLACE = re.compile(r"\bline 1, column \d+: ")
_HELP = "For more information, try '--help'."
#: A command, which stays as it is, or a flag that is an argument of :class:`trialkeeper.Experiment`.
_FLAG = re.compile(
    r"`[^`]*`|--(id|host|port|data-dir|url-prefix|trial-concurrency|max-trial-number|max-experiment-duration)\b"
    r"(?: <\w+>| (0|N|TIME)\b)?"
)
_STARTED = re.compile(r"^experiment (\S+) on (\S+)$", re.MULTILINE)
#: The lines of the output that are warnings: of the log, of the start, and of the first result.
_WARNING = re.compile(
    r"\S+Z +(?:WARN|ERROR) (.+)"
    r"|  (?! |results are stored in |trials reach the manager at |the experiment file states no direction;)(.+)"
    r"|(the search m\w+ises .+)"
)
#: The maximum time in seconds for the manager to check the experiment file and to listen.
_START_TIMEOUT_S = 60.0
#: The maximum time in seconds for the manager to exit if it does not wait for its trials.
_LEAVE_TIMEOUT_S = 10.0

#: The watchdog ends with a line on its standard input. At the end of the input, it stops the manager.
_WATCH = 'read -r line || kill "$1"'

#: The running managers that exit with this process, and their watchdogs. Scripts need no variable for them.
_attached: dict[ManagerProcess, subprocess.Popen[bytes]] = {}


class ManagerProcess:
    """A manager in its own session, so that the interrupt of a notebook does not reach it."""

    def __init__(self, words: Sequence[str], config: Optional[Mapping[str, Any]], *, detach: bool = False) -> None:
        """Starts the manager. Returns when it listens, or when it has exited because nothing was left to do.

        :param config: the content of the experiment file, if the command line names the file ``-``.
        :param detach: whether the manager outlives this process.
        :raises ConfigurationError: if the configuration, the port or the data directory cannot be used.
        """
        _release_ended()
        command = [str(find_program("trial-manager")), *words]
        #: The experiment's id; ``None`` if nothing was left to do.
        self.id: Optional[str] = None
        #: The address of the portal.
        self.url: Optional[str] = None
        # The manager's output goes to a file, because an unread pipe would eventually block it.
        self._stderr = tempfile.TemporaryFile()
        self._searched_for_warnings = 0
        # This object may read the file until it is deleted, even at the exit of this process.
        weakref.finalize(self, self._stderr.close).atexit = False
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=self._stderr,
            text=True,
            start_new_session=True,
        )
        try:
            if not detach:
                _attached[self] = _start_watchdog(self._process.pid)
            self._hand_over(config)
            self._wait_until_started()
        except BaseException:
            self.stop()
            raise

    @property
    def is_running(self) -> bool:
        """``True`` while the process runs."""
        return self._poll() is None

    @property
    def exit_code(self) -> Optional[int]:
        """The exit code, negative after a signal; ``None`` while the process is running."""
        return self._poll()

    def wait(self, timeout: Optional[float]) -> int:
        """Waits for the process and returns its exit code.

        :raises subprocess.TimeoutExpired: if the process is still running after the timeout.
        """
        code = self._process.wait(timeout)
        self._release()
        return code

    def terminate(self) -> None:
        """Makes the manager stop its trials. A second call makes it exit without waiting for them."""
        if self._process.poll() is None:
            # A program that was started in the background ignores SIGINT, and so does its manager.
            self._process.terminate()

    def stop(self) -> None:
        """Makes the manager stop its trials and waits for its exit. Ctrl-C makes the manager exit at once."""
        try:
            self.terminate()
            self.wait(None)
        except KeyboardInterrupt:
            self.terminate()
            try:
                self.wait(_LEAVE_TIMEOUT_S)
            except (subprocess.TimeoutExpired, KeyboardInterrupt):
                self._process.kill()
                self.wait(None)
            raise

    def output(self) -> str:
        """Returns the output of the manager so far."""
        # The manager shares the position of this open file, so seek() would move its writes.
        said = os.pread(self._stderr.fileno(), os.fstat(self._stderr.fileno()).st_size, 0)
        return said.decode(errors="replace")

    def new_warnings(self) -> list[str]:
        """Returns the warnings of the manager that this method has not returned before."""
        said = os.pread(
            self._stderr.fileno(), os.fstat(self._stderr.fileno()).st_size, self._searched_for_warnings
        )
        lines = said[: said.rfind(b"\n") + 1]
        self._searched_for_warnings += len(lines)
        found = (_WARNING.fullmatch(line) for line in lines.decode(errors="replace").split("\n"))
        return [match[match.lastindex or 0] for match in found if match]

    def describe_end(self) -> str:
        """Describes the end of the process for a message."""
        code = self._process.poll()
        if code is not None and code < 0:
            with contextlib.suppress(ValueError):
                return f"was killed by {signal.Signals(-code).name}"
        return f"ended with exit code {code}"

    def _poll(self) -> Optional[int]:
        code = self._process.poll()
        if code is not None:
            self._release()
        return code

    def _release(self) -> None:
        """Ends the watchdog of a manager that has ended."""
        watchdog = _attached.pop(self, None)
        if watchdog is not None:
            watchdog.communicate(b"\n")

    def _hand_over(self, config: Optional[Mapping[str, Any]]) -> None:
        assert self._process.stdin is not None
        # A manager that rejects its command line reads nothing. Its message follows.
        with contextlib.suppress(BrokenPipeError):
            if config is not None:
                json.dump(config, self._process.stdin)
            self._process.stdin.close()

    def _wait_until_started(self) -> None:
        deadline = time.monotonic() + _START_TIMEOUT_S
        while True:
            code = self._process.poll()
            said = self.output()
            if started := _STARTED.search(said):
                self.id, self.url = started.groups()
                return
            if code == 0:
                return  # Nothing was left to do: the resumed search is over.
            if code is not None:
                raise failure(code, said)
            if time.monotonic() > deadline:
                raise ManagerError(f"trial-manager has not started within {_START_TIMEOUT_S:.0f} s: {said}")
            time.sleep(0.01)


def failure(code: int, said: str) -> ManagerError:
    """Returns the error for an exit code of ``trial-manager`` and its output."""
    message = said.strip() or f"trial-manager ended with exit code {code}"
    message = message.removeprefix("trial-manager: ").removeprefix("error: ").removesuffix(_HELP).rstrip()
    if message.startswith(_STDIN):
        # A mapping is one line on standard input, so its position says nothing. The message names the field.
        message = "the configuration: " + _PLACE.sub("", message.removeprefix(_STDIN))
    return ConfigurationError(_FLAG.sub(_name_argument, message)) if code == 2 else ManagerError(message)


def _name_argument(found: re.Match[str]) -> str:
    """Returns the Python argument in place of a flag, as ``port=0`` for ``--port 0``."""
    flag, value = found.groups()
    if flag is None:
        return found.group()
    return flag.replace("-", "_") + (f"={value}" if value else "")


def _start_watchdog(manager: int) -> subprocess.Popen[bytes]:
    """Starts a shell that stops the manager with this process id if this process ends without exit hooks.

    Signals and ``os._exit`` run no hooks. The kernel then closes this end of the pipe. The manager's own standard
    input cannot serve: its end marks the end of the configuration.
    """
    return subprocess.Popen(
        ["/bin/sh", "-c", _WATCH, "trialkeeper-watchdog", str(manager)],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )


def _release_ended() -> None:
    """Releases the managers that have ended without a wait, so that they use no processes and files."""
    for manager in list(_attached):
        manager._poll()


@atexit.register
def _stop_attached() -> None:
    for manager in list(_attached):
        manager.stop()


def _leave_attached() -> None:
    """Leaves the managers to the parent of this forked process. An open pipe would outlive the parent."""
    for watchdog in _attached.values():
        assert watchdog.stdin is not None
        watchdog.stdin.close()
    _attached.clear()


os.register_at_fork(after_in_child=_leave_attached)
