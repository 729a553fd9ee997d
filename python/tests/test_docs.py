"""Runs the examples of the documentation unchanged."""

import re
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
if not (ROOT / "docs").is_dir():
    pytest.skip("the tests run outside the source tree", allow_module_level=True)

#: The names that examples use without defining them, in place of the user's code.
TRAIN = """
def train_one_epoch(lr, layers=1):
    return (lr - 0.03) ** 2 + 0.1 / layers
def evaluate():
    return 1.0
"""
SPACE = {"lr": {"_type": "loguniform", "_value": [1e-4, 1e-1]}, "layers": {"_type": "randint", "_value": [1, 5]}}


def blocks(page):
    text = (ROOT / page).read_text(encoding="utf-8")
    return re.findall(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)


def block(page, marker):
    (found,) = [text for text in blocks(page) if marker in text]
    return found


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder with the page's `train.py`, in which `python3` is this interpreter."""

    def make(page):
        (script,) = [block for block in blocks(page) if block.startswith("# train.py\n")]
        (tmp_path / "train.py").write_text(script)
        return tmp_path

    programs = tmp_path / "bin"
    programs.mkdir()
    (programs / "python3").symlink_to(sys.executable)
    monkeypatch.setenv("PATH", str(programs), prepend=":")
    monkeypatch.setenv("TRIAL_MANAGER_DATA_DIR", str(tmp_path / "data"))
    monkeypatch.chdir(tmp_path)
    return make


@pytest.mark.parametrize("page", ["docs/python.md", "docs/from-others.md"])
def test_the_documented_search_runs(folder, capsys, page):
    folder(page)
    exec(block(page, "import trialkeeper as tk\n\nexperiment = tk.Experiment("), {})
    assert "lr" in capsys.readouterr().out


def test_the_documented_functions_are_searched(folder, capsys):
    pytest.importorskip("cloudpickle")
    folder("docs/python.md")
    names = {"__name__": "__main__"}
    exec(block("docs/python.md", "experiment = tk.search(objective, space, max_trials=10"), names)
    assert "x" in capsys.readouterr().out
    exec(block("docs/python.md", "callbacks=[lambda experiment, trial:"), names)
    assert len(capsys.readouterr().out.split()) == 5


@pytest.mark.parametrize("page", ["docs/python.md", "python/README.md"])
def test_the_documented_loop_runs(folder, capsys, page):
    exec(block(page, "with tk.Study("), {})
    assert "x" in capsys.readouterr().out


def test_optunas_example_runs_as_it_is_translated(folder, capsys):
    pytest.importorskip("cloudpickle")
    text = block("docs/from-others.md", "# TrialKeeper, with a function as the objective")
    exec(
        TRAIN + "import trialkeeper as tk\n" + text.replace("max_trials=50", "max_trials=4"),
        {"__name__": "__main__"},
    )
    assert "layers" in capsys.readouterr().out


def test_nnis_example_runs_as_it_is_translated(folder, tmp_path):
    import trialkeeper as tk

    text = block("docs/from-others.md", "# TrialKeeper\np = tk.params()")
    trial, search = text.split("tk.Experiment(")
    (tmp_path / "train.py").write_text("import trialkeeper as tk\n" + TRAIN + trial)
    search = search.replace("max_trial_number=50", "max_trial_number=2").replace("port=8080", "port=0")
    names = {"tk": tk, "space": SPACE}
    exec(f"experiment = tk.Experiment({search}", names)
    assert len(names["experiment"].trials("SUCCEEDED")) == 2


def test_the_trial_of_the_readmes_runs_by_hand(folder, tmp_path, capsys):
    folder("python/README.md")
    exec((tmp_path / "train.py").read_text(), {})
    assert (tmp_path / "model.txt").exists()
    exec(block("README.md", 'train_one_epoch(params["lr"])'), globals_of(TRAIN))
    assert '"type": "intermediate"' in capsys.readouterr().out


def test_the_search_of_the_packages_readme_runs(folder, capsys):
    folder("python/README.md")
    exec(block("python/README.md", "experiment = tk.Experiment("), {})
    assert "SUCCEEDED" in capsys.readouterr().out


def test_the_function_of_the_packages_readme_is_searched(folder, tmp_path):
    """In a script, without cloudpickle."""
    import subprocess

    script = tmp_path / "search.py"
    script.write_text(block("python/README.md", "experiment = tk.search("))
    done = subprocess.run([sys.executable, script], capture_output=True, text=True)
    assert done.stdout.startswith("{'x':"), done.stderr


def test_the_documented_search_with_nnis_interface_runs(folder, capsys):
    pytest.importorskip("nni.experiment")
    folder("docs/python.md")
    search = block("docs/python.md", "from nni.experiment import")
    exec(search.replace("run(8080)", "run(0)"), {})  # Port 8080 may be taken where this test runs.
    assert "TrialResult(parameter={'lr':" in capsys.readouterr().out


def test_the_documented_trial_runs_by_hand(folder, capsys):
    exec((folder("docs/python.md") / "train.py").read_text(), {})
    assert '"type": "final"' in capsys.readouterr().out


def test_the_examples_of_docstrings_are_right(monkeypatch, tmp_path):
    import doctest
    import importlib

    monkeypatch.delenv("TRIALKEEPER_PARAMETERS", raising=False)
    monkeypatch.delenv("TRIALKEEPER_PARAMETERS_FILE", raising=False)
    for name in ("trial", "experiment", "study", "_foreign"):
        result = doctest.testmod(importlib.import_module(f"trialkeeper.{name}"))
        assert result.attempted and not result.failed, name


@pytest.mark.parametrize(
    "page", ["docs/python.md", "docs/from-others.md", "docs/nni.md", "python/README.md", "README.md"]
)
def test_all_examples_are_python(page):
    for text in blocks(page):
        compile(text, page, "exec")


def globals_of(text):
    names = {}
    exec(text, names)
    return names
