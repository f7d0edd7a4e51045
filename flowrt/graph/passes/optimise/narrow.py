"""Narrowing: products of matrices compute only the block that is read.

    z = MatMul(a, b)                                b/part = Slice(b)
    _, y = SplitV(z, [2, 3], 1)       ->            z = MatMul(a, b/part)            y is z

A row of a product depends on one row of the left factor, a column on one column of the right factor. The
gradient of a concatenation is thus not computed for parts that are unused: half of it, if a loop's state was
concatenated with an input.

The kind of view does not matter: views are evaluated on a stand-in, which has no memory, and their position
in it is inspected.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from flowrt import dtypes
from flowrt.errors import OpError
from flowrt.graph.construction.constant import const_beside
from flowrt.graph.evaluate import evaluate_node
from flowrt.graph.node import Node, Ref, Subgraph, TensorSpec, static_shape
from flowrt.graph.op_def import Effect
from flowrt.graph.ops.array.slicing import slice_op
from flowrt.graph.passes.prepare.prune import redirect, without_unread
from flowrt.graph.shapes import is_static
from flowrt.graph.stand_in import stand_in


class Block(NamedTuple):
    """Part of a matrix: its first row and column, and their numbers."""

    begin: tuple[int, int]
    size: tuple[int, int]


class _Narrowed(NamedTuple):
    """Replacements of a product and of its parts that are read."""

    nodes: Sequence[Node]
    parts: Mapping[Ref, Ref]


def narrow_products(subgraph: Subgraph) -> Subgraph:
    """``subgraph`` with narrowed products; the same object if there are none."""
    products = [node for node in subgraph if node.op.joined is not None and _is_product(subgraph, node)]
    if not products:
        return subgraph
    consumers = subgraph.consumers()
    ends = {name for name, _ in subgraph.fetches} | set(subgraph.targets)
    found: dict[str, _Narrowed] = {}
    for product in products:
        blocks = None if product.name in ends else _blocks_read(subgraph, product, consumers)
        hull = _hull(list(blocks.values())) if blocks else None
        if blocks and hull is not None and hull.size != product.outputs[0].shape:
            found[product.name] = _narrowed(subgraph, product, blocks, hull)
    if not found:
        return subgraph
    nodes = itertools.chain.from_iterable(
        found[node.name].nodes if node.name in found else (node,) for node in subgraph
    )
    parts = {ref: part for narrowed in found.values() for ref, part in narrowed.parts.items()}
    after = redirect(subgraph, parts, list(nodes))
    return without_unread(after, [name for name, _ in parts])  # in a part of a step nothing reads a send


def _is_product(subgraph: Subgraph, node: Node) -> bool:
    """Whether it is a product of two matrices of static shape."""
    specs = [*map(subgraph.spec, node.inputs), *node.outputs]
    return len(specs) == 3 and all(is_static(spec.shape) and len(spec.shape) == 2 for spec in specs)


# --- the blocks that are read


def _blocks_read(
    subgraph: Subgraph, product: Node, consumers: Mapping[str, Sequence[str]]
) -> dict[Ref, Block] | None:
    """Each view of the product that is read; None if it is also read in another way."""
    blocks: dict[Ref, Block] = {}
    for name in consumers[product.name]:
        view = subgraph.nodes[name]
        if not _is_fixed_view(subgraph, view, product):
            return None
        readers = [subgraph.nodes[reader] for reader in consumers[name]]
        if name in subgraph.targets or any(name in reader.controls for reader in readers):
            return None
        read = {ref for reader in readers for ref in reader.inputs} | set(subgraph.fetches)
        for index, block in enumerate(_blocks_of(subgraph, view, product)):
            if (name, index) in read:
                if block is None:
                    return None
                blocks[name, index] = block
    return blocks


def _is_fixed_view(subgraph: Subgraph, view: Node, product: Node) -> bool:
    """Whether ``view`` is a view of the product, determined by constants."""
    if not view.op.alias or view.op.effect is not Effect.PURE or view.controls:
        return False
    others = [name for i, (name, _) in enumerate(view.inputs) if i != view.op.aliased]
    is_const = all(subgraph.nodes[n].op.name == "Const" and not subgraph.nodes[n].controls for n in others)
    return is_const and view.inputs[view.op.aliased][0] == product.name


def _blocks_of(subgraph: Subgraph, view: Node, product: Node) -> list[Block | None]:
    """The block of the product that each output of ``view`` is; None if it is not a block."""
    (spec,) = product.outputs
    whole = stand_in(spec)
    values = [
        whole if i == view.op.aliased else subgraph.nodes[name].attrs["value"]
        for i, (name, _) in enumerate(view.inputs)
    ]
    try:
        views = evaluate_node(view, values)
    except OpError:
        return [None] * len(view.outputs)  # the error is raised at run time
    return [_block(whole, part) for part in views]


def _block(whole: np.ndarray, part: np.ndarray) -> Block | None:
    if not part.size or part.strides != whole.strides or not np.may_share_memory(part, whole):
        return None
    row, column = divmod((part.ctypes.data - whole.ctypes.data) // whole.itemsize, whole.shape[1])
    return Block((row, column), (part.shape[0], part.shape[1]))


def _hull(blocks: Sequence[Block]) -> Block:
    """The smallest block that contains all of them."""
    begin = [min(block.begin[axis] for block in blocks) for axis in (0, 1)]
    end = [max(block.begin[axis] + block.size[axis] for block in blocks) for axis in (0, 1)]
    return Block((begin[0], begin[1]), (end[0] - begin[0], end[1] - begin[1]))


# --- replacements


def _narrowed(subgraph: Subgraph, product: Node, blocks: Mapping[Ref, Block], hull: Block) -> _Narrowed:
    assert product.op.joined is not None
    nodes: list[Node] = []
    factors: list[Ref] = []
    for axis, (ref, summed) in enumerate(zip(product.inputs, product.op.joined(product.attrs), strict=True)):
        spec, free = subgraph.spec(ref), 1 - (summed or 0)
        begin, size = [0, 0], list(static_shape(spec))
        if hull.size[axis] < size[free]:
            begin[free], size[free] = hull.begin[axis], hull.size[axis]
            slicing = _slice(f"{product.name}/factor_{axis}", ref, product, begin, size)
            nodes += slicing
            ref = slicing[-1].name, 0
        factors.append(ref)
    spec = TensorSpec(product.outputs[0].dtype, hull.size)
    nodes.append(product.replace(inputs=tuple(factors), outputs=(spec,)))
    parts: dict[Ref, Ref] = {}
    for ref, block in blocks.items():
        if block == hull:
            parts[ref] = product.name, 0
            continue
        begin = [block.begin[axis] - hull.begin[axis] for axis in (0, 1)]
        slicing = _slice(f"{ref[0]}/part_{ref[1]}", (product.name, 0), product, begin, list(block.size))
        nodes += slicing
        parts[ref] = slicing[-1].name, 0
    return _Narrowed(nodes, parts)


def _slice(name: str, source: Ref, product: Node, begin: list[int], size: list[int]) -> list[Node]:
    """The nodes of a slice of ``source``; the last one is the slice."""
    kind = product.outputs[0].dtype
    nodes = [
        const_beside(product, f"{name}/{suffix}", np.array(numbers, np.int32))
        for suffix, numbers in (("begin", begin), ("size", size))
    ]
    inputs = (source, *[(node.name, 0) for node in nodes])
    attrs = {"T": kind, "Index": dtypes.int32}
    outputs = (TensorSpec(kind, (size[0], size[1])),)
    return [*nodes, product.beside(name, slice_op, inputs, (), attrs, outputs)]
