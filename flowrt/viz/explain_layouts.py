"""`explain_layouts`: the layout of each tensor of a step, and what moves between layouts, as text."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from flowrt.graph.node import Node
from flowrt.profiler.text_table import aligned, size_text
from flowrt.viz.explain import request_here
from flowrt.viz.from_parts import line_of
from flowrt.viz.laid_out import LaidOut, laid_out
from flowrt.viz.view import Moved, totals


class TensorLayout(NamedTuple):
    """The first output of an operation, ``float32[8/dp, 1024/tp]``; ``single``: it is computed once. In a
    pipeline the ``stage`` of the operation, and its ``action`` for each micro-batch: "F", "B", "I" or "W"; ""
    if it runs once for all.
    """

    name: str
    op: str
    layout: str
    single: bool
    source: str
    stage: int | None = None
    action: str = ""


class LayoutExplanation(NamedTuple):
    """The tensors with a layout, what moves, and sentences on what is whole though the script cut it."""

    mesh: str
    tensors: tuple[TensorLayout, ...]
    moves: tuple[Moved, ...]
    remarks: tuple[str, ...]

    def totals(self) -> dict[str, tuple[int, int]]:
        """The number of redistributions of each collective, and their bytes."""
        return totals(self.moves)

    def __str__(self) -> str:
        return "\n".join(_lines(self))


def explain_layouts(
    what: Any, fetches: Any = None, feed_dict: Mapping[Any, Any] | None = None
) -> LayoutExplanation | None:
    """The layouts of the step of ``what`` that computes ``fetches``, as for `flowrt.viz.explain.explain`;
    None if nothing in it has a layout. Nothing runs.

    Raises `InvalidArgumentError` for a source that is compiled elsewhere, and the errors of `Session.run`.
    """
    found = laid_out(request_here(what, fetches, "layouts", feed_dict))
    return None if found is None else _explanation(found)


def _explanation(found: LaidOut) -> LayoutExplanation:
    layouts = found.lowered.layouts
    return LayoutExplanation(
        str(layouts.mesh),
        tuple(_tensor(node, found) for node in layouts.subgraph if node.outputs),
        found.moves,
        tuple(layouts.remarks),
    )


def _tensor(node: Node, found: LaidOut) -> TensorLayout:
    is_single = node.name in found.lowered.layouts.single
    layout = found.scopes[()].describe((node.name, 0))
    stage, action = found.lowered.layouts.stages.get(node.name), found.lowered.passes.get(node.name, "")
    return TensorLayout(node.name, node.op.name, layout, is_single, line_of(node), stage, action)


def _lines(explanation: LayoutExplanation) -> Iterator[str]:
    yield f"mesh: {explanation.mesh}"
    yield ""
    tensors = explanation.tensors
    columns = {
        "name": [t.name for t in tensors],
        "type": [t.op for t in tensors],
        "layout": [t.layout for t in tensors],
        "computed": ["once" if t.single else "in parts" for t in tensors],
        "stage": ["" if t.stage is None else f"{t.stage} {t.action}" for t in tensors],
        "line": [t.source for t in tensors],
    }
    if not any(columns["stage"]):
        del columns["stage"]
    yield from aligned([tuple(columns), *zip(*columns.values(), strict=True)])
    yield ""
    yield "redistributions"
    moved = [("tensor", "by", "axes", "bytes received")]
    moved += [(m.tensor, m.collective, m.axes, size_text(m.nbytes)) for m in explanation.moves]
    yield from ("  " + line for line in aligned(moved))
    yield ""
    totals = explanation.totals().items()
    yield "in all: " + (", ".join(f"{n} {kind} ({size_text(b)})" for kind, (n, b) in totals) or "none")
    yield from explanation.remarks
