"""The errors of a search. Their messages come from ``trial-manager``."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from trialkeeper.experiment import Experiment

__all__ = ["ConfigurationError", "ExperimentFailed", "ExperimentInterrupted", "ManagerError", "NoSuggestion"]


class ManagerError(RuntimeError):
    """``trial-manager`` failed."""


class ConfigurationError(ManagerError):
    """The configuration, the command line, the port or the data directory cannot be used (exit code 2)."""


class ExperimentFailed(ManagerError):
    """The search is over and no trial succeeded with a result (exit code 1)."""

    def __init__(self, message: str, experiment: Experiment) -> None:
        super().__init__(message)
        #: The search. Its trials contain the causes.
        self.experiment = experiment

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (*self.args, self.experiment)


class ExperimentInterrupted(ManagerError):
    """The search was stopped before its end (exit code 130)."""


class NoSuggestion(ManagerError):
    """A study has nothing to suggest, either permanently or until it receives results."""

    def __init__(self, message: str, *, is_final: bool) -> None:
        super().__init__(message)
        #: ``True`` if the study will never have another suggestion.
        self.is_final = is_final

    def __reduce__(self) -> tuple[Any, ...]:
        return partial(type(self), is_final=self.is_final), self.args
