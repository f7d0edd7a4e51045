"""Stages of a pipeline by costs, for scripts that name none.

The operations of the forward pass, in the order in which the script made them, are cut into consecutive
parts, so that the longest stage takes as little time as possible: a stage computes its part, forward and
backward, and receives what crosses the cut in front of it. The least bound for which there are cuts is found
by bisection; whether there are any is a sweep over the operations for each stage. The problem is that of
PipeDream (Narayanan et al. 2019) with equal devices.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from flowrt.dtypes import variant
from flowrt.errors import InvalidArgumentError
from flowrt.graph.node import Node, Subgraph, TensorSpec
from flowrt.graph.op_def import Effect
from flowrt.graph.passes.layouts.stages.assign_stages import backward_nodes, nodes_of_batch

PASSES = 3
"""A backward pass takes twice the time of its forward pass."""

COST_OF_BYTE = 2.0
"""A byte that is sent, and its gradient sent back, in units of `OpDef.cost`: 1e9 of each a second."""

ROUNDS = 50


def cut_stages(step: Subgraph, count: int) -> dict[str, int]:
    """The stage, of ``count``, of each operation that the forward pass of ``step`` computes of the batch, but
    of what is only written.

    Raises `InvalidArgumentError` if there are fewer operations with a cost than stages.
    """
    chosen = nodes_of_batch(step) - backward_nodes(step) - _of_writes(step)
    nodes = [node for node in step if node.name in chosen and _is_computed(node)]
    costs = np.array([_cost(step, node) * PASSES for node in nodes])
    ends = _cuts(np.concatenate([[0.0], np.cumsum(costs)]), _crossing(nodes) * COST_OF_BYTE, count)
    if np.count_nonzero(costs) < count or not ends:
        raise InvalidArgumentError(
            f"pipeline: expected operations for {count} stages; got {np.count_nonzero(costs)} of which the "
            "time is known, or fewer places where no list of tensors crosses from one stage to the next"
        )
    return {node.name: stage for stage, (a, b) in enumerate(_pairs(ends)) for node in nodes[a:b]}


def _pairs(ends: Sequence[int]) -> list[tuple[int, int]]:
    return [*zip([0, *ends[:-1]], ends, strict=True)]


def _cuts(total: np.ndarray, arriving: np.ndarray, count: int) -> list[int]:
    """The ends of ``count`` parts of which the largest is as small as possible. ``total`` are the costs of
    the first operations, ``arriving`` what a part that begins behind them has to receive.
    """
    most = arriving[np.isfinite(arriving)].max()
    low, high, best = 0.0, float(total[-1] + most), list[int]()
    for _ in range(ROUNDS):
        middle = (low + high) / 2 if best else high
        found = _within(middle, total, arriving, count)
        if found:
            best, high = found, middle
        else:
            low = middle
    return best


def _within(bound: float, total: np.ndarray, arriving: np.ndarray, count: int) -> list[int]:
    """The ends of parts of at most ``bound`` each; none if there are none."""
    size = len(total)
    least = np.full(size, np.inf)
    least[0] = 0.0
    starts: list[np.ndarray] = []
    for _ in range(count):
        reach = np.minimum.accumulate(np.concatenate([[np.inf], least[:-1]]))  # parts are not empty
        fits = reach <= bound - total
        starts.append(least)
        least = np.where(fits, arriving - total, np.inf)
    if not np.isfinite(least[-1]):
        return []
    ends = [size - 1]
    for least in reversed(starts[1:]):
        begins = np.flatnonzero(least[: ends[0]] <= bound - total[ends[0]])
        ends.insert(0, int(begins[np.argmin(arriving[begins])]))
    return ends


def _crossing(nodes: Sequence[Node]) -> np.ndarray:
    """The bytes of the tensors made by the first operations that later ones read, for each number of them;
    infinite if there is a list of tensors among them, which cannot be sent.
    """
    change, lists = np.zeros(len(nodes) + 1), np.zeros(len(nodes) + 1, int)
    made = {(node.name, i): (k, spec) for k, node in enumerate(nodes) for i, spec in enumerate(node.outputs)}
    last: dict[tuple[str, int], int] = {}
    for k, node in enumerate(nodes):
        last.update(dict.fromkeys((ref for ref in node.inputs if ref in made), k))
    for ref, reader in last.items():
        maker, spec = made[ref]
        changed, size = (
            (lists, 1) if spec.dtype is variant else (change, _size(spec) * spec.dtype.np.itemsize)
        )
        changed[maker + 1] += size
        changed[reader + 1] -= size
    return np.where(np.cumsum(lists) > 0, np.inf, np.cumsum(change))


def _of_writes(step: Subgraph) -> set[str]:
    """The nodes that are only written, as initial values are: they are at the stage of their variable."""
    consumers, found = step.consumers(), set[str]()
    for node in reversed(list(step)):
        readers = consumers[node.name]
        if node.op.effect is Effect.WRITE or (readers and found.issuperset(readers)):
            found.add(node.name)
    return found


def _is_computed(node: Node) -> bool:
    return bool(node.inputs) and node.op.effect in (Effect.PURE, Effect.RANDOM, Effect.NESTED)


def _cost(step: Subgraph, node: Node) -> float:
    if node.op.cost is not None:
        known = [TensorSpec(s.dtype, _known(s.shape)) for s in map(step.spec, node.inputs)]
        return node.op.cost(known, [TensorSpec(s.dtype, _known(s.shape)) for s in node.outputs]) or 0.0
    return float(sum(map(_size, node.outputs)))


def _size(spec: TensorSpec) -> int:
    return math.prod(_known(spec.shape))


def _known(shape: Sequence[int | None] | None) -> tuple[int, ...]:
    """``shape`` with 1 for what is unknown, as the batch: it is the same factor for all."""
    return tuple(1 if size is None else size for size in shape or ())
