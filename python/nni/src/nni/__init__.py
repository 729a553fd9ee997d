"""NNI's modules for hyper-parameter search, on top of TrialKeeper. This is not Microsoft's package ``nni``.

It contains the trial SDK, ``nni.experiment`` and the base classes of tuners and assessors. It needs Python 3.9 or
newer and has no dependencies. It has no neural architecture search, model compression or feature engineering.
"""

from __future__ import annotations

import sys
from importlib import import_module
from typing import TYPE_CHECKING

import _trialkeeper_nni_guard as _guard

if TYPE_CHECKING:
    from nni.experiment import Experiment

_version = _guard.installed("trialkeeper_nni")[0] or "0"
# The start-up file does not run if this package comes from PYTHONPATH.
_guard.check(_version)

#: The version of NNI whose interface this package provides, and the version of this package.
__version__ = f"3.0+trialkeeper.{_version}"


class NoMoreTrialError(Exception):
    """A tuner has nothing more to propose."""

    def __init__(self, ErrorInfo: str = "Search space fully explored") -> None:  # noqa: N803
        super().__init__(ErrorInfo)
        self.errorinfo = ErrorInfo


from nni._stdout import enable_global_logging, silence_stdout  # noqa: E402
from nni.trial import (  # noqa: E402
    get_current_parameter,
    get_experiment_id,
    get_next_parameter,
    get_next_parameters,
    get_sequence_id,
    get_trial_id,
    report_final_result,
    report_intermediate_result,
)
from nni.utils import ClassArgsValidator  # noqa: E402

__all__ = [
    "ClassArgsValidator",
    "Experiment",
    "NoMoreTrialError",
    "enable_global_logging",
    "get_current_parameter",
    "get_experiment_id",
    "get_next_parameter",
    "get_next_parameters",
    "get_sequence_id",
    "get_trial_id",
    "report_final_result",
    "report_intermediate_result",
    "silence_stdout",
]

#: The modules that scripts can use after `import nni`. They are imported on first use, because trials need none.
_LAZY = frozenset(["assessor", "experiment", "parameter_expressions", "tuner"])


def __getattr__(name: str) -> object:
    if name.startswith("__"):
        raise AttributeError(f"module 'nni' has no attribute {name!r}")
    if name in _LAZY:
        return import_module(f"nni.{name}")
    if name == "Experiment":
        return import_module("nni.experiment").Experiment
    raise AttributeError(_missing(f"nni.{name}"))


def _missing(name: str) -> str:
    return (
        f"trialkeeper-nni has no {name}: it provides NNI's trial SDK, nni.experiment, tuners and assessors, "
        "and nothing of its architecture search, compression or feature engineering. Microsoft's nni has those"
    )


class _MissingModules:
    """Explains why a module of Microsoft's package cannot be imported. It comes after all other finders."""

    @staticmethod
    def find_spec(name: str, path: object = None, target: object = None) -> None:
        if name.startswith("nni."):
            raise ModuleNotFoundError(_missing(name), name=name)


sys.meta_path.append(_MissingModules)


def __dir__() -> list[str]:
    return sorted({*globals(), *_LAZY, "Experiment"})
