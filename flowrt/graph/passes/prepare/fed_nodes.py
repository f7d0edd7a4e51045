"""Nodes computed from feeds, constants and iterators alone: they need no variable and no other device."""

from __future__ import annotations

from collections.abc import Collection

from flowrt.graph.node import Subgraph
from flowrt.graph.op_def import Effect
from flowrt.graph.ops.collective.collectives import COLLECTIVES
from flowrt.graph.ops.state.iterators import (
    iterator_get_next_op,
    iterator_op,
    make_iterator_op,
    one_shot_iterator_op,
)

OF_ITERATORS = frozenset((iterator_op, one_shot_iterator_op, iterator_get_next_op, make_iterator_op))


def fed_nodes(whole: Subgraph, feeds: Collection[str]) -> frozenset[str]:
    """The nodes of ``whole`` that are computed from ``feeds``, constants and iterators alone."""
    found: set[str] = set(feeds)
    for node in whole:
        if node.op in COLLECTIVES or node.name in whole.feeds:
            continue
        is_own = node.op.effect is Effect.PURE and node.op.state is None
        if (is_own or node.op in OF_ITERATORS) and found.issuperset(node.predecessors):
            found.add(node.name)
    return frozenset(found)
