"""`over_axis_op`: a collective over an axis of a mesh, in a function of one coordinate (`shard_map`).

Such a function is rewritten for all coordinates at once: for each axis, values get a further dimension, with
a row per coordinate (`flowrt.graph.functions.batching`). A collective over the axis then is an ordinary
operation on the rows, a sum of them for instance. Gradients need no rule, and layouts make it a collective of
devices.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from flowrt.errors import InvalidArgumentError
from flowrt.graph.construction.batching_rules import BatchBuilder, Value, batched
from flowrt.graph.construction.constant import constant
from flowrt.graph.construction.operation import Operation, Tensor
from flowrt.graph.op_def import NONDIFFERENTIABLE, ShapeContext, define_op, sample
from flowrt.graph.ops.array.gather_scatter import gather
from flowrt.graph.ops.array.reductions import reduce_max, reduce_min, reduce_sum
from flowrt.graph.ops.base.filling import broadcast_to
from flowrt.graph.ops.base.shape_manipulation import reshape, transpose
from flowrt.graph.ops.elementwise.arithmetic import multiply
from flowrt.graph.shapes import Shape

REDUCTIONS = {"psum": reduce_sum, "pmax": reduce_max, "pmin": reduce_min}


def _shape(s: ShapeContext) -> list[Shape]:
    dims, kind, dim, size = s.shapes[0], s.attrs["kind"], s.attrs["dim"], s.attrs["size"]
    if dims is None or kind not in ("all_gather", "psum_scatter"):
        return [dims]
    if not 0 <= dim < len(dims):
        raise InvalidArgumentError(f"{kind}: expected a dimension of 0 to {len(dims) - 1}; got {dim}")
    local = dims[dim]
    if kind == "psum_scatter" and local is not None and local % size:
        raise InvalidArgumentError(
            f"psum_scatter: expected a dimension {dim} that {size} coordinates divide; got {local}"
        )
    made = None if local is None else local * size if kind == "all_gather" else local // size
    return [(*dims[:dim], made, *dims[dim + 1 :])]


def _on_rows(b: BatchBuilder, op: Operation, values: Sequence[Value]) -> list[Value]:
    """The collective on the rows of its own axis; those of another axis keep it, for each row."""
    (value, index), attrs = values, op.node.attrs
    if not index.is_batched:
        return b.apply(op, [value.tensor, index.tensor], dim=attrs["dim"] + 1)
    rows, kind = b.whole(value), attrs["kind"]
    dims = [b.size, *op.inputs[0].shape.as_list()]
    if kind in REDUCTIONS:
        return batched(broadcast_to(REDUCTIONS[kind](rows, 0, keepdims=True), dims))
    if kind == "ppermute":
        return batched(_permuted(rows, attrs["sources"], len(dims)))
    if kind == "all_gather":
        return batched(_gathered(rows, dims, 1 + attrs["dim"]))
    return batched(_scattered(reduce_sum(rows, 0), dims, attrs["dim"]))


def _permuted(rows: Tensor, sources: Sequence[int], rank: int) -> Tensor:
    """Row i from row ``sources[i]``; zeros for -1."""
    taken = gather(rows, [max(source, 0) for source in sources])
    has_source = constant([int(source >= 0) for source in sources], dtype=rows.dtype)
    return multiply(taken, reshape(has_source, [len(sources), *[1] * (rank - 1)]))


def _gathered(rows: Tensor, dims: Sequence[int], place: int) -> Tensor:
    """All rows, concatenated along the dimension ``place`` of ``dims``, in each row."""
    before = [*range(1, place), 0, *range(place, len(dims))]
    joined = [1, *dims[1:]]
    joined[place] *= dims[0]
    whole = reshape(transpose(rows, before), joined)
    return broadcast_to(whole, [dims[0], *joined[1:]])


def _scattered(summed: Tensor, dims: Sequence[int], dim: int) -> Tensor:
    """Part i of ``summed``, along its dimension ``dim``, as row i."""
    local, count = dims[1:], dims[0]
    parts = reshape(summed, [*local[:dim], count, local[dim] // count, *local[dim + 1 :]])
    return transpose(parts, [dim, *range(dim), *range(dim + 1, len(dims))])


over_axis_op = define_op(
    "OverAxis",
    "value: T in NUMERIC, index: int32 -> T",
    attrs="kind: string, size: int, dim: int, sources: list(int)",
    shape=_shape,
    kernel=lambda xp, value, index, out=None: xp.positive(
        value, out
    ),  # never run with others: it is rewritten with them
    vjp=NONDIFFERENTIABLE,
    batch=_on_rows,
    samples=lambda rng: [  # a permutation that leaves all rows where they are
        sample(rng.standard_normal((2, 3)), np.int32(0), kind="ppermute", size=3, dim=0, sources=[0, 1, 2])
    ],
    doc="A collective over an axis of this ``size``, for the coordinate ``index`` of it.",
)
