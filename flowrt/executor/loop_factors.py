"""Transposed factors of products in loops, laid out row by row in front of the loop.

    body: y = MatMul(x, w, transpose_b)       ->       w/rows = ConcatV2([Transpose(w)])
                                                       body: y = MatMul(x, w/rows)

A compiled product takes its vectors from rows of the right factor (`flowrt.device.llvm_product`). A library
copies the factor for each product; where it is the same in every iteration, once is enough.
"""

from __future__ import annotations

import itertools
import math

import numpy as np

from flowrt import dtypes
from flowrt.executor.iterated_program import is_small_loop
from flowrt.executor.small_calls import MAX_ALONG, MAX_PRODUCT
from flowrt.graph.node import Node, Ref, Subgraph, TensorSpec, static_shape
from flowrt.graph.op_def import op_def
from flowrt.graph.shapes import is_static


def lay_out_factors(subgraph: Subgraph) -> Subgraph:
    """``subgraph`` with the above done to its loops over small tensors; the same object if there is nothing to
    do.
    """
    if not any(node.op.name == "_Loop" for node in subgraph):
        return subgraph
    nodes = [_laid_out(node) if is_small_loop(node) else [node] for node in subgraph]
    if all(len(several) == 1 for several in nodes):
        return subgraph
    return subgraph.with_nodes(itertools.chain.from_iterable(nodes))


def _laid_out(loop: Node) -> list[Node]:
    """``loop`` behind the nodes that make its factors."""
    body: Subgraph = loop.attrs["body"]
    carried = len(loop.attrs["T"])
    arguments = dict(zip(body.feeds[carried:], loop.inputs[1 + carried :], strict=True))
    products = {n.name: n for n in body if _is_by_transpose(body, n) and n.inputs[1][0] in arguments}
    if not products:
        return [loop]
    turned = dict.fromkeys(node.inputs[1][0] for node in products.values())
    rows = {name: _rows(loop, arguments[name], body.nodes[name].outputs[0]) for name in turned}
    names = {name: nodes[-1].name for name, nodes in rows.items()}
    for product in products.values():
        left, (name, _) = product.inputs
        attrs = {**product.attrs, "transpose_b": False}
        products[product.name] = product.replace(inputs=(left, (names[name], 0)), attrs=attrs)
    parameters = [_parameter(nodes[-1]) for nodes in rows.values()]
    nodes = [*parameters, *[products.get(node.name, node) for node in body]]
    body = body.with_nodes(nodes).replace(feeds=(*body.feeds, *names.values()))
    kinds = (*loop.attrs["C"], *[node.outputs[0].dtype for node in parameters])
    inputs = (*loop.inputs, *[(name, 0) for name in names.values()])
    after = loop.replace(inputs=inputs, attrs={**loop.attrs, "body": body, "C": kinds})
    return [*itertools.chain.from_iterable(rows.values()), after]


def _is_by_transpose(body: Subgraph, node: Node) -> bool:
    """Whether ``node`` is a product that would be a compiled call if its right factor were no transpose."""
    if node.op.name != "MatMul" or not node.attrs["transpose_b"]:
        return False
    specs = [*map(body.spec, node.inputs), *node.outputs]
    if specs[0].dtype not in (dtypes.float32, dtypes.float64) or not all(is_static(s.shape) for s in specs):
        return False
    multiplications = math.prod(static_shape(specs[0])) * static_shape(specs[2])[1]
    return MAX_ALONG < multiplications <= MAX_PRODUCT


def _rows(loop: Node, source: Ref, spec: TensorSpec) -> list[Node]:
    """The nodes that lay out the transpose of ``source``, of which the last is that. To join one value is to
    copy it.
    """
    name = f"{loop.name}/{source[0]}_{source[1]}/rows"
    after = TensorSpec(spec.dtype, static_shape(spec)[::-1])
    order, axis = _const(loop, f"{name}/order", [1, 0]), _const(loop, f"{name}/axis", 0)
    attrs = {"T": spec.dtype, "Tperm": dtypes.int32}
    turned = _node(loop, f"{name}/turned", "Transpose", (source, (order.name, 0)), attrs, after)
    attrs = {"T": spec.dtype, "Tidx": dtypes.int32, "N": 1}
    rows = _node(loop, name, "ConcatV2", ((turned.name, 0), (axis.name, 0)), attrs, after)
    return [order, turned, axis, rows]


def _const(loop: Node, name: str, value: int | list[int]) -> Node:
    array = np.array(value, np.int32)
    spec = TensorSpec(dtypes.int32, array.shape)
    return _node(loop, name, "Const", (), {"value": array, "dtype": dtypes.int32}, spec)


def _parameter(rows: Node) -> Node:
    (spec,) = rows.outputs
    return _node(rows, rows.name, "_Feed", (), {"dtype": spec.dtype, "shape": spec.shape}, spec)


def _node(
    like: Node, name: str, op: str, inputs: tuple[Ref, ...], attrs: dict[str, object], spec: TensorSpec
) -> Node:
    return Node(name, op_def(op), inputs, (), attrs, like.device, like.source, (spec,))
