"""The form of an array in a shard: safetensors has no strings and not all complex types. Pure.

A complex array is an array of floats with a last dimension of 2; a string array is one uint8 array: all
lengths as little-endian uint64, then all elements, concatenated. The true dtype and shape are in the
manifest.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from flowrt.dtypes import COMPLEX, NUMERIC, DType, as_dtype, bool_, string
from flowrt.errors import DataLossError, DTypeError, InvalidArgumentError

Array = np.ndarray[Any, Any]

STORABLE = NUMERIC | {bool_, string}
RESERVED_NAME = "__metadata__"  # a key of every safetensors header

_CODES = {
    "bool": "BOOL", "float16": "F16", "bfloat16": "BF16", "float32": "F32", "float64": "F64",
    "int8": "I8", "int16": "I16", "int32": "I32", "int64": "I64",
    "uint8": "U8", "uint16": "U16", "uint32": "U32", "uint64": "U64",
}  # fmt: skip
DTYPE_OF_CODE = {code: as_dtype(name) for name, code in _CODES.items()}
"""The dtypes that safetensors has, by its names."""


def stored_form(dtype: DType, shape: tuple[int, ...], nbytes: int) -> tuple[str, tuple[int, ...]]:
    """The dtype, as safetensors calls it, and the shape in a shard of an array that has ``nbytes`` there."""
    if dtype is string:
        return "U8", (nbytes,)
    return _CODES[dtype.real_dtype.name], shape + (2,) * dtype.is_complex


def check_tensor(name: object, array: object) -> None:
    """Raise `InvalidArgumentError` or `DTypeError` unless this array can be saved under this name."""
    check_name(name)
    if not isinstance(array, np.ndarray | np.generic):
        raise DTypeError(f"checkpoint: tensor {name!r}: expected a NumPy array; got {type(array).__name__}")
    try:
        as_dtype(array.dtype)
    except DTypeError as error:
        raise DTypeError(f"checkpoint: tensor {name!r}: {error}") from error


def check_name(name: object) -> None:
    """Raise `InvalidArgumentError` unless it can be a tensor's name."""
    if not isinstance(name, str) or name == RESERVED_NAME or not _is_text(name):
        raise InvalidArgumentError(f"checkpoint: expected text that can be a tensor's name; got {name!r}")


def _is_text(text: str) -> bool:
    """Whether it has a UTF-8 form: half a surrogate pair has none."""
    return not any("\ud800" <= character <= "\udfff" for character in text)


def to_stored(name: str, array: Array) -> Array:
    """The array as a shard holds it: C-contiguous, native byte order; itself if it is so already."""
    dtype = as_dtype(array.dtype)
    if dtype is string:
        return _pack_strings(name, array)
    dense = np.asarray(array, dtype=dtype.np, order="C")
    return dense[..., np.newaxis].view(dtype.real_dtype.np) if dtype in COMPLEX else dense


def from_stored(dtype: DType, shape: tuple[int, ...], stored: Array, where: str) -> Array:
    """The array of ``dtype`` and ``shape`` of which a shard has the bytes ``stored``, in the same memory
    unless it is of strings. Raises `DataLossError`, naming ``where``, for malformed strings.
    """
    if dtype is string:
        return _unpack_strings(stored, shape, where)
    return stored.view(dtype.np).reshape(shape)


def _pack_strings(name: str, array: Array) -> Array:
    elements = [_as_bytes(name, e) for e in np.asarray(array).ravel().tolist()]
    lengths = np.array([len(e) for e in elements], "<u8")
    return np.frombuffer(lengths.tobytes() + b"".join(elements), np.uint8)


def _as_bytes(name: str, element: object) -> bytes:
    if isinstance(element, str) and _is_text(element):
        return element.encode()
    if not isinstance(element, bytes):
        raise DTypeError(f"checkpoint: tensor {name!r}: expected bytes or text; got {element!r:.80}")
    return element


def _unpack_strings(blob: Array, shape: tuple[int, ...], where: str) -> Array:
    data, count = blob.tobytes(), math.prod(shape)
    if len(data) < 8 * count:
        raise DataLossError(f"{where}: expected {count} string lengths of 8 bytes; got {len(data)} bytes")
    lengths = np.frombuffer(data, "<u8", count).tolist()
    if sum(lengths) != len(data) - 8 * count:
        raise DataLossError(f"{where}: expected {sum(lengths)} bytes of strings; got {len(data) - 8 * count}")
    out, at = np.empty(count, object), 8 * count
    for i, length in enumerate(lengths):
        out[i], at = data[at : at + length], at + length
    return out.reshape(shape)
