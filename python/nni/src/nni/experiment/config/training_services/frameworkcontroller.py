"""Trials on FrameworkController."""

from nni.experiment.config import (
    FrameworkAttemptCompletionPolicy,
    FrameworkControllerConfig,
    FrameworkControllerRoleConfig,
)

__all__ = ["FrameworkAttemptCompletionPolicy", "FrameworkControllerConfig", "FrameworkControllerRoleConfig"]
