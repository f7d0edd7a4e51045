"""Transposed factors of products in loops, laid out in row-major order before the loop.

    body: y = MatMul(x, w, transpose_b)       ->       w/rows = ConcatV2([Transpose(w)])
                                                       body: y = MatMul(x, w/rows)

A compiled product loads vectors from rows of the right factor (`flowrt.loops.llvm_product`). A library
copies the factor for each product; if it is loop-invariant, once is enough.
"""

from __future__ import annotations

import math

import numpy as np

from flowrt import dtypes
from flowrt.graph.construction.constant import const_beside, feed_beside
from flowrt.graph.node import Node, Ref, Subgraph, TensorSpec, static_shape
from flowrt.graph.ops.array.concat_and_split import concat_op
from flowrt.graph.ops.base.shape_manipulation import transpose_op
from flowrt.graph.ops.linalg.matmul import matmul_op
from flowrt.graph.passes.fusion.loop_compiler import LoopCompiler, is_small
from flowrt.graph.shapes import is_static


def lay_out_factors(subgraph: Subgraph, compiler: LoopCompiler) -> Subgraph:
    """``subgraph`` with the above done to loops over small tensors; the same object if there are none."""
    if not any(node.op.name == "_Loop" for node in subgraph):
        return subgraph
    nodes = [
        after
        for node in subgraph
        for after in (_laid_out(node, compiler) if node.op.name == "_Loop" and is_small(node) else [node])
    ]
    if len(nodes) == len(subgraph) and all(a is b for a, b in zip(nodes, subgraph, strict=True)):
        return subgraph
    return subgraph.with_nodes(nodes)


def _laid_out(loop: Node, compiler: LoopCompiler) -> list[Node]:
    """``loop`` behind the nodes that make its factors."""
    body: Subgraph = loop.attrs["body"]
    arguments = dict(zip(body.feeds, loop.inputs[1:], strict=True))
    carried = set(body.feeds[: len(loop.attrs["T"])])
    products = [node for node in body if _is_by_transpose(body, node, compiler)]
    factors = dict.fromkeys(node.inputs[1][0] for node in products)
    made: list[Node] = []
    rows: dict[str, Node] = {}
    """Nodes in the body, by the name of the tensor they transpose."""
    for factor in [body.nodes[name] for name in factors]:
        if factor.op.name == "Const" and not factor.controls:
            turned = np.ascontiguousarray(factor.attrs["value"].T)
            rows[factor.name] = const_beside(factor, f"{factor.name}/rows", turned)
        elif factor.name in arguments and factor.name not in carried:
            made += _rows(loop, arguments[factor.name], factor.outputs[0])
            rows[factor.name] = feed_beside(made[-1], made[-1].name, made[-1].outputs[0])
    if not rows:
        return [loop]
    by_rows = {
        node.name: _by_rows(node, rows[node.inputs[1][0]]) for node in products if node.inputs[1][0] in rows
    }
    parameters = [node for node in rows.values() if node.op.name == "_Feed"]
    body = body.with_nodes([*rows.values(), *[by_rows.get(node.name, node) for node in body]])
    attrs = {
        **loop.attrs,
        "body": body.replace(feeds=(*body.feeds, *[node.name for node in parameters])),
        "C": (*loop.attrs["C"], *[node.outputs[0].dtype for node in parameters]),
    }
    inputs = (*loop.inputs, *[(node.name, 0) for node in parameters])
    return [*made, loop.replace(inputs=inputs, attrs=attrs)]


def _by_rows(product: Node, rows: Node) -> Node:
    inputs = (product.inputs[0], (rows.name, 0))
    return product.replace(inputs=inputs, attrs={**product.attrs, "transpose_b": False})


def _is_by_transpose(body: Subgraph, node: Node, compiler: LoopCompiler) -> bool:
    """Whether ``node`` is a product that would be a compiled call if its right factor were no transpose."""
    if node.op is not matmul_op or not node.attrs["transpose_b"]:
        return False
    specs = [*map(body.spec, node.inputs), *node.outputs]
    if specs[0].dtype not in (dtypes.float32, dtypes.float64) or not all(is_static(s.shape) for s in specs):
        return False
    multiplications = math.prod(static_shape(specs[0])) * static_shape(specs[2])[1]
    return compiler.max_transposed_product < multiplications <= compiler.max_product


def _rows(loop: Node, source: Ref, spec: TensorSpec) -> list[Node]:
    """The nodes that transpose ``source`` into a row-major layout; the last one is the result."""
    name = f"{loop.name}/{source[0]}_{source[1]}/rows"
    after = TensorSpec(spec.dtype, static_shape(spec)[::-1])
    order = const_beside(loop, f"{name}/order", np.array([1, 0], np.int32))
    axis = const_beside(loop, f"{name}/axis", np.array(0, np.int32))
    attrs: dict[str, object] = {"T": spec.dtype, "Tperm": dtypes.int32}
    turned = loop.beside(f"{name}/turned", transpose_op, (source, (order.name, 0)), (), attrs, (after,))
    attrs = {"T": spec.dtype, "Tidx": dtypes.int32, "N": 1}  # to join one value is to copy it
    rows = loop.beside(name, concat_op, ((turned.name, 0), (axis.name, 0)), (), attrs, (after,))
    return [order, turned, axis, rows]
