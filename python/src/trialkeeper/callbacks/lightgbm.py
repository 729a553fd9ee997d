"""Reports the evaluations of each boosting round of LightGBM."""

from __future__ import annotations

from typing import Any, Callable

from lightgbm.callback import EarlyStopException

from trialkeeper import trial

__all__ = ["report"]


def report() -> Callable[[Any], None]:
    """Returns a callback that reports each evaluation as ``DATA METRIC``, such as ``valid_0 l2``."""

    def callback(env: Any) -> None:
        results = env.evaluation_result_list or []
        trial.report({f"{row[0]} {row[1]}": row[2] for row in results}, step=env.iteration)
        if trial.should_stop():
            raise EarlyStopException(env.iteration, results)

    # After LightGBM's own callbacks that record and log, before early stopping.
    callback.order = 25  # type: ignore[attr-defined]
    return callback
