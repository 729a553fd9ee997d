"""A script that runs with this package and with NNI's own. Its calls must have the same results.

``TRIALKEEPER_TEST_NNI_PYTHON`` names a Python with Microsoft's ``nni`` 3.0, whose experiments TrialKeeper runs.
"""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

import nni
import trialkeeper
from trialkeeper._programs import find_program

TRIAL = """
import nni
x = nni.get_next_parameter()["x"]
nni.report_intermediate_result(x / 2)
nni.report_final_result({"default": x, "n": nni.get_sequence_id()})
"""
#: The lifecycle of an experiment. A search of 500 trials is stopped halfway, so that it can be resumed.
SCRIPT = """
import json, sys, time
import nni
from nni.experiment import Experiment, RunMode

port, told = int(sys.argv[1]), {}

def wait_for(look):
    deadline = time.monotonic() + 60
    while not look():
        assert time.monotonic() < deadline
        time.sleep(0.05)

experiment = nni.Experiment("local")
experiment.config.trial_command = f"{sys.executable} trial.py"
experiment.config.trial_code_directory = "."
experiment.config.search_space = {"x": {"_type": "choice", "_value": list(range(500))}}
experiment.config.tuner.name = "GridSearch"
experiment.config.max_trial_number = 500
experiment.config.trial_concurrency = 1
told["before"] = experiment.port
told["start"] = experiment.start(port)
told["port"] = experiment.port == port
wait_for(experiment.export_data)
told["status"] = experiment.get_status()

job = experiment.list_trial_jobs()[0]
told["job"] = [type(job).__name__, job.status, job.sequenceId, type(job.startTime).__name__]
told["same job"] = experiment.get_trial_job(job.trialJobId) == job
told["parameters"] = [(p.parameters, p.parameter_source, p.parameter_index) for p in job.hyperParameters]
told["final"] = [(metric.type, metric.sequence, metric.data) for metric in job.finalMetricData]
metrics = experiment.get_job_metrics(job.trialJobId)
told["metrics"] = [
    (type(metric).__name__, metric.type, metric.sequence, metric.data) for metric in metrics[job.trialJobId]
]
told["all metrics"] = job.trialJobId in experiment.get_job_metrics()
told["statistics"] = sorted(experiment.get_job_statistics()[0])
result = experiment.export_data()[0]
told["result"] = [type(result).__name__, result.parameter, result.value, result.trialJobId == job.trialJobId]
told["profile"] = experiment.get_experiment_profile()["id"] == experiment.id
told["metadata"] = experiment.get_experiment_metadata(experiment.id)["status"]

told["updates"] = [
    experiment.update_trial_concurrency(2),
    experiment.update_max_experiment_duration("2h"),
    experiment.update_max_trial_number(499),
    experiment.update_search_space({"x": {"_type": "choice", "_value": list(range(600))}}),
]
params = experiment.get_experiment_profile()["params"]
told["updated"] = [params["trialConcurrency"], params["maxTrialNumber"], len(params["searchSpace"]["x"]["_value"])]
connected = Experiment.connect(port)
told["connected"] = [connected.id == experiment.id, connected.port == port, connected.get_status()]
told["stop"] = experiment.stop()
told["stopped"] = experiment.port

loaded = Experiment(None, experiment.id)
told["checkpoint"] = [loaded.has_checkpoint(), Experiment(None, "unknown1").has_checkpoint()]
told["load"] = loaded.load_checkpoint()
told["loaded"] = [loaded.config.trial_command == experiment.config.trial_command, loaded.config.tuner.name]

viewed = Experiment.view(experiment.id, port, non_blocking=True)
told["viewed"] = [viewed.id == experiment.id, viewed.port == port, viewed.get_status(), viewed.export_data() != []]
viewed.stop()
told["viewed by object"] = Experiment(None, experiment.id).view(port, non_blocking=True).stop()

told["resume by id"] = Experiment.resume(experiment.id, port, wait_completion=False)
again = Experiment.connect(port)
told["resumed by id"] = again.id == experiment.id
wait_for(lambda: again.get_status() == "RUNNING")  # It is stopped for a moment.
again.stop()

resumed = Experiment(None, experiment.id)
told["resume"] = resumed.resume(port, wait_completion=False)
told["resumed"] = [resumed.id == experiment.id, resumed.config.max_trial_number, resumed.config.tuner.name]
resumed.update_max_trial_number(len(resumed.list_trial_jobs()))
wait_for(lambda: resumed.get_status() == "DONE")
told["end"] = resumed._wait_completion()
resumed.stop()
print("told", json.dumps(told))
"""
TOLD = {
    "before": None,
    "start": None,
    "port": True,
    "status": "RUNNING",
    "job": ["TrialJob", "SUCCEEDED", 0, "int"],
    "same job": True,
    "parameters": [[{"x": 0}, "algorithm", 0]],
    "final": [["FINAL", 0, {"default": 0, "n": 0}]],
    "metrics": [
        ["TrialMetricData", "PERIODICAL", 0, 0.0],
        ["TrialMetricData", "FINAL", 0, {"default": 0, "n": 0}],
    ],
    "all metrics": True,
    "statistics": ["trialJobNumber", "trialJobStatus"],
    "result": ["TrialResult", {"x": 0}, {"default": 0, "n": 0}, True],
    "profile": True,
    "metadata": "RUNNING",
    "updates": [None, None, None, None],
    "updated": [2, 499, 600],
    "connected": [True, True, "RUNNING"],
    "stop": None,
    "stopped": None,
    "checkpoint": [True, False],
    "load": None,
    "loaded": [True, "GridSearch"],
    "viewed": [True, True, "VIEWED", True],
    "viewed by object": None,
    "resume by id": None,
    "resumed by id": True,
    "resume": None,
    "resumed": [True, 499, "GridSearch"],
    "end": True,
}


#: Configurations of all kinds, and their canonical forms.
CONFIGURATIONS = """
import json, sys
from nni.experiment import *

def made(platform, **fields):
    config = ExperimentConfig(platform)
    config.trial_command, config.trial_code_directory = "python3 trial.py", "code"
    config.search_space, config.trial_concurrency = {"x": {"_type": "uniform", "_value": [0, 1]}}, 2
    config.tuner.name, config.nni_manager_ip = "TPE", "10.0.0.1"
    for name, value in fields.items():
        setattr(config, name, value)
    return config

def on_cluster(platform, storage, **fields):
    config = made(platform, trial_command=None)
    config.training_service.storage = storage
    for name, value in fields.items():
        setattr(config.training_service, name, value)
    return config

def told(config):
    content = config.json()
    content.pop("experimentWorkingDirectory")
    content.pop("searchSpaceFile", None)
    return content

machines = [
    RemoteMachineConfig(host="a", user="me", ssh_key_file="key", gpu_indices="0,2"),
    RemoteMachineConfig(host="b", user="me", password="secret", port=2222, max_trial_number_per_gpu=1),
]
end = FrameworkAttemptCompletionPolicy(min_failed_task_count=1, min_succeed_task_count=1)
pods = dict(command="python3 m.py", gpu_number=0, cpu_number=1, memory_size="4gb")
nfs = K8sNfsConfig(storage_type="nfs", server="10.0.0.2", path="/nfs")
plain = K8sStorageConfig(storage_type="nfs", server="10.0.0.2", path="/nfs")
azure = K8sAzureStorageConfig(
    storage_type="azureStorage", azure_account="a", azure_share="s", key_vault_name="v", key_vault_key="k"
)
roles = [FrameworkControllerRoleConfig(name="w", task_number=1, framework_attempt_completion_policy=end, **pods)]
framework = dict(service_account_name="trials", task_roles=roles)
hybrid = made(["local", "remote"])
hybrid.training_service[1].machine_list = machines
remote = made("remote", trial_gpu_number=1)
remote.training_service.machine_list = machines
by_advisor = made("local", tuner=None)
by_advisor.advisor.name, by_advisor.advisor.class_args = "BOHB", {"min_budget": 1}
gpus = made("local", trial_gpu_number=1, tuner_gpu_indices=1)
gpus.training_service.use_active_gpu, gpus.training_service.gpu_indices = True, "0,2"
pai = made("openpai", trial_gpu_number=1)
for name, value in dict(
    host="pai", username="u", token="t", trial_cpu_number=1, trial_memory_size="4gb", storage_config_name="s",
    virtual_cluster="v", local_storage_mount_point="code", container_storage_mount_point="/m",
).items():
    setattr(pai.training_service, name, value)
shared = NfsConfig(
    local_mount_point="code", remote_mount_point="/m", local_mounted="usermount", nfs_server="s",
    exported_directory="/e",
)
own = CustomAlgorithmConfig(class_name="mine.Tuner", code_directory="code", class_args={"k": 1})
worker = KubeflowRoleConfig(replicas=1, code_directory="/code", **pods)
kubeflow = dict(operator="tf-operator", api_version="v1", worker=worker)
configurations = {
    "local": made("local"),
    "file": made("local", search_space=None, search_space_file="space.yml"),
    "debug": made("local", debug=True, max_experiment_duration="1h", max_trial_number=3),
    "own": made("local", tuner=own, assessor=AlgorithmConfig(name="Medianstop")),
    "advisor": by_advisor,
    "gpus": gpus,
    "shared": made("local", shared_storage=shared),
    "remote": remote,
    "hybrid": hybrid,
    "framework": on_cluster("frameworkcontroller", nfs, **framework),
    "azure": on_cluster("frameworkcontroller", azure, **framework),
    "kubeflow": on_cluster("kubeflow", plain, **kubeflow),
    "openpai": pai,
    "loaded": ExperimentConfig.load("experiment.yml"),
}
print("told", json.dumps({name: told(config) for name, config in configurations.items()}))
"""
CANONICAL = json.loads(Path(__file__).with_name("nni_canonical.json").read_text(encoding="utf-8"))


def nnis_own(folder):
    """Returns the command that runs a script with Microsoft's package, and the path of its modules."""
    python = os.environ.get("TRIALKEEPER_TEST_NNI_PYTHON")
    if not python or not os.access(python, os.X_OK):
        pytest.skip("TRIALKEEPER_TEST_NNI_PYTHON names no Python with NNI 3.0")
    # `trialkeeper-nni` may be installed beside `trialkeeper`, and must not be imported.
    (folder / "path").mkdir()
    (folder / "path" / "trialkeeper").symlink_to(Path(trialkeeper.__file__).parent)
    return [python, "-m", "trialkeeper.nni"], str(folder / "path")


def ours(folder):
    folders = [str(Path(module.__file__).parents[1]) for module in (nni, trialkeeper)]
    return [sys.executable], os.pathsep.join(folders)


def run(package, folder, script, *words):
    """Runs a script with a package and returns the JSON in its line that begins with ``told``."""
    command, path = package(folder)
    (folder / "script.py").write_text(script)
    surroundings = {
        **os.environ,
        "HOME": str(folder),
        "PYTHONPATH": path,
        "TRIALKEEPER_PROGRAMS": str(find_program("trial-manager").parent),
    }
    done = subprocess.run(
        [*command, "script.py", *words], cwd=folder, env=surroundings, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
    (line,) = [line for line in done.stdout.splitlines() if line.startswith("told ")]
    return json.loads(line.removeprefix("told "))


@pytest.mark.parametrize("package", [ours, nnis_own])
def test_each_call_has_the_same_result(package, tmp_path):
    (tmp_path / "trial.py").write_text(TRIAL)
    assert run(package, tmp_path, SCRIPT, str(free_port())) == TOLD


@pytest.mark.parametrize("package", [ours, nnis_own])
def test_each_configuration_has_the_same_canonical_form(package, tmp_path):
    (tmp_path / "code").mkdir()
    (tmp_path / "key").touch()
    (tmp_path / "space.yml").write_text("x: {_type: choice, _value: [1, 2]}")
    (tmp_path / "experiment.yml").write_text(
        "{searchSpaceFile: space.yml, trialCommand: t, trialCodeDirectory: code, trialConcurrency: 1, "
        "tuner: {name: Random}, trainingService: {platform: local}}"
    )
    made = json.dumps(run(package, tmp_path, CONFIGURATIONS)).replace(str(tmp_path.resolve()), "FOLDER")
    assert json.loads(made) == CANONICAL


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]
