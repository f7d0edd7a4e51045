"""A traced step, read from its ``StepStats``.

    StepStats (protobuf) --read_step--> Step: Operations by device and stream, Transfers between tasks

Times are nanoseconds since the epoch, of one clock. Nothing is trusted: missing fields are empty or 0, and
labels of other writers of ``StepStats``, such as TensorFlow, are parsed as far as possible.
"""

from __future__ import annotations

import math
import re
from collections import defaultdict, deque
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from flowrt.dtypes import BY_NUMBER
from flowrt.errors import DTypeError

_LABEL = re.compile(r"(?P<name>.*?) = (?P<op>\S*?(?:\[.*?\])?)\((?P<operands>.*)\)", re.DOTALL)
_TRANSFER = re.compile(r"\[.*?\] (?P<edge>.*) from (?P<source>\S+) to (?P<target>\S+)", re.DOTALL)
_STREAM = re.compile(r"/stream:(\w+)$")


class Output(NamedTuple):
    """A result of an operation. ``shape`` is None for an unknown rank; an unknown dimension is -1."""

    dtype: str
    shape: tuple[int, ...] | None
    nbytes: int

    def __str__(self) -> str:
        dims = "?" if self.shape is None else ", ".join("?" if d < 0 else str(d) for d in self.shape)
        return f"{self.dtype}[{dims}]"


class Operation(NamedTuple):
    """The work of one stream of a device for one node."""

    device: str
    stream: int
    name: str
    op: str
    operands: tuple[str, ...]
    start: int
    end: int
    outputs: tuple[Output, ...]
    nbytes: int
    """Bytes allocated for its results."""
    pool_bytes: int
    """Bytes in use in the device's pool at the end; 0 if not recorded."""

    @property
    def is_send(self) -> bool:
        return self.op in ("_Send", "_HostSend")

    @property
    def is_receive(self) -> bool:
        return self.op in ("_Recv", "_HostRecv")

    @property
    def is_copy(self) -> bool:
        """Whether it copies a received tensor to the device of its reader."""
        return self.op == "Memcpy"

    @property
    def edge(self) -> Edge:
        """The edge of a send or receive."""
        tensor, _, other = ", ".join(self.operands).rpartition(" @")
        return Edge(tensor, self.device, other) if self.is_send else Edge(tensor, other, self.device)


class Edge(NamedTuple):
    """A tensor that crosses devices."""

    tensor: str
    source: str
    target: str


class Transfer(NamedTuple):
    """A tensor requested from another task: times when it was ``asked`` for, ``sent`` (when produced; None if
    the sender was not traced), and ``arrived``.
    """

    edge: Edge
    nbytes: int
    asked: int
    sent: int | None
    arrived: int


class Step(NamedTuple):
    """One traced step, from its first beginning to its last end. ``stream_names`` by device and number."""

    operations: tuple[Operation, ...]
    transfers: tuple[Transfer, ...]
    stream_names: dict[tuple[str, int], str]
    start: int
    end: int


def task_of(device: str) -> str:
    """``/job:worker/replica:0/task:1`` of a device's name; the whole name if it has no task."""
    return device.partition("/device:")[0] or device


def device_in_task(device: str) -> str:
    """``CPU:0``."""
    return device.rpartition("device:")[2] or device


def several(step_stats: Any, caller: str) -> Sequence[Any]:
    """One ``StepStats`` message, or a sequence of them, as a sequence. Raises `DTypeError`, in the name of
    ``caller``, for anything else.
    """
    found = step_stats if isinstance(step_stats, Sequence) else [step_stats]
    for each in found:
        if not hasattr(each, "dev_stats"):
            raise DTypeError(f"{caller}: expected the step_stats of a RunMetadata; got {each!r:.60}")
    return found


def read_step(step_stats: Any) -> Step:
    """The step recorded in a ``StepStats`` message."""
    operations: list[Operation] = []
    received: list[Transfer] = []
    sent: dict[Edge, deque[int]] = defaultdict(deque)
    names: dict[tuple[str, int], str] = {}
    for stats in step_stats.dev_stats:
        device = _STREAM.sub("", stats.device)
        names.update({(device, number): name for number, name in stats.thread_names.items()})
        for entry in stats.node_stats:
            transfer = _TRANSFER.fullmatch(entry.timeline_label)
            if transfer is None:
                operations.append(_read_operation(device, stats.device, entry))
                continue
            edge, (start, end) = Edge(*transfer.groups()), _times(entry)
            if entry.node_name == "SendTensor":
                sent[edge].append(start)
            else:
                received.append(Transfer(edge, _requested(entry), start, None, end))
    operations.sort(key=lambda operation: operation.start)
    begun = [each.start for each in operations] + [each.asked for each in received]
    return Step(
        tuple(operations),
        tuple(_matched(received, sent)),
        names,
        min(begun, default=0),
        max((each.end for each in operations), default=0),
    )


def _matched(received: Iterable[Transfer], sent: dict[Edge, deque[int]]) -> Iterator[Transfer]:
    """A loop sends over an edge again and again, in order."""
    for each in sorted(received, key=lambda transfer: transfer.arrived):
        times = sent[each.edge]
        yield each._replace(sent=times.popleft()) if times else each


def _read_operation(device: str, track: str, entry: Any) -> Operation:
    label = _LABEL.fullmatch(entry.timeline_label)
    op, operands = (label["op"], label["operands"]) if label else (entry.node_name, "")
    stream = _STREAM.search(track)
    number = int(stream[1]) if stream and stream[1].isdigit() else entry.thread_id
    memory = entry.memory
    return Operation(
        device,
        number,
        entry.node_name,
        op,
        tuple(operands.split(", ")) if operands else (),
        *_times(entry),
        tuple(_read_output(output.tensor_description) for output in entry.output),
        sum(each.total_bytes for each in memory),
        max((each.allocator_bytes_in_use for each in memory), default=0),
    )


def _times(entry: Any) -> tuple[int, int]:
    start, took = entry.all_start_nanos, max(entry.op_end_rel_nanos, entry.all_end_rel_nanos)
    if not start:
        start = entry.all_start_micros * 1000
        took = max(entry.op_end_rel_micros, entry.all_end_rel_micros) * 1000
    return start, start + max(0, took)


def _requested(entry: Any) -> int:
    described = (output.tensor_description.allocation_description for output in entry.output)
    return sum(each.requested_bytes for each in described)


def _read_output(description: Any) -> Output:
    shape = None
    if not description.shape.unknown_rank:
        shape = tuple(dim.size for dim in description.shape.dim)
    dtype = BY_NUMBER.get(description.dtype)
    nbytes = description.allocation_description.requested_bytes
    if not nbytes and shape and dtype and min(shape) >= 0:
        nbytes = math.prod(shape) * dtype.size
    return Output(dtype.name if dtype else "?", shape, nbytes)
