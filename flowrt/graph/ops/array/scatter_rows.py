"""Reducing rows into a table at repeatable ids, for scatters, segments and the gradients of gathers.

If the array module supports it, ``ufunc.at`` on flat arrays is used (NumPy, 10,000 rows of 128 floats: 3 ms,
against 12 ms on two dimensions and 10 ms for sort and reduceat). CuPy supports it for a few ufuncs and dtypes
only; for the others a stable sort groups rows with equal ids and a segmented scan reduces them, in log2(n)
steps on the whole array (G. Blelloch, *Prefix sums and their applications*, 1990).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from flowrt.graph.ops.base.indexing import along_rows, is_within, put_rows, take

_ATOMIC = {"add": "ilqILQefd", "maximum": "ilqILQ", "minimum": "ilqILQ"}
"""The dtypes of CuPy's ``ufunc.at``, by ufunc. Its extrema of floats are left out: they drop NaN, and round
float64 to float32 (CuPy 14.2).
"""

_TOGETHER = {"subtract": "add", "divide": "multiply"}
"""Operation that combines rows with each other, if it differs from that with the table: t - a - b is t - (a +
b).
"""


def fold_rows(xp: Any, ufunc: str, target: Any, ids: Any, rows: Any) -> None:
    """``target[ids[i]] = ufunc(target[ids[i]], rows[i])`` for each i; ids may repeat.

    ``target`` is a contiguous ``[count, width]``, ``ids`` ``[n]`` and ``rows`` ``[n, width]``. On a device,
    rows with an id out of range are ignored; on the host, ids must have passed `check_range`.
    """
    if xp is np:
        _fold_at(xp, ufunc, target, ids, rows)
    elif not (len(target) and len(ids)):
        return
    elif target.dtype.char in _ATOMIC.get(ufunc, ""):
        within = is_within(ids, len(target))
        # A row out of range goes to row 0 as a value that does not change it: 0, or that of row 0.
        idle = rows.dtype.type(0) if ufunc == "add" else target[:1]
        _fold_at(xp, ufunc, target, xp.where(within, ids, 0), xp.where(along_rows(within, rows), rows, idle))
    else:
        places, totals = folded_by_id(xp, _TOGETHER.get(ufunc, ufunc), ids, rows.astype(target.dtype))
        put_rows(xp, target, places, getattr(xp, ufunc)(take(xp, target, places), totals))


def _fold_at(xp: Any, ufunc: str, target: Any, ids: Any, rows: Any) -> None:
    width = np.int64(target.shape[1])  # typed: int32 ids reach into 2**31 elements and more
    places = ids[:, None] * width + xp.arange(target.shape[1])
    getattr(xp, ufunc).at(target.reshape(-1), places.reshape(-1), rows.reshape(-1))


def folded_by_id(xp: Any, ufunc: str, ids: Any, rows: Any) -> tuple[Any, Any]:
    """The ids ``[n]``, ascending, and with each all rows of that id folded into one, in their order.

    Equal ids have equal rows then, so that all may be written, in any order: to drop all but one, the host
    would have to wait for how many remain.
    """
    order = xp.argsort(ids, kind="stable")
    ids, total, fold, step = ids[order], rows[order], getattr(xp, ufunc), 1
    while step < len(ids):
        together = (ids[step:] == ids[:-step])[:, None]  # and so are all between, which are sorted
        total[step:] = xp.where(together, fold(total[:-step], total[step:]), total[step:])
        step *= 2
    return ids, total[xp.searchsorted(ids, ids, side="right") - 1]
