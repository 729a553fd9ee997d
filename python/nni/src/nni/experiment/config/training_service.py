"""The base class of training services."""

from nni.experiment.config import TrainingServiceConfig

__all__ = ["TrainingServiceConfig"]
