"""Redistributions: the collectives that bring a tensor from one layout to another.

A `Step` changes the placement on some axes by one collective in each group of these axes. With n coordinates
in a group, and l the bytes of the tensor that the group has together:

    | from    | to      | collective    | bytes received by a group |
    | B       | S(i)    | a slice       | 0                         |
    | S(i)    | B       | AllGather     | (n - 1) l                 |
    | S(i)    | S(j)    | AllToAll      | l - what stays            |
    | P       | S(i)    | ReduceScatter | (n - 1) l                 |
    | P       | B       | AllReduce     | 2 (n - 1) l               |

A tensor that is needed at another position of the axis of stages is sent there once, in the layout of least
cost: every coordinate sends its part to the one with the same indices. So what is needed whole by all is
sent in parts and gathered there, the local all-gather of Zheng et al. 2022 (Alpa).

On an axis of time all are on one device: additions, concatenations and slices, without messages.

`plan` finds the cheapest sequence by a shortest path (Dijkstra 1959) over layouts: the states are the layouts
with cuts from major to minor, the edges all possible steps, their lengths the seconds of the linear cost
model (`flowrt.graph.collectives.cost`). So the order of the steps, a reduction before a gather, turns added
up before they travel, and two axes in one collective need no rules of their own. A mesh of k axes and a
tensor of r dimensions have (r + 2)^k states at most.
"""

from __future__ import annotations

import functools
import heapq
import itertools
import math
from collections.abc import Collection, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from flowrt.errors import InternalError
from flowrt.graph.collectives.cost import DEFAULT_LINKS, Link
from flowrt.graph.layouts.layout import REPLICATED, Layout, Partial, Placement, Replicate, Shard
from flowrt.graph.layouts.mesh import Mesh

LOCAL_S_PER_BYTE = 1e-13
"""Cost of a step without messages: next to nothing, since its bytes are read by the operation after it."""


class Step(NamedTuple):
    """A change from ``source`` to ``target`` on the axes with these numbers, all of space or all of time; or,
    without axes, the way to another position.
    """

    axes: tuple[int, ...]
    source: Placement
    target: Placement

    @property
    def collective(self) -> str:
        """The name of the collective; ``Slice`` if there are no messages."""
        return "Send" if not self.axes else _COLLECTIVES[type(self.source), type(self.target)]

    def apply(self, layout: Layout) -> Layout:
        """``layout`` after the step."""
        placements = list(layout.placements)
        for axis in self.axes:
            placements[axis] = self.target
        return Layout(layout.mesh, placements)


_COLLECTIVES: dict[tuple[type[Placement], type[Placement]], str] = {
    (Replicate, Shard): "Slice",
    (Shard, Replicate): "AllGather",
    (Shard, Shard): "AllToAll",
    (Partial, Shard): "ReduceScatter",
    (Partial, Replicate): "AllReduce",
}


SEND = Step((), REPLICATED, REPLICATED)
"""The way from one position to another."""


@functools.lru_cache(4096)
def plan(
    source: Layout,
    target: Layout,
    shape: tuple[int, ...],
    itemsize: int,
    link: Link = DEFAULT_LINKS.inside,
    is_sent: bool = False,
) -> tuple[Step, ...]:
    """The cheapest steps from ``source`` to ``target`` for a tensor of ``shape``, of ``itemsize`` bytes per
    element, where a message takes the time of ``link``. ``is_sent``: the target is at another position.
    Equal arguments give equal steps in all processes.

    >>> mesh = Mesh([("dp", 2), ("tp", 2)])
    >>> source = Layout(mesh, [Shard(0), Partial()])
    >>> [step.collective for step in plan(source, Layout.replicated(mesh), (8, 8), 4)]
    ['AllReduce', 'AllGather']

    Raises `InternalError` if ``target`` is `Partial` on an axis where ``source`` is not.
    """
    as_they_are = frozenset(
        i
        for i, axis in enumerate(source.mesh.axes)
        if axis.is_time and source.placements[i] == target.placements[i]
    )
    for fixed in dict.fromkeys((as_they_are, frozenset[int]())):
        found = _shortest(source, target, shape, itemsize, link, is_sent, fixed)
        if found is not None:
            return found
    raise InternalError(f"redistribution: expected a target that {source} can become; got {target}")


def _shortest(
    source: Layout,
    target: Layout,
    shape: tuple[int, ...],
    itemsize: int,
    link: Link,
    is_sent: bool,
    fixed: frozenset[int],
) -> tuple[Step, ...] | None:
    """The cheapest steps that leave the placements on the axes ``fixed`` as they are, None if there are none.
    Turns that are needed apart are not joined to save messages: they are not there at the same time.
    """
    count = itertools.count()  # equal costs: the layout that was found first
    queue: list[tuple[float, int, Layout, bool, tuple[Step, ...]]] = [(0.0, next(count), source, False, ())]
    settled: set[tuple[Layout, bool]] = set()
    while queue:
        cost, _, layout, is_there, steps = heapq.heappop(queue)
        if layout is target and is_there is is_sent:
            return steps
        if (layout, is_there) in settled:
            continue
        settled.add((layout, is_there))
        possible = [step for step in _possible(layout, target, shape) if fixed.isdisjoint(step.axes)]
        for step in [*possible, *([SEND] if is_sent and not is_there and _is_whole_sum(layout) else [])]:
            after, is_after = step.apply(layout), is_there or step is SEND
            if (after, is_after) not in settled:
                longer = cost + seconds(step, layout, shape, itemsize, link)
                heapq.heappush(queue, (longer, next(count), after, is_after, (*steps, step)))
    return None


def _is_whole_sum(layout: Layout) -> bool:
    """Whether nothing is to be added up: sums are made before they are sent."""
    return not any(isinstance(placement, Partial) for placement in layout.placements)


def _possible(layout: Layout, target: Layout, shape: Sequence[int]) -> Iterator[Step]:
    """All steps from ``layout`` on the way to ``target``. Several axes at once need a dimension that they
    divide, with the axes that cut it before: the parts of one cut are then those of the cuts one after the
    other.
    """
    rank = len(shape)
    placements, axes = layout.placements, layout.mesh.axes
    last = [max(layout.axes_of(dim), default=-1) for dim in range(rank)]
    cuts = [math.prod(axes[axis].size for axis in layout.axes_of(dim)) for dim in range(rank)]
    for size in range(1, len(axes) + 1):
        for chosen in itertools.combinations(range(len(axes)), size):
            source = placements[chosen[0]]
            if any(placements[i] != source or axes[i].is_time != axes[chosen[0]].is_time for i in chosen):
                continue
            if isinstance(source, Shard) and chosen != layout.axes_of(source.dim)[-size:]:
                continue  # only the innermost cuts can be undone
            count = math.prod(axes[i].size for i in chosen)
            if (
                isinstance(source, Shard)
                and size > 1
                and shape[source.dim] % (cuts[source.dim] * source.unit)
            ):
                continue
            if not isinstance(source, Replicate):
                yield Step(chosen, source, REPLICATED)
            elif size > 1:
                continue  # slices take no messages: one axis at a time is as good
            wanted = [p for p in (target.placements[chosen[0]],) if isinstance(p, Shard) and p.unit > 1]
            for made in (*map(Shard, range(rank)), *wanted):
                is_even = size == 1 or shape[made.dim] % (cuts[made.dim] * count * made.unit) == 0
                if last[made.dim] < chosen[0] and source != made and is_even:
                    yield Step(chosen, source, made)


@functools.lru_cache(65_536)
def seconds(step: Step, before: Layout, shape: tuple[int, ...], itemsize: int, link: Link) -> float:
    """Duration of ``step`` for a tensor in the layout ``before``, by the linear cost model: of its messages,
    and one latency to begin. Without messages it is small, and only decides between such ways.
    """
    mesh, first = before.mesh, before.mesh.coordinates[0]
    at_a_position = mesh.num_devices // len(mesh.positions)
    apart = _axes_apart(before).difference(step.axes)
    turns = math.prod(mesh.axes[axis].size for axis in apart if mesh.axes[axis].is_time)
    n = math.prod(mesh.axes[axis].size for axis in step.axes)
    if _is_local(step, mesh):
        parts = step.apply(before) if step.collective == "Slice" else before  # a sum of turns reads all
        nbytes = n * math.prod(parts.local_shape(shape, first)) * itemsize
        return turns * nbytes * LOCAL_S_PER_BYTE
    messages = 1 + (n - 1) * (2 if step.collective == "AllReduce" else 1)
    received = received_bytes(step, before, shape, itemsize) / at_a_position
    return turns * messages * link.latency_s + received * link.seconds_per_byte


def received_bytes(step: Step, before: Layout, shape: Sequence[int], itemsize: int) -> int:
    """Bytes that all devices together receive in ``step``, see the table above."""
    if _is_local(step, before.mesh):
        return 0
    if step is SEND:
        return _elements(before, shape, _axes_apart(before)) * itemsize
    n, together = 1, before
    for axis in step.axes:
        n, together = n * before.mesh.axes[axis].size, together.with_placement(axis, REPLICATED)
    whole = _elements(together, shape, _axes_apart(before).difference(step.axes))
    if step.collective == "AllToAll":
        after = step.apply(before)
        return (whole - _overlap(before, after, shape, _axes_apart(before))) * itemsize
    return (2 if step.collective == "AllReduce" else 1) * (n - 1) * whole * itemsize


def _elements(layout: Layout, shape: Sequence[int], axes: Collection[int]) -> int:
    """The elements of the parts on all coordinates that differ in ``axes``, among which are those that cut a
    dimension: of that, all parts together are the whole.
    """
    copies = [i for i in axes if not isinstance(layout.placements[i], Shard)]
    return math.prod(shape) * math.prod(layout.mesh.axes[i].size for i in copies)


def _is_local(step: Step, mesh: Mesh) -> bool:
    """Whether no messages are sent: it is a slice, or all of a group is on one device."""
    return step.collective == "Slice" or (step is not SEND and mesh.axes[step.axes[0]].is_time)


def _axes_apart(layout: Layout) -> frozenset[int]:
    """The axes on which coordinates do a step each: turns that have the same do it once."""
    return frozenset(
        i
        for i, axis in enumerate(layout.mesh.axes)
        if not (axis.is_time and layout.placements[i] == REPLICATED)
    )


def _overlap(before: Layout, after: Layout, shape: Sequence[int], axes: Collection[int]) -> int:
    """The elements that are in the parts of both layouts, on all coordinates that differ in ``axes``."""
    sizes = np.ones([axis.size if i in axes else 1 for i, axis in enumerate(before.mesh.axes)], np.int64)
    for dim in range(len(shape)):
        (a, size_a), (b, size_b) = (_cut(layout, shape, dim, axes) for layout in (before, after))
        ends = np.minimum(a + size_a, b + size_b)
        sizes = sizes * np.maximum(ends - np.maximum(a, b), 0)
    return int(sizes.sum())


def _cut(layout: Layout, shape: Sequence[int], dim: int, axes: Collection[int]) -> tuple[Any, Any]:
    """The starts and the sizes of the parts of dimension ``dim``, as `Layout.slices` gives them, in arrays
    that broadcast to the mesh: at the first index of an axis that is not one of ``axes``.
    """
    start, size = np.int64(0), np.int64(shape[dim])
    for i in layout.axes_of(dim):
        placement, parts = layout.placements[i], layout.mesh.axes[i].size
        assert isinstance(placement, Shard)
        index = np.arange(parts if i in axes else 1, dtype=np.int64)
        index = index.reshape([-1 if k == i else 1 for k in range(len(layout.mesh.axes))])
        count = -(-size // placement.unit)
        least, more = divmod(count, parts)  # as `flowrt.graph.collectives.schedule.offset` has it
        first, end = (
            np.minimum((k * least + np.minimum(k, more)) * placement.unit, size) for k in (index, index + 1)
        )
        start, size = start + first, end - first
    return start, size
