"""Stages of a pipeline by costs, for scripts that name none.

The operations of the forward pass, in the order in which the script made them, are cut into consecutive
parts, so that the longest stage takes as little time as possible: a stage computes its part, forward and
backward, receives what crosses the cut in front of it, and sends what crosses the one behind. The least bound
for which there are cuts is found by bisection; whether there are any is a sweep over the operations for each
stage. The problem is that of PipeDream (Narayanan et al. 2019) with equal devices.

If these stages do not fit in the memory of the devices, the best ones that fit are found by dynamic
programming over all ends of each stage.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, TypeAlias, final

import numpy as np

from flowrt.dtypes import resource, variant
from flowrt.errors import InvalidArgumentError, ResourceExhaustedError
from flowrt.graph.node import Node, Subgraph, TensorSpec
from flowrt.graph.op_def import Effect
from flowrt.graph.passes.layouts.stages.assign_stages import backward_nodes, nodes_of_batch

PASSES = 3
"""A backward pass takes twice the time of its forward pass."""

NS_PER_OPERATION, NS_PER_ELEMENT = 0.01, 0.2
"""Time of a floating-point operation of a product or a convolution, and of an element of any other operation,
of which loops compute several at once.
"""

NS_PER_BYTE = 2.0
"""Time that a tensor takes a stage for each byte: to be sent, or received, and so its gradient. 128 KiB take
140 us to be sent, and as long to be received.
"""

ROUNDS = 50

SLACK = 0.02
"""Part of its time by which the longest stage may be longer if less is sent: estimates are no better."""


class Room(NamedTuple):
    """The memory of the devices of a pipeline, and what a stage keeps there."""

    limit: int
    """Bytes of a device."""
    passes: tuple[int, ...]
    """The most micro-batches of which each stage holds activations."""
    chunks: int = 1
    """Stages of a device, which have equal parts of its memory."""
    parts: int = 1
    """Parts of the batch that a pass of a device is one of."""
    again: tuple[int, ...] = ()
    """The most micro-batches of which each stage holds all activations at a time, if the backward pass
    computes a stage again and only what arrives at it is kept.
    """
    variables: tuple[tuple[str, int], ...] = ()
    """The bytes that a device keeps for a variable, with its gradient and the states of its optimizer; of
    others, those of their values.
    """


def cut_stages(step: Subgraph, count: int, room: Room | None = None) -> dict[str, int]:
    """The stage, of ``count``, of each operation that the forward pass of ``step`` computes of the batch, but
    of what is only written. With ``room`` each stage fits in it: batches of an unknown size have one row.

    Raises `InvalidArgumentError` if there are fewer operations with a cost than stages, and
    `ResourceExhaustedError` if no stages fit.
    """
    return Uncut(step).cut(count, room)


@final
class Uncut:
    """The operations of the forward pass of ``step``, which can be cut into stages: see `cut_stages`."""

    def __init__(self, step: Subgraph) -> None:
        chosen = nodes_of_batch(step) - backward_nodes(step) - _of_writes(step)
        self._step = step
        self._nodes = [node for node in step if node.name in chosen and _is_computed(node)]
        self._costs = np.array([_nanoseconds(step, node) * PASSES for node in self._nodes])
        self._total = np.concatenate([[0.0], np.cumsum(self._costs)])
        self._crossing = _crossing(self._nodes)

    def cut(self, count: int, room: Room | None = None) -> dict[str, int]:
        """The stage of each operation, of ``count``."""
        known, nodes = np.count_nonzero(self._costs), self._nodes
        ends = _cuts(self._total, self._crossing * NS_PER_BYTE, count)
        if known < count or not ends:
            raise InvalidArgumentError(
                f"pipeline: expected operations for {count} stages; got {known} of which the time is known, "
                "or fewer places where no list of tensors crosses from one stage to the next"
            )
        if room is not None:
            kept = _Kept.of(self._step, nodes, dict(room.variables))
            ends = _fitting(ends, self._total, self._crossing, room, kept)
        return {node.name: stage for stage, (a, b) in enumerate(_pairs(ends)) for node in nodes[a:b]}


def _pairs(ends: Sequence[int]) -> list[tuple[int, int]]:
    return [*zip([0, *ends[:-1]], ends, strict=True)]


def _cuts(total: np.ndarray, crossing: np.ndarray, count: int) -> list[int]:
    """The ends of ``count`` parts of which the largest is as small as possible, or up to `SLACK` larger where
    that makes crossings smaller. ``total`` are the costs of the first operations, ``crossing`` what is added
    to the part that ends behind them, and to the next one.
    """
    most = crossing[np.isfinite(crossing)].max()
    low, high, best = 0.0, float(total[-1] + 2 * most), list[int]()
    for _ in range(ROUNDS):
        middle = (low + high) / 2 if best else high
        found = _within(middle, total, crossing, count)
        if found:
            best, high = found, middle
        else:
            low = middle
    return _within(high * (1 + SLACK), total, crossing, count) if best else best


def _within(bound: float, total: np.ndarray, crossing: np.ndarray, count: int) -> list[int]:
    """The ends of parts of at most ``bound`` each; none if there are none."""
    size = len(total)
    allowed = bound - total - crossing
    least = np.full(size, np.inf)
    least[0] = 0.0
    starts: list[np.ndarray] = []
    for _ in range(count):
        reach = np.minimum.accumulate(np.concatenate([[np.inf], least[:-1]]))  # parts are not empty
        starts.append(least)
        least = np.where(reach <= allowed, crossing - total, np.inf)
    if not np.isfinite(least[-1]):
        return []
    ends = [size - 1]
    for least in reversed(starts[1:]):
        begins = np.flatnonzero(least[: ends[0]] <= allowed[ends[0]])
        ends.insert(0, int(begins[np.argmin(crossing[begins])]))
    return ends


Sizes: TypeAlias = Callable[[int, int], np.ndarray]
"""A number for each begin of the part of a stage, the first argument, that ends at the second one."""


def _best_parts(longest: Sizes, is_possible: Sizes, size: int, count: int) -> list[int]:
    """The ends of ``count`` parts of ``size - 1`` operations, all possible, of which the largest is as small
    as possible; none if there are none.
    """
    least = np.full(size, np.inf)
    least[0] = 0.0
    begins = np.zeros((count, size), int)
    for stage in range(count):
        found = np.full(size, np.inf)
        for end in range(1, size):
            largest = np.maximum(least[:end], longest(stage, end))
            largest[~is_possible(stage, end)] = np.inf
            begins[stage, end] = begin = int(np.argmin(largest))
            found[end] = largest[begin]
        least = found
    if not np.isfinite(least[-1]):
        return []
    ends = [size - 1]
    for stage in range(count - 1, 0, -1):
        ends.insert(0, int(begins[stage, ends[0]]))
    return ends


class _Kept(NamedTuple):
    """Bytes that the first operations keep: of variables, which are where they are read first, and of tensors
    that the backward pass reads.
    """

    variables: np.ndarray
    activations: np.ndarray

    @staticmethod
    def of(step: Subgraph, nodes: Sequence[Node], known: Mapping[str, int]) -> _Kept:
        """The bytes that ``nodes`` keep, the operations of ``step`` that are cut into stages."""
        place = {node.name: k for k, node in enumerate(nodes)}
        backward, consumers = backward_nodes(step), step.consumers()
        variables, activations = np.zeros(len(nodes) + 1), np.zeros(len(nodes) + 1)
        first = dict(place)
        """The place of the first operation that reads a node."""
        for node in reversed(list(step)):
            reads = [first[name] for name in consumers[node.name] if name in first]
            if node.name not in place and node.name not in backward and reads:
                first[node.name] = min(reads)
                if node.op.effect is Effect.HANDLE and node.outputs[0].dtype is resource:
                    variables[min(reads) + 1] += known.get(node.name, _nbytes_of_variable(node))
        for name, index in {ref for node in step if node.name in backward for ref in node.inputs}:
            spec = step.spec((name, index))
            if name in place and spec.dtype not in (resource, variant):
                activations[place[name] + 1] += _size(spec) * spec.dtype.np.itemsize
        return _Kept(np.cumsum(variables), np.cumsum(activations))

    def nbytes(self, stage: int, end: int, crossing: np.ndarray, room: Room) -> np.ndarray:
        """The bytes of ``stage`` that ends at ``end``, for each begin."""
        variables = self.variables[end] - self.variables[:end]
        one = (self.activations[end] - self.activations[:end]) / room.parts
        passes = room.passes[stage]
        if room.again:
            return np.asarray(variables + room.again[stage] * one + passes * crossing[:end] / room.parts)
        return np.asarray(variables + passes * one)


def _fitting(ends: list[int], total: np.ndarray, crossing: np.ndarray, room: Room, kept: _Kept) -> list[int]:
    """``ends`` if its stages fit in ``room``, and otherwise the best ends that do.

    Raises `ResourceExhaustedError` if there are none.
    """
    count, size, limit = len(ends), len(total), room.limit / room.chunks

    def nbytes(stage: int, end: int) -> np.ndarray:
        return kept.nbytes(stage, end, crossing, room)

    found = [nbytes(stage, b)[a] for stage, (a, b) in enumerate(_pairs(ends))]
    if max(found) <= limit:
        return ends

    def seconds(stage: int, end: int) -> np.ndarray:
        return np.asarray(total[end] - total[:end] + (crossing[:end] + crossing[end]) * NS_PER_BYTE)

    best = _best_parts(seconds, lambda stage, end: nbytes(stage, end) <= limit, size, count)
    if best:
        return best
    least = _best_parts(nbytes, lambda stage, end: np.isfinite(crossing[:end]), size, count)
    needed = [nbytes(stage, b)[a] for stage, (a, b) in enumerate(_pairs(least))]
    stage = int(np.argmax(needed))
    begin, end = _pairs(least)[stage]
    variables = int(kept.variables[end] - kept.variables[begin])
    each = f", with {room.chunks} stages on a device" if room.chunks > 1 else ""
    raise ResourceExhaustedError(
        f"pipeline: expected stages of at most {int(limit):,} bytes each{each}; however it is cut, one needs "
        f"{int(needed[stage]):,}: stage {stage} has {variables:,} of variables, gradients and states, and "
        f"{int(needed[stage]) - variables:,} of activations, with {room.passes[stage]} passes in flight"
    )


def _nbytes_of_variable(handle: Node) -> int:
    if "shape" not in handle.attrs:
        return 0  # an iterator or a queue
    return math.prod(_known(handle.attrs["shape"])) * int(handle.attrs["dtype"].size)


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


def _nanoseconds(step: Subgraph, node: Node) -> float:
    if node.op.cost is None:
        return NS_PER_ELEMENT * sum(map(_size, node.outputs))
    known = [TensorSpec(s.dtype, _known(s.shape)) for s in map(step.spec, node.inputs)]
    results = [TensorSpec(s.dtype, _known(s.shape)) for s in node.outputs]
    return NS_PER_OPERATION * (node.op.cost(known, results) or 0.0)


def _size(spec: TensorSpec) -> int:
    return math.prod(_known(spec.shape))


def _known(shape: Sequence[int | None] | None) -> tuple[int, ...]:
    """``shape`` with 1 for what is unknown, as the batch: it is the same factor for all."""
    return tuple(1 if size is None else size for size in shape or ())
