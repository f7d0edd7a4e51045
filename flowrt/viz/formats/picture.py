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
from flowrt.viz.view import EdgeKind, EdgeView, GraphView, NodeView, totals


class Picture(NamedTuple):
    """``view`` shows ``parts``, or the focused excerpt, folded if requested; ``view_name`` is one of
    `flowrt.viz.sources.VIEWS`. For formats that show them, ``stages()`` are those of the compilation,
    ``code()`` the texts that run each operation, or why there are none, ``laid_out()`` the step in its
    layouts, if it has any, ``step_stats`` traced steps, possibly also of other steps, and ``roles`` those of
    the operations.
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


MAX_LABEL = 40
"""Characters of one line in a box."""


def node_lines(node: NodeView) -> list[str]:
    """The name; the op, or the number of ops in a closed group; the outputs."""
    if not node.op:
        return [clipped(node.label), f"{node.num_ops} operations"]
    made = ", ".join(str(tensor) for tensor in node.outputs[:2])
    more = ", …" if len(node.outputs) > 2 else ""
    head = [clipped(node.label)] if node.label == node.op else [clipped(node.label), clipped(node.op)]
    return [*head, clipped(made + more)] if made else head


def edge_lines(edge: EdgeView) -> list[str]:
    """All facts of a transfer; for other edges the number that they bundle, and in a view of layouts the
    tensor that a mesh cuts, and what moves.
    """
    if edge.kind is EdgeKind.TRANSFER:
        tensors = clipped(edge.tensor) if edge.num_edges == 1 else f"{edge.num_edges} tensors"
        shape = str(edge.facts) if edge.num_edges == 1 and edge.facts is not None else ""
        size = size_text(edge.nbytes) if edge.nbytes else ""
        return [line for line in (tensors, f"{shape} {size}".strip(), edge.transport) if line]
    if edge.num_edges > 1:
        sums = totals(edge.moves).items()
        return [f"{edge.num_edges} ×", *(f"{n} {kind}, {size_text(nbytes)}" for kind, (n, nbytes) in sums)]
    tensor = [edge.facts.layout] if edge.facts is not None and edge.facts.layout else []
    return [*tensor, *map(str, edge.moves)]


def clipped(text: str) -> str:
    """The end of a long name, which is the distinctive part."""
    return text if len(text) <= MAX_LABEL else "…" + text[1 - MAX_LABEL :]
