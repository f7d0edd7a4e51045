"""Tracing of a step, and its representation as ``StepStats`` and ``RunMetadata``.

    Program.run_traced --(node, start, end)--> StepRecorder --fill--> StepStats --> flowrt.profiler

A device is one ``DeviceStepStats``, a stream of it a ``thread_id``, an execution of a node one
``NodeExecStats``. A receive has the time that its program waited; a copy of the tensor to an asynchronous
device is a separate entry, ``Memcpy``.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Iterator, MutableSequence, Sequence
from typing import Any, NamedTuple, Protocol, final

from flowrt.device.device import Device
from flowrt.graph.messages.graph_def import subgraph_to_graph_def
from flowrt.graph.node import Node, Subgraph, TensorSpec
from flowrt.graph.ops.collective.transfer import recv_op, send_op
from flowrt.graph.shapes import num_elements

MAX_NAMED_MEMBERS = 6
"""Operations of a fused group that a label names: a group may have hundreds."""

COPY = "Memcpy"


class Slice(NamedTuple):
    """One execution of ``node``; times are nanoseconds since the epoch. ``pool_bytes``: the device memory in
    use then, if recorded. ``is_wait``: the program waited for a receive's tensor.
    """

    node: Node
    start: int
    end: int
    pool_bytes: int | None = None
    is_wait: bool = False


class Record(Protocol):
    """Records a `Slice`. Reads ``pool_bytes`` itself if not given and enabled."""

    def __call__(
        self, node: Node, start: int, end: int, pool_bytes: int | None = None, is_wait: bool = False
    ) -> object: ...


class _Track(NamedTuple):
    """Timeline of slices: index ``stream`` of a device, with a display name."""

    device: str
    stream: int
    name: str


@final
class StepRecorder:
    """Collects the slices of each stream of each device.

    ``max_slices``: keep only the last ones of a stream (None: all). ``is_thorough``: record the times of
    asynchronous devices, not those of launches; and read each device's pool after each node, which takes
    about 3 us outside any slice.
    """

    def __init__(self, max_slices: int | None = None, is_thorough: bool = True) -> None:
        self._max_slices, self.is_thorough = max_slices, is_thorough
        self._slices: dict[_Track, MutableSequence[Slice]] = {}
        self.recorded: list[bytes] = []
        """``StepStats`` of other tasks."""

    def on(self, device: Device, stream: int, name: str) -> Record:
        """The recorder for stream number ``stream`` of ``device``, with the display name ``name``."""
        slices = self._slices.setdefault(_Track(device.name, stream, name), deque(maxlen=self._max_slices))
        stats, is_thorough = device.pool.stats, self.is_thorough

        def record(
            node: Node, start: int, end: int, pool_bytes: int | None = None, is_wait: bool = False
        ) -> None:
            if is_thorough and pool_bytes is None:
                pool_bytes = stats().bytes_in_use
            slices.append(Slice(node, start, end, pool_bytes, is_wait))

        return record

    @property
    def slices(self) -> Iterator[Slice]:
        """All slices that are kept, stream by stream."""
        return itertools.chain(*self._slices.values())

    @property
    def num_slices(self) -> int:
        return sum(map(len, self._slices.values()))

    def fill(self, step_stats: Any, shift_ns: int = 0) -> None:
        """Write the recording into a ``StepStats`` message, shifted by ``shift_ns``: the offset of the
        reader's clock.
        """
        for stats in self.recorded:
            step_stats.MergeFromString(stats)
        for track, slices in list(self._slices.items()):
            for each in list(slices):
                described = device_stats(step_stats, track.device)
                described.thread_names[track.stream] = track.name
                entry = described.node_stats.add(node_name=each.node.name, timeline_label=_label(each))
                entry.thread_id = track.stream
                set_times(entry, each.start + shift_ns, each.end + shift_ns)
                _describe_results(entry, each, track.device)


def device_stats(step_stats: Any, device: str) -> Any:
    """The ``DeviceStepStats`` of ``device``, made if need be."""
    for found in step_stats.dev_stats:
        if found.device == device:
            return found
    return step_stats.dev_stats.add(device=device)


def set_times(entry: Any, start: int, end: int) -> None:
    """Set the times of a ``NodeExecStats``, nanoseconds since the epoch, in both units that it has."""
    entry.scheduled_nanos = entry.all_start_nanos = start
    entry.scheduled_micros = entry.all_start_micros = start // 1000
    entry.op_end_rel_nanos = entry.all_end_rel_nanos = end - start
    entry.op_end_rel_micros = entry.all_end_rel_micros = max(1, (end - start) // 1000)  # 0 is not shown


def describe_step(run_metadata: Any, recorder: StepRecorder | None, partitions: Sequence[Subgraph]) -> None:
    """Fill ``run_metadata``, a ``RunMetadata`` message, with the recording and a description of the
    ``partitions``.
    """
    run_metadata.Clear()
    if recorder is not None:
        recorder.fill(run_metadata.step_stats)
    for subgraph in partitions:
        run_metadata.partition_graphs.add().CopyFrom(subgraph_to_graph_def(subgraph))


def _label(done: Slice) -> str:
    """``name = Op(inputs)``, as TensorFlow's timelines have it; of a transfer the edge and its other end."""
    node, op = done.node, done.node.op.name
    if node.op is send_op or node.op is recv_op:
        end = "recv_device" if node.op is send_op else "send_device"
        operands = f"{node.attrs['tensor_name']} @{node.attrs[end]}"
    else:
        operands = ", ".join(name for name, _ in node.inputs)
    if node.op is recv_op and not done.is_wait:
        op = COPY
    return f"{node.name} = {op}{_members(node)}({operands})"


def _members(node: Node) -> str:
    """The operations of a fused group: ``[BiasAdd+Relu]``."""
    if "group" not in node.attrs:
        return ""
    names = [member.op.name for member in node.attrs["group"].members]
    more = len(names) - MAX_NAMED_MEMBERS
    shown = "+".join(names[:MAX_NAMED_MEMBERS])
    return f"[{shown}+{more} more]" if more > 0 else f"[{shown}]"


def _describe_results(entry: Any, done: Slice, device: str) -> None:
    """The outputs, and the memory that they take: none where they are a view of an input's."""
    sizes = [
        _describe(entry.output.add(slot=slot).tensor_description, spec)
        for slot, spec in enumerate(done.node.outputs)
    ]
    total = 0 if done.node.op.alias else sum(sizes)
    if total or done.pool_bytes is not None:
        memory = dict.fromkeys(("total_bytes", "peak_bytes", "live_bytes"), total)
        name, in_use = device.rpartition("device:")[2], done.pool_bytes or 0
        entry.memory.add(allocator_name=name, allocator_bytes_in_use=in_use, **memory)


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
