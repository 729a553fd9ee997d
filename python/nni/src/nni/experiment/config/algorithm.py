"""Tuners and assessors in an experiment file."""

from nni.experiment.config import AlgorithmConfig, CustomAlgorithmConfig

__all__ = ["AlgorithmConfig", "CustomAlgorithmConfig"]
