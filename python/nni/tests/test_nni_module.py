"""The names that `import nni` provides, as NNI's own package does."""

import importlib
import logging
import os
import re
import subprocess
import sys

import pytest

import nni
from nni.experiment.config import utils as config_utils


@pytest.mark.parametrize(
    "code",
    [
        "nni.Experiment('local').config.tuner.name = 'TPE'",
        "nni.experiment.Experiment",
        "nni.tuner.Tuner",
        "nni.assessor.AssessResult.Bad",
        "nni.parameter_expressions.uniform",
        "nni.trial.get_next_parameter",
        "nni.utils.merge_parameter",
        "nni.enable_global_logging(False)",
        "nni.load(nni.dump(nni.trace(dict)))",
        "nni.dispatcher_env_vars.SDK_PROCESS",
        "nni.recoverable.Recoverable",
        "nni.typehint.Parameters",
        "from nni import *; Experiment, silence_stdout",
    ],
)
def test_a_part_is_found_without_an_import_of_its_own(code):
    # Runs in its own process, because other tests have imported all parts in this one.
    done = subprocess.run([sys.executable, "-c", f"import nni; {code}"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_a_trial_imports_no_more_than_it_needs():
    code = "import nni, sys; print([name for name in sys.modules if name in ('nni.experiment', 'trialkeeper')])"
    assert subprocess.check_output([sys.executable, "-c", code], text=True) == "[]\n"


def test_the_parts_are_listed():
    assert {"Experiment", "experiment", "tuner", "report_final_result"} <= set(dir(nni))
    assert set(nni.__all__) <= set(dir(nni))


def test_a_silenced_package_prints_nothing(monkeypatch, capsys):
    monkeypatch.setattr("nni._stdout._is_silent", False)
    nni.report_final_result(0.5)
    assert capsys.readouterr().out == "nni: final result 0.5\n"
    nni.silence_stdout()
    nni.report_final_result(0.5)
    assert capsys.readouterr().out == ""


_IN_A_TRIAL = {"NNI_PLATFORM": "local"}


@pytest.mark.parametrize(
    ("variables", "code", "printed"),
    [
        (_IN_A_TRIAL, "import nni; logging.info('said')", r"INFO:root:said\n"),
        (_IN_A_TRIAL, "import nni; logging.debug('said')", ""),
        (_IN_A_TRIAL, "import nni; mine.info('said')", r"\[[-0-9]+ [:0-9]+\] INFO \(mine/MainThread\) said\n"),
        (_IN_A_TRIAL, "import nni; mine.debug('said')", ""),
        (_IN_A_TRIAL, "import nni; mine.addHandler(logging.StreamHandler()); mine.info('said')", r"said\n"),
        (_IN_A_TRIAL, "import nni; logging.basicConfig(level='WARNING'); mine.info('said')", ""),
        (_IN_A_TRIAL, "import nni; logging.basicConfig(format='+%(message)s'); mine.info('said')", r"\+said\n"),
        (_IN_A_TRIAL, "logging.basicConfig(format='+%(message)s'); import nni; mine.info('said')", r"\+said\n"),
        (_IN_A_TRIAL, "logging.basicConfig(level='DEBUG'); import nni; mine.debug('said')", r"DEBUG:mine:said\n"),
        ({"NNI_PLATFORM": "unittest"}, "import nni; mine.info('said')", ""),
        ({**_IN_A_TRIAL, "SDK_PROCESS": "dispatcher"}, "import nni; mine.info('said')", ""),
        ({}, "import nni; mine.info('said')", ""),
        ({}, "import nni; nni.enable_global_logging(); mine.info('said')", r".* said\n"),
        ({}, "import nni; [nni.enable_global_logging(on) for on in (True, False)]; mine.info('said')", ""),
    ],
)
def test_the_logs_of_a_trial_are_printed(variables, code, printed):
    command = [sys.executable, "-c", f"import logging; mine = logging.getLogger('mine'); {code}"]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, **variables})
    assert re.fullmatch(printed, done.stderr), done.stderr


@pytest.mark.parametrize(
    "code",
    [
        "from nni.common import dump, is_traceable, load, trace",
        "from nni.common.hpo_utils import Deduplicator, OptimizeMode, format_search_space, validate_search_space",
        "from nni.common.hpo_utils.formatting import ParameterSpec, deformat_parameters, format_parameters",
        "from nni.common.serializer import Traceable, is_wrapped_with_trace",
        "from nni.experiment.config.algorithm import AlgorithmConfig, CustomAlgorithmConfig",
        "from nni.experiment.config.base import ConfigBase",
        "from nni.experiment.config.experiment_config import ExperimentConfig",
        "from nni.experiment.config.shared_storage import NfsConfig",
        "from nni.experiment.config.training_service import TrainingServiceConfig",
        "from nni.experiment.config.training_services import LocalConfig, RemoteMachineConfig",
        "from nni.experiment.config.training_services.frameworkcontroller import FrameworkControllerRoleConfig",
        "from nni.experiment.config.training_services.k8s_storage import K8sNfsConfig",
        "from nni.experiment.config.utils import PathLike, parse_time",
        "from nni.recoverable import Recoverable",
        "from nni.runtime.config import get_config_directory",
        "from nni.runtime.env_vars import dispatcher_env_vars, trial_env_vars",
        "from nni.runtime.log import enable_global_logging, silence_stdout",
        "from nni.typehint import ParameterRecord, Parameters, SearchSpace, TrialMetric, TrialRecord",
    ],
)
def test_a_module_can_be_imported_first(code):
    done = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("nni.retiarii", "nothing of its architecture search"),
        ("nni.nas.nn.pytorch", "nothing of its architecture search"),
        ("nni.compression", "nothing of its architecture search"),
        ("nni.algorithms.hpo.tpe_tuner", "built into trial-manager, such as config.tuner.name = 'TPE'"),
        ("nni.runtime.msg_dispatcher", "derives from nni.runtime.msg_dispatcher_base.MsgDispatcherBase"),
        ("nni.experiment.launcher", "none of its internal modules"),
        ("nni.tools.nnictl", "the command is `nnictl`"),
    ],
)
def test_a_missing_module_says_what_the_package_has(name, message):
    with pytest.raises(ModuleNotFoundError, match=r"has no nni.*Microsoft's nni has") as error:
        importlib.import_module(name)
    assert message in str(error.value)
    assert name.startswith(error.value.name)


def test_the_variables_of_a_trial_are_read_at_the_import():
    code = "from nni.runtime.env_vars import *; print(trial_env_vars.NNI_EXP_ID, dispatcher_env_vars.NNI_MODE)"
    command = [sys.executable, "-c", code]
    assert subprocess.check_output(command, text=True, env={**os.environ, "NNI_EXP_ID": "e"}) == "e None\n"


def test_the_folder_of_settings_is_made(monkeypatch, tmp_path):
    from nni.runtime.config import get_config_directory, get_config_file

    monkeypatch.setenv("NNI_CONFIG_DIR", str(tmp_path / "a" / "b"))
    assert get_config_directory() == tmp_path / "a" / "b"
    (tmp_path / "a" / "b" / "registered_algorithms.yml").touch()
    assert get_config_file("registered_algorithms.yml").is_file()
    with pytest.raises(FileNotFoundError, match=r"other\.yml"):
        get_config_file("other.yml")


def test_the_log_of_an_experiment_contains_the_messages_of_nni(tmp_path):
    from nni.runtime.log import start_experiment_logging, stop_experiment_logging

    start_experiment_logging("e", tmp_path / "experiment.log", "info")
    logging.getLogger("nni.mine").info("seen")
    logging.getLogger("nni.mine").debug("too fine")
    stop_experiment_logging("e")
    logging.getLogger("nni.mine").info("too late")
    assert [line.rpartition(" ")[2] for line in (tmp_path / "experiment.log").read_text().splitlines()] == ["seen"]


@pytest.mark.parametrize(
    ("name", "given", "expected"),
    [
        ("parse_time", "1.5h", 5400),
        ("parse_time", 90, 90),
        ("parse_time", "2 D", 172800),
        ("parse_memory_size", "4gb", 4096),
        ("parse_memory_size", "1kb", 1),
        ("canonical_gpu_indices", "0,2", [0, 2]),
        ("canonical_gpu_indices", 3, [3]),
        ("canonical_gpu_indices", None, None),
        ("validate_gpu_indices", [0, 1], None),
        ("camel_case", "trial_gpu_number", "trialGpuNumber"),
        ("case_insensitive", "trialGPU_number", "trialgpunumber"),
        ("is_missing", None, True),
    ],
)
def test_the_helpers_of_configurations(name, given, expected):
    assert getattr(config_utils, name)(given) == expected


@pytest.mark.parametrize(
    ("name", "given", "message"),
    [
        ("parse_time", "3w", "has no unit; the units are d, h, m, s"),
        ("validate_gpu_indices", [1, 1], "must be different"),
        ("validate_gpu_indices", [-1], "at least 0"),
    ],
)
def test_the_helpers_of_configurations_name_the_problem(name, given, message):
    with pytest.raises(ValueError, match=message):
        getattr(config_utils, name)(given)


def test_a_resumed_tuner_knows_the_earlier_proposals():
    tuner = nni.tuner.Tuner()
    assert not tuner.is_created_in_previous_exp(0)
    record = {"parameter_id": 7, "parameters": {"x": 1}}
    assert tuner.recover_parameter_id([record, '{"parameter_id": 3, "parameters": {"x": 2}}']) == 7
    assert tuner.recover_parameter_id({"parameter_id": "added by the user", "parameters": {}}) == 7
    assert (tuner.is_created_in_previous_exp(7), tuner.is_created_in_previous_exp(8)) == (True, False)
    assert not tuner.is_created_in_previous_exp(None)
    assert tuner.get_previous_param(3) == {"x": 2}
    with pytest.raises(KeyError):
        tuner.get_previous_param(4)
