"""Trip counts of loops that are determined by constants alone.

A device that computes nothing cannot decide whether a loop continues. The host can if a counter starts from a
constant, and its next value and the predicate follow from it by pure arithmetic on a few elements. The final
values of such a loop's variables are then known, too, and with them the trip count of its gradient's loop.
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
"""Maximum size of an evaluated tensor: counters and bounds."""


def trip_counts(subgraph: Subgraph) -> dict[str, int]:
    """Known trip counts of loops, by name. A loop that exchanges tensors with other devices is not counted:
    all devices must run it equally often.
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
            continue  # an error of the step, which may not reach this loop
    return counts


def _count(loop: Node, known: dict[Ref, Any], counts: dict[str, int]) -> None:
    """Evaluate ``loop``, if its predicate can be evaluated."""
    body: Subgraph = loop.attrs["body"]
    values = {name: known[r] for name, r in zip(body.feeds, loop.inputs[1:], strict=True) if r in known}
    results = dict(zip(body.feeds, body.fetches[1:], strict=False))  # invariants follow the variables
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
    """The tensors that can be computed from ``parameters`` alone."""
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
    """The subgraph of ``body`` for ``fetches``, without control dependencies."""
    needed = {name for name, _ in fetches}
    for node in reversed(list(body)):
        if node.name in needed:
            needed.update(name for name, _ in node.inputs)
    nodes = {node.name: node for node in body if node.name in needed}
    return Subgraph(nodes, tuple([name for name in body.feeds if name in needed]), fetches)


def _exchanges(body: Subgraph) -> bool:
    """Whether tensors are sent to or received from other devices."""
    return any(
        node.op.name in ("_Send", "_Recv") or any(map(_exchanges, owned_subgraphs(node.attrs)))
        for node in body
    )
