"""The experiment file."""

from nni.experiment.config import ExperimentConfig

__all__ = ["ExperimentConfig"]
