"""Refuses ``import nni`` where Microsoft's ``nni`` and ``trialkeeper-nni`` are both installed.

They write the same files, and pip does not notice. Whichever came first has lost some of its files to the other,
so neither works as it should. A start-up file has this asked at the import, whichever of the two came last.
"""

import os
import sys

__all__ = ["check", "installed"]


def installed(name: str) -> "tuple[str, str]":
    """Returns version and folder of an installed distribution, empty if there is none.

    By the folders' names: ``importlib.metadata`` would double the time that a trial takes to import ``nni``.
    """
    for folder in sys.path:
        try:
            entries = os.listdir(folder or ".")
        except OSError:
            continue
        for entry in entries:
            if entry.startswith(f"{name}-") and entry.endswith(".dist-info"):
                return entry[len(name) + 1 : -len(".dist-info")], folder
    return "", ""


def check(version: str = "") -> None:
    """Raises ``ImportError`` if both distributions are installed. ``version``: of ours, where it is imported."""
    original, folder = installed("nni")
    ours = version or installed("trialkeeper_nni")[0]
    if not original or not ours:
        return
    try:
        with open(os.path.join(folder, "nni", "__init__.py"), encoding="utf-8") as file:
            last = "trialkeeper-nni" if "TrialKeeper" in file.read() else "Microsoft's nni"
    except OSError:
        last = "neither"
    raise ImportError(
        f"nni {original} and trialkeeper-nni {ours} are both installed, and they write the same files; those of "
        f"{last} are there. Remove both and install the one that you want: pip uninstall nni trialkeeper-nni, "
        "then pip install trialkeeper-nni (NNI's interface on top of TrialKeeper) or pip install nni (Microsoft's)"
    )
