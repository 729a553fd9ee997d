"""The trial SDK: its inputs, and the lines that the agent would read."""

import argparse
import json
import threading
from datetime import date
from enum import Enum
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

import nni
import nni.trial
from nni.utils import merge_parameter


class Phase(Enum):
    LAST = "last"


RECORD = {"parameter_id": 7, "parameter_source": "algorithm", "parameters": {"lr": 0.5}, "parameter_index": 0}


@pytest.fixture(autouse=True)
def fresh_sdk(monkeypatch):
    monkeypatch.setattr(nni.trial, "_record", None)
    monkeypatch.setattr(nni.trial, "_sequence", 0)


@pytest.fixture
def in_a_trial(monkeypatch, tmp_path):
    (tmp_path / "parameter.cfg").write_text(json.dumps(RECORD))
    for name, value in {
        "NNI_PLATFORM": "local",
        "NNI_SYS_DIR": str(tmp_path),
        "NNI_EXP_ID": "exp12345",
        "NNI_TRIAL_JOB_ID": "abcde",
        "NNI_TRIAL_SEQ_ID": "3",
        "REUSE_MODE": "true",
    }.items():
        monkeypatch.setenv(name, value)


def test_parameters_and_ids_are_those_of_the_trial(in_a_trial):
    assert nni.get_current_parameter() is None
    assert nni.get_next_parameter() == {"lr": 0.5}
    assert nni.get_current_parameter("lr") == 0.5
    assert (nni.get_experiment_id(), nni.get_trial_id(), nni.get_sequence_id()) == ("exp12345", "abcde", 3)


def test_parameters_in_nnis_form_are_loaded(in_a_trial, tmp_path):
    parameters = {"file": Path("a b"), "class": Phase, "day": date(2026, 1, 2), "__x": [{"lr": 0.5}]}
    (tmp_path / "parameter.cfg").write_text(nni.dump({**RECORD, "parameters": parameters}))
    assert nni.get_next_parameter() == parameters


def test_results_are_marked_lines_with_the_value_encoded_twice(in_a_trial, capsys):
    nni.get_next_parameter()
    nni.report_intermediate_result(0.5)
    nni.report_intermediate_result({"default": 0.75, "loss": float("nan")})
    nni.report_final_result(1)
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == (
        'NNISDK_MEb\'{"parameter_id": 7, "trial_job_id": "abcde", "type": "PERIODICAL", "sequence": 0, '
        '"value": "0.5"}\''
    )
    records = [json.loads(line[len("NNISDK_MEb'") : -1]) for line in lines]
    assert [(record["type"], record["sequence"]) for record in records] == [
        ("PERIODICAL", 0),
        ("PERIODICAL", 1),
        ("FINAL", 0),
    ]
    assert records[1]["value"] == '{"default": 0.75, "loss": NaN}'


def test_numbers_of_numpy_are_numbers(in_a_trial, capsys):
    numpy = pytest.importorskip("numpy")
    nni.report_final_result({"default": numpy.float32(0.5), "n": numpy.int64(3), "v": numpy.array([1, 2])})
    line = capsys.readouterr().out.strip()
    assert json.loads(line[len("NNISDK_MEb'") : -1])["value"] == '{"default": 0.5, "n": 3, "v": [1, 2]}'


@pytest.mark.parametrize("value", [date(2026, 1, 2), Path("model.pt"), 1 + 2j, Phase.LAST, Phase, {3}])
def test_a_value_that_json_lacks_is_reported_in_nnis_form(in_a_trial, capsys, value):
    nni.report_final_result({"default": 0.5, "note": value})
    line = capsys.readouterr().out.strip()
    text = json.loads(line[len("NNISDK_MEb'") : -1])["value"]
    expected = [3] if value == {3} else value  # Sets are lists, so that the portal shows them.
    assert nni.load(text) == {"default": 0.5, "note": expected}


def test_the_agents_file_is_preferred_to_the_output(in_a_trial, capsys, monkeypatch, tmp_path):
    monkeypatch.setenv("TRIALKEEPER_RUN", "0123456789abcdef")
    nni.get_next_parameter()
    nni.report_intermediate_result(0.5)
    nni.report_final_result({"default": 1})
    assert capsys.readouterr().out == ""
    content = (tmp_path / ".nni" / "metrics").read_bytes()
    values = []
    while content:
        length = int(content[2:8])
        assert content[:2] == b"ME" and content[8 : 8 + length].endswith(b"}\n")
        values.append(json.loads(content[8 : 8 + length])["value"])
        content = content[8 + length :]
    assert values == ["0.5", '{"default": 1}']


def _no_folder(tmp_path, monkeypatch):
    (tmp_path / ".nni").write_text("a file in its place")


def _full_disk(tmp_path, monkeypatch):
    def fail(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(nni.trial.os, "write", fail)


@pytest.mark.parametrize("break_file", [_no_folder, _full_disk])
def test_without_the_agents_file_results_are_printed(in_a_trial, capsys, monkeypatch, tmp_path, break_file):
    monkeypatch.setenv("TRIALKEEPER_RUN", "0123456789abcdef")
    break_file(tmp_path, monkeypatch)
    nni.report_final_result(1)
    monkeypatch.undo()
    assert capsys.readouterr().out.startswith("NNISDK_MEb'{")


@pytest.mark.parametrize(
    ("value", "error", "message"),
    [(object(), TypeError, "object"), ("x" * 1_000_000, ValueError, "result of")],
)
def test_a_result_that_cannot_be_reported_is_refused(in_a_trial, value, error, message):
    with pytest.raises(error, match=message):
        nni.report_final_result(value)


def test_outside_a_trial_there_are_no_parameters_and_results_are_printed(capsys):
    assert nni.get_current_parameter() is None
    with pytest.warns(RuntimeWarning, match="NNI_PLATFORM"):
        assert nni.get_next_parameter() == {}
    assert nni.get_current_parameter() == {}
    nni.report_final_result(0.5)
    assert "final result 0.5" in capsys.readouterr().out
    assert (nni.get_experiment_id(), nni.get_trial_id(), nni.get_sequence_id()) == ("STANDALONE", "STANDALONE", 0)


def test_parameters_that_cannot_be_read_end_the_trial(in_a_trial, tmp_path):
    (tmp_path / "parameter.cfg").write_text("{")
    with pytest.raises(RuntimeError, match="not JSON"):
        nni.get_next_parameter()
    (tmp_path / "parameter.cfg").unlink()
    with pytest.raises(RuntimeError, match=r"parameter\.cfg"):
        nni.get_next_parameter()


def test_the_channel_over_http_is_used_where_there_is_one(in_a_trial, monkeypatch):
    received = []

    class Keeper(BaseHTTPRequestHandler):
        polls = 0

        def do_PUT(self):
            received.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(200)
            self.end_headers()

        def do_GET(self):
            Keeper.polls += 1
            self.send_response(408 if Keeper.polls == 1 else 200)
            self.end_headers()
            if Keeper.polls > 1:
                self.wfile.write(json.dumps({"type": "parameter", "parameter": json.dumps(RECORD)}).encode())

        def log_message(self, *_):
            pass

    with HTTPServer(("127.0.0.1", 0), Keeper) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        monkeypatch.setenv("NNI_TRIAL_COMMAND_CHANNEL", f"http://127.0.0.1:{server.server_port}/env/x/abcde")
        assert nni.get_next_parameter() == {"lr": 0.5}
        nni.report_final_result(0.25)
        server.shutdown()
    assert received[0] == {"type": "request_parameter"}
    assert json.loads(received[1]["metric"])["value"] == "0.25"


def test_parameters_are_merged_into_arguments():
    assert merge_parameter({"lr": 0.1, "n": None}, {"lr": 1, "n": "x"}) == {"lr": 1.0, "n": "x"}
    assert merge_parameter(argparse.Namespace(lr=0.1), {"lr": 0.5}).lr == 0.5
    assert merge_parameter({"lr": 0.1}, None) == {"lr": 0.1}

    class Defaults:
        lr = 0.1

    assert (merge_parameter(Defaults(), {"lr": 1}).lr, merge_parameter(Defaults, {"lr": 0.5}).lr) == (1.0, 0.5)
    with pytest.raises(ValueError, match=r"'batch'.*lr"):
        merge_parameter({"lr": 0.1}, {"batch": 1})
    with pytest.raises(ValueError, match=r"'n'.*int"):
        merge_parameter({"n": 1}, {"n": "x"})


def test_what_this_package_has_not_is_said():
    with pytest.raises(AttributeError, match=r"no nni\.choice.*Microsoft"):
        nni.choice  # noqa: B018


def test_both_packages_together_are_refused(tmp_path):
    """The metadata of NNI's own package is enough to count as an installation."""
    import os
    import subprocess
    import sys

    metadata = tmp_path / "nni-3.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: nni\nVersion: 3.0\n")
    path = os.pathsep.join([str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])])
    surroundings = {**os.environ, "PYTHONPATH": path}
    done = subprocess.run([sys.executable, "-c", "import nni"], capture_output=True, text=True, env=surroundings)
    assert done.returncode == 1
    assert "nni 3.0 and trialkeeper-nni" in done.stderr and "pip uninstall" in done.stderr
