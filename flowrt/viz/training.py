"""The training in a graph: the losses that gradients are taken of, and the variables that are updated.

Both follow from the graph, not from names: a script that calls no operation "loss" has one all the same.
"""

from __future__ import annotations

from collections.abc import Iterable
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


class Training(NamedTuple):
    losses: tuple[str, ...] = ()
    updates: tuple[Update, ...] = ()


NO_TRAINING = Training()


def training_of(graph: Subgraph, roles: Roles, differentiated: Iterable[str] = ()) -> Training:
    """The training in ``graph``. ``differentiated`` are the operations that have derivatives: the last of
    them are the losses, if an optimizer uses their gradients. Its own state, Adam's moments, is left out.
    """
    updates = [
        Update(node.name, node.op.name, handle)
        for node in graph
        if roles.get(node.name) is Role.OPTIMIZER
        for (handle, _), is_written in touches(node)
        if is_written and roles.get(handle) is None
    ]
    if not updates:
        return NO_TRAINING
    active = {name for name in differentiated if name in graph.nodes and roles.get(name) is None}
    before = reached(active, lambda name: [producer for producer, _ in graph.nodes[name].inputs])
    losses = [node.name for node in graph if node.name in active - before]
    return Training(tuple(losses), tuple(updates))
