"""NNI's Python interface to experiments, on top of TrialKeeper."""

from nni.experiment.config import *  # noqa: F403
from nni.experiment.config import __all__ as _config_names
from nni.experiment.data import TrialHyperParameters, TrialJob, TrialMetricData, TrialResult
from nni.experiment.experiment import Experiment, RunMode

__all__ = [
    *_config_names,
    "Experiment",
    "RunMode",
    "TrialHyperParameters",
    "TrialJob",
    "TrialMetricData",
    "TrialResult",
]
