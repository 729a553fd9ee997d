"""Reports the evaluations of each boosting round of XGBoost."""

from __future__ import annotations

from typing import Any

import xgboost

from trialkeeper import trial

__all__ = ["Report"]


class Report(xgboost.callback.TrainingCallback):  # type: ignore[misc]
    """Reports each evaluation as ``DATA-METRIC``, as XGBoost prints it: ``validation_0-logloss``."""

    def before_training(self, model: Any) -> Any:
        trial.should_stop()
        return model

    def after_iteration(self, model: Any, epoch: int, evals_log: dict[str, dict[str, Any]]) -> bool:
        metrics = {}
        for data, names in evals_log.items():
            for name, values in names.items():
                # Cross-validation returns pairs of mean and deviation.
                last = values[-1]
                metrics[f"{data}-{name}"] = last[0] if isinstance(last, tuple) else last
        trial.report(metrics, step=epoch)
        return trial.should_stop()
