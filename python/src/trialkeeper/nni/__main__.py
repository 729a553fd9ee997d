"""``python -m trialkeeper.nni``: runs a command of NNI with ``trial-manager``, or installs it for all commands."""

from __future__ import annotations

import runpy
import sys
import sysconfig
from pathlib import Path

from trialkeeper.nni import MODULES

USAGE = """usage: python -m trialkeeper.nni SCRIPT.py [ARGUMENT ...]   run a script that uses NNI's Python API
       python -m trialkeeper.nni nnictl ARGUMENT ...        run NNI's command line
       python -m trialkeeper.nni install | uninstall        turn this on or off for every start of this Python
"""


def _start_file() -> Path:
    return Path(sysconfig.get_path("purelib")) / "trialkeeper_nni.pth"


def start_line() -> str:
    """Returns the line that the interpreter executes at each start. It imports nothing until NNI is imported."""
    find = "__import__('trialkeeper.nni._hook', fromlist=['find_spec']).find_spec(name, path)"
    finder = f"lambda name, path=None, target=None: {find} if name in {sorted(MODULES)} else None"
    members = f"{{'find_spec': staticmethod({finder})}}"
    return f"import sys; sys.meta_path.insert(0, type('TrialkeeperNni', (), {members}))"


def _install() -> None:
    source = Path(__file__).resolve().parents[2]
    # A source tree is not on the path by default.
    lines = [] if source == Path(sysconfig.get_path("purelib")) else [str(source)]
    try:
        _start_file().write_text("\n".join([*lines, start_line(), ""]), encoding="utf-8")
    except OSError as error:
        advice = "use a virtual environment"
        sys.exit(f"trialkeeper.nni: {_start_file()} cannot be written: {error.strerror}; {advice}")
    print(f"NNI's client starts trial-manager from now on ({_start_file()})")


def _uninstall() -> None:
    _start_file().unlink(missing_ok=True)
    print("NNI's client starts its own Node server again")


def main() -> None:
    """Runs the command."""
    words = sys.argv[1:]
    if not words or words[0] in ("-h", "--help"):
        print(USAGE, end="")
        sys.exit(0 if words else 2)
    if words == ["install"]:
        return _install()
    if words == ["uninstall"]:
        return _uninstall()
    sys.argv = words
    if words[0] == "nnictl":
        try:
            from nni.tools.nnictl.nnictl import parse_args
        except ModuleNotFoundError as error:
            missing = error.name
            advice = "setuptools<81" if missing == "pkg_resources" else "nni==3.0 setuptools<81"
            sys.exit(f"trialkeeper.nni: there is no module {missing}; `pip install '{advice}'`")
        return parse_args()  # type: ignore[no-any-return]
    if not Path(words[0]).is_file():
        sys.exit(f"trialkeeper.nni: there is no script {words[0]}\n{USAGE}")
    # The interpreter does the same for a script.
    sys.path[0] = str(Path(words[0]).resolve().parent)
    runpy.run_path(words[0], run_name="__main__")


if __name__ == "__main__":
    main()
