"""The base class of tuners."""

from __future__ import annotations

from typing import Any

from nni import NoMoreTrialError
from nni.recoverable import Recoverable

__all__ = ["Tuner"]


class Tuner(Recoverable):
    """Proposes the parameters of trials. Derive your own tuner and name it in ``tuner.className``.

    A tuner must implement :meth:`update_search_space`, :meth:`receive_trial_result`, and
    :meth:`generate_parameters` or :meth:`generate_multiple_parameters`. Its arguments are ``tuner.classArgs``.
    """

    _accept_customized = False

    def generate_parameters(self, parameter_id: int, **kwargs: Any) -> Any:
        """Returns the parameters of one trial.

        :param parameter_id: identifies this proposal in later calls.
        :raises nni.NoMoreTrialError: if there is nothing more to propose.
        """
        raise NotImplementedError(f"{type(self).__name__} has no generate_parameters")

    def generate_multiple_parameters(self, parameter_id_list: list[int], **kwargs: Any) -> list[Any]:
        """Returns the parameters of several trials, or fewer if there are no more."""
        proposals = []
        for parameter_id in parameter_id_list:
            try:
                proposals.append(self.generate_parameters(parameter_id, **kwargs))
            except NoMoreTrialError:
                break
        return proposals

    def receive_trial_result(self, parameter_id: int, parameters: Any, value: Any, **kwargs: Any) -> None:
        """Receives the final result of a trial: a number, or a mapping with the number ``default``."""
        raise NotImplementedError(f"{type(self).__name__} has no receive_trial_result")

    def trial_end(self, parameter_id: int, success: bool, **kwargs: Any) -> None:
        """Called when a trial has ended, after its result if there is one."""

    def update_search_space(self, search_space: Any) -> None:
        """Receives the search space, at the start and after each change."""
        raise NotImplementedError(f"{type(self).__name__} has no update_search_space")

    def import_data(self, data: list[Any]) -> None:
        """Receives results from elsewhere or from before a restart: ``[{"parameter": …, "value": …}, …]``."""

    def _accept_customized_trials(self, accept: bool = True) -> None:
        self._accept_customized = accept

    def _on_exit(self) -> None:
        """Called when the search is over."""

    def _on_error(self) -> None:
        """Called when the tuner or the assessor has raised an exception."""
