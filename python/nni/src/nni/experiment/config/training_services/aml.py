"""Trials on Azure Machine Learning."""

from nni.experiment.config import AmlConfig

__all__ = ["AmlConfig"]
