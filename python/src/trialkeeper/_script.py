"""The script that calls a search. Trials load it if its function cannot be pickled.

They load it as ``multiprocessing`` does, under another name than ``__main__``. The code under
``if __name__ == "__main__":`` therefore does not run again.
"""

from __future__ import annotations

import ast
import inspect
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, Optional

__all__ = ["ADVICE", "is_loaded_by_a_trial", "read_script"]

_GUARD = '`if __name__ == "__main__":`'
#: The remedy that works for every function.
ADVICE = "pip install 'trialkeeper[function]' (cloudpickle)"
#: The name of the script's module in a trial.
_NAME_IN_TRIALS = "__mp_main__"


def read_script(objective: Callable[..., Any]) -> tuple[Path, bytes]:
    """Returns the script that defines the objective, if trials may load it, and its source.

    :raises TypeError: if they cannot. The message contains the remedy.
    """
    path = _path_of(objective)
    if path is None:
        raise TypeError(
            f"{objective!r} is defined where trials cannot import it: {ADVICE}, or define it at the top level "
            "of a script or a module"
        )
    source = path.read_bytes()
    guard = _guard_of(ast.parse(source))
    if guard is None or not _is_called_below(guard):
        raise TypeError(
            f"{objective!r} is defined in the script itself, so its trials would start the search again: call it "
            f"under {_GUARD}, or {ADVICE}"
        )
    unset = sorted(set(_names_set_in(guard)) & set(_names_used_by(inspect.unwrap(objective).__code__)))
    if unset:
        raise TypeError(
            f"{objective!r} uses `{unset[0]}`, which is set under {_GUARD} and therefore not in its trials: "
            f"set it above, or {ADVICE}"
        )
    return path, source


def is_loaded_by_a_trial() -> bool:
    """Returns whether the caller is a script that is being loaded."""
    return any(frame.f_globals.get("__name__") == _NAME_IN_TRIALS for frame in _frames_of_modules())


def _path_of(objective: Callable[..., Any]) -> Optional[Path]:
    """Returns the script that defines the function at its top level, or ``None`` for other functions."""
    main = sys.modules["__main__"]
    path = getattr(main, "__file__", None)
    # A module that `python -m` runs may use relative imports, which a script cannot.
    if path is None or getattr(main, "__spec__", None) is not None:
        return None
    code = getattr(inspect.unwrap(objective), "__code__", None)
    is_its_own = getattr(main, getattr(objective, "__name__", ""), None) is objective
    return Path(path) if is_its_own and code is not None and code.co_filename == path else None


def _guard_of(script: ast.Module) -> Optional[ast.If]:
    """Returns the statement ``if __name__ == "__main__":`` of a script."""
    for statement in script.body:
        if isinstance(statement, ast.If) and isinstance(statement.test, ast.Compare):
            sides = [statement.test.left, *statement.test.comparators]
            names = [side.id for side in sides if isinstance(side, ast.Name)]
            texts = [side.value for side in sides if isinstance(side, ast.Constant)]
            if isinstance(statement.test.ops[0], ast.Eq) and (names, texts) == (["__name__"], ["__main__"]):
                return statement
    return None


def _is_called_below(guard: ast.If) -> bool:
    """Returns whether the script is executing the body of its guard."""
    main = vars(sys.modules["__main__"])
    for frame in _frames_of_modules():
        if frame.f_globals is main:
            return guard.body[0].lineno <= frame.f_lineno <= (guard.body[-1].end_lineno or 0)
    return False


def _frames_of_modules() -> Iterator[FrameType]:
    """Yields the module-level frames on the call stack, the innermost first."""
    frame: Optional[FrameType] = sys._getframe()
    while frame is not None:
        if frame.f_code.co_name == "<module>":
            yield frame
        frame = frame.f_back


def _names_set_in(guard: ast.If) -> Iterator[str]:
    for node in ast.walk(guard):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
        elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            yield node.name
        elif isinstance(node, ast.alias):
            yield (node.asname or node.name).partition(".")[0]


def _names_used_by(code: CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names_used_by(constant)
