"""Batching rules: apply an operation to a whole batch; several ops share a rule as their ``batch``.

A rule ``(b, op, values)`` gets the operation of the template and the `Value` of each input, and returns the
`Value` of each output; or None if it does not apply: then a loop does. Host inputs (axes, shapes) are equal
for all elements. The template's shapes are those of one element; the batch axis comes first.

Few ideas cover nearly all ops: leading axes pass through (`leading`), an axis shifts by one (`on_axes`), a
list of dimensions gets one prepended (`in_front`), the batch axis merges with the next one (`merged`). Rules
create operations through the `BatchBuilder`: ops import the rules, and rules do not import ops.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from flowrt.graph.construction.operation import Operation, Tensor
from flowrt.graph.node import Subgraph
from flowrt.graph.op_facets import BatchRule


class Value(NamedTuple):
    """The tensor that replaces one of the template's (see `flowrt.graph.functions.batching`)."""

    tensor: Tensor
    is_batched: bool


class BatchBuilder(Protocol):
    """Interface through which rules add operations, implemented by `Batching`; for the axes see
    `flowrt.graph.ops.array.batch_axis`.
    """

    size: Any
    """The number of elements: an int, or an int32 scalar."""

    def apply(self, op: Operation, inputs: Sequence[Tensor], **attrs: Any) -> list[Value]: ...
    def call(self, function: Subgraph, values: Sequence[Value]) -> list[Value]: ...
    def copy(self, op: Operation, inputs: Sequence[Tensor], **attrs: Any) -> list[Tensor]: ...
    def whole(self, value: Value) -> Tensor: ...
    def behind(self, head: Any, dims: Tensor) -> Tensor: ...
    def merged_axes(self, batch: Tensor) -> Tensor: ...
    def moved_axes(self, axes: Tensor) -> Tensor: ...
    def split_axis(self, merged: Tensor, like: Tensor) -> Tensor: ...
    def with_inner_axes(self, batch: Tensor, count: int) -> Tensor: ...
    def with_last_axes(self, tensor: Tensor, count: int) -> Tensor: ...


def batched(*tensors: Tensor) -> list[Value]:
    return [Value(tensor, True) for tensor in tensors]


def same(*tensors: Tensor) -> list[Value]:
    """Values that are equal for all elements."""
    return [Value(tensor, False) for tensor in tensors]


def rank_of(tensor: Tensor) -> int | None:
    dims = tensor.spec.shape
    return None if dims is None else len(dims)


def moved_axis(axis: int) -> int:
    """The position in a batch of ``axis`` of an element; negative axes are unchanged."""
    return axis + 1 if axis >= 0 else axis


def broadcasting(b: BatchBuilder, op: Operation, values: Sequence[Value]) -> list[Value] | None:
    """Rule for elementwise ops: elements of lower rank get inner axes so that they broadcast as before."""
    ranks = [len(dims) for t in op.inputs if (dims := t.spec.shape) is not None]
    if len(ranks) < len(values):
        return None
    pairs = zip(values, ranks, strict=True)
    return b.apply(
        op, [b.with_inner_axes(v.tensor, max(ranks) - r) if v.is_batched else v.tensor for v, r in pairs]
    )


def leading(b: BatchBuilder, op: Operation, values: Sequence[Value]) -> list[Value]:
    """Rule for ops on the last axes, or elementwise ops on inputs of equal shape."""
    return b.apply(op, _whole(b, op, values))


def _whole(b: BatchBuilder, op: Operation, values: Sequence[Value]) -> list[Tensor]:
    """All inputs batched, except host inputs."""
    arguments = [a for a in op.op_def.inputs for _ in range(a.length(op.node.attrs))]
    return [v.tensor if a.on_host else b.whole(v) for a, v in zip(arguments, values, strict=True)]


def leading_of_first(b: BatchBuilder, op: Operation, values: Sequence[Value]) -> list[Value] | None:
    """`leading` for ops with a batched first input, if the other inputs are equal for all elements."""
    if any(v.is_batched for v in values[1:]):
        return None
    return b.apply(op, [v.tensor for v in values])


def on_axes(position: int = -1) -> BatchRule:
    """Rule for ops along axes, which are input ``position``."""

    def rule(b: BatchBuilder, op: Operation, values: Sequence[Value]) -> list[Value]:
        tensors = _whole(b, op, values)
        tensors[position] = b.moved_axes(tensors[position])
        return b.apply(op, tensors)

    return rule


def on_axis_attr(b: BatchBuilder, op: Operation, values: Sequence[Value]) -> list[Value]:
    return b.apply(op, _whole(b, op, values), axis=moved_axis(op.get_attr("axis")))


def in_front(heads: Mapping[int, Any], data: int = 0, **masks: int) -> BatchRule:
    """Rule for ops with host inputs that have one entry per axis: ``heads`` maps such an input to the entry
    of the batch axis; ``"size"`` is its length. Only input ``data`` may be batched. ``masks`` maps attrs with
    one bit per axis to the bit of the batch axis.
    """

    def rule(b: BatchBuilder, op: Operation, values: Sequence[Value]) -> list[Value] | None:
        if any(v.is_batched for i, v in enumerate(values) if i != data):
            return None
        tensors = [v.tensor for v in values]
        for position, head in heads.items():
            tensors[position] = b.behind(b.size if head == "size" else head, tensors[position])
        return b.apply(op, tensors, **{key: 2 * op.get_attr(key) + bit for key, bit in masks.items()})

    return rule


def merged(*positions: int, dims: int | None = None) -> BatchRule:
    """Rule for ops with a batch axis in the inputs at ``positions``: the new axis is merged with it. ``dims``
    is the host input that holds the shape of one of them.
    """

    def rule(b: BatchBuilder, op: Operation, values: Sequence[Value]) -> list[Value] | None:
        if any(v.is_batched for i, v in enumerate(values) if i not in positions):
            return None
        shapes = [op.inputs[i].spec.shape for i in positions]
        if any(not dims or dims[0] != (shapes[0] or ())[0] for dims in shapes):
            return None  # one that broadcasts, or of unknown rank
        whole = {i: b.whole(values[i]) for i in positions}
        tensors = [b.merged_axes(whole[i]) if i in whole else v.tensor for i, v in enumerate(values)]
        if dims is not None:
            sizes = tensors[dims]
            tensors[dims] = sizes * b.behind(b.size, sizes[1:] * 0 + 1)
        found = b.apply(op, tensors)
        return batched(*[b.split_axis(value.tensor, whole[positions[0]]) for value in found])

    return rule


def draw(b: BatchBuilder, op: Operation, values: Sequence[Value]) -> list[Value] | None:
    """Rule for random ops: each element draws its own numbers."""
    if any(v.is_batched for v in values):
        return None
    return b.apply(op, [b.behind(b.size, values[0].tensor), *[v.tensor for v in values[1:]]])
