"""`explain_layouts`: the layout of each tensor of a step, and what moves between layouts, as text."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, NamedTuple, final

from flowrt.graph.layouts.layout import describe
from flowrt.graph.node import Node, Subgraph
from flowrt.graph.passes.layouts.lower_layouts import Lowered, lowered
from flowrt.graph.passes.pipeline import Observer, compile_step
from flowrt.profiler.text_table import aligned, size_text
from flowrt.viz.explain import request_here
from flowrt.viz.from_parts import line_of


class TensorLayout(NamedTuple):
    """The first output of an operation, ``float32[8/dp, 1024/tp]``; ``single``: it is computed once."""

    name: str
    op: str
    layout: str
    single: bool
    source: str


class Moved(NamedTuple):
    """A tensor that changes its layout: by which collective, and the bytes that all devices receive."""

    tensor: str
    collective: str
    axes: str
    nbytes: int


class LayoutExplanation(NamedTuple):
    """The tensors with a layout, what moves, and a sentence for each tensor gathered for want of a rule."""

    mesh: str
    tensors: tuple[TensorLayout, ...]
    moves: tuple[Moved, ...]
    gathers: tuple[str, ...]

    def totals(self) -> dict[str, tuple[int, int]]:
        """The number of redistributions of each collective, and their bytes."""
        found: dict[str, tuple[int, int]] = defaultdict(lambda: (0, 0))
        for move in self.moves:
            count, nbytes = found[move.collective]
            found[move.collective] = count + 1, nbytes + move.nbytes
        return dict(found)

    def __str__(self) -> str:
        return "\n".join(_lines(self))


def explain_layouts(
    what: Any, fetches: Any = None, feed_dict: Mapping[Any, Any] | None = None
) -> LayoutExplanation | None:
    """The layouts of the step of ``what`` that computes ``fetches``, as for `flowrt.viz.explain.explain`;
    None if nothing in it has a layout. Nothing runs.

    Raises `InvalidArgumentError` for a source that is compiled elsewhere, and the errors of `Session.run`.
    """
    asked = request_here(what, fetches, "layouts", feed_dict)
    before = _BeforeLayouts()
    compile_step(asked.request, replace(asked.options, observer=before))
    found = lowered(before.step, asked.options.devices, asked.options.links)
    return None if found is None else _explanation(found)


@final
class _BeforeLayouts(Observer):
    """The ``step`` before the stage `lower_layouts`."""

    step: Subgraph

    def __init__(self) -> None:
        self._is_done = False

    def after(self, name: str, parts: Mapping[str, Subgraph]) -> None:
        self._is_done = self._is_done or name == "lower_layouts"
        if not self._is_done:
            self.step = parts[""]


def _explanation(found: Lowered) -> LayoutExplanation:
    layouts, mesh = found.layouts, found.layouts.mesh
    return LayoutExplanation(
        str(mesh),
        tuple(_tensor(node, found) for node in layouts.subgraph if node.outputs),
        tuple(
            Moved(
                ":".join(map(str, move.source)),
                move.step.collective,
                ", ".join(mesh.axes[axis].name for axis in move.step.axes),
                move.nbytes,
            )
            for move in found.moves
        ),
        tuple(map(str, layouts.gathers)),
    )


def _tensor(node: Node, found: Lowered) -> TensorLayout:
    spec, layout = node.outputs[0], found.layouts.outputs[node.name, 0]
    shape = node.attrs.get("shape") if spec.dtype.name == "resource" else spec.shape
    text = describe(spec.dtype.name, shape, layout)
    return TensorLayout(node.name, node.op.name, text, node.name in found.layouts.single, line_of(node))


def _lines(explanation: LayoutExplanation) -> Iterator[str]:
    yield f"mesh: {explanation.mesh}"
    yield ""
    rows = [("name", "type", "layout", "computed", "line")]
    rows += [
        (t.name, t.op, t.layout, "once" if t.single else "in parts", t.source) for t in explanation.tensors
    ]
    yield from aligned(rows)
    yield ""
    yield "redistributions"
    moved = [("tensor", "by", "axes", "bytes received")]
    moved += [(m.tensor, m.collective, m.axes, size_text(m.nbytes)) for m in explanation.moves]
    yield from ("  " + line for line in aligned(moved))
    yield ""
    totals = explanation.totals().items()
    yield "in all: " + (", ".join(f"{n} {kind} ({size_text(b)})" for kind, (n, b) in totals) or "none")
    yield from explanation.gathers
