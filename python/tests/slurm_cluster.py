"""A Slurm cluster of two nodes on this machine: real slurmctld, slurmd and munge, on free ports."""

import os
import shutil
import socket
import subprocess
import time
from pathlib import Path

NEEDED = ("sbatch", "squeue", "slurmctld", "slurmd", "munged")


def available():
    """Returns whether Slurm is installed. With TRIALKEEPER_TEST_NEED_SLURM, it must be."""
    path = os.pathsep.join([os.environ["PATH"], "/usr/sbin"])
    missing = [name for name in NEEDED if shutil.which(name, path=path) is None]
    if missing and os.environ.get("TRIALKEEPER_TEST_NEED_SLURM"):
        raise AssertionError(f"{', '.join(missing)} is missing; install slurm-wlm and munge")
    return not missing and os.geteuid() == 0


def free_ports(number):
    sockets = [socket.socket() for _ in range(number)]
    try:
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]
    finally:
        for one in sockets:
            one.close()


class Cluster:
    """Daemons, stopped through their process objects."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.daemons = []
        self.conf = folder / "slurm.conf"
        self.environment = {**os.environ, "SLURM_CONF": str(self.conf)}

    def start(self):
        os.chmod(self.folder, 0o755)
        socket_file = self.munge()
        controller, first, second = free_ports(3)
        (self.folder / "ctld").mkdir()
        host = socket.gethostname()
        self.conf.write_text(
            f"""ClusterName=tk
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={controller}
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket={socket_file}
CryptoType=crypto/munge
SlurmctldPidFile={self.folder}/ctld.pid
SlurmdPidFile={self.folder}/%n.pid
StateSaveLocation={self.folder}/ctld
SlurmdSpoolDir={self.folder}/%n
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
AccountingStorageType=accounting_storage/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
PreemptType=preempt/partition_prio
PreemptMode=CANCEL
ReturnToService=2
KillWait=30
MinJobAge=300
SlurmdTimeout=20
NodeName=n1 NodeHostname={host} NodeAddr=127.0.0.1 Port={first} CPUs=2 RealMemory=1000 State=UNKNOWN
NodeName=n2 NodeHostname={host} NodeAddr=127.0.0.1 Port={second} CPUs=2 RealMemory=1000 State=UNKNOWN
PartitionName=low Nodes=n[1-2] Default=YES DefaultTime=10 PriorityTier=1 State=UP
PartitionName=high Nodes=n[1-2] PriorityTier=9 State=UP
"""
        )
        for node in ("n1", "n2"):
            (self.folder / node).mkdir()
        self.daemon("/usr/sbin/slurmctld", "-D", "-f", str(self.conf))
        for node in ("n1", "n2"):
            self.daemon("/usr/sbin/slurmd", "-D", "-f", str(self.conf), "-N", node)
        self.wait(lambda: self.run("sinfo", "-h", "-t", "idle", "-o", "%D").strip() == "2", "two idle nodes")

    def munge(self):
        """A private munged with its own key."""
        key, socket_file = self.folder / "munge.key", self.folder / "munge.socket"
        key.write_bytes(os.urandom(128))
        key.chmod(0o400)
        names = {"log-file": "munge.log", "pid-file": "munge.pid", "seed-file": "munge.seed"}
        options = [f"--{name}={self.folder / file}" for name, file in names.items()]
        self.daemon("/usr/sbin/munged", "-F", "-f", f"--key-file={key}", f"--socket={socket_file}", *options)
        self.wait(socket_file.exists, "munged")
        return socket_file

    def daemon(self, *argv):
        log = open(self.folder / f"{len(self.daemons)}.log", "wb")
        self.daemons.append(subprocess.Popen(argv, stdout=log, stderr=log, stdin=subprocess.DEVNULL))

    def run(self, *argv):
        done = subprocess.run(argv, capture_output=True, text=True, env=self.environment, timeout=60)
        return done.stdout

    def wait(self, state, what, seconds=60):
        until = time.monotonic() + seconds
        while not state():
            logs = "".join(path.read_text(errors="replace")[-800:] for path in self.folder.glob("*.log"))
            assert time.monotonic() < until, f"no {what}: {logs}"
            time.sleep(0.1)

    def stop(self):
        for daemon in reversed(self.daemons):
            daemon.terminate()
        for daemon in self.daemons:
            try:
                daemon.wait(20)
            except subprocess.TimeoutExpired:
                daemon.kill()
                daemon.wait()
