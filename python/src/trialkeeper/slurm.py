"""A plugin that runs trials as jobs of Slurm.

    trainingService:
      platform: plugin
      command: [python3, -m, trialkeeper.slurm]
      settings: {partition: gpu, time: "2:00:00", memory: 8G, cpus: 4}

Each attempt is a batch job, which the plugin finds by its name. docs/slurm.md describes the settings.
"""

from __future__ import annotations

import difflib
import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Optional

from trialkeeper.service import (
    Gone,
    Job,
    NoRoom,
    Problem,
    Refused,
    Running,
    ServiceError,
    State,
    TrainingService,
    Unavailable,
    Waiting,
    agent_lives,
)

__all__ = ["Slurm", "agent_grace", "free_jobs", "job_state", "read_jobs"]

_COMMAND_SECONDS = 60.0
_RECOMMENDED_KILL_WAIT = 30
"""Slurm's default, which gives the trial its usual time."""
_GRACE_SECONDS = 20
"""The agent's own time limit for the trial."""
_AFTER_TRIAL_SECONDS = 8
"""The time that the agent needs after the trial, with a margin."""
_JOB_FILE = "slurm.job"
"""The file in which a job writes its id and its attempt. Slurm forgets ended jobs."""
_SACCT_SINCE = "now-60days"

_COLUMNS = "JobID:.20,State:.20,exit_code:.12,Reason:.200"
_NODE_COLUMNS = (
    "NodeList:.100,Partition:.100,Available:.12,StateCompact:.16,OverSubscribe:.16,"
    "CPUsState:.40,Memory:.20,AllocMem:.20,Gres:.500,GresUsed:.500"
)
_TEXT = (str, int)
"""In YAML, a text of digits without quotes is a number."""
_SETTINGS: dict[str, tuple[type, ...]] = {
    "partition": _TEXT,
    "account": _TEXT,
    "qos": _TEXT,
    "time": _TEXT,
    "memory": _TEXT,
    "cpus": (int,),
    "sbatch": (list,),
    "wrap": (list,),
    "pollSeconds": (int,),
}
_OPTIONS = {
    "partition": "--partition",
    "account": "--account",
    "qos": "--qos",
    "time": "--time",
    "memory": "--mem",
    "cpus": "--cpus-per-task",
}
_ENDED = {
    "COMPLETED": "exit",
    "FAILED": "exit",
    "TIMEOUT": "timeout",
    "DEADLINE": "timeout",
    "OUT_OF_MEMORY": "oom",
    "PREEMPTED": "preempted",
    "NODE_FAIL": "node_lost",
    "BOOT_FAIL": "node_lost",
    "CANCELLED": "revoked",
    "REVOKED": "revoked",
}
_OWN_DEFAULTS = {"SLURM_CONF", "SLURM_JWT", "SBATCH_ACCOUNT", "SBATCH_PARTITION", "SBATCH_QOS"}
_OF_JOBS = ("SLURM_", "SBATCH_")
"""If the manager itself runs in a job, these variables describe that job and override options."""
_OF_LISTS = ("SQUEUE_", "SINFO_", "SACCT_", "SCANCEL_", "SCONTROL_")
"""The user's filters and formats, which would hide jobs from the plugin."""
_OF_OTHER_JOBS = {"SBATCH_ARRAY_INX", "SBATCH_WAIT", "SBATCH_CLUSTERS", "SLURM_CLUSTERS"}
"""An attempt is a single job, and `sbatch` must not wait for its end. Options name the clusters."""
_WAITING = {"PENDING", "CONFIGURING", "POWER_UP_NODE", "SUSPENDED", "REQUEUED", "REQUEUE_HOLD", "SPECIAL_EXIT"}
_UNREACHABLE_ERRORS = re.compile(
    r"slurm controller|standby mode|timed out|Connection (refused|reset)|connection failure|Transport endpoint"
    r"|Zero Bytes|message length|Message receive|munge|authenticat|credential|I/O error writing|temporarily"
    r"|presently disabled|submissions disabled|(connect|talking) to (the )?database|can't be reached now"
    r"|fetch config|configuration source",
    re.IGNORECASE,
)
_SHOWN_JOB = re.compile(
    r" JobState=(?P<state>\w+) Reason=(?P<reason>.*?) Dependency=.* ExitCode=(?P<code>\d+):(?P<signal>\d+)"
)
_RECORDED_JOB = re.compile(r"^(?P<state>\w+)[^|]*\|(?P<code>\d+):(?P<signal>\d+)(?P<reason>)$", re.MULTILINE)
_LIMITS = re.compile(r"\b(?:QOS|Assoc|Max)[A-Z]\w*")
_LIMITS_OF_COUNT = re.compile(r"Submit|Jobs")
_LIMIT_ERRORS = re.compile(r"violates accounting/QOS policy|Job submit limit|too many jobs", re.IGNORECASE)


def read_jobs(text: str) -> dict[str, tuple[str, int, str]]:
    """Parses the output of ``squeue``: state, wait status and reason of each job. Other lines are skipped."""
    jobs = {}
    for line in text.splitlines():
        # Reasons contain blanks.
        parts = line.split(None, 3)
        if len(parts) >= 3 and parts[0].isdigit() and parts[2].lstrip("-").isdigit():
            jobs[parts[0]] = (parts[1], int(parts[2]), parts[3].strip() if len(parts) > 3 else "")
    return jobs


def mebibytes(size: str) -> Optional[int]:
    """Parses the value of ``--mem``. None: the form is unknown."""
    found = re.fullmatch(r"(\d+)([KMGT]?)B?", size.strip(), re.IGNORECASE)
    if found is None:
        return None
    kibibytes = int(found[1]) << {"K": 0, "": 10, "M": 10, "G": 20, "T": 30}[found[2].upper()]
    return (kibibytes + 1023) >> 10


def free_jobs(text: str, cpus: int, memory: int, gpus: int, all_partitions: bool = True) -> int:
    """Counts the jobs that can begin now, from the output of ``sinfo``: a line for each node and partition.

    ``memory`` is in MiB; 0: all memory of a node. Without ``all_partitions``, only the default partition counts.
    """
    free = {}
    for line in text.splitlines():
        columns = line.split()
        if len(columns) != len(_NODE_COLUMNS.split(",")):
            continue
        node, partition, available, state, shared, processors, total, taken, gres, used = columns
        is_open = available == "up" and state in ("idle", "mix") and (all_partitions or partition.endswith("*"))
        # The numbers of processors: allocated, idle, other, total.
        numbers = [*processors.split("/"), total, taken]
        if not is_open or not all(number.isdigit() for number in numbers) or len(numbers) != 6:
            continue
        rooms = [int(numbers[1]) // cpus]
        rooms.append((int(total) - int(taken)) // memory if memory else int(taken == "0"))
        if shared == "EXCLUSIVE":
            rooms.append(int(state == "idle"))
        if gpus:
            rooms.append((_gpus(gres) - _gpus(used)) // gpus)
        free[node] = max(min(rooms), 0)
    return sum(free.values())


def _gpus(gres: str) -> int:
    """Counts GPUs in ``gpu:2`` or ``gpu:a100:2(S:0-1),shard:8``."""
    return sum(int(number) for number in re.findall(r"(?:^|,)gpu(?::[^:,()]+)?:(\d+)", gres))


def job_state(state: str, status: int, reason: str, output: str = "") -> State:
    """Translates a job's state. ``status`` is a wait status, and ``output`` the end of Slurm's output file."""
    if state in _WAITING:
        return Waiting(f"{state}: {reason}" if reason and reason != "None" else state)
    if state not in _ENDED:
        # Includes COMPLETING, in which processes of the job may be running.
        return Running()
    why = _ENDED[state]
    message = None if reason in ("", "None", "NonZeroExitCode") else f"Slurm says {state}: {reason}"
    if state == "OUT_OF_MEMORY" or "Exceeded job memory limit" in output:
        # The status is 0:125 in this state, which is not a signal.
        return Gone(reason="oom", message=message)
    if state == "FAILED" and reason == "JobLaunchFailure" and status & 127 == 53:
        return Gone(reason="start_failed", message="Slurm cannot write the job's folder on the node")
    signal = status & 127
    if signal:
        return Gone(signal=signal, reason=why, message=message)
    return Gone(code=status >> 8, reason=why, message=message)


def is_full(message: str) -> bool:
    """Returns whether a refusal is due to the number of jobs. Other limits exclude the job forever."""
    limits = _LIMITS.findall(message)
    if limits:
        return any(_LIMITS_OF_COUNT.search(limit) for limit in limits)
    return _LIMIT_ERRORS.search(message) is not None


def _environment() -> dict[str, str]:
    others = _OF_LISTS + (_OF_JOBS if "SLURM_JOB_ID" in os.environ else ())
    dropped = {name for name in os.environ if name.startswith(others)} - _OWN_DEFAULTS | _OF_OTHER_JOBS
    return {name: value for name, value in os.environ.items() if name not in dropped}


def _on(clusters: str) -> list[str]:
    return ["-M", clusters] if clusters else []


def _parts(handle: str) -> tuple[str, list[str]]:
    """Splits a handle: the id, and options for the cluster, which the handle of a local job does not name."""
    number, _, cluster = handle.partition(";")
    return number, _on(cluster)


class Slurm(TrainingService):
    """The training service."""

    name = "slurm"
    poll_seconds = 5.0
    queues = True

    def __init__(self) -> None:
        super().__init__()
        self._missing: dict[str, int] = {}
        self._kill_wait: Optional[int] = None

    def run(self, *argv: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
        """Runs a command of Slurm's."""
        try:
            done = subprocess.run(
                argv, input=stdin, text=True, capture_output=True, timeout=_COMMAND_SECONDS, env=_environment()
            )
        except FileNotFoundError as error:
            raise Refused(f"{argv[0]} is not on the PATH; can this machine submit jobs to Slurm?") from error
        except subprocess.TimeoutExpired as error:
            raise Unavailable(f"{argv[0]} did not end within {_COMMAND_SECONDS:.0f} s") from error
        if done.returncode != 0 and _UNREACHABLE_ERRORS.search(done.stderr):
            raise Unavailable(done.stderr.strip())
        return done

    def check(self) -> list[Problem]:
        problems = []
        for name, value in self.settings.items():
            path = f"settings.{name}"
            known = _SETTINGS.get(name)
            if known is None:
                near = difflib.get_close_matches(name, _SETTINGS, 1)
                advice = f"did you mean {near[0]}?" if near else f"there are {', '.join(_SETTINGS)}"
                problems.append(Problem("unknown setting", path=path, advice=advice))
            elif not isinstance(value, known) or isinstance(value, bool):
                expected = " or ".join(one.__name__ for one in known)
                problems.append(Problem(f"expected {expected}, found {type(value).__name__}", path=path))
        if problems:
            return problems
        partition = self.settings.get("partition")
        if partition is not None and not self._partitions("-p", str(partition)):
            advice = f"there are {', '.join(self._partitions('-a'))}"
            problems.append(
                Problem(f"there is no partition {partition}", path="settings.partition", advice=advice)
            )
        kill_wait = self.kill_wait()
        grace = agent_grace(kill_wait)
        if grace is not None:
            message = (
                f"KillWait is {kill_wait} s: after a time limit or a preemption, a trial has only {grace} s to end"
            )
            problems.append(Problem(message, level="warning", advice=f"ask for KillWait={_RECOMMENDED_KILL_WAIT}"))
        return problems

    def _partitions(self, *words: str) -> list[str]:
        lines = self.run("sinfo", *_on(self.clusters()), "-h", *words, "-o", "%R").stdout.splitlines()
        return [line.strip() for line in lines if line.strip() and not line.startswith("CLUSTER:")]

    def _grace(self) -> Optional[int]:
        try:
            return agent_grace(self.kill_wait())
        except ServiceError:
            # `sbatch` shows whether Slurm answers.
            return None

    def kill_wait(self) -> Optional[int]:
        """Returns the seconds between SIGTERM and SIGKILL in this cluster. None: unknown."""
        if self._kill_wait is None:
            config = self.run("scontrol", *_on(self.clusters()), "show", "config").stdout
            found = re.search(r"^KillWait\s*=\s*(\d+)", config, re.MULTILINE)
            self._kill_wait = int(found[1]) if found else None
        return self._kill_wait

    def open(self) -> None:
        self.poll_seconds = max(2.0, float(self.settings.get("pollSeconds", self.poll_seconds)))

    def clusters(self) -> str:
        """Returns the names of the clusters that the user chose, as for ``-M``. Empty: the local one."""
        options = "\0".join(str(word) for word in self.settings.get("sbatch", []))
        chosen = re.findall(r"(?:^|\0)(?:--clusters?[=\0]|-M\0?)([^\0]+)", options)
        variables = (os.environ.get(name) for name in ("SLURM_CLUSTERS", "SBATCH_CLUSTERS"))
        return chosen[-1] if chosen else next(filter(None, variables), "")

    def arguments(self, job: Job) -> list[str]:
        """Returns the options of ``sbatch``."""
        words = ["--parsable", "--no-requeue", "--export=NONE", "-J", job.name]
        words += ["-D", job.folder, "-o", os.path.join(job.folder, "slurm.out")]
        for name, option in _OPTIONS.items():
            if name in self.settings:
                words.append(f"{option}={self.settings[name]}")
        if self.clusters():
            words.append(f"--clusters={self.clusters()}")
        if job.gpus:
            # Without a number of nodes, Slurm may give the GPUs on several ones.
            words += [f"--gpus={job.gpus}", "--nodes=1"]
        return words + [str(word) for word in self.settings.get("sbatch", [])]

    def start(self, job: Job) -> str:
        agent = list(job.argv)
        grace = self._grace()
        if grace is not None and "--shell" in agent and "--grace" not in agent:
            # The agent then writes the verdict before Slurm kills it.
            at = agent.index("--shell")
            agent[at:at] = ["--grace", f"{grace}s"]
        wrapped = [*(str(word) for word in self.settings.get("wrap", [])), *agent]
        # A job that Slurm requeues by itself would run the same attempt twice.
        head = 'if [ "${SLURM_RESTART_COUNT:-0}" != 0 ]; then echo "requeued: not run twice" >&2; exit 125; fi'
        # `find` reads the id. A disk without space must not prevent the trial.
        number = "$SLURM_JOB_ID;$SLURM_CLUSTER_NAME" if self.clusters() else "$SLURM_JOB_ID"
        note = f'echo "{number} {job.attempt}" >{shlex.quote(os.path.join(job.folder, _JOB_FILE))} || :'
        # `--export=NONE` also applies to each `srun` of the trial, unless the variable is removed.
        script = f"#!/bin/sh\n{head}\n{note}\nunset SLURM_EXPORT_ENV\nexec {shlex.join(wrapped)}\n"
        done = self.run("sbatch", *self.arguments(job), stdin=script)
        if done.returncode != 0:
            message = done.stderr.strip() or f"sbatch ended with {done.returncode}"
            raise NoRoom(message) if is_full(message) else Refused(message)
        # A site's wrapper may print more than `--parsable` does.
        found = re.findall(r"^\s*(\d+(?:;\S+)?)\s*$", done.stdout, re.MULTILINE)
        if not found:
            raise Unavailable(f"sbatch printed no id of a job: {done.stdout.strip()!r}")
        return str(found[-1])

    def find(self, job: Job) -> Optional[str]:
        started = _started_job(job)
        if started is not None:
            return started
        where = _on(self.clusters())
        words = ["-h", "-a", "--me", "-t", "all", "-n", job.name, "-O", "JobID:.20,Cluster:.100"]
        done = self.run("squeue", *where, *words)
        if done.returncode != 0:
            raise Unavailable(done.stderr.strip())
        found = self._handles(done.stdout)
        if not found and shutil.which("sacct") is not None:
            # The queue forgets a job some minutes after its end. Without accounting, `sacct` fails.
            words = ["-X", "-P", "-n", f"--name={job.name}", "-S", _SACCT_SINCE, "-o", "JobIDRaw,Cluster"]
            recorded = self.run("sacct", *where, *words)
            found = self._handles(recorded.stdout) if recorded.returncode == 0 else []
        return found[0] if found else None

    def _handles(self, text: str) -> list[str]:
        """Parses lines of an id and a cluster. Without chosen clusters, `-M` may not work, and is not needed."""
        found = re.findall(r"^ *(\d+)(?:[ |]+(\S+))? *$", text, re.MULTILINE)
        return [f"{number};{cluster}" if self.clusters() and cluster else number for number, cluster in found]

    def stop(self, handle: str, job: Job, force: bool) -> None:
        number, where = _parts(handle)
        # A signal to a pending job would hang for 95 s, so pending jobs are cancelled first.
        self.run("scancel", *where, "--state=PENDING", number)
        if force:
            self.run("scancel", *where, number)
        else:
            # Only to the batch shell, which is the agent. The agent stops its trial in the correct order.
            self.run("scancel", *where, "--state=RUNNING", "--batch", "--signal=TERM", number)

    def poll(self, jobs: Mapping[str, Job]) -> dict[str, State]:
        by_cluster: dict[str, dict[str, Job]] = {}
        for handle, job in jobs.items():
            by_cluster.setdefault(handle.partition(";")[2], {})[handle] = job
        states: dict[str, State] = {}
        trouble = None
        for cluster, its_jobs in by_cluster.items():
            try:
                states.update(self._poll(cluster, its_jobs))
            except Unavailable as error:
                # The states of jobs in other clusters are known.
                trouble = error
        if trouble is not None and not states:
            raise trouble
        return states

    def _poll(self, cluster: str, jobs: Mapping[str, Job]) -> dict[str, State]:
        done = self.run("squeue", *_on(cluster), "-h", "-a", "--me", "-t", "all", "-O", _COLUMNS)
        if done.returncode != 0:
            raise Unavailable(done.stderr.strip())
        found = read_jobs(done.stdout)
        states: dict[str, State] = {}
        for handle, job in jobs.items():
            number, _ = _parts(handle)
            if number in found:
                self._missing.pop(handle, None)
                states[handle] = job_state(*found[number], output=_slurm_output(job))
                continue
            # A job leaves the list some minutes after its end. A single list without it proves nothing.
            self._missing[handle] = self._missing.get(handle, 0) + 1
            if self._missing[handle] > 2:
                try:
                    states[handle] = self._recorded(handle, job)
                except Unavailable:
                    # The job's state is unknown. The states of the other jobs are not.
                    continue
        return states

    def room(self) -> Optional[int]:
        memory = mebibytes(str(self.settings.get("memory", 0)))
        # Further options may demand certain nodes. Several clusters may have room.
        if self.settings.get("sbatch") or self.clusters() or memory is None:
            return None
        partition = self.settings.get("partition", os.environ.get("SBATCH_PARTITION"))
        # `-p` also shows a hidden partition, and excludes `-a`.
        words = ["-a"] if partition is None else ["-p", str(partition)]
        done = self.run("sinfo", "-h", "-N", *words, "-O", _NODE_COLUMNS)
        if done.returncode != 0:
            raise Unavailable(done.stderr.strip())
        cpus = max(self.settings.get("cpus", 1), 1)
        return free_jobs(done.stdout, cpus, memory, self.gpus or 0, partition is not None)

    def _recorded(self, handle: str, job: Job) -> State:
        """Queries the state of a job that is not in the queue's list. An end that nothing confirms is unknown."""
        if agent_lives(job.folder):
            return Running()
        number, where = _parts(handle)
        for program, words, form in (
            ("scontrol", ["-a", "-o", "show", "job", number], _SHOWN_JOB),
            ("sacct", ["-X", "-P", "-n", "-j", number, "-o", "State,ExitCode"], _RECORDED_JOB),
        ):
            found = shutil.which(program) and form.search(self.run(program, *where, *words).stdout)
            if found:
                status = int(found["signal"]) or int(found["code"]) << 8
                return job_state(found["state"], status, found["reason"], _slurm_output(job))
        return Gone(reason="unknown", message="Slurm no longer knows the job")


def agent_grace(kill_wait: Optional[int]) -> Optional[int]:
    """Returns the time in seconds that the agent gives the trial after SIGTERM, if the usual time is too long."""
    if kill_wait is None or kill_wait - _AFTER_TRIAL_SECONDS >= _GRACE_SECONDS:
        return None
    return max(kill_wait - _AFTER_TRIAL_SECONDS, 1)


def _started_job(job: Job) -> Optional[str]:
    """Returns the handle of an attempt that has started, from the files in its folder."""
    for file in (_JOB_FILE, os.path.join("spool", "lock")):
        try:
            words = (Path(job.folder) / file).read_text(encoding="utf-8").split()
        except OSError:
            continue
        if words[1:2] == [job.attempt]:
            # The agent's lock contains no id of Slurm. The name serves as the handle of a forgotten job.
            return words[0] if file == _JOB_FILE else job.name
    return None


def _slurm_output(job: Job) -> str:
    try:
        with open(Path(job.folder) / "slurm.out", "rb") as file:
            file.seek(0, os.SEEK_END)
            file.seek(max(0, file.tell() - 4096))
            return file.read().decode(errors="replace")
    except OSError:
        return ""


def main(_: Any = None) -> None:
    """Serves the manager that started this program."""
    Slurm().serve()


if __name__ == "__main__":
    main()
