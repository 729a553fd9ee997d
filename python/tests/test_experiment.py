"""Experiments, with the real programs."""

import asyncio
import html
import json
import math
import re
import signal
import subprocess
import sys
import textwrap
import time
import types
import urllib.request

import pytest

import trialkeeper as tk
from trialkeeper import _foreign
from trialkeeper._manager import ManagerProcess, failure
from trialkeeper._programs import find_program

SPACE = {"x": {"_type": "uniform", "_value": [-1, 1]}}
RANDOM = {"name": "Random", "classArgs": {"optimize_mode": "minimize", "seed": 1}}


def of(code, data_dir, **fields):
    """An experiment whose trials run a line of Python."""
    return tk.Experiment(
        trial_command=f"{sys.executable} -c '{code}'",
        search_space=SPACE,
        data_dir=data_dir,
        **{"tuner": RANDOM, "max_trial_number": 4, "trial_concurrency": 2, **fields},
    )


def wait_for_state(experiment, state):
    for _ in range(6000):
        if experiment.state == state:
            return
        time.sleep(0.01)
    pytest.fail(f"the experiment is {experiment.state}, not {state}")


REPORT = 'import trialkeeper as tk; x = tk.params()["x"]; tk.report(loss=x, step=0); tk.report(loss=x * x, step=1)'


def run_script(folder, code):
    """Runs a script in its folder."""
    script = folder / "script.py"
    script.write_text(f"import trialkeeper as tk\nSPACE = {SPACE!r}\n{textwrap.dedent(code)}")
    return subprocess.run([sys.executable, script], cwd=folder, capture_output=True, text=True, check=False)


def test_a_search_runs_to_its_end_and_keeps_its_results(tmp_path):
    experiment = of(REPORT, tmp_path).run()
    trials = experiment.trials()
    assert experiment.state == "DONE"
    assert [trial.number for trial in trials] == [0, 1, 2, 3]
    assert all(trial.value == pytest.approx(trial.parameters["x"] ** 2) for trial in trials)
    assert experiment.best.value == min(trial.value for trial in trials)
    assert [metric.step for metric in trials[0].metrics() if metric.type == "intermediate"] == [0, 1]
    assert trials[0].why()["cause"] == "succeeded"
    assert "loss" in trials[0].output()
    again = tk.connect(experiment.id, data_dir=tmp_path)
    assert again.trials() == trials


def test_an_experiment_file_is_run_as_it_is(tmp_path):
    file = tmp_path / "experiment.yml"
    file.write_text(
        "trialCommand: 'echo loss=1'\nmaxTrialNumber: 1\ntrialConcurrency: 1\n"
        "searchSpace: {x: {_type: choice, _value: [1]}}\ntuner: {name: Random}\n"
        "trainingService: {platform: local}\n"
    )
    assert tk.Experiment(file, data_dir=tmp_path / "data").run().best.value == 1


def test_several_objectives_have_a_front_and_no_best_trial(tmp_path):
    file = tmp_path / "experiment.yml"
    file.write_text(
        "trialCommand: 'echo size={{size}}; echo loss={{loss}}'\ntrialConcurrency: 1\ntuner: {name: Batch}\n"
        "searchSpace: {sets: {_type: choice, "
        "_value: [{loss: 1, size: 2}, {loss: 2, size: 1}, {loss: 2, size: 2}]}}\n"
        "objectives: [{metric: loss, direction: minimize}, {metric: size, direction: minimize}]\n"
        "trainingService: {platform: local}\n"
    )
    experiment = tk.Experiment(file, data_dir=tmp_path / "data").run()
    assert experiment.best is None
    assert [trial.number for trial in experiment.pareto] == [0, 1]


def test_a_function_is_an_objective(tmp_path):
    offset = 0.25

    def objective(parameters):
        return (parameters["x"] - offset) ** 2

    pytest.importorskip("cloudpickle")
    experiment = tk.search(objective, SPACE, max_trials=5, concurrency=2, seed=1, data_dir=tmp_path)
    assert len(experiment.trials("SUCCEEDED")) == 5
    assert experiment.best.value == pytest.approx((experiment.best.parameters["x"] - offset) ** 2)


@pytest.mark.parametrize(
    ("objective", "metric"),
    [
        (lambda p: {"score": p["x"]}, None),
        (lambda p: {"loss": p["x"], "seconds": 3}, None),
        (lambda p: {"default": p["x"], "other": 3}, None),
        (lambda p: {"a": p["x"], "b": 3}, "a"),
        (lambda p: {"a": 3, "b": p["x"]}, "b"),
    ],
)
def test_a_function_may_return_several_numbers(tmp_path, objective, metric):
    pytest.importorskip("cloudpickle")
    experiment = tk.search(objective, SPACE, metric=metric, max_trials=1, direction="maximize", data_dir=tmp_path)
    assert experiment.best.value == experiment.best.parameters["x"]


@pytest.mark.parametrize("given", [{"callbacks": [print]}, {"progress": True}])
def test_callbacks_of_a_search_that_is_not_waited_for_are_refused(tmp_path, given):
    with pytest.raises(ValueError, match=r"pass callbacks and progress to the experiment's wait\(\)"):
        tk.search(print, SPACE, data_dir=tmp_path, wait=False, **given)
    assert list(tmp_path.iterdir()) == []


def test_a_function_that_cannot_be_sent_is_named(tmp_path):
    import threading

    lock = threading.Lock()
    pytest.importorskip("cloudpickle")
    with pytest.raises(TypeError, match=r"objective.*cannot be sent.*variable `lock`, of type lock"):

        def objective(parameters):
            with lock:
                return 1

        tk.search(objective, SPACE, data_dir=tmp_path)


def test_a_search_without_a_result_fails_with_the_managers_words(tmp_path):
    with pytest.raises(tk.ExperimentFailed) as failed:
        of("raise SystemExit(3)", tmp_path).run()
    assert failed.value.experiment.trials()[0].exit_code == 3


@pytest.mark.parametrize(
    ("word", "field", "keyword"),
    [
        ("max_trials", "max_trial_number", None),
        ("n_trials", "max_trial_number", "max_trials"),
        ("num_samples", "max_trial_number", "max_trials"),
        ("maxTrialCount", "max_trial_number", "max_trials"),
        ("run_cap", "max_trial_number", "max_trials"),
        ("n_jobs", "trial_concurrency", "concurrency"),
        ("max_concurrent_trials", "trial_concurrency", "concurrency"),
        ("parallelTrialCount", "trial_concurrency", "concurrency"),
        ("direction", "tuner.class_args.optimize_mode", None),
        ("mode", "tuner.class_args.optimize_mode", "direction"),
        ("param_space", "search_space", "space"),
        ("timeout", "max_experiment_duration", "max_experiment_duration"),
        ("sampler", "tuner", "tuner"),
    ],
)
def test_the_word_of_another_tool_is_answered_with_the_one_here(word, field, keyword):
    for given in (lambda: tk.Experiment({word: 1}), lambda: tk.Experiment(trial_command="true", **{word: 1})):
        with pytest.raises(tk.ConfigurationError) as caught:
            given()
        assert str(caught.value) == f"{word}: unknown field; here it is `{field}`"
    if keyword is not None:
        with pytest.raises(tk.ConfigurationError) as caught:
            tk.search(print, SPACE, **{word: 1})
        assert str(caught.value) == f"{word}: unknown field; here it is `{keyword}`"


def test_all_words_of_other_tools_are_told_at_once():
    with pytest.raises(tk.ConfigurationError) as caught:
        tk.Experiment(n_trials=3, n_jobs=2, trial_command="true")
    assert str(caught.value).splitlines() == [
        "n_trials: unknown field; here it is `max_trial_number`",
        "n_jobs: unknown field; here it is `trial_concurrency`",
    ]


def test_the_manager_knows_the_same_words_of_other_tools():
    words = list(_foreign._FIELD_ALIASES.items())
    for part in (words[:15], words[15:]):
        config = {"trialCommand": "true", **{word: 1 for word, _ in part}}
        command = [str(find_program("trial-manager")), "run", "-", "--port", "0"]
        said = subprocess.run(command, input=json.dumps(config), capture_output=True, text=True, timeout=60).stderr
        told = dict(re.findall(r"(\w+): unknown field; here it is `(.+)`", said))
        assert {word: simple(field) for word, field in told.items()} == {
            word: simple(field) for word, field in part
        }


def simple(field):
    """Returns a field's name without what camelCase and snake_case write differently."""
    return field.replace("_", "").lower()


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"max_trial_number": -1}, "maxTrialNumber"),
        ({"trial_concurency": 2}, "trialConcurrency"),
        ({"tuner": {"name": "TPEE"}}, "TPE"),
    ],
)
def test_what_is_wrong_in_the_configuration_is_named(tmp_path, fields, named):
    with pytest.raises(tk.ConfigurationError, match=named):
        of(REPORT, tmp_path, **fields).start()


def test_errors_speak_of_the_configuration_and_not_of_the_command_line(tmp_path):
    with pytest.raises(tk.ConfigurationError) as caught:
        of(REPORT, tmp_path, tuner={"nam": "TPE"}).run()
    assert str(caught.value).startswith("the configuration: tuner.nam: unknown field; did you mean `name`?")
    with pytest.raises(tk.ConfigurationError) as caught:
        of(REPORT, tmp_path, tuner={"nam": "TPE"}, max_trial_numbr=1).run()
    assert str(caught.value).startswith("the configuration: 2 problems\n") and "column" not in str(caught.value)
    with pytest.raises(tk.ConfigurationError) as caught:
        of(REPORT, tmp_path).run(port=80000)
    assert str(caught.value) == "invalid value '80000' for 'port': expected a number from 0 to 65535"


@pytest.mark.parametrize(
    ("said", "message"),
    [
        ("choose another --id, or remove that folder", "choose another id, or remove that folder"),
        ("--port 0 picks a free port", "port=0 picks a free port"),
        ("invalid value 'a' for '--url-prefix <PATH>': no", "invalid value 'a' for 'url_prefix': no"),
        ("raise it with --max-trial-number N", "raise it with max_trial_number=N"),
        ("`trial-manager resume e --max-trial-number N`", "`trial-manager resume e --max-trial-number N`"),
        ("the command is train.py --identity", "the command is train.py --identity"),
    ],
)
def test_errors_name_the_argument_in_place_of_the_flag(said, message):
    assert str(failure(2, said)) == message
    assert str(failure(1, said)) == said


def test_a_port_in_use_is_named(tmp_path):
    import socket

    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(tk.ConfigurationError, match=str(port)):
            of(REPORT, tmp_path).start(port=port)


def test_a_stopped_search_goes_on_after_resume(tmp_path):
    gate = tmp_path / "gate"
    code = f'import os, time\nwhile not os.path.exists("{gate}"): time.sleep(0.02)\nprint("loss=1")'
    with of(code, tmp_path / "data") as experiment:
        experiment.start()
        wait_for_state(experiment, "RUNNING")
        assert experiment.url
        experiment.stop()
        with pytest.raises(tk.ExperimentInterrupted):
            experiment.wait()
        gate.touch()
        experiment.resume()
        assert experiment.wait(timeout=120) == "DONE"
    assert len(experiment.trials("SUCCEEDED")) == 4


def test_trials_are_yielded_as_they_end(tmp_path):
    experiment = of(REPORT, tmp_path).start()
    assert sorted(trial.number for trial in experiment.watch()) == [0, 1, 2, 3]


def test_the_same_in_async_code(tmp_path):
    async def search():
        experiment = of(REPORT, tmp_path).start()
        numbers = [trial.number async for trial in experiment.watch_async()]
        return numbers, await experiment.wait_async()

    numbers, state = asyncio.run(search())
    assert (sorted(numbers), state) == ([0, 1, 2, 3], "DONE")


def test_results_that_json_lacks_are_floats(tmp_path):
    experiment = of('print("loss=nan")', tmp_path, max_trial_number=1)
    try:
        experiment.run()
    except tk.ExperimentFailed:
        pass
    (trial,) = experiment.trials()
    assert math.isnan(trial.metrics()[0].value)


def test_a_trial_that_diverges_keeps_the_type_and_step_of_its_reports(tmp_path):
    code = (
        'import trialkeeper as tk; nan = float("nan"); '
        "tk.report(step=20, loss=nan, acc=0.5); tk.final(loss=nan, acc=0.9)"
    )
    experiment = of(code, tmp_path, max_trial_number=1)
    with pytest.raises(tk.ExperimentFailed):
        experiment.run()
    (trial,) = experiment.trials()
    assert math.isnan(trial.value)
    losses = [(metric.type, metric.step) for metric in trial.metrics() if metric.name == "loss"]
    assert losses == [("intermediate", 20), ("final", 0)]


@pytest.mark.parametrize("direction", ["minimize", "maximize"])
def test_a_search_whose_results_are_all_infinite_fails(tmp_path, direction):
    tuner = {"name": "Random", "classArgs": {"optimize_mode": direction}}
    experiment = of("import trialkeeper as tk; tk.final(1e999)", tmp_path, max_trial_number=1, tuner=tuner)
    with pytest.raises(tk.ExperimentFailed, match=r"no trial succeeded with a result; trial 0 .* is infinite"):
        experiment.run()
    assert experiment.best is None and experiment.state == "DONE"


def test_results_are_a_data_frame(tmp_path):
    pytest.importorskip("pandas")
    frame = of(REPORT, tmp_path).run().to_pandas()
    assert list(frame.columns) == ["number", "id", "state", "value", "duration_s", "params_x"]
    assert len(frame) == 4


def test_a_notebook_shows_hostile_names_as_text(tmp_path):
    experiment = tk.Experiment(
        trial_command="echo loss=1",
        search_space={"<script>": {"_type": "choice", "_value": ["<b>"]}},
        tuner={"name": "Random"},
        max_trial_number=1,
        data_dir=tmp_path,
    ).run()
    shown = experiment._repr_html_()
    assert "<script>" not in shown and "&lt;script&gt;" in shown


def test_a_notebook_links_to_the_portal_with_a_ticket_and_no_token(tmp_path):
    with of(REPORT, tmp_path, max_trial_number=1).start(keep_serving=True) as experiment:
        shown = experiment._repr_html_()
        token = (experiment.folder / "user.token").read_text().strip()
        login = html.unescape(re.search(r'href="([^"]*/login\?ticket=[^"]*)"', shown)[1])
        assert token not in shown and login.startswith(experiment.url)
        with urllib.request.urlopen(login, timeout=10) as answer:
            assert answer.headers["Set-Cookie"] and b"Logged in" in answer.read()
        with urllib.request.urlopen(login, timeout=10) as answer:
            assert b"has been used or has expired" in answer.read()
        assert experiment.login_url() != login
    assert experiment.login_url() is None and "log in" not in experiment._repr_html_()


def test_an_id_of_ones_own_is_taken_once(tmp_path):
    experiment = of(REPORT, tmp_path, id="mine", max_trial_number=1)
    assert experiment.id == "mine"
    assert experiment.run().folder == tmp_path / "mine"
    again = of(REPORT, tmp_path, id="mine", max_trial_number=1)
    refusal = f"experiment mine already exists in {tmp_path}/mine: continue it with `trial-manager resume mine`"
    with pytest.raises(tk.ConfigurationError, match=re.escape(refusal)):
        again.run()
    assert again.resume().wait(timeout=60) == "DONE"
    # A folder that is not an experiment is not changed, and an experiment that was not started leaves nothing.
    (tmp_path / "notes").mkdir()
    for wrong in ("notes", "a/b", "", "x" * 33):
        with pytest.raises(tk.ConfigurationError, match=r"notes already|for 'id'"):
            of(REPORT, tmp_path, id=wrong, max_trial_number=1).run()
    assert sorted(path.name for path in tmp_path.iterdir() if path.name != "objectives") == ["mine", "notes"]


def test_a_missing_program_is_named_with_the_places(monkeypatch, tmp_path):
    from trialkeeper import _programs

    monkeypatch.setattr(_programs, "_folders", lambda: [tmp_path])
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(tk.ManagerError, match=f"trial-manager is missing.*{tmp_path}.*pip install"):
        _programs.find_program("trial-manager")


def test_a_search_that_is_over_has_nothing_to_resume(tmp_path):
    experiment = of(REPORT, tmp_path, max_trial_number=1).run()
    assert experiment.resume().wait(timeout=60) == "DONE"
    assert len(experiment.trials()) == 1


def test_a_search_that_is_over_continues_under_a_higher_limit(tmp_path):
    experiment = of(REPORT, tmp_path, max_trial_number=1).run()
    assert experiment.resume(max_trial_number=3, trial_concurrency=2).wait(timeout=60) == "DONE"
    assert len(experiment.trials()) == 3


def test_a_manager_that_keeps_serving_stays_until_it_is_stopped(tmp_path):
    with of(REPORT, tmp_path, max_trial_number=1).start(keep_serving=True) as experiment:
        deadline = time.monotonic() + 60
        while experiment.state != "DONE":
            assert time.monotonic() < deadline, "the search is not done"
        assert experiment.wait(timeout=60) == "DONE"
        assert experiment.url
        assert (experiment.folder / "user.token").is_file()
    assert experiment.url is None


def test_the_data_directory_is_the_managers_own(monkeypatch, tmp_path):
    monkeypatch.delenv("TRIAL_MANAGER_DATA_DIR", raising=False)
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    experiment = of(REPORT, None, max_trial_number=1).run()
    assert experiment.folder == tmp_path / "trialkeeper" / experiment.id
    assert experiment.folder.is_dir()


def test_a_manager_of_a_background_program_is_stopped(tmp_path):
    # A shell starts a background command with SIGINT ignored, and its children inherit this.
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        experiment = of("import time; time.sleep(600)", tmp_path, max_trial_number=1).start()
        experiment.stop()
    finally:
        signal.signal(signal.SIGINT, before)
    assert experiment.state == "STOPPED"


def test_reading_what_the_manager_says_does_not_move_where_it_writes(tmp_path):
    """Both share the position of the file: after a seek(0), the manager would overwrite its first line."""
    manager = ManagerProcess.__new__(ManagerProcess)
    with open(tmp_path / "stderr", "wb+", buffering=0) as file:
        # Uses only the descriptor, without seek() and read().
        manager._stderr = types.SimpleNamespace(fileno=file.fileno)
        file.write(b"first, ")
        assert manager.output() == "first, "
        file.write("zwölf".encode())
        assert manager.output() == "first, zwölf"


def test_a_function_is_shipped_with_all_that_it_needs_but_python(tmp_path):
    cloudpickle = pytest.importorskip("cloudpickle")
    from trialkeeper._search import keep_code

    def objective(parameters):
        tk.report(loss=3, step=0)
        return parameters["x"] * 2

    folder = keep_code(tmp_path, objective, is_local=False)
    assert folder == keep_code(tmp_path, objective, is_local=False), "the same code is kept once"
    assert 'parameters["x"] * 2' in (folder / "objective-source.py").read_text()
    # Runs without the packages of the environment, as on another machine.
    done = subprocess.run(
        [sys.executable, "-S", "run_objective.py"],
        cwd=folder,
        env={"TRIALKEEPER_PARAMETERS": '{"x": 21}'},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert [json.loads(line) for line in done.stdout.splitlines()] == [
        {"type": "intermediate", "step": 0, "loss": 3.0},
        {"type": "final", "default": 42.0},
    ]
    assert cloudpickle


def test_a_function_for_another_version_of_python_is_refused_with_both(tmp_path):
    pytest.importorskip("cloudpickle")
    from trialkeeper._search import keep_code

    folder = keep_code(tmp_path, lambda p: 1, is_local=False)
    here = f"{sys.version_info.major}.{sys.version_info.minor}"
    assert json.loads((folder / "objective.json").read_text()) == {"python": here}
    (folder / "objective.json").write_text('{"python": "3.1"}')
    done = subprocess.run([sys.executable, "run_objective.py"], cwd=folder, capture_output=True, text=True)
    assert done.returncode == 1
    message = f"the objective was pickled by Python 3.1, and {sys.executable} is Python {here}"
    assert done.stderr.startswith(message)
    # Any version can load a function by its name.
    folder = keep_code(tmp_path, math.sqrt, is_local=False)
    assert json.loads((folder / "objective.json").read_text()) == {}
    folder = keep_code(tmp_path, json.loads, is_local=False)
    assert json.loads((folder / "objective.json").read_text()) == {}


def test_trials_find_modules_in_the_order_of_the_script(tmp_path):
    """A local module comes before one of the standard library."""
    pytest.importorskip("cloudpickle")
    (tmp_path / "colorsys.py").write_text("RESULT = 7\n")
    done = run_script(
        tmp_path,
        """
        def objective(p):
            import colorsys
            return colorsys.RESULT
        print(tk.search(objective, SPACE, max_trials=1, data_dir="data").best.value)
        """,
    )
    assert done.stdout == "7.0\n", done.stderr


SCRIPT_THAT_PICKLES = """
import functools, multiprocessing, os, pickle
class Model:
    def __init__(self, x):
        self.x = x
    def double(self):
        return Model(2 * self.x)
model = Model(1)
def double(x):
    return 2 * x
def objective(p):
    assert pickle.loads(pickle.dumps(model)).x == 1
    with multiprocessing.get_context(p["start"]).Pool(1) as pool:
        (made,) = pool.map(Model.double, [Model(1)])
        return pool.map(double, [made.x])[0]
class Objective:
    def __call__(self, p):
        assert type(pickle.loads(pickle.dumps(self))) is Objective
        return objective(p)
if __name__ == "__main__":
    starts = {"start": {"_type": "choice", "_value": ["fork", "spawn"]}}
    for function in (objective, functools.partial(objective), Objective(), Objective().__call__):
        search = tk.search(function, starts, max_trials=2, tuner="GridSearch", data_dir="data")
        print([trial.value for trial in search.trials()])
"""


def test_trials_can_pickle_what_their_script_defines(tmp_path):
    pytest.importorskip("cloudpickle")
    done = run_script(tmp_path, SCRIPT_THAT_PICKLES)
    assert done.stdout == "[4.0, 4.0]\n" * 4, done.stderr


def test_the_search_of_a_function_can_be_resumed_and_retried(tmp_path, monkeypatch):
    pytest.importorskip("cloudpickle")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "fails").touch()

    def objective(parameters):
        import os

        if os.path.exists("fails"):
            raise RuntimeError("not yet")
        return 1.0

    experiment = tk.search(objective, SPACE, max_trials=1, data_dir=tmp_path / "data", wait=False)
    with pytest.raises(tk.ExperimentFailed):
        experiment.wait()
    (tmp_path / "fails").unlink()
    (trial,) = experiment.trials("FAILED")
    assert "not yet" in trial.output(stderr=True)
    trial.rerun()
    assert experiment.resume().wait(timeout=120) == "DONE"
    assert experiment.best.value == 1
