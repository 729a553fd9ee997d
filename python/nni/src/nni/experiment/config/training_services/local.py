"""Trials on this machine."""

from nni.experiment.config import LocalConfig

__all__ = ["LocalConfig"]
