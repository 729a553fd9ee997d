"""Trials logged to MLflow and to Weights & Biases.

MLflow is the real client with a store of files. W&B is a stand-in with the documented calls, and the real library
offline where it is installed.
"""

import importlib
import inspect
import math
import os
import sys
import types
from datetime import datetime, timezone

import pytest

from trialkeeper.results import Metric, Trial

WHEN = datetime(2026, 11, 25, tzinfo=timezone.utc)


class Search:
    """The part of an experiment that a trial uses."""

    id = "k3f9abcd"

    def __init__(self, rows=()):
        self._rows = rows

    def _metrics(self, trial):
        return self._rows


def row(name, type, step, value):
    return {"name": name, "type": type, "step": step, "value": value, "observed_at_ms": 1_795_564_800_000}


ROWS = [
    row("loss", "intermediate", 1, 0.5),
    row("loss", "intermediate", 0, 0.75),
    row("accuracy", "intermediate", 1, {"default": 0.9, "top5": 1, "note": "no number"}),
    row("loss", "final", None, 0.25),
    row("loss", "intermediate", None, "NaN"),
]


def trial(search, state="SUCCEEDED", **changes):
    values = {
        "id": "ab12c",
        "number": 7,
        "state": state,
        "parameters": {"lr": 0.1, "layer": {"_name": "conv", "size": 3}, "name": "a b", "list": [1, 2]},
        "final": 0.25,
        "cause": "succeeded",
        "exit_code": 0,
        "started_at": WHEN,
        "ended_at": WHEN,
        **changes,
    }
    return Trial(_experiment=search, **values)


def library(name):
    if name in os.environ.get("TRIALKEEPER_TEST_NEED_LIBRARIES", "").split():
        return importlib.import_module(name)
    return pytest.importorskip(name)


def test_mlflow_has_a_run_for_each_trial(tmp_path, monkeypatch):
    mlflow = library("mlflow")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    from trialkeeper.callbacks.mlflow import LogTrials

    search = Search(ROWS)
    log = LogTrials("iris", tracking_uri=(tmp_path / "runs").as_uri())
    log(search, trial(search))
    log(Search(), trial(Search(), "FAILED", id="b", number=8, final=None, cause="oom-cuda", ended_at=None))
    log(Search(), trial(Search(), "USER_CANCELED", id="c", number=9, final=None, cause=None, parameters={}))

    client = mlflow.MlflowClient((tmp_path / "runs").as_uri())
    experiment = client.get_experiment_by_name("iris").experiment_id
    runs = {run.data.tags["trialkeeper.trial"]: run for run in client.search_runs([experiment])}
    assert {id: run.info.status for id, run in runs.items()} == {"ab12c": "FINISHED", "b": "FAILED", "c": "KILLED"}
    run = runs["ab12c"]
    assert run.data.params == {
        "lr": "0.1",
        "layer._name": "conv",
        "layer.size": "3",
        "name": "a b",
        "list": "[1, 2]",
    }
    assert run.data.metrics["result"] == 0.25 and run.data.metrics["top5"] == 1
    steps = [(metric.step, metric.value) for metric in client.get_metric_history(run.info.run_id, "loss")]
    assert (0, 0.75) in steps and (1, 0.5) in steps and len(steps) == 4
    assert run.info.start_time == int(WHEN.timestamp() * 1000)
    assert runs["b"].data.tags["trialkeeper.cause"] == "oom-cuda"


@pytest.fixture
def stand_in(monkeypatch):
    """A stand-in for W&B that records the documented calls."""
    calls = []

    class Run:
        summary = types.SimpleNamespace(update=lambda values: calls.append(("summary", dict(values))))

        def log(self, data, step=None, commit=None):
            calls.append(("log", step, dict(data)))

        def finish(self, exit_code=None, quiet=None):
            calls.append(("finish", exit_code))

    def init(*, project=None, entity=None, group=None, id=None, name=None, config=None, mode=None, reinit=None):
        calls.append(("init", project, group, id, name, config, mode, reinit))
        return Run()

    module = types.ModuleType("wandb")
    module.init = init
    monkeypatch.setitem(sys.modules, "wandb", module)
    monkeypatch.delitem(sys.modules, "trialkeeper.callbacks.wandb", raising=False)
    yield calls
    sys.modules.pop("trialkeeper.callbacks.wandb", None)


def test_wandb_has_a_run_for_each_trial_with_its_steps_in_order(stand_in):
    from trialkeeper.callbacks.wandb import LogTrials

    search = Search(ROWS[:4])
    LogTrials("iris", mode="offline")(search, trial(search))
    config = {"lr": 0.1, "layer._name": "conv", "layer.size": 3, "name": "a b", "list": [1, 2]}
    identity = ("iris", "k3f9abcd", "k3f9abcd-ab12c", "trial 7", config, "offline", "create_new")
    assert stand_in == [
        ("init", *identity),
        ("summary", {"loss": 0.25}),
        ("log", 0, {"loss": 0.75}),
        ("log", 1, {"loss": 0.5, "accuracy": 0.9, "top5": 1.0}),
        ("summary", {"state": "SUCCEEDED", "cause": "succeeded", "result": 0.25, "duration_s": 0.0}),
        ("finish", 0),
    ]
    stand_in.clear()
    LogTrials()(Search(), trial(Search(), "FAILED", final=math.nan, cause=None, ended_at=None))
    assert stand_in[0][1] is None and stand_in[-1] == ("finish", 1)


def test_wandb_takes_the_calls(tmp_path, monkeypatch):
    wandb = library("wandb")
    sys.modules.pop("trialkeeper.callbacks.wandb", None)
    from trialkeeper.callbacks.wandb import LogTrials

    known = inspect.signature(wandb.init).parameters
    assert {"project", "group", "id", "name", "config", "mode", "reinit", "dir"} <= set(known)
    monkeypatch.setenv("WANDB_SILENT", "true")
    search = Search(ROWS)
    LogTrials("iris", mode="offline", dir=str(tmp_path))(search, trial(search))
    assert list(tmp_path.glob("wandb/offline-run-*-k3f9abcd-ab12c/*.wandb"))


def test_a_metric_is_read_from_the_managers_row():
    assert Metric._read(ROWS[2]).value["top5"] == 1
