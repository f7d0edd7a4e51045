"""A row of a tensor at an index computed in a loop, as a gather.

    row = StridedSlice(x, Pack(t), ...)      ->      row = GatherV2(x, SelectV2(t < 0, t + n, t))

A slice is a view, which requires Python in each iteration. Gathering a small row is a compiled call
(`flowrt.executor.kernels.small_calls`), which rejects indices out of range.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from flowrt import dtypes
from flowrt.graph.construction.constant import const_beside
from flowrt.graph.node import Node, Subgraph, TensorSpec, static_shape
from flowrt.graph.ops.array.concat_and_split import pack
from flowrt.graph.ops.array.gather_scatter import gather_op
from flowrt.graph.ops.array.slicing import strided_slice_op
from flowrt.graph.ops.elementwise.arithmetic import add_v2
from flowrt.graph.ops.elementwise.comparison import less, select_v2
from flowrt.graph.passes.fusion.fuse import FUSED_DTYPES
from flowrt.graph.shapes import is_static


def gather_slices(function: Subgraph) -> Subgraph:
    """``function`` with the above done to it; the same object if there is nothing of the kind."""
    gathers = {node.name: _gather(function, node) for node in function if _is_row(function, node)}
    if not gathers:
        return function
    read, readers = {name for name, _ in function.fetches}, function.consumers()
    packs = {function.nodes[name].inputs[1][0] for name in gathers}
    unread = {name for name in packs - read if gathers.keys() >= set(readers[name])}
    kept = [node for node in function if node.name not in unread]
    return function.with_nodes([after for node in kept for after in gathers.get(node.name, [node])])


def _is_row(function: Subgraph, node: Node) -> bool:
    """Whether ``node`` takes a whole row at a computed index."""
    if node.op is not strided_slice_op or function.nodes[node.inputs[1][0]].op is not pack:
        return False
    matrix, begin, _, steps = node.inputs
    is_known = is_static(function.spec(matrix).shape) and function.spec(matrix).dtype in FUSED_DTYPES
    stride = function.nodes[steps[0]]
    is_forward = stride.op.name == "Const" and bool(np.all(stride.attrs["value"] == 1))
    return is_known and is_forward and _is_whole_row(node.attrs, static_shape(function.spec(begin))[0])


def _is_whole_row(attrs: Mapping[str, Any], entries: int) -> bool:
    """Whether the first of a slice's entries is an index, and the others take all there is."""
    others = (1 << entries) - 2
    begins, ends = (attrs[key] | attrs["ellipsis_mask"] for key in ("begin_mask", "end_mask"))
    is_index = attrs["shrink_axis_mask"] == 1 and not begins & 1 and not attrs["new_axis_mask"]
    return is_index and begins & others == others and ends & others == others


def _gather(function: Subgraph, row: Node) -> list[Node]:
    """The nodes that replace ``row``; the last one has its name."""
    number = function.nodes[row.inputs[1][0]].inputs[0]
    spec, matrix = function.spec(number), function.spec(row.inputs[0])
    kind, prefix = {"T": spec.dtype}, f"{row.name}/"
    zero = const_beside(row, prefix + "zero", np.array(0, spec.dtype.np))
    count = const_beside(row, prefix + "count", np.array(static_shape(matrix)[0], spec.dtype.np))
    flag = TensorSpec(dtypes.bool_, ())
    is_below = row.beside(prefix + "is_below", less, (number, (zero.name, 0)), (), kind, (flag,))
    above = row.beside(prefix + "above", add_v2, (number, (count.name, 0)), (), kind, (spec,))
    inputs = ((is_below.name, 0), (above.name, 0), number)
    chosen = row.beside(prefix + "chosen", select_v2, inputs, (), kind, (spec,))
    gather = row.replace(
        op=gather_op,
        inputs=(row.inputs[0], (chosen.name, 0), (zero.name, 0)),
        attrs={"Tparams": matrix.dtype, "Tindices": spec.dtype, "Taxis": spec.dtype, "batch_dims": 0},
    )
    return [zero, count, is_below, above, chosen, gather]
