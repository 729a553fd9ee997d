"""The lifecycle of a search with the real programs: interrupts, killed managers, callbacks, progress."""

import asyncio
import copy
import dataclasses
import io
import json
import os
import pickle
import signal
import subprocess
import sys
import textwrap
import threading
import types
import warnings

import pytest
from test_experiment import RANDOM, REPORT, SPACE, of, wait_for_state

import trialkeeper as tk
from trialkeeper import _manager, _progress, _rest, service

#: A trial that waits for a file before it reports.
GATED = 'import os, time\nwhile not os.path.exists("{gate}"): time.sleep(0.02)\nprint("loss=1")'


def gated(tmp_path, **fields):
    return of(GATED.format(gate=tmp_path / "gate"), tmp_path / "data", max_trial_number=2, **fields)


def lives(pid):
    try:
        with open(f"/proc/{pid}/stat") as stat:
            return stat.read().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_the_function_is_not_hidden_by_its_module():
    code = "from trialkeeper._search import Objective; import trialkeeper as tk; assert callable(tk.search)"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_search_that_is_forgotten_leaves_no_file_open(tmp_path):
    code = """
import sys, trialkeeper as tk
space = {"x": {"_type": "uniform", "_value": [0, 1]}}
random = {"name": "Random", "class_args": {"optimize_mode": "minimize"}}
fields = dict(search_space=space, tuner=random, max_trial_number=1, data_dir=sys.argv[1])
tk.Experiment(trial_command="echo loss=1", **fields).run()
try:
    tk.Experiment(trial_command="echo loss=1", **{**fields, "max_trial_number": 0}).run()
except tk.ConfigurationError:
    print("refused")
"""
    command = [sys.executable, "-W", "default::ResourceWarning", "-c", code, tmp_path]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout, done.stderr) == (0, "refused\n", "")


@pytest.mark.parametrize("run", [tk.Experiment.run, lambda *a, **k: asyncio.run(tk.Experiment.run_async(*a, **k))])
def test_a_manager_that_is_killed_under_run_is_replaced(tmp_path, run):
    # Only the first trial ends before the manager is killed.
    code = GATED.replace("while ", 'while os.environ["NNI_TRIAL_SEQ_ID"] != "0" and ')
    code = code.format(gate=tmp_path / "gate")
    experiment = of(code, tmp_path / "data", trial_concurrency=1, max_trial_retries=2)
    killed = []

    def kill_first(experiment, trial):
        if not killed:
            killed.append(experiment._manager._process.pid)
            os.kill(killed[0], signal.SIGKILL)
            (tmp_path / "gate").touch()

    with pytest.warns(RuntimeWarning, match=r"was killed by SIGKILL; restarting it \(1 of 3\)"):
        run(experiment, callbacks=[kill_first])
    assert killed
    assert len(experiment.trials("SUCCEEDED")) == 4


def test_a_killed_manager_is_told_of_to_those_who_wait(tmp_path):
    with gated(tmp_path).start() as experiment:
        experiment._manager._process.kill()
        experiment._manager.wait(None)
        with pytest.raises(tk.ManagerError, match=r"killed by SIGKILL; resume\(\) continues it"):
            experiment.wait()
        connected = tk.connect(experiment.id, data_dir=tmp_path / "data")
        with pytest.raises(tk.ManagerError, match=r"its manager was killed.*resume"):
            connected.wait()
        with pytest.raises(tk.ManagerError, match=r"its manager was killed.*resume"):
            list(connected.watch())
        (tmp_path / "gate").touch()
        assert connected.resume().wait(timeout=120) == "DONE"


def test_a_connected_experiment_is_waited_for_watched_and_stopped(tmp_path):
    with gated(tmp_path).start() as experiment:
        connected = tk.connect(experiment.id, data_dir=tmp_path / "data")
        with pytest.raises(TimeoutError):
            connected.wait(timeout=0)
        (tmp_path / "gate").touch()
        assert {trial.state for trial in connected.watch()} == {"SUCCEEDED"}
        assert connected.wait() == "DONE"


@pytest.mark.parametrize("name", ["read_events", "read_events_async"])
def test_a_manager_whose_events_have_ended_is_left_to_exit(tmp_path, monkeypatch, name):
    """It waits for its listeners, so each further connection would delay its exit."""
    read, opened = getattr(tk.experiment, name), []
    monkeypatch.setattr(tk.experiment, name, lambda *args: opened.append(args) or read(*args))
    run = {"read_events": tk.Experiment.run, "read_events_async": lambda e: asyncio.run(e.run_async())}[name]
    run(of(REPORT, tmp_path))
    assert len(opened) == 1


def test_a_manager_of_another_process_is_left_alone_after_its_last_event():
    other = types.SimpleNamespace(_manager=None)
    follower = tk.experiment.Follower(other)
    follower.take(_rest.Event("experiment", "1", {"state": "STOPPED"}))
    assert follower.pause_s() < 0.1, "the connection may only have been lost"
    follower.take(_rest.Event("end", "1", None))
    assert follower.pause_s() >= 0.25 and not follower.is_leaving()


def test_an_experiment_is_asked_of_its_manager_without_a_process(tmp_path, monkeypatch):
    with gated(tmp_path).start() as experiment:
        monkeypatch.setattr(tk.experiment, "find_program", None)
        # The last trial may have been started already.
        assert experiment.state in ("RUNNING", "NO_MORE_TRIAL")
        assert experiment.best is None
        experiment.trials()
        (tmp_path / "gate").touch()
        assert watch_one(experiment).value == 1
        monkeypatch.undo()


def watch_one(experiment):
    watching = experiment.watch()
    try:
        return next(watching)
    finally:
        watching.close()


def test_a_result_that_is_no_number_has_no_value(tmp_path):
    trial = tk.Trial("a", 0, "SUCCEEDED", {}, ["text"], None, 0, None, None, None)
    assert trial.value is None
    assert tk.Trial("a", 0, "SUCCEEDED", {}, {"default": "text"}, None, 0, None, None, None).value is None


# Interrupts.


def run_and_interrupt(code, tmp_path, count=1, sent=signal.SIGINT):
    """Runs a script, sends it a signal when it prints `ready`, and returns its exit code and its output."""
    script = tmp_path / "script.py"
    script.write_text(textwrap.dedent(code))
    process = subprocess.Popen([sys.executable, script], stdout=subprocess.PIPE, text=True, cwd=tmp_path)
    lines = []
    for line in process.stdout:
        lines.append(line.strip())
        if line.startswith("ready") and count:
            count -= 1
            process.send_signal(sent)
    return process.wait(), lines


SEARCH = f"""
import asyncio, os, signal, sys
import trialkeeper as tk
signal.signal(signal.SIGHUP, signal.SIG_DFL)  # The caller of the tests may be `nohup`, which ignores it.
experiment = tk.Experiment(
    trial_command="sleep 600", search_space={SPACE!r}, tuner={RANDOM!r}, max_trial_number=1, data_dir="data"
)
def tell(experiment):
    print("manager", experiment._manager._process.pid, flush=True)
    print("ready", flush=True)
"""


@pytest.mark.parametrize(
    "rest",
    [
        # While the manager starts.
        """
        from trialkeeper import _manager
        original = _manager.ManagerProcess._wait_until_started
        def wait(self):
            print("manager", self._process.pid, flush=True)
            print("ready", flush=True)
            import time
            while True:
                time.sleep(0.01)
        _manager.ManagerProcess._wait_until_started = wait
        experiment.run()
        """,
        # While the search runs.
        """
        original = experiment._follow
        def follow(follower):
            tell(experiment)
            return original(follower)
        experiment._follow = follow
        experiment.run()
        """,
        """
        async def main():
            await experiment.start_async()
            tell(experiment)
            try:
                await experiment.wait_async()
            finally:
                await experiment.stop_async()
        asyncio.run(main())
        """,
        """
        original = experiment._follow_async
        def follow(follower):
            tell(experiment)
            return original(follower)
        experiment._follow_async = follow
        asyncio.run(experiment.run_async())
        """,
        # In code after a search without a reference to it: the search ends with the script.
        """
        experiment.start()
        tell(experiment)
        import time
        time.sleep(600)
        """,
    ],
    ids=["starting", "running", "async-steps", "async-run", "forgotten"],
)
def test_ctrl_c_leaves_no_manager_behind(tmp_path, rest):
    code, lines = run_and_interrupt(SEARCH + textwrap.dedent(rest), tmp_path)
    assert code == -signal.SIGINT
    (pid,) = [line.split()[1] for line in lines if line.startswith("manager")]
    assert not lives(pid)


def test_a_second_ctrl_c_does_not_wait_for_the_trials(tmp_path):
    rest = """
    import subprocess
    experiment.config["trialCommand"] = "trap '' TERM; touch started; while ! [ -e gate ]; do sleep 0.02; done"
    experiment.start()
    while not os.path.exists("started"):
        pass
    original = subprocess.Popen.wait
    def wait(self, timeout=None):
        print("ready", flush=True)
        return original(self, timeout)
    subprocess.Popen.wait = wait
    tell(experiment)
    try:
        experiment.wait()
    except KeyboardInterrupt:
        experiment.stop()
    """
    try:
        code, lines = run_and_interrupt(SEARCH + textwrap.dedent(rest), tmp_path, count=2)
        assert code != 0
        (pid,) = [line.split()[1] for line in lines if line.startswith("manager")]
        assert not lives(pid)
    finally:
        (tmp_path / "gate").touch()


FORGOTTEN = {
    "start": 'tk.Experiment(**fields, trial_command="sleep 600").start()',
    "search": "tk.search(never, SPACE, wait=False, id='mine', data_dir='data')",
}


@pytest.mark.parametrize("call", FORGOTTEN.values(), ids=FORGOTTEN)
@pytest.mark.parametrize("end", ["", "os._exit(0)", "os.execv('/bin/true', ['true'])"])
def test_a_search_without_a_variable_stops_with_the_script(tmp_path, call, end):
    code = f"""
    import os, time
    import trialkeeper as tk
    SPACE = {SPACE!r}
    fields = dict(search_space=SPACE, tuner={RANDOM!r}, max_trial_number=1, id="mine", data_dir="data")
    def never(p):
        time.sleep(600)
    if __name__ == "__main__":
        {call}
        {end}
    """
    assert run_and_interrupt(code, tmp_path) == (0, [])
    assert tk.connect("mine", data_dir=tmp_path / "data").wait(timeout=60) == "STOPPED"


@pytest.mark.parametrize("sent", [signal.SIGTERM, signal.SIGHUP, signal.SIGKILL])
@pytest.mark.parametrize("call", ["run", "start"])
def test_a_signal_that_ends_the_script_stops_its_search_which_can_be_resumed(tmp_path, sent, call):
    rest = """
    experiment.config["trialCommand"] = "while ! [ -e gate ]; do sleep 0.02; done; echo loss=1"
    original = experiment._follow
    def follow(follower):
        print(experiment.id, flush=True)
        print("ready", flush=True)
        return original(follower)
    experiment._follow = follow
    """
    calls = {"run": "experiment.run()", "start": "experiment.start()\nlist(experiment.watch())"}
    script = SEARCH + textwrap.dedent(rest) + calls[call]
    code, (id, _) = run_and_interrupt(script, tmp_path, sent=sent)
    assert code == -sent
    experiment = tk.connect(id, data_dir=tmp_path / "data")
    assert experiment.wait(timeout=60) == "STOPPED"
    (tmp_path / "gate").touch()
    assert experiment.resume().wait(timeout=120) == "DONE"


def test_a_search_stops_with_its_script_although_a_forked_process_lives_on(tmp_path):
    rest = """
    import time
    experiment.start()
    read, write = os.pipe()
    if os.fork() == 0:
        # The child sees an ended manager, as it is not its parent, and leaves it alone.
        assert experiment.url is None
        os.close(1)
        os.write(write, b"1")
        while not os.path.exists("gate"):
            time.sleep(0.02)
        sys.exit()
    os.read(read, 1)
    print(experiment.id, flush=True)
    print("ready", flush=True)
    experiment.wait()
    """
    try:
        code, (id, _) = run_and_interrupt(SEARCH + textwrap.dedent(rest), tmp_path, sent=signal.SIGKILL)
        assert code == -signal.SIGKILL
        assert tk.connect(id, data_dir=tmp_path / "data").wait(timeout=60) == "STOPPED"
    finally:
        (tmp_path / "gate").touch()


def test_an_ended_search_leaves_no_process(tmp_path):
    code = """
import os, sys, trialkeeper as tk
space = {"x": {"_type": "uniform", "_value": [0, 1]}}
def start(**fields):
    return tk.Experiment(
        trial_command="echo loss=1", search_space=space, tuner={"name": "Random"}, data_dir=sys.argv[1], **fields
    ).start()
pid = start(max_trial_number=1, id="forgotten")._manager._process.pid
os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
start(max_trial_number=1).wait()
try:
    os.waitpid(-1, os.WNOHANG)
except ChildProcessError:
    print("none")
"""
    done = subprocess.run([sys.executable, "-c", code, tmp_path], capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout) == (0, "none\n"), done.stderr


def test_a_detached_search_outlives_the_script(tmp_path):
    gate = tmp_path / "gate"
    rest = f"""
    experiment.config["trialCommand"] = "while ! [ -e {gate} ]; do sleep 0.02; done; echo loss=1"
    experiment.start(detach=True)
    print(experiment.id)
    """
    code, lines = run_and_interrupt(SEARCH + textwrap.dedent(rest), tmp_path)
    assert code == 0
    experiment = tk.connect(lines[-1], data_dir=tmp_path / "data")
    try:
        wait_for_state(experiment, "NO_MORE_TRIAL")
    finally:
        gate.touch()
    assert experiment.wait(timeout=120) == "DONE"


def test_a_task_that_is_cancelled_stops_its_search(tmp_path):
    async def search():
        experiment = gated(tmp_path)
        task = asyncio.ensure_future(experiment.run_async(progress=False))
        while experiment._id is None:
            await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        return experiment

    experiment = asyncio.run(search())
    assert experiment.url is None
    assert experiment.state == "STOPPED"


def test_a_search_runs_in_async_code(tmp_path):
    numbers = []

    async def search():
        return await of(REPORT, tmp_path).run_async(callbacks=[lambda _, trial: numbers.append(trial.number)])

    assert asyncio.run(search()).state == "DONE"
    assert sorted(numbers) == [0, 1, 2, 3]


# Callbacks and progress.


def test_a_callback_that_raises_is_warned_of_once(tmp_path):
    numbers = []

    def broken(experiment, trial):
        raise ValueError("no")

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        of(REPORT, tmp_path).run(callbacks=[broken, lambda experiment, trial: numbers.append(trial.number)])
    (warning,) = [w for w in caught if "broken" in str(w.message)]
    assert "raised ValueError for trial" in str(warning.message)
    assert sorted(numbers) == [0, 1, 2, 3]


WAYS_TO_WAIT = {
    "run": tk.Experiment.run,
    "wait": lambda experiment: experiment.start().wait(),
    "wait_async": lambda experiment: asyncio.run(experiment.start().wait_async()),
}


@pytest.mark.parametrize("run", WAYS_TO_WAIT.values(), ids=WAYS_TO_WAIT)
def test_the_warnings_of_a_manager_are_passed_on_once(tmp_path, monkeypatch, run):
    monkeypatch.setenv("TRIAL_MANAGER_LOG", "unknown")
    experiment = of(REPORT, tmp_path, tuner={"name": "Random", "classArgs": {"optimize_mode": "maximize"}})
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        run(experiment)
    log, direction = (str(warning.message) for warning in caught)
    assert log.startswith(f"experiment {experiment.id}: TRIAL_MANAGER_LOG is `unknown`; allowed: ")
    assert "the search maximises `loss`, although its name suggests the opposite" in direction


@pytest.mark.parametrize(
    ("line", "warning"),
    [
        ("2026-01-02T03:04:05.678901Z  WARN a queue is full", "a queue is full"),
        ("2026-01-02T03:04:05.678901Z ERROR the tuner is lost: it died", "the tuner is lost: it died"),
        ("2026-01-02T03:04:05.678901Z  INFO started", None),
        ("  `x` has one value", "`x` has one value"),
        ("  results are stored in /data/mine", None),
        ("  trials reach the manager at http://10.0.0.1:8080 (change with --advertise)", None),
        ("    | the output of a trial", None),
        ("trial 3 (abc) FAILED (exit code 1): no", None),
        ("1 of 2 trials ended, 0 running", None),
    ],
)
def test_only_warnings_are_passed_on(line, warning):
    match = _manager._WARNING.fullmatch(line)
    assert (match and match[match.lastindex]) == warning


def test_a_terminal_shows_a_line_for_each_trial(tmp_path, monkeypatch):
    terminal = io.StringIO()
    terminal.isatty = lambda: True
    monkeypatch.setattr(sys, "stderr", terminal)
    experiment = of(REPORT, tmp_path).run()
    first, *lines = terminal.getvalue().splitlines()
    assert first.startswith(f"experiment {experiment.id} on http://127.0.0.1:")
    assert [line.split()[0] for line in lines] == ["[1/4]", "[2/4]", "[3/4]", "[4/4]"]
    assert f"best {experiment.best.value:g} (trial {experiment.best.number})" in lines[-1]


def test_a_pipe_shows_nothing_unless_it_is_asked_for(tmp_path, capsys):
    of(REPORT, tmp_path / "a", max_trial_number=1).run()
    assert capsys.readouterr().err == ""
    of(REPORT, tmp_path / "b", max_trial_number=1).run(progress=True)
    assert "[1/1] trial 0 SUCCEEDED" in capsys.readouterr().err


class Notebook:
    """A stand-in for Jupyter that records the first display and each update."""

    def __init__(self, monkeypatch):
        self.shown, self.renewals = [], []
        # Colab's shell derives from Jupyter's.
        jupyters = type("ZMQInteractiveShell", (), {})
        shell = type("Shell", (jupyters,), {})()
        monkeypatch.setitem(sys.modules, "IPython", types.SimpleNamespace(get_ipython=lambda: shell))
        monkeypatch.setitem(sys.modules, "IPython.display", types.SimpleNamespace(display=self.display))

    def display(self, value, display_id):
        self.shown.append(value._repr_html_())
        return self

    def update(self, value):
        self.renewals.append(value._repr_html_())


@pytest.fixture
def notebook(monkeypatch):
    return Notebook(monkeypatch)


def test_a_notebook_shows_the_search_and_how_it_has_ended(tmp_path, notebook):
    of(REPORT, tmp_path).run()
    assert len(notebook.shown) == 1 and "portal" in notebook.shown[0]
    assert "DONE" in notebook.renewals[-1] and "4 succeeded" in notebook.renewals[-1]


@pytest.mark.parametrize("run", ["run", "run_async"])
def test_a_notebook_shows_that_a_search_was_interrupted(tmp_path, notebook, run):
    def interrupt(experiment, trial):
        raise KeyboardInterrupt

    experiment = of(REPORT, tmp_path, max_trial_number=1000)
    with pytest.raises(KeyboardInterrupt):
        running = getattr(experiment, run)(callbacks=[interrupt])
        asyncio.run(running)
    assert "STOPPED" in notebook.renewals[-1]


def test_a_notebook_is_renewed_while_no_trial_ends(tmp_path, notebook, monkeypatch):
    """The gate opens when an update shows running trials. Without updates, the search would not end."""
    renew = notebook.update

    def update(value):
        renew(value)
        if "2 running" in notebook.renewals[-1]:
            (tmp_path / "gate").touch()

    notebook.update = update
    logins = []
    with gated(tmp_path).start() as experiment:
        monkeypatch.setattr(experiment, "login_url", lambda: logins.append(1))
        assert experiment.wait(timeout=60, progress=True) == "DONE"
    assert len(logins) == 1, "a manager accepts few links at a time, so updates must not create new ones"


def test_a_closed_terminal_does_not_end_the_search(tmp_path, monkeypatch):
    closed = io.StringIO()
    closed.close()
    monkeypatch.setattr(sys, "stderr", closed)
    progress = _progress.Progress.__new__(_progress.Progress)
    progress._print("text")


# The output of a manager.


def test_events_are_read_in_whatever_pieces_they_come():
    head = b"HTTP/1.0 200 OK\r\ncontent-type: text/event-stream\r\n\r\n"
    events = [("trial", "1", {"id": "a"}), ("experiment", "2", {"state": "DONE"}), ("end", "2", None)]
    stream = head + b": still here\n\n"
    for name, id, data in events:
        stream += f"id: {id}\nevent: {name}\ndata: {json.dumps(data)}\n\n".encode()
    stream += b"event: trial\ndata: {broken\n\n\xff\xfe\n\n"
    for size in (1, 2, 3, 7, 50, len(stream)):
        parser, found = _rest.EventParser(), []
        for start in range(0, len(stream), size):
            found += parser.feed(stream[start : start + size])
        assert [(event.name, event.id, event.data) for event in found] == events


def test_any_bytes_are_read_as_events_or_passed_over():
    import random

    source = random.Random(1)
    pieces = [b"\n", b"\r\n", b"event: trial", b"data: {}", b"data:", b"id: 1", b": x", b"\0", b"\xff", b"[" * 100]
    for _ in range(300):
        parser = _rest.EventParser()
        for _ in range(source.randrange(20)):
            for event in parser.feed(b"".join(source.choices(pieces, k=5))):
                assert event.name


def test_a_manager_that_dies_over_a_request_is_not_running(tmp_path):
    import socket

    (tmp_path / "user.token").write_text("token")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "manager.sock"))
        listener.listen()
        thread = threading.Thread(target=lambda: listener.accept()[0].close())
        thread.start()
        with pytest.raises(_rest.NotRunning):
            _rest.ask(tmp_path, "GET", "/api/v1/experiment")
        thread.join()
    with pytest.raises(_rest.NotRunning):
        list(_rest.read_events(tmp_path, "0"))


def test_members_of_sections_may_be_in_snake_case():
    experiment = tk.Experiment(
        tuner={"name": "TPE", "class_args": {"optimize_mode": "minimize"}},
        training_service={
            "platform": "frameworkcontroller",
            "task_roles": [{"task_number": 1}],
            "settings": {"a_b": 1},
        },
        search_space={"my_x": {"_type": "uniform", "_value": [0, 1]}},
    )
    assert experiment.config["tuner"] == {"name": "TPE", "classArgs": {"optimize_mode": "minimize"}}
    assert experiment.config["trainingService"]["taskRoles"] == [{"taskNumber": 1}]
    assert experiment.config["trainingService"]["settings"] == {"a_b": 1}
    assert "my_x" in experiment.config["searchSpace"]


def test_a_python_that_is_too_old_is_told_so():
    source = os.path.join(os.path.dirname(tk.__file__), "__init__.py")
    code = (
        "import sys, types; sys.version_info = (3, 8, 1)\n"
        f"exec(compile(open({source!r}).read(), 'trialkeeper', 'exec'))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert "ImportError: trialkeeper needs Python 3.9 or newer, and this is Python 3.8" in done.stderr


@pytest.mark.parametrize(
    "before",
    [
        "print('done', end=' ')",
        "print('\\rEpoch 0: 100%|####|', end='', flush=True)",
        "sys.stdout = open(os.devnull, 'w')",
        "if os.fork(): os.wait(); os._exit(0)",
    ],
)
def test_results_arrive_whatever_the_training_prints(tmp_path, before):
    code = (
        "import os, signal, sys, trialkeeper as tk\n"
        f"for step in range(3):\n    {before}\n    tk.report(step=step, loss=step)\n"
        "tk.final(loss=0.5)\nos.kill(os.getpid(), signal.SIGKILL)\n"
    )
    if "fork" in before:
        code = f"import os\n{before}\n" + code.replace(before, "pass")
    (tmp_path / "train.py").write_text(code)
    experiment = tk.Experiment(
        trial_command=f"{sys.executable} train.py || true",
        trial_code_directory=str(tmp_path),
        search_space=SPACE,
        tuner=RANDOM,
        max_trial_number=1,
        data_dir=tmp_path / "data",
    ).run()
    assert [(metric.step, metric.value) for metric in experiment.best.metrics()][:3] == [(0, 0), (1, 1), (2, 2)]
    assert experiment.best.value == 0.5
    assert len(experiment.best.metrics()) == 4


def test_a_redirection_that_hides_results_is_warned_of(tmp_path):
    code = "import trialkeeper as tk; tk.report(loss=1); tk.report(loss=2)"
    done = subprocess.run(
        [sys.executable, "-c", code],
        stdout=(tmp_path / "train.log").open("w"),
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "TRIALKEEPER_RUN": "1"},
        check=True,
    )
    assert done.stderr.count("the agent does not see this result") == 1


@pytest.mark.parametrize("redirection", ["> log", "> log 2>&1", ">> log", "> /dev/null", ">&-", "> log; cat log"])
def test_results_are_kept_if_the_trial_redirects_its_output(tmp_path, redirection):
    (tmp_path / "train.py").write_text(
        "import math, trialkeeper as tk\n"
        "for step in range(20): tk.report(loss=1 / (step + 1), accuracy=step, step=step)\n"
        "tk.report(loss=math.nan, step=20)\n"
        "tk.final(loss=0.01, accuracy=0.5)\n"
    )
    experiment = tk.Experiment(
        trial_command=f"{sys.executable} -W error train.py {redirection}",
        trial_code_directory=str(tmp_path),
        search_space=SPACE,
        tuner=RANDOM,
        objective={"metric": "loss", "direction": "minimize"},
        max_trial_number=1,
        data_dir=tmp_path / "data",
    ).run()
    assert experiment.best.value == 0.01
    metrics = experiment.best.metrics()
    steps = [metric.step for metric in metrics if metric.name == "loss" and metric.type == "intermediate"]
    assert steps == list(range(21))
    assert [metric.value for metric in metrics if metric.name == "accuracy"] == [*range(20), 0.5]
    if "log" in redirection:
        # A trial that prints its log must not report everything twice.
        assert (tmp_path / "log").read_text() == ""


def test_a_callback_that_stops_the_search_ends_it_normally(tmp_path):
    for run in (tk.Experiment.run, lambda *args, **fields: asyncio.run(tk.Experiment.run_async(*args, **fields))):
        experiment = of(REPORT, tmp_path, max_trial_number=50, trial_concurrency=1)
        assert run(experiment, callbacks=lambda experiment, trial: experiment.stop()) is experiment
        assert experiment.state == "STOPPED" and len(experiment.trials()) < 50
        with pytest.raises(tk.ExperimentInterrupted):
            experiment.wait()


async def an_async_callback(*_):
    pass


@pytest.mark.parametrize(
    ("callbacks", "message"), [([an_async_callback], "`async def`"), ([3], "3 is not a function")]
)
def test_callbacks_that_cannot_be_called_are_refused(tmp_path, callbacks, message):
    with pytest.raises(TypeError, match=message):
        of(REPORT, tmp_path).run(callbacks=callbacks)
    of(REPORT, tmp_path, max_trial_number=1).run(callbacks=None)


def test_a_plain_number_is_the_final_result(tmp_path):
    code = "import trialkeeper as tk; tk.final(1.5)"
    experiment = of(code, tmp_path, max_trial_number=1).run()
    best = experiment.best
    assert (best.final, best.value) == (1.5, 1.5)
    assert [metric.value for metric in best.metrics()] == [1.5]
    assert "<p>best: 1.5</p>" in experiment._repr_html_()


def test_trials_and_experiments_are_copied_without_their_manager(tmp_path):
    experiment = of(REPORT, tmp_path, max_trial_number=1).run()
    (trial,) = experiment.trials()
    for copied in (copy.deepcopy(trial), pickle.loads(pickle.dumps(trial))):
        assert copied == trial
        assert copied.metrics() == trial.metrics()
    assert dataclasses.asdict(trial)["final"] == trial.final
    assert copy.copy(experiment).state == "DONE"


@pytest.mark.parametrize(
    "error",
    [
        tk.ConfigurationError("no"),
        tk.ExperimentFailed("no", tk.Experiment(id="mine")),
        tk.NoSuggestion("no", is_final=True),
        _rest.RestError("no", 404),
        _rest.NotRunning("no"),
        service.Unavailable("no"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_errors_can_be_pickled(error):
    """Pools of processes pickle the errors of their workers."""
    copied = pickle.loads(pickle.dumps(error))
    assert (type(copied), str(copied), repr(vars(copied))) == (type(error), str(error), repr(vars(error)))
