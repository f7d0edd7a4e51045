"""Sparse tensors as three: places ``[n, rank]``, values and a shape; ops on the places."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from flowrt.errors import InvalidArgumentError
from flowrt.graph.construction.graph import Operation, Tensor
from flowrt.graph.op_def import NONDIFFERENTIABLE, OpDef, ShapeContext, define_op, sample
from flowrt.graph.ops.array.gather_scatter import gather
from flowrt.graph.ops.array.reductions import reduce_sum
from flowrt.graph.ops.base.kernel_output import all_delivered
from flowrt.graph.ops.elementwise.arithmetic import subtract
from flowrt.graph.shapes import Shape


def _host(xp: Any, x: Any) -> Any:
    return x if isinstance(x, np.ndarray) or xp is np else xp.asnumpy(x)


def _reshaped(xp: Any, input_indices: Any, input_shape: Any, new_shape: Any, out: Any = None) -> list[Any]:
    places, old, new = (np.asarray(_host(xp, x)) for x in (input_indices, input_shape, new_shape))
    total, asked = math.prod(old.tolist()), new.tolist()
    if asked.count(-1) > 1 or min(asked, default=0) < -1:
        raise InvalidArgumentError(f"new_shape: expected sizes, of which one may be -1; got {asked}")
    if -1 in asked:
        rest = -math.prod(asked)
        asked[asked.index(-1)] = total // rest if rest else 0
    if math.prod(asked) != total:
        wanted = f"{total} elements, as shape {old.tolist()}"
        raise InvalidArgumentError(f"expected {wanted}; got shape {new.tolist()}")
    flat = np.ravel_multi_index(tuple(places.T), old.tolist()) if len(places) else np.zeros(0, np.int64)
    made = np.stack(np.unravel_index(flat, asked), axis=1) if len(places) else np.zeros((0, len(asked)))
    return all_delivered(xp, map(xp.asarray, (made, np.array(asked, np.int64))), np.int64, out)


def _reshape_shape(s: ShapeContext) -> Sequence[Shape]:
    rank = None if s.shapes[2] is None else s.shapes[2][0]
    count = None if s.shapes[0] is None else s.shapes[0][0]
    return [(count, rank), (rank,)]


sparse_reshape_op: OpDef[list[Tensor]] = define_op(
    "SparseReshape",
    "input_indices: int64, input_shape: int64, new_shape: int64 -> output_indices: int64, "
    "output_shape: int64",
    shape=_reshape_shape,
    kernel=_reshaped,
    vjp=NONDIFFERENTIABLE,
    samples=lambda rng: [sample(np.array([[0, 1], [2, 2]]), np.array([3, 4]), np.array([2, -1]))],
    doc="The places in a sparse tensor of another shape, and that shape.",
)


def _filled(xp: Any, indices: Any, values: Any, dense_shape: Any, default_value: Any) -> list[Any]:
    places, given = _host(xp, indices), _host(xp, values)
    rows, rank = int(_host(xp, dense_shape)[0]), places.shape[1]
    if len(places) and not (places[:, 0].min() >= 0 and places[:, 0].max() < rows):
        raise InvalidArgumentError(f"indices: expected rows below {rows}; got {places[:, 0].tolist()[:8]}")
    empty = np.ones(rows, bool)
    empty[places[:, 0]] = False
    added = np.zeros((int(empty.sum()), rank), np.int64)
    added[:, 0] = np.flatnonzero(empty)
    together = np.concatenate([places, added])
    order = np.argsort(together[:, 0], kind="stable")
    filling = np.empty(len(added), given.dtype)
    filling[...] = default_value if isinstance(default_value, bytes) else _host(xp, default_value)
    back = np.empty(len(order), np.int64)
    back[order] = np.arange(len(order))
    found = [together[order], np.concatenate([given, filling])[order], empty, back[: len(places)]]
    return [xp.asarray(each) for each in found]


def _filled_shape(s: ShapeContext) -> Sequence[Shape]:
    known, rows = s.shapes[0], s.value(2)
    count, rank = (None, None) if known is None else known
    return [(None, rank), (None,), (None if rows is None else rows[0],), (count,)]


def _filled_vjp(op: Operation, _: Any, dy: Tensor | None, *others: Any) -> list[Any]:
    if dy is None:
        return [None, None, None, None]
    of_values = gather(dy, op.outputs[3])
    return [None, of_values, None, subtract(reduce_sum(dy), reduce_sum(of_values))]


sparse_fill_empty_rows_op: OpDef[list[Tensor]] = define_op(
    "SparseFillEmptyRows",
    "indices: int64, values: T in ANY, dense_shape: int64, default_value: T -> output_indices: int64, "
    "output_values: T, empty_row_indicator: bool, reverse_index_map: int64",
    shape=_filled_shape,
    kernel=_filled,
    vjp=_filled_vjp,
    samples=lambda rng: [
        sample(np.array([[1, 0], [3, 1], [3, 2]]), rng.standard_normal(3), np.array([5, 3]), np.float64(7))
    ],
    doc="A sparse tensor with a default at the first place of each row that has none.",
)
