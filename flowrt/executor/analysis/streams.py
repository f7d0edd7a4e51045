"""Stream assignment: the stream of each node on its device, and synchronization between streams.

List scheduling (R. L. Graham, "Bounds on multiprocessing timing anomalies", 1969), with the priorities of
HEFT (H. Topcuoglu et al., 2002): nodes in the order of their longest path to the end, each on the stream with
the earliest finish time; a tensor that changes streams costs `SWITCH_SECONDS`.

Rules of this file:

  1. All devices of a step keep one topological order of the whole step, `by_rank`'s, and each stream runs its
     nodes in it. So the first node that has not run can always run: if each device ordered its part
     separately, two of them could wait for each other's later sends.
  2. A node waits for another stream's node only through an event, and only if no earlier wait on its stream
     implies it. Each node has a vector clock: the guaranteed progress of every stream.
  3. A variable's write also waits for pending readers of the memory that it overwrites.
  4. Starts of native collectives, which other processes wait for, come first, with their dependencies. Waits
     for other processes come last, in order. Gradients are thus transferred while others are computed.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence
from typing import final

from flowrt.executor.analysis.cost import node_seconds
from flowrt.graph.effects import touches
from flowrt.graph.node import Node, Ref, Subgraph, parts_by_name
from flowrt.graph.op_def import Effect
from flowrt.graph.ops.collective.group_transfer import group_start_op, group_wait_op

SWITCH_SECONDS = 50e-6
"""A hand-over between two threads; between two streams of a GPU it takes about 5 us."""

TRAVEL_SECONDS = 1.0
"""A native collective in `by_rank`: more than any way that leads to none."""

MIN_GAIN = 0.1
"""The part of the time on one stream that more streams must save, estimated, to be used."""


@final
class StreamSchedule:
    """The nodes of a partition on ``count`` streams. ``waits[name]`` are nodes of other streams that the node
    waits for, by events. Nodes without a stream (constants, handles, feeds) are available from the start.
    """

    def __init__(
        self,
        order: Sequence[Node],
        streams: Mapping[str, int] = {},
        dependencies: Mapping[str, Sequence[str]] = {},
    ) -> None:
        self.order = order
        self.count = max(streams.values(), default=0) + 1
        self._streams = streams
        self.waits: dict[str, list[str]] = {}
        self._clocks: dict[str, list[int]] = {}
        self._places: dict[str, int] = {}
        """The node's place on its stream."""
        if self.count > 1:
            self._set_clocks(dependencies)

    def stream_of(self, name: str) -> int:
        return self._streams.get(name, 0)

    def happens_before(self, first: str, second: str) -> bool:
        """Whether ``first`` has ended for certain when ``second``, another node, begins."""
        if self.count == 1 or first not in self._places:
            return True
        return self._clocks[second][self._streams[first]] > self._places[first]

    def _set_clocks(self, dependencies: Mapping[str, Sequence[str]]) -> None:
        latest = [[0] * self.count for _ in range(self.count)]
        for node in self.order:
            name = node.name
            if name not in self._streams:
                continue
            clock = latest[self._streams[name]]
            for other in sorted(dependencies[name], key=lambda d: -self._places[d]):
                stream, place = self._streams[other], self._places[other]
                if clock[stream] <= place:
                    self.waits.setdefault(name, []).append(other)
                    clock[:] = map(max, clock, self._clocks[other])
                    clock[stream] = max(clock[stream], place + 1)
            self._clocks[name], self._places[name] = list(clock), clock[self._streams[name]]
            clock[self._streams[name]] += 1


def by_rank(subgraph: Subgraph) -> Subgraph:
    """``subgraph`` in the order in which streams should begin its nodes: among ready nodes, the one with the
    longest remaining path first, and by rule 4 the waits for other processes last.
    """
    dependencies = _dependencies(subgraph)
    consumers: dict[str, list[str]] = {name: [] for name in dependencies}
    for name, before in dependencies.items():
        for other in before:
            consumers[other].append(name)
    rank: dict[str, float] = {}
    for name in reversed(dependencies):
        behind = max([rank[c] for c in consumers[name]], default=0.0)
        node = subgraph.nodes[name]
        rank[name] = behind + (TRAVEL_SECONDS if node.op is group_start_op else node_seconds(subgraph, node))
    missing = {name: len(before) for name, before in dependencies.items()}
    position = {name: i for i, name in enumerate(dependencies)}
    waits = {name for name in rank if subgraph.nodes[name].op is group_wait_op}
    key = {name: (name in waits, 0.0 if name in waits else -rank[name], position[name]) for name in rank}
    ready = [(*key[name], name) for name, count in missing.items() if count == 0]
    heapq.heapify(ready)
    order = [node.name for node in subgraph if node.name not in dependencies]
    while ready:
        name = heapq.heappop(ready)[-1]
        order.append(name)
        for consumer in consumers[name]:
            missing[consumer] -= 1
            if missing[consumer] == 0:
                heapq.heappush(ready, (*key[consumer], consumer))
    return subgraph.with_nodes(subgraph.nodes[name] for name in order)


def one_stream(subgraph: Subgraph) -> StreamSchedule:
    """All of ``subgraph`` on one stream, in its order."""
    return StreamSchedule(list(subgraph))


def schedule_streams(subgraph: Subgraph, count: int) -> StreamSchedule:
    """``subgraph`` on up to ``count`` streams, each in its order; on one where more would not pay."""
    if count == 1 or len(subgraph) < 2:
        return one_stream(subgraph)
    dependencies = _dependencies(subgraph)
    seconds = {name: node_seconds(subgraph, subgraph.nodes[name]) for name in dependencies}
    order = [subgraph.nodes[name] for name in dependencies]
    _add_write_after_read(order, dependencies)
    streams, makespan = _earliest_finish(order, seconds, dependencies, count)
    if makespan > (1 - MIN_GAIN) * sum(seconds.values()):
        return one_stream(subgraph)
    return StreamSchedule(list(subgraph), streams, dependencies)


def _dependencies(subgraph: Subgraph) -> dict[str, list[str]]:
    """Map from each node that executes something to its predecessors, in the order of ``subgraph``."""
    working = {node.name for node in subgraph if not _is_there(node)}
    parts = parts_by_name(subgraph)
    return {
        node.name: [
            part
            for name in dict.fromkeys(node.predecessors)
            for part in parts.get(name, (name,))
            if part in working
        ]
        for node in subgraph
        if node.name in working
    }


def _is_there(node: Node) -> bool:
    """Whether the node executes nothing: it is available before the step."""
    if node.op.name == "Const":
        return not node.controls  # with them it is the signal of a control edge between devices
    return node.op.name == "_Feed" or node.op.effect is Effect.HANDLE


def _add_write_after_read(order: Sequence[Node], dependencies: dict[str, list[str]]) -> None:
    """Rule 3: a read of a variable is a view of its memory, and so are the views of that."""
    handle_of: dict[Ref, Ref] = {}
    users: dict[Ref, list[str]] = {}
    for node in order:
        for ref in node.inputs:
            if ref in handle_of:
                users.setdefault(handle_of[ref], []).append(node.name)
        if node.op.alias and node.inputs:
            source = node.inputs[node.op.aliased]
            source = handle_of.get(source, source)
            handle_of.update({(node.name, index): source for index in range(len(node.outputs))})
        written = [touch.handle for touch in touches(node) if touch.writes]
        if written:
            readers = [user for ref in written for user in users.get(handle_of.get(ref, ref), ())]
            before = dependencies[node.name]
            dependencies[node.name] = list(dict.fromkeys([*before, *(r for r in readers if r != node.name)]))


def _earliest_finish(
    order: Sequence[Node], seconds: Mapping[str, float], dependencies: Mapping[str, Sequence[str]], count: int
) -> tuple[dict[str, int], float]:
    """The stream of each node, and when the last one ends."""
    streams: dict[str, int] = {}
    ends: dict[str, float] = {}
    free = [0.0] * count
    for node in order:
        before = dependencies[node.name]
        starts = [
            max(free[s], *[ends[d] + (0.0 if streams[d] == s else SWITCH_SECONDS) for d in before])
            if before
            else free[s]
            for s in range(count)
        ]
        stream = min(range(count), key=lambda s: starts[s])
        streams[node.name] = stream
        ends[node.name] = free[stream] = starts[stream] + seconds[node.name]
    return _renumber(streams), max(ends.values(), default=0.0)


def _renumber(streams: Mapping[str, int]) -> dict[str, int]:
    """Streams in the order in which they first occur, without gaps."""
    number = {stream: i for i, stream in enumerate(dict.fromkeys(streams.values()))}
    return {name: number[stream] for name, stream in streams.items()}
