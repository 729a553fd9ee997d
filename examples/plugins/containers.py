"""Trials in containers of this machine, with Docker or Podman.

    trainingService:
      platform: plugin
      command: [python3, containers.py]
      settings: {image: "pytorch/pytorch:2.9.0-cuda12.6-cudnn9-runtime", memory: 8g, cpus: 4, shmSize: 1g}

`trialGpuNumber` gives a trial that many of the GPUs that no other trial of ours has. The trial sees its own folder, the
code archive and the agent, and never the daemon's socket. The agent must be the static one. Further settings:
`program` (docker or podman), `gpus` (how many there are), `network` (`host`, so that the agent reaches the manager),
`volumes` ([/data:/data:ro]), `options` (words for `run`).
"""

import json
import os
import shutil
import subprocess
from pathlib import Path

from trialkeeper.service import Gone, NoRoom, Problem, Refused, Running, TrainingService, Unavailable

KNOWN = {"program", "image", "memory", "cpus", "shmSize", "gpus", "network", "volumes", "options"}


class Containers(TrainingService):
    name = "containers"
    poll_seconds = 1.0

    def __init__(self):
        super().__init__()
        self.used = {}

    def run(self, *words):
        done = subprocess.run([self.program(), *words], capture_output=True, text=True, timeout=120)
        if "Cannot connect to the Docker daemon" in done.stderr:
            raise Unavailable(done.stderr.strip())
        return done

    def program(self):
        wanted = self.settings.get("program")
        found = next((name for name in ([wanted] if wanted else ["docker", "podman"]) if shutil.which(name)), None)
        if found is None:
            raise Refused(f"{wanted or 'neither docker nor podman'} is on the PATH")
        return found

    def check(self):
        problems = [Problem("unknown setting", path=f"settings.{name}") for name in set(self.settings) - KNOWN]
        if not isinstance(self.settings.get("image"), str):
            problems.append(Problem("is missing; for example python:3.12", path="settings.image"))
        for path in self.settings.get("volumes", []):
            if "docker.sock" in path or "podman.sock" in path:
                message = "would give a trial the machine: it holds the daemon's socket"
                problems.append(Problem(message, path="settings.volumes"))
        return problems or [Problem(p.stderr.strip()) for p in [self.run("version")] if p.returncode]

    def arguments(self, job):
        """The words of `run`. Paths are the same inside, so that the agent's command line holds as it is."""
        words = ["run", "--detach", "--name", job.name, "--label", "trialkeeper=1", "--init"]
        words += ["--network", self.settings.get("network", "host"), "--user", f"{os.getuid()}:{os.getgid()}"]
        words += ["--workdir", job.folder, "--env", "HOME=" + job.folder, "--entrypoint", job.argv[0]]
        words += ["--volume", f"{job.folder}:{job.folder}"]
        inside = {job.argv[0], *(word for word in job.argv if Path(word).is_file())}
        for path in sorted(path for path in inside if not path.startswith(job.folder + "/")):
            words += ["--volume", f"{path}:{path}:ro"]
        for setting, option in {"memory": "--memory", "cpus": "--cpus", "shmSize": "--shm-size"}.items():
            if setting in self.settings:
                words.append(f"{option}={self.settings[setting]}")
        for volume in self.settings.get("volumes", []):
            words += ["--volume", volume]
        if job.gpus:
            words += ["--gpus", '"device=' + ",".join(self.take_gpus(job)) + '"']
        return [*words, *self.settings.get("options", []), self.settings["image"], *job.argv[1:]]

    def take_gpus(self, job):
        count = self.settings.get("gpus")
        if count is None:
            count = len(subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True).stdout.splitlines())
        taken = {gpu for gpus in self.used.values() for gpu in gpus}
        free = [str(number) for number in range(count) if str(number) not in taken]
        if count < job.gpus:
            raise Refused(f"a trial wants {job.gpus} GPUs, and there are {count}")
        if len(free) < job.gpus:
            raise NoRoom(f"{len(free)} of {count} GPUs are free", after=5)
        self.used[job.name] = free[: job.gpus]
        return self.used[job.name]

    def start(self, job):
        done = self.run(*self.arguments(job))
        if done.returncode != 0:
            self.used.pop(job.name, None)
            self.run("rm", "--force", job.name)
            raise Refused(done.stderr.strip())
        return job.name

    def find(self, job):
        return job.name if self.run("inspect", job.name).returncode == 0 else None

    def stop(self, handle, job, force):
        self.run("kill", "--signal", "KILL" if force else "TERM", handle)

    def poll(self, jobs):
        done = self.run("inspect", "--type", "container", *jobs)
        found = {one["Name"].lstrip("/"): one["State"] for one in json.loads(done.stdout or "[]")}
        return {handle: self.look(handle, job, found.get(handle)) for handle, job in jobs.items()}

    def look(self, handle, job, state):
        if state is None:
            self.used.pop(handle, None)
            return Gone(reason="unknown", message="its container was removed")
        if state["Status"] not in ("exited", "dead"):
            return Running()
        self.used.pop(handle, None)
        self.run("rm", handle)
        self.room()
        if state.get("OOMKilled"):
            return Gone(code=state["ExitCode"], reason="oom")
        return Gone(code=state["ExitCode"], message=state.get("Error") or None)

    def clean(self, job):
        self.run("rm", "--force", job.name)


if __name__ == "__main__":
    Containers().serve()
