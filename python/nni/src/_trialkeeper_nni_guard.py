"""Rejects ``import nni`` if Microsoft's ``nni`` and ``trialkeeper-nni`` are both installed.

Both contain the same files, and pip does not notice. The package that was installed last has overwritten files of
the other one, so neither works correctly. A start-up file runs this check at the import, in either order.
"""

import os
import sys

__all__ = ["check", "installed"]


def installed(name: str) -> "tuple[str, str]":
    """Returns the version and the folder of an installed distribution; both are empty if there is none.

    Reads only the names of folders, because ``importlib.metadata`` would double the time of ``import nni``.
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
    """Raises ``ImportError`` if both distributions are installed. ``version``: that of ``trialkeeper-nni``."""
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
