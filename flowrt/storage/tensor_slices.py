"""Parts of tensors in checkpoints of TensorFlow: their places, and the keys of their values.

A key is in TensorFlow's ordered code, in which keys that are sorted by bytes are sorted by name and place.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from flowrt.errors import DataLossError

Array = np.ndarray[Any, Any]
Slices = tuple[slice, ...]

_WHOLE = -1
"""The length along a dimension that is not cut."""


class Piece(NamedTuple):
    """A part of a tensor, and how its elements are read: from the file called ``path``, by a function that
    raises `OSError`, `DataLossError` if they are damaged, and `UnimplementedError` for an unknown dtype.
    """

    slices: Slices
    path: str
    array: Callable[[], Array]


class Part(NamedTuple):
    """Elements to write as the part of a tensor of ``shape`` that starts at ``begin``."""

    name: str
    array: Array
    shape: tuple[int, ...]
    begin: tuple[int, ...]


def shape_of(message: Any) -> tuple[int, ...]:
    """The shape in a TensorShapeProto."""
    return tuple(dim.size for dim in message.dim)


def count(shape: Sequence[int]) -> int:
    """The number of elements."""
    product = 1
    for size in shape:
        product *= size
    return product


def slices_of(message: Any, shape: Sequence[int], where: str) -> Slices:
    """The part of a tensor of ``shape`` that a TensorSliceProto says. Raises `DataLossError`."""
    extents = _extents(message)
    if len(extents) == len(shape):
        slices = tuple(
            slice(start, size if length == _WHOLE else start + length)
            for (start, length), size in zip(extents, shape, strict=True)
        )
        if all(0 <= s.start <= s.stop <= size for s, size in zip(slices, shape, strict=True)):
            return slices
    raise DataLossError(f"{where}: expected a slice of shape {list(shape)}; got {extents}")


def check_cover(pieces: Sequence[Piece], shape: Sequence[int], where: str) -> None:
    """Raise `DataLossError` unless ``pieces`` have as many elements as the whole."""
    found = sum(count([s.stop - s.start for s in piece.slices]) for piece in pieces)
    if found != count(shape):
        raise DataLossError(
            f"{where}: expected slices with {count(shape)} elements together; they have {found}"
        )


def slice_key(name: str, message: Any) -> bytes:
    """The key of the slice of the tensor ``name`` that a TensorSliceProto says."""
    extents = _extents(message)
    numbers = [_signed(number) for extent in extents for number in extent]
    return b"".join((_ordered(0), _ordered_text(name.encode()), _ordered(len(extents)), *numbers))


def _extents(message: Any) -> list[tuple[int, int]]:
    """The start and length along each dimension."""
    return [(e.start, e.length if e.HasField("length") else _WHOLE) for e in message.extent]


def _ordered(value: int) -> bytes:
    """The number of its bytes, and these, high ones first."""
    size = (value.bit_length() + 7) // 8
    return bytes([size]) + value.to_bytes(size, "big")


def _ordered_text(text: bytes) -> bytes:
    return re.sub(b"[\0\xff]", lambda found: found[0] + bytes([255 - found[0][0]]), text) + b"\0\1"


def _signed(value: int) -> bytes:
    """Leading ones, one a byte, then the value, high bits first; all inverted if it is negative."""
    magnitude = ~value if value < 0 else value
    size = magnitude.bit_length() // 7 + 1  # 7 bits a byte, one of all for the sign
    code = (1 << size) - 1 << 7 * size | magnitude
    return (code if value >= 0 else code ^ (1 << 8 * size) - 1).to_bytes(size, "big")
