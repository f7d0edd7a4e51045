"""Layouts as attributes of nodes: how they travel in graphs, files and requests to a cluster.

    _mesh      the mesh, on variables, inputs and Relayout operations
    _layout    how the tensor is used
    _stored    how a variable is kept, if that is another layout
    _summed    the layout of what contracts a dimension of a variable that is in parts, once it is added up
    _copy      the dtype of a copy that every coordinate keeps besides, from which the variable is read: see
               `flowrt.graph.passes.layouts.keep_copies`
    _rows      on a variable that every coordinate keeps whole, and of which it updates the rows of its part:
               see there
    _host      on a variable that is kept in host memory, and on its gradient
    _unit      the unit of a variable: all of it are gathered, and their gradients reduced, in one call; or
               `FOUND`, with what the step finds it by: see `flowrt.graph.passes.layouts.join_units`
    _memory    the place of a variable's part in one memory with others, once the model is complete: see
               `flowrt.graph.layouts.memory_places`
    _states    the place of the next state of a trained variable in one memory with others of its optimizer
    _regather  on a variable that is gathered again where it is needed again: see `schedule_gathers`
    _resident  the bytes that a device may have of units at a time, if they stay as long as there is room
    _last      on a variable of which the gradient is reduced when all of the step are there
    _stage     the number of the stage of an operation, or `FOUND` if its neighbours tell; a variable has one
    _forward   on an operation that `gradients` makes: the one of which it is the derivative
    _schedule  on variables and inputs of a pipeline: see `flowrt.graph.pipeline.mesh_schedule`
    _remat     on those too, if the forward pass of a stage is computed again for its backward pass
    _again     on a draw that is made again: the first one

All are text, so they survive GraphDef, the text form and the wire.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from flowrt.errors import UnimplementedError
from flowrt.graph.layouts.layout import Layout, format_layout, parse_layout
from flowrt.graph.layouts.mesh import Mesh, format_mesh, parse_mesh
from flowrt.graph.node import Node, owned_subgraphs
from flowrt.graph.op_def import Effect

MESH, LAYOUT, STORED, SUMMED = "_mesh", "_layout", "_stored", "_summed"
COPY, ROWS, HOST, UNIT, REGATHER = "_copy", "_rows", "_host", "_unit", "_regather"
RESIDENT, LAST, MEMORY, STATES = "_resident", "_last", "_memory", "_states"
STAGE, FORWARD, SCHEDULE = "_stage", "_forward", "_schedule"
REMAT, AGAIN = "_remat", "_again"
FOUND = "found"
"""The `_stage` of an operation, or the beginning of the `_unit` of a variable, that gets one when the step is
compiled.
"""

IN_PARTS = " in parts"
"""The end of a `_copy` that is in the variable's own layouts; others are whole."""

ATTRIBUTES = (
    MESH, LAYOUT, STORED, SUMMED, COPY, ROWS, HOST, UNIT, REGATHER, RESIDENT, LAST, MEMORY, STATES, STAGE,
    FORWARD, SCHEDULE, REMAT, AGAIN,
)  # fmt: skip


class NodeLayouts(NamedTuple):
    """``used``: the layout in which operations get the tensor; ``stored``: that of a variable in memory."""

    used: Layout
    stored: Layout


def attributes_of(used: Layout, stored: Layout | None = None) -> dict[str, str]:
    """The attributes of a node with these layouts."""
    found = {MESH: format_mesh(used.mesh), LAYOUT: format_layout(used)}
    return found if stored is None or stored is used else {**found, STORED: format_layout(stored)}


def attributes_of_slot(slot: Mapping[str, Any], variable: Mapping[str, Any]) -> dict[str, Any]:
    """The attributes of an optimizer's ``slot``, which is used as its ``variable`` is stored."""
    own = {key: value for key, value in slot.items() if key not in ATTRIBUTES}
    return {**own, **as_stored(variable)} if LAYOUT in variable else own


def attributes_of_gradient(variable: Mapping[str, Any]) -> dict[str, Any]:
    """The attributes of a variable's gradient, in the layout in which its update needs it."""
    return {**as_stored(variable), UNIT: variable[UNIT]}


def as_stored(attrs: Mapping[str, Any]) -> dict[str, Any]:
    """The attributes of a tensor that is, in layout and memory, as the variable with ``attrs`` is kept."""
    place = {key: attrs[key] for key in (HOST, STAGE, SCHEDULE, REMAT) if key in attrs}
    return {MESH: attrs[MESH], LAYOUT: attrs.get(STORED, attrs[LAYOUT]), **place}


def layouts_of(attrs: Mapping[str, Any], mesh: Mesh) -> NodeLayouts | None:
    """The layouts over ``mesh``, which has devices, that ``attrs`` name; None if they name none."""
    text = attrs.get(LAYOUT)
    if text is None:
        return None
    used = parse_layout(text, mesh)
    return NodeLayouts(used, used if ROWS in attrs else parse_layout(attrs.get(STORED, text), mesh))


def summed_of(attrs: Mapping[str, Any], mesh: Mesh) -> Layout | None:
    """The layout over ``mesh`` of the sums that a variable with ``attrs`` makes; None: whole."""
    return parse_layout(attrs[SUMMED], mesh) if SUMMED in attrs else None


def mesh_of(nodes: Iterable[Node]) -> Mesh | None:
    """The mesh of ``nodes`` and of those in their functions, None if none of them names one.

    Raises `UnimplementedError` if they name several.
    """
    found: dict[str, Node] = {}
    for node in _with_inner(nodes):
        if MESH in node.attrs:
            found.setdefault(node.attrs[MESH], node)
    if len(found) > 1:
        (one, first), (other, second) = list(found.items())[:2]
        raise UnimplementedError(
            f"a step needs layouts over one mesh; got {one} of {first.name!r} and {other} of {second.name!r}",
            source=None if second.source is None else str(second.source),
        )
    return parse_mesh(next(iter(found))) if found else None


def _with_inner(nodes: Iterable[Node]) -> Iterator[Node]:
    for node in nodes:
        yield node
        if node.op.effect is Effect.NESTED:
            for function in owned_subgraphs(node.attrs):
                yield from _with_inner(function)
