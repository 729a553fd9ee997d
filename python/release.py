"""Writes all files of a release from one pair of programs, using only the standard library.

A release consists of the wheels, an archive with both programs, a Debian package, an SBOM in CycloneDX's format,
and the checksums of all files. Equal inputs produce equal files.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import io
import json
import subprocess
import sys
import tarfile
import tempfile
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from wheels import (
    HERE,
    PLATFORMS,
    PROGRAMS,
    ROOT,
    BuildError,
    build_programs,
    read_programs,
    workspace_version,
    write_main_wheel,
    write_nni_wheel,
)

#: Debian's name of the architecture of each target.
ARCHITECTURES = {"x86_64-unknown-linux-musl": "amd64", "aarch64-unknown-linux-musl": "arm64"}
#: The modification time of all files, in seconds since 1970. It is the same for every build.
_TIME = 315532800


def read_metadata(target: str) -> dict[str, Any]:
    """Returns Cargo's metadata of the workspace and its dependencies for a target."""
    command = ["cargo", "metadata", "--format-version", "1", "--locked", "--filter-platform", target]
    try:
        done = subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    except FileNotFoundError:
        raise BuildError("cargo is missing: install Rust from https://rustup.rs") from None
    except subprocess.CalledProcessError as error:
        raise BuildError(f"`{' '.join(command)}` failed: {error.stderr.decode(errors='replace')}") from None
    metadata: dict[str, Any] = json.loads(done.stdout)
    return metadata


def make_sbom(metadata: Mapping[str, Any]) -> bytes:
    """Returns the SBOM of both programs: CycloneDX 1.6, with all linked crates and build dependencies."""
    packages = {package["id"]: package for package in metadata["packages"]}
    nodes = {node["id"]: node for node in metadata["resolve"]["nodes"]}
    members = set(metadata["workspace_members"])
    programs = sorted(id for id in members if packages[id]["name"] in PROGRAMS)
    needed: dict[str, list[str]] = {}
    to_visit = list(programs)
    while to_visit:
        id = to_visit.pop()
        if id in needed:
            continue
        # Crates that only tests use are not in the programs.
        needed[id] = sorted(
            dependency["pkg"]
            for dependency in nodes[id]["deps"]
            if any(kind["kind"] in (None, "normal", "build") for kind in dependency["dep_kinds"])
        )
        to_visit += needed[id]
    version = workspace_version()
    own = {"type": "application", "bom-ref": "trialkeeper", "name": "trialkeeper", "version": version}
    references = {id: _package_url(packages[id]) for id in needed}
    bom: dict[str, Any] = {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {"component": own},
        "components": [_component(packages[id]) for id in sorted(needed, key=lambda id: references[id])],
        "dependencies": [
            {"ref": "trialkeeper", "dependsOn": sorted(references[id] for id in programs)},
            *(
                {"ref": references[id], "dependsOn": sorted({references[needs] for needs in needed[id]})}
                for id in sorted(needed, key=lambda id: references[id])
            ),
        ],
    }
    content = json.dumps(bom, sort_keys=True)
    bom["serialNumber"] = f"urn:uuid:{uuid.uuid5(uuid.NAMESPACE_URL, content)}"
    return (json.dumps(bom, indent=1, sort_keys=True) + "\n").encode()


def make_man_pages(programs: Path) -> dict[str, bytes]:
    """Returns the man pages by name; none if the programs are for another processor."""
    with tempfile.TemporaryDirectory() as folder:
        try:
            subprocess.run([programs / "trial-manager", "man", folder], check=True, capture_output=True)
        except (OSError, subprocess.CalledProcessError):
            return {}
        return {page.name: page.read_bytes() for page in sorted(Path(folder).iterdir())}


def write_archive(
    out: Path,
    target: str,
    programs: Mapping[str, bytes],
    sbom: bytes,
    man_pages: Mapping[str, bytes] | None = None,
) -> Path:
    """Writes the archive with both programs and returns its path."""
    stem = f"trialkeeper-{workspace_version()}-{target}"
    files = {f"{stem}/{name}": (content, 0o755) for name, content in programs.items()}
    files |= {f"{stem}/man/man1/{name}": (page, 0o644) for name, page in (man_pages or {}).items()}
    files[f"{stem}/README.md"] = ((ROOT / "README.md").read_bytes(), 0o644)
    files[f"{stem}/sbom.cdx.json"] = (sbom, 0o644)
    for licence in sorted(ROOT.glob("LICENSE*")):
        files[f"{stem}/{licence.name}"] = (licence.read_bytes(), 0o644)
    archive = out / f"{stem}.tar.gz"
    archive.write_bytes(_tar(files))
    return archive


def write_debian_package(
    out: Path,
    target: str,
    programs: Mapping[str, bytes],
    sbom: bytes,
    man_pages: Mapping[str, bytes] | None = None,
) -> Path:
    """Writes the Debian package ``trialkeeper``, which has no dependencies, and returns its path."""
    version, architecture = workspace_version(), ARCHITECTURES[target]
    licence = b"Source: the repository of TrialKeeper\nLicense: MIT OR Apache-2.0\n"
    files = {f"./usr/bin/{name}": (content, 0o755) for name, content in programs.items()}
    for name, page in (man_pages or {}).items():
        files[f"./usr/share/man/man1/{name}.gz"] = (gzip.compress(page, mtime=0), 0o644)
    files["./usr/share/doc/trialkeeper/copyright"] = (licence, 0o644)
    files["./usr/share/doc/trialkeeper/sbom.cdx.json"] = (sbom, 0o644)
    size = sum(len(content) for content, _ in files.values()) // 1024 + 1
    control = (
        f"Package: trialkeeper\nVersion: {version}\nArchitecture: {architecture}\nInstalled-Size: {size}\n"
        "Maintainer: The TrialKeeper developers <trialkeeper@example.invalid>\nSection: science\n"
        "Priority: optional\nDescription: hyper-parameter search that keeps every result\n"
        " The programs trial-manager, which runs a search, and trialkeeper, which runs a trial.\n"
    )
    sums = "".join(f"{hashlib.md5(content).hexdigest()}  {path[2:]}\n" for path, (content, _) in files.items())
    controls = {"./control": (control.encode(), 0o644), "./md5sums": (sums.encode(), 0o644)}
    members = {"debian-binary": b"2.0\n", "control.tar.gz": _tar(controls), "data.tar.gz": _tar(files)}
    package = out / f"trialkeeper_{version}_{architecture}.deb"
    package.write_bytes(b"!<arch>\n" + b"".join(_ar_member(name, content) for name, content in members.items()))
    return package


def write_checksums(out: Path) -> Path:
    """Writes ``SHA256SUMS``, which ``sha256sum --check`` reads, and returns its path.

    It lists all files of this version in the folder, because the targets of a release are written one by one.
    """
    sums = out / "SHA256SUMS"
    files = out.glob(f"trialkeeper[-_]*{workspace_version()}[-_]*")
    lines = (f"{hashlib.sha256(file.read_bytes()).hexdigest()}  {file.name}\n" for file in sorted(files))
    sums.write_text("".join(lines), encoding="utf-8")
    return sums


def write_release(out: Path, target: str, programs: Path, metadata: Mapping[str, Any]) -> list[Path]:
    """Writes all files of a release for one target and returns their paths."""
    out.mkdir(parents=True, exist_ok=True)
    contents, sbom = read_programs(target, programs), make_sbom(metadata)
    pages = make_man_pages(programs)
    sbom_file = out / f"trialkeeper-{workspace_version()}-{target}.cdx.json"
    sbom_file.write_bytes(sbom)
    files = [
        write_main_wheel(out, target, programs, sbom),
        write_nni_wheel(out),
        write_archive(out, target, contents, sbom, pages),
        write_debian_package(out, target, contents, sbom, pages),
        sbom_file,
    ]
    return [*files, write_checksums(out)]


def _component(package: Mapping[str, Any]) -> dict[str, Any]:
    url = _package_url(package)
    component = {"type": "library", "bom-ref": url, "name": package["name"], "version": package["version"]}
    if package.get("source"):
        component["purl"] = url
    if package.get("license"):
        # Older manifests separate alternatives by a slash.
        component["licenses"] = [{"expression": package["license"].replace("/", " OR ")}]
    return component


def _package_url(package: Mapping[str, Any]) -> str:
    return f"pkg:cargo/{package['name']}@{package['version']}"


def _tar(files: Mapping[str, tuple[bytes, int]]) -> bytes:
    """Returns a compressed archive of files and their parent folders, all owned by root."""
    packed, folders = io.BytesIO(), set[str]()
    with tarfile.open(fileobj=packed, mode="w", format=tarfile.GNU_FORMAT) as archive:
        for path, (content, mode) in files.items():
            parts = path.split("/")[:-1]
            for depth in range(1, len(parts) + 1):
                folder = "/".join(parts[:depth])
                if folder not in folders:
                    folders.add(folder)
                    archive.addfile(_member(folder, tarfile.DIRTYPE, 0o755))
            member = _member(path, tarfile.REGTYPE, mode)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return gzip.compress(packed.getvalue(), mtime=0)


def _member(path: str, kind: bytes, mode: int) -> tarfile.TarInfo:
    member = tarfile.TarInfo(path)
    member.type, member.mode, member.mtime = kind, mode, _TIME
    member.uname = member.gname = "root"
    return member


def _ar_member(name: str, content: bytes) -> bytes:
    head = f"{name:<16}{_TIME:<12}{0:<6}{0:<6}{'100644':<8}{len(content):<10}`\n"
    return head.encode() + content + b"\n" * (len(content) % 2)


def main(words: list[str]) -> None:
    """Runs ``python/build-release``."""
    parser = argparse.ArgumentParser(
        prog="python/build-release",
        description="Writes the wheels, an archive, a Debian package, an SBOM and the checksums.",
    )
    target = "x86_64-unknown-linux-musl"
    parser.add_argument(
        "out", nargs="?", type=Path, default=HERE / "dist", help="folder for the files [python/dist]"
    )
    parser.add_argument("--target", choices=PLATFORMS, default=target, help=f"Rust target [{target}]")
    parser.add_argument("--programs", type=Path, help="folder of static programs that are already built")
    args = parser.parse_args(words)
    try:
        programs = args.programs or build_programs(args.target)
        files = write_release(args.out, args.target, programs, read_metadata(args.target))
    except BuildError as error:
        sys.exit(f"build-release: {error}")
    for file in files:
        print(f"{file} ({file.stat().st_size / 1e6:.1f} MB)")


if __name__ == "__main__":
    main(sys.argv[1:])
