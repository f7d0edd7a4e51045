"""Fetch the packages that contain public models: ``python -m tests.models.fetch``.

They are unpacked into ``FLOWRT_MODELS``, by default ``~/.cache/flowrt-models``, by pip and npm with whatever
indices these are configured for; a package counts only with its SHA-256. Nothing of it is run.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path
from typing import NamedTuple

TIMEOUT_S = 300


class Package(NamedTuple):
    """A package of PyPI, or one of npm, if its name begins with "@"; only what is in ``folder`` is kept."""

    name: str
    version: str
    sha256: str
    licence: str
    folder: str

    @property
    def is_npm(self) -> bool:
        return self.name.startswith("@")


PACKAGES = (
    Package(
        "silero-vad", "6.2.3", "7b7f5436cfcb02fae583a05b512ea96467fd449fe54cb49a5e4f06c51a1e43b8", "MIT",
        "silero_vad/data",
    ),
    Package(
        "rapidocr-onnxruntime", "1.4.4", "971d7d5f223a7a808662229df1ef69893809d8457d834e6373d3854bc1782cbf",
        "Apache-2.0", "rapidocr_onnxruntime/models",
    ),
    Package(
        "magika", "1.0.3", "3e9b49134e8116ee40b431664dcbed9e199413efddcce1a173c734b4e0521529", "Apache-2.0",
        "magika/models",
    ),
    Package(
        "nudenet", "3.4.2", "5937dbd84e5d8e5de038f08ffea5a1bb50a08475776bf2b4795914ce0eaf0331", "MIT",
        "nudenet",
    ),
    Package(
        "basic-pitch", "0.4.0", "738adb503aae7fdfc7d1e1511aa0ce35052315f260a19531ef4c356708425db0",
        "Apache-2.0", "basic_pitch/saved_models/icassp_2022",
    ),
    Package(
        "guesslang", "2.2.1", "36bd12130515ee0e637f7255340ba92ea919d53423743f4c1b0c73727a5499cb", "MIT",
        "guesslang/data",
    ),
    Package(
        "@vladmandic/human", "3.3.6", "425e9c51dbbca0c8934362b170cb0d54c2529c11c654b3c03092b16e9d6ad3f7",
        "MIT", "package/models",
    ),
    Package(
        "@vscode/vscode-languagedetection", "1.0.23",
        "23a55877f5cf56083d5034e15a56ea7fc8a5ba9c1f287fe631e21842ed916e2e", "MIT", "package/model",
    ),
)  # fmt: skip


def cache() -> Path:
    """The folder of all packages."""
    return Path(os.environ.get("FLOWRT_MODELS") or "~/.cache/flowrt-models").expanduser()


def folder_of(name: str) -> Path:
    """The folder of a package's models; it exists if the package was fetched."""
    package = next(each for each in PACKAGES if each.name == name)
    return cache() / f"{name.replace('/', '_')}-{package.version}" / package.folder


def fetch(package: Package) -> Path:
    """Get a package, check it, and unpack its models; the folder. Raises `OSError` or `RuntimeError`."""
    target = folder_of(package.name)
    if target.is_dir():
        return target
    with tempfile.TemporaryDirectory() as scratch:
        archive = _download(package, Path(scratch))
        found = hashlib.sha256(archive.read_bytes()).hexdigest()
        if found != package.sha256:
            raise RuntimeError(f"{archive.name}: expected SHA-256 {package.sha256}; got {found}")
        root = cache() / target.relative_to(cache()).parts[0]
        unpacked = Path(scratch) / "unpacked"
        _unpack(archive, unpacked, package.folder)
        root.parent.mkdir(parents=True, exist_ok=True)
        shutil.move(unpacked, root)  # at once: a folder that is there is whole
    return target


def _download(package: Package, scratch: Path) -> Path:
    if package.is_npm:
        command = ["npm", "pack", "--silent", f"{package.name}@{package.version}"]
    else:
        command = [
            sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary", ":all:",
            "--platform", "manylinux_2_28_x86_64", f"{package.name}=={package.version}",
        ]  # fmt: skip
    subprocess.run(command, cwd=scratch, check=True, timeout=TIMEOUT_S, stdout=subprocess.DEVNULL)
    (archive,) = scratch.iterdir()
    return archive


def _unpack(archive: Path, target: Path, folder: str) -> None:
    prefix = f"{folder}/"
    if archive.suffix == ".whl":
        with zipfile.ZipFile(archive) as wheel:
            wheel.extractall(target, [name for name in wheel.namelist() if name.startswith(prefix)])
    else:
        with tarfile.open(archive) as tar:
            inside = [member for member in tar.getmembers() if member.name.startswith(prefix)]
            tar.extractall(target, inside, filter="data")


def main() -> int:
    failed = 0
    for package in PACKAGES:
        try:
            print(f"{package.name} {package.version} ({package.licence}): {fetch(package)}")
        except (OSError, RuntimeError, subprocess.SubprocessError) as error:
            failed += 1
            print(f"{package.name} {package.version}: {error}", file=sys.stderr)
    return failed


if __name__ == "__main__":
    sys.exit(main())
