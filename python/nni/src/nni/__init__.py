"""NNI's modules for hyper-parameter search, on top of TrialKeeper. This is not Microsoft's package ``nni``.

It contains the trial SDK, ``nni.experiment``, the base classes and helpers of tuners and assessors, and the
serializer. It needs Python 3.9 or newer and has no dependencies. It has no neural architecture search, model
compression or feature engineering.
"""

from __future__ import annotations

import os
import sys
from importlib import import_module
from typing import TYPE_CHECKING

import _trialkeeper_nni_guard as _guard

if TYPE_CHECKING:
    from nni.common.serializer import dump, load, trace
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
    is_in_trial,
    report_final_result,
    report_intermediate_result,
)
from nni.utils import ClassArgsValidator  # noqa: E402

__all__ = [
    "ClassArgsValidator",
    "Experiment",
    "NoMoreTrialError",
    "dump",
    "enable_global_logging",
    "get_current_parameter",
    "get_experiment_id",
    "get_next_parameter",
    "get_next_parameters",
    "get_sequence_id",
    "get_trial_id",
    "load",
    "report_final_result",
    "report_intermediate_result",
    "silence_stdout",
    "trace",
]

# By default, Python shows only warnings, and NNI's trials log more.
if is_in_trial() and os.environ.get("SDK_PROCESS") != "dispatcher":
    enable_global_logging()

#: The modules that scripts can use after `import nni`. They are imported on first use, because trials need none.
_LAZY = frozenset(
    ["assessor", "common", "experiment", "parameter_expressions", "recoverable", "runtime", "tuner", "typehint"]
)
#: The module of each other name that is imported on first use.
_LAZY_NAMES = {
    "Experiment": "experiment",
    "dispatcher_env_vars": "runtime.env_vars",
    "dump": "common.serializer",
    "load": "common.serializer",
    "trace": "common.serializer",
}


def __getattr__(name: str) -> object:
    if name.startswith("__"):
        raise AttributeError(f"module 'nni' has no attribute {name!r}")
    if name in _LAZY:
        return import_module(f"nni.{name}")
    if name in _LAZY_NAMES:
        return getattr(import_module(f"nni.{_LAZY_NAMES[name]}"), name)
    raise AttributeError(_missing(f"nni.{name}"))


#: The alternatives to parts of Microsoft's package, by the beginning of the name.
_ADVICE = {
    "nni.algorithms": "its tuners and assessors are built into trial-manager, such as config.tuner.name = 'TPE'",
    "nni.runtime.msg_dispatcher": "an advisor derives from nni.runtime.msg_dispatcher_base.MsgDispatcherBase",
    "nni.experiment.": "nni.experiment has NNI's documented classes and none of its internal modules",
    "nni.tools": "the command is `nnictl`, or `python -m nni.nnictl`",
}


def _missing(name: str) -> str:
    advice = next((advice for start, advice in _ADVICE.items() if name.startswith(start)), None)
    return f"trialkeeper-nni has no {name}: " + (
        f"{advice}. Microsoft's nni has it"
        if advice is not None
        else "it provides NNI's trial SDK, nni.experiment, tuners and assessors, and nothing of its architecture "
        "search, compression or feature engineering. Microsoft's nni has those"
    )


class _MissingModules:
    """Explains why a module of Microsoft's package cannot be imported. It comes after all other finders."""

    @staticmethod
    def find_spec(name: str, path: object = None, target: object = None) -> None:
        if name.startswith("nni."):
            raise ModuleNotFoundError(_missing(name), name=name)


sys.meta_path.append(_MissingModules)


def __dir__() -> list[str]:
    return sorted({*globals(), *_LAZY, *_LAZY_NAMES})
