"""The names that `import nni` provides, as NNI's own package does."""

import importlib
import subprocess
import sys

import pytest

import nni


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


@pytest.mark.parametrize("name", ["nni.retiarii", "nni.nas.nn.pytorch", "nni.compression", "nni.algorithms.hpo"])
def test_a_missing_module_says_what_the_package_has(name):
    with pytest.raises(ModuleNotFoundError, match=r"has no nni.*Microsoft's nni has those") as error:
        importlib.import_module(name)
    assert name.startswith(error.value.name)
