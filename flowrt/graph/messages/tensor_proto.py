"""Arrays and shapes as messages: arrays <-> TensorProto, shapes <-> TensorShapeProto, dtypes <-> DataType.

Rules of this file:
  1. Decoding trusts nothing: each count is checked against the data present before memory is allocated.
  2. A tensor of one repeated value stays one value: as a message, and in memory (an array with strides of 0).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from flowrt import dtypes, protos
from flowrt.dtypes import BY_NUMBER, DType, as_dtype
from flowrt.errors import InvalidArgumentError, ResourceExhaustedError
from flowrt.graph.shapes import Shape, format_shape, is_static

MAX_RANK = 64
"""NumPy's maximum rank."""
MAX_FILLED_BYTES = 1 << 28
"""Maximum decoded size of a tensor with omitted trailing values: 256 MiB."""
MAX_TENSOR_BYTES = 1 << 62
"""An array's size must fit into 64 bits."""
COPIED_BYTES = 1 << 16
"""A repeated value is written out up to this size, so that common constants are ordinary arrays."""

_STORED = {
    number: dtype.number
    for number, dtype in (
        (11, dtypes.int8), (12, dtypes.uint8), (13, dtypes.int32), (15, dtypes.int16), (16, dtypes.uint16),
    )
}  # fmt: skip
"""The integers that DT_QINT8, QUINT8, QINT32, QINT16 and QUINT16 store, by their numbers."""

Array = np.ndarray[Any, Any]


# --- dtypes and shapes


def decode_type(number: int) -> DType:
    """The dtype of a DataType number; of a quantized type that of the integers that it stores. Raises
    `InvalidArgumentError`.
    """
    number = _STORED.get(number, number)
    if number in BY_NUMBER:
        return BY_NUMBER[number]
    if number - 100 in BY_NUMBER:
        name = f"{BY_NUMBER[number - 100].name}_ref"
        raise InvalidArgumentError(f"expected a dtype; got {name}. Use variables with use_resource=True")
    names = protos.graph_pb2.DataType
    text = names.Name(number) if number in names.values() else str(number)
    raise InvalidArgumentError(f"expected a dtype that flowrt has; got {text}")


def encode_shape(message: Any, shape: Shape) -> None:
    """Write ``shape`` into a TensorShapeProto."""
    if shape is None:
        message.unknown_rank = True
        return
    for dim in shape:
        message.dim.add(size=-1 if dim is None else dim)


def decode_shape(message: Any) -> Shape:
    """The shape in a TensorShapeProto. Raises `InvalidArgumentError` for a dimension below -1."""
    if message.unknown_rank:
        if message.dim:
            raise InvalidArgumentError("expected no dimensions in a shape of unknown rank; got some")
        return None
    sizes = [dim.size for dim in message.dim]
    if any(size < -1 for size in sizes):
        raise InvalidArgumentError(f"expected dimensions of at least 0, or -1 for unknown; got {sizes}")
    return tuple(None if size == -1 else size for size in sizes)


# --- tensors


def encode_tensor(message: Any, array: Array) -> None:
    """Write ``array`` into a TensorProto.

    One value (or one repeated value) and strings go into the field of their dtype, others into
    tensor_content.
    """
    dtype = as_dtype(array.dtype)
    if dtype is dtypes.float8_e8m0fnu:
        raise InvalidArgumentError("expected a dtype with a number of TensorFlow's; got float8_e8m0fnu")
    message.dtype = dtype.number
    message.tensor_shape.SetInParent()
    encode_shape(message.tensor_shape, array.shape)
    if dtype in dtypes.NARROW:
        message.tensor_content = array.tobytes()
        return
    values = _VALUES[dtype]
    if is_splat(array) or (array.size == 1 and array == array):  # a NaN keeps its bits in the content only
        getattr(message, values.field).extend(values.encode(first(array)))
    elif dtype is dtypes.string:
        message.string_val.extend(values.encode(array.ravel()))
    else:
        message.tensor_content = array.tobytes()


def first(array: Array) -> Array:
    """The first element of a non-empty array, in an array of shape [1]."""
    index: Any = (..., *[slice(0, 1)] * array.ndim)  # the dots keep an array of rank 0 one
    return array[index].reshape(1)


def is_splat(array: Array) -> bool:
    """Whether ``array`` is one repeated value stored once."""
    return array.size > 1 and not any(s for s, n in zip(array.strides, array.shape, strict=True) if n > 1)


def decode_tensor(message: Any) -> Array:
    """The array in a TensorProto.

    Allocates memory in proportion to the size of ``message``, or up to `MAX_FILLED_BYTES`, regardless of the
    declared shape. Raises `InvalidArgumentError` when parts of ``message`` contradict each other and
    `ResourceExhaustedError` beyond the limits.
    """
    dtype = decode_type(message.dtype)
    values = _VALUES.get(dtype)
    if values is None and dtype not in dtypes.NARROW:
        raise InvalidArgumentError(f"expected a tensor of numbers, bools or strings; got {dtype.name}")
    shape = check_full_shape(dtype, decode_shape(message.tensor_shape))
    if values is None:  # a byte each; TensorFlow packs none either
        return from_content(message.tensor_content, dtype, shape)
    if message.tensor_content:
        return from_content(message.tensor_content, dtype, shape)
    return fill(values.decode(getattr(message, values.field), dtype), dtype, shape)


def check_full_shape(dtype: DType, shape: Shape) -> tuple[int, ...]:
    """``shape``, if an array can have it. Raises `InvalidArgumentError` or `ResourceExhaustedError`."""
    if not is_static(shape) or len(shape) > MAX_RANK:
        raise InvalidArgumentError(
            f"expected a full shape of rank {MAX_RANK} at most; got {format_shape(shape)[:100]}"
        )
    if math.prod(dim for dim in shape if dim > 0) * dtype.size >= MAX_TENSOR_BYTES:
        raise ResourceExhaustedError(f"expected less than 2**62 bytes; got {dtype.name}{format_shape(shape)}")
    return shape


def from_content(content: bytes, dtype: DType, shape: tuple[int, ...]) -> Array:
    """The array of ``shape`` with the raw bytes ``content``. Raises `InvalidArgumentError`."""
    if dtype is dtypes.string:
        raise InvalidArgumentError("expected strings in string_val; got tensor_content")
    expected = math.prod(shape) * dtype.size
    if len(content) != expected:
        what = f"{expected} bytes for {dtype.name}{format_shape(shape)}"
        raise InvalidArgumentError(f"tensor_content: expected {what}; got {len(content)}")
    if dtype.is_bool:
        return np.not_equal(np.frombuffer(content, np.uint8), 0).reshape(shape)
    return np.frombuffer(content, dtype.np).reshape(shape).copy()


def fill(flat: Array, dtype: DType, shape: tuple[int, ...]) -> Array:
    """``flat`` in ``shape``, its last value (0, False or "" if there is none) repeated as needed.

    Raises `InvalidArgumentError` for too many values, `ResourceExhaustedError` above `MAX_FILLED_BYTES`.
    """
    count = math.prod(shape)
    if flat.size > count:
        raise InvalidArgumentError(
            f"expected at most {count} values for {format_shape(shape)}; got {flat.size}"
        )
    if flat.size == count:
        return flat.reshape(shape)
    if flat.size == 0:
        flat = np.array([b""], object) if dtype is dtypes.string else np.zeros(1, dtype.np)
    if flat.size == 1:
        splat = np.broadcast_to(flat.reshape((1,) * len(shape)), shape)
        return splat.copy() if splat.nbytes <= COPIED_BYTES else splat
    if count * dtype.size > MAX_FILLED_BYTES:
        got = f"{dtype.name}{format_shape(shape)} from {flat.size} values"
        raise ResourceExhaustedError(f"expected a tensor of at most {MAX_FILLED_BYTES} bytes; got {got}")
    filled = np.full(count, flat[-1], dtype.np)
    filled[: flat.size] = flat
    return filled.reshape(shape)


# --- the field of each dtype


class _Values(NamedTuple):
    """Encoder and decoder of the ``*_val`` field of a dtype."""

    field: str
    encode: Callable[[Array], Iterable[Any]]
    decode: Callable[[Sequence[Any], DType], Array]


def _decode_numbers(values: Sequence[Any], dtype: DType) -> Array:
    if dtype.is_integer and values and (min(values) < dtype.min or max(values) > dtype.max):
        raise InvalidArgumentError(f"expected {dtype.name} values; got {min(values)} to {max(values)}")
    with np.errstate(over="ignore"):
        return np.array(values, dtype.np)


def _decode_half(values: Sequence[int], dtype: DType) -> Array:
    if values and (min(values) < 0 or max(values) >= 1 << 16):
        raise InvalidArgumentError(f"half_val: expected 16 bits each; got {min(values)} to {max(values)}")
    return np.array(values, np.uint16).view(dtype.np)


def _decode_complex(values: Sequence[float], dtype: DType) -> Array:
    if len(values) % 2:
        raise InvalidArgumentError(f"expected pairs of real and imaginary part; got {len(values)} values")
    return np.array(values, dtype.real_dtype.np).view(dtype.np)


def _decode_strings(values: Sequence[bytes], dtype: DType) -> Array:
    flat = np.empty(len(values), dtype.np)
    flat[:] = values
    return flat


def _numbers(field: str) -> _Values:
    return _Values(field, lambda flat: flat.tolist(), _decode_numbers)


_INT = _numbers("int_val")
_HALF = _Values("half_val", lambda flat: flat.view(np.uint16).tolist(), _decode_half)

_VALUES: dict[DType, _Values] = {
    dtypes.float16: _HALF,
    dtypes.bfloat16: _HALF,
    dtypes.float32: _numbers("float_val"),
    dtypes.float64: _numbers("double_val"),
    dtypes.int8: _INT,
    dtypes.int16: _INT,
    dtypes.int32: _INT,
    dtypes.int64: _numbers("int64_val"),
    dtypes.uint8: _INT,
    dtypes.uint16: _INT,
    dtypes.uint32: _numbers("uint32_val"),
    dtypes.uint64: _numbers("uint64_val"),
    dtypes.bool_: _numbers("bool_val"),
    dtypes.complex64: _Values("scomplex_val", lambda flat: flat.view(np.float32).tolist(), _decode_complex),
    dtypes.complex128: _Values("dcomplex_val", lambda flat: flat.view(np.float64).tolist(), _decode_complex),
    dtypes.string: _Values(
        "string_val", lambda flat: [v.encode() if isinstance(v, str) else v for v in flat], _decode_strings
    ),
}
