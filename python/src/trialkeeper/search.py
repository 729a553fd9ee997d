"""A search whose objective is a Python function."""

from __future__ import annotations

import pickle
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Callable, Optional, Union

from trialkeeper.experiment import Experiment

__all__ = ["Objective", "search"]

#: Takes the parameters; returns the result, or ``None`` after it has called :func:`trialkeeper.final` itself.
Objective = Callable[[dict[str, Any]], Union[float, Mapping[str, float], None]]


def search(
    objective: Objective,
    space: Mapping[str, Any],
    *,
    max_trials: int = 20,
    concurrency: int = 1,
    direction: str = "minimize",
    tuner: str = "TPE",
    seed: Optional[int] = None,
    **fields: Any,
) -> Experiment:
    """Runs ``objective`` with up to ``max_trials`` points of ``space`` and returns the finished experiment.

    Each call is a process of its own under the agent, so its death is explained and takes nothing else with it.
    The function is pickled: with cloudpickle where that is installed, which takes closures, lambdas and what a
    notebook defines; else by its module and name.

    :param direction: ``minimize`` or ``maximize``.
    :param fields: more fields of the experiment file, and ``data_dir``.
    :raises TypeError: if the function cannot be pickled; names what cannot.
    :raises ExperimentFailed: if no trial succeeded with a result.
    """
    class_args: dict[str, Any] = {"optimize_mode": direction}
    if seed is not None:
        class_args["seed"] = seed
    with tempfile.TemporaryDirectory(prefix="trialkeeper-") as folder:
        file = Path(folder) / "objective.pickle"
        file.write_bytes(dump(objective))
        experiment = Experiment(
            {
                "trialCommand": f"{_quote(sys.executable)} -m trialkeeper._objective {_quote(str(file))}",
                "searchSpace": dict(space),
                "maxTrialNumber": max_trials,
                "trialConcurrency": concurrency,
                "tuner": {"name": tuner, "classArgs": class_args},
            },
            **fields,
        )
        return experiment.run()


def dump(objective: Objective) -> bytes:
    """Returns the pickled function, preceded by where this process looks for modules."""
    try:
        import cloudpickle as pickler
    except ImportError:
        pickler = pickle
        if getattr(objective, "__module__", None) == "__main__":
            raise TypeError(
                f"{objective!r} is defined in the script itself, which its trials cannot import: "
                "pip install 'trialkeeper[function]' (cloudpickle), or move it into a module"
            ) from None
    try:
        return pickle.dumps(sys.path) + bytes(pickler.dumps(objective))
    except Exception as error:
        raise TypeError(f"{objective!r} cannot be sent to its trials: {error}") from error


def _quote(text: str) -> str:
    import shlex

    return shlex.quote(text)
