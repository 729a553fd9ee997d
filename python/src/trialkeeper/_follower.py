"""Tracks which trials of a search have ended, and when the search is over. This module reads no stream itself."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Optional

from trialkeeper._rest import Event, NotRunning, ask
from trialkeeper.errors import ManagerError
from trialkeeper.results import ENDED_STATES, Trial

if TYPE_CHECKING:
    from trialkeeper._manager import ManagerProcess
    from trialkeeper.experiment import Experiment

__all__ = ["Follower"]

#: Seconds after which an experiment counts as over if it is stopped but its manager runs. A resumed experiment is
#: also stopped for a moment.
_HELD_S = 2.0
#: Seconds after which a search without a manager counts as abandoned.
_ABANDONED_S = 1.0
#: Seconds between two connections to a manager of another process that is about to exit.
_EXIT_PAUSE_S = 0.25


class Follower:
    """The known state of a search. It reports each end of a trial once."""

    def __init__(self, experiment: Experiment) -> None:
        self._experiment = experiment
        self._ends: set[tuple[str, str]] = set()
        self._state = ""
        self._state_since = time.monotonic()
        self._without_manager_since: Optional[float] = None
        self._looks = 0
        #: Whether the latest event was the last one of its manager.
        self._has_end = False
        #: The manager of this process whose events have ended.
        self._leaving: Optional[ManagerProcess] = None
        #: The position at which the stream of events continues.
        self.after = "0"

    def take(self, event: Optional[Event]) -> Optional[Trial]:
        """Processes an event. Returns a trial if the event is the first to report its end."""
        if event is None:
            return None
        self._looks = 0
        self.after = event.id or self.after
        self._has_end = event.name == "end"
        if self._has_end:
            self._leaving = self._experiment._manager
        elif event.name == "experiment":
            self._set_state(event.data["state"])
        elif event.name == "trial":
            trial = Trial._of(event.data, self._experiment)
            return trial if self.add(trial) else None
        return None

    def add(self, trial: Trial) -> bool:
        """Returns whether a trial has ended and its end was not reported before."""
        end = (trial.id, trial.state)
        if trial.state not in ENDED_STATES or end in self._ends:
            return False
        self._ends.add(end)
        return True

    def is_settled(self) -> bool:
        """Returns whether the search is over although its manager still runs."""
        manager = self._experiment._manager
        if manager is not None and not self._experiment._keeps_serving:
            return False  # This manager exits with its search.
        if self._state in ("DONE", "ERROR"):
            return True
        return self._state == "STOPPED" and time.monotonic() - self._state_since > _HELD_S

    def is_over(self) -> bool:
        """Returns whether the search is over. Queries the manager or the store if this process did not start one.

        :raises ManagerError: if the search continues only after a resume.
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

    def is_leaving(self) -> bool:
        """Returns whether this process's manager has sent its last event.

        A manager waits for its listeners before it exits, so another connection would delay the exit.
        """
        return self._leaving is not None and self._leaving is self._experiment._manager

    def pause_s(self) -> float:
        """Returns the delay before the next look at the manager. It starts short and grows."""
        self._looks += 1
        pause = min(0.02 * self._looks, 0.5)
        return max(pause, _EXIT_PAUSE_S) if self._has_end and not self.is_leaving() else pause

    def _is_over_without_manager(self) -> bool:
        shown = self._experiment.show()
        if shown["state"] in ("DONE", "STOPPED", "ERROR"):
            return True
        now = time.monotonic()
        self._without_manager_since = self._without_manager_since or now
        # A starting manager locks the database before it listens, which is not a problem of the store.
        if shown.get("trouble") and now - self._without_manager_since >= _ABANDONED_S:
            raise ManagerError(f"experiment {self._experiment.id}: {shown['trouble']}")
        return False

    def _set_state(self, state: str) -> None:
        if state != self._state:
            self._state, self._state_since = state, time.monotonic()
