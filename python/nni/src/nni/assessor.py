"""The base class of assessors."""

from __future__ import annotations

from enum import Enum
from typing import Any

from nni.recoverable import Recoverable

__all__ = ["AssessResult", "Assessor"]


class AssessResult(Enum):
    """The decision of an assessor about a trial."""

    #: The trial continues.
    Good = True
    #: The trial is unpromising and is stopped.
    Bad = False


class Assessor(Recoverable):
    """Stops unpromising trials early. Derive your own assessor and name it in ``assessor.className``.

    An assessor must implement :meth:`assess_trial`. Its arguments are ``assessor.classArgs``.
    """

    def assess_trial(self, trial_job_id: str, trial_history: list[Any]) -> AssessResult:
        """Assesses a trial by its intermediate results, oldest first. Called after each new result."""
        raise NotImplementedError(f"{type(self).__name__} has no assess_trial")

    def trial_end(self, trial_job_id: str, success: bool) -> None:
        """Called when a trial with intermediate results has ended."""

    def _on_exit(self) -> None:
        """Called when the search is over."""

    def _on_error(self) -> None:
        """Called when the tuner or the assessor has raised an exception."""
