"""`Picture`: the input of a format; labels of boxes and arrows, shared by all formats that draw."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from flowrt.profiler.text_table import size_text
from flowrt.viz.from_parts import Parts
from flowrt.viz.laid_out import LaidOut
from flowrt.viz.op_facts import Code
from flowrt.viz.roles import NO_ROLES, Roles
from flowrt.viz.stages import Stage
from flowrt.viz.training import NO_TRAINING, Training
from flowrt.viz.view import EdgeKind, EdgeView, GraphView, NodeView, totals


class Picture(NamedTuple):
    """``view`` shows ``parts``, or the focused excerpt, folded if requested; ``view_name`` is one of
    `flowrt.viz.sources.VIEWS`. For formats that show them, ``stages()`` are those of the compilation,
    ``code()`` the texts that run each operation, or why there are none, ``laid_out()`` the step in its
    layouts, if it has any, ``step_stats`` traced steps, possibly also of other steps, ``roles`` those of the
    operations, and ``training`` what they train.
    """

    title: str
    view_name: str
    parts: Parts
    view: GraphView
    stages: Callable[[], Sequence[Stage]]
    code: Callable[[], tuple[Code, str]] = lambda: ({}, "")
    laid_out: Callable[[], LaidOut | None] = lambda: None
    step_stats: Sequence[Any] = ()
    roles: Roles = NO_ROLES
    training: Training = NO_TRAINING


MAX_LABEL = 46
"""Characters of one line in a box: "receive SparseSoftmaxCrossEntropyWithLogits:1"."""


def node_lines(node: NodeView) -> list[str]:
    """The name; the op, or the number of ops in a closed group; the outputs."""
    if not node.op:
        return [clipped(node.label), f"{node.num_ops} operations"]
    made = ", ".join(str(tensor) for tensor in node.outputs[:2])
    more = ", …" if len(node.outputs) > 2 else ""
    head = [clipped(node.label)] if node.label == node.op else [clipped(node.label), clipped(node.op)]
    return [*head, clipped(made + more)] if made else head


def edge_lines(edge: EdgeView, route: str = "") -> list[str]:
    """The size of a transfer, or number and size of those that it bundles, and how they are carried unless by
    ``route``, which the picture states once: longer texts overlap. For other edges the number that they
    bundle, and in a view of layouts the tensor that a mesh cuts, and what moves.
    """
    count = f"{edge.num_edges} ×" if edge.num_edges > 1 else ""
    if edge.kind is EdgeKind.TRANSFER:
        size = size_text(edge.nbytes) if edge.nbytes else ""
        amount = ", ".join(filter(None, (count, size)))
        return [line for line in (amount, edge.transport) if line not in ("", route)]
    if count:
        sums = totals(edge.moves).items()
        return [count, *(f"{n} {kind}, {size_text(nbytes)}" for kind, (n, nbytes) in sums)]
    tensor = [edge.facts.layout] if edge.facts is not None and edge.facts.layout else []
    return [*tensor, *map(str, edge.moves)]


def route_of(view: GraphView) -> str:
    """The route of all transfers, "shared memory" for instance; "" if there are several."""
    routes = {edge.transport for edge in view.edges if edge.kind is EdgeKind.TRANSFER}
    return routes.pop() if len(routes) == 1 else ""


def heading(picture: Picture) -> str:
    """The title, with the route of transfers, if they have one."""
    route = route_of(picture.view)
    return f"{picture.title}; transfers by {route}" if route else picture.title


def clipped(text: str) -> str:
    """The end of a long name, which is the distinctive part."""
    return text if len(text) <= MAX_LABEL else "…" + text[1 - MAX_LABEL :]
