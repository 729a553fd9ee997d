"""The classes of NNI's configuration, version 2, with TrialKeeper's additions.

The fields have the names of ``docs/configuration.md``, in any case and with or without underscores. The manager
checks types and ranges, and reports all errors at once.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Optional, Union

from nni.experiment.config.base import ConfigBase, chosen, config, implied, parse_file, path, required
from nni.experiment.config.utils.public import canonical_gpu_indices, parse_time, validate_gpu_indices
from trialkeeper.experiment import default_data_dir

__all__ = [
    "AlgorithmConfig",
    "AmlConfig",
    "AzureBlobConfig",
    "CustomAlgorithmConfig",
    "DlcConfig",
    "ExperimentConfig",
    "FrameworkAttemptCompletionPolicy",
    "FrameworkControllerConfig",
    "FrameworkControllerRoleConfig",
    "K8sAzureStorageConfig",
    "K8sNfsConfig",
    "K8sStorageConfig",
    "KubeflowConfig",
    "KubeflowRoleConfig",
    "KubernetesConfig",
    "LocalConfig",
    "NfsConfig",
    "OpenpaiConfig",
    "PluginConfig",
    "RemoteConfig",
    "RemoteMachineConfig",
    "TrainerConfig",
    "TrainingServiceConfig",
]

_Indices = Union[list[int], int, str, None]
#: NNI's default for the key of a machine.
_SSH_KEY = Path("~/.ssh/id_rsa")
#: NNI's levels of logs.
_LOG_LEVELS = ("fatal", "error", "warning", "info", "debug", "trace")

#: The algorithms that the manager runs without Python, in lower case.
_BUILT_IN_TUNERS = """
    random gridsearch batch batchtuner qmc halton tpe anneal evolution gp gptuner cma-es cmaes nsga-ii nsga2
    hyperband bohb pbt pbttuner
"""
_BUILT_IN = frozenset(f"{_BUILT_IN_TUNERS} medianstop curvefitting asha".split())


def _of(cls: type[ConfigBase]) -> Any:
    """Returns a function that converts a ``dict`` into a configuration of this class."""
    return lambda value: cls(**value) if isinstance(value, dict) else value


# Algorithms.


@dataclass(init=False, eq=False, repr=False)
class _AlgorithmConfig(ConfigBase):
    """A tuner or an assessor: built in (``name``), a class, or a program (``command``, TrialKeeper's addition)."""

    name: Optional[str] = None
    class_name: Optional[str] = None
    code_directory: Optional[str] = path()
    class_args: Optional[dict[str, Any]] = None
    command: Union[str, list[str], None] = None

    def _is_set(self) -> bool:
        return bool(self.name or self.class_name or self.command)

    def _needs_python(self) -> bool:
        return bool(self.class_name or (self.name and self.name.lower() not in _BUILT_IN))

    def _check_canonical(self) -> None:
        super()._check_canonical()
        if self.class_name:
            _need_folder(self, "code_directory")


@dataclass(init=False, eq=False, repr=False)
class AlgorithmConfig(_AlgorithmConfig):
    """A built-in tuner or assessor."""


@dataclass(init=False, eq=False, repr=False)
class CustomAlgorithmConfig(_AlgorithmConfig):
    """A custom tuner or assessor: ``class_name`` is ``module.Class`` in ``code_directory``."""

    code_directory: Optional[str] = path(".")


# Training services.


@dataclass(init=False, eq=False, repr=False)
class TrainingServiceConfig(ConfigBase):
    """The fields of every training service. The experiment's fields replace absent ones."""

    platform: str = ""
    trial_command: Optional[str] = None
    trial_code_directory: Optional[str] = path()
    trial_gpu_number: Optional[int] = None
    nni_manager_ip: Optional[str] = None
    debug: Optional[bool] = None
    trial_concurrency: Optional[int] = None
    """The most trials at a time at this service, if the experiment uses several. TrialKeeper's addition."""

    def _canonicalize(self, parents: list[Any]) -> None:
        for name in ("trial_command", "trial_code_directory", "trial_gpu_number", "nni_manager_ip", "debug"):
            if getattr(self, name) is None and parents:
                setattr(self, name, getattr(parents[0], name))
        super()._canonicalize(parents)

    def _check_canonical(self) -> None:
        super()._check_canonical()
        _need_folder(self, "trial_code_directory")
        _need_whole(self, "trial_gpu_number", 0)


@dataclass(init=False, eq=False, repr=False)
class LocalConfig(TrainingServiceConfig):
    """Trials on this machine."""

    platform: str = "local"
    use_active_gpu: Optional[bool] = None
    max_trial_number_per_gpu: Optional[int] = implied(1)
    gpu_indices: _Indices = None
    reuse_mode: Optional[bool] = implied(False)

    def _canonicalize(self, parents: list[Any]) -> None:
        super()._canonicalize(parents)
        self.gpu_indices = canonical_gpu_indices(self.gpu_indices)
        self.nni_manager_ip = None

    def _check_canonical(self) -> None:
        super()._check_canonical()
        validate_gpu_indices(canonical_gpu_indices(self.gpu_indices))


@dataclass(init=False, eq=False, repr=False)
class RemoteMachineConfig(ConfigBase):
    """A machine that the manager reaches over SSH."""

    host: str = required()
    # The manager uses the port and the keys of the SSH configuration. NNI's defaults would override them.
    port: Optional[int] = chosen(22)
    user: Optional[str] = None
    password: Optional[str] = None
    password_file: Optional[str] = path()
    ssh_key_file: Optional[str] = path()
    ssh_passphrase: Optional[str] = None
    ssh_passphrase_file: Optional[str] = path()
    use_active_gpu: Optional[bool] = implied(False)
    max_trial_number_per_gpu: Optional[int] = implied(1)
    gpu_indices: _Indices = None
    python_path: Optional[str] = None
    name: Optional[str] = None
    known_hosts: Optional[str] = None
    proxy_jump: Optional[str] = None
    ssh_options: Optional[list[str]] = None
    remote_directory: Optional[str] = None
    max_trial_number: Optional[int] = None

    def _canonicalize(self, parents: list[Any]) -> None:
        if self.password is not None:
            self.ssh_key_file = None
        elif self.ssh_key_file is None and self.password_file is None and _SSH_KEY.expanduser().is_file():
            self.ssh_key_file = str(_SSH_KEY)
        super()._canonicalize(parents)
        self.gpu_indices = canonical_gpu_indices(self.gpu_indices)

    def _check_canonical(self) -> None:
        super()._check_canonical()
        validate_gpu_indices(canonical_gpu_indices(self.gpu_indices))


@dataclass(init=False, eq=False, repr=False)
class RemoteConfig(TrainingServiceConfig):
    """Trials on machines over SSH."""

    platform: str = "remote"
    machine_list: list[RemoteMachineConfig] = required(_of(RemoteMachineConfig))
    reuse_mode: Optional[bool] = implied(False)
    machine_patience: Union[str, int, None] = None

    def _check_canonical(self) -> None:
        super()._check_canonical()
        if not self.machine_list:
            raise ValueError("RemoteConfig: must provide at least one machine in machine_list")


@dataclass(init=False, eq=False, repr=False)
class PluginConfig(TrainingServiceConfig):
    """Trials that a custom program runs. TrialKeeper's addition."""

    platform: str = "plugin"
    command: list[str] = required()
    settings: Any = None
    reuse_mode: Optional[bool] = None

    def _require(self) -> None:
        if isinstance(self.command, str):
            raise ValueError(
                f"PluginConfig: command is {self.command!r}; write a list of words, such as ['python3', 'mine.py']"
            )
        super()._require()


@dataclass(init=False, eq=False, repr=False)
class OpenpaiConfig(TrainingServiceConfig):
    """Trials on OpenPAI."""

    platform: str = "openpai"
    host: str = required()
    username: str = required()
    token: Optional[str] = None
    token_file: Optional[str] = path()
    ca_file: Optional[str] = path()
    trial_cpu_number: Optional[int] = None
    trial_memory_size: Union[str, int, None] = None
    storage_config_name: str = required()
    docker_image: Optional[str] = chosen("msranni/nni:latest")
    virtual_cluster: Optional[str] = None
    local_storage_mount_point: str = required(path=True)
    container_storage_mount_point: str = required()
    reuse_mode: Optional[bool] = implied(True)
    openpai_config: Optional[dict[str, Any]] = None
    openpai_config_file: Optional[str] = path()

    def _canonicalize(self, parents: list[Any]) -> None:
        super()._canonicalize(parents)
        if "://" not in self.host:
            self.host = f"https://{self.host}"


@dataclass(init=False, eq=False, repr=False)
class K8sStorageConfig(ConfigBase):
    """Storage that the pods of a cluster share with the manager."""

    storage_type: str = required()
    #: NNI's alternative name of ``storage_type``.
    storage: Optional[str] = None
    azure_account: Optional[str] = None
    azure_share: Optional[str] = None
    key_vault_name: Optional[str] = None
    key_vault_key: Optional[str] = None
    azure_key_file: Optional[str] = path()
    server: Optional[str] = None
    path: Optional[str] = None
    claim_name: Optional[str] = None

    def _require(self) -> None:
        if self.storage_type is None:
            self.storage_type = self.storage
        super()._require()

    def _resolve(self) -> None:
        self.storage = None
        super()._resolve()


@dataclass(init=False, eq=False, repr=False)
class K8sNfsConfig(K8sStorageConfig):
    """A share of an NFS server."""

    storage_type: str = "nfs"
    storage: Optional[str] = chosen("nfs")

    def _require(self) -> None:
        _need(self, "server", "path")
        super()._require()


@dataclass(init=False, eq=False, repr=False)
class K8sAzureStorageConfig(K8sStorageConfig):
    """A share of Azure Files with its key in a key vault."""

    storage_type: str = "azureStorage"
    storage: Optional[str] = chosen("azureStorage")

    def _require(self) -> None:
        _need(self, "azure_account", "azure_share")
        super()._require()


@dataclass(init=False, eq=False, repr=False)
class FrameworkAttemptCompletionPolicy(ConfigBase):
    """The numbers of failed or succeeded tasks of a role that end the trial."""

    min_failed_task_count: int = required()
    min_succeed_task_count: int = required()

    @classmethod
    def _field(cls, name: str) -> Any:
        # FrameworkController's spelling, which TrialKeeper also accepts.
        return super()._field("min_succeed_task_count" if name.lower() == "minsucceededtaskcount" else name)


@dataclass(init=False, eq=False, repr=False)
class FrameworkControllerRoleConfig(ConfigBase):
    """A group of like pods."""

    name: str = required()
    docker_image: Optional[str] = "msranni/nni:latest"
    task_number: Optional[int] = None
    command: Optional[str] = None
    gpu_number: Optional[int] = None
    cpu_number: Union[int, float, str, None] = None
    memory_size: Union[str, int, None] = None
    framework_attempt_completion_policy: Optional[FrameworkAttemptCompletionPolicy] = config(
        _of(FrameworkAttemptCompletionPolicy)
    )
    private_registry_auth_path: Optional[str] = path()


@dataclass(init=False, eq=False, repr=False)
class _ClusterConfig(TrainingServiceConfig):
    """The fields of platforms that run trials as pods. The fields from ``template`` on are TrialKeeper's."""

    storage: Union[K8sStorageConfig, str, None] = config(_of(K8sStorageConfig))
    service_account_name: Optional[str] = None
    task_roles: Optional[list[FrameworkControllerRoleConfig]] = config(_of(FrameworkControllerRoleConfig))
    namespace: Optional[str] = None
    reuse_mode: Optional[bool] = implied(True)
    config_path: Optional[str] = path()
    upload_retry_count: Optional[int] = None
    template: Optional[dict[str, Any]] = None
    kubeconfig: Optional[str] = path()
    context: Optional[str] = None
    advertise: Optional[str] = None
    agent: Optional[str] = None
    agent_image: Optional[str] = None
    image_pull_policy: Optional[str] = None
    image_pull_secrets: Optional[list[str]] = None
    node_selector: Optional[dict[str, str]] = None
    tolerations: Optional[list[dict[str, Any]]] = None
    run_as_user: Optional[int] = None
    start_up_deadline: Union[str, int, None] = None
    metrics_from: Optional[str] = None
    barrier_image: Optional[str] = None
    queue: Optional[str] = None
    priority_class: Optional[str] = None
    mounts: Optional[list[dict[str, Any]]] = None
    allow_host_path: Optional[bool] = None
    hand_over: Optional[str] = None
    cache: Optional[dict[str, Any]] = None


@dataclass(init=False, eq=False, repr=False)
class FrameworkControllerConfig(_ClusterConfig):
    """Trials as Frameworks of FrameworkController."""

    platform: str = "frameworkcontroller"
    namespace: Optional[str] = chosen("default")

    def _canonicalize(self, parents: list[Any]) -> None:
        super()._canonicalize(parents)
        self.trial_command = self.trial_command or ""


@dataclass(init=False, eq=False, repr=False)
class KubernetesConfig(_ClusterConfig):
    """Trials as Kubernetes Jobs. TrialKeeper's addition."""

    platform: str = "kubernetes"
    docker_image: Optional[str] = None
    task_number: Optional[int] = None
    command: Optional[str] = None
    gpu_number: Optional[int] = None
    cpu_number: Union[int, float, str, None] = None
    memory_size: Union[str, int, None] = None
    private_registry_auth_path: Optional[str] = path()


@dataclass(init=False, eq=False, repr=False)
class TrainerConfig(KubernetesConfig):
    """Trials as TrainJobs of Kubeflow Trainer. TrialKeeper's addition."""

    platform: str = "trainer"


@dataclass(init=False, eq=False, repr=False)
class KubeflowRoleConfig(ConfigBase):
    """A group of like pods."""

    replicas: Optional[int] = None
    command: Optional[str] = None
    gpu_number: Optional[int] = 0
    cpu_number: Union[int, float, str, None] = None
    memory_size: Union[str, int, None] = None
    docker_image: Optional[str] = "msranni/nni:latest"
    code_directory: Optional[str] = path()
    private_registry_auth_path: Optional[str] = path()


@dataclass(init=False, eq=False, repr=False)
class KubeflowConfig(_ClusterConfig):
    """Trials as jobs of Kubeflow's training operators."""

    platform: str = "kubeflow"
    operator: str = required()
    api_version: Optional[str] = None
    namespace: Optional[str] = chosen("default")
    worker: Optional[KubeflowRoleConfig] = config(_of(KubeflowRoleConfig))
    ps: Optional[KubeflowRoleConfig] = config(_of(KubeflowRoleConfig))
    master: Optional[KubeflowRoleConfig] = config(_of(KubeflowRoleConfig))

    def _canonicalize(self, parents: list[Any]) -> None:
        super()._canonicalize(parents)
        self.trial_command = self.trial_command or ""


@dataclass(init=False, eq=False, repr=False)
class AmlConfig(TrainingServiceConfig):
    """Trials on Azure Machine Learning."""

    platform: str = "aml"
    subscription_id: str = required()
    resource_group: str = required()
    workspace_name: str = required()
    compute_target: str = required()
    docker_image: str = "msranni/nni:latest"
    max_trial_number_per_gpu: int = 1


@dataclass(init=False, eq=False, repr=False)
class DlcConfig(TrainingServiceConfig):
    """Trials on Alibaba's PAI-DLC."""

    platform: str = "dlc"
    type: str = "Worker"
    image: str = required()
    job_type: str = "TFJob"
    pod_count: int = required()
    ecs_spec: str = required()
    region: str = required()
    workspace_id: str = required()
    nas_data_source_id: str = required()
    oss_data_source_id: Optional[str] = None
    access_key_id: str = required()
    access_key_secret: str = required()
    local_storage_mount_point: str = required()
    container_storage_mount_point: str = required()


_SERVICES: dict[str, type[TrainingServiceConfig]] = {
    "local": LocalConfig,
    "remote": RemoteConfig,
    "openpai": OpenpaiConfig,
    "pai": OpenpaiConfig,
    "kubeflow": KubeflowConfig,
    "frameworkcontroller": FrameworkControllerConfig,
    "kubernetes": KubernetesConfig,
    "trainer": TrainerConfig,
    "plugin": PluginConfig,
    "aml": AmlConfig,
    "dlc": DlcConfig,
}


def _service(value: Any) -> Any:
    """Returns the configuration of a training service from its name, a ``dict`` or a configuration."""
    if isinstance(value, TrainingServiceConfig):
        return value
    fields = {"platform": value} if isinstance(value, str) else dict(value)
    platform = fields.get("platform")
    found = _SERVICES.get(str(platform).lower())
    if found is None:
        raise ValueError(f"unknown platform {platform!r}; the platforms are {', '.join(sorted(_SERVICES))}")
    return found(**fields)


# Shared storage.


@dataclass(init=False, eq=False, repr=False)
class SharedStorageConfig(ConfigBase):
    """Storage that all machines of an experiment share."""

    storage_type: str = required()
    local_mount_point: str = required(path=True)
    remote_mount_point: str = required()
    local_mounted: str = required()
    storage_account_name: Optional[str] = None
    storage_account_key: Optional[str] = None
    container_name: Optional[str] = None
    nfs_server: Optional[str] = None
    exported_directory: Optional[str] = None


@dataclass(init=False, eq=False, repr=False)
class NfsConfig(SharedStorageConfig):
    """A share of an NFS server."""

    storage_type: str = "NFS"


@dataclass(init=False, eq=False, repr=False)
class AzureBlobConfig(SharedStorageConfig):
    """A container of Azure's blob storage."""

    storage_type: str = "AzureBlob"


# The experiment.


@dataclass(init=False, eq=False, repr=False)
class ExperimentConfig(ConfigBase):
    """An experiment file. The fields from ``objective`` on are TrialKeeper's additions.

    ``ExperimentConfig('local')`` has the empty sections ``training_service``, ``tuner``, ``assessor`` and
    ``advisor``, for example for ``config.tuner.name = 'TPE'``. Sections of algorithms that stay empty are omitted.
    """

    experiment_name: Optional[str] = None
    experiment_type: Optional[str] = implied("hpo")
    search_space_file: Optional[str] = path()
    search_space: Any = None
    trial_command: Optional[str] = None
    trial_code_directory: str = path(".")
    trial_concurrency: int = required()
    trial_gpu_number: Optional[int] = None
    max_experiment_duration: Union[str, int, None] = None
    max_trial_number: Optional[int] = None
    max_trial_duration: Union[str, int, None] = None
    nni_manager_ip: Optional[str] = None
    use_annotation: Optional[bool] = implied(False)
    debug: Optional[bool] = implied(False)
    log_level: Optional[str] = None
    experiment_working_directory: Optional[str] = path()
    tuner_gpu_indices: _Indices = None
    tuner: Any = config(_of(_AlgorithmConfig))
    assessor: Any = config(_of(_AlgorithmConfig))
    advisor: Any = config(_of(_AlgorithmConfig))
    # `Any`, because the fields of this section depend on the platform.
    training_service: Any = required(_service)
    shared_storage: Optional[SharedStorageConfig] = config(_of(SharedStorageConfig))
    objective: Union[str, dict[str, Any], None] = None
    objectives: Optional[list[dict[str, Any]]] = None
    constraints: Optional[list[dict[str, Any]]] = None
    code_snapshot: Optional[bool] = None
    record_packages: Optional[bool] = None
    python_interpreter: Optional[str] = None
    target_metric: Optional[float] = None
    max_consecutive_failures: Optional[int] = None
    max_trial_retries: Optional[int] = None
    trial_repeats: Optional[int] = None
    tuner_patience: Union[str, int, None] = None
    notifications: Optional[dict[str, Any]] = None
    initial_trials: Optional[list[dict[str, Any]]] = None
    owner: Optional[str] = None
    tags: Optional[list[str]] = None

    def __init__(self, training_service_platform: Union[str, list[str], None] = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        if self.experiment_working_directory is None:
            self.experiment_working_directory = str(default_data_dir())
        if training_service_platform is not None:
            self.training_service = training_service_platform
            for section in ("tuner", "assessor", "advisor"):
                if getattr(self, section) is None:
                    setattr(self, section, _AlgorithmConfig(class_args={}))

    def _resolve(self) -> None:
        self._drop_unset_algorithms()
        if self.search_space_file is not None:
            # As in NNI, the file has precedence. The manager refuses both.
            self.search_space = None
        for section in ("tuner", "assessor", "advisor"):
            algorithm = getattr(self, section)
            if isinstance(algorithm, _AlgorithmConfig):
                # With an empty object, some tuners would use NNI's defaults.
                algorithm.class_args = algorithm.class_args or None
                if algorithm._needs_python() and self.python_interpreter is None:
                    # This script's Python can import the class.
                    self.python_interpreter = sys.executable
        super()._resolve()

    def _canonicalize(self, parents: list[Any]) -> None:
        self._drop_unset_algorithms()
        if self.log_level is None:
            self.log_level = "debug" if self.debug else "info"
        self.tuner_gpu_indices = canonical_gpu_indices(self.tuner_gpu_indices)
        if self.advisor is not None:
            if self.tuner is not None:
                raise ValueError("ExperimentConfig: set either tuner or advisor, which is NNI's old name of it")
            self.tuner, self.advisor = self.advisor, None
        super()._canonicalize(parents)
        if self.search_space_file is not None:
            try:
                self.search_space = parse_file(Path(self.search_space_file))
            except (OSError, ValueError) as error:
                raise ValueError(
                    f'ExperimentConfig: Failed to load search space file "{self.search_space_file}": {error}'
                ) from None
            # An experiment file with both would be refused.
            self.search_space_file = None

    def _check_canonical(self) -> None:
        super()._check_canonical()
        if self.use_annotation and self.search_space is not None:
            raise ValueError("ExperimentConfig: search space must not be set when annotation is enabled")
        if not self.use_annotation and self.search_space is None:
            raise ValueError("ExperimentConfig: search_space and search_space_file must be set one")
        for name in ("trial_concurrency", "max_trial_number"):
            _need_whole(self, name, 1)
        for name in ("max_experiment_duration", "max_trial_duration"):
            duration = getattr(self, name)
            if duration is not None and parse_time(duration) <= 0:
                raise ValueError(f"ExperimentConfig: {name} must be greater than 0, and is {duration!r}")
        if self.log_level not in _LOG_LEVELS:
            levels = ", ".join(_LOG_LEVELS)
            raise ValueError(f"ExperimentConfig: log_level {self.log_level!r} is not one of {levels}")
        validate_gpu_indices(canonical_gpu_indices(self.tuner_gpu_indices))

    def _drop_unset_algorithms(self) -> None:
        for section in ("tuner", "assessor", "advisor"):
            algorithm = getattr(self, section)
            if isinstance(algorithm, _AlgorithmConfig) and not algorithm._is_set():
                if algorithm.class_args:
                    raise ValueError(f"{section}.class_args is set and {section}.name is not")
                setattr(self, section, None)


def _need(section: ConfigBase, *names: str) -> None:
    for name in names:
        if getattr(section, name) is None:
            raise ValueError(f"{type(section).__name__}: {name} is not set")


def _need_folder(section: ConfigBase, name: str) -> None:
    folder = getattr(section, name)
    if folder is not None and not Path(folder).is_dir():
        raise ValueError(f'{type(section).__name__}: {name} "{folder}" is not a directory')


def _need_whole(section: ConfigBase, name: str, least: int) -> None:
    value = getattr(section, name)
    if value is None:
        return
    if isinstance(value, bool) or not isinstance(value, int):
        raise ValueError(f"{type(section).__name__}: type of {name} ({value!r}) is not <class 'int'>")
    if value < least:
        raise ValueError(f"{type(section).__name__}: {name} must be at least {least}, and is {value}")
