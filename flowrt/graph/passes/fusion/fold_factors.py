"""Factors and offsets by channel that follow a convolution, in its filter and one sum.

    y = AddV2(Mul(Conv2D(x, filter), scale), offset)     ->     y = AddV2(Conv2D(x, filter * scale), offset)

All of them are constants, so that the filter is computed once, here: normalizations by given statistics, and
what exporters made of these. Results differ by rounding. Nothing else reads what is between them. Channels
are last (`flowrt.graph.passes.fusion.channels_last`).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple, TypeAlias, final

import numpy as np

from flowrt.graph.construction.constant import const, const_beside
from flowrt.graph.node import Node, Ref, Subgraph
from flowrt.graph.ops.elementwise.arithmetic import add_v1, add_v2, multiply
from flowrt.graph.ops.nn.batch_norm import batch_norm_op
from flowrt.graph.ops.nn.bias import bias_add_op
from flowrt.graph.ops.nn.depthwise_conv import depthwise_conv2d_op
from flowrt.graph.ops.nn.windows import channels_first
from flowrt.graph.passes.fusion.channels_last import CONVOLUTIONS
from flowrt.graph.passes.fusion.loop_compiler import LoopCompiler
from flowrt.graph.passes.prepare.prune import drop_unread

SUMS = frozenset({add_v1, add_v2, bias_add_op})

_Array: TypeAlias = "np.ndarray[Any, Any]"


class Affine(NamedTuple):
    """``y * factor + offset``, both [channels] in float64."""

    factor: _Array
    offset: _Array


def fold_factors(subgraph: Subgraph, compiler: LoopCompiler) -> Subgraph:
    """``subgraph`` with the above done to it; the same object if there is nothing of the kind."""
    if not compiler.has_epilogues() or not any(node.op in CONVOLUTIONS for node in subgraph):
        return subgraph
    folder = _Folder(subgraph)
    folded = {last: nodes for conv in subgraph for last, nodes in folder.of(conv)}
    if not folded:
        return subgraph
    return drop_unread(
        subgraph.with_nodes([new for node in subgraph for new in folded.get(node.name, [node])])
    )


@final
class _Folder:
    """Finds what follows the convolutions of a subgraph."""

    def __init__(self, subgraph: Subgraph) -> None:
        self._subgraph, self._consumers = subgraph, subgraph.consumers()
        self._read = {*[name for name, _ in subgraph.fetches], *subgraph.targets}

    def of(self, conv: Node) -> Iterator[tuple[str, list[Node]]]:
        """The name of the last node that follows ``conv`` so, and the nodes in its place, if there are."""
        filter = None if conv.op not in CONVOLUTIONS else self._array(conv.inputs[1])
        (spec,) = conv.outputs[:1] or (None,)
        if filter is None or spec is None or filter.dtype != np.float32 or spec.shape is None:
            return
        if channels_first(conv.attrs["data_format"]) or not isinstance(spec.shape[-1], int):
            return
        channels = spec.shape[-1]
        last, steps = conv, 0
        total = Affine(np.ones(channels), np.zeros(channels))
        scales = False
        while (found := self._next(last)) is not None:
            last, then = found
            total = Affine(total.factor * then.factor, total.offset * then.factor + then.offset)
            scales, steps = scales or last.op is multiply or last.op is batch_norm_op, steps + 1
        if scales or steps > 1:
            yield last.name, _folded(conv, last, filter, total)

    def _next(self, last: Node) -> tuple[Node, Affine] | None:
        """The node after ``last``, if it is the only reader and such a step."""
        if last.name in self._read or len(self._consumers[last.name]) != 1:
            return None
        node = self._subgraph.nodes[self._consumers[last.name][0]]
        others = [ref for ref in node.inputs if ref[0] != last.name]
        is_same = node.outputs[:1] == last.outputs[:1]
        if node.controls or not is_same or len(others) + 1 != len(node.inputs):
            return None
        if node.op is batch_norm_op:
            return self._normalization(node, last)
        if node.op not in SUMS and node.op is not multiply:
            return None
        if node.op is bias_add_op and channels_first(node.attrs["data_format"]):
            return None
        shape = last.outputs[0].shape
        assert shape is not None
        vector = self._vector(others[0], shape[-1])
        if vector is None:
            return None
        if node.op is multiply:
            return node, Affine(vector, np.zeros_like(vector))
        return node, Affine(np.ones_like(vector), vector)

    def _normalization(self, node: Node, last: Node) -> tuple[Node, Affine] | None:
        shape = last.outputs[0].shape
        assert shape is not None
        vectors = [self._vector(ref, shape[-1]) for ref in node.inputs[1:]]
        is_given = not node.attrs["is_training"] and not channels_first(node.attrs["data_format"])
        if node.inputs[0][0] != last.name or not is_given or not self._reads_result_only(node):
            return None
        known = [vector for vector in vectors if vector is not None]
        if len(known) < len(vectors):
            return None
        scale, offset, mean, variance = known
        factor = scale / np.sqrt(variance + node.attrs["epsilon"])
        return node, Affine(factor, offset - mean * factor)

    def _reads_result_only(self, node: Node) -> bool:
        """Whether no output of ``node`` but the first is read."""
        readers = [self._subgraph.nodes[name] for name in self._consumers[node.name]]
        refs = [*self._subgraph.fetches, *[ref for reader in readers for ref in reader.inputs]]
        return all(index == 0 for name, index in refs if name == node.name)

    def _vector(self, ref: Ref, channels: int | None) -> _Array | None:
        """A constant with one element for all or for each of the channels, in float64."""
        array = self._array(ref)
        if array is None or array.size not in (1, channels):
            return None
        if array.shape[-1:] not in ((), (array.size,)):
            return None
        return np.broadcast_to(array.astype(np.float64).reshape(-1), (channels or 0,))

    def _array(self, ref: Ref) -> _Array | None:
        node = self._subgraph.nodes[ref[0]]
        return node.attrs["value"] if node.op is const and not node.controls else None


def _folded(conv: Node, last: Node, filter: _Array, total: Affine) -> list[Node]:
    """The nodes in place of ``last``; the last one has its name."""
    factor = total.factor.reshape(filter.shape[-2:]) if conv.op is depthwise_conv2d_op else total.factor
    scaled = const_beside(conv, f"{last.name}/filter", (filter * factor).astype(np.float32))
    inputs = conv.inputs[0], (scaled.name, 0)
    if not total.offset.any():
        return [scaled, conv.replace(name=last.name, inputs=inputs)]
    offset = const_beside(conv, f"{last.name}/offset", total.offset.astype(np.float32))
    scaled_conv = conv.replace(name=f"{last.name}/scaled", inputs=inputs)
    refs = (scaled_conv.name, 0), (offset.name, 0)
    attrs = {"T": last.outputs[0].dtype}
    return [scaled, offset, scaled_conv, last.beside(last.name, add_v2, refs, (), attrs, last.outputs[:1])]
