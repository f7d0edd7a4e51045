"""Recording what a step does, and its form as ``StepStats`` and ``RunMetadata``.

    Program.run_traced --(node, start, end)--> StepRecorder --fill--> StepStats --> flowrt.profiler

A device is one ``DeviceStepStats``, a stream of it a ``thread_id``, what a node did one ``NodeExecStats``.
Its times are ``all_start`` (it began), ``op_end`` (it was done) and ``all_end`` (what it made was handed on):
a receive waits from the first to the second, and is copied to a device that works by itself until the third.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, MutableSequence, Sequence
from typing import Any, NamedTuple, TypeAlias, final

from flowrt.device.device import Device
from flowrt.graph.graph_def import subgraph_to_graph_def
from flowrt.graph.node import Node, Subgraph, TensorSpec
from flowrt.graph.ops.transfer import recv_op, send_op
from flowrt.graph.shapes import num_elements

MAX_NAMED_MEMBERS = 6
"""Operations of a fused group that a label names: a group may have hundreds."""


Record: TypeAlias = Callable[[Node, int, int], object]
"""``record(node, start, end)``, in nanoseconds since the epoch."""


class Slice(NamedTuple):
    """An instruction of ``node``; times are nanoseconds since the epoch. ``pool_bytes``: what was in use of
    the device's memory when it was done, if that was looked at.
    """

    node: Node
    start: int
    end: int
    pool_bytes: int | None = None


class _Track(NamedTuple):
    """Where slices lie. ``is_remote``: on the host's way to a device that works by itself."""

    device: str
    stream: int
    is_remote: bool


@final
class StepRecorder:
    """Collects the slices of each stream of each device.

    ``max_slices``: of a stream, the last so many (None: all). ``is_thorough``: wait for devices that work by
    themselves, so that what they do at once is done in turn; and look at each device's pool behind each
    node, which takes about 3 us and lies in no slice.
    """

    def __init__(self, max_slices: int | None = None, is_thorough: bool = True) -> None:
        self._max_slices, self.is_thorough = max_slices, is_thorough
        self._slices: dict[_Track, MutableSequence[Slice]] = {}
        self.recorded: list[bytes] = []
        """``StepStats`` of other tasks."""

    def on(self, device: Device, stream: int = 0) -> Record:
        """The function that records for ``stream`` of ``device``."""
        track = _Track(device.name, stream, device.is_remote)
        slices = self._slices.setdefault(track, deque(maxlen=self._max_slices))
        if not self.is_thorough:
            return lambda node, start, end: slices.append(Slice(node, start, end))
        stats = device.pool.stats
        return lambda node, start, end: slices.append(Slice(node, start, end, stats().bytes_in_use))

    @property
    def num_slices(self) -> int:
        return sum(map(len, self._slices.values()))

    def fill(self, step_stats: Any, shift_ns: int = 0) -> None:
        """Write what was recorded into a ``StepStats`` message, ``shift_ns`` later: by how much the clock
        of who reads it is ahead.
        """
        for stats in self.recorded:
            step_stats.MergeFromString(stats)
        for (device, stream, is_remote), slices in list(self._slices.items()):
            if not slices:
                continue
            described = device_stats(step_stats, device)
            launches = ", launches" if is_remote and not self.is_thorough else ""
            described.thread_names[stream] = f"stream {stream}{launches}"
            done = [(each.end, each) for each in list(slices)]
            for op_end, each in _joined(done) if is_remote else done:
                entry = described.node_stats.add(node_name=each.node.name, timeline_label=label(each.node))
                entry.thread_id = stream
                start, op_end, end = (time + shift_ns for time in (each.start, op_end, each.end))
                set_times(entry, start, start, op_end, end)
                _describe_results(entry, each, device)


def device_stats(step_stats: Any, device: str) -> Any:
    """The ``DeviceStepStats`` of ``device``, made if need be."""
    for found in step_stats.dev_stats:
        if found.device == device:
            return found
    return step_stats.dev_stats.add(device=device)


def set_times(entry: Any, scheduled: int, start: int, op_end: int, end: int) -> None:
    """Set the times of a ``NodeExecStats``, nanoseconds since the epoch, in both units that it has."""
    entry.scheduled_nanos, entry.scheduled_micros = scheduled, scheduled // 1000
    entry.all_start_nanos, entry.all_start_micros = start, start // 1000
    entry.op_end_rel_nanos, entry.all_end_rel_nanos = op_end - start, end - start
    entry.op_end_rel_micros = max(1, (op_end - start) // 1000)  # viewers drop what took no time
    entry.all_end_rel_micros = max(1, (end - start) // 1000)


def describe_step(run_metadata: Any, recorder: StepRecorder | None, partitions: Sequence[Subgraph]) -> None:
    """Make ``run_metadata``, a ``RunMetadata`` message, say what was recorded and what the ``partitions``
    are.
    """
    run_metadata.Clear()
    if recorder is not None:
        recorder.fill(run_metadata.step_stats)
    for subgraph in partitions:
        run_metadata.partition_graphs.add().CopyFrom(subgraph_to_graph_def(subgraph))


def label(node: Node) -> str:
    """``name = Op(inputs)``, as TensorFlow's timelines have it; of a transfer the edge and its other end."""
    if node.op is send_op or node.op is recv_op:
        end = "recv_device" if node.op is send_op else "send_device"
        operands = f"{node.attrs['tensor_name']} @{node.attrs[end]}"
    else:
        operands = ", ".join(name for name, _ in node.inputs)
    return f"{node.name} = {node.op.name}{_members(node)}({operands})"


def _members(node: Node) -> str:
    """What a fused group computes: ``[BiasAdd+Relu]``."""
    if "group" not in node.attrs:
        return ""
    names = [member.op.name for member in node.attrs["group"].members]
    more = len(names) - MAX_NAMED_MEMBERS
    shown = "+".join(names[:MAX_NAMED_MEMBERS])
    return f"[{shown}+{more} more]" if more > 0 else f"[{shown}]"


def _joined(slices: Sequence[tuple[int, Slice]]) -> list[tuple[int, Slice]]:
    """The slices with the time at which each was done: a receive's wait and the copy behind it are one."""
    joined: list[tuple[int, Slice]] = []
    for op_end, each in slices:
        if joined and each.node.op is recv_op and each.node is joined[-1][1].node:
            arrived, first = joined[-1]
            joined[-1] = (arrived, each._replace(start=first.start))
        else:
            joined.append((op_end, each))
    return joined


def _describe_results(entry: Any, done: Slice, device: str) -> None:
    """The outputs, and the memory that they take: none where they are a view of an input's."""
    sizes = [
        _describe(entry.output.add(slot=slot).tensor_description, spec)
        for slot, spec in enumerate(done.node.outputs)
    ]
    total = 0 if done.node.op.alias else sum(sizes)
    if total or done.pool_bytes is not None:
        name = device.rpartition("device:")[2]
        entry.memory.add(
            allocator_name=name,
            total_bytes=total,
            peak_bytes=total,
            live_bytes=total,
            allocator_bytes_in_use=done.pool_bytes or 0,
        )


def _describe(description: Any, spec: TensorSpec) -> int:
    """Fill a ``TensorDescription``. The tensor's bytes, 0 if they are not known."""
    description.dtype = spec.dtype.number
    if spec.shape is None:
        description.shape.unknown_rank = True
        return 0
    for dim in spec.shape:
        description.shape.dim.add(size=-1 if dim is None else dim)
    nbytes = (num_elements(spec.shape) or 0) * spec.dtype.size
    description.allocation_description.requested_bytes = nbytes
    return nbytes
