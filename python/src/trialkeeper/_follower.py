"""Which trials of a search have ended, and when the search is over. It reads no stream itself."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Optional

from trialkeeper._rest import Event, NotRunning, ask
from trialkeeper.errors import ManagerError
from trialkeeper.results import ENDED_STATES, Trial

if TYPE_CHECKING:
    from trialkeeper.experiment import Experiment

__all__ = ["Follower"]

#: How long an experiment is stopped under a manager that lives before it counts as over, in seconds. One that is
#: resumed is stopped for a moment, too.
_HELD_S = 2.0
#: How long a search may be without a manager before it counts as abandoned, in seconds.
_ABANDONED_S = 1.0


class Follower:
    """Keeps what was told of a search, so that each end of a trial is told once."""

    def __init__(self, experiment: Experiment) -> None:
        self._experiment = experiment
        self._ends: set[tuple[str, str]] = set()
        self._state = ""
        self._state_since = time.monotonic()
        self._without_manager_since: Optional[float] = None
        self._looks = 0
        #: Where a stream of events is to go on.
        self.after = "0"

    def take(self, event: Optional[Event]) -> Optional[Trial]:
        """Takes an event of the stream in; returns the trial whose end it tells for the first time, if any."""
        if event is None:
            return None
        self._looks = 0
        self.after = event.id or self.after
        if event.name == "experiment":
            self._set_state(event.data["state"])
        elif event.name == "trial":
            trial = Trial._of(event.data, self._experiment)
            return trial if self.add(trial) else None
        return None

    def add(self, trial: Trial) -> bool:
        """Returns whether a trial has ended and its end was not told before."""
        end = (trial.id, trial.state)
        if trial.state not in ENDED_STATES or end in self._ends:
            return False
        self._ends.add(end)
        return True

    def is_settled(self) -> bool:
        """Returns whether the search is over although its manager stays."""
        manager = self._experiment._manager
        if manager is not None and not self._experiment._keeps_serving:
            return False  # This manager ends with its search.
        if self._state in ("DONE", "ERROR"):
            return True
        return self._state == "STOPPED" and time.monotonic() - self._state_since > _HELD_S

    def is_over(self) -> bool:
        """Returns whether the search is over; asks the manager or the store where this process has no manager.

        :raises ManagerError: if the search goes on only once it is resumed.
        """
        manager = self._experiment._manager
        if manager is not None:
            return not manager.is_running or self.is_settled()
        try:
            self._set_state(ask(self._experiment.folder, "GET", "/api/v1/experiment")["state"])
            self._without_manager_since = None
            return self.is_settled()
        except NotRunning:
            return self._is_over_without_manager()

    def pause_s(self) -> float:
        """Returns the time until the next try to reach the manager: a manager that starts listens soon."""
        self._looks += 1
        return min(0.02 * self._looks, 0.5)

    def _is_over_without_manager(self) -> bool:
        shown = self._experiment.show()
        if shown["state"] in ("DONE", "STOPPED", "ERROR"):
            return True
        now = time.monotonic()
        self._without_manager_since = self._without_manager_since or now
        # A manager that is just starting holds the database before it listens, and the store has no trouble then.
        if shown.get("trouble") and now - self._without_manager_since >= _ABANDONED_S:
            raise ManagerError(f"experiment {self._experiment.id}: {shown['trouble']}")
        return False

    def _set_state(self, state: str) -> None:
        if state != self._state:
            self._state, self._state_since = state, time.monotonic()
