"""The configuration classes, and the experiment files that they produce."""

import copy
import json
import subprocess
import sys
from pathlib import Path

import pytest

import trialkeeper
from nni.experiment import (
    AlgorithmConfig,
    CustomAlgorithmConfig,
    Experiment,
    ExperimentConfig,
    FrameworkAttemptCompletionPolicy,
    FrameworkControllerRoleConfig,
    K8sAzureStorageConfig,
    KubeflowConfig,
    KubeflowRoleConfig,
    LocalConfig,
    PluginConfig,
    RemoteConfig,
    RemoteMachineConfig,
)
from trialkeeper._programs import find_program

EXAMPLE = Path(__file__).with_name("example_frameworkcontroller.py")
SPACE = {"x": {"_type": "uniform", "_value": [0, 1]}}
ROLE = {
    "name": "worker",
    "dockerImage": "msranni/nni:latest",
    "taskNumber": 1,
    "command": "python3 model.py",
    "gpuNumber": 1,
    "cpuNumber": 1,
    "memorySize": "4g",
    "frameworkAttemptCompletionPolicy": {"minFailedTaskCount": 1, "minSucceedTaskCount": 1},
}


def local():
    config = ExperimentConfig("local")
    config.trial_command = "python3 trial.py"
    config.search_space = SPACE
    config.trial_concurrency = 2
    config.tuner.name = "TPE"
    return config


@pytest.fixture
def documented_example(monkeypatch, tmp_path):
    """Runs the unchanged example of NNI's documentation up to `run`, and returns its experiment."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "model.py").write_text("print('accuracy=1')")
    monkeypatch.setattr(Experiment, "run", lambda self, port: ran.append(port))
    ran = []
    names = {"search_space": SPACE}
    exec(EXAMPLE.read_text(), names)
    assert ran == [8080]
    return names["experiment"]


def test_the_documented_example_becomes_this_experiment_file(documented_example, tmp_path):
    assert documented_example.config._experiment_file() == {
        "searchSpace": SPACE,
        "trialCodeDirectory": str(tmp_path.resolve()),
        "experimentWorkingDirectory": str(tmp_path.resolve() / "data"),
        "trialConcurrency": 2,
        "maxTrialNumber": 10,
        "tuner": {"name": "TPE", "classArgs": {"optimize_mode": "maximize"}},
        "trainingService": {
            "platform": "frameworkcontroller",
            "storage": {"storageType": "nfs", "server": "10.20.30.40", "path": "/mnt/nfs/nni"},
            "taskRoles": [ROLE],
        },
    }


def test_the_manager_accepts_the_documented_example(documented_example, tmp_path):
    config = documented_example.config
    storage = K8sAzureStorageConfig(
        azure_account="account", azure_share="share", key_vault_name="vault", key_vault_key="key"
    )
    for change in (None, storage):
        if change is not None:
            config.training_service.storage = change
            config.training_service.service_account_name = "trials"
        for written in (config._experiment_file(), config.json()):
            accepted(written, tmp_path)


def accepted(written, folder):
    """Checks that the manager accepts an experiment file."""
    file = folder / "experiment.json"
    file.write_text(json.dumps(written))
    file.chmod(0o600)
    done = subprocess.run([find_program("trial-manager"), "doctor", file], capture_output=True, text=True)
    assert f"ok    file   {file}" in done.stdout, done.stdout + done.stderr


def test_the_documented_example_runs_as_far_as_the_cluster(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("KUBECONFIG", raising=False)
    text = EXAMPLE.read_text().replace("run(8080)", "run(0)")  # Port 8080 may be taken where this test runs.
    with pytest.raises(trialkeeper.ManagerError, match="kubeconfig"):
        exec(text, {"search_space": SPACE})


@pytest.mark.parametrize("name", ["gpuNumber", "gpu_number", "GPUNumber", "gpunumber", "_GPU_NUMBER"[1:]])
def test_fields_are_found_in_any_spelling(name):
    role = FrameworkControllerRoleConfig(**{name: 3})
    assert role.gpu_number == 3
    setattr(role, name, 4)
    assert (role.gpu_number, getattr(role, name)) == (4, 4)
    assert vars(role).get("gpuNumber") is None


@pytest.mark.parametrize(
    ("act", "message"),
    [
        (lambda: setattr(local(), "trial_concurency", 1), "no field trial_concurency; did you mean trial_conc"),
        (lambda: LocalConfig(gpu_index=[0]), "LocalConfig has no field gpu_index; did you mean gpu_indices"),
        (lambda: local().tuner.klass, "no field klass"),
        (lambda: ExperimentConfig(**{"trainingService": {"platform": "local", "dockr": 1}}), "no field dockr"),
    ],
)
def test_a_name_that_is_no_field_is_refused_with_the_nearest(act, message):
    with pytest.raises(AttributeError, match=message):
        act()


def test_what_is_not_set_is_named():
    with pytest.raises(ValueError, match="ExperimentConfig: trial_concurrency is not set"):
        ExperimentConfig("local").json()
    config = local()
    config.training_service = RemoteConfig(machine_list=[RemoteMachineConfig(host="h")])
    assert config._experiment_file()["trainingService"]["machineList"] == [{"host": "h"}]
    config.training_service = PluginConfig(command="python3 service.py")
    with pytest.raises(ValueError, match=r"PluginConfig: command is 'python3 service.py'; write a list of words"):
        config.json()
    config.training_service = RemoteConfig(machine_list=[RemoteMachineConfig(user="me")])
    with pytest.raises(ValueError, match="RemoteMachineConfig: host is not set"):
        config.json()
    service = {"platform": "frameworkcontroller", "taskRoles": [ROLE], "storage": K8sAzureStorageConfig()}
    config.training_service = service
    with pytest.raises(ValueError, match="K8sAzureStorageConfig: azure_account is not set"):
        config.json()
    with pytest.raises(ValueError, match=r"unknown platform 'slurm'.*frameworkcontroller"):
        ExperimentConfig("slurm")


def test_a_part_of_several_services_has_its_own_limit():
    config = local()
    config.training_service = [LocalConfig(trial_concurrency=2), PluginConfig(command=["s"], trial_concurrency=3)]
    parts = config.json()["trainingService"]
    assert [(part["platform"], part["trialConcurrency"]) for part in parts] == [("local", 2), ("plugin", 3)]


def test_the_manager_accepts_what_kubeflow_shares_with_other_clusters(tmp_path):
    config = local()
    config.training_service = KubeflowConfig(
        operator="pytorch-operator",
        kubeconfig=str(tmp_path / "kubeconfig"),
        context="lab",
        service_account_name="trials",
        node_selector={"pool": "gpu"},
        queue="team",
        mounts=[{"name": "data", "path": "/data", "claim_name": "sets"}],
        hand_over="object",
        cache={"claim_name": "agents"},
        master=KubeflowRoleConfig(replicas=1, command="python3 train.py"),
    )
    config.tags = ["baseline"]
    config.initial_trials = [{"x": 0.5}]
    accepted(config._experiment_file(), tmp_path)
    accepted(config.json(), tmp_path)


def test_sections_are_made_of_dictionaries():
    config = ExperimentConfig(
        searchSpace=SPACE,
        trialConcurrency=1,
        tuner={"name": "Random", "classArgs": {"seed": 1}},
        trainingService={"platform": "frameworkcontroller", "taskRoles": [ROLE]},
    )
    role = config.training_service.task_roles[0]
    assert role.framework_attempt_completion_policy == FrameworkAttemptCompletionPolicy(
        min_failed_task_count=1, min_succeed_task_count=1
    )
    assert config.tuner.class_args == {"seed": 1}
    assert copy.deepcopy(config) == config


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("search_space", None, "ExperimentConfig: search_space and search_space_file must be set one"),
        ("use_annotation", True, "ExperimentConfig: search space must not be set when annotation is enabled"),
        ("trial_concurrency", "2", "ExperimentConfig: type of trial_concurrency ('2') is not <class 'int'>"),
        ("trial_concurrency", 0, "trial_concurrency must be at least 1"),
        ("max_trial_number", 1.5, "type of max_trial_number (1.5) is not <class 'int'>"),
        ("max_experiment_duration", "1x", "'1x' has no unit"),
        ("max_trial_duration", "0s", "max_trial_duration must be greater than 0"),
        ("log_level", "verbose", "log_level 'verbose' is not one of fatal, error"),
        ("trial_code_directory", "nowhere", "is not a directory"),
        ("training_service", {"platform": "remote", "machineList": []}, "at least one machine in machine_list"),
        ("training_service", LocalConfig(gpu_indices="0,0"), "GPU indices must be different"),
        ("tuner", CustomAlgorithmConfig(class_name="a.B", code_directory="nowhere"), "is not a directory"),
        ("advisor", AlgorithmConfig(name="BOHB"), "set either tuner or advisor"),
    ],
)
def test_a_configuration_that_nni_refuses_is_not_valid(name, value, message):
    config = local()
    assert config.validate() is None
    setattr(config, name, value)
    for check in (config.validate, config.canonical_copy, config.json):
        with pytest.raises(ValueError) as caught:
            check()
        assert message in str(caught.value)


def test_algorithms_that_stay_empty_are_left_out():
    config = local()
    assert set(config.json()) & {"tuner", "assessor", "advisor"} == {"tuner"}
    assert "pythonInterpreter" not in config.json()
    config.assessor = AlgorithmConfig(name="Medianstop")
    assert config.json()["assessor"] == {"name": "Medianstop"}
    config.assessor = None
    config.advisor.class_args["R"] = 3
    with pytest.raises(ValueError, match="advisor"):
        config.json()


def test_a_class_of_ones_own_runs_in_this_python(tmp_path):
    config = local()
    config.tuner = CustomAlgorithmConfig(class_name="mine.Tuner", code_directory=tmp_path)
    file = config._experiment_file()
    assert file["tuner"] == {"className": "mine.Tuner", "codeDirectory": str(tmp_path.resolve())}
    assert file["pythonInterpreter"] == sys.executable
    assert "pythonInterpreter" not in config.json()


def test_paths_in_a_file_start_at_its_folder(tmp_path):
    file = tmp_path / "experiment.json"
    file.write_text(
        json.dumps(
            {
                "trialCommand": "python3 trial.py",
                "trialCodeDirectory": "code",
                "searchSpaceFile": "space.json",
                "trialConcurrency": 1,
                "trainingService": {"platform": "local"},
            }
        )
    )
    loaded = ExperimentConfig.load(file)
    fields = loaded._experiment_file()
    assert fields["trialCodeDirectory"] == str(tmp_path.resolve() / "code")
    assert fields["searchSpaceFile"] == str(tmp_path.resolve() / "space.json")
    (tmp_path / "code").mkdir()
    with pytest.raises(ValueError, match=r'Failed to load search space file ".*space\.json": .*No such file'):
        loaded.json()
    (tmp_path / "space.json").write_text(json.dumps(SPACE))
    assert loaded.json()["searchSpace"] == SPACE
    loaded.search_space = {"y": SPACE["x"]}
    assert "searchSpace" not in loaded._experiment_file(), "the manager refuses both"


def test_yaml_is_read_as_the_manager_reads_it(tmp_path):
    file = tmp_path / "experiment.yml"
    file.write_text(
        "trialCommand: python3 trial.py\n"
        "searchSpace: {x: {_type: choice, _value: [on, 0x10, 1e3, ~]}}\n"
        "tuner:\n  name: TPE\n  classArgs: &args {optimize_mode: maximize}\n"
        "trialConcurrency: 2  # at a time\n"
    )
    loaded = ExperimentConfig.load(file)
    assert (loaded.trial_concurrency, loaded.tuner.class_args) == (2, {"optimize_mode": "maximize"})
    assert loaded.search_space["x"]["_value"] == [True, 16, 1000, None]


@pytest.mark.parametrize(
    ("text", "error", "says"),
    [
        (None, FileNotFoundError, "experiment.yml"),
        ("a: [\n  - {b: c\n", ValueError, "experiment.yml: line "),
        ("a: 1\na: 2\n", ValueError, "experiment.yml: line 2"),
        ("- 1\n", TypeError, "an experiment file is an object, and this is list"),
        ("trialComand: x\n", AttributeError, "did you mean trial_command?"),
        ("maxTrialCount: 5\n", AttributeError, "here it is max_trial_number"),
        ("n_jobs: 2\n", AttributeError, "here it is trial_concurrency"),
    ],
)
def test_a_file_that_cannot_be_loaded_is_explained(tmp_path, text, error, says):
    file = tmp_path / "experiment.yml"
    if text is not None:
        file.write_text(text)
    with pytest.raises(error) as caught:
        ExperimentConfig.load(file)
    assert says in str(caught.value)


def test_an_attribute_that_nni_refuses_is_noted_once_for_its_class(caplog):
    from nni.experiment.config import base

    base._note_spelling.cache_clear()
    for _ in range(2):
        FrameworkControllerRoleConfig(gpuNumber=1).gpuNumber = 2
    assert caplog.messages == [
        "FrameworkControllerRoleConfig: `gpuNumber` is taken as `gpu_number`; NNI 3.0 refuses this spelling"
    ]
