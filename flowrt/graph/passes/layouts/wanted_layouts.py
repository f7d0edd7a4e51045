"""Layouts from readers: a draw, or a tensor filled with a value, is made in the layout in which it is read.

Propagation goes forward, so what has no sharded input comes out replicated: the mask of a dropout, the
initial value of a variable. If all readers want such a tensor in one sharded layout, each coordinate makes
its own part, since a slice of a draw is a draw as well. The layout may be that of a later tensor, to which
the elements go one by one: the sum of a draw and a mean, a comparison with a rate. So are vectors that are 1
at an index: each coordinate compares the indices with the numbers of its own part.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

from flowrt.graph.layouts.derived_rules import rule_of
from flowrt.graph.layouts.layout import REPLICATED, Layout, Partial, Placement, Shard
from flowrt.graph.node import Node, Ref
from flowrt.graph.op_def import Effect
from flowrt.graph.ops.array.ranges import one_hot_op
from flowrt.graph.ops.array.segments import unsorted_segment_sum
from flowrt.graph.ops.base.filling import fill
from flowrt.graph.ops.random.random_ops import PARTS
from flowrt.graph.partial_value import partial_value
from flowrt.graph.passes.layouts.step_layouts import Layouts
from flowrt.graph.shapes import is_static


def wanted_layouts(found: Layouts) -> dict[str, Layout]:
    """The layouts that draws and filled tensors of a step should have, by node, other than replicated."""
    step, result = found.subgraph, dict[str, Layout]()
    wanted: dict[str, Sequence[Layout]] = {}
    """The layouts of the inputs of nodes that could be cut if these were."""
    readers: dict[Ref, list[tuple[str, int]]] = defaultdict(list)
    for node in step:
        for i, ref in enumerate(node.inputs):
            readers[ref].append((node.name, i))
    fetched = set(step.fetches)
    for node in reversed(list(step)):
        ref = (node.name, 0)
        if len(node.outputs) != 1 or ref in fetched or not is_static(node.outputs[0].shape):
            continue
        asked = {wanted[name][i] if name in wanted else found.inputs[name][i] for name, i in readers[ref]}
        if len(asked) != 1:
            continue
        layout, have = _without_partial(asked.pop()), found.outputs[ref]
        if layout is have or not _is_slice(have, layout):
            continue
        if can_be_made_in_parts(node) or made_axes(node, layout):
            result[node.name] = layout
        elif node.op.effect is Effect.PURE and node.inputs:
            inputs = _inputs_for(node, layout, found)
            if inputs is not None:
                wanted[node.name] = inputs
    return result


def can_be_made_in_parts(node: Node) -> bool:
    """Whether a part of the output of ``node`` can be made without the rest, and without a sharded input."""
    return can_be_drawn(node) or node.op is fill


def can_be_drawn(node: Node) -> bool:
    """Whether ``node`` is a draw of which a part can be made without the rest."""
    return node.op.name in PARTS


def made_axes(node: Node, layout: Layout) -> tuple[int, ...]:
    """The axes by which ``layout`` cuts the dimension of numbers that ``node`` makes: the classes of one-hot
    vectors, the rows of a sum of segments. Its form makes parts of them.
    """
    if node.op is one_hot_op:
        return layout.axes_of(node.attrs["axis"] % len(node.outputs[0].shape or ()))
    return layout.axes_of(0) if node.op is unsorted_segment_sum else ()


def _is_slice(have: Layout, wanted: Layout) -> bool:
    """Whether ``wanted`` cuts what ``have`` has whole, and nothing else differs but sums to be added up."""
    pairs = zip(have.placements, wanted.placements, strict=True)
    return all(one in (other, REPLICATED) or isinstance(one, Partial) for one, other in pairs)


def _without_partial(layout: Layout) -> Layout:
    return Layout(layout.mesh, [REPLICATED if isinstance(p, Partial) else p for p in layout.placements])


def _inputs_for(node: Node, layout: Layout, found: Layouts) -> list[Layout] | None:
    """The layouts of the inputs of which ``node`` makes an output in ``layout``; None if it cannot."""
    nodes: Mapping[str, Node] = found.subgraph.nodes
    specs = [found.subgraph.spec(ref) for ref in node.inputs]
    rule = rule_of(
        node.op, node.attrs, specs, node.outputs, lambda i: partial_value(nodes.__getitem__, node.inputs[i])
    )
    if rule is None:
        return None
    inputs: list[list[Placement]] = [[] for _ in specs]
    parts = 1
    for axis, placement in zip(layout.mesh.axes, layout.placements, strict=True):
        made: Sequence[Placement] = [REPLICATED] * len(specs)
        if isinstance(placement, Shard):
            factors = rule.outputs[0][placement.dim]
            unit = rule.unit_of(placement, rule.outputs[0]) if factors and placement.unit > 1 else None
            parts *= axis.size
            if not factors or not rule.may_cut(factors[0], parts, unit):
                return None
            made, _ = rule.cut(factors[0], unit)
        for each, placements in zip(made, inputs, strict=True):
            placements.append(each)
    return [Layout(layout.mesh, placements) for placements in inputs]
