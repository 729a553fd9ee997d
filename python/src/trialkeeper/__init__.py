"""Hyper-parameter search that keeps every result.

In a training script, two lines make a trial::

    import trialkeeper as tk

    p = tk.params(lr=0.1)
    for epoch in range(10):
        tk.report(step=epoch, loss=train_one_epoch(p["lr"]))

and anywhere else they are searched::

    experiment = tk.Experiment("experiment.yml").run()
    print(experiment.best.parameters)

The programs ``trial-manager`` and ``trialkeeper`` come with this package.
"""

from importlib.metadata import PackageNotFoundError, version

from trialkeeper.errors import (
    ConfigurationError,
    ExperimentFailed,
    ExperimentInterrupted,
    ManagerError,
)
from trialkeeper.experiment import Experiment, Metric, Trial, connect
from trialkeeper.search import search
from trialkeeper.trial import final, output_dir, params, report, should_stop, trial_id

try:
    __version__ = version("trialkeeper")
except PackageNotFoundError:  # Run from a source tree.
    __version__ = "0+unknown"

__all__ = [
    "ConfigurationError",
    "Experiment",
    "ExperimentFailed",
    "ExperimentInterrupted",
    "ManagerError",
    "Metric",
    "Trial",
    "connect",
    "final",
    "output_dir",
    "params",
    "report",
    "search",
    "should_stop",
    "trial_id",
]
