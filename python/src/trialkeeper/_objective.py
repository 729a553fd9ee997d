"""The trial of :func:`trialkeeper.search`: calls the pickled function with the trial's parameters.

A copy of this file is in the trial's code folder, beside the function and, on other machines, this package.
"""

from __future__ import annotations

import json
import os
import pickle
import sys
from pathlib import Path


def main() -> None:
    """Runs the function in ``objective.pickle``."""
    folder = Path(__file__).parent
    origin = folder / "origin.json"
    if origin.is_file():
        saved = json.loads(origin.read_text(encoding="utf-8"))
        sys.path += [entry for entry in saved["path"] if entry not in sys.path]
        if os.path.isdir(saved["directory"]):
            os.chdir(saved["directory"])
    from trialkeeper import trial

    objective = pickle.loads((folder / "objective.pickle").read_bytes())
    result = objective(trial.params())
    if result is not None:
        trial.final(result)


if __name__ == "__main__":
    main()
