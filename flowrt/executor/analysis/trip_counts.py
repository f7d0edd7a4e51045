"""How often the loops of a partition run, where constants alone decide it.

A device that computes nothing cannot say whether a loop goes on. The host can where a counter starts from a
constant, and the next one and the predicate are made of it by pure arithmetic on a few elements. What such a
loop leaves in its variables is known then, too, and with it how often the loop of its gradient runs.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from typing import Any

from flowrt.errors import OpError
from flowrt.graph.evaluate import evaluate, evaluate_node
from flowrt.graph.node import Node, Ref, Subgraph, TensorSpec, owned_subgraphs, static_shape
from flowrt.graph.op_def import Effect, Rule
from flowrt.graph.shapes import is_static

MAX_COUNTED = 10_000
"""Iterations, which take the host 0.1 to 0.3 s. A loop that runs longer is not counted."""

MAX_ELEMENTS = 16
"""Of a tensor that is followed: counters and bounds."""


def trip_counts(subgraph: Subgraph) -> dict[str, int]:
    """The iterations of each loop of which they are known, by its name. A loop that exchanges tensors with
    other devices is not counted: all have to go the same way.
    """
    known: dict[Ref, Any] = {}
    counts: dict[str, int] = {}
    for node in subgraph:
        try:
            if node.op.name == "_Loop" and not any(map(_exchanges, owned_subgraphs(node.attrs))):
                _count(node, known, counts)
            elif _can_follow(node) and all(ref in known for ref in node.inputs):
                values = evaluate_node(node, [known[ref] for ref in node.inputs])
                known.update({(node.name, index): value for index, value in enumerate(values)})
        except OpError:
            continue  # an error of the step, which does not come here perhaps
    return counts


def _count(loop: Node, known: dict[Ref, Any], counts: dict[str, int]) -> None:
    """Run what can be followed of ``loop``, if the predicate is of that."""
    body: Subgraph = loop.attrs["body"]
    values = {name: known[r] for name, r in zip(body.feeds, loop.inputs[1:], strict=True) if r in known}
    results = dict(zip(body.feeds, body.fetches[1:], strict=False))  # behind the variables are invariants
    while lost := [name for name in values if results.get(name, (name, 0)) not in _followed(body, values)]:
        for name in lost:
            del values[name]
    if loop.inputs[0] not in known or body.fetches[0] not in _followed(body, values):
        return
    variables = [name for name in results if name in values]
    part = _part(body, (body.fetches[0], *[results[name] for name in variables]))
    goes_on, trips = bool(known[loop.inputs[0]]), 0
    while goes_on and trips < MAX_COUNTED:
        goes_on, *new = evaluate(part, values)
        values.update(zip(variables, new, strict=True))
        trips += 1
    if not goes_on:
        counts[loop.name] = trips
        known.update({(loop.name, k): values[name] for k, name in enumerate(results) if name in values})


def _followed(body: Subgraph, parameters: Collection[str]) -> set[Ref]:
    """What can be computed of ``parameters`` alone."""
    found: set[Ref] = {(name, 0) for name in parameters}
    for node in body:
        if _can_follow(node) and found.issuperset(node.inputs):
            found.update((node.name, index) for index in range(len(node.outputs)))
    return found


def _can_follow(node: Node) -> bool:
    op = node.op
    if op.name == "Const":
        return True
    is_pure = op.effect is Effect.PURE and op.state is None and not isinstance(op.kernel, Rule)
    return is_pure and all(map(_is_small, node.outputs))


def _is_small(spec: TensorSpec) -> bool:
    if not is_static(spec.shape) or spec.dtype.np.kind == "O":
        return False
    return math.prod(static_shape(spec)) <= MAX_ELEMENTS


def _part(body: Subgraph, fetches: tuple[Ref, ...]) -> Subgraph:
    """What ``fetches`` need of ``body``; nothing is waited for."""
    needed = {name for name, _ in fetches}
    for node in reversed(list(body)):
        if node.name in needed:
            needed.update(name for name, _ in node.inputs)
    nodes = {node.name: node for node in body if node.name in needed}
    return Subgraph(nodes, tuple([name for name in body.feeds if name in needed]), fetches)


def _exchanges(body: Subgraph) -> bool:
    """Whether tensors go to other devices, or come from there."""
    return any(
        node.op.name in ("_Send", "_Recv") or any(map(_exchanges, owned_subgraphs(node.attrs)))
        for node in body
    )
