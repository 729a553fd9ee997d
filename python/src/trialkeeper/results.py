"""The results of a search: trials and their metrics."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any, ClassVar, Optional

from trialkeeper._foreign import ForeignNames

if TYPE_CHECKING:
    from trialkeeper.experiment import Experiment

__all__ = ["ENDED_STATES", "Metric", "Trial", "decode_value"]

#: The states of ended trials. A trial leaves them only if it is retried.
ENDED_STATES = frozenset(["SUCCEEDED", "FAILED", "USER_CANCELED", "SYS_CANCELED", "EARLY_STOPPED"])


@dataclass(frozen=True)
class Metric:
    """A value that a trial reported."""

    #: The metric's name; ``default`` for a metric without a name.
    name: str
    #: ``intermediate`` or ``final``.
    type: str
    #: The position on the curve, from 0.
    step: Optional[int]
    #: A number, or the object that NNI's SDK reported.
    value: Any
    #: The time at which the agent saw it.
    observed_at: datetime

    @classmethod
    def _read(cls, row: Mapping[str, Any]) -> Metric:
        return cls(
            name=row["name"],
            type=row["type"],
            step=row["step"],
            value=decode_value(row["value"]),
            observed_at=_when(row["observed_at_ms"]) or datetime.fromtimestamp(0, timezone.utc),
        )


@dataclass(frozen=True)
class Trial(ForeignNames):
    """An evaluation of a set of parameters, as it was at the time of the query."""

    _FOREIGN: ClassVar = {
        "params": "`parameters`",
        "config": "`parameters`",
        "result": "`value`, or `final` with all numbers",
        "status": "`state`",
    }

    id: str
    #: The number of the trial in its experiment, from 0.
    number: int
    state: str
    parameters: Mapping[str, Any]
    #: The reported final result; ``None`` if there is none.
    final: Any
    #: The cause of the trial's end, such as ``exit`` or ``oom-cuda``; ``None`` while it runs.
    cause: Optional[str]
    exit_code: Optional[int]
    started_at: Optional[datetime]
    ended_at: Optional[datetime]
    _experiment: Experiment = field(repr=False, compare=False)

    @property
    def value(self) -> Optional[float]:
        """The final result as a number, or an object's member ``default``; ``None`` if there is no number."""
        result = self.final.get("default") if isinstance(self.final, Mapping) else self.final
        number = _number(result)
        return float(number) if isinstance(number, (int, float)) else None

    @property
    def duration_s(self) -> Optional[float]:
        """The duration of the trial in seconds; ``None`` if it has not ended."""
        if self.started_at is None or self.ended_at is None:
            return None
        return (self.ended_at - self.started_at).total_seconds()

    def metrics(self) -> list[Metric]:
        """Returns all reports of the trial's latest attempt, oldest first."""
        return [Metric._read(row) for row in self._experiment._metrics(self.id)]

    def why(self) -> dict[str, Any]:
        """Returns the verdict, its evidence and the timeline in the form of the REST API."""
        answer: dict[str, Any] = self._experiment._ask(f"/trials/{self.id}", "trial", "why", self.id)
        return answer

    def output(self, *, stderr: bool = False) -> str:
        """Returns the output of the trial."""
        stream = "stderr" if stderr else "stdout"
        words = ["trial", "logs", self.id, *(["--stderr"] if stderr else [])]
        return self._experiment._read(f"/trials/{self.id}/log/{stream}", *words).decode(errors="replace")

    def stop(self) -> None:
        """Stops the trial."""
        self._experiment._run(["trial", "stop", self.id])

    kill = stop  # The former name.

    def rerun(self) -> None:
        """Reruns the ended trial, as a new attempt."""
        self._experiment._run(["trial", "rerun", self.id])

    retry = rerun  # The former name.

    @classmethod
    def _of(cls, row: Mapping[str, Any], experiment: Experiment) -> Trial:
        return cls(
            id=row["id"],
            number=row["sequence"],
            state=row["state"],
            parameters=row["parameters"],
            final=decode_value(row["final"]),
            cause=row.get("cause"),
            exit_code=row.get("exit_code"),
            started_at=_when(row.get("started_at_ms")),
            ended_at=_when(row.get("ended_at_ms")),
            _experiment=experiment,
        )


def _number(value: Any) -> Any:
    """Decodes a number of the REST API, which writes NaN and infinities as text."""
    return (
        {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}.get(value, value)
        if isinstance(value, str)
        else value
    )


def decode_value(value: Any) -> Any:
    """Decodes a reported value. A line that only wraps one number, as of ``tk.final(1)``, is that number."""
    if isinstance(value, Mapping) and "default" in value and set(value) <= {"type", "step", "default"}:
        return _number(value["default"])
    return _number(value)


def _when(at_ms: Optional[int]) -> Optional[datetime]:
    return None if at_ms is None else datetime.fromtimestamp(at_ms / 1000, timezone.utc)
