"""Results that a branch does not have, in the shape of those of the branch that has them.

The gradient of a branch reads results in it. The other branches have a scalar instead, which nobody reads. So
the shape of such a result is unknown, and it could not be in parts. Once the sizes of a step are known, zeros
of the shape may be there instead.
"""

from __future__ import annotations

import numpy as np

from flowrt import dtypes
from flowrt.graph.construction.constant import const_beside
from flowrt.graph.functions.branch_gradients import NOTHING
from flowrt.graph.node import Node, Ref, Subgraph, TensorSpec, with_functions
from flowrt.graph.op_def import Effect
from flowrt.graph.ops.base.filling import fill
from flowrt.graph.passes.optimise.fold import fold_constants
from flowrt.graph.passes.prepare.infer import infer_shapes
from flowrt.graph.shapes import is_static


def with_sizes_of_nothing(subgraph: Subgraph) -> Subgraph:
    """``subgraph``, with inferred shapes, with a known shape of each result of a branch that some branches do
    not have, where it is known in the others; the same object if there are none.
    """
    found = subgraph.mapped(_with_sizes)
    if found is subgraph:
        return subgraph
    return with_shapes(found)


def with_shapes(subgraph: Subgraph) -> Subgraph:
    """``subgraph``, of which nodes have been replaced, with all shapes that follow from theirs."""
    return infer_shapes(_folded(infer_shapes(subgraph)))


def _folded(subgraph: Subgraph) -> Subgraph:
    """``subgraph`` with what follows from its shapes as constants, in its functions as well."""
    return fold_constants(subgraph.mapped(lambda node: with_functions(node, _folded)))


def _with_sizes(node: Node) -> Node:
    if node.op.effect is not Effect.NESTED:
        return node
    node = with_functions(node, with_sizes_of_nothing)
    if node.op.name != "_Case":
        return node
    branches: tuple[Subgraph, ...] = node.attrs["branches"]
    for k, spec in enumerate(node.outputs):
        if not is_static(spec.shape):
            branches = _with_size(branches, k)
    return (
        node
        if branches is node.attrs["branches"]
        else node.replace(attrs={**node.attrs, "branches": branches})
    )


def _with_size(branches: tuple[Subgraph, ...], k: int) -> tuple[Subgraph, ...]:
    """``branches`` with result ``k`` in the shape that those have which have it."""
    refs = [branch.fetches[k] for branch in branches]
    lacks = [NOTHING in branch.nodes[name].attrs for branch, (name, _) in zip(branches, refs, strict=True)]
    pairs = [*zip(branches, refs, lacks, strict=True)]
    found = {branch.spec(ref) for branch, ref, is_absent in pairs if not is_absent}
    if not any(lacks) or len(found) != 1 or not is_static((spec := found.pop()).shape):
        return branches
    return tuple(_filled(branch, k, ref, spec) if is_absent else branch for branch, ref, is_absent in pairs)


def _filled(branch: Subgraph, k: int, ref: Ref, spec: TensorSpec) -> Subgraph:
    nothing = branch.nodes[ref[0]]
    sizes = const_beside(nothing, f"{ref[0]}/sizes{k}", np.array(spec.shape, np.int32))
    zero = const_beside(nothing, f"{ref[0]}/zero{k}", np.zeros((), spec.dtype.np))
    attrs = {"T": spec.dtype, "index_type": dtypes.int32}
    name = f"{ref[0]}/filled{k}"
    filled = nothing.beside(name, fill, ((sizes.name, 0), (zero.name, 0)), attrs=attrs, outputs=(spec,))
    nodes = {**branch.nodes, sizes.name: sizes, zero.name: zero, name: filled}
    return branch.replace(nodes=nodes, fetches=(*branch.fetches[:k], (name, 0), *branch.fetches[k + 1 :]))
