"""Logs each trial of a search as a run to Weights & Biases, grouped by search.

    from trialkeeper.callbacks.wandb import LogTrials
    experiment.run(callbacks=[LogTrials("iris")])

    log = LogTrials("iris")                       # for an earlier search
    for trial in (found := trialkeeper.connect("k3f9abcd")).trials():
        log(found, trial)

The extra ``trialkeeper[wandb]`` installs the library.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Optional

import wandb

from trialkeeper.callbacks._values import flat, numbers

if TYPE_CHECKING:
    from trialkeeper.experiment import Experiment
    from trialkeeper.results import Trial

__all__ = ["LogTrials"]


class LogTrials:
    """Logs each ended trial as a run, with its parameters, metrics and final state.

    :param project: the project at W&B.
    :param options: more arguments of ``wandb.init``, such as ``entity`` or ``mode="offline"``.
    """

    def __init__(self, project: Optional[str] = None, **options: Any) -> None:
        self._project = project
        self._options = options

    def __call__(self, experiment: Experiment, trial: Trial) -> None:
        """Logs a trial."""
        run = wandb.init(
            project=self._project,
            group=experiment.id,
            # Logging a trial again updates the same run.
            id=f"{experiment.id}-{trial.id}",
            name=f"trial {trial.number}",
            config=flat(trial.parameters),
            reinit="create_new",
            **self._options,
        )
        # W&B requires ascending steps.
        steps: dict[int, dict[str, float]] = {}
        for metric in trial.metrics():
            if metric.type == "intermediate":
                steps.setdefault(metric.step or 0, {}).update(numbers(metric))
            else:
                run.summary.update(numbers(metric))
        for step, values in sorted(steps.items()):
            run.log(values, step=step)
        how = {"state": trial.state, "cause": trial.cause, "result": trial.value, "duration_s": trial.duration_s}
        run.summary.update({name: value for name, value in how.items() if value is not None})
        run.finish(exit_code=0 if trial.state == "SUCCEEDED" else 1)
