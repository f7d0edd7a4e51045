"""Running sums of matrix products: the library that computes a product adds it to the sum.

    s0 = MatMul(a, b)                             s0 = MatMul(a, b)
    s1 = AddV2(s0, MatMul(c, d))        ->        s1 = _MatMulAdd(s0, c, d)
    s2 = AddV2(s1, MatMul(e, f))                  s2 = _MatMulAdd(s1, e, f)

    AddN(MatMul(a, b), MatMul(c, d), ...)         the same

The gradient of a tensor is such a sum where the tensor has several readers: a weight in each turn of a
pipeline, or what query, key and value are computed from. The first term may be of another operation with a
kernel of its own: the gradient of a table that is gathered from and also computes the logits begins with the
gathered rows. A product alone is written to memory and read again to be added; here the sum is read and
written once, in place. A product is added where it was computed, so its factors live no longer than before.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from flowrt import dtypes
from flowrt.graph.node import Node, Subgraph
from flowrt.graph.op_def import NONDIFFERENTIABLE, Effect, OpDef, define_op
from flowrt.graph.op_facets import Traits
from flowrt.graph.ops.elementwise.arithmetic import add_n_op, add_v1, add_v2
from flowrt.graph.ops.linalg.matmul import matmul_op
from flowrt.graph.passes.fusion.loop_compiler import LoopCompiler
from flowrt.graph.shapes import is_static

SUMS = frozenset({add_v1, add_v2, add_n_op})

MIN_SUM = 1 << 14
"""Elements of the smallest sum: a smaller one is added in the fastest cache."""


def _kernel(
    xp: Any, total: Any, a: Any, b: Any, transpose_a: bool, transpose_b: bool, out: Any = None
) -> Any:
    return xp.add(total, matmul_op.kernel(xp, a, b, transpose_a, transpose_b), out=out)


matmul_add_op: OpDef[Any] = define_op(
    "_MatMulAdd",
    "total: T in FLOATING, a: T, b: T -> sum: T",
    attrs="transpose_a: bool = False, transpose_b: bool = False",
    shape=lambda s: [s.shapes[0]],
    kernel=_kernel,
    vjp=NONDIFFERENTIABLE,
    jvp=NONDIFFERENTIABLE,
    samples=lambda rng: (),
    cost=lambda inputs, outputs: matmul_op.cost(inputs[1:], outputs) if matmul_op.cost else 0.0,
    traits=Traits(overwrites=0),
    doc="The sum of a matrix and the product of two others; made by the fusion pass only.",
)


def accumulate_products(subgraph: Subgraph, compiler: LoopCompiler) -> Subgraph:
    """``subgraph`` with the above done to it; the same object if there is nothing of the kind."""
    sums = [node for node in subgraph if node.op in SUMS]
    if not sums or not compiler.has_epilogues():
        return subgraph
    found = _terms(subgraph, sums)
    if not found:
        return subgraph
    place = {name: i for i, name in enumerate(subgraph.nodes)}
    nodes = {name: ((place[name], 0), node) for name, node in subgraph.nodes.items()}
    for name, (total, *products) in found.items():
        begin = 0
        for i, product in enumerate(products, 1):
            node = subgraph.nodes[name if product == products[-1] else product]
            made = _accumulated(node, total, subgraph.nodes[product])
            begin = max([begin, *[place[at] for at in (product, *made.predecessors)]])
            del nodes[product]
            nodes[node.name] = (begin, i), made  # behind the last of what it reads
            total = node.name
    return subgraph.with_nodes([node for _, node in sorted(nodes.values(), key=lambda each: each[0])])


def _terms(subgraph: Subgraph, sums: Sequence[Node]) -> Mapping[str, Sequence[str]]:
    """The names of what is added by each sum of products, by its name: the sum so far, the term of another
    operation, or the product that is computed first, and then products in order, which nothing else reads.
    """
    consumers = subgraph.consumers()
    read = {*[name for name, _ in subgraph.fetches], *subgraph.targets}
    place = {name: i for i, name in enumerate(subgraph.nodes)}
    found: dict[str, Sequence[str]] = {}

    def is_product(name: str) -> bool:
        return subgraph.nodes[name].op is matmul_op

    for node in sums:
        names = sorted([name for name, _ in node.inputs], key=lambda name: (is_product(name), place[name]))
        total, *products = terms = [subgraph.nodes[name] for name in names]
        if (
            products
            and len({*names}) == len(names)
            and _is_large(node)
            and all(is_product(product.name) for product in products)
            and (_has_own_kernel(total) or total.name in found)
            and all(term.outputs == node.outputs and term.name not in read for term in terms)
            and all(consumers[product.name] == [node.name] for product in products)
            and _readers(subgraph, consumers, total) == [node.name]
        ):
            found[node.name] = names
    return found


def _has_own_kernel(node: Node) -> bool:
    """Whether ``node`` computes its output outside of loops, which would add the product on their way."""
    op = node.op
    return op.effect is Effect.PURE and not op.alias and op.loop is None and op.reduction is None


def _is_large(node: Node) -> bool:
    (spec,) = node.outputs
    if spec.dtype is not dtypes.float32 or not is_static(spec.shape):
        return False
    return len(spec.shape) == 2 and math.prod(spec.shape) >= MIN_SUM


def _readers(subgraph: Subgraph, consumers: Mapping[str, Sequence[str]], node: Node) -> list[str]:
    """The nodes that read the output of ``node``; others may wait for it."""
    return [name for name in consumers[node.name] if (node.name, 0) in subgraph.nodes[name].inputs]


def _accumulated(node: Node, total: str, product: Node) -> Node:
    """The ``total`` so far and ``product`` as one operation, in place of ``node``: the sum, or a product."""
    inputs = ((total, 0), *product.inputs)
    controls = tuple(dict.fromkeys((*product.controls, *node.controls)))
    return product.beside(node.name, matmul_add_op, inputs, controls, product.attrs, node.outputs)
