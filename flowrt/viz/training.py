"""The training in a graph: the losses that gradients are taken of, the variables that are updated, and which
derivatives are of which operation.

All follow from the graph, not from names: a script that calls no operation "loss" has one all the same.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from flowrt.graph.effects import touches
from flowrt.graph.node import Subgraph
from flowrt.viz.roles import Roles, reached
from flowrt.viz.view import Role


class Update(NamedTuple):
    """The ``operation`` of type ``op`` ("ApplyAdam") that changes the model's ``variable``, all by name."""

    operation: str
    op: str
    variable: str


NO_DERIVATIVES: Mapping[str, str] = {}


class Training(NamedTuple):
    losses: tuple[str, ...] = ()
    updates: tuple[Update, ...] = ()
    derivatives: Mapping[str, str] = NO_DERIVATIVES
    """The operations that `gradients` made, each with the one that it differentiates."""


NO_TRAINING = Training()


def joined(before: Training, after: Training) -> Training:
    """The training of ``after``, with the derivatives of both graphs. Those that one has of another operation
    than the other has are left out.
    """
    either = {**before.derivatives, **after.derivatives}
    known = {
        made: of
        for made, of in either.items()
        if before.derivatives.get(made, of) == after.derivatives.get(made, of)
    }
    return after._replace(derivatives=known)


def training_of(graph: Subgraph, roles: Roles, derivatives: Mapping[str, str] = NO_DERIVATIVES) -> Training:
    """The training in ``graph``. The last of the operations that ``derivatives`` are of are the losses, if an
    optimizer uses their gradients. Its own state, Adam's moments, is left out.
    """
    nodes = graph.nodes
    known = {made: of for made, of in derivatives.items() if made in nodes and of in nodes}
    updates = [
        Update(node.name, node.op.name, handle)
        for node in graph
        if roles.get(node.name) is Role.OPTIMIZER
        for (handle, _), is_written in touches(node)
        if is_written and roles.get(handle) is None
    ]
    if not updates:
        return Training(derivatives=known)
    active = {name for name in derivatives.values() if name in nodes and roles.get(name) is None}
    before = reached(active, lambda name: [producer for producer, _ in nodes[name].inputs])
    losses = [node.name for node in graph if node.name in active - before]
    return Training(tuple(losses), tuple(updates), known)
