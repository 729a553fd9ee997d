"""Trials on OpenPAI."""

from nni.experiment.config import OpenpaiConfig

__all__ = ["OpenpaiConfig"]
