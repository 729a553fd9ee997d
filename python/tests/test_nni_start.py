"""The effect of ``python -m trialkeeper.nni install`` on every start of the interpreter."""

import os
import subprocess
import sys
from pathlib import Path

from trialkeeper.nni.__main__ import start_line


def run(code: str) -> str:
    """Runs code in another interpreter with the same packages."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    return subprocess.check_output([sys.executable, "-c", code], env=environment, text=True).strip()


def test_the_line_of_the_start_file_imports_nothing_of_ours():
    assert start_line().startswith("import "), "only such lines of a .pth file are executed"
    modules = "print(sorted(name for name in sys.modules if name.startswith('trialkeeper')))"
    assert run(f"{start_line()}\n{modules}") == "[]"


def test_nni_node_is_ours_and_its_node_can_be_executed():
    for first in (start_line(), "import trialkeeper.nni"):
        path = Path(run(f"{first}\nimport nni_node; print(nni_node.__path__[0])"))
        assert (path / "main.js").is_file()
        assert os.access(path / "node", os.X_OK)


def test_other_modules_are_left_to_others():
    find = "[sys.meta_path[0].find_spec(name) for name in ('json', 'nni.experiment')]"
    assert run(f"{start_line()}\nprint({find})") == "[None, None]"


def test_a_missing_script_is_named():
    words = [sys.executable, "-m", "trialkeeper.nni", "no.py"]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "there is no script no.py" in done.stderr


def test_attributes_of_nnis_configurations_are_taken_as_meant_or_refused_with_the_nearest_name(caplog):
    import dataclasses

    import pytest

    from trialkeeper.nni import _hook

    @dataclasses.dataclass(init=False)
    class Config:
        gpu_number: int = 0

        def __setattr__(self, name, value):
            if not hasattr(self, name):
                raise AttributeError(f"Config does not have field {name}")
            super().__setattr__(name, value)

    _hook._ignore_case_of_attributes(Config)
    for value in (1, 2):
        config = Config()
        config.gpuNumber = value
        assert config.gpu_number == value
    assert caplog.messages == ["Config: `gpuNumber` is taken as `gpu_number`; NNI 3.0 refuses this spelling"]
    with pytest.raises(AttributeError, match=r"Config does not have field gpuNumbr; did you mean gpu_number\?"):
        config.gpuNumbr = 1
