"""The progress of a search: a line for each trial at a terminal, a page that renews itself in a notebook."""

from __future__ import annotations

import importlib
import sys
from typing import TYPE_CHECKING, Any, Optional

if TYPE_CHECKING:
    from trialkeeper.experiment import Experiment
    from trialkeeper.results import Trial

__all__ = ["NotebookProgress", "Progress", "choose_progress"]


class Progress:
    """Lines on standard error; everything that it knows comes from the experiment's numbers."""

    def __init__(self, experiment: Experiment) -> None:
        shown = experiment.show()
        self._experiment = experiment
        self._is_maximized = shown["optimize_mode"] == "maximize"
        self._limit: Optional[int] = shown["max_trial_number"]
        self._ended = 0
        self._best: Optional[Trial] = None

    def begin(self) -> None:
        """Says which experiment runs where."""
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

    def end(self) -> None:
        """Shows how the search has ended."""

    def _is_better(self, value: float) -> bool:
        if value != value:  # NaN
            return False
        best = None if self._best is None else self._best.value
        return best is None or (value > best if self._is_maximized else value < best)

    def _print(self, line: str) -> None:
        # A closed standard error is no reason to end a search.
        try:
            print("".join(c if c.isprintable() else "�" for c in line), file=sys.stderr, flush=True)
        except (OSError, ValueError):
            pass


class NotebookProgress(Progress):
    """The experiment as a notebook shows it, renewed in its place."""

    def begin(self) -> None:
        """Shows the experiment."""
        display = importlib.import_module("IPython.display")
        self._handle: Any = display.display(self._experiment, display_id=True)

    def add(self, trial: Trial) -> None:
        """Renews the display."""
        self._handle.update(self._experiment)

    def end(self) -> None:
        """Renews the display a last time."""
        self._handle.update(self._experiment)


def choose_progress(experiment: Experiment, progress: Optional[bool]) -> Optional[Progress]:
    """Returns the progress to show: as asked, or by default at a terminal and in a notebook."""
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
    return type(shell).__name__ == "ZMQInteractiveShell"
