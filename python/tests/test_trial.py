"""The API for training scripts, without an agent: the tests check the lines that the agent would read."""

import json
import os
import signal
import subprocess
import sys
import threading
import warnings

import pytest

import trialkeeper as tk


@pytest.fixture(autouse=True)
def outside_a_trial(monkeypatch):
    for name in list(os.environ):
        if name.startswith(("TRIALKEEPER_PARAM", "TRIALKEEPER_OUTPUT", "NNI_")):
            monkeypatch.delenv(name)


def test_parameters_come_from_the_variable_over_defaults(monkeypatch):
    monkeypatch.setenv("TRIALKEEPER_PARAMETERS", '{"lr": 0.5, "act": "relu"}')
    assert tk.params(lr=0.1, units=3) == {"lr": 0.5, "act": "relu", "units": 3}


def test_parameters_that_are_too_large_for_a_variable_come_from_the_file(monkeypatch, tmp_path):
    file = tmp_path / "parameters.json"
    file.write_text('{"lr": 0.25}')
    monkeypatch.setenv("TRIALKEEPER_PARAMETERS_FILE", str(file))
    assert tk.params() == {"lr": 0.25}


@pytest.mark.parametrize("text", ["{", "[1]", "7", '"text"'])
def test_parameters_that_are_no_object_are_refused(monkeypatch, text):
    monkeypatch.setenv("TRIALKEEPER_PARAMETERS", text)
    with pytest.raises(ValueError, match="TRIALKEEPER_PARAMETERS"):
        tk.params(lr=0.1)


@pytest.mark.parametrize(
    ("call", "lines"),
    [
        (lambda: tk.report(step=3, loss=0.5), [{"type": "intermediate", "step": 3, "loss": 0.5}]),
        (lambda: tk.report({"val/acc": 1}), [{"type": "intermediate", "val/acc": 1.0}]),
        (lambda: tk.final(0.93), [{"type": "final", "default": 0.93}]),
        (lambda: tk.final(acc=0.9, loss=2), [{"type": "final", "acc": 0.9, "loss": 2.0}]),
        (lambda: tk.final({"f1": 0.7}), [{"type": "final", "f1": 0.7}]),
        (
            lambda: tk.report(step=1, loss=float("-inf"), acc=0.5),
            [{"type": "intermediate", "step": 1, "loss": float("-inf"), "acc": 0.5}],
        ),
        # As Optuna and NNI accept it.
        (lambda: tk.report(0.5), [{"type": "intermediate", "default": 0.5}]),
        (lambda: tk.report(0.0), [{"type": "intermediate", "default": 0.0}]),
        (lambda: tk.report(0.5, 3), [{"type": "intermediate", "step": 3, "default": 0.5}]),
        (lambda: tk.report({"step": 3, "loss": 1}), [{"type": "intermediate", "step": 3, "loss": 1.0}]),
        (lambda: tk.report({2: 0.5}), [{"type": "intermediate", "2": 0.5}]),
    ],
)
def test_each_call_prints_what_the_agent_reads(capsys, call, lines):
    call()
    printed = capsys.readouterr().out.splitlines()
    assert [json.loads(line) for line in printed] == lines


class Broken:
    """A value whose conversion raises its own exception, like a tensor with many elements."""

    def __float__(self):
        raise RuntimeError("a tensor with 2 elements")


@pytest.mark.parametrize(
    ("call", "warning", "printed"),
    [
        (lambda: tk.report(name="resnet", loss=0.5), "'name' is not reported: 'resnet' is not a number", {}),
        (lambda: tk.report(big=10**400, loss=0.5), "'big' is not reported", {}),
        (lambda: tk.report(tensor=Broken(), loss=0.5), "a tensor with 2 elements", {}),
        (lambda: tk.report(step="x", loss=0.5), "the step 'x' is ignored", {}),
        (lambda: tk.report(step=float("nan"), loss=0.5), "the step nan is ignored", {}),
        (lambda: tk.report(step=Broken(), loss=0.5), "the step .* is ignored", {}),
        (lambda: tk.report(type=1, loss=0.5), "'type' is not reported: the name has another meaning", {}),
        (lambda: tk.report({"step": 1, "loss": 0.5}, step=2), "'step' is not reported", {"step": 2}),
    ],
)
def test_what_cannot_be_reported_is_skipped_with_a_warning(capsys, call, warning, printed):
    with pytest.warns(RuntimeWarning, match=warning):
        call()
    assert json.loads(capsys.readouterr().out) == {"type": "intermediate", "loss": 0.5, **printed}


@pytest.mark.parametrize("call", [tk.report, tk.final, lambda: tk.final(None), lambda: tk.report({}, step=1)])
def test_a_call_without_a_metric_is_warned_of(capsys, call):
    with pytest.warns(RuntimeWarning, match="no metric was given"):
        call()
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize("value", ["text", [1, 2], object()])
def test_a_single_value_that_is_no_number_is_warned_of(capsys, value):
    with pytest.warns(RuntimeWarning, match="'default' is not reported: .* is not a number"):
        tk.report(value)
    assert capsys.readouterr().out == ""


def test_a_closed_output_does_not_end_the_training(tmp_path):
    script = (
        "import sys, os, warnings\n"
        "warnings.simplefilter('ignore')\n"
        "import trialkeeper as tk\n"
        "os.close(1)\n"
        "tk.report(loss=1)\n"
        "os._exit(7)\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 7, done.stderr


def test_the_output_directory_is_made(monkeypatch, tmp_path):
    monkeypatch.setenv("TRIALKEEPER_OUTPUT_DIR", str(tmp_path / "a" / "b"))
    assert tk.output_dir().is_dir()


def test_a_trial_asked_to_stop_ends_by_itself_and_a_second_request_ends_it_at_once():
    script = (
        "import os, signal, sys\n"
        "import trialkeeper as tk\n"
        "assert not tk.should_stop()\n"
        "os.kill(os.getpid(), signal.SIGTERM)\n"
        "assert tk.should_stop()\n"
        "print('caught', flush=True)\n"
        "os.kill(os.getpid(), signal.SIGTERM)\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert (done.stdout, done.returncode) == ("caught\n", -signal.SIGTERM), done.stderr


@pytest.mark.parametrize(
    ("before", "in_child", "code"),
    [
        ("pass", "pass", -signal.SIGTERM),
        ("signal.signal(signal.SIGTERM, lambda *_: os._exit(7))", "pass", 7),
        # A training in a forked process asks for itself.
        ("pass", "tk.should_stop()", 3),
    ],
)
def test_a_forked_process_is_ended_as_if_its_parent_caught_nothing(before, in_child, code):
    script = f"""
import multiprocessing, os, signal, time
import trialkeeper as tk
{before}
tk.should_stop()
def work(ready):
    {in_child}
    ready.set()
    while not tk.trial._stop_requested.is_set():
        time.sleep(0.01)
    os._exit(3)
fork = multiprocessing.get_context("fork")
ready = fork.Event()
worker = fork.Process(target=work, args=(ready,), daemon=True)
worker.start()
assert ready.wait(60)
worker.terminate()
worker.join(60)
print(worker.exitcode, tk.should_stop(), flush=True)
worker.kill()
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.stdout == f"{code} False\n", done.stderr


def test_should_stop_in_a_thread_warns_and_goes_on(monkeypatch):
    monkeypatch.setattr("trialkeeper.trial._handling_process", None)  # Other tests may have set it.
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        answers = []
        thread = threading.Thread(target=lambda: answers.append(tk.should_stop()))
        thread.start()
        thread.join()
    assert answers == [False]
    assert "main thread" in str(caught[0].message)


def test_a_trial_does_not_import_what_searches():
    """Imports delay the start of every training."""
    code = (
        "import sys; before = set(sys.modules); import trialkeeper as tk; tk.params(); "
        "print([name for name in ('asyncio', 'subprocess', 'trialkeeper.experiment') "
        "if name in set(sys.modules) - before]); from trialkeeper import search; print(callable(search))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["[]", "True"]


def test_every_public_name_is_there():
    assert all(getattr(tk, name) for name in tk.__all__)
    assert set(tk.__all__) <= set(dir(tk))
    with pytest.raises(AttributeError, match="nothing_like_this"):
        tk.nothing_like_this  # noqa: B018
