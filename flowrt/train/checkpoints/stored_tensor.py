"""`StoredTensor`: a tensor in files, of which any part is read into an array."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Generic, NamedTuple, Protocol, TypeVar, final

import numpy as np

from flowrt.dtypes import DType, string
from flowrt.errors import DataLossError
from flowrt.storage.durable_files import typed_os_errors
from flowrt.train.checkpoints.pieces import Slices, extent, format_slices, inside, intersect, whole
from flowrt.train.checkpoints.shard_file import ShardFile, StoredBytes
from flowrt.train.checkpoints.stored_arrays import Array, from_stored, stored_form


class Source(Protocol):
    """A value of ``shape``, parts of which are written to arrays."""

    @property
    def shape(self) -> tuple[int, ...]: ...

    def check(self, part: Slices) -> None:
        """Raise if ``part`` cannot be read; afterwards, reading it does not fail."""

    def read(self, part: Slices, out: Array) -> None:
        """Write the elements of ``part`` to ``out``, which has their shape."""


class Located(Protocol):
    """A piece of a tensor: where it is in it."""

    @property
    def slices(self) -> Slices: ...


P = TypeVar("P", bound=Located)


class StoredTensor(ABC, Generic[P]):
    """A tensor of ``dtype`` and ``shape``, called ``name``, which is there in ``pieces``.

    `check` raises `NotFoundError` for a missing file, `DataLossError` for a damaged one, and other errors of
    the file system; all name the tensor, the piece and the file.
    """

    def __init__(self, name: str, dtype: DType, shape: tuple[int, ...], pieces: Sequence[P]) -> None:
        self.name, self.dtype, self.shape = name, dtype, shape
        self._pieces = pieces

    @final
    def check(self, part: Slices) -> None:
        """See `Source`."""
        for piece, common in self._within(part):
            self._check(piece, common)

    @final
    def read(self, part: Slices, out: Array) -> None:
        """See `Source`. ``out`` may be of another dtype, to which the elements are cast."""
        for piece, common in self._within(part):
            out[inside(common, part)] = self._array(piece)[inside(common, piece.slices)]

    @final
    def value(self) -> Array:
        """The whole, as a new array. Raises as `check`."""
        part = whole(self.shape)
        self.check(part)
        out = np.empty(self.shape, self.dtype.np)
        self.read(part, out)
        return out

    def _within(self, part: Slices) -> Iterator[tuple[P, Slices]]:
        """The pieces that have elements of ``part``, with these."""
        for piece in self._pieces:
            common = intersect(piece.slices, part)
            if common is not None:
                yield piece, common

    # --- implemented by each format

    @abstractmethod
    def _check(self, piece: P, common: Slices) -> None:
        """Raise unless the elements ``common`` of ``piece`` can be read."""

    @abstractmethod
    def _array(self, piece: P) -> Array:
        """The piece, in the memory of the file."""


class ShardPiece(NamedTuple):
    """A piece of a tensor, the ``key`` of a file, which ``open`` opens; its argument names the piece in
    errors.
    """

    slices: Slices
    key: str
    path: str
    open: Callable[[str], ShardFile]


@final
class ShardTensor(StoredTensor[ShardPiece]):
    """A tensor in safetensors files."""

    def _check(self, piece: ShardPiece, common: Slices) -> None:
        where = self._where(piece)
        with typed_os_errors(where):
            file, stored = self._find(piece, where)
            file.check(*self._range(piece, common, stored), where)
        if self.dtype is string:
            self._array(piece)

    def _range(self, piece: ShardPiece, common: Slices, stored: StoredBytes) -> tuple[int, int]:
        """The bytes of the file with the elements of ``common``, and what is between them."""
        if self.dtype is string:
            return stored.begin, stored.end
        first, end = extent(inside(common, piece.slices), _shape(piece))
        return stored.begin + first * self.dtype.size, stored.begin + end * self.dtype.size

    def _array(self, piece: ShardPiece) -> Array:
        """The piece, in the memory of the file."""
        where = self._where(piece)
        file, stored = self._find(piece, where)
        return from_stored(self.dtype, _shape(piece), file.bytes(stored.begin, stored.end), where)

    def _find(self, piece: ShardPiece, where: str) -> tuple[ShardFile, StoredBytes]:
        file = piece.open(where)
        found = file.find(piece.key)
        if found is None:
            raise DataLossError(f"{where}: expected {piece.key!r} in the file; there is no such array")
        want = stored_form(self.dtype, _shape(piece), found.end - found.begin)
        if (found.code, found.shape) != want:
            expected, got = (f"{code} {list(shape)}" for code, shape in (want, found[:2]))
            raise DataLossError(f"{where}: the manifest says {expected}; the shard has {got}")
        return file, found

    def _where(self, piece: ShardPiece) -> str:
        part = "" if _shape(piece) == self.shape else f", piece {format_slices(piece.slices)}"
        return f"{piece.path}: tensor {self.name!r}{part}"


@final
class Reshaped:
    """A tensor in another ``shape`` of as many elements. Each part needs the whole, in memory."""

    def __init__(self, tensor: StoredTensor[Any], shape: tuple[int, ...]) -> None:
        self._tensor, self.shape = tensor, shape

    def check(self, part: Slices) -> None:
        """See `Source`."""
        self._tensor.check(whole(self._tensor.shape))

    def read(self, part: Slices, out: Array) -> None:
        """See `Source`."""
        out[...] = self._tensor.value().reshape(self.shape)[part]


def _shape(piece: ShardPiece) -> tuple[int, ...]:
    return tuple(s.stop - s.start for s in piece.slices)
