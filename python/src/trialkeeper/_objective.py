"""The trial of :func:`trialkeeper.search`: calls the pickled function with the trial's parameters."""

from __future__ import annotations

import pickle
import sys

from trialkeeper import trial


def main() -> None:
    """Runs the function in the file that the command line names."""
    with open(sys.argv[1], "rb") as file:
        for folder in pickle.load(file):
            if folder not in sys.path:
                sys.path.append(folder)
        objective = pickle.load(file)
    result = objective(trial.params())
    if result is not None:
        trial.final(result)


if __name__ == "__main__":
    main()
