"""Rows of a variable as a gather in place, which can be fused into a loop with its consumers.

    rows = ResourceGather(handle, ids)   ->   rows/Read = ReadVariableOp(handle) ^ids
                                              rows = GatherV2(rows/Read, ids, 0)

Runs after control edges order the operations of each resource. The gather keeps the name, so a write that
waits for the rows still does, and the read does not copy. It does not hold the variable's lock, as a read of
the whole does not; so it is only applied if a loop reads the rows.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable

import numpy as np

from flowrt import dtypes
from flowrt.graph.construction.constant import const_beside
from flowrt.graph.node import Node, Subgraph, TensorSpec
from flowrt.graph.op_def import Effect
from flowrt.graph.op_facets import LoopPattern
from flowrt.graph.ops.array.gather_scatter import gather_op
from flowrt.graph.ops.state.variable_ops import read_variable_op
from flowrt.graph.shapes import is_static


def read_rows_in_place(subgraph: Subgraph) -> Subgraph:
    """``subgraph`` with reads of rows of variables replaced by gathers, if the variable is a matrix of static
    shape and a consumer can be in a loop; the same object if there are none.
    """
    found = {node.name: matrix for node in subgraph if (matrix := _matrix(subgraph, node)) is not None}
    if not found:
        return subgraph
    consumers = subgraph.consumers()
    found = {name: m for name, m in found.items() if _has_loop(subgraph, consumers[name])}
    if not found:
        return subgraph
    gathers = [_gather(node, found[node.name]) if node.name in found else (node,) for node in subgraph]
    return subgraph.with_nodes(itertools.chain.from_iterable(gathers))


def _matrix(subgraph: Subgraph, node: Node) -> TensorSpec | None:
    """The matrix that ``node`` reads rows of, if it is a variable of this graph."""
    loop = node.op.loop
    is_gather = loop is not None and loop.pattern is LoopPattern.GATHER
    if node.op.effect is not Effect.READ or not is_gather or node.attrs["batch_dims"]:
        return None
    handle = subgraph.nodes[node.inputs[0][0]]
    if handle.op.effect is not Effect.HANDLE:
        return None
    shape = handle.attrs["shape"]
    return TensorSpec(node.outputs[0].dtype, shape) if is_static(shape) and len(shape) == 2 else None


def _has_loop(subgraph: Subgraph, readers: Iterable[str]) -> bool:
    ops = [subgraph.nodes[name].op for name in readers]
    return any(op.loop is not None or op.reduction is not None for op in ops)


def _gather(rows: Node, matrix: TensorSpec) -> tuple[Node, ...]:
    handle, ids = rows.inputs
    read = rows.replace(
        name=f"{rows.name}/Read",
        op=read_variable_op,
        inputs=(handle,),
        controls=(*rows.controls, ids[0]),  # what ids wait for, the rows may be thought to have waited for
        attrs={"dtype": matrix.dtype},
        outputs=(matrix,),
    )
    axis = const_beside(rows, f"{rows.name}/Read/axis", np.array(0, np.int32))
    kinds = {"Tparams": matrix.dtype, "Tindices": rows.attrs["Tindices"], "Taxis": dtypes.int32}
    gather = rows.replace(
        op=gather_op,
        inputs=((read.name, 0), ids, (axis.name, 0)),
        controls=(),
        attrs={"batch_dims": 0, **kinds},
    )
    return read, axis, gather
