"""The data classes that an experiment's queries return."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any, Optional

__all__ = ["TrialHyperParameters", "TrialJob", "TrialMetricData", "TrialResult"]


@dataclass
class TrialResult:
    """The final result of a trial."""

    parameter: dict[str, Any]
    #: A number, or an object as the trial reported it.
    value: Any
    trialJobId: str  # noqa: N815

    @classmethod
    def _read(cls, row: dict[str, Any]) -> TrialResult:
        return cls(row["parameter"], json.loads(row["value"]), row["trialJobId"])


@dataclass
class TrialMetricData:
    """A result that a trial reported."""

    #: The time of the report, in milliseconds since 1970.
    timestamp: int
    trialJobId: str  # noqa: N815
    parameterId: Any  # noqa: N815
    #: ``PERIODICAL`` or ``FINAL``.
    type: str
    #: The position among the trial's intermediate results, from 0.
    sequence: int
    #: A number, or an object as the trial reported it.
    data: Any

    @classmethod
    def _read(cls, row: dict[str, Any]) -> TrialMetricData:
        # As in NNI, the value is encoded twice.
        return cls(**{**row, "data": json.loads(json.loads(row["data"]))})


@dataclass
class TrialHyperParameters:
    """The parameters of a trial."""

    parameter_id: Any
    #: ``algorithm``, ``customized`` or ``resumed``.
    parameter_source: str
    parameters: dict[str, Any]
    parameter_index: int = 0
    placement_constraint: Optional[dict[str, Any]] = None
    version_info: Optional[dict[str, Any]] = None


@dataclass
class TrialJob:
    """A trial, as it was at the time of the query."""

    trialJobId: str  # noqa: N815
    status: str
    hyperParameters: list[TrialHyperParameters] = field(default_factory=list)  # noqa: N815
    logPath: str = ""  # noqa: N815
    #: In milliseconds since 1970; ``None`` if the trial has not started.
    startTime: Optional[int] = None  # noqa: N815
    #: In milliseconds since 1970; -1 if the trial has not ended.
    endTime: int = -1  # noqa: N815
    finalMetricData: list[TrialMetricData] = field(default_factory=list)  # noqa: N815
    stderrPath: str = ""  # noqa: N815
    #: The number of the trial, from 0.
    sequenceId: int = 0  # noqa: N815
    message: str = "--"

    @classmethod
    def _read(cls, row: dict[str, Any]) -> TrialJob:
        known = {name: row[name] for name in cls.__dataclass_fields__ if row.get(name) is not None}
        known["hyperParameters"] = [TrialHyperParameters(**json.loads(text)) for text in row["hyperParameters"]]
        known["finalMetricData"] = [TrialMetricData._read(metric) for metric in row.get("finalMetricData", [])]
        return cls(**known)
