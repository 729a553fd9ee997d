"""The build backend and the script for releases, with stand-ins for the programs."""

import base64
import csv
import hashlib
import importlib
import io
import json
import os
import shutil
import struct
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[1] / "wheels.py"
if not SOURCE.is_file():
    pytest.skip("the tests run outside the source tree", allow_module_level=True)
if sys.version_info < (3, 11):
    pytest.importorskip("tomli")

sys.path.insert(0, str(SOURCE.parent))
wheels = importlib.import_module("wheels")
release = importlib.import_module("release")

TARGET = "x86_64-unknown-linux-musl"


def elf(*segments, machine=62):
    """Returns a 64-bit program for a processor, with empty segments of these types."""
    table = struct.pack("<QQIHHHHHH", 64, 0, 0, 64, 56, len(segments), 0, 0, 0)
    headers = [struct.pack("<I", kind).ljust(56, b"\0") for kind in segments]
    head = b"\x7fELF\x02\x01".ljust(16, b"\0") + struct.pack("<HHIQ", 2, machine, 1, 0)
    return b"".join([head, table, *headers])


@pytest.fixture
def programs(tmp_path):
    return write_programs(tmp_path / "programs")


def write_programs(folder, machine=62):
    folder.mkdir()
    for name in wheels.PROGRAMS:
        (folder / name).write_bytes(elf(1, 6, machine=machine))
    return folder


@pytest.mark.parametrize(("machine", "number"), [("x86_64", 62), ("aarch64", 183)])
def test_a_wheel_holds_what_its_record_says(tmp_path, machine, number):
    programs = write_programs(tmp_path / "programs", number)
    wheel = wheels.write_main_wheel(tmp_path, f"{machine}-unknown-linux-musl", programs)
    version = wheels.workspace_version()
    assert wheel.name == (
        f"trialkeeper-{version}-py3-none-manylinux_2_17_{machine}.manylinux2014_{machine}.musllinux_1_1_{machine}.whl"
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
    [
        (elf(1, 3), "not a static program"),
        (b"#!/bin/sh\n", "not a static program"),
        (elf(1, 6, machine=183), "a program for another processor"),
        (None, "no such program"),
    ],
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
        assert {"nni/py.typed", *wheels.NNI_GUARD} <= set(archive.namelist())


@pytest.mark.parametrize("order", [("nni", "trialkeeper_nni"), ("trialkeeper_nni", "nni")])
def test_both_kinds_of_nni_at_once_are_refused_in_either_order(tmp_path, order):
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check"]
    if subprocess.run([*pip, "--version"], capture_output=True).returncode != 0:
        pytest.skip("there is no pip")
    original = tmp_path / "nni-3.0-py3-none-any.whl"
    with zipfile.ZipFile(original, "w") as archive:
        archive.writestr("nni/__init__.py", "__version__ = '3.0'\n")
        archive.writestr("nni-3.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: nni\nVersion: 3.0\n")
        archive.writestr(
            "nni-3.0.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        archive.writestr("nni-3.0.dist-info/RECORD", "")
    found = {"nni": original, "trialkeeper_nni": wheels.write_nni_wheel(tmp_path)}
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "venv"], check=True)
    python = tmp_path / "venv" / "bin" / "python"

    def run(code):
        environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        return subprocess.run([python, "-c", code], capture_output=True, text=True, env=environment)

    for name in order:
        words = ["--python", python, "install", "--quiet", "--no-deps", "--no-index", found[name]]
        subprocess.run([*pip, *words], check=True)
        if name == order[0] == "nni":
            assert run("import nni; print(nni.__version__)").stdout == "3.0\n"
    refused = run("import nni")
    last = {"nni": "Microsoft's nni", "trialkeeper_nni": "trialkeeper-nni"}[order[1]]
    assert refused.returncode == 1
    assert f"those of {last} are there" in refused.stderr and "pip uninstall nni trialkeeper-nni" in refused.stderr
    assert run("import json; print('fine')").stdout == "fine\n"
    # The remedy in the message.
    subprocess.run(
        [*pip, "--python", python, "uninstall", "--quiet", "--yes", "nni", "trialkeeper_nni"], check=True
    )
    subprocess.run(
        [*pip, "--python", python, "install", "--quiet", "--no-deps", "--no-index", original], check=True
    )
    assert run("import nni; print(nni.__version__)").stdout == "3.0\n"


def test_an_editable_install_has_the_source_trees_module(tmp_path):
    wheel = wheels.build_editable(str(tmp_path))
    with zipfile.ZipFile(tmp_path / wheel) as archive:
        (folder,) = archive.read("trialkeeper.pth").decode().splitlines()
    assert Path(folder) == SOURCE.parent / "src"


# Releases.


def package(name, license="MIT/Apache-2.0", source="registry"):
    return {"id": f"{name} 1.0", "name": name, "version": "1.0", "license": license, "source": source}


def node(name, **needs):
    deps = [{"pkg": f"{needed} 1.0", "dep_kinds": [{"kind": kind}]} for needed, kind in needs.items()]
    return {"id": f"{name} 1.0", "deps": deps}


METADATA = {
    "packages": [
        package("trialkeeper", source=None),
        package("trial-manager", source=None),
        package("tests", source=None),
        *map(package, ["serde", "cc", "proptest", "lone"]),
    ],
    "workspace_members": ["trialkeeper 1.0", "trial-manager 1.0", "tests 1.0"],
    "resolve": {
        "nodes": [
            node("trialkeeper", serde=None, proptest="dev"),
            node("trial-manager", serde=None, cc="build"),
            node("tests", lone=None),
            *map(node, ["serde", "cc", "proptest", "lone"]),
        ]
    },
}


@pytest.fixture
def files(programs, tmp_path):
    return {path.name: path for path in release.write_release(tmp_path / "out", TARGET, programs, METADATA)}


def test_an_sbom_lists_what_is_linked_and_nothing_for_tests_alone(files):
    (name,) = [name for name in files if name.endswith(".cdx.json")]
    bom = json.loads(files[name].read_bytes())
    assert (bom["bomFormat"], bom["specVersion"]) == ("CycloneDX", "1.6")
    assert [component["name"] for component in bom["components"]] == [
        "cc",
        "serde",
        "trial-manager",
        "trialkeeper",
    ]
    assert bom["components"][1]["purl"] == "pkg:cargo/serde@1.0"
    assert bom["components"][1]["licenses"] == [{"expression": "MIT OR Apache-2.0"}]
    needs = {row["ref"]: row["dependsOn"] for row in bom["dependencies"]}
    assert needs["pkg:cargo/trial-manager@1.0"] == ["pkg:cargo/cc@1.0", "pkg:cargo/serde@1.0"]
    assert len(needs["trialkeeper"]) == 2
    (wheel,) = [path for name, path in files.items() if name.startswith("trialkeeper-") and name.endswith(".whl")]
    with zipfile.ZipFile(wheel) as archive:
        info = f"trialkeeper-{wheels.workspace_version()}.dist-info"
        assert archive.read(f"{info}/sboms/trialkeeper.cdx.json") == files[name].read_bytes()
        assert f"{info}/sboms/trialkeeper.cdx.json," in archive.read(f"{info}/RECORD").decode()


def test_the_sbom_of_this_workspace_is_made(programs):
    if shutil.which("cargo") is None:
        pytest.skip("cargo is not installed")
    try:
        bom = json.loads(release.make_sbom(release.read_metadata(TARGET)))
    except wheels.BuildError as error:
        pytest.skip(f"cargo has no registry: {error}")
    names = {component["name"] for component in bom["components"]}
    assert {"trialkeeper", "trial-manager", "trial-protocol", "tokio"} <= names
    assert "proptest" not in names
    references = {row["ref"] for row in bom["dependencies"]}
    assert all(set(row["dependsOn"]) <= references for row in bom["dependencies"])


def test_checksums_are_right_for_all_files(files):
    sums = files["SHA256SUMS"]
    done = subprocess.run(["sha256sum", "--check", sums.name], cwd=sums.parent, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count(": OK") == len(files) - 1 == 5


def test_checksums_are_right_for_all_files_of_two_targets(files, tmp_path):
    arm = write_programs(tmp_path / "arm", 183)
    out = files["SHA256SUMS"].parent
    (out / "notes.txt").touch()
    release.write_release(out, "aarch64-unknown-linux-musl", arm, METADATA)
    done = subprocess.run(["sha256sum", "--check", "SHA256SUMS"], cwd=out, capture_output=True, text=True)
    assert (done.returncode, done.stdout.count(": OK")) == (0, 9), done.stdout + done.stderr
    assert "notes.txt" not in done.stdout


def test_an_archive_holds_both_programs_to_be_executed(files, tmp_path):
    (name,) = [name for name in files if name.endswith(".tar.gz")]
    with tarfile.open(files[name]) as archive:
        archive.extractall(tmp_path / "unpacked")
    folder = tmp_path / "unpacked" / name[: -len(".tar.gz")]
    for program in wheels.PROGRAMS:
        assert os.access(folder / program, os.X_OK)
    assert (folder / "sbom.cdx.json").is_file()


def test_a_debian_package_is_installed_and_removed(files, tmp_path):
    if shutil.which("dpkg") is None:
        pytest.skip("dpkg is not installed")
    (deb,) = [path for name, path in files.items() if name.endswith("_amd64.deb")]
    field = subprocess.check_output(["dpkg-deb", "--field", deb, "Package", "Version"], text=True)
    assert field == f"Package: trialkeeper\nVersion: {wheels.workspace_version()}\n"
    listed = subprocess.check_output(["dpkg-deb", "--contents", deb], text=True)
    assert "-rwxr-xr-x root/root" in listed and " ./usr/bin/trial-manager" in listed
    root = tmp_path / "root"
    for folder in ("var/lib/dpkg/updates", "var/lib/dpkg/info"):
        (root / folder).mkdir(parents=True)
    (root / "var/lib/dpkg/status").touch()
    dpkg = [
        "dpkg",
        f"--root={root}",
        "--force-not-root",
        "--force-architecture",
        "--force-bad-path",
        "--log=/dev/null",
    ]
    done = subprocess.run([*dpkg, "--install", deb], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert os.access(root / "usr/bin/trialkeeper", os.X_OK)
    done = subprocess.run([*dpkg, "--verify", "trialkeeper"], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, ""), "dpkg's checksums differ"
    subprocess.run([*dpkg, "--purge", "trialkeeper"], check=True, capture_output=True)
    assert not (root / "usr/bin/trialkeeper").exists()


def test_equal_inputs_make_equal_releases(files, programs, tmp_path):
    again = release.write_release(tmp_path / "again", TARGET, programs, METADATA)
    assert {path.name: path.read_bytes() for path in again} == {
        name: path.read_bytes() for name, path in files.items()
    }


def test_a_wheel_for_this_machine_takes_the_programs_as_they_are(programs, tmp_path):
    (programs / "trialkeeper").write_bytes(elf(1, 3))
    wheel = wheels.write_main_wheel(tmp_path, wheels.HOST, programs)
    assert wheel.name.endswith(f"-py3-none-linux_{os.uname().machine}.whl")
