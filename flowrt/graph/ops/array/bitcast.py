"""The bytes of a tensor read as another dtype."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from flowrt import dtypes
from flowrt.dtypes import DType, DTypeLike, as_dtype
from flowrt.errors import InvalidArgumentError
from flowrt.graph.construction.graph import Tensor
from flowrt.graph.op_def import NONDIFFERENTIABLE, OpDef, Sample, ShapeContext, define_op, sample
from flowrt.graph.ops.base.kernel_output import delivered
from flowrt.graph.shapes import Shape, format_shape
from flowrt.graph.typing import NumericLike


def _bitcast_shape(s: ShapeContext) -> Sequence[Shape]:
    dims, wide, narrow = s.shapes[0], s.attrs["T"].np.itemsize, s.attrs["type"].np.itemsize
    if dims is None or wide == narrow:
        return [dims]
    if wide > narrow:
        return [(*dims, wide // narrow)]
    count = narrow // wide
    if not dims or dims[-1] not in (count, None):
        raise InvalidArgumentError(f"input: expected {count} elements at the end; got {format_shape(dims)}")
    return [dims[:-1]]


def _bitcast(xp: Any, input: Any, type: DType, out: Any = None) -> Any:
    size, dims = type.np.itemsize, input.shape
    if input.dtype.itemsize < size and (not dims or dims[-1] * input.dtype.itemsize != size):
        raise InvalidArgumentError(f"input: expected {size} bytes at the end; got {format_shape(dims)}")
    if input.dtype.itemsize > size:
        dims = (*dims, input.dtype.itemsize // size)
    elif input.dtype.itemsize < size:
        dims = dims[:-1]
    read = xp.ascontiguousarray(input).reshape(-1).view(type.np).reshape(dims)
    return read.copy() if out is None else delivered(xp, read, type.np, out)


def _samples(rng: np.random.Generator) -> Iterable[Sample]:
    x = rng.standard_normal((2, 3, 2))
    yield sample(x, type=dtypes.int64)
    yield sample(x.astype(np.float32), type=dtypes.float64)
    yield sample(x, type=dtypes.uint8)
    yield sample(np.array(1.5, np.float16), type=dtypes.uint16)
    yield sample(np.zeros((0, 8), np.uint8), type=dtypes.complex64)


bitcast_op: OpDef[Tensor] = define_op(
    "Bitcast",
    "input: T in NUMERIC -> output: type in NUMERIC",
    attrs="type: type",
    shape=_bitcast_shape,
    kernel=_bitcast,
    vjp=NONDIFFERENTIABLE,
    samples=_samples,
    doc="The input's bytes as elements of another dtype.",
)


def bitcast(input: NumericLike, type: DTypeLike, name: str | None = None) -> Tensor:
    """The bytes of ``input`` as elements of the dtype ``type``: of the same shape if they have the same size;
    smaller ones get a dimension at the end, larger ones lose it.

    Raises `InvalidArgumentError` where the last dimension is not one larger element.

    Example:
        >>> tf.bitcast([1.0, -2.0], tf.uint32).eval()
        array([1065353216, 3221225472], dtype=uint32)
    """
    return bitcast_op(input, type=as_dtype(type), name=name)
