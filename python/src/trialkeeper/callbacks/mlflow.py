"""Logs each trial of a search as a run to MLflow.

    from trialkeeper.callbacks.mlflow import LogTrials
    experiment.run(callbacks=[LogTrials("iris")])

    log = LogTrials("iris")                       # for an earlier search
    for trial in (found := trialkeeper.connect("k3f9abcd")).trials():
        log(found, trial)

The extra ``trialkeeper[mlflow]`` installs MLflow's client without its server.
"""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Any, Optional

import mlflow
from mlflow.entities import Metric, Param

from trialkeeper.callbacks._values import numbers, texts

if TYPE_CHECKING:
    from trialkeeper.experiment import Experiment
    from trialkeeper.results import Trial

__all__ = ["LogTrials"]

#: The maximum number of items in one request to MLflow.
_METRICS, _PARAMS = 1000, 100


class LogTrials:
    """Logs each ended trial as a run, with its parameters, metrics and final state.

    :param name: the MLflow experiment; the search's id if absent.
    :param tracking_uri: the address of MLflow's store; ``MLFLOW_TRACKING_URI`` if absent.
    """

    def __init__(self, name: Optional[str] = None, tracking_uri: Optional[str] = None) -> None:
        self._name = name
        self._client = mlflow.MlflowClient(tracking_uri)
        self._mlflow_id: Optional[str] = None

    def __call__(self, experiment: Experiment, trial: Trial) -> None:
        """Logs a trial."""
        tags = {
            "trialkeeper.experiment": experiment.id,
            "trialkeeper.trial": trial.id,
            "trialkeeper.state": trial.state,
        }
        if trial.cause is not None:
            tags["trialkeeper.cause"] = trial.cause
        run = self._client.create_run(
            self._experiment_id(experiment),
            start_time=_ms(trial.started_at),
            tags=tags,
            run_name=f"{experiment.id} trial {trial.number}",
        ).info.run_id
        params = [Param(name, value) for name, value in texts(trial.parameters).items()]
        for at in range(0, len(params), _PARAMS):
            self._client.log_batch(run, params=params[at : at + _PARAMS])
        metrics = [
            Metric(name, value, _ms(metric.observed_at) or 0, metric.step or 0)
            for metric in trial.metrics()
            for name, value in numbers(metric).items()
        ]
        if trial.value is not None:
            metrics.append(Metric("result", trial.value, _ms(trial.ended_at) or 0, 0))
        for at in range(0, len(metrics), _METRICS):
            self._client.log_batch(run, metrics=metrics[at : at + _METRICS])
        status = {"SUCCEEDED": "FINISHED", "FAILED": "FAILED"}.get(trial.state, "KILLED")
        self._client.set_terminated(run, status=status, end_time=_ms(trial.ended_at))

    def _experiment_id(self, experiment: Experiment) -> str:
        if self._mlflow_id is None:
            name = self._name or experiment.id
            known: Any = self._client.get_experiment_by_name(name)
            self._mlflow_id = str(known.experiment_id if known else self._client.create_experiment(name))
        return self._mlflow_id


def _ms(when: Optional[datetime]) -> Optional[int]:
    return None if when is None else int(when.timestamp() * 1000)
