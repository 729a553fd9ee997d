"""Reports cross-validations of scikit-learn."""

from __future__ import annotations

from typing import Any

import numpy
from sklearn.model_selection import cross_validate as _cross_validate

from trialkeeper import trial

__all__ = ["cross_validate"]


def cross_validate(estimator: Any, X: Any, y: Any = None, **kwargs: Any) -> dict[str, Any]:  # noqa: N803
    """Runs scikit-learn's ``cross_validate``. Reports each fold's scores, and their means as the final result.

    The metric is named ``score``, or like the scorers of ``scoring=``.
    """
    result: dict[str, Any] = _cross_validate(estimator, X, y, **kwargs)
    scores = {name[5:]: values for name, values in result.items() if name.startswith("test_")}
    folds = zip(*scores.values())
    for fold, values in enumerate(folds):
        trial.report(dict(zip(scores, values)), step=fold)
    trial.final({name: numpy.mean(values) for name, values in scores.items()})
    return result
