"""A minimal but complete training service, whose jobs are processes of this machine.

`trainingService: {platform: plugin, command: [python3, processes.py]}`. `platform: local` does more. The setting `jobs` limits
the number of concurrent jobs here in a search with several training services.
"""

import os
import signal
import subprocess
import time
from pathlib import Path

from trialkeeper.service import Gone, Running, TrainingService

#: A shell that becomes the agent as soon as its pid is recorded. If this process dies before that, `read` fails and the
#: job never starts. So no job can start unrecorded, and then start again.
SHELL = ["sh", "-c", 'read -r _ && exec "$@" </dev/null', "sh"]

#: The maximum time in seconds that an agent takes from its start to its lock.
START_SECONDS = 30


class Processes(TrainingService):
    poll_seconds = 0.2

    def __init__(self):
        super().__init__()
        self.children = {}

    def start(self, job):
        # In its own session, the job outlives this process.
        command = [*SHELL, *job.argv]
        child = subprocess.Popen(command, cwd=job.folder, stdin=subprocess.PIPE, start_new_session=True)
        self.children[str(child.pid)] = child
        Path(job.folder, "process").write_text(f"{child.pid} {job.attempt}")
        with child.stdin as shell:
            shell.write(b"start\n")
        return str(child.pid)

    def room(self):
        return self.settings["jobs"] - len(self.living()) if "jobs" in self.settings else None

    def find(self, job):
        end = time.monotonic() + START_SECONDS
        pid = recorded_pid(Path(job.folder, "process"), job.attempt)
        while pid is not None and time.monotonic() < end:
            # The agent's lock contains its pid and its attempt, even after the agent has exited.
            if recorded_pid(Path(job.folder, "spool", "lock"), job.attempt) is not None:
                return pid
            if not Path("/proc", pid).exists():
                break
            time.sleep(0.01)
        return None

    def stop(self, handle, job, force):
        if is_process_of(handle, job):
            os.kill(int(handle), signal.SIGKILL if force else signal.SIGTERM)

    def poll(self, jobs):
        return {handle: self.look(handle, job) for handle, job in jobs.items()}

    def look(self, handle, job):
        child = self.children.get(handle)
        if child is not None:
            return Running() if child.poll() is None else Gone.of(child.returncode)
        # An earlier process of this service started the job.
        return Running() if is_process_of(handle, job) else Gone.of(None)


def is_process_of(pid, job):
    """Returns whether a process is a job's shell or agent. The agent may have no lock yet, and the pid may be reused."""
    try:
        words = Path("/proc", pid, "cmdline").read_text(errors="replace").split("\0")
    except OSError:
        return False
    return job.argv[-1] in words and job.attempt in words


def recorded_pid(file, attempt):
    """Returns the pid in a file with the text "PID ATTEMPT ...", or None if the file is absent or of another attempt."""
    words = file.read_text().split() if file.exists() else []
    return words[0] if words[1:2] == [attempt] else None


if __name__ == "__main__":
    Processes().serve()
