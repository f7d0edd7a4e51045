"""Indices computed at run time: checking them, and reading and writing slices at them.

The effect of an index out of range depends on the device. On the host (NumPy) `check_range` raises, before
anything is written. To check indices on another device, the host would have to synchronize with it, and a
step that synchronizes cannot be captured. So they are not checked there, as in TensorFlow's GPU kernels:
reads give 0, and writes are dropped. (CuPy itself wraps around: index 5 of 4 rows is row 1.)

The functions here and `flowrt.graph.ops.array.scatter_rows.fold_rows` handle both cases, so that kernels are
independent of the device. They assume that host indices have passed `check_range`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from flowrt.errors import InvalidArgumentError
from flowrt.graph.ops.base.kernel_output import delivered
from flowrt.graph.shapes import format_shape


def check_range(xp: Any, name: str, indices: Any, limit: int | Sequence[int]) -> None:
    """Reject host indices outside ``[0, limit)`` (one limit, or one per column).

    Raises `InvalidArgumentError`, which names the first such index. Indices on another device are not
    checked.
    """
    if xp is not np or not indices.size:
        return
    if indices.ndim == 0 and isinstance(limit, int) and 0 <= int(indices) < limit:
        return  # without reductions, which cost 4 us at any size
    if isinstance(limit, int) and indices.min() >= 0 and indices.max() < limit:
        return  # two reductions: 9 us for 100,000 int32, where the comparisons below take 49
    outside = (indices < 0) | (indices >= np.asarray(limit))
    if outside.any():
        first = tuple(np.argwhere(outside)[0].tolist())
        where = f"{name}{list(first)}" if first else name
        bound = limit if isinstance(limit, int) else limit[first[-1]]
        raise InvalidArgumentError(f"{where}: expected an index in [0, {bound}); got {indices[first]}")


def is_within(indices: Any, limit: int) -> Any:
    """Mask of the indices in ``[0, limit)``."""
    return (indices >= 0) & (indices < limit)


def along_rows(mask: Any, rows: Any) -> Any:
    """A mask ``[n]``, with dimensions to broadcast with ``rows`` ``[n, *row]``."""
    return mask.reshape(-1, *(1,) * (rows.ndim - 1))


# --- places in several dimensions


def inner_places(xp: Any, places: Any, columns: Any, dim: int) -> Any:
    """One dimension further in: the positions of elements ``columns``, out of ``dim``, inside those at
    ``places``.

    On a device, negative for a column outside ``[0, dim)``, and wherever ``places`` is negative.
    """
    inner = places * dim + columns
    return inner if xp is np else xp.where(is_within(columns, dim), inner, -1)


def places_of(xp: Any, coordinates: Any, dims: Sequence[int]) -> Any:
    """The places ``[n]``, in row-major order, of coordinates ``[..., len(dims)]`` in an array of ``dims``.

    On a device a negative place for coordinates that are outside.
    """
    places = xp.zeros(math.prod(coordinates.shape[:-1]), np.int64)
    for i, dim in enumerate(dims):
        places = inner_places(xp, places, coordinates[..., i].reshape(-1), dim)
    return places


# --- reading and writing


def take(xp: Any, table: Any, ids: Any, axis: int = 0, out: Any = None) -> Any:
    """The slices of ``table`` along ``axis`` at ``ids`` of any shape; on a device 0 for one out of range.
    With ``out`` the host's have to be in range.
    """
    if xp is np:
        if out is None:
            return np.take(table, ids, axis=axis)
        return np.take(table, ids, axis, out, mode="clip")  # "raise" would copy the output
    return delivered(xp, _take_within(xp, table, ids, axis), table.dtype, out)


def _take_within(xp: Any, table: Any, ids: Any, axis: int) -> Any:
    dims, limit, zero = table.shape, table.shape[axis], table.dtype.type(0)
    if limit == 0:
        return xp.zeros(dims[:axis] + ids.shape + dims[axis + 1 :], table.dtype)
    within = is_within(ids, limit)
    found = xp.take(table, xp.where(within, ids, 0), axis=axis)
    return xp.where(within.reshape(ids.shape + (1,) * (table.ndim - axis - 1)), found, zero)


def take_slices(xp: Any, params: Any, indices: Any, axis: int, batch: int) -> Any:
    """`take` at indices of any shape; the first ``batch`` dimensions of them and of ``params`` are paired.

    The shape is ``params.shape[:axis] + indices.shape[batch:] + params.shape[axis + 1:]``. Raises
    `InvalidArgumentError` if the batch dimensions differ.
    """
    dims, limit = params.shape, params.shape[axis]
    shape = dims[:axis] + indices.shape[batch:] + dims[axis + 1 :]
    if batch == 0:
        return take(xp, params, indices.reshape(-1), axis).reshape(shape)
    if dims[:batch] != indices.shape[:batch]:
        got = f"{format_shape(dims)} and {format_shape(indices.shape)}"
        raise InvalidArgumentError(
            f"expected params and indices with {batch} batch dimensions in common; got {got}"
        )
    entries, between, width = (math.prod(d) for d in (dims[:batch], dims[batch:axis], dims[axis + 1 :]))
    rows = params.reshape(entries, between, limit, width).swapaxes(1, 2)
    outer, columns = xp.arange(entries)[:, None], indices.reshape(entries, math.prod(indices.shape[batch:]))
    if xp is np:
        found = rows[outer, columns]
    else:
        places = inner_places(xp, outer, columns, limit)
        found = take(xp, rows.reshape(entries * limit, between, width), places)
    return found.swapaxes(1, 2).reshape(shape)


def put_rows(xp: Any, table: Any, ids: Any, rows: Any) -> None:
    """``table[ids] = rows``; on a device, without the rows with an id out of range.

    Among rows with equal ids, the last is kept on the host, any one on a device.
    """
    if xp is np:
        table[ids] = rows
    elif len(table) and ids.size:
        rows = xp.broadcast_to(rows, ids.shape + table.shape[1:]).reshape(ids.size, *table.shape[1:])
        ids = ids.reshape(-1)
        within = is_within(ids, len(table))
        # A row out of range repeats the last one within; without any, row 0 of the table, as it is.
        last = ids.size - 1 - xp.argmax(within[::-1], keepdims=True)
        spare_id = xp.where(within[last], ids[last], 0)
        spare_row = xp.where(along_rows(within[last], rows), rows[last], table[:1])
        table[xp.where(within, ids, spare_id)] = xp.where(along_rows(within, rows), rows, spare_row)
