"""Writes the wheels: a standard-library build backend.

``pip wheel python`` and ``python/build-wheel`` use it. Cargo first builds the static programs with the same
command as for a release. maturin is not used, because it supports only the programs of one crate and builds them
with its own flags. The shipped programs would then not be the tested ones.
"""

from __future__ import annotations

import base64
import hashlib
import importlib
import os
import re
import subprocess
import sys
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Optional

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
PROGRAMS = ("trial-manager", "trialkeeper")
#: The executable files of the package.
PACKAGE_PROGRAMS = ("trialkeeper/nni/nni_node/node",)
#: The files that reject ``import nni`` if Microsoft's package is also installed.
NNI_GUARD = ("_trialkeeper_nni_guard.py", "trialkeeper_nni_guard.pth")
#: The wheel's platform tags for each Rust target. Static programs run with any C library, hence both families.
PLATFORMS = {
    "x86_64-unknown-linux-musl": "manylinux_2_17_x86_64.manylinux2014_x86_64.musllinux_1_1_x86_64",
    "aarch64-unknown-linux-musl": "manylinux_2_17_aarch64.manylinux2014_aarch64.musllinux_1_1_aarch64",
}
#: The ELF machine number (``e_machine``) of each target.
_MACHINES = {"x86_64-unknown-linux-musl": 62, "aarch64-unknown-linux-musl": 183}
#: The name of the target for this machine. Its programs may need shared libraries, so its wheel runs only here.
HOST = "host"
#: The time of all files, so that equal inputs produce equal wheels. A ZIP cannot store times before 1980.
_ZIP_TIME = (1980, 1, 1, 0, 0, 0)


class BuildError(Exception):
    """The wheel cannot be built. The message contains the remedy."""


def workspace_version() -> str:
    """Returns the version of the Cargo workspace, which is also the version of the wheels."""
    manifest = (ROOT / "Cargo.toml").read_text(encoding="utf-8")
    found = re.search(r'^\[workspace\.package\][^\[]*?^version = "([^"]+)"', manifest, re.MULTILINE | re.DOTALL)
    if found is None:
        raise BuildError(f"{ROOT / 'Cargo.toml'}: [workspace.package] has no version")
    return found.group(1)


def build_programs(target: str) -> Path:
    """Builds both programs with Cargo and returns their folder."""
    static = "static" if target.startswith("x86_64") else "static-aarch64"
    manager = ["build", "--profile", "dist", "--locked", "--package", "trial-manager", "--target", target]
    for command in (["cargo", static], ["cargo", *manager]):
        try:
            subprocess.run(command, cwd=ROOT, check=True)
        except FileNotFoundError:
            raise BuildError("cargo is missing: install Rust from https://rustup.rs") from None
        except subprocess.CalledProcessError as error:
            raise BuildError(f"`{' '.join(command)}` failed with exit code {error.returncode}") from None
    return Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target")) / target / "dist"


def read_programs(target: str, programs: Path) -> dict[str, bytes]:
    """Returns the programs in a folder.

    :raises BuildError: if a program is missing, needs a shared library, or is for another processor.
    """
    scripts = {}
    for name in PROGRAMS:
        path = programs / name
        if not path.is_file():
            raise BuildError(f"{path}: no such program; build it, or name another folder with --programs")
        content = path.read_bytes()
        if target != HOST and _needs_loader(content):
            raise BuildError(f"{path}: not a static program; build it with --target {target}")
        if target != HOST and int.from_bytes(content[18:20], "little") != _MACHINES[target]:
            raise BuildError(f"{path}: a program for another processor; build it with --target {target}")
        scripts[name] = content
    return scripts


def write_main_wheel(out: Path, target: str, programs: Path, sbom: Optional[bytes] = None) -> Path:
    """Writes the wheel ``trialkeeper`` with the programs in a folder, and returns its path.

    :param sbom: the SBOM of the programs, in CycloneDX's format (PEP 770).
    :raises BuildError: if a program is missing or needs a shared library.
    """
    files = dict(_package_files(HERE / "src", "trialkeeper"))
    scripts = read_programs(target, programs)
    platform = f"linux_{os.uname().machine}" if target == HOST else PLATFORMS[target]
    return _write_wheel(out, HERE, f"py3-none-{platform}", files, scripts, sbom)


def write_nni_wheel(out: Path) -> Path:
    """Writes the pure Python wheel ``trialkeeper-nni`` and returns its path."""
    folder = HERE / "nni"
    own, workspace = _project(folder)["version"], workspace_version()
    if own != workspace:
        raise BuildError(f"{folder / 'pyproject.toml'}: version {own} is not the workspace's, {workspace}")
    files = dict(_package_files(folder / "src", "nni"))
    # These files are outside the package, so that they remain if another distribution overwrites the package.
    files.update((name, (folder / "src" / name).read_bytes()) for name in NNI_GUARD)
    return _write_wheel(out, folder, "py3-none-any", files, {})


# The build backend (PEP 517).


def build_wheel(
    wheel_directory: str,
    config_settings: Optional[Mapping[str, Any]] = None,
    metadata_directory: Optional[str] = None,
) -> str:
    """Builds the wheel ``trialkeeper`` for ``pip``.

    ``TARGET`` names another Rust target, and ``TRIALKEEPER_BUILT`` a folder of programs that are already built.
    """
    target = os.environ.get("TARGET", "x86_64-unknown-linux-musl")
    built = os.environ.get("TRIALKEEPER_BUILT")
    return write_main_wheel(Path(wheel_directory), target, Path(built) if built else build_programs(target)).name


def build_editable(
    wheel_directory: str,
    config_settings: Optional[Mapping[str, Any]] = None,
    metadata_directory: Optional[str] = None,
) -> str:
    """Builds a wheel that refers to the source tree, for ``pip install -e`` (PEP 660).

    The programs are found in ``PATH``, in ``TRIALKEEPER_PROGRAMS``, or in the checkout's ``target/debug``.
    """
    path = {"trialkeeper.pth": f"{HERE / 'src'}\n".encode()}
    return _write_wheel(Path(wheel_directory), HERE, "py3-none-any", path, {}).name


def build_sdist(sdist_directory: str, config_settings: Optional[Mapping[str, Any]] = None) -> str:
    """Raises an error, because a source distribution would need the whole workspace."""
    raise BuildError("there is no source distribution: build the wheel from a checkout with python/build-wheel")


# The format of a wheel.


def _package_files(source: Path, package: str) -> Iterator[tuple[str, bytes]]:
    for path in sorted((source / package).rglob("*")):
        if path.is_file() and "__pycache__" not in path.parts:
            yield path.relative_to(source).as_posix(), path.read_bytes()


def _write_wheel(
    out: Path,
    project_folder: Path,
    tag: str,
    files: Mapping[str, bytes],
    scripts: Mapping[str, bytes],
    sbom: Optional[bytes] = None,
) -> Path:
    project = _project(project_folder)
    version = workspace_version()
    name = re.sub(r"[-_.]+", "_", project["name"]).lower()
    stem = f"{name}-{version}"
    info = f"{stem}.dist-info"
    contents: dict[str, bytes] = dict(files)
    for script, content in scripts.items():
        contents[f"{stem}.data/scripts/{script}"] = content
    for licence in ("LICENSE-MIT", "LICENSE-APACHE"):
        if (ROOT / licence).is_file():
            contents[f"{info}/licenses/{licence}"] = (ROOT / licence).read_bytes()
    if "scripts" in project:
        lines = "".join(f"{command} = {target}\n" for command, target in project["scripts"].items())
        contents[f"{info}/entry_points.txt"] = f"[console_scripts]\n{lines}".encode()
    if sbom is not None:
        contents[f"{info}/sboms/trialkeeper.cdx.json"] = sbom
    contents[f"{info}/METADATA"] = _metadata(project, project_folder, version).encode()
    contents[f"{info}/WHEEL"] = _wheel_file(tag, pure=not scripts).encode()
    record = "".join(f"{path},{_digest(content)},{len(content)}\n" for path, content in contents.items())
    contents[f"{info}/RECORD"] = f"{record}{info}/RECORD,,\n".encode()

    out.mkdir(parents=True, exist_ok=True)
    wheel = out / f"{stem}-{tag}.whl"
    with zipfile.ZipFile(wheel, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
        for path, content in contents.items():
            member = zipfile.ZipInfo(path, _ZIP_TIME)
            member.compress_type = zipfile.ZIP_DEFLATED
            is_program = ".data/scripts/" in path or path in PACKAGE_PROGRAMS
            member.external_attr = (0o100755 if is_program else 0o100644) << 16
            archive.writestr(member, content)
    return wheel


def _project(folder: Path) -> dict[str, Any]:
    name = "tomllib" if sys.version_info >= (3, 11) else "tomli"
    try:
        toml = importlib.import_module(name)
    except ImportError:
        raise BuildError("building needs Python 3.11 or newer, or the package tomli") from None
    project: dict[str, Any] = toml.loads((folder / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return project


def _metadata(project: Mapping[str, Any], folder: Path, version: str) -> str:
    lines = [
        "Metadata-Version: 2.4",
        f"Name: {project['name']}",
        f"Version: {version}",
        f"Summary: {project['description']}",
        f"Requires-Python: {project['requires-python']}",
        f"License-Expression: {project['license']}",
        f"Keywords: {','.join(project['keywords'])}",
        *(f"Classifier: {classifier}" for classifier in project["classifiers"]),
    ]
    # Both wheels are built from the same commit and depend on each other's version.
    pinned = {"trialkeeper": f"trialkeeper=={version}"}
    lines += [f"Requires-Dist: {pinned.get(name, name)}" for name in project["dependencies"]]
    for extra, dependencies in project.get("optional-dependencies", {}).items():
        lines.append(f"Provides-Extra: {extra}")
        lines += [f'Requires-Dist: {dependency}; extra == "{extra}"' for dependency in dependencies]
    readme = (folder / project["readme"]).read_text(encoding="utf-8")
    return "\n".join([*lines, "Description-Content-Type: text/markdown", "", readme])


def _wheel_file(tag: str, pure: bool) -> str:
    python, abi, platforms = tag.split("-")
    tags = "".join(f"Tag: {python}-{abi}-{platform}\n" for platform in platforms.split("."))
    return f"Wheel-Version: 1.0\nGenerator: trialkeeper\nRoot-Is-Purelib: {str(pure).lower()}\n{tags}"


def _digest(content: bytes) -> str:
    return "sha256=" + base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()


def _needs_loader(program: bytes) -> bool:
    """Returns whether a 64-bit little-endian ELF program has a dynamic loader (segment type ``PT_INTERP``)."""
    if program[:6] != b"\x7fELF\x02\x01":
        return True
    table = int.from_bytes(program[32:40], "little")
    size = int.from_bytes(program[54:56], "little")
    count = int.from_bytes(program[56:58], "little")
    kinds = (int.from_bytes(program[table + n * size :][:4], "little") for n in range(count))
    return 3 in kinds


def main(words: list[str]) -> None:
    """Runs ``python/build-wheel``."""
    import argparse

    parser = argparse.ArgumentParser(
        prog="python/build-wheel", description="Builds the wheels trialkeeper and trialkeeper-nni."
    )
    target = "x86_64-unknown-linux-musl"
    parser.add_argument(
        "out", nargs="?", type=Path, default=HERE / "dist", help="folder for the wheels [python/dist]"
    )
    parser.add_argument(
        "--target",
        choices=[*PLATFORMS, HOST],
        default=target,
        help=f"Rust target [{target}]; `host`: a wheel for this machine, with the programs in --programs",
    )
    parser.add_argument("--programs", type=Path, help="folder of programs that are already built")
    args = parser.parse_args(words)
    if args.target == HOST and args.programs is None:
        parser.error("--target host needs --programs, such as target/release")
    try:
        programs = args.programs or build_programs(args.target)
        wheels = [write_main_wheel(args.out, args.target, programs), write_nni_wheel(args.out)]
    except BuildError as error:
        sys.exit(f"build-wheel: {error}")
    for wheel in wheels:
        print(f"{wheel} ({wheel.stat().st_size / 1e6:.1f} MB)")


if __name__ == "__main__":
    main(sys.argv[1:])
