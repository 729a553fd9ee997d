"""A plugin that runs trials in containers on this machine, with Docker or Podman.

    trainingService:
      platform: plugin
      command: [python3, containers.py]
      settings: {image: "pytorch/pytorch:2.9.0-cuda12.6-cudnn9-runtime", memory: 8g, cpus: 4, shmSize: 1g}

`trialGpuNumber` assigns free GPUs to a trial, which can access its own folder, the code archive and the agent, but not
the daemon's socket. The agent must be static. Further settings: `program` (docker or podman), `gpus` (their number),
`network` (default `host`, for the reports), `volumes` ([/data:/data:ro]) and `options` (arguments of `run`).
"""

import fcntl
import json
import os
import re
import shutil
import subprocess
from pathlib import Path

from trialkeeper.service import Gone, NoRoom, Problem, Refused, Running, TrainingService, Unavailable

COMMAND_SECONDS = 45  # The manager waits 60 s for the result of a submit.
PULL_SECONDS = 570  # The manager waits ten minutes for the result of `open`.
OVER = ("no such", "not running", "can only kill running")  # Errors of Docker and Podman for an ended container.
LIMITS = {"memory": "--memory", "cpus": "--cpus", "shmSize": "--shm-size"}
SOCKETS = [f"{top}/{name}" for top in ("/var/run", f"/run/user/{os.getuid()}") for name in ("docker.sock", "podman")]
MOUNTS = re.compile(r"(?:^| )(?:-v|--volume)[ =]?([^:, ]+)|\b(?:source|src)=([^, ]+)")  # The mounts in `options`.
KNOWN = {"program", "image", "memory", "cpus", "shmSize", "gpus", "network", "volumes", "options"}


class Containers(TrainingService):
    name = "containers"
    poll_seconds = 1.0

    def run(self, *words, seconds=COMMAND_SECONDS):
        try:
            done = subprocess.run([self.program(), *words], capture_output=True, text=True, timeout=seconds)
        except subprocess.TimeoutExpired as error:
            raise Unavailable(f"{self.program()} {words[0]} did not end within {seconds} s") from error
        if "Cannot connect to" in done.stderr:
            raise Unavailable(done.stderr.strip())
        return done

    def about(self, *words):  # For containers that may not exist.
        done = self.run(*words)
        if done.returncode and not any(part in done.stderr.lower() for part in OVER):
            raise Unavailable(done.stderr.strip() or f"{words[0]} ended with {done.returncode}")
        return done

    def open(self):  # Pulls the image here, where the timeout is long. If it fails, `run` reports the error.
        if self.run("image", "inspect", self.settings["image"]).returncode:
            self.log(f"pulling {self.settings['image']}")
            self.run("pull", self.settings["image"], seconds=PULL_SECONDS)

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
        options = MOUNTS.findall(" ".join(map(str, self.settings.get("options", []))))
        mounts = [mount.split(":")[0] for mount in self.settings.get("volumes", [])] + [a or b for a, b in options]
        names = [*SOCKETS, os.environ.get("DOCKER_HOST", "")[7:] or SOCKETS[0]]
        sockets = [Path(path(name)) for name in names for path in (str, os.path.realpath)]
        for path in mounts:
            if any(Path(os.path.realpath(path)) in (name, *name.parents) for name in sockets) or ".sock" in path:
                message = f"{path} would give trials control of the machine: it contains the daemon's socket"
                problems.append(Problem(message, path="settings.volumes", advice="mount a folder without it"))
        return problems or [Problem(p.stderr.strip()) for p in [self.run("version")] if p.returncode]

    def arguments(self, job):
        """Returns the arguments of `run`. Paths are the same in the container, so the agent's command line is unchanged."""
        podman = "podman" in self.run("--version").stdout.lower()  # `docker` can be an alias of Podman.
        words = ["run", "--detach", "--name", job.name, "--label", "trialkeeper=1", "--volume", f"{job.folder}:{job.folder}"]
        words += ["--network", self.settings.get("network", "host"), "--user", f"{os.getuid()}:{os.getgid()}"]
        words += ["--userns=keep-id"] if podman and os.getuid() else []  # Else the user cannot write to the folder.
        words += ["--init", "--workdir", job.folder, "--env", "HOME=" + job.folder, "--entrypoint", job.argv[0]]
        inside = {job.argv[0], *(word for word in job.argv if Path(word).is_file())}
        for path in sorted(path for path in inside if not path.startswith(job.folder + "/")):
            words += ["--volume", f"{path}:{path}:ro"]
        words += [f"{option}={self.settings[name]}" for name, option in LIMITS.items() if name in self.settings]
        words += [f"--volume={volume}" for volume in self.settings.get("volumes", [])]
        if job.gpus:
            gpus = ",".join(self.free_gpus(job.gpus))
            cdi = [f"--device=nvidia.com/gpu={gpu}" for gpu in gpus.split(",")]
            words += ["--label", f"trialkeeper.gpus={gpus}", *(cdi if podman else ["--gpus", f'"device={gpus}"'])]
        return [*words, *self.settings.get("options", []), self.settings["image"], *job.argv[1:]]

    def free_gpus(self, wanted):
        """Returns GPUs that no trial uses. Labels record the use, so that it survives a restart of this plugin."""
        count = self.settings.get("gpus")
        if count is None:
            count = len(subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True).stdout.splitlines())
        if count < wanted:
            raise Refused(f"a trial wants {wanted} GPUs, and there are {count}")
        listed = self.about("ps", "--filter", "label=trialkeeper.gpus", "--format", '{{.Label "trialkeeper.gpus"}}')
        taken = {gpu for line in listed.stdout.splitlines() for gpu in line.split(",")}
        free = [str(number) for number in range(count) if str(number) not in taken]
        if len(free) < wanted:
            raise NoRoom(f"{len(free)} of {count} GPUs are free", after=5)
        return free[:wanted]

    def start(self, job):
        with open(shutil.which(self.program()), "rb") as lock:  # All users can open this file.
            if job.gpus:
                fcntl.flock(lock, fcntl.LOCK_EX)  # No other experiment chooses the same GPUs.
            done = self.run(*self.arguments(job))
        if done.returncode != 0 and not ("in use by" in done.stderr and self.find(job)):
            self.run("rm", "--force", job.name)
            raise Refused(done.stderr.strip())
        return job.name

    def find(self, job):
        done = self.about("inspect", "--type", "container", "--format", "{{.State.Status}}", job.name)
        if done.stdout.strip() in ("created", "configured", "initialized"):
            self.about("start", job.name)  # An earlier `run` was killed before it started the container.
        return job.name if done.returncode == 0 else None

    def stop(self, handle, job, force):
        self.about("kill", "--signal", "KILL" if force else "TERM", handle)

    def poll(self, jobs):
        done = self.about("inspect", "--type", "container", *jobs)
        found = {one["Name"].lstrip("/"): one["State"] for one in json.loads(done.stdout or "[]")}
        return {handle: self.look(found.get(handle)) for handle in jobs}

    def look(self, state):
        if state is None:
            return Gone(reason="unknown", message="the container was removed")
        if state["Status"] not in ("exited", "dead"):
            return Running()
        return Gone(state["ExitCode"], reason="oom" if state.get("OOMKilled") else "exit", message=state.get("Error"))

    def ended(self, handle, job):
        self.about("rm", handle)
        self.room_changed()

    def clean(self, job):
        self.run("rm", "--force", job.name)


if __name__ == "__main__":
    Containers().serve()
