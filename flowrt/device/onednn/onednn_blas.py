"""Products of large matrices by oneDNN's BLAS: float32 arrays [..., m, k] and [..., k, n] to [..., m, n].

It packs blocks of the matrices, so that they are read from the caches sequentially (K. Goto and R. van de
Geijn, "Anatomy of high-performance matrix multiplication", ACM TOMS 34(3), 2008). The library's primitive
(`flowrt.device.onednn.primitives.matrix_product`) reads them in place.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import repeat
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from flowrt.device.onednn.onednn import Unsupported, library, threads_to_use

Array: TypeAlias = np.ndarray[Any, Any]

ITEMSIZE = 4

BY_ROWS, BY_COLUMNS = b"N", b"T"
"""Contiguous dimension of a matrix, in BLAS's terms."""


class _Matrix(NamedTuple):
    """Layout of a matrix, or of each in a batch: rows or columns begin ``leading`` elements apart."""

    order: bytes
    leading: int


def multiply(a: Array, b: Array, out: Array) -> None:
    """Write ``a @ b`` to ``out``; their batches are broadcast to its batch. Raises `Unsupported` for matrices
    contiguous neither in rows nor in columns, for an ``out`` not contiguous in rows, and if ``a`` has no
    columns.
    """
    *batch, m, n = out.shape
    k = a.shape[-1]
    lies_a, lies_b, lies_out = map(_matrix, (a, b, out))
    if not k:
        raise Unsupported("sums of nothing")  # it would leave ``out`` as it is
    if lies_out.order != BY_ROWS:
        raise Unsupported("a result by columns")
    dnnl = library()
    dnnl.use_threads(threads_to_use(m * k * n))
    dnnl.multiply(
        *map(repeat, (lies_a.order, lies_b.order, m, n, k, 1.0)),
        _addresses(a, batch), repeat(lies_a.leading), _addresses(b, batch), repeat(lies_b.leading),
        repeat(0.0), _addresses(out, batch), repeat(lies_out.leading),
    )  # fmt: skip


def _addresses(array: Array, batch: Sequence[int]) -> list[int]:
    """Start addresses of the matrices of an array broadcast to ``batch``."""
    strides = np.broadcast_to(array, (*batch, *array.shape[-2:])).strides[:-2]
    places = np.indices(batch).reshape(len(batch), math.prod(batch))
    return (array.ctypes.data + np.array(strides, np.intp) @ places).tolist()


def _matrix(array: Array) -> _Matrix:
    (rows, columns), (down, across) = array.shape[-2:], array.strides[-2:]
    for order, step, stride, length in ((BY_ROWS, across, down, columns), (BY_COLUMNS, down, across, rows)):
        leading, rest = divmod(stride, ITEMSIZE)
        if step == ITEMSIZE and leading >= length and not rest:
            return _Matrix(order, leading)
    raise Unsupported("strides")
