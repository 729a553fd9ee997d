"""The trial of :func:`trialkeeper.search`, which calls the function with the trial's parameters.

A copy of this file is in the trial's code folder, beside the function and, on other machines, this package.
``objective.json`` names the Python version that pickled the function, or its place in the copy of its script.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import json
import os
import pickle
import sys
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any


def main() -> None:
    """Runs the function."""
    folder = Path(__file__).parent
    origin = folder / "origin.json"
    if origin.is_file():
        saved = json.loads(origin.read_text(encoding="utf-8"))
        # The order of the searching process: its modules may have the names of others.
        sys.path[:] = [*saved["path"], *(entry for entry in sys.path if entry not in saved["path"])]
        if os.path.isdir(saved["directory"]):
            os.chdir(saved["directory"])
    from trialkeeper import trial

    how = json.loads((folder / "objective.json").read_text(encoding="utf-8"))
    objective = _from_script(folder, how) if "script" in how else _from_pickle(folder, how)
    result = objective(trial.params())
    if result is not None:
        _check(result)
        trial.final(result)
    elif not trial.has_reported():
        # Not an error, because the function may have printed the result.
        print("the objective returned None: return a number, or call tk.final()", file=sys.stderr)


def _check(result: Any) -> None:
    """Raises if the result contains no number, so that the trial fails for this reason."""
    for value in result.values() if isinstance(result, Mapping) else [result]:
        with contextlib.suppress(Exception):  # The conversion runs code of the value.
            float(value)
            return
    raise TypeError(
        f"the objective returned {result!r:.80}, of the type {type(result).__name__}: return a number, or a dict "
        "of numbers by their names"
    )


def _from_pickle(folder: Path, how: dict[str, Any]) -> Any:
    here = f"{sys.version_info.major}.{sys.version_info.minor}"
    if how.get("python", here) != here:
        sys.exit(
            f"the objective was pickled by Python {how['python']}, and {sys.executable} is Python {here}, which "
            "cannot run it: use the same version, or define the objective in a module that this machine also has"
        )
    objective = pickle.loads((folder / "objective.pickle").read_bytes())
    if names := _names_of_script(objective):
        # Its classes and functions are pickled by the name of this module and their own.
        module = ModuleType("__main__")
        vars(module).update(names, __file__=__file__)
        sys.modules["__main__"] = module
    return objective


def _names_of_script(objective: Any) -> dict[str, Any]:
    """Returns what the objective uses of its script, if cloudpickle has pickled it with the script's names."""
    while isinstance(objective, functools.partial):
        objective = objective.func
    function = inspect.unwrap(objective)
    if not hasattr(function, "__globals__"):
        function = type(function).__call__
    names = getattr(function, "__globals__", {})
    if names.get("__name__") != "__main__":
        return {}
    kinds = {type(value) for value in [objective, *names.values()]}
    return {**{kind.__name__: kind for kind in kinds if kind.__module__ == "__main__"}, **names}


def _from_script(folder: Path, how: dict[str, Any]) -> Any:
    """Loads the script under the name that ``multiprocessing`` gives it in a child process."""
    module = ModuleType("__mp_main__")
    module.__file__ = how["script"]
    sys.modules["__main__"] = sys.modules["__mp_main__"] = module
    sys.argv = how["argv"]
    exec(compile((folder / "script.py").read_bytes(), how["script"], "exec"), vars(module))
    return getattr(module, how["name"])


if __name__ == "__main__":
    main()
elif __name__ == "__mp_main__":
    # A process that `multiprocessing` spawns in the trial imports this file for the names of the script.
    globals().update(_names_of_script(pickle.loads((Path(__file__).parent / "objective.pickle").read_bytes())))
