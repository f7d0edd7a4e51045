"""Tensors of TensorFlow's checkpoints by name: read in part (`restored`), written (`save`), merged (`merge`).

A slice is written as TensorFlow's operations do: ``"10 4 0,5:-"``, the shape of the whole and for each
dimension start and length, or "-" for all of it.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Sequence
from contextlib import suppress

import numpy as np

from flowrt.dtypes import DType
from flowrt.errors import DTypeError, InvalidArgumentError, NotFoundError, nearest
from flowrt.storage.durable_files import replace_file, sync_directory, sync_file, typed_os_errors
from flowrt.storage.slice_checkpoint import SliceCheckpoint, is_table
from flowrt.storage.tensor_bundle import TensorBundle, data_path, index_path, merged_index, write_bundle
from flowrt.storage.tensor_slices import Array, Part, Slices


def open_tensors(prefix: str) -> TensorBundle | SliceCheckpoint:
    """The checkpoint ``prefix`` of TensorFlow's, of either version. Raises `NotFoundError`, `DataLossError`
    and the typed errors of reading.
    """
    with typed_os_errors(f"checkpoint {prefix}"):
        if is_table(prefix) and not os.path.isfile(index_path(prefix)):
            return SliceCheckpoint(prefix)
        return TensorBundle(prefix)


def restored(checkpoint: TensorBundle | SliceCheckpoint, name: str, place: str, dtype: DType) -> Array:
    """A new array: the tensor ``name``, or the slice ``place`` of it. Raises `NotFoundError`, `DTypeError`
    for another dtype, `InvalidArgumentError` for a slice that does not fit, `DataLossError`.
    """
    where = f"checkpoint {checkpoint.prefix}: tensor {name!r}"
    if name not in checkpoint.entries:
        raise NotFoundError(f"{where}: there is none.{nearest(name, checkpoint.entries)}")
    entry = checkpoint.entries[name]
    if entry.dtype is not dtype:
        got = f"TensorFlow's {entry.dtype_number}" if entry.dtype is None else entry.dtype.name
        raise DTypeError(f"{where}: expected {dtype.name}; it is {got}")
    wanted = parse_slice(place, where)[1] if place else tuple(slice(0, size) for size in entry.shape)
    if place and parse_slice(place, where)[0] != entry.shape:
        raise InvalidArgumentError(f"{where} has shape {list(entry.shape)}; expected a slice {place!r}")
    found = np.empty([s.stop - s.start for s in wanted], dtype.np)
    with typed_os_errors(where):
        for piece in checkpoint.pieces(name):
            common = [
                slice(max(a.start, b.start), min(a.stop, b.stop))
                for a, b in zip(wanted, piece.slices, strict=True)
            ]
            if all(s.start < s.stop for s in common) or not common:
                found[_within(common, wanted)] = piece.array()[_within(common, piece.slices)]
    return found


def _within(part: Sequence[slice], whole: Sequence[slice]) -> Slices:
    return tuple(slice(p.start - w.start, p.stop - w.start) for p, w in zip(part, whole, strict=True))


def parse_slice(text: str, where: str) -> tuple[tuple[int, ...], Slices]:
    """The shape of the whole, and the part, of ``"10 4 0,5:-"``. Raises `InvalidArgumentError`."""
    *sizes, places = text.split(" ")
    try:
        shape = tuple(map(int, sizes))
        extents = [each.partition(",") for each in places.split(":")] if shape else []
        slices = tuple(
            slice(0, size) if start == "-" else slice(int(start), int(start) + int(length))
            for size, (start, _, length) in zip(shape, extents, strict=True)
        )
        if all(0 <= s.start <= s.stop <= size for size, s in zip(shape, slices, strict=True)):
            return shape, slices
    except ValueError:
        pass
    raise InvalidArgumentError(f"{where}: expected a slice as '10 4 0,5:-'; got {text[:200]!r}")


def save(prefix: str, names: Sequence[str], places: Sequence[str], arrays: Sequence[Array]) -> None:
    """Write a checkpoint, version 2; one that was there is replaced. ``places`` has a slice of each tensor,
    or "". Raises `InvalidArgumentError` and file system errors.
    """
    whole, parts = list[tuple[str, Array]](), list[Part]()
    for name, place, array in zip(names, places, arrays, strict=True):
        if not place:
            whole.append((name, array))
            continue
        where = f"checkpoint {prefix}: tensor {name!r}"
        shape, slices = parse_slice(place, where)
        if tuple(s.stop - s.start for s in slices) != array.shape:
            raise InvalidArgumentError(f"{where}: expected a slice {place!r}; got shape {list(array.shape)}")
        parts.append(Part(name, array, shape, tuple(s.start for s in slices)))
    path = data_path(prefix, 0, 1)
    temporary = f"{path}.{secrets.token_hex(8)}.tmp"
    with typed_os_errors(f"saving checkpoint {prefix}"):
        os.makedirs(os.path.dirname(prefix) or ".", exist_ok=True)
        try:
            with open(temporary, "xb") as file:
                index = write_bundle(whole, file, parts)
                sync_file(file)
            with suppress(FileNotFoundError):
                os.unlink(index_path(prefix))
            os.replace(temporary, path)
            sync_directory(path)
        finally:
            with suppress(FileNotFoundError):
                os.unlink(temporary)
        replace_file(index_path(prefix), index)


def merge(prefixes: Sequence[str], target: str, delete_old_directories: bool) -> None:
    """Make one checkpoint ``target`` of several, by moving their files; with ``delete_old_directories`` the
    directories that are then empty are removed. Raises as `open_tensors`, and file system errors.
    """
    with typed_os_errors(f"saving checkpoint {target}"):
        index, files = merged_index(prefixes)
        os.makedirs(os.path.dirname(target) or ".", exist_ok=True)
        with suppress(FileNotFoundError):
            os.unlink(index_path(target))
        for shard, file in enumerate(files):
            os.replace(file, data_path(target, shard, len(files)))
        sync_directory(target)
        replace_file(index_path(target), index)
        for prefix in prefixes:
            if prefix != target:
                os.unlink(index_path(prefix))
                if delete_old_directories:
                    with suppress(OSError):  # something else is in it
                        os.rmdir(os.path.dirname(prefix))
