"""Files that Keras would download: they are expected where it keeps them."""

from __future__ import annotations

import hashlib
import os
import shutil
from pathlib import Path
from typing import Any

from flowrt.errors import DataLossError, NotFoundError
from flowrt.graph.source import misuse


def keras_folder() -> Path:
    """The folder of Keras's files: ``KERAS_HOME``, or ``~/.keras``."""
    return Path(os.environ.get("KERAS_HOME", Path.home() / ".keras"))


def get_file(
    fname: str, origin: str, untar: bool = False, md5_hash: str | None = None, file_hash: str | None = None,
    cache_subdir: str = "datasets", hash_algorithm: str = "auto", extract: bool = False,
    archive_format: Any = "auto", cache_dir: str | None = None,
) -> str:  # fmt: skip
    """The path of the file ``fname`` in ``~/.keras/datasets``, where Keras puts what it downloads.

    Nothing is downloaded from ``origin``. ``untar`` stands for an archive, ``fname`` with ".tar.gz", and
    returns the folder ``fname``; ``extract`` unpacks the file beside itself. Raises `NotFoundError` if it is
    not there, `DataLossError` if its hash is not the one given.
    """
    folder = Path(cache_dir or keras_folder()) / cache_subdir
    path = folder / (f"{fname}.tar.gz" if untar else os.fspath(fname))
    if untar and (folder / fname).exists():
        return str(folder / fname)
    if not path.exists():
        raise misuse(
            f"get_file: expected a file at {path}; there is none, and none is downloaded. Put {origin} there",
            NotFoundError,
        )
    _check_hash(path, file_hash or md5_hash, hash_algorithm)
    if untar or (extract and archive_format is not None):
        if path.suffix == ".zip":
            shutil.unpack_archive(path, folder)
        else:
            shutil.unpack_archive(path, folder, filter="data")
    return str(folder / fname)


def _check_hash(path: Path, expected: str | None, algorithm: str) -> None:
    if expected is None:
        return
    is_sha = algorithm == "sha256" or (algorithm == "auto" and len(expected) == 64)
    with path.open("rb") as file:
        found = hashlib.file_digest(file, "sha256" if is_sha else "md5").hexdigest()
    if found != expected:
        raise misuse(f"get_file: expected the hash {expected}; got {found} for {path}", DataLossError)
