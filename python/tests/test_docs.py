"""The examples of the documentation, run as they stand."""

import re
import sys
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[2] / "docs"
if not DOCS.is_dir():
    pytest.skip("the tests run outside the source tree", allow_module_level=True)


def blocks(page):
    text = (DOCS / page).read_text(encoding="utf-8")
    return re.findall(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder with the page's `train.py`, whose `python3` is this one."""

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


@pytest.mark.parametrize(
    ("page", "begins"),
    [
        ("python.md", "import trialkeeper as tk\n\nexperiment = tk.Experiment("),
        ("from-others.md", "import trialkeeper as tk\n\nexperiment = tk.Experiment("),
    ],
)
def test_the_documented_search_runs(folder, capsys, page, begins):
    folder(page)
    (search,) = [block for block in blocks(page) if block.startswith(begins)]
    exec(search, {})
    assert "lr" in capsys.readouterr().out


def test_the_documented_function_is_searched(folder, capsys):
    pytest.importorskip("cloudpickle")
    folder("python.md")
    (search,) = [block for block in blocks("python.md") if "tk.search(" in block]
    exec(search, {"__name__": "__main__"})
    assert "x" in capsys.readouterr().out


def test_the_documented_search_with_nnis_interface_runs(folder, capsys):
    pytest.importorskip("nni.experiment")
    folder("python.md")
    (search,) = [block for block in blocks("python.md") if block.startswith("from nni.experiment import")]
    exec(search.replace("run(8080)", "run(0)"), {})  # Port 8080 may be taken where this test runs.
    assert "TrialResult(parameter={'lr':" in capsys.readouterr().out


def test_the_documented_trial_runs_by_hand(folder, capsys):
    exec((folder("python.md") / "train.py").read_text(), {})
    assert '"type": "final"' in capsys.readouterr().out


@pytest.mark.parametrize("page", ["python.md", "from-others.md"])
def test_all_examples_are_python(page):
    for block in blocks(page):
        compile(block, page, "exec")
