"""Roles: which operations are not the model, but its gradients, optimizer, summaries, checkpoints or
initializers.

They are found by facts of the graph, never by names:

    marks      what a graph records: the derivatives that `gradients` made, the initializers of its variables
    roles_of   marks, and ops of one purpose (updates, summaries, files) -> the role of each operation:
               what gradients need before they write is the optimizer, what only one role needs is of it
    inherited  the roles of operations that passes add, from their neighbours
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TypeAlias

from flowrt.graph.construction.graph import Graph
from flowrt.graph.effects import AT_END
from flowrt.graph.node import Node, Subgraph
from flowrt.graph.op_def import Effect
from flowrt.variables.variable import GraphKeys, Variable
from flowrt.viz.view import Role

Roles: TypeAlias = Mapping[str, Role | None]
"""The role of each operation, by name; None for those of the model."""

NO_ROLES: Roles = {}
NO_MARKS: Mapping[str, Role] = {}

_ORDER = list(Role)


def marks(graph: Graph) -> dict[str, Role]:
    """The roles that ``graph`` records."""
    found = dict.fromkeys(graph.derivatives, Role.GRADIENT)
    for variable in _variables(graph):
        found[variable.initializer.name] = Role.INITIALIZER
        found[variable.is_initialized().op.name] = Role.INITIALIZER
    return found


def _variables(graph: Graph) -> Iterator[Variable]:
    """Every copy of every variable in the collections of ``graph``."""
    for key in (GraphKeys.GLOBAL_VARIABLES, GraphKeys.LOCAL_VARIABLES):
        for variable in graph.get_collection(key):
            if isinstance(variable, Variable):
                yield from variable.copies


def roles_of(
    graph: Subgraph, marked: Mapping[str, Role] = NO_MARKS, differentiated: Iterable[str] = ()
) -> Roles:
    """The role of each node of ``graph``. ``differentiated`` are operations that have derivatives: these are
    of the model unless they are ``marked``, as in a loss that contains a gradient.
    """
    found = {name: role for name, role in marked.items() if name in graph.nodes}
    found |= {node.name: role for node in graph if (role := _by_op(node)) is not None}
    model = {name for name in differentiated if name in graph.nodes} - found.keys()
    found |= dict.fromkeys(_updates(graph, found, model), Role.OPTIMIZER)
    for node in graph:
        if node.name not in found and node.name not in model:
            role = _of_all(found, [name for name in node.predecessors if not _is_neutral(graph.nodes[name])])
            if role is not None:
                found[node.name] = role
    readers = graph.consumers()
    snapshots = {node.name for node in graph if AT_END in node.attrs and not readers[node.name]}
    for node in reversed([*graph]):
        if node.name not in found and node.name not in model:
            needed_for = [name for name in readers[node.name] if name not in snapshots]
            if needed_for and all(name in found for name in needed_for):
                found[node.name] = min((found[name] for name in needed_for), key=_ORDER.index)
    for name in snapshots:  # those that variables have to be fetched by
        handle, _ = graph.nodes[name].inputs[0]
        if handle in found:
            found[name] = found[handle]
    return {name: found.get(name) for name in graph.nodes}


def _by_op(node: Node) -> Role | None:
    """The role of ops of which the only purpose is one."""
    op = node.op
    if op.effect is Effect.WRITE and any(argument.name == "grad" for argument in op.inputs):
        return Role.OPTIMIZER
    if any(argument.name == "summary" for argument in op.outputs):
        return Role.SUMMARY
    is_of_tensors = any(argument.name in ("tensor_name", "tensor_names") for argument in op.inputs)
    return Role.CHECKPOINT if is_of_tensors and op.privilege is not None else None


def _is_neutral(node: Node) -> bool:
    """Whether any role may need it: a constant, a variable's handle."""
    return node.op.effect is Effect.HANDLE or not (node.inputs or node.controls)


def _of_all(found: Roles, names: Iterable[str]) -> Role | None:
    """The role that all of ``names`` have; None if there is no such."""
    roles = {found.get(name) for name in names}
    return roles.pop() if len(roles) == 1 else None


def _updates(graph: Subgraph, found: Mapping[str, Role], model: set[str]) -> set[str]:
    """The operations between gradients and what they change, or the end of the step."""
    readers, nodes = graph.consumers(), graph.nodes
    gradients = [name for name, role in found.items() if role is Role.GRADIENT]
    below = reached(gradients, readers.__getitem__)
    ends = [n for n in below if nodes[n].op.effect is Effect.WRITE or not nodes[n].outputs]
    between = below & {*ends, *reached(ends, lambda name: nodes[name].predecessors)}
    return between - found.keys() - model - reached(model, lambda name: nodes[name].predecessors)


def reached(start: Iterable[str], step: Callable[[str], Iterable[str]]) -> set[str]:
    """All that ``step``, repeated, leads to from ``start``."""
    found: set[str] = set()
    waiting = [*start]
    while waiting:
        for name in step(waiting.pop()):
            if name not in found:
                found.add(name)
                waiting.append(name)
    return found


def inherited(parts: Iterable[Subgraph], known: Roles) -> Roles:
    """``known``, and the roles of the nodes that passes have added: the one of all readers in the same part,
    else the one of all that they read.
    """
    found = dict(known)
    for part in parts:
        added = [node for node in part if node.name not in known]
        readers = part.consumers() if added else {}
        for node in reversed(added):
            found[node.name] = _of_all(found, readers[node.name])
        for node in added:
            found[node.name] = found[node.name] or _of_all(found, node.predecessors)
    return found
