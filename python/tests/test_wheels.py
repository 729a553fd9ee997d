"""The build backend, with stand-ins for the programs."""

import base64
import csv
import hashlib
import importlib.util
import io
import struct
import sys
import zipfile
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[1] / "wheels.py"
if not SOURCE.is_file():
    pytest.skip("the tests run outside the source tree", allow_module_level=True)
if sys.version_info < (3, 11):
    pytest.importorskip("tomli")

spec = importlib.util.spec_from_file_location("wheels", SOURCE)
wheels = importlib.util.module_from_spec(spec)
spec.loader.exec_module(wheels)

TARGET = "x86_64-unknown-linux-musl"


def elf(*segments):
    """A 64-bit program with segments of these types and nothing in them."""
    table = struct.pack("<QQIHHHHHH", 64, 0, 0, 64, 56, len(segments), 0, 0, 0)
    headers = [struct.pack("<I", kind).ljust(56, b"\0") for kind in segments]
    return b"".join([b"\x7fELF\x02\x01".ljust(32, b"\0"), table, *headers])


@pytest.fixture
def programs(tmp_path):
    folder = tmp_path / "programs"
    folder.mkdir()
    for name in wheels.PROGRAMS:
        (folder / name).write_bytes(elf(1, 6))
    return folder


def test_a_wheel_holds_what_its_record_says(programs, tmp_path):
    wheel = wheels.write_main_wheel(tmp_path, TARGET, programs)
    version = wheels.workspace_version()
    assert wheel.name == (
        f"trialkeeper-{version}-py3-none-manylinux_2_17_x86_64.manylinux2014_x86_64.musllinux_1_1_x86_64.whl"
    )
    with zipfile.ZipFile(wheel) as archive:
        info = f"trialkeeper-{version}.dist-info"
        record = {row[0]: row[1:] for row in csv.reader(io.StringIO(archive.read(f"{info}/RECORD").decode()))}
        assert set(record) == set(archive.namelist())
        for path, (digest, size) in record.items():
            content = archive.read(path)
            if path != f"{info}/RECORD":
                expected = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
                assert (digest, size) == (f"sha256={expected}", str(len(content)))
        modes = {item.filename: item.external_attr >> 16 for item in archive.infolist()}
        for name in wheels.PROGRAMS:
            assert modes[f"trialkeeper-{version}.data/scripts/{name}"] == 0o100755
        assert "trialkeeper/py.typed" in record
        description = archive.read(f"{info}/WHEEL").decode()
        assert "Root-Is-Purelib: false" in description
        assert description.count("Tag: py3-none-") == 3
        assert 'Requires-Dist: pandas; extra == "pandas"' in archive.read(f"{info}/METADATA").decode()


def test_equal_inputs_make_equal_wheels(programs, tmp_path):
    first = wheels.write_main_wheel(tmp_path / "first", TARGET, programs)
    second = wheels.write_main_wheel(tmp_path / "second", TARGET, programs)
    assert first.read_bytes() == second.read_bytes()


@pytest.mark.parametrize(
    ("content", "message"),
    [(elf(1, 3), "not a static program"), (b"#!/bin/sh\n", "not a static program"), (None, "no such program")],
)
def test_a_program_that_would_not_run_everywhere_is_refused(programs, tmp_path, content, message):
    program = programs / "trialkeeper"
    if content is None:
        program.unlink()
    else:
        program.write_bytes(content)
    with pytest.raises(wheels.BuildError, match=f"programs/trialkeeper: {message}"):
        wheels.write_main_wheel(tmp_path, TARGET, programs)


def test_nnis_interface_needs_the_main_wheel_of_its_version(tmp_path):
    wheel = wheels.write_nni_wheel(tmp_path)
    version = wheels.workspace_version()
    assert wheel.name == f"trialkeeper_nni-{version}-py3-none-any.whl"
    with zipfile.ZipFile(wheel) as archive:
        info = f"trialkeeper_nni-{version}.dist-info"
        assert f"Requires-Dist: trialkeeper=={version}\n" in archive.read(f"{info}/METADATA").decode()
        assert "nnictl = nni.nnictl:main" in archive.read(f"{info}/entry_points.txt").decode()
        assert "nni/py.typed" in archive.namelist()
