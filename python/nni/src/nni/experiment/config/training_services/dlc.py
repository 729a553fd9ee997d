"""Trials on PAI-DLC."""

from nni.experiment.config import DlcConfig

__all__ = ["DlcConfig"]
