"""Binding of streams: the instruction builder for each node, and synchronization between streams.

On the host a stream is a thread with its own instruction builder: a node that must wait for another stream
waits for a key, as for a tensor from another device. An asynchronous device has one instruction builder,
which fills all of its streams in order; there, waits are events, which do not block the program. The segments
of a loop or branches begin on the device's first stream: it waits for the node's stream before, and the
node's stream for it afterwards.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, final

from flowrt.device.device import Device
from flowrt.device.stream_executor import Event, Stream
from flowrt.executor.analysis.streams import StreamSchedule
from flowrt.executor.buffers.bound_tensors import BoundTensors
from flowrt.executor.program.edge_keys import event_key
from flowrt.executor.program.instruction import Record, Signal, WaitFor
from flowrt.executor.program.instruction_builder import InstructionBuilder
from flowrt.graph.node import Node
from flowrt.graph.op_def import Effect


@final
class BoundStreams:
    """The ``builders`` of a partition, or of a function that is ``depth`` functions deep. ``send`` is the
    step's rendezvous.
    """

    def __init__(
        self,
        device: Device,
        schedule: StreamSchedule,
        tensors: BoundTensors,
        send: Callable[[str, Any], None],
        depth: int,
    ) -> None:
        self._device, self._schedule, self._tensors, self._send = device, schedule, tensors, send
        count = 1 if device.is_asynchronous else schedule.count
        self.builders = [InstructionBuilder(device, depth) for _ in range(count)]
        self._events: dict[str, Event] = {}
        """Events of an asynchronous device, by the node that they follow."""
        self._awaited = _awaited(schedule)

    def fork(self) -> None:
        """Begin a step on the device's first stream; the others wait for it."""
        for stream in self._side_streams():
            self.builders[0].emit(self._schedule.order[0], WaitFor(stream, self._device.streams[0]))

    def join(self) -> None:
        """A step ends on the device's first stream, which waits for the others."""
        for stream in self._side_streams():
            self.builders[0].emit(self._schedule.order[-1], WaitFor(self._device.streams[0], stream))

    def _side_streams(self) -> Sequence[Stream]:
        """The streams of an asynchronous device, without the first."""
        count = self._schedule.count
        return self._device.streams[1:count] if self._device.is_asynchronous and count > 1 else ()

    def builder(self, node: Node) -> InstructionBuilder:
        """The instruction builder for ``node``, one of several streams'."""
        return self.builders[0 if self._device.is_asynchronous else self._schedule.stream_of(node.name)]

    def begin(self, node: Node, builder: InstructionBuilder) -> None:
        """Make ``node`` run on its stream, after its waits."""
        stream = self._schedule.stream_of(node.name)
        builder.use_stream(node, stream)
        for other in self._schedule.waits.get(node.name, ()):
            if self._device.is_asynchronous:
                builder.emit(node, WaitFor(self._device.streams[stream], self._events[other]))
            else:
                builder.cut(event_key(self._device, other, stream), self._event_slot)
        if self._is_moved(node):
            builder.emit(node, WaitFor(self._device.streams[0], self._device.streams[stream]))
            builder.use_stream(node, 0)

    def _is_moved(self, node: Node) -> bool:
        """Whether it runs on an asynchronous device's first stream instead of its own."""
        is_on_side = self._schedule.stream_of(node.name) > 0
        return self._device.is_asynchronous and is_on_side and node.op.effect is Effect.NESTED

    def end(self, node: Node, builder: InstructionBuilder) -> None:
        """Tell the other streams that wait for ``node`` that it is done."""
        readers = self._awaited.get(node.name, ())
        if self._is_moved(node):
            own = self._device.streams[self._schedule.stream_of(node.name)]
            builder.emit(node, WaitFor(own, self._device.streams[0]))
        if not self._device.is_asynchronous:
            for reader in readers:
                builder.emit(node, Signal(self._send, event_key(self._device, node.name, reader)))
        elif readers:  # one event for all of them
            event = self._events[node.name] = self._device.executor.create_event()
            builder.emit(node, Record(self._device.streams[self._schedule.stream_of(node.name)], event))

    @functools.cached_property
    def _event_slot(self) -> int:
        """Register that receives the (unused) value of an event."""
        return self._tensors.new_slot()


def _awaited(schedule: StreamSchedule) -> dict[str, list[int]]:
    """The streams that wait for each node, for nodes awaited by other streams."""
    awaited: dict[str, list[int]] = {}
    for name, others in schedule.waits.items():
        for other in others:
            readers = awaited.setdefault(other, [])
            if schedule.stream_of(name) not in readers:
                readers.append(schedule.stream_of(name))
    return awaited
