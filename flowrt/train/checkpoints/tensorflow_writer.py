"""Checkpoints that TensorFlow reads: `write_bundle_files`, `remove_bundle_files`."""

from __future__ import annotations

import glob
import os
import secrets
from collections.abc import Iterable
from contextlib import suppress

from flowrt.storage.durable_files import replace_file, sync_directory, sync_file, typed_os_errors
from flowrt.storage.tensor_bundle import data_path, index_path, write_bundle
from flowrt.train.checkpoints.checkpoint import make_directory
from flowrt.train.checkpoints.stored_arrays import Array


def write_bundle_files(prefix: str, tensors: Iterable[tuple[str, Array]]) -> None:
    """Save pairs of name and array as TensorFlow does (version 2), in one file of data; a checkpoint that was
    there is replaced. Raises `ResourceExhaustedError` and other file system errors.

    The index comes last. Until all data is on the disk the old checkpoint remains; if the process is killed
    between the removal of its index and the new one there is none, but never one made of both.
    """
    make_directory(prefix)
    path = data_path(prefix, 0, 1)
    temporary = f"{path}.{secrets.token_hex(8)}.tmp"
    with typed_os_errors(f"saving checkpoint {prefix}"):
        try:
            with open(temporary, "xb") as file:
                index = write_bundle(tensors, file)
                sync_file(file)
            remove_bundle_files(prefix)
            os.replace(temporary, path)
            sync_directory(path)
        finally:
            with suppress(FileNotFoundError):
                os.unlink(temporary)
        replace_file(index_path(prefix), index)


def remove_bundle_files(prefix: str) -> None:
    """Remove a checkpoint of TensorFlow's: first its index, without which there is none. Raises `OSError`."""
    with suppress(FileNotFoundError):
        os.unlink(index_path(prefix))
    for path in (*glob.glob(f"{glob.escape(prefix)}.data-*-of-*[0-9]"), f"{prefix}.meta"):
        with suppress(FileNotFoundError):
            os.unlink(path)
