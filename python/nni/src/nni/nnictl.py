"""The command ``nnictl``: NNI's commands, implemented with ``trial-manager``.

The output that scripts read has NNI's form. ``trial-manager`` itself shows more.
"""

from __future__ import annotations

import argparse
import contextlib
import csv
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import IO, Any, NoReturn, Optional
from urllib.parse import urlsplit

import nni
import trialkeeper
from nni import _algorithms, _archive
from nni.experiment import _places
from nni.experiment._rest import NotRunning, RestError, ask, wait_until_answered, wait_until_gone
from nni.experiment._viewer import Viewer
from nni.experiment.config.base import parse_file
from nni.experiment.config.utils import case_insensitive, resolve_path
from nni.experiment.experiment import explain_port, list_experiments, report
from trialkeeper._programs import find_program
from trialkeeper.experiment import default_data_dir

__all__ = ["main"]

_STARTED = re.compile(r"^experiment (\S+) on (\S+)$", re.MULTILINE)
#: The maximum time in seconds for a manager to check its configuration and its cluster, and to listen.
_START_TIMEOUT_S = 120.0
_LINE = "-" * 88


#: Matches the first platform in an experiment file, in both of NNI's versions.
_PLATFORM = re.compile(r"""\b(?:trainingServicePlatform|platform)["']?\s*:\s*["']?(\w+)""")


class Failure(Exception):
    """The command cannot be executed. The message contains the cause."""


class NothingToStop(Exception):
    """No running experiment was named, or several were. NNI's exit code is 0, and scripts start with ``stop``."""


_FAILURES = (Failure, _archive.ArchiveError, _algorithms.RegistryError, RestError, NotRunning)


def main(words: Optional[Sequence[str]] = None) -> NoReturn:
    """Executes a command line and exits: 0 for success, 1 for a failure, 2 for a wrong command line."""
    try:
        try:
            _execute(words)
        finally:
            sys.stdout.flush()
    except OSError as error:
        # The flush at the exit must not fail again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        # A reader that closes the pipe, such as `head`, has seen enough.
        if not isinstance(error, BrokenPipeError):
            print(f"ERROR: the output cannot be written: {error}", file=sys.stderr)
            sys.exit(1)
    sys.exit(0)


def _execute(words: Optional[Sequence[str]]) -> None:
    args = _parser().parse_args(words)
    try:
        args.function(args)
    except BrokenPipeError:
        raise
    except (*_FAILURES, trialkeeper.ManagerError, OSError) as error:
        print(f"ERROR: {error}", file=sys.stderr)
        sys.exit(1)
    except KeyboardInterrupt:
        sys.exit(130)


# The selection of an experiment.


class Row:
    """An experiment on this machine."""

    def __init__(self, data_dir: Path, row: dict[str, Any]) -> None:
        self.id: str = row["id"]
        self.name: Optional[str] = row["name"]
        self.url: Optional[str] = row["url"]
        self.started_at_ms: Optional[int] = row["created_at_ms"]
        self.ended_at_ms: Optional[int] = row["ended_at_ms"]
        self.folder = data_dir / self.id
        viewer = None if self.url else _viewer(self.folder)
        self.viewer_pid: Optional[int] = viewer["pid"] if viewer else None
        #: The address of the pages of the manager or of ``nnictl view``.
        self.pages = f"http://127.0.0.1:{viewer['port']}" if viewer else self.url
        self.port = urlsplit(self.pages).port if self.pages else None
        # NNI shows an experiment without a manager as stopped.
        stored = row["state"] if self.url or row["state"] == "DONE" else "STOPPED"
        self.state: str = "VIEWED" if viewer else stored

    def describe(self) -> str:
        """Returns the line of ``nnictl experiment list``."""
        return (
            f"Id: {self.id}    Name: {self.name or 'N/A'}    Status: {self.state}    "
            f"Port: {self.port or 'N/A'}    Platform: {self.platform() or 'N/A'}    "
            f"StartTime: {_date(self.started_at_ms)}    EndTime: {_date(self.ended_at_ms)}"
        )

    def platform(self) -> Optional[str]:
        """Returns the platform of the trials; None if the record cannot be read."""
        service = _archive.configuration(self.folder).get("trainingService")
        return service.get("platform") if isinstance(service, dict) else None

    def get(self, path: str) -> Any:
        """Sends a request to NNI's API: to the manager, or without one, to a server that it starts."""
        try:
            return ask(self.folder, "GET", path)
        except NotRunning:
            viewer = Viewer(self.folder)
            try:
                return ask(self.folder, "GET", path)
            finally:
                viewer.stop()


def _rows(data_dir: Optional[Path] = None) -> list[Row]:
    """Returns the experiments in a data directory; by default, in all of this user."""
    data_dirs = [data_dir] if data_dir else _places.data_dirs()
    return [Row(folder, row) for folder in data_dirs for row in list_experiments(folder)]


def _data_dir(args: argparse.Namespace) -> Path:
    """Returns the parent folder of the experiment from ``--experiment_dir``.

    NNI 3.0 expects the parent folder, although its help names the experiment's own folder.
    """
    if args.experiment_dir is None:
        return _places.find(args.id) or default_data_dir()
    folder = Path(args.experiment_dir).expanduser().resolve()
    for data_dir in (folder, folder.parent):
        if (data_dir / args.id).is_dir():
            return data_dir
    raise Failure(f"{folder} is neither the folder of experiment {args.id} nor its parent")


def _chosen(args: argparse.Namespace, data_dir: Optional[Path] = None) -> Row:
    """Returns the named experiment, or else the only running one, or else the newest."""
    rows = _rows(data_dir)
    if args.id:
        for row in rows:
            if row.id == args.id:
                return row
        raise Failure(f"there is no experiment {args.id}; `nnictl experiment list --all` lists them")
    running = [row for row in rows if row.pages]
    if len(running) > 1:
        _print_rows(running)
        raise Failure("several experiments are running; name one by its id")
    if running:
        return running[0]
    if not rows:
        raise Failure("there is no experiment")
    return max(rows, key=lambda row: row.started_at_ms or 0)


def _print_rows(rows: list[Row]) -> None:
    # NNI prints an empty line after the last experiment, and another one after the table.
    lines = "".join(f"{row.describe()}\n" for row in rows)
    print(f"{_LINE}\n                Experiment information\n{lines}\n{_LINE}\n")


# Starting and stopping.


def _create(args: argparse.Namespace) -> None:
    if not Path(args.config).is_file():
        raise Failure(f"{args.config}: no such file")
    prefix = (args.url_prefix or "").strip("/")
    words = ["run", args.config, *([f"--url-prefix=/{prefix}"] if prefix else [])]
    _launch(words, args, _working_directory(Path(args.config)), prefix=prefix)


def _working_directory(file: Path) -> Path:
    """Returns the data directory that an experiment file names, or the default one."""
    try:
        content = parse_file(file)
        fields = {case_insensitive(name): value for name, value in content.items()}
    except (ValueError, AttributeError):
        return default_data_dir()  # The manager explains why it cannot read the file.
    # `logDir` is its name in NNI's version 1.
    named = fields.get("experimentworkingdirectory") or fields.get("logdir")
    return Path(resolve_path(named, file.parent)) if isinstance(named, str) else default_data_dir()


def _resume(args: argparse.Namespace) -> None:
    data_dir = _data_dir(args)
    _launch(["resume", args.id], args, data_dir, _chosen(args, data_dir).folder)


def _launch(
    words: list[str],
    args: argparse.Namespace,
    data_dir: Path,
    folder: Optional[Path] = None,
    prefix: str = "",
) -> None:
    """Starts a manager and returns when it listens. ``folder`` is the experiment's folder, if it exists."""
    command = [str(find_program("trial-manager")), *words, "--port", str(args.port), "--data-dir", str(data_dir)]
    if args.debug:
        os.environ.setdefault("TRIAL_MANAGER_LOG", "debug")
    # As in NNI, this Python runs the algorithms of a file that names no other.
    os.environ.setdefault("TRIAL_MANAGER_PYTHON", sys.executable)
    data_dir.mkdir(parents=True, exist_ok=True)
    # The logs of a new experiment are moved into its folder when its id is known.
    streams = ("stdout", "stderr")
    logs = {name: _log_file(folder, name) if folder else _new_log(data_dir) for name in streams}
    if args.foreground:
        sys.exit(_stay(command, logs, data_dir if folder is None else None))
    with _append(logs["stdout"]) as stdout, _append(logs["stderr"]) as stderr:
        before = logs["stderr"].stat().st_size
        process = subprocess.Popen(
            [*command, "--keep-serving"],
            stdin=subprocess.DEVNULL,
            stdout=stdout,
            stderr=stderr,
            start_new_session=True,
        )
    try:
        id, url = _wait_until_started(process, logs["stderr"], before, args.port)
        if folder is None:
            _keep_logs(logs, data_dir / id)
        wait_until_answered(data_dir / id, lambda: process.poll() is None)
    finally:
        if folder is None:
            for log in logs.values():
                log.unlink(missing_ok=True)
    # All other commands find the experiment there.
    _places.record(data_dir / id)
    _print_started(id, f"{url}/{prefix}" if prefix else url)
    print(
        f"{_LINE}\nSuccessfully started experiment!\n{_LINE}\n"
        f'INFO:  To stop experiment run "nnictl stop {id}" or "nnictl stop --all"'
    )


def _print_started(id: str, url: str) -> None:
    """Prints an experiment's id and address with the words of NNI 3, and with those of NNI 2."""
    report(f"Creating experiment, Experiment ID: {id}")
    report(f"Web portal URLs: {url}")
    print(f"The experiment id is {id}\nThe Web UI urls are: {url}")


def _stay(command: list[str], logs: dict[str, Path], data_dir: Optional[Path]) -> int:
    """Runs a manager in the foreground and returns its exit code. The output is also written to its logs.

    :param data_dir: the folder of a new experiment's folder, into which the logs are moved; None if the logs are
        there already.
    """
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    previous = signal.signal(signal.SIGTERM, lambda *_: process.terminate())
    assert process.stdout is not None and process.stderr is not None

    def copy(name: str, source: IO[bytes], target: IO[str]) -> None:
        is_kept = data_dir is None
        with _append(logs[name]) as log:
            for line in source:
                log.write(line)
                log.flush()
                with contextlib.suppress(OSError, ValueError):  # A closed terminal must not end the search.
                    target.write(line.decode(errors="replace"))
                    target.flush()
                started = None if is_kept or name != "stderr" else _STARTED.search(line.decode(errors="replace"))
                if started and data_dir is not None:
                    _keep_logs(logs, data_dir / started.group(1))
                    is_kept = True

    threads = [
        threading.Thread(target=copy, args=("stdout", process.stdout, sys.stdout)),
        threading.Thread(target=copy, args=("stderr", process.stderr, sys.stderr)),
    ]
    for thread in threads:
        thread.start()
    try:
        for thread in threads:
            # The terminal's Ctrl-C also reaches the manager, which stops its trials.
            while thread.is_alive():
                with contextlib.suppress(KeyboardInterrupt):
                    thread.join()
        return process.wait()
    finally:
        signal.signal(signal.SIGTERM, previous)
        if data_dir is not None:
            for log in logs.values():
                log.unlink(missing_ok=True)


def _keep_logs(logs: dict[str, Path], folder: Path) -> None:
    """Moves the logs of a new experiment into its folder."""
    for name, log in logs.items():
        kept = _log_file(folder, name)
        kept.parent.mkdir(exist_ok=True)
        log.replace(kept)


def _new_log(data_dir: Path) -> Path:
    handle, path = tempfile.mkstemp(prefix=".nnictl-", suffix=".log", dir=data_dir)
    os.close(handle)
    return Path(path)


def _log_file(folder: Path, name: str) -> Path:
    return folder / "log" / f"nnictl_{name}.log"


def _append(log: Path) -> IO[bytes]:
    log.parent.mkdir(exist_ok=True)
    file = log.open("ab")
    head = f"{_LINE}\n                Experiment start time {datetime.now():%F %T}\n{_LINE}\n"
    file.write(head.encode())
    file.flush()
    return file


def _wait_until_started(process: subprocess.Popen[bytes], log: Path, before: int, port: int) -> tuple[str, str]:
    """Returns the experiment's id and address from the manager's log, after the first ``before`` bytes."""
    deadline = time.monotonic() + _START_TIMEOUT_S
    while True:
        code = process.poll()
        said = log.read_bytes()[before:].decode(errors="replace")
        started = _STARTED.search(said)
        if started:
            return started.group(1), started.group(2)
        if code == 0:
            raise Failure("the experiment is over; `nnictl view ID` shows it")
        if code is not None:
            message = explain_port(said.strip(), port)
            raise Failure(message or f"trial-manager ended with exit code {code}")
        if time.monotonic() > deadline:
            process.terminate()
            raise Failure(f"trial-manager has not started within {_START_TIMEOUT_S:.0f} s: {said.strip()}")
        time.sleep(0.02)


def _view(args: argparse.Namespace) -> None:
    row = _chosen(args, _data_dir(args))
    if row.url:
        raise Failure(f"experiment {row.id} is running on {row.url}")
    viewer = Viewer(row.folder, args.port)
    _places.record(row.folder)
    note = row.folder / "log" / "nnictl_view.json"
    note.parent.mkdir(exist_ok=True)
    pid = viewer.process.pid
    note.write_text(json.dumps({"pid": pid, "started": _start_time(pid), "port": args.port}))
    _print_started(row.id, f"http://127.0.0.1:{args.port}")


def _stop(args: argparse.Namespace) -> None:
    try:
        rows = _to_stop(_rows(), args)
    except NothingToStop as error:
        print(f"ERROR: {error}", file=sys.stderr)
        return
    for row in rows:
        print(f"INFO:  Stopping experiment {row.id}")
        if row.url:
            _manager(row, ["experiment", "stop", row.id])
            # The next `create` may need the port.
            wait_until_gone(row.folder)
        _stop_viewer(row)
        print("INFO:  Stop experiment success.")


def _to_stop(rows: list[Row], args: argparse.Namespace) -> list[Row]:
    """Returns the experiments to stop: by port, by id, by a prefix of an id, or the only running one."""
    running = [row for row in rows if row.pages]
    if args.id == "all":
        raise Failure("`nnictl stop --all` stops all experiments")
    if args.all:
        found = running
    elif args.port is not None:
        found = [row for row in running if row.port == args.port]
        if args.id and found and found[0].id != args.id:
            raise Failure(f"experiment {found[0].id} is on port {args.port}, not {args.id}")
    elif args.id:
        exact = [row for row in running if row.id == args.id]
        found = exact or [row for row in running if row.id.startswith(args.id.rstrip("*"))]
        if len(found) > 1 and not args.id.endswith("*"):
            raise NothingToStop(f"{args.id} is ambiguous: {', '.join(row.id for row in found)}")
    else:
        found = running
        if len(found) > 1:
            _print_rows(found)
            raise Failure("several experiments are running; name one by its id, or stop all with --all")
    if found:
        return found
    if args.port is not None:
        raise NothingToStop(f"no running experiment has the port {args.port}")
    if not args.id or args.all:
        raise NothingToStop("There is no experiment running...")
    if any(row.id == args.id for row in rows):
        raise NothingToStop(f"experiment {args.id} is not running")
    raise NothingToStop(f"there is no experiment {args.id}; `nnictl experiment list --all` lists them")


def _viewer(folder: Path) -> Optional[dict[str, Any]]:
    """Returns the ``pid`` and the ``port`` of the server that ``nnictl view`` started, if it is running."""
    try:
        note: dict[str, Any] = json.loads((folder / "log" / "nnictl_view.json").read_text())
        return note if _start_time(note["pid"]) == note["started"] and "port" in note else None
    except (OSError, ValueError, KeyError):
        return None


def _stop_viewer(row: Row) -> None:
    if row.viewer_pid is not None:
        os.kill(row.viewer_pid, signal.SIGTERM)
        (row.folder / "log" / "nnictl_view.json").unlink()


def _start_time(pid: int) -> str:
    """Returns the start time of a process, which distinguishes it from a later one with the same pid."""
    stat = Path(f"/proc/{pid}/stat").read_text()
    return stat.rpartition(")")[2].split()[19]


# Queries.


def _experiment_show(args: argparse.Namespace) -> None:
    _print_json(_with_dates(_chosen(args).get("/experiment")))


def _experiment_status(args: argparse.Namespace) -> None:
    row = _chosen(args)
    status = row.get("/check-status")
    # The server of a viewed experiment reports the final state of the search.
    _print_json({**status, "status": row.state} if row.viewer_pid else status)


def _experiment_list(args: argparse.Namespace) -> None:
    rows = _rows()
    if not rows:
        raise Failure("there is no experiment")
    shown = rows if args.all else [row for row in rows if row.pages]
    if not shown:
        print("WARNING: There is no experiment running...")
        print("You can use 'nnictl experiment list --all' to list all experiments.")
    _print_rows(shown)


def _trial_ls(args: argparse.Namespace) -> None:
    if args.head and args.tail:
        raise Failure("--head and --tail exclude each other")
    trials = _chosen(args).get("/trial-jobs")
    count = args.head or args.tail
    if count:
        ended = [trial for trial in trials if trial.get("finalMetricData")]
        trials = sorted(ended, key=_result, reverse=bool(args.head))[:count]
    _print_json([_with_dates(trial) for trial in trials])


def _result(trial: dict[str, Any]) -> float:
    value = json.loads(json.loads(trial["finalMetricData"][0]["data"]))
    return float(value["default"] if isinstance(value, dict) else value)


def _top(args: argparse.Namespace) -> None:
    row = _chosen(args)
    program = str(find_program("trial-manager"))
    sys.stdout.flush()
    os.execv(program, [program, "top", row.id, "--data-dir", str(row.folder.parent)])


def _log_stream(args: argparse.Namespace) -> None:
    path = _log_file(_chosen(args).folder, args.stream)
    if args.path:
        print(path)
        return
    try:
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    except FileNotFoundError:
        raise Failure(f"{path} does not exist: `nnictl create` and `nnictl resume` write it") from None
    if args.head:
        lines = lines[: args.head]
    elif args.tail:
        lines = lines[-args.tail :]
    print("\n".join(lines))


def _log_trial(args: argparse.Namespace) -> None:
    paths = {trial["trialJobId"]: trial.get("logPath") for trial in _chosen(args).get("/trial-jobs")}
    if args.trial_id is None:
        print("INFO:  All of trial log info:")
        for trial, path in paths.items():
            print(f"INFO:  id:{trial} path:{path}")
        if not paths:
            print("INFO:  None")
        return
    if args.trial_id not in paths:
        raise Failure(f"there is no trial {args.trial_id}")
    print(f"INFO:  id:{args.trial_id} path:{paths[args.trial_id]}")


def _webui_url(args: argparse.Namespace) -> None:
    row = _chosen(args)
    if not row.pages:
        raise Failure(f"experiment {row.id} is not running; `nnictl view {row.id}` shows it")
    print(f"INFO:  Web UI url: {row.pages}")


def _config_show(args: argparse.Namespace) -> None:
    print(json.dumps(_chosen(args).get("/experiment")["params"], indent=4))


# Changes.


def _trial_kill(args: argparse.Namespace) -> None:
    # As in NNI, this succeeds if the trial has ended already.
    ask(_chosen(args).folder, "DELETE", f"/trial-jobs/{args.trial_id}")
    print(f"INFO:  trial {args.trial_id} is stopped")


#: The flag of ``trial-manager experiment limit`` for each word of ``nnictl update``.
_LIMITS = {
    "concurrency": "--trial-concurrency",
    "duration": "--max-experiment-duration",
    "trialnum": "--max-trial-number",
}


def _update(args: argparse.Namespace) -> None:
    row = _chosen(args)
    if args.what == "searchspace":
        _manager(row, ["experiment", "update", "--search-space", args.filename, "--experiment", row.id])
        print("INFO:  Update searchSpace success!")
        return
    _manager(row, ["experiment", "limit", _LIMITS[args.what], args.value, "--experiment", row.id])
    print(f"INFO:  Update {args.what} success!")


def _confirmed() -> bool:
    try:
        answer = input("INFO: do you want to continue?[y/N]:")
    except EOFError:
        print("\nWARNING: nothing is changed, because standard input has no answer; pipe `yes` into this command")
        return False
    return answer.strip().lower() in ("y", "yes")


def _experiment_delete(args: argparse.Namespace) -> None:
    if not args.id and not args.all:
        raise Failure("name an experiment by its id, or delete all with --all")
    rows = _rows() if args.all else [_chosen(args)]
    ids = " ".join(row.id for row in rows)
    print(f"INFO: This action will delete experiment {ids}, and it's not recoverable.")
    if not _confirmed():
        return
    for row in rows:
        _manager(row, ["experiment", "rm", row.id])
        print(f"INFO:  experiment {row.id} is deleted\nINFO:  Done.")


def _platform_clean(args: argparse.Namespace) -> None:
    try:
        text = Path(args.config).read_text(encoding="utf-8", errors="replace")
    except OSError:
        raise Failure(f"{args.config}: no such file") from None
    found = _PLATFORM.search(text)
    if not found:
        raise Failure(f"{args.config} names no platform")
    platform = {"pai": "openpai"}.get(found[1], found[1])
    if platform == "local":
        print("INFO:  it doesn't need to clean local platform.")
        return
    rows = [row for row in _rows() if not row.url and row.platform() == platform]
    if not rows:
        print(f"INFO:  no stopped experiment ran its trials on {platform}.")
        return
    print("INFO:  This command will remove everything of these experiments on the platform. Their results stay.")
    for row in rows:
        print(f"       {row.describe()}")
    if not _confirmed():
        return
    for row in rows:
        _manager(row, ["clean", row.id])
    print("INFO:  Done.")


def _experiment_import(args: argparse.Namespace) -> None:
    row = _chosen(args)
    _manager(row, ["experiment", "import", args.filename, "--experiment", row.id])


def _experiment_export(args: argparse.Namespace) -> None:
    row = _chosen(args)
    records = row.get("/export-data")
    if args.intermediate:
        metrics: dict[str, list[Any]] = {}
        for metric in row.get("/metric-data"):
            if metric["type"] == "PERIODICAL":
                metrics.setdefault(metric["trialJobId"], []).append(json.loads(metric["data"]))
        for record in records:
            record["intermediate"] = metrics.get(record["trialJobId"], [])
    if args.type == "json":
        Path(args.path).write_text(json.dumps(records), encoding="utf-8")
        return
    if not records:
        raise Failure("no trial has a result yet")
    lines = [_csv_record(record, args.intermediate) for record in records]
    columns = list(dict.fromkeys(name for line in lines for name in line))
    with open(args.path, "w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, columns)
        writer.writeheader()
        writer.writerows(lines)


def _csv_record(record: dict[str, Any], intermediate: bool) -> dict[str, Any]:
    line: dict[str, Any] = {}
    if intermediate:
        line["intermediate"] = f"[{','.join(record['intermediate'])}]"
    value = json.loads(record["value"])
    line.update(record["parameter"])
    line.update(value if isinstance(value, dict) else {"reward": value})
    line["trialJobId"] = record["trialJobId"]
    return line


def _experiment_save(args: argparse.Namespace) -> None:
    row = _chosen(args)
    if row.url:
        raise Failure("Can only save stopped experiment!")
    params = row.get("/experiment")["params"]
    target = Path(args.path or ".") / f"nni_experiment_{row.id}.zip"
    about = {"id": row.id, "experimentName": row.name, "trialCodeDirectory": params["trialCodeDirectory"]}
    _archive.save(target, row.folder, about, args.saveCodeDir)
    print(f"INFO:  Save to {target} success!")


def _experiment_load(args: argparse.Namespace) -> None:
    code = Path(args.codeDir).expanduser().resolve() if args.codeDir else None
    id = _archive.load(Path(args.path), default_data_dir(), code)
    print(f"INFO:  Load experiment {id} success!")


def _algo_register(args: argparse.Namespace) -> None:
    for name in _algorithms.register(Path(args.meta_path)):
        print(f"INFO:  {name} registered successfully!")


def _algo_unregister(args: argparse.Namespace) -> None:
    _algorithms.unregister(args.name)
    print(f"INFO:  {args.name} unregistered successfully!")


def _algo_show(args: argparse.Namespace) -> None:
    print(json.dumps(_algorithms.find(args.name), indent=4))


def _algo_list(_: argparse.Namespace) -> None:
    line = f"+{'-' * 17}+{'-' * 12}+{'-' * 42}+"
    print(f"{line}\n| {'Name':15} | {'Type':10} | {'Class Name':40} |\n{line}")
    for kind, entry in _algorithms.describe(_algorithms.read()):
        print(f"| {entry['builtinName']:15} | {kind:10} | {entry['className']:40} |")
    print(line)


def _trial_codegen(_: argparse.Namespace) -> None:
    print("WARNING: Currently, this command is only for nni nas programming interface.")


# Printing, and the manager.


def _manager(row: Row, words: list[str]) -> None:
    """Runs a command of ``trial-manager`` on an experiment and prints its output."""
    command = [str(find_program("trial-manager")), *words, "--data-dir", str(row.folder.parent)]
    done = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False)
    if done.returncode != 0:
        raise Failure(done.stderr.strip() or f"trial-manager ended with exit code {done.returncode}")
    if done.stdout.strip():
        print(done.stdout.rstrip())


def _print_json(value: Any) -> None:
    print(json.dumps(value, indent=4, sort_keys=True, separators=(",", ":")))


def _with_dates(record: dict[str, Any]) -> dict[str, Any]:
    dates = {
        name: datetime.fromtimestamp(record[name] // 1000).strftime("%Y/%m/%d %H:%M:%S")
        for name in ("startTime", "endTime")
        if record.get(name)
    }
    return {**record, **dates}


def _date(at_ms: Optional[int]) -> str:
    return "N/A" if at_ms is None else f"{datetime.fromtimestamp(at_ms / 1000):%F %T}"


# The command line.


class _Version(argparse.Action):
    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> NoReturn:
        print(nni.__version__)
        parser.exit()


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="nnictl", description="NNI's commands, executed by trial-manager (trialkeeper-nni)."
    )
    parser.add_argument("--version", "-v", action=_Version, nargs=0, help="print the version")
    parser.set_defaults(function=_hint)
    commands = parser.add_subparsers(metavar="COMMAND")

    create = _command(commands, "create", _create, "run an experiment file in the background", id=None)
    create.add_argument("--config", "-c", required=True, help="experiment file")
    create.add_argument("--url_prefix", "-u", help="an additional path below which everything is served")
    resume = _command(commands, "resume", _resume, "continue a stopped experiment", id="required")
    for command in (create, resume):
        command.add_argument("--foreground", "-f", action="store_true", help="stay and print the progress")
        command.add_argument("--debug", "-d", action="store_true", help="make the manager log more")
    view = _command(commands, "view", _view, "show the pages of a stopped experiment", id="required")
    for command in (create, resume, view):
        command.add_argument("--port", "-p", type=int, default=8080, help="port of the pages [8080]")
    for command in (resume, view):
        command.add_argument("--experiment_dir", "-e", help="the experiment's folder or its parent")

    stop = _command(commands, "stop", _stop, "stop an experiment by its id, a prefix of its id, or its port")
    stop.add_argument("--port", "-p", type=int, help="stop the experiment on this port")
    stop.add_argument("--all", "-a", action="store_true", help="stop all experiments")

    _add_experiment(commands)
    _add_trial(commands)
    _add_update(commands)
    top = _command(commands, "top", _top, "watch an experiment")
    top.add_argument("--time", "-t", type=int, help=argparse.SUPPRESS)
    _add_log(commands)
    webui = _group(commands, "webui", "the pages of an experiment")
    _command(webui, "url", _webui_url, "print the address of the pages")
    config = _group(commands, "config", "the configuration of an experiment")
    _command(config, "show", _config_show, "print the configuration")

    platform = _group(commands, "platform", "the leftovers of experiments on their platforms")
    clean = _command(platform, "clean", _platform_clean, "delete the leftovers of stopped experiments", id=None)
    clean.add_argument("--config", "-c", required=True, help="experiment file that names the platform")

    _add_algo(commands)

    missing = {
        "trainingservice": "training services are part of trial-manager",
        "package": "name your class in the experiment file: tuner: {className: module.Class}",
        "ss_gen": "annotations are not supported, as in NNI 3.0",
        "jupyter-extension": "notebooks display a trialkeeper.Experiment",
        "hello": "the examples are in the folder `examples` of the repository",
    }
    for name, advice in missing.items():
        _missing(commands, name, advice)
    return parser


def _add_experiment(commands: Any) -> None:
    group = _group(commands, "experiment", "show, list, export, import or delete experiments")
    _command(group, "show", _experiment_show, "print configuration and state")
    _command(group, "status", _experiment_status, "print the state")
    ls = _command(group, "list", _experiment_list, "list the running experiments", id=None)
    ls.add_argument("--all", action="store_true", help="list all experiments")
    delete = _command(group, "delete", _experiment_delete, "delete an experiment with its results")
    delete.add_argument("--all", action="store_true", help="delete all experiments")
    load = _command(group, "import", _experiment_import, "import results from elsewhere into the tuner")
    load.add_argument("--filename", "-f", required=True, help="file with the results")
    export = _command(group, "export", _experiment_export, "write the results of the trials to a file")
    export.add_argument("--type", "-t", choices=["json", "csv"], required=True, help="format of the file")
    export.add_argument("--filename", "-f", required=True, dest="path", help="the file")
    export.add_argument("--intermediate", "-i", action="store_true", help="include the intermediate results")
    save = _command(group, "save", _experiment_save, "copy a stopped experiment into an archive")
    save.add_argument("--path", "-p", help="folder of the archive")
    save.add_argument("--saveCodeDir", "-s", action="store_true", help="include the trials' code")
    load = _command(group, "load", _experiment_load, "restore an archive of `save`", id=None)
    load.add_argument("--path", "-p", required=True, help="the archive")
    load.add_argument("--codeDir", "-c", help="folder for the code [the original folder]")
    load.add_argument("--logDir", "-l", help=argparse.SUPPRESS)
    load.add_argument("--searchSpacePath", "-s", help=argparse.SUPPRESS)


def _add_trial(commands: Any) -> None:
    group = _group(commands, "trial", "list and stop trials")
    ls = _command(group, "ls", _trial_ls, "list trials")
    ls.add_argument("--head", type=int, help="the number of trials with the largest results")
    ls.add_argument("--tail", type=int, help="the number of trials with the smallest results")
    kill = _command(group, "kill", _trial_kill, "stop a trial")
    kill.add_argument("--trial_id", "-T", required=True, help="the trial")
    codegen = _command(group, "codegen", _trial_codegen, "warn, as NNI does outside of architecture search")
    codegen.add_argument("--trial_id", "-T", help=argparse.SUPPRESS)


def _add_algo(commands: Any) -> None:
    group = _group(commands, "algo", "name algorithms of your own, for `tuner: {name: NAME}`")
    help = "register the algorithms that a file describes"
    register = _command(group, "register", _algo_register, help, id=None, aliases=["reg"])
    register.add_argument("--meta_path", "-m", required=True, help="file with algoType, builtinName and className")
    for name, aliases, function, help in [
        ("unregister", ["unreg"], _algo_unregister, "remove an algorithm from the registry"),
        ("show", [], _algo_show, "print the description of an algorithm"),
    ]:
        command = _command(group, name, function, help, id=None, aliases=aliases)
        command.add_argument("name", help="name of the algorithm")
    _command(group, "list", _algo_list, "list the registered algorithms", id=None)


def _add_update(commands: Any) -> None:
    group = _group(commands, "update", "change a running experiment")
    for what, flag, meaning in [
        ("searchspace", "--filename", "file with the new search space"),
        ("concurrency", "--value", "number of concurrent trials"),
        ("duration", "--value", "maximum duration, such as 90m"),
        ("trialnum", "--value", "maximum number of trials"),
    ]:
        command = _command(group, what, _update, f"change: {meaning}")
        command.add_argument(flag, "-f" if flag == "--filename" else "-v", required=True, help=meaning)
        command.set_defaults(what=what)


def _add_log(commands: Any) -> None:
    group = _group(commands, "log", "print logs")
    for stream in ("stdout", "stderr"):
        command = _command(group, stream, _log_stream, f"print the manager's {stream}")
        command.add_argument("--tail", "-T", type=int, help="the number of last lines")
        command.add_argument("--head", "-H", type=int, help="the number of first lines")
        command.add_argument("--path", action="store_true", help="print the path of the log instead")
        command.set_defaults(stream=stream)
    trial = _command(group, "trial", _log_trial, "print the folders of the trials' logs")
    trial.add_argument("--trial_id", "-T", help="the trial")


def _hint(_: argparse.Namespace) -> None:
    print('Please run "nnictl {positional argument} --help" to see nnictl guidance.')


def _group(commands: Any, name: str, help: str) -> Any:
    group = commands.add_parser(name, help=help, description=help)
    return group.add_subparsers(metavar="COMMAND")


def _command(
    commands: Any, name: str, function: Any, help: str, id: Optional[str] = "optional", aliases: Sequence[str] = ()
) -> Any:
    command = commands.add_parser(name, aliases=aliases, help=help, description=help)
    if id is not None:
        nargs = None if id == "required" else "?"
        command.add_argument("id", nargs=nargs, metavar="ID", help="the experiment [the only one that runs]")
    command.set_defaults(function=function)
    return command


def _missing(commands: Any, name: str, advice: str) -> None:
    command = commands.add_parser(name)
    command.add_argument("rest", nargs=argparse.REMAINDER)

    def refuse(_: argparse.Namespace) -> None:
        print(f"ERROR: {command.prog} is not part of trialkeeper-nni: {advice}", file=sys.stderr)
        sys.exit(2)

    command.set_defaults(function=refuse)


if __name__ == "__main__":
    main()
