"""What does to a batch what an operation does to one element: a rule an op, for `flowrt.graph.batching`.

A rule ``(b, op, values)`` gets the operation of the template and what stands for its inputs, and returns what
stands for its outputs; None where it has no way: then a loop does it. Inputs that say how (axes, shapes) are
the same for all elements. The template's shapes are those of one element; the axis of the batch is the first.

Few ideas serve nearly all ops: leading axes come along (`leading`), an axis moves back by one (`on_axes`), a
list of dimensions gets one in front (`in_front`), the batch and the axis behind it become one (`merged`).
"""

from __future__ import annotations

import string
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from flowrt import dtypes
from flowrt.graph import batching_indices as indices
from flowrt.graph.batching_axes import (
    Value,
    behind,
    dims_of,
    joined,
    merged_axes,
    moved_axes,
    moved_axis,
    rank_of,
    split_axis,
    with_inner_axes,
    with_last_axes,
)
from flowrt.graph.operation import Operation, Tensor
from flowrt.graph.ops.arithmetic import add_v2, multiply
from flowrt.graph.ops.comparison import broadcast_shape, select_v2
from flowrt.graph.ops.complex_parts import conj
from flowrt.graph.ops.einsum import parse_equation
from flowrt.graph.ops.filling import broadcast_to
from flowrt.graph.ops.identities import identity, static_value
from flowrt.graph.ops.linalg import batch_matmul, matmul
from flowrt.graph.ops.math import square
from flowrt.graph.ops.matrix_parts import matrix_diag, matrix_diag_part
from flowrt.graph.ops.reductions import reduce_all, reduce_sum
from flowrt.graph.ops.shaping import rank, reshape, shape, size, transpose

if TYPE_CHECKING:
    from flowrt.graph.batching import Batching

Rule: TypeAlias = Callable[["Batching", Operation, Sequence[Value]], Sequence[Value] | None]


def _batched(*tensors: Tensor) -> list[Value]:
    return [Value(tensor, True) for tensor in tensors]


def _same(*tensors: Tensor) -> list[Value]:
    return [Value(tensor, False) for tensor in tensors]


# --- elementwise


def elementwise(b: Batching, op: Operation, values: Sequence[Value]) -> list[Value] | None:
    """Elements of less rank get inner axes, so that they broadcast as they did; what is not batched does."""
    if len(values) == 1:
        return b.apply(op, [values[0].tensor])
    ranks = [rank_of(t) for t in op.inputs]
    if None in ranks:
        return None
    if op.op_def.shape is not broadcast_shape and op.type not in _BROADCAST:
        return leading(b, op, values)
    most = max(r for r in ranks if r is not None)
    pairs = zip(values, ranks, strict=True)
    return b.apply(op, [with_inner_axes(v.tensor, most - (r or 0)) if v.is_batched else v.tensor for v, r in pairs])


_BROADCAST = {"Equal", "NotEqual", "Complex"}
"""Ops that broadcast by a shape rule of their own."""


def _select(b: Batching, op: Operation, values: Sequence[Value]) -> list[Value] | None:
    """A condition of less rank says it for whole rows: its axes are the first ones."""
    condition, t, e = values
    ranks = [rank_of(x) for x in op.inputs]
    if ranks[0] is None or ranks[1] is None:
        return None
    return _batched(select_v2(with_last_axes(condition.tensor, ranks[1] - ranks[0]), t.tensor, e.tensor))


# --- axes


def leading(b: Batching, op: Operation, values: Sequence[Value]) -> list[Value]:
    """For ops that work on the last axes, or element by element on inputs of one shape."""
    return b.apply(op, _whole(b, op, values))


def _whole(b: Batching, op: Operation, values: Sequence[Value]) -> list[Tensor]:
    """All inputs batched, but those that say how."""
    arguments = [a for a in op.op_def.inputs for _ in range(a.length(op.node.attrs))]
    return [v.tensor if a.on_host else b.whole(v) for a, v in zip(arguments, values, strict=True)]


def leading_of_first(b: Batching, op: Operation, values: Sequence[Value]) -> list[Value] | None:
    """As `leading`, where the other inputs are the same for all elements."""
    if any(v.is_batched for v in values[1:]):
        return None
    return b.apply(op, [v.tensor for v in values])


def on_axes(position: int = -1) -> Rule:
    """For ops that work along axes, which are input ``position``."""

    def rule(b: Batching, op: Operation, values: Sequence[Value]) -> list[Value]:
        tensors = _whole(b, op, values)
        tensors[position] = moved_axes(tensors[position])
        return b.apply(op, tensors)

    return rule


def _on_axis_attr(b: Batching, op: Operation, values: Sequence[Value]) -> list[Value]:
    return b.apply(op, _whole(b, op, values), axis=moved_axis(op.get_attr("axis")))


def _one_hot(b: Batching, op: Operation, values: Sequence[Value]) -> list[Value] | None:
    if values[2].is_batched or values[3].is_batched:
        return None
    return b.apply(op, [v.tensor for v in values], axis=moved_axis(op.get_attr("axis")))


def _squeeze(b: Batching, op: Operation, values: Sequence[Value]) -> list[Value] | None:
    axes, dims = op.get_attr("squeeze_dims"), op.inputs[0].spec.shape
    if axes:
        return b.apply(op, [values[0].tensor], squeeze_dims=tuple(map(moved_axis, axes)))
    if dims is None or None in dims:
        return None
    ones = tuple(i + 1 for i, dim in enumerate(dims) if dim == 1)
    return b.apply(op, [values[0].tensor], squeeze_dims=ones) if ones else list(values)


def in_front(heads: Mapping[int, Any], **masks: Any) -> Rule:
    """For ops whose host inputs have one entry an axis: ``heads`` are the batch's by input, ``"size"`` its
    length. In ``masks`` are attributes with one bit an axis, and the batch's bit.
    """

    def rule(b: Batching, op: Operation, values: Sequence[Value]) -> list[Value] | None:
        tensors = [v.tensor for v in values]
        for position, head in heads.items():
            tensors[position] = behind(b.size if head == "size" else head, tensors[position])
        if any(v.is_batched for v in values[1:]) and op.type != "StridedSliceGrad":
            return None  # PadV2's value
        return b.apply(op, tensors, **{key: 2 * op.get_attr(key) + bit for key, bit in masks.items()})

    return rule


_SLICES = {"begin_mask": 1, "end_mask": 1, "ellipsis_mask": 0, "new_axis_mask": 0, "shrink_axis_mask": 0}


def _transpose(b: Batching, op: Operation, values: Sequence[Value]) -> list[Value]:
    return b.apply(op, [values[0].tensor, behind(0, moved_axes(values[1].tensor))])


def _fill(b: Batching, op: Operation, values: Sequence[Value]) -> list[Value] | None:
    length = op.inputs[0].spec.shape
    if length is None or length[0] is None:
        return None
    return _batched(broadcast_to(with_last_axes(values[1].tensor, length[0]), behind(b.size, values[0].tensor)))


def _broadcast_to(b: Batching, op: Operation, values: Sequence[Value]) -> list[Value] | None:
    length, own = op.inputs[1].spec.shape, rank_of(op.inputs[0])
    if length is None or length[0] is None or own is None:
        return None
    tensor = with_inner_axes(values[0].tensor, length[0] - own)
    return b.apply(op, [tensor, behind(b.size, values[1].tensor)])


def merged(*positions: int, dims: int | None = None) -> Rule:
    """For ops whose inputs at ``positions`` have a batch axis of their own: it and the new one become one.
    ``dims`` is the host input that has the shape of one of them.
    """

    def rule(b: Batching, op: Operation, values: Sequence[Value]) -> list[Value] | None:
        if any(v.is_batched for i, v in enumerate(values) if i not in positions):
            return None
        if any(rank_of(op.inputs[i]) in (None, 0) for i in positions):
            return None
        whole = {i: b.whole(values[i]) for i in positions}
        tensors = [merged_axes(whole[i]) if i in whole else v.tensor for i, v in enumerate(values)]
        if dims is not None:
            sizes = tensors[dims]
            tensors[dims] = multiply(sizes, behind(b.size, sizes[1:] * 0 + 1))
        found = b.apply(op, tensors)
        return _batched(*[split_axis(value.tensor, whole[positions[0]]) for value in found])

    return rule


# --- shapes: the same for all elements


def _shape(b: Batching, op: Operation, values: Sequence[Value]) -> list[Value]:
    return _same(*[shape(v.tensor, out_type=op.get_attr("out_type"))[1:] if v.is_batched else
                   shape(v.tensor, out_type=op.get_attr("out_type")) for v in values])  # fmt: skip


def _size(b: Batching, op: Operation, values: Sequence[Value]) -> list[Value]:
    kind = op.get_attr("out_type")
    dims = shape(values[0].tensor, out_type=kind)[1:]
    from flowrt.graph.ops.reductions import reduce_prod
    return _same(reduce_prod(dims))


def _rank(b: Batching, op: Operation, values: Sequence[Value]) -> list[Value]:
    return _same(rank(values[0].tensor) - 1)


def _identity_n(b: Batching, op: Operation, values: Sequence[Value]) -> list[Value]:
    return [Value(identity(v.tensor), v.is_batched) for v in values]


def _ensure_shape(b: Batching, op: Operation, values: Sequence[Value]) -> list[Value]:
    dims = op.get_attr("shape")
    return b.apply(op, [values[0].tensor], shape=None if dims is None else (None, *dims))
