"""Trials on a real Slurm, and the output of its commands."""

import fcntl
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from slurm_cluster import Cluster, available

import trialkeeper
from trialkeeper import _programs
from trialkeeper.service import Gone, Job, NoRoom, Refused, Running, Unavailable, Waiting
from trialkeeper.slurm import Slurm, free_jobs, job_state, mebibytes, read_jobs

SOURCE = Path(__file__).parent.parent / "src"


def test_squeue_is_read_line_by_line():
    text = (
        "                  12             PENDING            0 ReqNodeNotAvail, UnavailableNodes:n2\n"
        "                  13              FAILED          768 NonZeroExitCode\n"
        "                  14             RUNNING            0 None\n"
        "slurm_load_jobs error: something\n\n"
    )
    assert read_jobs(text) == {
        "12": ("PENDING", 0, "ReqNodeNotAvail, UnavailableNodes:n2"),
        "13": ("FAILED", 768, "NonZeroExitCode"),
        "14": ("RUNNING", 0, "None"),
    }


@pytest.mark.parametrize(
    ("state", "status", "reason", "expected"),
    [
        ("PENDING", 0, "Priority", Waiting("PENDING: Priority")),
        ("PENDING", 0, "None", Waiting("PENDING")),
        ("SUSPENDED", 0, "None", Waiting("SUSPENDED")),
        ("RUNNING", 0, "None", Running()),
        ("COMPLETING", 0, "None", Running()),
        ("COMPLETED", 0, "None", Gone(code=0)),
        ("FAILED", 768, "NonZeroExitCode", Gone(code=3)),
        ("FAILED", 9, "JobLaunchFailure", Gone(signal=9, message="Slurm says FAILED: JobLaunchFailure")),
        (
            "FAILED",
            53,
            "JobLaunchFailure",
            Gone(reason="start_failed", message="Slurm cannot write the job's folder on the node"),
        ),
        ("TIMEOUT", 9, "TimeLimit", Gone(signal=9, reason="timeout", message="Slurm says TIMEOUT: TimeLimit")),
        ("OUT_OF_MEMORY", 253, "OutOfMemory", Gone(reason="oom", message="Slurm says OUT_OF_MEMORY: OutOfMemory")),
        ("PREEMPTED", 36608, "None", Gone(code=143, reason="preempted")),
        ("NODE_FAIL", 0, "None", Gone(code=0, reason="node_lost")),
        ("CANCELLED", 15, "None", Gone(signal=15, reason="revoked")),
    ],
)
def test_states_are_translated(state, status, reason, expected):
    assert job_state(state, status, reason) == expected


def test_a_memory_limit_without_cgroups_is_recognised():
    output = "slurmstepd: error: Exceeded job memory limit\n"
    assert job_state("FAILED", 9, "JobLaunchFailure", output).reason == "oom"


def job(folder="/work", **more):
    return Job(
        name="tk-e-t-1",
        argv=["/agent", "run", "--shell", "a b"],
        folder=folder,
        trial="t",
        attempt="t-1",
        experiment="e",
        **more,
    )


def fake(tmp_path, monkeypatch, **programs):
    """Stand-ins for Slurm's commands with a given output."""
    for name, script in programs.items():
        path = tmp_path / name
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}/usr/bin{os.pathsep}/bin")
    return Slurm()


FAILED = "Batch job submission failed: "
POLICY = FAILED + "Job violates accounting/QOS policy (job submit limit, user's size and/or time limits)"


@pytest.mark.parametrize(
    ("says", "error"),
    [
        ("invalid partition specified: x", Refused),
        ("invalid partition specified: database", Refused),
        (FAILED + "Requested time limit is invalid (missing or exceeds some limit)", Refused),
        ("QOSMaxSubmitJobPerUserLimit", NoRoom),
        *((f"{limit}\n{POLICY}", NoRoom) for limit in ("AssocMaxSubmitJobLimit", "QOSGrpSubmitJobsLimit")),
        *((f"{limit}\n{POLICY}", NoRoom) for limit in ("MaxSubmitJobsPerAccount", "QOSMaxJobsPerUserLimit")),
        # No job like this one can ever start.
        *((f"{limit}\n{POLICY}", Refused) for limit in ("QOSMaxWallDurationPerJobLimit", "QOSMaxGRESPerUser")),
        *((f"{limit}\n{POLICY}", Refused) for limit in ("AssocMaxCpuPerJobLimit", "AssocMaxMemPerJob")),
        # Without the limit's name, it may be a limit on the number of jobs.
        (POLICY, NoRoom),
        (FAILED + "Socket timed out on send/recv operation", Unavailable),
        (FAILED + "Unable to contact slurm controller (connect failure)", Unavailable),
        (FAILED + "Slurm backup controller in standby mode", Unavailable),
        (FAILED + "Protocol authentication error", Unavailable),
        (FAILED + "Invalid authentication credential", Unavailable),
        (FAILED + "I/O error writing script/environment to file", Unavailable),
        (FAILED + "Resource temporarily unavailable", Unavailable),
        (FAILED + "Communication connection failure", Unavailable),
        ("Slurm temporarily unable to accept job, sleeping and retrying", Unavailable),
        ("Munge encode failed: Failed to access /run/munge/munge.socket.2", Unavailable),
        ("Problem talking to database", Unavailable),
        ("'east' can't be reached now, or it is an invalid entry for --cluster.", Unavailable),
        ("fatal: Could not establish a configuration source", Unavailable),
    ],
)
def test_a_refusal_of_sbatch_says_what_helps(tmp_path, monkeypatch, says, error):
    (tmp_path / "says").write_text(f"sbatch: error: {says}\n")
    service = fake(tmp_path, monkeypatch, sbatch=f"cat {tmp_path}/says >&2; exit 1")
    with pytest.raises(error) as raised:
        service.start(job())
    assert says in str(raised.value)


@pytest.mark.parametrize(
    ("prints", "handle"),
    [
        ("7", "7"),
        ("Welcome to Frontera!\n2 news\n\n7;east\n", "7;east"),
        ("7\nYour account has 12 hours left.\n12 hours", "7"),
        ("", None),
        ("Welcome!", None),
    ],
)
def test_the_id_is_found_in_what_a_wrapper_of_sbatch_prints(tmp_path, monkeypatch, prints, handle):
    (tmp_path / "prints").write_text(prints)
    service = fake(tmp_path, monkeypatch, sbatch=f"cat {tmp_path}/prints")
    if handle is None:
        # The manager then looks for the job by its name.
        with pytest.raises(Unavailable, match="no id"):
            service.start(job())
    else:
        assert service.start(job()) == handle


def test_a_job_is_submitted_as_the_settings_say(tmp_path, monkeypatch):
    service = fake(
        tmp_path,
        monkeypatch,
        sbatch=f"printf '%s\\n' \"$@\" >{tmp_path}/words; cat >{tmp_path}/script; echo '7;tk'",
    )
    service.settings = {
        "partition": "gpu",
        "memory": "8G",
        "cpus": 4,
        "sbatch": ["--nice=5"],
        "wrap": ["apptainer", "exec"],
    }
    assert service.start(job(gpus=2)) == "7;tk"
    words = (tmp_path / "words").read_text().splitlines()
    for word in (
        "--no-requeue",
        "--export=NONE",
        "--partition=gpu",
        "--mem=8G",
        "--cpus-per-task=4",
        "--gpus=2",
        "--nice=5",
    ):
        assert word in words
    # The last option counts, so the user's own number of nodes does.
    assert words.index("--nodes=1") < words.index("--nice=5")
    script = (tmp_path / "script").read_text()
    assert "exec apptainer exec /agent run --shell 'a b'" in script
    assert "SLURM_RESTART_COUNT" in script


@pytest.mark.parametrize(
    ("queue", "accounting", "files", "found"),
    [
        ("echo 12", "echo 13", {}, "12"),
        ("true", "echo 13", {}, "13"),
        ("true", "echo 'Slurm accounting storage is disabled' >&2; exit 1", {}, None),
        ("true", None, {}, None),
        # Slurm has forgotten a job that ended long ago, or does not answer.
        ("echo 'Unable to contact slurm controller' >&2; exit 1", None, {"slurm.job": "14 t-1\n"}, "14"),
        ("true", None, {"slurm.job": "14 t-0\n"}, None),
        ("true", None, {"spool/lock": "4711 t-1\n"}, "tk-e-t-1"),
        ("true", None, {"slurm.job": "", "spool/lock": "4711 t-0\n"}, None),
    ],
)
def test_a_job_is_found_that_slurm_has_forgotten(tmp_path, monkeypatch, queue, accounting, files, found):
    programs = {"squeue": queue, **({"sacct": accounting} if accounting else {})}
    service = fake(tmp_path, monkeypatch, **programs)
    if accounting is None:
        monkeypatch.setattr("shutil.which", lambda _: None)
    folder = tmp_path / "t"
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    assert service.find(job(str(folder))) == found


SHOWN = "JobId=7 JobName=tk-e-t-1 UserId=me(1) JobState={} Reason={} Dependency=(null) ExitCode={} Command=/x"
FORGOTTEN = "echo 'slurm_load_jobs error: Invalid job id specified' >&2; exit 1"
UNKNOWN = Gone(reason="unknown", message="Slurm no longer knows the job")


@pytest.mark.parametrize(
    ("controller", "accounting", "lives", "expected"),
    [
        (FORGOTTEN, None, False, UNKNOWN),
        (FORGOTTEN, None, True, Running()),
        (FORGOTTEN, "echo 'Slurm accounting storage is disabled' >&2; exit 1", False, UNKNOWN),
        (FORGOTTEN, "echo 'COMPLETED|0:0'", False, Gone(code=0)),
        (FORGOTTEN, "echo 'CANCELLED by 1000|0:15'", False, Gone(signal=15, reason="revoked")),
        (FORGOTTEN, "echo 'RUNNING|0:0'", False, Running()),
        (FORGOTTEN, "echo 'PENDING|0:0'", False, Waiting("PENDING")),
        (None, "echo 'FAILED|3:0'", False, Gone(code=3)),
        (f"echo '{SHOWN.format('RUNNING', 'None', '0:0')}'", None, False, Running()),
        (f"echo '{SHOWN.format('PENDING', 'Priority', '0:0')}'", None, False, Waiting("PENDING: Priority")),
        (f"echo '{SHOWN.format('FAILED', 'NonZeroExitCode', '3:0')}'", "echo 'RUNNING|0:0'", False, Gone(code=3)),
        ("echo 'Unable to contact slurm controller' >&2; exit 1", "echo 'FAILED|3:0'", False, None),
    ],
)
def test_a_job_that_the_queue_omits_is_looked_up(tmp_path, monkeypatch, controller, accounting, lives, expected):
    programs = {"scontrol": controller, "sacct": accounting}
    service = fake(tmp_path, monkeypatch, squeue="true", **{name: does for name, does in programs.items() if does})
    monkeypatch.setattr("shutil.which", lambda name: programs[name])
    folder = tmp_path / "t"
    (folder / "spool").mkdir(parents=True)
    with open(folder / "spool" / "lock", "w") as lock:
        if lives:
            fcntl.flock(lock, fcntl.LOCK_EX)
        states = [service.poll({"7": job(str(folder))}).get("7") for _ in range(3)]
    assert states == [None, None, expected]


def test_hidden_partitions_count(tmp_path, monkeypatch):
    squeue = "case \" $* \" in *' -a '*' -n '*) echo 7;; *' -a '*) echo '7 RUNNING 0 None';; esac"
    sinfo = f"case \" $* \" in *' -a '*) echo '{node(partition='gpu*')}';; esac"
    service = fake(tmp_path, monkeypatch, squeue=squeue, sinfo=sinfo)
    assert service.poll({"7": job()}) == {"7": Running()}
    assert service.find(job()) == "7"
    service.settings = {"memory": "300M", "cpus": 2}
    assert service.room() == 2


@pytest.mark.parametrize(
    ("name", "in_job", "kept"),
    [
        *((name, False, False) for name in ("SQUEUE_STATES", "SINFO_PARTITION", "SACCT_LOCAL", "SCANCEL_USER")),
        *((name, True, True) for name in ("SLURM_CONF", "SLURM_JWT", "SBATCH_ACCOUNT", "SBATCH_PARTITION")),
        *((name, False, True) for name in ("SLURM_CONF", "SBATCH_QOS", "SBATCH_CONSTRAINT", "HOME")),
        *((name, True, False) for name in ("SLURM_NTASKS", "SBATCH_MEM_BIND", "SLURM_MEM_PER_NODE")),
        # The plugin submits one job at a time, does not wait for its end, and names the clusters itself.
        *((name, False, False) for name in ("SBATCH_ARRAY_INX", "SBATCH_WAIT", "SLURM_CLUSTERS")),
    ],
)
def test_commands_get_the_variables_that_are_meant_for_them(tmp_path, monkeypatch, name, in_job, kept):
    service = fake(tmp_path, monkeypatch, sbatch="env")
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    if in_job:
        monkeypatch.setenv("SLURM_JOB_ID", "7")
    monkeypatch.setenv(name, "x")
    assert (f"{name}=x" in service.run("sbatch").stdout.splitlines()) == kept


@pytest.mark.parametrize(
    ("options", "variables", "clusters"),
    [
        ([], {}, ""),
        (["--cluster-constraint=x", "--comment=-Mx"], {}, ""),
        *((options, {"SLURM_CLUSTERS": "west"}, "east") for options in (["-M", "east"], ["-Meast"])),
        *((options, {}, "east") for options in (["--clusters=east"], ["--cluster", "east"], ["-Mwest", "-Meast"])),
        ([], {"SLURM_CLUSTERS": "east,west", "SLURM_JOB_ID": "7"}, "east,west"),
        # `sbatch` prefers them in this order.
        ([], {"SBATCH_CLUSTERS": "west"}, "west"),
        ([], {"SBATCH_CLUSTERS": "west", "SLURM_CLUSTERS": "east"}, "east"),
    ],
)
def test_a_job_is_submitted_to_the_chosen_clusters(tmp_path, monkeypatch, options, variables, clusters):
    for name in ("SBATCH_CLUSTERS", "SLURM_CLUSTERS", "SLURM_JOB_ID"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    service = fake(
        tmp_path,
        monkeypatch,
        sbatch=f"printf '%s\\n' \"$@\" >{tmp_path}/words; cat >{tmp_path}/script; echo '7;east'",
        squeue=f"echo $* >{tmp_path}/listed; echo '7 east'",
    )
    service.settings = {"sbatch": options}
    assert service.start(job(str(tmp_path))) == "7;east"
    words = (tmp_path / "words").read_text().splitlines()
    ours = [f"--clusters={clusters}"] if clusters else []
    assert words[words.index("-o") + 2 :] == ours + options
    assert ("$SLURM_CLUSTER_NAME" in (tmp_path / "script").read_text()) == bool(clusters)
    assert service.find(job()) == ("7;east" if clusters else "7")
    assert (tmp_path / "listed").read_text().startswith(f"-M {clusters} -h" if clusters else "-h")


def test_a_job_is_addressed_in_its_cluster(tmp_path, monkeypatch):
    programs = {
        "squeue": "case $2 in east) echo '7 RUNNING 0 None';; west) ;; down) echo 'timed out' >&2; exit 1;; "
        "*) echo '7 PENDING 0 Priority';; esac",
        "scontrol": f'echo "scontrol $*" >>{tmp_path}/log',
        "sacct": f"echo \"sacct $*\" >>{tmp_path}/log; echo 'FAILED|3:0'",
        "scancel": f'echo "scancel $*" >>{tmp_path}/log',
    }
    service = fake(tmp_path, monkeypatch, **programs)
    # Earlier versions stored only the id.
    jobs = {handle: job() for handle in ("7", "7;east", "7;west", "7;down")}
    states = [service.poll(jobs) for _ in range(3)]
    known = {"7": Waiting("PENDING: Priority"), "7;east": Running()}
    assert states == [known, known, {**known, "7;west": Gone(code=3)}]
    with pytest.raises(Unavailable):
        service.poll({"7;down": job()})
    service.stop("7;west", job(), False)
    service.stop("7", job(), True)
    assert (tmp_path / "log").read_text().splitlines() == [
        "scontrol -M west -a -o show job 7",
        "sacct -M west -X -P -n -j 7 -o State,ExitCode",
        "scancel -M west --state=PENDING 7",
        "scancel -M west --state=RUNNING --batch --signal=TERM 7",
        "scancel --state=PENDING 7",
        "scancel 7",
    ]


def test_the_partitions_of_the_chosen_cluster_are_checked(tmp_path, monkeypatch):
    sinfo = "case $* in '-M east -h -p gpu '*) echo gpu;; '-M east -h -a '*) echo 'CLUSTER: east'; echo gpu;; esac"
    service = fake(tmp_path, monkeypatch, sinfo=sinfo, scontrol="exit 1")
    service.settings = {"partition": "gpu", "sbatch": ["-M", "east"]}
    assert service.check() == []
    service.settings["partition"] = "cpu"
    assert [problem.advice for problem in service.check()] == ["there are gpu"]


@pytest.mark.parametrize(("kill_wait", "grace"), [(None, None), (30, None), (28, None), (27, 19), (10, 2), (5, 1)])
def test_the_trial_ends_before_slurm_kills_the_agent(tmp_path, monkeypatch, kill_wait, grace):
    says = f"echo 'KillWait = {kill_wait} sec'" if kill_wait else "exit 1"
    service = fake(tmp_path, monkeypatch, scontrol=says, sbatch=f"cat >{tmp_path}/script; echo 7")
    service.start(job(str(tmp_path)))
    words = f"--grace {grace}s --shell" if grace else "run --shell"
    assert words in (tmp_path / "script").read_text()


@pytest.mark.parametrize("kill_wait, warns", [(27, True), (28, False)])
def test_a_warning_says_that_a_trial_has_less_time(tmp_path, monkeypatch, kill_wait, warns):
    service = fake(tmp_path, monkeypatch, sinfo="exit 0", scontrol=f"echo 'KillWait = {kill_wait} sec'")
    problems = list(service.check())
    assert [problem.level for problem in problems] == (["warning"] if warns else [])
    assert not warns or "only 19 s to end" in problems[0].message


def test_wrong_settings_are_named(tmp_path, monkeypatch):
    service = fake(tmp_path, monkeypatch, sinfo="exit 0", scontrol="echo 'KillWait = 10 sec'")
    service.settings = {"partiton": "gpu", "cpus": "4"}
    problems = {problem.path: (problem.message, problem.advice) for problem in service.check()}
    assert problems["settings.partiton"] == ("unknown setting", "did you mean partition?")
    assert problems["settings.cpus"][0] == "expected int, found str"
    service.settings = {"partition": "nope"}
    assert [problem.level for problem in service.check()] == ["error", "warning"]


def test_numbers_of_yaml_are_accepted_as_sbatch_does(tmp_path, monkeypatch):
    sinfo = f"case \"$*\" in *NodeList*) echo '{node(partition='3')}';; *) echo 3;; esac"
    sbatch = f"printf '%s\\n' \"$@\" >{tmp_path}/words; echo 7"
    service = fake(tmp_path, monkeypatch, sinfo=sinfo, scontrol="exit 1", sbatch=sbatch)
    service.settings = {"partition": 3, "account": 4711, "qos": 1, "time": 30, "memory": 400, "cpus": 1}
    assert service.check() == []
    assert service.room() == 2
    service.start(job())
    words = (tmp_path / "words").read_text().splitlines()
    assert {"--partition=3", "--account=4711", "--qos=1", "--time=30", "--mem=400"} <= set(words)
    service.settings = {"time": True, "memory": 1.5, "cpus": "4"}
    found = [f"{problem.path[9:]}: {problem.message}" for problem in service.check()]
    texts = ("time: expected str or int, found bool", "memory: expected str or int, found float")
    assert found == [*texts, "cpus: expected int, found str"]


def node(
    name="n1",
    partition="gpu",
    available="up",
    state="mix",
    shared="NO",
    cpus="12/4/0/16",
    memory=1000,
    taken=200,
    gres="(null)",
    used="gpu:0",
):
    return f"{name} {partition} {available} {state} {shared} {cpus} {memory} {taken} {gres} {used}"


@pytest.mark.parametrize(
    ("what", "lines", "gpus", "free"),
    [
        ("processors", [node()], 0, 2),
        ("memory", [node(taken=700)], 0, 1),
        ("each node for itself", [node(cpus="15/1/0/16"), node("n2", cpus="15/1/0/16")], 0, 0),
        ("two nodes", [node(), node("n2", cpus="0/16/0/16", state="idle")], 0, 4),
        ("a node in two partitions", [node(), node(partition="long")], 0, 2),
        ("nodes that take no job", [node(state=state) for state in ("drain", "down*", "idle~", "alloc")], 0, 0),
        ("a partition that takes no job", [node(available="inact")], 0, 0),
        ("whole nodes", [node(shared="EXCLUSIVE"), node("n2", state="idle", shared="EXCLUSIVE", taken=0)], 0, 1),
        ("GPUs", [node(gres="gpu:a100:4(S:0-1),shard:8", used="gpu:a100:3(IDX:0-2),shard:0")], 1, 1),
        ("GPUs of several types", [node(gres="gpu:a100:2,gpu:v100:2", used="gpu:a100:2,gpu:v100:1")], 1, 1),
        ("a node with too few GPUs", [node(gres="gpu:2", used="gpu:1(IDX:0)"), node("n2")], 2, 0),
        ("lines of another form", ["", "sinfo: error", node(cpus="a/b/c/d"), node(memory="x")], 0, 0),
    ],
)
def test_the_free_jobs_of_nodes_are_counted(what, lines, gpus, free):
    assert free_jobs("\n".join(lines), 2, 300, gpus) == free, what


def test_without_a_partition_the_default_one_counts():
    lines = f"{node(partition='low*')}\n{node('n2', partition='high')}"
    assert (free_jobs(lines, 2, 300, 0), free_jobs(lines, 2, 300, 0, all_partitions=False)) == (4, 2)


def test_a_job_without_memory_counts_as_one_for_a_whole_node():
    lines = f"{node(taken=0)}\n{node('n2', taken=1)}"
    assert free_jobs(lines, 1, 0, 0) == 1


@pytest.mark.parametrize(
    ("text", "expected"),
    [("8G", 8192), ("100", 100), ("500M", 500), ("2t", 2 << 20), ("1025K", 2), ("0", 0), ("8 G", None)],
)
def test_sizes_of_memory_are_read_as_sbatch_does(text, expected):
    assert mebibytes(text) == expected


def test_room_is_unknown_if_a_job_may_demand_certain_nodes(tmp_path, monkeypatch):
    service = fake(tmp_path, monkeypatch, sinfo=f"echo \"$*\" >{tmp_path}/words; echo '{node()}'")
    service.settings = {"partition": "gpu", "memory": "300M", "cpus": 2}
    assert service.room() == 2
    assert "-p gpu" in (tmp_path / "words").read_text()
    for more in ({"sbatch": ["--constraint=a100"]}, {"memory": "lots"}):
        service.settings.update(more)
        assert service.room() is None
    service.settings = {}
    monkeypatch.setenv("SLURM_CLUSTERS", "east,west")
    assert service.room() is None, "several clusters"
    monkeypatch.delenv("SLURM_CLUSTERS")
    service = fake(tmp_path, monkeypatch, sinfo="echo 'Unable to contact slurm controller' >&2; exit 1")
    with pytest.raises(Unavailable):
        service.room()


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    if not available():
        pytest.skip("Slurm is not installed, or the test does not run as root")
    cluster = Cluster(tmp_path_factory.mktemp("slurm"))
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.stop()


class Search:
    """A search on that cluster with the real manager."""

    def __init__(self, cluster, folder, command, trials=2, settings=None, **fields):
        self.cluster, self.folder = cluster, folder
        # The nodes' daemons and the test run as root.
        folder.chmod(0o755)
        program = ["env", f"PYTHONPATH={SOURCE}", sys.executable, "-m", "trialkeeper.slurm"]
        settings = {"memory": "100", "pollSeconds": 2, "time": "5", **(settings or {})}
        experiment = {
            "trialCommand": command,
            "maxTrialNumber": trials,
            "trialConcurrency": 2,
            "searchSpace": {"x": {"_type": "uniform", "_value": [0, 1]}},
            "tuner": {"name": "Random", "classArgs": {"seed": 1}},
            "trialCodeDirectory": "code",
            "trainingService": {"platform": "plugin", "command": program, "settings": settings},
            **fields,
        }
        (folder / "code").mkdir()
        (folder / "experiment.json").write_text(json.dumps(experiment))
        self.manager = self.start("run", str(folder / "experiment.json"))

    def start(self, *words):
        argv = [
            str(_programs.find_program("trial-manager")),
            *words,
            "--data-dir",
            str(self.folder / "data"),
            "--port",
            "0",
            "-o",
            "json",
        ]
        pipe = subprocess.PIPE
        return subprocess.Popen(argv, stdout=pipe, stderr=pipe, text=True, env=self.cluster.environment)

    def finish(self):
        said, told = self.manager.communicate(timeout=240)
        assert said, told
        return json.loads(said)

    def wait_for(self, file, lines=1):
        path = self.folder / file
        self.cluster.wait(lambda: path.exists() and len(path.read_text().splitlines()) >= lines, file)
        return path.read_text().splitlines()


def test_room_is_what_slurm_can_start_now(cluster, tmp_path):
    service = Slurm()
    service.settings = {"memory": "400", "partition": "low"}
    # The environment of the cluster's commands.
    os.environ["SLURM_CONF"] = str(cluster.conf)
    try:
        assert service.room() == 4, "two nodes with two processors and 1000 MiB each"
        service.settings["memory"] = "600"
        assert service.room() == 2
        service.gpus = 1
        assert service.room() == 0, "the nodes have no GPU"
        service.gpus = None
        cluster.run("sbatch", "--mem=600", "-w", "n1", "-J", "taker", "-o", "/dev/null", "--wrap", "sleep 60")
        cluster.wait(lambda: service.room() == 1, "a taken node")
        del service.settings["partition"], service.settings["memory"]
        assert service.room() == 1, "only the other node has all of its memory"
    finally:
        del os.environ["SLURM_CONF"]
        cluster.run("scancel", "-n", "taker")
    cluster.wait(lambda: not cluster.run("squeue", "-h").strip(), "an empty queue")


def test_a_search_runs_on_slurm(cluster, tmp_path):
    done = Search(cluster, tmp_path, f"echo $SLURM_JOB_ID >>{tmp_path}/ran; echo loss=0.5", trials=4).finish()
    states = [trial["state"] for trial in done["trials"]]
    assert states == ["SUCCEEDED"] * 4, done
    assert len(set((tmp_path / "ran").read_text().split())) == 4


def test_a_step_of_a_trial_has_its_environment(cluster, tmp_path):
    own = 'MINE=1 srun sh -c \'echo "$MINE $NNI_TRIAL_JOB_ID" >>"$0"\''
    done = Search(cluster, tmp_path, f"{own} {tmp_path}/ran; echo loss=0.5", trials=1).finish()
    assert done["trials"][0]["state"] == "SUCCEEDED", done
    assert (tmp_path / "ran").read_text().split() == ["1", done["trials"][0]["id"]]


def test_a_failure_keeps_its_exit_code(cluster, tmp_path):
    done = Search(cluster, tmp_path, "exit 3", trials=1).finish()
    trial = trialkeeper.connect(done["experiment"]["id"], data_dir=tmp_path / "data").trials()[0]
    assert trial.state == "FAILED"
    assert "code 3" in trial.why()["message"]


def test_a_manager_and_its_plugin_that_are_killed_find_their_jobs(cluster, tmp_path):
    command = f"echo run >>{tmp_path}/ran; while ! [ -e {tmp_path}/gate ]; do sleep 0.1; done; echo loss=0.5"
    search = Search(cluster, tmp_path, command, trials=2)
    search.wait_for("ran", 2)
    search.manager.send_signal(signal.SIGKILL)
    search.manager.communicate()
    (tmp_path / "gate").touch()
    experiment = next(path.name for path in (tmp_path / "data").iterdir() if path.is_dir())
    search.manager = search.start("resume", experiment)
    done = search.finish()
    assert [trial["state"] for trial in done["trials"]] == ["SUCCEEDED"] * 2, done
    assert len(search.wait_for("ran")) == 2


def test_an_interrupted_search_leaves_no_job(cluster, tmp_path):
    command = f"trap 'echo heard >>{tmp_path}/heard; exit 143' TERM; echo run >>{tmp_path}/ran; sleep 300 & wait"
    # Only four of the six jobs fit on the nodes. The others wait in the queue.
    search = Search(cluster, tmp_path, command, trials=6, trialConcurrency=6)
    search.wait_for("ran", 4)
    search.manager.send_signal(signal.SIGINT)
    search.manager.communicate(timeout=120)
    assert search.manager.returncode == 130
    assert len(search.wait_for("heard", 4)) == 4
    cluster.wait(lambda: not cluster.run("squeue", "-h").strip(), "an empty queue")


def test_a_preempted_trial_runs_once_more(cluster, tmp_path):
    command = f"echo run >>{tmp_path}/ran; while ! [ -e {tmp_path}/gate ]; do sleep 0.1; done; echo loss=0.5"
    search = Search(cluster, tmp_path, command, trials=1, settings={"partition": "low"}, maxTrialRetries=1)
    search.wait_for("ran", 1)
    # Another user's job in a partition with a higher priority takes all processors of both nodes.
    cluster.run("sbatch", "-p", "high", "--exclusive", "-N", "2", "-o", "/dev/null", "--wrap", "sleep 2")
    search.wait_for("ran", 2)
    (tmp_path / "gate").touch()
    done = search.finish()
    assert done["trials"][0]["state"] == "SUCCEEDED", done


def test_the_plugin_passes_the_conformance_story(cluster, tmp_path):
    settings = tmp_path / "settings.json"
    settings.write_text(json.dumps({"memory": "50", "pollSeconds": 2, "time": "5"}))
    program = ["env", f"PYTHONPATH={SOURCE}", sys.executable, "-m", "trialkeeper.slurm"]
    manager = str(_programs.find_program("trial-manager"))
    argv = [manager, "conformance", "--settings", str(settings), "--", *program]
    done = subprocess.run(argv, cwd=tmp_path, env=cluster.environment, capture_output=True, text=True, timeout=500)
    cases = [line.split()[0] for line in done.stdout.splitlines() if line[:1].isalpha()]
    assert done.returncode == 0 and len(cases) == 22 and set(cases) == {"ok"}, done.stdout + done.stderr
    cluster.wait(lambda: not cluster.run("squeue", "-h").strip(), "an empty queue")
