"""Operations that are not themselves on a part: what one coordinate computes in place of a global node.

views             reshape to the local shape: a Squeeze must not drop a dimension cut to size 1
shapes as values  the shape that a host input gives is that of the local output
means             a sum over the local part, divided by the count of the whole
sparse reads      of the rows that the coordinate has; zeros for others
sparse updates    only those of its own rows
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from flowrt.dtypes import bool_ as boolean
from flowrt.dtypes import int32, int64, variant
from flowrt.graph.layouts.derived_rules import arguments_of, is_view
from flowrt.graph.layouts.layout import Layout, Shard
from flowrt.graph.layouts.mesh import Coordinate
from flowrt.graph.node import Node, Ref, TensorSpec
from flowrt.graph.op_def import OpDef
from flowrt.graph.ops.array.gather_scatter import gather_op
from flowrt.graph.ops.array.parts import checked_op
from flowrt.graph.ops.array.reductions import sum_op
from flowrt.graph.ops.array.selection import where_op
from flowrt.graph.ops.base.identities import identity
from flowrt.graph.ops.base.shape_manipulation import reshape
from flowrt.graph.ops.elementwise.arithmetic import maximum, minimum, subtract
from flowrt.graph.ops.elementwise.comparison import greater_equal, less, logical_and, select_v2
from flowrt.graph.ops.elementwise.division import realdiv
from flowrt.graph.passes.layouts.redistribute import Emitter
from flowrt.graph.shapes import Shape


class Local(NamedTuple):
    """The node of one coordinate: its ``name``, ``inputs``, ``controls``, ``device`` and output specs."""

    name: str
    inputs: tuple[Ref, ...]
    controls: tuple[str, ...]
    device: str
    outputs: tuple[TensorSpec, ...]


def emit_local(emit: Emitter, node: Node, local: Local, is_partial_mean: bool) -> None:
    """Add what computes ``node`` on one coordinate, under the name of ``local``."""
    if is_view(node.op) and node.op is not reshape:
        shape = emit.constant(f"{local.name}/shape", _sizes(local.outputs[0]), local.device, node)
        attrs = {"T": local.outputs[0].dtype, "Tshape": int32}
        local = local._replace(inputs=(local.inputs[0], shape))
        node = node.replace(op=reshape, attrs=attrs)
    elif local.outputs and local.outputs[0].shape != node.outputs[0].shape:
        local = local._replace(inputs=with_local_shapes(emit, node, local))
    if is_partial_mean:
        _emit_mean(emit, node, local)
    else:
        _put(emit, node, local)


def _put(emit: Emitter, node: Node, local: Local) -> None:
    name, inputs, controls, device, outputs = local
    emit.nodes[name] = Node(name, node.op, inputs, controls, node.attrs, device, node.source, outputs)


def _sizes(spec: TensorSpec) -> np.ndarray[tuple[int], np.dtype[np.int32]]:
    return np.array([-1 if d is None else d for d in spec.shape or ()], np.int32)


def with_local_shapes(emit: Emitter, node: Node, local: Local) -> tuple[Ref, ...]:
    """The inputs of ``local``, with the local shape where ``node`` takes a shape as a value."""
    if not _takes_shapes(node.op):
        return local.inputs
    inputs = list(local.inputs)
    for i, argument in enumerate(arguments_of(node.op, node.attrs)):
        spec = _shaped(emit, local) if argument.name == "element_shape" else local.outputs[0]
        if (argument.is_shape or argument.name == "element_shape") and spec.shape is not None:
            dtype = emit.nodes[inputs[i][0]].outputs[inputs[i][1]].dtype
            value = _sizes(spec).astype(dtype.np)
            inputs[i] = emit.constant(f"{local.name}/shape", value, local.device, node)
    return tuple(inputs)


@lru_cache(maxsize=1024)
def _takes_shapes(op: OpDef) -> bool:
    return any(argument.is_shape or argument.name == "element_shape" for argument in op.inputs)


def _shaped(emit: Emitter, local: Local) -> TensorSpec:
    """The list of which an op has the shape of the elements: the one that it reads, or else makes."""
    name, index = local.inputs[0]
    read = emit.nodes[name].outputs[index]
    return read if read.dtype is variant else local.outputs[0]


def _emit_mean(emit: Emitter, node: Node, local: Local) -> None:
    """The part of a mean: a sum over the elements that this coordinate has, over the count of all."""
    (spec,) = local.outputs
    total = emit.add(f"{local.name}/sum", sum_op, local.inputs, node.attrs, local.device, [spec], node)
    reduced = emit.nodes[total]
    emit.nodes[total] = reduced.replace(controls=local.controls)
    whole = math.prod(d or 0 for d in node.outputs[0].shape or ())
    count = emit.count_of[node.name] // max(whole, 1)
    divisor = emit.constant(f"{local.name}/count", np.array(count, spec.dtype.np), local.device, node)
    divided = node.replace(op=realdiv, attrs={"T": spec.dtype})
    _put(emit, divided, local._replace(inputs=((total, 0), divisor), controls=()))


# --- sparse accesses to variables with sharded rows


class Rows(NamedTuple):
    """The rows ``start`` to ``stop`` of a variable that has ``total``."""

    start: int
    stop: int
    total: int


def own_rows(stored: Layout, shape: Shape, coordinate: Coordinate) -> Rows | None:
    """The rows of a variable of ``shape`` that ``coordinate`` has; None if it has all."""
    if shape is None or Shard(0) not in stored.placements:
        return None
    sizes = [d or 0 for d in shape]
    part = stored.slices(sizes, coordinate)[0]
    return Rows(part.start, part.stop, sizes[0])


def emit_sparse_read(emit: Emitter, node: Node, local: Local, rows: Rows) -> None:
    """A look-up of ``rows`` alone: indices of others give zeros, and the sum over the axis is the value."""
    handle, indices = local.inputs
    mine, inside = _own(emit, node, local, indices, rows)
    (spec,) = local.outputs
    taken = f"{local.name}/taken"
    _put(emit, node, local._replace(name=taken, inputs=(handle, mine)))
    if rows.stop == rows.start:  # nothing to read: any value times no row
        emit.nodes.pop(taken)
        zeros = emit.constant(
            f"{local.name}/zeros", np.zeros(_sizes(spec), spec.dtype.np), local.device, node
        )
        _put(emit, node.replace(op=identity, attrs={"T": spec.dtype}), local._replace(inputs=(zeros,)))
        return
    rank, index_rank = len(spec.shape or ()), len(emit.nodes[inside[0]].outputs[0].shape or ())
    dims = np.array([*(emit.nodes[inside[0]].outputs[0].shape or ()), *[1] * (rank - index_rank)], np.int32)
    shape = emit.constant(f"{local.name}/dims", dims, local.device, node)
    wide = emit.add(
        f"{local.name}/inside", reshape, (inside, shape), {"T": boolean, "Tshape": int32},
        local.device, [TensorSpec(boolean, tuple(int(d) for d in dims))], node,
    )  # fmt: skip
    zero = emit.constant(f"{local.name}/zero", np.zeros((), spec.dtype.np), local.device, node)
    chosen = node.replace(op=select_v2, attrs={"T": spec.dtype})
    _put(emit, chosen, local._replace(inputs=((wide, 0), (taken, 0), zero), controls=()))


def emit_sparse_update(emit: Emitter, node: Node, local: Local, rows: Rows) -> None:
    """An update of ``rows`` alone: the indices of others, and their values, are left out."""
    arguments = [argument.name for argument in arguments_of(node.op, node.attrs)]
    at = arguments.index("indices")
    mine, inside = _own(emit, node, local, local.inputs[at], rows)
    places = emit.add(
        f"{local.name}/places", where_op, (inside,), {"T": boolean}, local.device,
        [TensorSpec(int64, (None, 1))], node,
    )  # fmt: skip
    flat = emit.constant(f"{local.name}/flat", np.array([-1], np.int32), local.device, node)
    kept = emit.add(
        f"{local.name}/kept", reshape, ((places, 0), flat), {"T": int64, "Tshape": int32},
        local.device, [TensorSpec(int64, (None,))], node,
    )  # fmt: skip
    inputs = list(local.inputs)
    for i, name in enumerate(arguments):
        ref = mine if i == at else inputs[i]
        spec = emit.nodes[ref[0]].outputs[ref[1]]
        if i == at or (name in ("grad", "updates") and spec.shape):
            inputs[i] = _rows_of(emit, node, local, ref, (kept, 0))
    _put(emit, node, local._replace(inputs=tuple(inputs)))


def _rows_of(emit: Emitter, node: Node, local: Local, ref: Ref, places: Ref) -> Ref:
    spec = emit.nodes[ref[0]].outputs[ref[1]]
    axis = emit.constant(f"{local.name}/axis", np.array(0, np.int32), local.device, node)
    attrs = {"batch_dims": 0, "Tparams": spec.dtype, "Tindices": int64, "Taxis": int32}
    made = TensorSpec(spec.dtype, (None, *(spec.shape or ())[1:]))
    name = f"{local.name}/rows"
    return emit.add(name, gather_op, (ref, places, axis), attrs, local.device, [made], node), 0


def _own(emit: Emitter, node: Node, local: Local, indices: Ref, rows: Rows) -> tuple[Ref, Ref]:
    """``indices`` relative to the first of ``rows``, moved inside, and whether each is inside."""
    spec = emit.nodes[indices[0]].outputs[indices[1]]
    limit = {"T": spec.dtype, "limit": rows.total, "what": "indices"}
    stem = f"{local.name}/checked"
    indices = emit.add(stem, checked_op, (indices,), limit, local.device, [spec], node), 0

    def number(value: int, what: str) -> Ref:
        return emit.constant(f"{local.name}/{what}", np.array(value, spec.dtype.np), local.device, node)

    def apply(op: OpDef, x: Ref, y: Ref, made: TensorSpec = spec) -> Ref:
        attrs = {"T": spec.dtype} if op.types else {}
        return emit.add(f"{local.name}/{op.name}", op, (x, y), attrs, local.device, [made], node), 0

    flags = TensorSpec(boolean, spec.shape)
    first = number(rows.start, "first")
    inside = apply(
        logical_and,
        apply(greater_equal, indices, first, flags),
        apply(less, indices, number(rows.stop, "end"), flags),
        flags,
    )
    moved = apply(subtract, indices, first)
    last = number(max(rows.stop - rows.start - 1, 0), "last")
    bounded = apply(minimum, apply(maximum, moved, number(0, "zero")), last)
    return bounded, inside


def is_partial_mean(node: Node, inputs: Sequence[Layout], outputs: Sequence[Layout]) -> bool:
    """Whether ``node`` is a mean along a dimension that is cut."""
    return node.op.reduction == "mean" and inputs[0].partial_axes != outputs[0].partial_axes
