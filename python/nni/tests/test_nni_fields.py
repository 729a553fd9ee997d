"""Checks that the configuration classes have every field, platform and algorithm of the manager's source."""

import dataclasses
import re
from pathlib import Path

import pytest

from nni.experiment import config

SOURCE = Path(__file__).parents[3] / "manager" / "src"
if not SOURCE.is_dir():
    pytest.skip("the tests run outside the source tree", allow_module_level=True)


def fold(name):
    return name.lower().replace("_", "")


def listed(file, constant):
    """Returns the strings of a list in the manager's source."""
    text = (SOURCE / file).read_text(encoding="utf-8")
    (found,) = re.findall(
        rf"^(?:pub\((?:super|in [\w:]+)\) )?const {constant}: \[&str; \d+\] =\s*\[(.*?)\];",
        text,
        re.MULTILINE | re.DOTALL,
    )
    return re.findall(r'"(\w+)"', found)


@pytest.mark.parametrize(
    ("file", "constant", "classes"),
    [
        ("check.rs", "FIELDS", [config.ExperimentConfig]),
        ("services/inherited.rs", "INHERITED_FIELDS", [config.LocalConfig, config.RemoteConfig]),
        ("services/inherited.rs", "INHERITED_FIELDS", [config.OpenpaiConfig]),
        ("services/local.rs", "FIELDS", [config.LocalConfig]),
        ("services/remote.rs", "FIELDS", [config.RemoteConfig]),
        ("services/remote.rs", "MACHINE_FIELDS", [config.RemoteMachineConfig]),
        ("services/openpai.rs", "OPENPAI_FIELDS", [config.OpenpaiConfig]),
        ("services/plugin.rs", "FIELDS", [config.PluginConfig]),
        ("kubernetes.rs", "FIELDS", [config.FrameworkControllerConfig, config.KubernetesConfig]),
        ("kubernetes.rs", "FIELDS", [config.TrainerConfig, config.KubeflowConfig]),
        ("kubernetes/role.rs", "FIELDS", [config.FrameworkControllerRoleConfig]),
        ("kubernetes/workload.rs", "ROLE_FIELDS", [config.KubernetesConfig, config.TrainerConfig]),
        ("kubernetes/kubeflow.rs", "ROLE_FIELDS", [config.KubeflowRoleConfig]),
        ("kubernetes/storage.rs", "FIELDS", [config.K8sStorageConfig]),
    ],
)
def test_a_class_has_the_fields_that_the_manager_reads(file, constant, classes):
    fields = listed(f"config/{file}", constant)
    assert fields
    for cls in classes:
        known = {fold(field.name) for field in dataclasses.fields(cls)}
        assert [name for name in fields if fold(name) not in known] == [], cls.__name__


def test_each_platform_has_a_class():
    text = (SOURCE / "config/service.rs").read_text(encoding="utf-8")
    platforms = re.findall(r'^    \("(\w+)", \w+::read_section\)', text, re.MULTILINE)
    kinds = re.findall(r"^    \(WorkloadKind::(\w+)\.platform\(\), ", text, re.MULTILINE)
    table = (SOURCE / "config/kubernetes/kind.rs").read_text(encoding="utf-8")
    row = r'^    (\w+): +"\w+", +"\w+", +"[\w.-]+" / "\w+", +"(\w+)"'
    platform_of = dict(re.findall(row, table, re.MULTILINE))
    platforms += [platform_of[kind] for kind in kinds]
    assert {"local", "trainer"} <= set(platforms)
    assert [name for name in platforms if name not in config._SERVICES] == []


def test_each_algorithm_that_is_built_in_runs_without_python():
    tuners = (SOURCE / "search/tuner.rs").read_text(encoding="utf-8")
    names = re.findall(r'^        (?:name: |alias: Some\()"(.+?)"', tuners, re.MULTILINE)
    assessors = (SOURCE / "search/assessor.rs").read_text(encoding="utf-8")
    names += re.findall(r'^    \("(\w+)", \|arguments\|', assessors, re.MULTILINE)
    assert {"TPE", "GPTuner", "ASHA"} <= set(names)
    assert [name for name in names if config.AlgorithmConfig(name=name)._needs_python()] == []
