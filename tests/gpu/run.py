#!/usr/bin/env python3
"""Checks on a machine with an NVIDIA GPU what no other test can: readings, alarms and verdicts of a real driver.

    tests/gpu/run.py PROGRAMS [--record DIR] [--bench]

PROGRAMS is the folder with trialkeeper and trial-manager. The Python that runs this file must have PyTorch. Nothing else
may use the GPUs. The program prints a line for each check and exits with 1 if one failed. ``--record`` also records what
nvidia-smi prints, and ``--bench`` measures how much the agent slows a trial down.
"""

import argparse
import contextlib
import json
import os
import re
import socket
import subprocess
import sys
import tempfile
import time
import traceback
import urllib.request
from pathlib import Path

HERE = Path(__file__).resolve().parent
TRIAL = [sys.executable, str(HERE / "trial.py")]


def nvidia_smi(query):
    """Returns the values of the first GPU."""
    arguments = [f"--query-gpu={query}", "--format=csv,noheader,nounits", "--id=0"]
    output = subprocess.run(["nvidia-smi", *arguments], check=True, capture_output=True, text=True).stdout
    return [value.strip() for value in output.split(",")]


def used_memory():
    return int(nvidia_smi("memory.used")[0])


def wait_for(what, condition, seconds=60):
    """Waits until the condition returns something, and returns that."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        found = condition()
        if found:
            return found
        time.sleep(0.2)
    raise AssertionError(f"{what}: not within {seconds} s")


class Programs:
    def __init__(self, folder, work):
        self.agent, self.manager = (str(folder / name) for name in ("trialkeeper", "trial-manager"))
        self.work = work
        self.runs = 0

    def folder(self):
        self.runs += 1
        folder = self.work / str(self.runs)
        folder.mkdir()
        return folder

    def start(self, way, seconds, *flags, folder, sample_interval="1s"):
        """Starts a trial under the agent, without a manager."""
        command = [self.agent, "run", "--output-dir", str(folder), "--sample-interval", sample_interval, *flags, "--"]
        with open(folder / "output", "wb") as output:
            return subprocess.Popen([*command, *TRIAL, way, str(seconds)], stdout=output, stderr=output)

    def run(self, way, seconds, *flags, **options):
        """Runs a trial and returns its verdict and its output."""
        folder = self.folder()
        agent = self.start(way, seconds, *flags, folder=folder, **options)
        try:
            agent.wait(120)
        except subprocess.TimeoutExpired:
            # The trial would disturb the next check.
            agent.terminate()
            agent.wait(60)
            raise
        return json.loads((folder / "verdict.json").read_text()), (folder / "output").read_text()

    def search(self, way, seconds, training_service, **fields):
        """Runs a search. Returns its exit code, its output, and its trials with their standard output."""
        folder = self.folder()
        experiment = {
            "trialCommand": f"{' '.join(TRIAL)} {way} {seconds}",
            "trialCodeDirectory": str(folder),
            "trialConcurrency": 4,
            "maxTrialNumber": 4,
            "searchSpace": {"x": {"_type": "uniform", "_value": [0, 1]}},
            "objective": "steps",
            "tuner": {"name": "Random"},
            "trainingService": {"platform": "local", **training_service},
            **fields,
        }
        (folder / "experiment.json").write_text(json.dumps(experiment))
        environment = {**os.environ, "XDG_DATA_HOME": str(folder / "data")}

        def manager(*arguments):
            command = [self.manager, *arguments]
            return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=180)

        ran = manager("run", str(folder / "experiment.json"), "--port", "0")
        trials = []
        if ran.returncode == 0:
            listed = json.loads(manager("trial", "ls", "-o", "json").stdout)
            for trial in listed["trials"] if isinstance(listed, dict) else listed:
                logs = manager("trial", "logs", trial["id"]).stdout
                trials.append((trial, logs))
        return ran.returncode, ran.stdout + ran.stderr, trials


def a_reading_is_that_of_nvidia_smi(programs):
    printed = subprocess.run([programs.agent, "gpu", "--output", "json"], check=True, capture_output=True, text=True)
    read = json.loads(printed.stdout)
    gpu = read["gpus"][0]
    uuid, name, total = nvidia_smi("uuid,name,memory.total")
    assert (gpu["uuid"], gpu["name"]) == (uuid, name), gpu
    assert gpu["memory_total_bytes"] == int(total) * 1024 * 1024, gpu
    for member in ("utilization_percent", "power_watts", "power_limit_watts", "temperature_celsius", "sm_clock_mhz"):
        assert isinstance(gpu[member], (int, float)), (member, gpu)
    return f"{name}, {gpu}"


def doctor_finds_the_gpu(programs):
    printed = subprocess.run([programs.agent, "doctor"], capture_output=True, text=True).stdout
    assert re.search(r"^ok +GPU +.*NVIDIA", printed, re.M), printed


def samples_show_the_trial_s_work(programs):
    folder = programs.folder()
    with socket.create_server(("127.0.0.1", 0)) as free:
        address = "{}:{}".format(*free.getsockname())
    agent = programs.start("multiply", 8, "--listen", address, folder=folder)

    def page():
        with contextlib.suppress(OSError):
            return urllib.request.urlopen(f"http://{address}/metrics", timeout=2).read().decode()

    def value(name):
        found = re.search(rf"^{name}{{[^}}]*}} (\S+)$", page() or "", re.M)
        return float(found.group(1)) if found else 0.0

    seen = set()

    def watch():
        power = value("DCGM_FI_DEV_POWER_USAGE")
        if power and value("DCGM_FI_DEV_GPU_UTIL") > 90:
            seen.add(power)
        return len(seen) >= 4

    # A program that held its output back would show no four readings.
    wait_for("four different readings at full use", watch)
    assert agent.wait(60) == 0
    verdict = json.loads((folder / "verdict.json").read_text())
    return f"{sorted(seen)} W, {verdict['evidence'].get('gpu_idle_ms')}"


def exhausted_memory_is_named(programs):
    verdict, output = programs.run("exhaust", 0)
    assert verdict["cause"] == "oom-cuda", (verdict, output)
    return verdict["message"]


def a_misused_gpu_is_the_trial_s_error(programs):
    verdict, output = programs.run("misuse", 0)
    assert verdict["class"] == "user-error", (verdict, output)
    assert "CUDA error" in verdict["message"], (verdict, output)
    return verdict["message"]


IDLE = ("--gpu-idle-after", "5s", "--stop-on-gpu-idle")
HANG = ("--gpu-hang-after", "8s", "--stop-on-gpu-hang")


def an_idle_gpu_ends_the_trial_on_request(programs):
    verdict, output = programs.run("idle", 60, *IDLE)
    assert (verdict["cause"], verdict["class"]) == ("stalled", "user-error"), (verdict, output)
    assert verdict["duration_ms"] < 60_000, verdict
    return verdict["message"]


def a_hanging_kernel_ends_the_trial_on_request(programs):
    verdict, output = programs.run("hang", 60, *HANG)
    assert (verdict["cause"], verdict["class"]) == ("stalled", "transient"), (verdict, output)
    return verdict["message"], power_of(verdict)


def work_is_neither_idle_nor_a_hang(programs):
    verdict, output = programs.run("multiply", 16, *IDLE, *HANG)
    assert verdict["cause"] == "succeeded", (verdict, output)
    return power_of(verdict)


def power_of(verdict):
    return [(gpu.get("power_watts"), gpu.get("power_limit_watts")) for gpu in verdict["evidence"].get("gpus", [])]


def a_process_that_is_left_behind_gives_the_memory_back(programs):
    before = used_memory()
    verdict, output = programs.run("leave", 0)
    assert verdict["cause"] == "succeeded" and verdict["evidence"]["leftovers"], (verdict, output)
    wait_for("the memory is free", lambda: used_memory() < before + 1024)
    return verdict["evidence"]["leftovers"]


def a_trial_in_a_kernel_is_stopped(programs):
    before = used_memory()
    folder = programs.folder()
    agent = programs.start("hang", 90, folder=folder)
    wait_for("the kernel runs", lambda: float(nvidia_smi("utilization.gpu")[0]) > 90)
    began = time.monotonic()
    agent.terminate()
    agent.wait(60)
    took = time.monotonic() - began
    wait_for("the memory is free", lambda: used_memory() < before + 1024)
    verdict = json.loads((folder / "verdict.json").read_text())
    assert verdict["cause"] == "stopped", verdict
    return f"{took:.1f} s"


def trials_share_the_gpu_as_configured(programs):
    code, output, trials = programs.search(
        "multiply", 3, {"useActiveGpu": False, "maxTrialNumberPerGpu": 2}, trialGpuNumber=1
    )
    assert code == 0 and len(trials) == 4, (code, output)
    spans = []
    for trial, logs in trials:
        gpus, began, ended = re.search(r"gpus='(.*)' from (\S+) to (\S+)", logs).groups()
        assert trial["state"] == "SUCCEEDED" and gpus == "0", (trial, logs)
        spans.append((float(began), float(ended)))
    together = max(sum(began <= at <= ended for began, ended in spans) for at, _ in spans)
    assert together <= 2, spans
    return f"at most {together} at a time"


def a_trial_without_gpus_sees_none(programs):
    code, output, trials = programs.search("multiply", 1, {}, trialGpuNumber=0, maxTrialNumber=1)
    states = [trial["state"] for trial, _ in trials]
    assert states in ([], ["FAILED"]), (code, output, trials)
    assert "0 succeeded" in output, output


def a_gpu_in_use_is_left_alone(programs):
    other = subprocess.Popen([*TRIAL, "multiply", "60"])
    try:
        wait_for("the other program computes", lambda: float(nvidia_smi("utilization.gpu")[0]) > 90)
        code, output, _ = programs.search("multiply", 1, {"useActiveGpu": False}, trialGpuNumber=1)
        assert code != 0 and "1 in use" in output, (code, output)
        refused = output.strip().splitlines()[-1]
        code, output, _ = programs.search(
            "multiply", 1, {"useActiveGpu": True}, trialGpuNumber=1, maxTrialNumber=1
        )
        assert code == 0, output
        return refused
    finally:
        other.kill()
        other.wait()


CHECKS = [
    a_reading_is_that_of_nvidia_smi,
    doctor_finds_the_gpu,
    samples_show_the_trial_s_work,
    exhausted_memory_is_named,
    a_misused_gpu_is_the_trial_s_error,
    an_idle_gpu_ends_the_trial_on_request,
    a_hanging_kernel_ends_the_trial_on_request,
    work_is_neither_idle_nor_a_hang,
    a_process_that_is_left_behind_gives_the_memory_back,
    a_trial_in_a_kernel_is_stopped,
    trials_share_the_gpu_as_configured,
    a_trial_without_gpus_sees_none,
    a_gpu_in_use_is_left_alone,
]


def bench(programs):
    """Prints the steps of two trials with and without the agent, in turn."""
    for way in ("small", "multiply"):
        for _ in range(4):
            alone = subprocess.run([*TRIAL, way, "8"], check=True, capture_output=True, text=True).stdout
            _, kept = programs.run(way, 8, sample_interval="5s")
            counts = [int(re.search(r"steps=(\d+)", output).group(1)) for output in (alone, kept)]
            print(f"{way}: {counts[0]} steps alone, {counts[1]} under the agent ({counts[1] / counts[0] - 1:+.2%})", flush=True)


def main():
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("programs", type=Path)
    arguments.add_argument("--record", type=Path, metavar="DIR")
    arguments.add_argument("--only", metavar="TEXT", default="", help="runs only the checks whose name contains this")
    arguments.add_argument("--bench", action="store_true")
    given = arguments.parse_args()
    if given.record:
        subprocess.run(["sh", HERE.parent.parent / "agent/fixtures/gpu/record.sh", given.record], check=True)
    failed = 0
    with tempfile.TemporaryDirectory() as work:
        programs = Programs(given.programs.resolve(), Path(work))
        for check in (check for check in CHECKS if given.only in check.__name__):
            began, name = time.monotonic(), check.__name__.replace("_", " ")
            try:
                found = check(programs)
                print(f"ok    {name} ({time.monotonic() - began:.1f} s): {found}", flush=True)
            except Exception:
                failed += 1
                print(f"FAIL  {name} ({time.monotonic() - began:.1f} s)\n{traceback.format_exc()}", flush=True)
        if given.bench:
            bench(programs)
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
