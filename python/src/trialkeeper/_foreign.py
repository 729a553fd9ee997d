"""The words of other tools for the fields of an experiment file."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Optional

from trialkeeper.errors import ConfigurationError

__all__ = ["ForeignNames", "check_words", "counterpart"]

#: The field for each word. ``manager/src/config/foreign.rs`` has a similar list for experiment files.
_FIELD_ALIASES = {
    "max_trials": "max_trial_number",
    "n_trials": "max_trial_number",
    "num_samples": "max_trial_number",
    "max_trial_count": "max_trial_number",
    "run_cap": "max_trial_number",
    "concurrency": "trial_concurrency",
    "n_jobs": "trial_concurrency",
    "max_concurrent_trials": "trial_concurrency",
    "parallel_trial_count": "trial_concurrency",
    "max_failed_trial_count": "max_consecutive_failures",
    "timeout": "max_experiment_duration",
    "time_budget_s": "max_experiment_duration",
    "direction": "tuner.class_args.optimize_mode",
    "mode": "tuner.class_args.optimize_mode",
    "directions": "objectives",
    "metric": "objective",
    "param_space": "search_space",
    "parameters": "search_space",
    "sampler": "tuner",
    "search_alg": "tuner",
    "pruner": "assessor",
    "scheduler": "assessor",
    "early_stopping": "assessor",
    "early_terminate": "assessor",
    "command": "trial_command",
    "program": "trial_command",
    "run": "trial_command",
    "trainable": "trial_command",
    "name": "experiment_name",
    "study_name": "experiment_name",
}
_FIELDS = {word.replace("_", ""): field for word, field in _FIELD_ALIASES.items()}


def counterpart(word: str) -> Optional[str]:
    """Returns the field that another tool calls ``word``. Case and underscores do not matter.

    >>> counterpart("n_trials"), counterpart("maxTrialCount"), counterpart("max_trial_number")
    ('max_trial_number', 'max_trial_number', None)
    """
    return _FIELDS.get(word.lower().replace("_", ""))


def check_words(names: Iterable[str], keywords: Optional[Mapping[str, str]] = None) -> None:
    """Rejects words of other tools. The error lists all of them.

    :param keywords: the caller's keywords for some fields.
    :raises ConfigurationError: if there is such a word. The message names the field or the keyword for each.
    """
    found = [(name, field) for name in names if (field := counterpart(name)) is not None]
    if found:
        lines = (
            f"{name}: unknown field; here it is `{(keywords or {}).get(field, field)}`" for name, field in found
        )
        raise ConfigurationError("\n".join(lines))


class ForeignNames:
    """A class whose error for an unknown attribute names the counterpart of another tool's word."""

    #: The counterpart of each word.
    _FOREIGN: ClassVar[Mapping[str, str]] = {}

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            message = f"{type(self).__name__!r} object has no attribute {name!r}"
            if name.startswith("_"):
                raise AttributeError(message)
            meant = self._FOREIGN.get(name)
            if meant is None and name.startswith("suggest_"):
                meant = self._FOREIGN.get("suggest_")
            raise AttributeError(message if meant is None else f"{message}; here it is {meant}")
