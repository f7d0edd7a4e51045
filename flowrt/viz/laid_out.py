"""`LaidOut`: the global graph of a step in its layouts, and what moves between them. All pictures and texts
of layouts read it.

    CompileRequest -> the step before `lower_layouts` -> `lowered`, for its facts -> LaidOut
    LaidOut -> `view_of_layouts` -> GraphView with layouts on tensors and redistributions on edges
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from flowrt.graph.layouts.attributes import MESH
from flowrt.graph.layouts.layout import Layout, describe
from flowrt.graph.node import Node, Ref, Subgraph, site_of, with_functions
from flowrt.graph.passes.layouts.lower_layouts import Lowered, lowered
from flowrt.graph.passes.layouts.redistribute import Move, Path
from flowrt.graph.passes.layouts.step_layouts import Layouts
from flowrt.graph.passes.pipeline import compile_step, stages_before
from flowrt.graph.pipeline.actions import Kind
from flowrt.graph.text.graph_text import labelled_functions
from flowrt.viz.compile_request import CompileRequest
from flowrt.viz.from_parts import AttrTexts, names_in_view, view_of
from flowrt.viz.roles import NO_ROLES, Roles, inherited
from flowrt.viz.view import GraphView, Moved, NodeView, TensorView, stage_name


class Scope(NamedTuple):
    """The ``layouts`` of the step, or of a function in it, and the ``names`` of its nodes in views."""

    layouts: Layouts
    names: Mapping[str, str]

    def tensor(self, ref: Ref) -> str:
        """The name of ``ref`` in views, ``while:body/add:0``."""
        return f"{self.names[ref[0]]}:{ref[1]}"

    def describe(self, ref: Ref) -> str:
        """The tensor ``ref`` with its layout: ``float32[8/dp, 1024/tp]``; of a handle, its variable."""
        spec, handle = self.layouts.subgraph.spec(ref), self.layouts.handles.get(ref)
        return describe(spec.dtype.name, spec.shape if handle is None else handle.shape, self.layout(ref))

    def layout(self, ref: Ref) -> Layout:
        return self.layouts.outputs[ref]


class LaidOut(NamedTuple):
    """The ``step`` before it is lowered, its ``lowered`` form with the facts, and its ``scopes``: the step
    itself, under (), and the functions of loops and branches that run in parts.
    """

    step: Subgraph
    lowered: Lowered
    scopes: Mapping[Path, Scope]

    @property
    def moves(self) -> tuple[Moved, ...]:
        """All moves, in the order in which they were found to be needed."""
        return tuple(map(self.moved, self.lowered.moves))

    def moved(self, move: Move) -> Moved:
        """``move`` as pictures and texts show it."""
        after = move.step.apply(move.before)
        mesh = after.mesh
        over = [mesh.axes[axis] for axis in move.step.axes] if move.step.axes else [mesh.stages]
        axes = ", ".join(axis.name for axis in over if axis)
        becomes = describe(move.spec.dtype.name, move.spec.shape, after)
        tensor = self.scopes[move.path].tensor(move.source)
        return Moved(tensor, move.step.collective, axes, move.nbytes, becomes)


def laid_out(asked: CompileRequest) -> LaidOut | None:
    """The step of ``asked`` in its layouts; None if nothing in it has one. Nothing runs.

    Raises the errors of `Session.run`.
    """
    if not any(MESH in op.node.attrs for op in asked.graph.get_operations()):
        return None
    step = compile_step(asked.request, asked.options, pipeline=stages_before("lower_layouts"))
    found = lowered(step, asked.options.devices, asked.options.links)
    if found is None:
        return None
    return LaidOut(step, found, dict(_scopes(found.layouts)))


def _scopes(
    layouts: Layouts, path: Path = (), base: str = "", owner: str = ""
) -> Iterator[tuple[Path, Scope]]:
    """``layouts``, and those of the functions that run in parts."""
    names = names_in_view(layouts.subgraph, base, owner)
    yield path, Scope(layouts, names)
    for name, functions in layouts.functions.items():
        node = layouts.subgraph.nodes[name]
        for i, ((label, _), inner) in enumerate(zip(labelled_functions(node), functions, strict=True)):
            yield from _scopes(inner, (*path, (name, i)), f"{names[name]}:{label}", site_of(node))


# --- views


def view_of_layouts(found: LaidOut, texts: AttrTexts | None = None, roles: Roles = NO_ROLES) -> GraphView:
    """The global graph with the layouts of tensors that a mesh cuts, and what moves on the edges to readers
    that need another layout. In a pipeline the device of an operation is its stage, and its pass is an
    attribute. ``texts``, ``roles``: see `flowrt.viz.from_parts.view_of`.
    """
    parts = {"": _with_forms(found.lowered.layouts)}
    view = view_of(parts, texts, inherited(parts.values(), roles))
    nodes = dict(view.nodes)
    for path, scope in found.scopes.items():
        passes = {} if path else found.lowered.passes
        for node in scope.layouts.subgraph:
            name = scope.names[node.name]
            nodes[name] = _with_layouts(nodes[name], node.name, scope, passes)
    moves = _moves_by_edge(found)
    edges = [
        edge._replace(
            facts=nodes[edge.source].outputs[int(edge.tensor.rpartition(":")[2])],
            moves=moves.get((edge.tensor, edge.target), ()),
        )
        if edge.tensor
        else edge
        for edge in view.edges
    ]
    return view._replace(nodes=nodes, edges=edges)


def _with_forms(layouts: Layouts) -> Subgraph:
    """The subgraph of ``layouts``, also in its functions with the forms that took operations' places."""

    def changed(node: Node) -> Node:
        functions = iter(layouts.functions[node.name])
        return with_functions(node, lambda _: _with_forms(next(functions)))

    return layouts.subgraph.mapped(lambda node: changed(node) if node.name in layouts.functions else node)


def _with_layouts(node: NodeView, name: str, scope: Scope, passes: Mapping[str, Kind]) -> NodeView:
    outputs = [_in_layout(tensor, (name, i), scope) for i, tensor in enumerate(node.outputs)]
    stage = scope.layouts.stages.get(name)
    if stage is not None:
        attrs = {**node.attrs, "pass": passes[name]} if name in passes else node.attrs
        node = node._replace(device=stage_name(stage), attrs=attrs)
    return node._replace(outputs=tuple(outputs))


def _in_layout(tensor: TensorView, ref: Ref, scope: Scope) -> TensorView:
    return tensor if scope.layout(ref).is_replicated else tensor._replace(layout=scope.describe(ref))


def _moves_by_edge(found: LaidOut) -> dict[tuple[str, str], tuple[Moved, ...]]:
    """The moves between a tensor, ``w:0``, and its reader, by both. Readers that need the same layout have
    the same moves.
    """
    making = {
        (move.path, move.source, move.step.apply(move.before), move.end): move for move in found.lowered.moves
    }

    def way(path: Path, ref: Ref, layout: Layout, position: int) -> list[Moved]:
        """The moves that bring ``ref`` into ``layout`` at ``position``, in order."""
        move = making.get((path, ref, layout, position))
        return [] if move is None else [*way(path, ref, move.before, move.start), found.moved(move)]

    edges: dict[tuple[str, str], tuple[Moved, ...]] = {}
    for path, scope in found.scopes.items():
        for node in scope.layouts.subgraph:
            for ref, wanted in zip(node.inputs, scope.layouts.inputs[node.name], strict=True):
                key = scope.tensor(ref), scope.names[node.name]
                position = scope.layouts.position(node.name)
                steps = way(path, ref, scope.layouts.given(ref, wanted), position)
                edges[key] = tuple(dict.fromkeys([*edges.get(key, ()), *steps]))
    return edges
