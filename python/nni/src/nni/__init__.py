"""NNI's modules for hyper-parameter search, on top of TrialKeeper. This is not Microsoft's package ``nni``.

It has the trial's SDK, ``nni.experiment`` and the base classes of tuners and assessors, for Python 3.9 and newer
and without dependencies. It has no neural architecture search, no model compression and no feature engineering.
"""

from __future__ import annotations

import os as _os
import sys as _sys


def _installed(name: str) -> str:
    """Returns the installed version of a distribution, empty if there is none.

    By the folders' names: ``importlib.metadata`` would double the time that a trial takes to import this module.
    """
    for folder in _sys.path:
        try:
            entries = _os.listdir(folder or ".")
        except OSError:
            continue
        for entry in entries:
            if entry.startswith(f"{name}-") and entry.endswith(".dist-info"):
                return entry[len(name) + 1 : -len(".dist-info")]
    return ""


_version = _installed("trialkeeper_nni") or "0"
_original = _installed("nni")
if _original:
    raise ImportError(
        f"nni {_original} and trialkeeper-nni {_version} are both installed, and they write the same files. "
        "Remove both and install the one that you want: pip uninstall nni trialkeeper-nni, then "
        "pip install trialkeeper-nni (NNI's interface on top of TrialKeeper) or pip install nni (Microsoft's)"
    )

#: NNI's version whose interface this is, and the version of the package that provides it.
__version__ = f"3.0+trialkeeper.{_version}"


class NoMoreTrialError(Exception):
    """A tuner has nothing more to propose."""

    def __init__(self, ErrorInfo: str = "Search space fully explored") -> None:  # noqa: N803
        super().__init__(ErrorInfo)
        self.errorinfo = ErrorInfo


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
    "NoMoreTrialError",
    "get_current_parameter",
    "get_experiment_id",
    "get_next_parameter",
    "get_next_parameters",
    "get_sequence_id",
    "get_trial_id",
    "report_final_result",
    "report_intermediate_result",
]


def __getattr__(name: str) -> object:
    if name.startswith("__"):
        raise AttributeError(f"module 'nni' has no attribute {name!r}")
    raise AttributeError(
        f"trialkeeper-nni has no nni.{name}: it provides NNI's trial SDK, nni.experiment, tuners and assessors, "
        "and nothing of its architecture search, compression or feature engineering. Microsoft's nni has those"
    )
