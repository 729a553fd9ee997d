"""The progress of a search: a line for each trial in a terminal, and a refreshing display in a notebook."""

from __future__ import annotations

import importlib
import math
import sys
import time
from typing import TYPE_CHECKING, Any, Optional

if TYPE_CHECKING:
    from trialkeeper.experiment import Experiment
    from trialkeeper.results import Trial

__all__ = ["NotebookProgress", "Progress", "choose_progress"]

#: The minimum time between two updates of a notebook's display, in seconds.
_RENEWAL_S = 1.0
#: Seconds for which a display keeps its login link. A manager accepts only a few such links at a time.
_LOGIN_S = 60.0


class Progress:
    """Prints lines to standard error, based only on the experiment's numbers."""

    def __init__(self, experiment: Experiment) -> None:
        shown = experiment.show()
        self._experiment = experiment
        self._is_maximized = shown["optimize_mode"] == "maximize"
        self._limit: Optional[int] = shown["max_trial_number"]
        self._ended = 0
        self._best: Optional[Trial] = None

    def begin(self) -> None:
        """Prints the experiment's id and address."""
        self._print(f"experiment {self._experiment.id} on {self._experiment.url or 'no port'}")

    def add(self, trial: Trial) -> None:
        """Shows a trial that has ended."""
        self._ended += 1
        if trial.state == "SUCCEEDED" and trial.value is not None and self._is_better(trial.value):
            self._best = trial
        limit = "" if self._limit is None else f"/{self._limit}"
        result = trial.value if trial.value is not None else trial.cause or "no result"
        best = "" if self._best is None else f", best {self._best.value:g} (trial {self._best.number})"
        shown = f"{result:g}" if isinstance(result, float) else str(result)
        self._print(
            f"[{self._ended}{limit}] trial {trial.number} {trial.state} {shown}{best} {dict(trial.parameters)}"
        )

    def tick(self) -> None:
        """Shows other changes. Called about every half second."""

    def end(self) -> None:
        """Shows the final state of the search, or its state when the caller stops waiting."""

    def _is_better(self, value: float) -> bool:
        if value != value:  # NaN
            return False
        best = None if self._best is None else self._best.value
        return best is None or (value > best if self._is_maximized else value < best)

    def _print(self, line: str) -> None:
        # A closed standard error must not end a search.
        try:
            print("".join(c if c.isprintable() else "�" for c in line), file=sys.stderr, flush=True)
        except (OSError, ValueError):
            pass


class NotebookProgress(Progress):
    """The experiment as a notebook displays it, updated in place."""

    def begin(self) -> None:
        """Shows the experiment."""
        self._login: Optional[str] = None
        self._login_at = -math.inf
        display = importlib.import_module("IPython.display")
        self._handle: Any = display.display(self, display_id=True)
        self._renewed_at = time.monotonic()

    def add(self, trial: Trial) -> None:
        """Leaves the trial to the next update, because many trials may end within a second."""
        self.tick()

    def tick(self) -> None:
        """Updates the display at most once a second."""
        if time.monotonic() - self._renewed_at >= _RENEWAL_S:
            self.end()

    def end(self) -> None:
        """Updates the display."""
        self._handle.update(self)
        self._renewed_at = time.monotonic()

    def _repr_html_(self) -> str:
        if time.monotonic() - self._login_at >= _LOGIN_S:
            self._login, self._login_at = self._experiment.login_url(), time.monotonic()
        return self._experiment._html(self._login)

    def __repr__(self) -> str:
        return repr(self._experiment)


def choose_progress(experiment: Experiment, progress: Optional[bool]) -> Optional[Progress]:
    """Returns the progress to show. By default, it is shown in a terminal and in a notebook."""
    if progress is False:
        return None
    if _is_notebook():
        return NotebookProgress(experiment)
    if progress or sys.stderr.isatty():
        return Progress(experiment)
    return None


def _is_notebook() -> bool:
    ipython = sys.modules.get("IPython")
    shell = getattr(ipython, "get_ipython", lambda: None)()
    # The shells of other notebooks, such as Colab's, derive from Jupyter's.
    return any(kind.__name__ == "ZMQInteractiveShell" for kind in type(shell).__mro__)
