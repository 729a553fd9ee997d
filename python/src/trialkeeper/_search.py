"""A search whose objective is a Python function."""

from __future__ import annotations

import hashlib
import importlib
import inspect
import json
import os
import pickle
import shlex
import shutil
import sys
import tempfile
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Callable, Optional, Union

from trialkeeper._foreign import check_words
from trialkeeper._script import ADVICE, is_loaded_by_a_trial, read_script
from trialkeeper.errors import ConfigurationError
from trialkeeper.experiment import Callback, Experiment, default_data_dir

__all__ = ["Objective", "search"]

#: Takes the parameters. Returns the result, or ``None`` if it has called :func:`trialkeeper.final` itself.
Objective = Callable[[dict[str, Any]], Union[float, Mapping[str, float], None]]

_PACKAGE = Path(__file__).parent
#: The keywords of :func:`search` for some fields.
_KEYWORDS = {
    "max_trial_number": "max_trials",
    "trial_concurrency": "concurrency",
    "tuner.class_args.optimize_mode": "direction",
    "search_space": "space",
}


def search(
    objective: Objective,
    space: Mapping[str, Any],
    *,
    max_trials: int = 20,
    concurrency: int = 1,
    direction: str = "minimize",
    metric: Optional[str] = None,
    tuner: Union[str, Mapping[str, Any]] = "TPE",
    seed: Optional[int] = None,
    callbacks: Sequence[Callback] = (),
    progress: Optional[bool] = None,
    wait: bool = True,
    **fields: Any,
) -> Experiment:
    """Runs ``objective`` with up to ``max_trials`` points of ``space`` and returns the finished experiment.

    Each call runs in its own process under the agent. A crash therefore affects no other call, and its cause is
    recorded. If cloudpickle is installed, it pickles the function, including closures, lambdas and functions of a
    notebook. Otherwise, the function is pickled by its module and name. Without cloudpickle, trials load a
    function of the script itself from a copy of the script. The search must then be called under
    ``if __name__ == "__main__":``. The experiment contains the code and the required part of this package.
    Trials can therefore run on other machines, and :meth:`Experiment.resume` works later.

    :param direction: ``minimize`` or ``maximize``.
    :param metric: the number to optimise if the function returns several; else ``default`` or the likeliest one.
    :param tuner: the name of a tuner, or a tuner as in the experiment file.
    :param callbacks: as in :meth:`Experiment.run`.
    :param progress: as in :meth:`Experiment.run`.
    :param wait: whether to wait for the end. Otherwise the function returns once the experiment has started;
        pass callbacks and progress to its :meth:`Experiment.wait`.
    :param fields: more fields of the experiment file, and ``data_dir``.
    :raises TypeError: if ``objective`` is no function of the parameters, or cannot be sent to its trials. The
        message names the obstacle.
    :raises ValueError: if callbacks or progress are given with ``wait=False``.
    :raises ConfigurationError: if the space is no mapping, or a field is unknown or has another tool's name.
    :raises ExperimentFailed: if no trial succeeded with a result.
    """
    if is_loaded_by_a_trial():
        raise RuntimeError('a trial loads this script: call tk.search() under `if __name__ == "__main__":`')
    if not wait and (callbacks or progress):
        raise ValueError("with wait=False, pass callbacks and progress to the experiment's wait()")
    check_words(fields, _KEYWORDS)
    _check(objective, space)
    service = fields.get("training_service", fields.get("trainingService"))
    is_local = service is None or (isinstance(service, Mapping) and service.get("platform") == "local")
    python = shlex.quote(sys.executable) if is_local else "python3"
    data_dir = Path(fields.get("data_dir") or default_data_dir())
    experiment = Experiment(
        {
            "trialCommand": f"{python} run_objective.py",
            "trialCodeDirectory": str(keep_code(data_dir, objective, is_local).resolve()),
            "searchSpace": dict(space),
            "maxTrialNumber": max_trials,
            "trialConcurrency": concurrency,
            "tuner": _tuner(tuner, direction, seed),
            **({} if metric is None else {"objective": {"metric": metric, "direction": direction}}),
        },
        **fields,
    )
    return experiment.run(callbacks=callbacks, progress=progress) if wait else experiment.start()


def _check(objective: Any, space: Any) -> None:
    """Raises if the objective is no function of one argument, or the space is no mapping."""
    if isinstance(objective, Mapping) and callable(space):
        raise TypeError("the function comes first: tk.search(objective, space)")
    if not callable(objective):
        words = [objective] if isinstance(objective, (str, os.PathLike)) else objective
        command = " ".join(map(str, words)) if isinstance(words, (list, tuple)) else "python3 train.py"
        command = f"python3 {command}" if command.endswith(".py") and " " not in command else command
        raise TypeError(
            f"tk.search() calls a function, and {objective!r} is none; to run a program, use "
            f"tk.Experiment(trial_command={command!r}, search_space=…, max_trial_number=…).run()"
        )
    if not isinstance(space, Mapping):
        raise ConfigurationError(f"space: expected a mapping of parameters, found {space!r:.80}")
    if inspect.iscoroutinefunction(objective):
        raise TypeError(f"{objective!r} is an `async def`; pass a plain function that calls asyncio.run()")
    if inspect.isgeneratorfunction(objective):
        raise TypeError(f"{objective!r} yields; return the result, and report steps with tk.report()")
    try:
        signature = inspect.signature(objective)
    except (TypeError, ValueError):  # A built-in function without a signature.
        return
    try:
        signature.bind({})
    except TypeError as error:
        raise TypeError(
            f"{objective!r} is called with one argument, the dict of parameters: {error}; for a function with an "
            "argument for each parameter, pass a function that calls it: def objective(p): return f(**p)"
        ) from None


def _tuner(given: Union[str, Mapping[str, Any]], direction: str, seed: Optional[int]) -> dict[str, Any]:
    """Returns the section of the experiment file. Arguments that the user gives in a mapping take precedence."""
    section: dict[str, Any] = {"name": given} if isinstance(given, str) else dict(given)
    own = section.pop("class_args", section.pop("classArgs", None))
    class_args = {"optimize_mode": direction, **({} if seed is None else {"seed": seed}), **(own or {})}
    return {**section, "classArgs": class_args}


def keep_code(data_dir: Path, objective: Objective, is_local: bool) -> Path:
    """Writes the trials' code into a folder of the data directory named by its content, and returns the folder.

    The folder is never changed or removed, so that experiments can be resumed.
    """
    store = data_dir / ".objectives"
    store.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=store) as draft:
        _write_code(Path(draft), objective, is_local)
        digest = hashlib.sha256()
        for path in sorted(path for path in Path(draft).rglob("*") if path.is_file()):
            digest.update(f"{path.relative_to(draft)}\0".encode() + hashlib.sha256(path.read_bytes()).digest())
        folder = store / digest.hexdigest()[:16]
        if not folder.is_dir():
            # Another process may have written the same folder in the meantime.
            shutil.copytree(draft, folder, dirs_exist_ok=True)
    return folder


def _write_code(folder: Path, objective: Objective, is_local: bool) -> None:
    """Writes the function, pickled or as its script, its source, and the program that runs it.

    Other machines need only Python, because this package and cloudpickle are included.
    """
    pickler = _pickler()
    how: dict[str, Any] = {}
    if pickler is pickle and getattr(objective, "__module__", None) == "__main__":
        path, script = read_script(objective)
        (folder / "script.py").write_bytes(script)
        how = {"script": str(path), "name": objective.__name__, "argv": sys.argv}
    else:
        pickled = _dump(objective, pickler)
        (folder / "objective.pickle").write_bytes(pickled)
        if b"cloudpickle" in pickled:
            # The pickle contains the code itself, so the trial needs cloudpickle to rebuild the function.
            how = {"python": f"{sys.version_info.major}.{sys.version_info.minor}"}
    (folder / "objective.json").write_text(json.dumps(how), encoding="utf-8")
    (folder / "objective-source.py").write_text(_source(objective), encoding="utf-8")
    shutil.copy(_PACKAGE / "_objective.py", folder / "run_objective.py")
    if is_local:
        # Trials on this machine find modules and files where this process finds them.
        origin = {"directory": os.getcwd(), "path": [os.path.abspath(entry) for entry in sys.path]}
        (folder / "origin.json").write_text(json.dumps(origin), encoding="utf-8")
        return
    without = shutil.ignore_patterns("__pycache__", "nni", "service.py", "slurm.py", "openpai.py")
    shutil.copytree(_PACKAGE, folder / "trialkeeper", ignore=without)
    if pickler is not pickle:
        shutil.copytree(Path(pickler.__file__).parent, folder / "cloudpickle", ignore=without)


def _dump(objective: Objective, pickler: Any) -> bytes:
    """Returns the pickled function.

    :raises TypeError: if the function cannot be pickled. The message names the variable.
    """
    try:
        return bytes(pickler.dumps(objective))
    except Exception as error:
        culprit = _culprit(objective, pickler)
        advice = f"; {ADVICE} takes closures and lambdas" if pickler is pickle else ""
        raise TypeError(f"{objective!r} cannot be sent to its trials{culprit}: {error}{advice}") from error


def _pickler() -> Any:
    try:
        return importlib.import_module("cloudpickle")
    except ImportError:
        return pickle


def _culprit(objective: Objective, pickler: Any) -> str:
    """Describes the variable of a function that cannot be pickled, as a part of a sentence."""
    try:
        variables = inspect.getclosurevars(objective)
    except (TypeError, ValueError):
        return ""
    for name, value in {**variables.globals, **variables.nonlocals}.items():
        try:
            pickler.dumps(value)
        except Exception:
            return f" because of its variable `{name}`, of type {type(value).__name__}"
    return ""


def _source(objective: Objective) -> str:
    try:
        return textwrap.dedent(inspect.getsource(objective))
    except (OSError, TypeError):
        return f"# The source of {objective!r} is not known.\n"
