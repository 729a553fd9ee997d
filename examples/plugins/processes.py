"""A minimal but complete training service, whose jobs are processes of this machine.

`trainingService: {platform: plugin, command: [python3, processes.py]}`. `platform: local` does more. The setting `jobs` limits
the number of concurrent jobs here in a search with several training services.
"""

import os
import signal
import subprocess
from pathlib import Path

from trialkeeper.service import Gone, Running, TrainingService, agent_lives


class Processes(TrainingService):
    poll_seconds = 0.2

    def __init__(self):
        super().__init__()
        self.children = {}

    def start(self, job):
        # In its own session, the job outlives this process.
        child = subprocess.Popen(job.argv, cwd=job.folder, stdin=subprocess.DEVNULL, start_new_session=True)
        self.children[str(child.pid)] = child
        return str(child.pid)

    def room(self):
        return self.settings["jobs"] - len(self.living()) if "jobs" in self.settings else None

    def find(self, job):
        # The agent's lock contains its pid and its attempt, even after the agent has exited.
        lock = Path(job.folder, "spool", "lock")
        words = lock.read_text().split() if lock.exists() else []
        return words[0] if words[1:2] == [job.attempt] else None

    def stop(self, handle, job, force):
        if agent_lives(job.folder):
            os.kill(int(handle), signal.SIGKILL if force else signal.SIGTERM)

    def poll(self, jobs):
        return {handle: self.look(handle, job) for handle, job in jobs.items()}

    def look(self, handle, job):
        child = self.children.get(handle)
        if child is not None:
            return Running() if child.poll() is None else Gone.of(child.returncode)
        # An earlier process of this service started the job.
        return Running() if agent_lives(job.folder) else Gone.of(None)


if __name__ == "__main__":
    Processes().serve()
