"""Cost estimates of nodes, for the choice of threads and streams and the placement of pauses."""

from __future__ import annotations

from collections.abc import Iterable

from flowrt.graph.node import Node, Subgraph, owned_subgraphs
from flowrt.graph.op_def import Effect
from flowrt.graph.ops.collective.group_transfer import tagged_recv_op, tagged_send_op
from flowrt.graph.ops.collective.transfer import SENDS
from flowrt.graph.shapes import num_elements

_QUICK = SENDS | {tagged_send_op}
"""Operations that reach outside, but never wait."""

_FREE = ("Const", "_Feed", "_Recv")

SECONDS_PER_UNIT = 1e-9
"""Seconds per unit of `node_cost`: a core adds about 1e9 floats per second from memory; products are ten
times faster, but a schedule only needs a ranking.
"""

SECONDS_PER_OPERATION = 1e-11
"""The same of products and convolutions: a core has 3e10 to 1.4e11 floating-point operations per second."""

CALL_SECONDS = 0.5e-6
"""Overhead of any call, apart from its work."""


def node_cost(subgraph: Subgraph, node: Node) -> float:
    """Floating-point operations, or elements written if the op has no cost; unknown dimensions are zero."""
    if node.op.cost is not None:
        return node.op.cost([subgraph.spec(ref) for ref in node.inputs], node.outputs) or 0.0
    if node.op.name in _FREE:
        return 0.0
    return float(sum([num_elements(spec[1]) or 0 for spec in node.outputs]))


def node_seconds(subgraph: Subgraph, node: Node) -> float:
    """Estimated time for which the node occupies its device; attr ``seconds`` of an op that only waits."""
    if "seconds" in node.attrs:
        return float(node.attrs["seconds"])
    return CALL_SECONDS + SECONDS_PER_UNIT * node_cost(subgraph, node)


def least_seconds(node: Node, cost: float) -> float:
    """The time that a node of this cost takes if it is as fast as can be."""
    return cost * (SECONDS_PER_UNIT if node.op.cost is None else SECONDS_PER_OPERATION)


def may_block(node: Node) -> bool:
    """Whether nothing is known of its time: it calls the world outside, or waits for another step."""
    return node.op.waits or (node.op.effect is Effect.STATEFUL and node.op not in _QUICK)


def needs_pause(node: Node) -> bool:
    """Whether a program pauses after it, for others and to look whether its step must end."""
    return may_block(node) and not checks_step(node)


def checks_step(node: Node) -> bool:
    """Whether the node looks itself whether its step must end: a receive of another rank does."""
    return node.op is tagged_recv_op


def waits_outside(subgraph: Subgraph) -> bool:
    """Whether an operation may block on another step, including operations in loops and branches."""
    return any(node.op.waits or (node.op.effect is Effect.NESTED and _owner_waits(node)) for node in subgraph)


def _owner_waits(node: Node) -> bool:
    return any(map(waits_outside, owned_subgraphs(node.attrs)))


def node_costs(subgraph: Subgraph, order: Iterable[Node]) -> list[float]:
    """`node_cost` of each node of ``order``."""
    return [node_cost(subgraph, node) for node in order]


def total_cost(subgraph: Subgraph) -> float:
    return sum(node_costs(subgraph, subgraph))
