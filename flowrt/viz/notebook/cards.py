"""Cards: what a notebook shows of a graph, session, tensor, variable, dataset, strategy or mesh.

A card is a table of facts with its styles in place: it needs nothing of the page around it and changes
nothing there. All text is escaped; the picture of a graph is an image, which runs nothing.
"""

from __future__ import annotations

import base64
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from functools import singledispatch
from itertools import islice

import numpy as np

from flowrt.base.markup import Child, Markup, element
from flowrt.base.structure import flatten
from flowrt.data.dataset import Dataset
from flowrt.data.node import Node as DatasetNode
from flowrt.distribute.strategies.core.strategy import Strategy
from flowrt.executor.session.session import BaseSession
from flowrt.graph.construction.graph import Graph, Operation, Tensor
from flowrt.graph.layouts.mesh import Mesh
from flowrt.graph.node import Subgraph
from flowrt.profiler.text_table import size_text
from flowrt.variables.variable import GraphKeys, Variable
from flowrt.viz.overview import svg_of
from flowrt.viz.roles import marks, roles_of

MAX_DRAWN = 20_000
"""Operations of a graph with a picture: it takes 0.2 s for as many."""

MAX_TYPES = 8
"""Types of operations, devices and parts of an element that a card names."""

_MUTED = "opacity:.65;font-weight:normal"
_CELL = "text-align:left;vertical-align:top;padding:1px 12px 1px 0;border:0;background:none"
_FRAME = (
    "display:inline-block;max-width:100%;overflow:auto;padding:6px 10px;font-size:13px;line-height:1.45;"
    "border:1px solid rgba(128,128,128,.4);border-radius:6px"
)

Facts = Mapping[str, Child]


@singledispatch
def card(value: object) -> str:
    """The HTML of ``value``: its ``repr``, unless a function below knows its class."""
    return element("pre", repr(value))


@card.register
def _of_tensor(tensor: Tensor) -> str:
    facts = {"shape": str(tensor.shape), "dtype": tensor.dtype.name, "operation": tensor.op.type}
    return _card("Tensor", tensor.name, {**facts, **_place(tensor.op)})


@card.register
def _of_operation(op: Operation) -> str:
    facts = {
        "inputs": _several(f"{t.name} {t.dtype.name} {t.shape}" for t in op.inputs),
        "waits for": _several(each.name for each in op.control_inputs),
        "outputs": _several(f"{t.dtype.name} {t.shape}" for t in op.outputs),
    }
    return _card(f"Operation {op.type}", op.name, {**facts, **_place(op)})


@card.register
def _of_variable(variable: Variable) -> str:
    nbytes = _nbytes(variable)
    facts = {
        "shape": str(variable.shape),
        "dtype": variable.dtype.name,
        "size": "" if nbytes is None else size_text(nbytes),
        "trained": "yes" if variable.trainable else "no",
    }
    return _card("Variable", variable.name, {**facts, **_place(variable.op)})


@card.register
def _of_graph(graph: Graph) -> str:
    operations = graph.get_operations()
    facts = {
        "operations": f"{len(operations):,}",
        "types": _counts(op.type for op in operations),
        "devices": _counts(op.device for op in operations if op.device),
        "variables": _variables(graph),
        "finalized": "yes" if graph.finalized else "",
    }
    return _card("Graph", "", facts, _picture(graph))


@card.register
def _of_session(session: BaseSession) -> str:
    facts = {
        "target": session.sess_str,
        "graph": f"{len(session.graph.operations):,} operations",
        "variables": _variables(session.graph),
        "devices": _several(device.name for device in session.list_devices()) if session.is_open else "",
        "compiled": _steps(session.num_plans) if session.is_open else "",
        "closed": "" if session.is_open else "yes",
    }
    return _card(type(session).__name__, "", facts)


@card.register
def _of_dataset(dataset: Dataset) -> str:
    chain = [type(node).__name__ for node in _inputs(dataset.node)][::-1]
    facts = {"steps": " → ".join(chain), "element": _several(map(str, flatten(dataset.node.spec)))}
    return _card(type(dataset).__name__, "", facts)


@card.register
def _of_strategy(strategy: Strategy) -> str:
    extended = strategy.extended
    facts = {
        "replicas": str(strategy.num_replicas_in_sync),
        "devices": _several(extended.worker_devices),
        "variables on": _several(extended.parameter_devices),
        "mesh": str(getattr(strategy, "mesh", "")),
    }
    return _card(type(strategy).__name__, "", facts)


@card.register
def _of_mesh(mesh: Mesh) -> str:
    facts = {
        "axes": ", ".join(map(str, mesh.axes)),
        "stages": "" if mesh.stages is None else str(mesh.stages),
        "devices": "those of the session, in order" if mesh.devices is None else "",
    }
    return _card("Mesh", str(mesh), facts, "" if mesh.devices is None else _grid(mesh))


# --- facts


def _place(op: Operation) -> dict[str, str]:
    return {"device": op.device or "not requested", "made at": op.source or ""}


def _several(texts: Iterable[str]) -> Child:
    """One a line; the first `MAX_TYPES` of them."""
    found = list(texts)
    shown = [*found[:MAX_TYPES], *([f"and {len(found) - MAX_TYPES} more"] if found[MAX_TYPES:] else ())]
    return [element("div", text) for text in shown]


def _counts(names: Iterable[str]) -> str:
    counted = Counter(names)
    shown = [f"{name} {count:,}" for name, count in counted.most_common(MAX_TYPES)]
    rest = len(counted) - MAX_TYPES
    return ", ".join([*shown, *([f"and {rest} more"] if rest > 0 else ())])


def _steps(number: int) -> str:
    return "1 step" if number == 1 else f"{number} steps"


def _variables(graph: Graph) -> str:
    variables = graph.get_collection(GraphKeys.GLOBAL_VARIABLES)
    if not variables:
        return ""
    nbytes = [_nbytes(variable) or 0 for variable in variables]
    trained = sum(map(_num_elements, graph.get_collection(GraphKeys.TRAINABLE_VARIABLES)))
    return f"{len(variables):,} of {size_text(sum(nbytes))}; {trained:,} parameters are trained"


def _num_elements(variable: Variable) -> int:
    return variable.shape.num_elements() or 0


def _nbytes(variable: Variable) -> int | None:
    elements = variable.shape.num_elements()
    return None if elements is None else elements * variable.dtype.np.itemsize


def _inputs(node: DatasetNode | None) -> Iterator[DatasetNode]:
    """``node`` and what it reads, along the first input."""
    while node is not None:
        yield node
        several = getattr(node, "inputs", None)
        node = getattr(node, "input", next(iter(several), None) if several else None)


# --- markup


def _card(kind: str, name: str, facts: Facts, below: Child = "") -> Markup:
    head = element("div", element("b", kind), " ", element("code", name) if name else "")
    rows = [
        element("tr", element("th", key, style=f"{_CELL};{_MUTED}"), element("td", value, style=_CELL))
        for key, value in facts.items()
        if value
    ]
    table = element("table", *rows, style="border-collapse:collapse;margin:2px 0;font-size:inherit")
    return element("div", head, table, below, style=_FRAME)


def _picture(graph: Graph) -> Child:
    """The graph's scopes and what flows between them; nothing for an empty or a very large graph."""
    if not 0 < len(graph.operations) <= MAX_DRAWN:
        return ""
    whole = Subgraph({op.name: op.node for op in graph.get_operations()})
    svg = svg_of({"graph": whole}, 1, roles_of(whole, marks(graph), graph.derivatives.values()))
    source = f"data:image/svg+xml;base64,{base64.b64encode(svg.encode()).decode()}"
    return element("div", element("img", src=source, alt="the graph's scopes", style="max-width:100%"))


def _grid(mesh: Mesh) -> Markup:
    """The devices: rows along the first axis, all others side by side."""
    rows = np.array(mesh.devices, object).reshape(mesh.device_axes[0].size, -1)
    cell = "border:1px solid rgba(128,128,128,.4);padding:1px 8px;text-align:left;background:none"
    lines = [
        element("tr", *[element("td", str(name), style=cell) for name in islice(row, 2 * MAX_TYPES)])
        for row in rows[: 2 * MAX_TYPES]
    ]
    return element("table", *lines, style="border-collapse:collapse;margin:2px 0")
