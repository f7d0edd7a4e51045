"""`Model`: the facts of a training step by which strategies are compared before any is lowered."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple, TypeAlias

from flowrt.dtypes import resource
from flowrt.graph.node import Node, Ref, Subgraph
from flowrt.graph.op_def import Effect
from flowrt.graph.passes.layouts.stages.assign_stages import (
    assign_stages,
    awaited_before,
    backward_nodes,
    nodes_of_batch,
)
from flowrt.graph.passes.layouts.stages.cut_stages import Room
from flowrt.plan.step.costs import nbytes_of
from flowrt.plan.step.recorded import Recorded


class Took(NamedTuple):
    """Seconds of ``work``, which is divided among devices and micro-batches, and of ``calls``, which each
    has.
    """

    work: float = 0.0
    calls: float = 0.0

    def plus(self, other: Took) -> Took:
        return Took(self.work + other.work, self.calls + other.calls)

    def seconds(self, share: float) -> float:
        """Seconds of a ``share`` of the work."""
        return self.work * share + self.calls


Seconds: TypeAlias = Callable[[Subgraph, Node], Took]
"""The time of a node of a step, on one device."""


class Stage(NamedTuple):
    """A stage of a pipeline, with the whole batch: seconds, and bytes. No earlier stage waits for the
    derivatives of ``weights``, a part of the ``backward`` pass. ``update`` is of the optimizers.
    """

    forward: Took
    backward: Took
    kept: int
    """Bytes that the forward pass makes for the backward pass."""
    arriving: int
    """Bytes that come from earlier stages."""
    variables: int
    states: int
    """Bytes of the states of optimizers."""
    weights: Took = Took()
    update: Took = Took()


class Model(NamedTuple):
    """A step in stages. ``largest`` are the bytes of the largest variable, ``dense`` those of all variables
    with gradients of all their elements.
    """

    stages: tuple[Stage, ...]
    largest: int
    dense: int = 0

    @property
    def variables(self) -> int:
        return sum(stage.variables for stage in self.stages)


def model_of(recorded: Recorded, stages: int, seconds: Seconds, room: Room | None = None) -> Model:
    """The model of ``recorded``, cut into ``stages`` that fit in ``room``. Raises as `cut_stages`."""
    step = recorded.cut(stages, room)
    numbers = assign_stages(step) if stages > 1 else dict.fromkeys(step.nodes, 0)
    backward, of_batch = backward_nodes(step), nodes_of_batch(step)
    passed = {node.name for node in step if node.inputs and node.op.effect is not Effect.WRITE}
    awaited = awaited_before(step, backward & passed, numbers)
    kinds = ("forward", "backward", "weights", "update")
    times: dict[str, list[Took]] = {kind: [Took()] * stages for kind in kinds}
    kept, arriving, variables, states = ([0] * stages for _ in range(4))

    def add(kind: str, node: Node, took: Took) -> None:
        times[kind][numbers[node.name]] = times[kind][numbers[node.name]].plus(took)

    for node in step:
        took = seconds(step, node)
        if node.op.effect is Effect.WRITE:
            add("update", node, took)
        elif node.name in backward:
            add("backward", node, took)
            if node.name not in awaited:
                add("weights", node, took)
        else:
            add("forward", node, took)
    for ref, (is_kept, later) in _crossings(step, backward, numbers).items():
        size = nbytes_of(step.spec(ref)) if ref[0] in of_batch else 0
        kept[numbers[ref[0]]] += size * is_kept
        for number in later:
            arriving[number] += size
    sizes = {name: _variable_nbytes(step.nodes[name]) for name in (*recorded.variables, *recorded.slots)}
    for name, size in sizes.items():
        (states if name in recorded.slots else variables)[numbers[name]] += size
    found = [
        Stage(
            times["forward"][i], times["backward"][i], kept[i], arriving[i], variables[i], states[i],
            times["weights"][i], times["update"][i],
        )
        for i in range(stages)
    ]  # fmt: skip
    largest = max((sizes[name] for name in recorded.variables), default=0)
    return Model(tuple(found), largest, sum(sizes[name] for name in recorded.dense))


def _crossings(
    step: Subgraph, backward: set[str], numbers: dict[str, int]
) -> dict[Ref, tuple[bool, set[int]]]:
    """The tensors of the forward pass: whether the backward pass reads each, and later stages that do."""
    found: dict[Ref, tuple[bool, set[int]]] = {}
    for node in step:
        for ref in node.inputs:
            if ref[0] not in backward and step.spec(ref).dtype is not resource:
                is_kept, later = found.get(ref, (False, set[int]()))
                is_backward = node.name in backward
                others = set() if is_backward else {numbers[node.name]} - {numbers[ref[0]]}
                found[ref] = is_kept or is_backward, later | others
    return found


def _variable_nbytes(handle: Node) -> int:
    shape, dtype = handle.attrs["shape"], handle.attrs["dtype"]
    return math.prod(size or 1 for size in shape or ()) * int(dtype.size)
