"""Functions of the script itself as objectives, without cloudpickle."""

import subprocess
import sys

import pytest
from test_experiment import SPACE

#: The first lines of every script, which hide an installed cloudpickle.
HEAD = f"""
import sys
sys.modules["cloudpickle"] = None
import trialkeeper as tk

SPACE = {SPACE!r}
offset = float(sys.argv[1])

def squared(x):
    return x * x

def objective(p):
    return squared(p["x"] - offset)
"""
SEARCH = 'experiment = tk.search(objective, SPACE, max_trials=2, data_dir="data")'


def run(folder, text):
    """Runs a script with the argument 0.25."""
    script = folder / "script.py"
    script.write_text(text)
    return subprocess.run([sys.executable, script, "0.25"], cwd=folder, capture_output=True, text=True)


IN_THE_GUARD = f"""
if __name__ == "__main__":
    {SEARCH}
    best = experiment.best
"""
IN_A_FUNCTION = f"""
def main():
    global best
    {SEARCH}
    best = experiment.best

if "__main__" == __name__:
    main()
"""
CHECK = """
if __name__ == "__main__":
    print(best.value == (best.parameters["x"] - 0.25) ** 2)
"""
EDITED = """
def edit(experiment, trial):
    with open(__file__, "a") as script:
        script.write("raise SystemExit(1)")

if __name__ == "__main__":
    experiment = tk.search(objective, SPACE, max_trials=2, data_dir="data", callbacks=[edit])
    print(len(experiment.trials("SUCCEEDED")))
"""


@pytest.mark.parametrize("calls", [IN_THE_GUARD, IN_A_FUNCTION])
def test_a_function_of_a_script_with_a_guard_is_searched(tmp_path, calls):
    done = run(tmp_path, HEAD + calls + CHECK)
    assert (done.stdout, done.returncode) == ("True\n", 0), done.stderr


def test_a_search_goes_on_with_the_script_as_it_was(tmp_path):
    done = run(tmp_path, HEAD + EDITED)
    assert (done.stdout, done.returncode) == ("2\n", 0), done.stderr


GUARD = 'if __name__ == "__main__":\n'


@pytest.mark.parametrize(
    ("rest", "message"),
    [
        (SEARCH, "so its trials would start the search again: call it under `if __name__"),
        (f"{GUARD}    pass\n{SEARCH}", "so its trials would start the search again"),
        (f"{GUARD}    offset = 1\n    {SEARCH}", "uses `offset`, which is set under"),
        (f"{GUARD}    import math as squared\n    {SEARCH}", "uses `squared`, which is set under"),
        (f"{GUARD}    objective = lambda p: 1\n    {SEARCH}", "defined where trials cannot import it"),
        (
            f"import functools\nobjective = functools.partial(lambda p: 1)\n{SEARCH}",
            "cannot be sent to its trials",
        ),
    ],
)
def test_what_a_trial_could_not_load_is_refused_with_what_to_do(tmp_path, rest, message):
    done = run(tmp_path, f"{HEAD}{rest}\n")
    error = done.stderr.splitlines()[-1]
    assert error.startswith("TypeError: ") and message in error, done.stderr
    assert "pip install 'trialkeeper[function]' (cloudpickle)" in error


def test_a_search_that_a_trial_would_begin_is_refused():
    names = {"__name__": "__mp_main__"}
    with pytest.raises(RuntimeError, match=r"call tk\.search\(\) under `if __name__"):
        exec(compile("import trialkeeper as tk\ntk.search(print, {})", "script.py", "exec"), names)
