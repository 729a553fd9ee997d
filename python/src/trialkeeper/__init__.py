"""Hyper-parameter search that keeps every result.

A training script becomes a trial with two lines::

    import trialkeeper as tk

    p = tk.params(lr=0.1)
    for epoch in range(10):
        tk.report(step=epoch, loss=train_one_epoch(p["lr"]))

Any other script can run the search::

    experiment = tk.Experiment("experiment.yml").run()
    print(experiment.best.parameters)

The programs ``trial-manager`` and ``trialkeeper`` come with this package.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

if sys.version_info < (3, 9):  # noqa: UP036
    version = ".".join(map(str, sys.version_info[:2]))
    raise ImportError(f"trialkeeper needs Python 3.9 or newer, and this is Python {version}")

from trialkeeper.trial import final, output_dir, params, report, should_stop, trial_id

if TYPE_CHECKING:
    from trialkeeper._search import search
    from trialkeeper.errors import (
        ConfigurationError,
        ExperimentFailed,
        ExperimentInterrupted,
        ManagerError,
        NoSuggestion,
    )
    from trialkeeper.experiment import Experiment, connect
    from trialkeeper.results import Metric, Trial
    from trialkeeper.study import Study, StudyTrial, Suggestion

    __version__: str

__all__ = [
    "ConfigurationError",
    "Experiment",
    "ExperimentFailed",
    "ExperimentInterrupted",
    "ManagerError",
    "Metric",
    "NoSuggestion",
    "Study",
    "StudyTrial",
    "Suggestion",
    "Trial",
    "connect",
    "final",
    "output_dir",
    "params",
    "report",
    "search",
    "should_stop",
    "trial_id",
]

#: The module of each name for searches. They are imported on first use, because trials need none of them.
_LAZY = {
    "ConfigurationError": "errors",
    "Experiment": "experiment",
    "ExperimentFailed": "errors",
    "ExperimentInterrupted": "errors",
    "ManagerError": "errors",
    "Metric": "results",
    "NoSuggestion": "errors",
    "Study": "study",
    "StudyTrial": "study",
    "Suggestion": "study",
    "Trial": "results",
    "connect": "experiment",
    "search": "_search",
}


#: The counterparts of other tools' names, for the errors of unknown names.
_FOREIGN = {
    "create_study": "tk.Study(space, direction=…), or tk.search(objective, space)",
    "fmin": "tk.search(objective, space)",
    "maximize": "tk.search(objective, space, direction='maximize')",
    "minimize": "tk.search(objective, space)",
    "optimize": "tk.search(objective, space)",
    "tune": "tk.search(objective, space)",
    "Tuner": "tk.Experiment(…).run(), or tk.search(objective, space)",
    "get_next_parameter": "tk.params()",
    "log": "tk.report(step=…, loss=…)",
    "report_final_result": "tk.final(…)",
    "report_intermediate_result": "tk.report(…)",
}


def __getattr__(name: str) -> object:
    if name == "__version__":
        from importlib.metadata import PackageNotFoundError, version

        try:
            return version("trialkeeper")
        except PackageNotFoundError:  # Run from a source tree.
            return "0+unknown"
    if name not in _LAZY:
        meant = f"; here it is {_FOREIGN[name]}" if name in _FOREIGN else ""
        raise AttributeError(f"module 'trialkeeper' has no attribute {name!r}{meant}")
    from importlib import import_module

    value: object = getattr(import_module(f"trialkeeper.{_LAZY[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *_LAZY])
