"""The types of search spaces, parameters and results, for annotations."""

from __future__ import annotations

from typing import Any, Literal, Optional, TypedDict

__all__ = ["ParameterRecord", "Parameters", "SearchSpace", "TrialMetric", "TrialRecord"]

#: The parameters of a trial, as :func:`nni.get_next_parameter` returns them. A custom tuner may send other values.
Parameters = dict[str, Any]

#: A result. A custom tuner may accept other values that JSON can hold.
TrialMetric = float


class _Entry(TypedDict):
    """The description of a parameter."""

    _type: Literal[
        "choice",
        "randint",
        "uniform",
        "quniform",
        "loguniform",
        "qloguniform",
        "normal",
        "qnormal",
        "lognormal",
        "qlognormal",
    ]
    _value: list[Any]


#: A search space, as in ``experiment.config.search_space``.
SearchSpace = dict[str, _Entry]


class TrialRecord(TypedDict):
    """A result from elsewhere, as :meth:`nni.tuner.Tuner.import_data` receives it."""

    parameter: Parameters
    value: TrialMetric


class _ParameterRecord(TypedDict):
    parameter_id: Optional[int]
    parameters: Parameters


class ParameterRecord(_ParameterRecord, total=False):
    """The record of a trial's parameters, as in ``parameter.cfg``."""

    parameter_source: Literal["algorithm", "customized", "resumed"]
    parameter_index: int
    trial_job_id: str
    version_info: dict[str, Any]
