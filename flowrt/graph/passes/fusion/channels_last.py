"""Convolutions with their channels last, and what is between them.

    x [n, c, h, w]                               x -> Transpose [n, h, w, c]
    y = Conv2D(x, filter, "NCHW")       ->       y = Conv2D(.., filter, "NHWC")
    z = Relu(y + bias [c, 1, 1])                 z = Relu(y + bias [c]) -> Transpose [n, c, h, w]

With channels last a library's loops over channels read and write memory in its order; with channels first it
copies images before and after each convolution, or has slow loops (8 to 8 channels by 3x39 taps: 69 ms, not
10). Operations that do not depend on the order of dimensions are done on channels-last tensors too, with
their axes renamed, so that transposes are left where images come and go. Where gradients of convolutions are
computed everything stays as it is.

The channels-last form of a tensor of rank r has dimensions (0, 2, ..., r - 1, 1) of it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, TypeAlias, final

import numpy as np

from flowrt import dtypes
from flowrt.graph.construction.constant import const, const_beside
from flowrt.graph.node import Node, Ref, Subgraph, TensorSpec
from flowrt.graph.op_def import OpDef
from flowrt.graph.ops.array.concat_and_split import concat_op, split_op, split_v
from flowrt.graph.ops.array.gather_scatter import gather_op
from flowrt.graph.ops.array.padding import mirror_pad, pad_op, pad_v2
from flowrt.graph.ops.array.reductions import max_op, mean_op, min_op, sum_op
from flowrt.graph.ops.array.slicing import slice_op, strided_slice_op
from flowrt.graph.ops.base.shape_manipulation import expand_dims_op, reshape, squeeze_op, transpose_op
from flowrt.graph.ops.nn.batch_norm import batch_norm_op
from flowrt.graph.ops.nn.bias import bias_add_op
from flowrt.graph.ops.nn.conv import (
    conv2d_backprop_filter_op,
    conv2d_backprop_input_op,
    conv2d_op,
    conv3d_backprop_filter_op,
    conv3d_backprop_input_op,
    conv3d_op,
)
from flowrt.graph.ops.nn.depthwise_conv import (
    depthwise_backprop_filter_op,
    depthwise_backprop_input_op,
    depthwise_conv2d_op,
)
from flowrt.graph.ops.nn.pooling import average_pool3d_op, average_pool_op, max_pool3d_op, max_pool_op
from flowrt.graph.ops.nn.windows import channels_first
from flowrt.graph.passes.fusion.loop_compiler import LoopCompiler
from flowrt.graph.passes.prepare.prune import drop_unread
from flowrt.graph.shapes import Shape, is_static

CONVOLUTIONS = frozenset({conv2d_op, conv3d_op, depthwise_conv2d_op})

GRADIENTS = frozenset({
    conv2d_backprop_filter_op, conv2d_backprop_input_op, conv3d_backprop_filter_op, conv3d_backprop_input_op,
    depthwise_backprop_filter_op, depthwise_backprop_input_op,
})  # fmt: skip

REDUCTIONS = frozenset({mean_op, sum_op, max_op, min_op})

LAST = {"NCHW": "NHWC", "NCDHW": "NDHWC"}
"""Data formats with the channels last."""

MIN_RANK = 3

_Array: TypeAlias = "np.ndarray[Any, Any]"


def channels_last(subgraph: Subgraph, compiler: LoopCompiler) -> Subgraph:
    """``subgraph`` with the above done to it; the same object if there is nothing of the kind."""
    if not compiler.has_epilogues() or not any(map(_is_convolution, subgraph)):
        return subgraph
    if any(node.op in GRADIENTS for node in subgraph):
        return subgraph
    return _Rewriter(subgraph).run()


def _is_convolution(node: Node) -> bool:
    """Whether it is one that will have its channels last."""
    if node.op not in CONVOLUTIONS or not channels_first(node.attrs["data_format"]):
        return False
    (spec,) = node.outputs
    return spec.dtype is dtypes.float32 and is_static(spec.shape)


def _order(rank: int) -> list[int]:
    """The dimensions of a tensor in the order of its channels-last form."""
    return [0, *range(2, rank), 1]


def _rank(node: Node) -> int:
    shape = node.outputs[0].shape
    return 0 if shape is None else len(shape)


def _place(axis: int, rank: int) -> int:
    """The index of a dimension in the channels-last form."""
    return _order(rank).index(axis % rank)


def _last_spec(spec: TensorSpec) -> TensorSpec:
    assert spec.shape is not None
    return TensorSpec(spec.dtype, tuple([spec.shape[i] for i in _order(len(spec.shape))]))


def _is_same_order(shape: Shape) -> bool:
    """Whether the elements of a tensor and of its channels-last form are in the same order."""
    return is_static(shape) and (shape[1] == 1 or all(size == 1 for size in shape[2:]))


@final
class _Rewriter:
    """Rewrites a subgraph node by node. A tensor has one of two forms, or both: of one that is computed with
    the channels last the other is made when something reads it, and the other way round.
    """

    def __init__(self, subgraph: Subgraph) -> None:
        self._subgraph = subgraph
        self._names = set(subgraph.nodes)
        self._nodes: dict[str, Node] = {}
        self._last: dict[Ref, Ref] = {}
        """Channels-last forms."""
        self._first: dict[Ref, Ref] = {}
        """Tensors as they were, of those that are computed with the channels last."""
        self._pending: dict[Ref, Node] = {}
        """Nodes that compute tensors with the channels last."""
        self.in_front: dict[Ref, Ref] = {}
        """Tensors of which others are reshapes."""

    def run(self) -> Subgraph:
        for node in self._subgraph:
            self._visit(node)
        fetches = tuple(map(self.first, self._subgraph.fetches))
        return drop_unread(self._subgraph.replace(nodes=self._nodes, fetches=fetches))

    def _visit(self, node: Node) -> None:
        rule = _RULES.get(node.op, _elementwise if node.op.elementwise else None)
        changed = None if rule is None else rule(self, node)
        if changed is not None:
            self._nodes[node.name] = changed
            for index in range(len(node.outputs)):
                ref = node.name, index
                self._last[ref], self._pending[ref] = ref, changed
            if changed.op is node.op and _rank(changed) != _rank(node):
                self._reshape_back(node, changed)
            return
        if node.op in REDUCTIONS and (reduced := _whole_reduction(self, node)) is not None:
            self._nodes[node.name] = reduced
            return
        inputs = tuple(map(self.first, node.inputs))
        self._nodes[node.name] = node if inputs == node.inputs else node.replace(inputs=inputs)
        if node.op is transpose_op:
            self._note_transpose(node)

    def _reshape_back(self, node: Node, changed: Node) -> None:
        """Reshape what was computed in front of a reshape."""
        ref = node.name, 0
        back = self.reshaped(changed, ref, _last_spec(node.outputs[0]))
        self._last[ref], self._pending[ref], self.in_front[back] = back, self._nodes[back[0]], ref

    # --- what rules ask

    def spec(self, ref: Ref) -> TensorSpec:
        """The spec of a tensor as it was."""
        return self._subgraph.spec(ref)

    def rank(self, ref: Ref) -> int:
        """The rank of a tensor; 0 if that is not known."""
        shape = self.spec(ref).shape
        return 0 if shape is None else len(shape)

    def has_last(self, ref: Ref) -> bool:
        """Whether the channels-last form of a tensor is there already."""
        return ref in self._last

    def array(self, ref: Ref) -> _Array | None:
        """The value of a constant."""
        node = self._subgraph.nodes[ref[0]]
        return node.attrs["value"] if node.op is const else None

    def last(self, ref: Ref) -> Ref:
        """The channels-last form of a tensor of known rank, at least `MIN_RANK`."""
        if ref not in self._last:
            array, producer = self.array(ref), self._nodes[ref[0]]
            if array is not None:
                self._last[ref] = self.like(ref, array.transpose(_order(array.ndim)))
            elif _is_same_order(self.spec(ref).shape):
                self._last[ref] = self.reshaped(producer, ref, _last_spec(self.spec(ref)))
            else:
                self._last[ref] = self._turned(producer, ref, self.spec(ref), _order(self.rank(ref)))
        return self._last[ref]

    def first(self, ref: Ref) -> Ref:
        """The tensor as it was."""
        if ref in self._first:
            return self._first[ref]
        node = self._pending.get(ref)
        if node is None:
            return ref
        spec = self.spec(ref)
        rank = self.rank(ref)
        if _is_same_order(spec.shape):
            made = self.reshaped(node, self._last[ref], spec)
        else:
            back = [_place(axis, rank) for axis in range(rank)]
            made = self._turned(node, self._last[ref], node.outputs[ref[1]], back)
        self._first[ref] = made
        return made

    def made(self, ref: Ref) -> TensorSpec:
        """The spec of a tensor that was made here."""
        return self._nodes[ref[0]].outputs[ref[1]]

    def width(self, ref: Ref) -> int:
        """The rank of a tensor that was made here, of known rank."""
        shape = self.made(ref).shape
        assert shape is not None
        return len(shape)

    # --- new nodes

    def like(self, ref: Ref, array: _Array) -> Ref:
        """A constant that stands for the constant ``ref`` and waits for the same."""
        node = self._nodes[ref[0]]
        return self._added(const_beside(node, self._name(node), np.ascontiguousarray(array), node.controls))

    def constant(self, node: Node, array: _Array) -> Ref:
        """A constant beside ``node``."""
        return self._added(const_beside(node, self._name(node), array))

    def host(self, node: Node, values: Any, like: Ref) -> Ref:
        """A constant of integers with the dtype of ``like``."""
        return self.constant(node, np.asarray(values, self.spec(like).dtype.np))

    def reshaped(self, node: Node, ref: Ref, spec: TensorSpec) -> Ref:
        """``ref`` with the static shape of ``spec``."""
        sizes = self.constant(node, np.array(spec.shape, np.int32))
        attrs = {"T": spec.dtype, "Tshape": dtypes.int32}
        return self._added(node.beside(self._name(node), reshape, (ref, sizes), (), attrs, (spec,)))

    def _turned(self, node: Node, ref: Ref, spec: TensorSpec, order: Sequence[int]) -> Ref:
        assert spec.shape is not None
        perm = self.constant(node, np.array(order, np.int32))
        after = TensorSpec(spec.dtype, tuple([spec.shape[i] for i in order]))
        attrs = {"T": spec.dtype, "Tperm": dtypes.int32}
        return self._added(node.beside(self._name(node), transpose_op, (ref, perm), (), attrs, (after,)))

    def _added(self, node: Node) -> Ref:
        self._nodes[node.name] = node
        return node.name, 0

    def _name(self, node: Node) -> str:
        number = 0
        while (name := f"{node.name}/laid_out_{number}") in self._names:
            number += 1
        self._names.add(name)
        return name

    def _note_transpose(self, node: Node) -> None:
        """Tell what a transpose leaves or makes: it disappears, if all readers take the other form."""
        perm, rank = self.array(node.inputs[1]), self.rank((node.name, 0))
        if perm is None or rank < MIN_RANK or node.controls:
            return
        source, result = node.inputs[0], (node.name, 0)
        if perm.tolist() == _order(rank) and self.has_last(source):
            self._first[result] = self._last[source]
        elif perm.tolist() == [_place(axis, rank) for axis in range(rank)]:
            self._last[result] = self.first(source)


# --- rules: the node that computes the channels-last form, or None where there is none

_Rule: TypeAlias = Callable[[_Rewriter, Node], "Node | None"]


def _with_last(node: Node, inputs: Sequence[Ref], attrs: Mapping[str, Any] = MappingProxyType({})) -> Node:
    """``node`` with other inputs and attrs, and outputs with the channels last."""
    outputs = tuple(map(_last_spec, node.outputs))
    return node.replace(inputs=tuple(inputs), attrs={**node.attrs, **attrs}, outputs=outputs)


def _is_known(rewriter: _Rewriter, node: Node) -> bool:
    """Whether the first input has a channels-last form already, and the outputs can have one."""
    ranks = [0 if spec.shape is None else len(spec.shape) for spec in node.outputs]
    return rewriter.has_last(node.inputs[0]) and all(rank == rewriter.rank(node.inputs[0]) for rank in ranks)


def _convolution(rewriter: _Rewriter, node: Node) -> Node | None:
    if not _is_convolution(node):
        return None
    x, filter = node.inputs
    return _with_last(node, (rewriter.last(x), rewriter.first(filter)), _windows(node))


def _pooling(rewriter: _Rewriter, node: Node) -> Node | None:
    is_first = channels_first(node.attrs["data_format"])
    if not is_first or not _is_known(rewriter, node):
        return None
    return _with_last(node, (rewriter.last(node.inputs[0]),), _windows(node))


def _windows(node: Node) -> dict[str, Any]:
    """The attrs of windows over channels-last images."""
    attrs: dict[str, Any] = {"data_format": LAST[node.attrs["data_format"]]}
    order = _order(len(node.attrs["strides"]))
    for key in ("strides", "dilations", "ksize"):
        if key in node.attrs:
            attrs[key] = tuple([node.attrs[key][i] for i in order])
    if explicit := node.attrs.get("explicit_paddings"):
        attrs["explicit_paddings"] = tuple([a for i in order for a in explicit[2 * i : 2 * i + 2]])
    return attrs


def _bias(rewriter: _Rewriter, node: Node) -> Node | None:
    x, *vectors = node.inputs
    is_first = channels_first(node.attrs["data_format"])
    if not is_first or not rewriter.has_last(x) or not rewriter.rank(x) >= MIN_RANK:
        return None
    attrs = {"data_format": LAST[node.attrs["data_format"]]}
    return _with_last(node, (rewriter.last(x), *map(rewriter.first, vectors)), attrs)


def _normalization(rewriter: _Rewriter, node: Node) -> Node | None:
    changed = None if node.attrs["is_training"] else _bias(rewriter, node.replace(outputs=node.outputs[:1]))
    return None if changed is None else changed.replace(outputs=(*changed.outputs, *node.outputs[1:]))


def _elementwise(rewriter: _Rewriter, node: Node) -> Node | None:
    """Elementwise operations on a tensor that has its channels last; others are laid out like it."""
    if len(node.outputs) != 1 or not node.op.is_pure or any(a.on_host for a in node.op.inputs):
        return None
    shape = node.outputs[0].shape
    if shape is None or len(shape) < MIN_RANK:
        return None
    is_led = any(rewriter.has_last(ref) and rewriter.spec(ref).shape == shape for ref in node.inputs)
    if not is_led:
        return None
    inputs = [ref for ref in (_broadcast(rewriter, ref, len(shape)) for ref in node.inputs) if ref]
    if len(inputs) < len(node.inputs):
        return None
    return _in_front(rewriter, node, inputs) or _with_last(node, inputs)


def _in_front(rewriter: _Rewriter, node: Node, inputs: Sequence[Ref]) -> Node | None:
    """An operation on a reshaped tensor and on vectors of channels, in front of the reshape: a convolution
    over one dimension can have it as its epilogue.
    """
    reshaped = [ref for ref in inputs if ref in rewriter.in_front]
    if len(reshaped) != 1 or any(rewriter.width(ref) > 1 for ref in inputs if ref not in reshaped):
        return None
    spec = rewriter.made(rewriter.in_front[reshaped[0]])
    after = TensorSpec(node.outputs[0].dtype, spec.shape)
    inputs = tuple([rewriter.in_front.get(ref, ref) for ref in inputs])
    return node.replace(inputs=inputs, outputs=(after,))


def _broadcast(rewriter: _Rewriter, ref: Ref, rank: int) -> Ref | None:
    """The form of ``ref`` that broadcasts to channels-last tensors of ``rank`` as it does to others."""
    if rewriter.rank(ref) == rank and rewriter.array(ref) is None:
        return rewriter.last(ref)
    shape, array = rewriter.spec(ref).shape, rewriter.array(ref)
    if shape == ():
        return rewriter.first(ref)
    if array is None:
        return None
    turned = array.reshape((1,) * (rank - array.ndim) + array.shape).transpose(_order(rank))
    while turned.ndim > 1 and turned.shape[0] == 1:
        turned = turned[0]
    return rewriter.like(ref, turned)


def _concat(rewriter: _Rewriter, node: Node) -> Node | None:
    *values, axis = node.inputs
    at, rank = rewriter.array(axis), rewriter.rank(values[0])
    if at is None or rank < MIN_RANK or not any(map(rewriter.has_last, values)):
        return None
    place = rewriter.host(node, _place(int(at), rank), axis)
    return _with_last(node, [*map(rewriter.last, values), place])


def _split(rewriter: _Rewriter, node: Node) -> Node | None:
    x = node.inputs[1] if node.op is split_op else node.inputs[0]
    axis = node.inputs[0] if node.op is split_op else node.inputs[2]
    at, rank = rewriter.array(axis), rewriter.rank(x)
    if at is None or rank < MIN_RANK or not rewriter.has_last(x):
        return None
    place = rewriter.host(node, _place(int(at), rank), axis)
    if node.op is split_op:
        return _with_last(node, (place, rewriter.last(x)))
    return _with_last(node, (rewriter.last(x), node.inputs[1], place))


def _by_axes(rewriter: _Rewriter, node: Node) -> Node | None:
    """Operations that take a row of host numbers for each dimension: paddings, begins and sizes."""
    if not _is_known(rewriter, node):
        return None
    hosts = [ref for ref, argument in zip(node.inputs, node.op.inputs, strict=True) if argument.on_host]
    arrays = {ref: rewriter.array(ref) for ref in hosts}
    rank = rewriter.rank(node.inputs[0])
    if any(array is None or len(array) != rank for array in arrays.values()):
        return None
    inputs = [rewriter.last(node.inputs[0])]
    for ref in node.inputs[1:]:
        array = arrays.get(ref)
        inputs.append(rewriter.first(ref) if array is None else rewriter.host(node, array[_order(rank)], ref))
    return _with_last(node, inputs)


def _strided_slice(rewriter: _Rewriter, node: Node) -> Node | None:
    x, *hosts = node.inputs
    arrays, rank = [rewriter.array(ref) for ref in hosts], rewriter.rank(x)
    is_plain = not any(node.attrs[f"{key}_mask"] for key in ("ellipsis", "new_axis", "shrink_axis"))
    if not is_plain or not _is_known(rewriter, node) or any(array is None for array in arrays):
        return None
    given = len(arrays[0]) if arrays[0] is not None else 0
    order = _order(rank)
    inputs = [rewriter.last(x)]
    for ref, array, rest in zip(hosts, arrays, (0, 0, 1), strict=True):
        assert array is not None
        whole = [*array.tolist(), *[rest] * (rank - given)]
        inputs.append(rewriter.host(node, [whole[i] for i in order], ref))
    attrs = {}
    for key in ("begin_mask", "end_mask"):
        mask = node.attrs[key] | ((1 << rank) - (1 << given))
        attrs[key] = sum(1 << place for place, i in enumerate(order) if mask >> i & 1)
    return _with_last(node, inputs, attrs)


def _reduction(rewriter: _Rewriter, node: Node) -> Node | None:
    """Reductions that keep dimensions."""
    x, axes = node.inputs
    array, rank = rewriter.array(axes), rewriter.rank(x)
    if array is None or not node.attrs["keep_dims"] or not _is_known(rewriter, node):
        return None
    places = [_place(int(axis), rank) for axis in array.reshape(-1)]
    return _with_last(node, (rewriter.last(x), rewriter.host(node, places, axes)))


def _whole_reduction(rewriter: _Rewriter, node: Node) -> Node | None:
    """Reductions to ``[n, c]``, which are as they were."""
    x, axes = node.inputs
    array, rank = rewriter.array(axes), rewriter.rank(x)
    if array is None or rank < MIN_RANK or node.attrs["keep_dims"] or not rewriter.has_last(x):
        return None
    if {int(axis) % rank for axis in array.reshape(-1)} != {*range(2, rank)}:
        return None
    return node.replace(inputs=(rewriter.last(x), rewriter.host(node, [*range(1, rank - 1)], axes)))


def _gather(rewriter: _Rewriter, node: Node) -> Node | None:
    x, indices, axis = node.inputs
    at = rewriter.array(axis)
    is_plain = not node.attrs["batch_dims"] and rewriter.rank(indices) == 1
    if at is None or not is_plain or not _is_known(rewriter, node):
        return None
    place = rewriter.host(node, _place(int(at), rewriter.rank(x)), axis)
    return _with_last(node, (rewriter.last(x), rewriter.first(indices), place))


def _respaced(rewriter: _Rewriter, node: Node) -> Node | None:
    """Reshapes of the dimensions behind the channels, and dimensions of one that come or go there."""
    x, (spec,) = node.inputs[0], node.outputs
    before, after = rewriter.spec(x).shape, spec.shape
    if not rewriter.has_last(x) or not (is_static(before) and is_static(after)):
        return None
    if min(len(before), len(after)) < MIN_RANK or before[:2] != after[:2]:
        return None
    spec = _last_spec(spec)
    sizes = rewriter.constant(node, np.array(spec.shape, np.int32))
    attrs = {"T": spec.dtype, "Tshape": dtypes.int32}
    rewriter.in_front[node.name, 0] = rewriter.last(x)
    return node.replace(op=reshape, inputs=(rewriter.last(x), sizes), attrs=attrs, outputs=(spec,))


_RULES: Mapping[OpDef, _Rule] = {
    **dict.fromkeys(CONVOLUTIONS, _convolution),
    **dict.fromkeys((max_pool_op, max_pool3d_op, average_pool_op, average_pool3d_op), _pooling),
    bias_add_op: _bias,
    batch_norm_op: _normalization,
    concat_op: _concat,
    **dict.fromkeys((split_op, split_v), _split),
    **dict.fromkeys((pad_op, pad_v2, mirror_pad, slice_op), _by_axes),
    strided_slice_op: _strided_slice,
    **dict.fromkeys(REDUCTIONS, _reduction),
    gather_op: _gather,
    **dict.fromkeys((reshape, expand_dims_op, squeeze_op), _respaced),
}
