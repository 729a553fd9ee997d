"""The callbacks with the real libraries. Each test is skipped where its library is not installed, unless
``TRIALKEEPER_TEST_NEED_LIBRARIES`` names the library.

PyTorch is too large to install for a test, so Lightning's callback meets a module with the documented interface of
its base class, and Transformers' meets the real state and control objects instead of a real ``Trainer``.
"""

import importlib
import json
import os
import sys
import types
from unittest import mock

import pytest

from trialkeeper import trial


def library(name):
    if name in os.environ.get("TRIALKEEPER_TEST_NEED_LIBRARIES", "").split():
        return importlib.import_module(name)
    return pytest.importorskip(name)


@pytest.fixture
def reported(capsys):
    """Returns a function that returns the metrics printed so far, without other output."""

    def read():
        lines = capsys.readouterr().out.splitlines()
        return [json.loads(line) for line in lines if line.startswith('{"type"')]

    return read


@pytest.fixture
def stop_after(monkeypatch):
    """Returns a function that makes ``should_stop`` return True after ``n`` calls."""

    def set_up(n):
        answers = iter([False] * n)
        monkeypatch.setattr(trial, "should_stop", lambda: next(answers, True))

    return set_up


def data():
    numpy = library("numpy")
    random = numpy.random.default_rng(1)
    features = random.normal(size=(60, 3))
    return features, (features.sum(axis=1) > 0).astype(int)


# XGBoost.


def train_xgboost(rounds, callback):
    xgboost = library("xgboost")
    features, labels = data()
    matrix = xgboost.DMatrix(features, labels)
    evals = [(matrix, "train")]
    settings = {"objective": "binary:logistic", "eval_metric": ["logloss", "error"], "nthread": 1}
    return xgboost.train(settings, matrix, rounds, evals=evals, callbacks=[callback], verbose_eval=False)


def test_xgboost_reports_each_round(reported):
    library("xgboost")
    from trialkeeper.callbacks.xgboost import Report

    train_xgboost(4, Report())
    rows = reported()
    assert [row["step"] for row in rows] == [0, 1, 2, 3]
    assert set(rows[0]) == {"type", "step", "train-logloss", "train-error"}
    assert rows[3]["train-logloss"] < rows[0]["train-logloss"]


def test_xgboost_stops_when_the_trial_is_to_stop(reported, stop_after):
    library("xgboost")
    from trialkeeper.callbacks.xgboost import Report

    stop_after(2)  # The first call happens at the start of the training.
    model = train_xgboost(50, Report())
    assert model.num_boosted_rounds() == len(reported()) == 2


def test_xgboosts_cross_validation_reports_means(reported):
    xgboost = library("xgboost")
    from trialkeeper.callbacks.xgboost import Report

    features, labels = data()
    settings = {"objective": "binary:logistic", "nthread": 1}
    xgboost.cv(settings, xgboost.DMatrix(features, labels), 3, nfold=2, callbacks=[Report()])
    assert [sorted(row) for row in reported()] == [["step", "test-logloss", "train-logloss", "type"]] * 3


# LightGBM.


def train_lightgbm(rounds, callback):
    lightgbm = library("lightgbm")
    features, labels = data()
    train = lightgbm.Dataset(features, labels)
    settings = {"objective": "binary", "verbose": -1, "num_threads": 1, "min_data_in_leaf": 2}
    return lightgbm.train(settings, train, rounds, valid_sets=[train], valid_names=["valid"], callbacks=[callback])


def test_lightgbm_reports_each_round(reported):
    library("lightgbm")
    from trialkeeper.callbacks.lightgbm import report

    train_lightgbm(4, report())
    rows = reported()
    assert [row["step"] for row in rows] == [0, 1, 2, 3]
    assert set(rows[0]) == {"type", "step", "valid binary_logloss"}


def test_lightgbm_stops_when_the_trial_is_to_stop(reported, stop_after):
    library("lightgbm")
    from trialkeeper.callbacks.lightgbm import report

    stop_after(3)
    train_lightgbm(50, report())
    assert 1 < len(reported()) < 50


# scikit-learn.


def test_sklearn_reports_each_fold_and_the_mean(reported):
    library("sklearn")
    from sklearn.tree import DecisionTreeClassifier

    from trialkeeper.callbacks.sklearn import cross_validate

    features, labels = data()
    tree = DecisionTreeClassifier(random_state=1)
    result = cross_validate(tree, features, labels, cv=3, scoring=["accuracy", "f1"])
    *folds, final = reported()
    assert [row["accuracy"] for row in folds] == pytest.approx(list(result["test_accuracy"]))
    assert [row["step"] for row in folds] == [0, 1, 2]
    assert final["type"] == "final"
    assert final["f1"] == pytest.approx(result["test_f1"].mean())


# Keras.


def train_keras(epochs, callback):
    keras = library("keras")
    features, labels = data()
    model = keras.Sequential([keras.layers.Dense(1, activation="sigmoid")])
    model.compile("sgd", "binary_crossentropy", metrics=["accuracy"])
    fitted = model.fit(
        features, labels, epochs=epochs, verbose=0, validation_split=0.2, callbacks=[callback], shuffle=False
    )
    return fitted.epoch


@pytest.fixture
def keras_backend(monkeypatch):
    """Selects one of Keras's backends that is installed."""
    for name in ("tensorflow", "jax", "torch"):
        try:
            __import__(name)
        except ImportError:
            continue
        monkeypatch.setenv("KERAS_BACKEND", name)
        return
    pytest.skip("no backend of Keras is installed")


def test_keras_reports_each_epoch(keras_backend, reported):
    library("keras")
    from trialkeeper.callbacks.keras import Report

    train_keras(3, Report())
    rows = reported()
    assert [row["step"] for row in rows] == [0, 1, 2]
    assert {"loss", "accuracy", "val_loss", "val_accuracy"} <= set(rows[0])


def test_keras_stops_when_the_trial_is_to_stop(keras_backend, reported, stop_after):
    library("keras")
    from trialkeeper.callbacks.keras import Report

    stop_after(3)
    assert len(train_keras(50, Report())) == len(reported()) == 3


# Hugging Face Transformers.


def test_transformers_reports_evaluations_and_logs(reported, stop_after):
    transformers = library("transformers")
    from trialkeeper.callbacks.transformers import Report

    stop_after(2)
    callback = Report()
    state = transformers.TrainerState(global_step=5, is_world_process_zero=True)
    control = transformers.TrainerControl()
    callback.on_train_begin(None, state, control)
    callback.on_log(None, state, control, logs={"loss": 0.7, "epoch": 1})
    # An evaluation is also logged, and must not be reported twice.
    callback.on_log(None, state, control, logs={"eval_loss": 0.6})
    callback.on_evaluate(None, state, control, metrics={"eval_loss": 0.6, "eval_name": "text"})
    callback.on_step_end(None, state, control)
    assert not control.should_training_stop
    callback.on_step_end(None, state, control)
    assert control.should_training_stop
    state.is_world_process_zero = False
    callback.on_evaluate(None, state, control, metrics={"eval_loss": 0.5})
    assert reported() == [
        {"type": "intermediate", "step": 5, "loss": 0.7, "epoch": 1.0},
        {"type": "intermediate", "step": 5, "eval_loss": 0.6},
    ]


# PyTorch Lightning.


@pytest.fixture
def lightning():
    """Lightning if it is installed; else modules with the names that the callback uses."""
    try:
        import lightning.pytorch  # noqa: F401

        yield
        return
    except ImportError:
        pass
    package, module = types.ModuleType("lightning"), types.ModuleType("lightning.pytorch")
    module.Callback = type("Callback", (), {})
    package.pytorch = module
    with mock.patch.dict(sys.modules, {"lightning": package, "lightning.pytorch": module}):
        sys.modules.pop("trialkeeper.callbacks.lightning", None)
        yield


def test_lightning_reports_each_validation_of_the_first_process(lightning, reported, stop_after):
    from trialkeeper.callbacks.lightning import Report

    stop_after(3)
    trainer = types.SimpleNamespace(
        sanity_checking=True,
        enable_validation=True,
        is_global_zero=True,
        current_epoch=0,
        callback_metrics={"val_loss": 0.5},
        should_stop=False,
    )
    callback = Report()
    callback.on_fit_start(trainer, None)
    callback.on_validation_end(trainer, None)  # Lightning's check before the training is not a result.
    trainer.sanity_checking = False
    callback.on_validation_end(trainer, None)
    callback.on_train_epoch_end(trainer, None)
    assert not trainer.should_stop
    trainer.current_epoch, trainer.is_global_zero = 1, False
    callback.on_validation_end(trainer, None)
    trainer.is_global_zero, trainer.enable_validation = True, False
    callback.on_train_epoch_end(trainer, None)
    assert trainer.should_stop
    assert reported() == [
        {"type": "intermediate", "step": 0, "val_loss": 0.5},
        {"type": "intermediate", "step": 1, "val_loss": 0.5},
    ]
