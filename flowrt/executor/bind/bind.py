"""Binding: conversion of a scheduled partition to `Program`s on preassigned memory.

All look-ups are resolved here, once, in one pass over the nodes. Buffers were assigned before
(`flowrt.executor.buffers.buffer_assignment`); here the arena is allocated from the device's pool, and each
node becomes an instruction: an action, and the places that it reads and writes. Values that are known now
cost nothing at run time; host arguments (axes, shapes) are read now if they are constants.

    bind_kernel      kernels, views, compiled calls and loops, updates
    bind_transfer    feeds, receives, sends
    bind_control     loops and branches
    bind_streams     the stream of each node
    bind_fetches     the values that a program returns
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, final

import numpy as np

from flowrt import dtypes
from flowrt.device.device import Device
from flowrt.errors import OpError
from flowrt.executor.analysis.cost import checks_step, least_seconds, needs_pause, node_costs, waits_outside
from flowrt.executor.analysis.streams import StreamSchedule
from flowrt.executor.analysis.trip_counts import trip_counts
from flowrt.executor.bind.awaited_loops import Awaiting, loop_estimate
from flowrt.executor.bind.bind_control import BoundFunction, ControlBinder
from flowrt.executor.bind.bind_fetches import bind_fetches
from flowrt.executor.bind.bind_kernel import KernelBinder
from flowrt.executor.bind.bind_streams import BoundStreams
from flowrt.executor.bind.bind_transfer import Ends, TransferBinder, is_other_type
from flowrt.executor.bind.capture import is_fixed
from flowrt.executor.buffers.bound_tensors import BoundTensors, owner_of
from flowrt.executor.buffers.buffer_assignment import BufferAssignment, Storage, assign_buffers
from flowrt.executor.ends.feeds import Feed
from flowrt.executor.lists.open_lists import OpenList
from flowrt.executor.lower.part_class import are_of_class
from flowrt.executor.program.arguments import Operand
from flowrt.executor.program.control_flow import Frame
from flowrt.executor.program.instruction import Action, Free
from flowrt.executor.program.instruction_builder import InstructionBuilder
from flowrt.executor.program.program import Program
from flowrt.executor.verify.node_accesses import BoundControl, Layer
from flowrt.executor.verify.verify_program import is_checking, verify_program
from flowrt.graph.evaluate import located
from flowrt.graph.node import Node, Subgraph
from flowrt.graph.op_def import Effect
from flowrt.graph.ops.collective.transfer import contribute_op


class Partition(NamedTuple):
    """One device's part of a step, compiled: everything shared by its instances.

    Of another part of a class, all but ``subgraph`` and ``device`` is that of the class's first one: the two
    have the same nodes in the same order, under other names.
    """

    subgraph: Subgraph
    device: Device
    buffers: BufferAssignment
    """The places of the first part's tensors."""
    has_loops: bool
    """Whether compiled loops are used where possible."""
    costs: Sequence[float]
    """`node_cost` of each node of the schedule's order."""
    pauses: frozenset[int]
    """Positions of the nodes after which a pause is needed."""
    waits_outside: bool

    @classmethod
    def of(cls, device: Device, buffers: BufferAssignment, has_loops: bool) -> Partition:
        """The one with these ``buffers``, and with estimates of its nodes' time."""
        subgraph, order = buffers.subgraph, buffers.schedule.order
        pauses = frozenset([position for position, node in enumerate(order) if needs_pause(node)])
        estimates = node_costs(subgraph, order), pauses, waits_outside(subgraph)
        return cls(subgraph, device, buffers, has_loops, *estimates)

    def of_class(self, subgraph: Subgraph, device: Device) -> Partition | None:
        """The same of ``subgraph``, on another ``device``, if the two are of one class: nothing is analysed
        again. None if they are not, and for devices on which the analysis may differ.
        """
        is_host = all(d.executor.computes and not d.is_asynchronous for d in (self.device, device))
        if not (is_host and self.schedule.count == 1 and are_of_class(self.subgraph, subgraph)):
            return None
        return self._replace(subgraph=subgraph, device=device)

    @property
    def schedule(self) -> StreamSchedule:
        return self.buffers.schedule

    @property
    def order(self) -> list[Node]:
        """The nodes in the order of the schedule."""
        own = dict(zip(self.buffers.subgraph.nodes, self.subgraph, strict=True))
        return [own[node.name] for node in self.schedule.order]


def compile_partition(
    subgraph: Subgraph,
    schedule: StreamSchedule,
    device: Device,
    resource: Callable[[Node], Any],
    has_loops: bool = False,
) -> Partition:
    """Lifetimes and memory plan of ``subgraph``. ``resource(node)``: the session's object of the node."""
    return Partition.of(device, assign_buffers(subgraph, schedule, resource, device), has_loops)


class Outer(NamedTuple):
    """Inputs to a function's binder from its owner's: the function's buffer assignment and the context."""

    tensors: BoundTensors
    depth: int
    """Nesting depth of the function."""
    frame: Frame | None
    """The innermost loop."""
    in_nest: bool = False
    """Whether the function may become machine code."""


@final
class Binder:
    """Binds one partition to the ``ends`` of a step. ``resource(node)`` returns the session's object of a
    stateful node. With ``awaits_loops``, its loops are compiled later
    (`flowrt.executor.bind.awaited_loops`), other than those in loops and branches. Raises
    `ResourceExhaustedError`.
    """

    def __init__(
        self,
        partition: Partition,
        resource: Callable[[Node], Any],
        ends: Ends,
        outer: Outer | None = None,
        awaits_loops: bool = False,
    ) -> None:
        self._subgraph, device, places, self._has_loops = partition[:4]
        self._schedule = places.schedule
        self._order, self._costs, self._pauses = partition.order, partition.costs, partition.pauses
        self._storage, self._functions, self._copied = places.storage, places.functions, places.copied
        self._device, self._resource, self._ends = device, resource, ends
        self._put = device.put if device.is_asynchronous else None
        if outer is None:
            outer = Outer(BoundTensors(device, places, self._subgraph), 0, None)
        self.tensors, self._depth, self._frame, self._in_nest = outer
        registers = self.tensors.registers
        self._kernels = KernelBinder(device, self._subgraph, registers, resource, self._has_loops)
        self._plain_kernels = (
            KernelBinder(device, self._subgraph, registers, resource, has_loops=False)
            if awaits_loops
            else None
        )
        """Kernels of operations until their loops are there."""
        self._transfers = TransferBinder(device, registers, ends, self._frame, self._depth > 0)
        self._streams = BoundStreams(device, self._schedule, self.tensors, ends.send, self._depth)
        self._builder: InstructionBuilder = self._streams.builders[0]
        """Instruction builder of the node being bound."""
        self._feeds: dict[str, Feed] = {}
        self._controls: dict[str, BoundControl] = {}
        self._trips = {} if device.executor.computes else trip_counts(self._subgraph)

    def bind(self) -> list[Program]:
        """Bind one program per stream, or a single one; the first has the feeds and fetches. Raises errors of
        kernels that cannot be bound, and `ResourceExhaustedError`.
        """
        nodes = self._subgraph.nodes
        for name, planned in zip(self._subgraph.feeds, self.tensors.subgraph.feeds, strict=True):
            self._bind_feed(nodes[name], self.tensors.subgraph.nodes[planned])  # before the program begins
        self._streams.fork()
        self._bind_nodes()
        self._streams.join()
        for builder in self._streams.builders:
            builder.cut(None, 0)
        if is_checking():
            blocks = [builder.segments for builder in self._streams.builders]
            verify_program([self.layer], self._subgraph.fetches, blocks)
        feeds = [self._feeds[name] for name in self._subgraph.feeds]
        fetches = bind_fetches(self.tensors)
        device = self._device
        can_capture = device.is_asynchronous and device.captures and is_fixed(self._subgraph, self.tensors)
        programs = []
        for index, builder in enumerate(self._streams.builders):
            ends = ([], []) if index else (feeds, fetches)
            program = Program(
                device, index, builder.segments, self.tensors.registers, *ends, self._ends.take,
                builder.lines, can_capture,
            )  # fmt: skip
            programs.append(program)
        return programs

    def bind_function(self) -> InstructionBuilder:
        """The instructions of a function, which end without a wait."""
        self._bind_nodes()
        return self._builder

    @property
    def layer(self) -> Layer:
        """The nodes that were bound, with their tensors, loops and branches."""
        return Layer(self._subgraph, self.tensors.named(self._subgraph), self._controls)

    # --- nodes

    def _bind_nodes(self) -> None:
        has_streams = self._schedule.count > 1
        with np.errstate(all="ignore"):  # kernels make the views
            for position, (planned, node) in enumerate(zip(self._schedule.order, self._order, strict=True)):
                if node.op.name == "_Feed":  # bound before
                    continue
                storage = self._storage[planned.name]
                is_known = storage is not Storage.BUFFER and storage is not Storage.REGISTER
                seconds = 0.0 if is_known else least_seconds(node, self._costs[position])
                try:
                    if has_streams:
                        self._builder = self._streams.builder(node)
                    self._builder.begin_work(seconds)
                    if has_streams:
                        self._streams.begin(node, self._builder)
                    if is_known:
                        self._bind_known(node, planned, storage)
                    else:
                        self._bind_node(node, planned, position)
                    if has_streams:
                        self._streams.end(node, self._builder)
                    if not is_known:  # behind what tells other streams
                        self._builder.work(seconds, position in self._pauses)
                    if checks_step(node):
                        self._builder.note_check()
                except OpError as error:
                    raise located(node, error) from error.__cause__
                except Exception as error:
                    raise located(node, error) from error

    def _bind_node(self, node: Node, planned: Node, position: int) -> None:
        """Bind ``node``, which is ``planned`` in the class's first part: tensors have its names."""
        if node.op.effect is Effect.NESTED:
            self._bind_functions(node, planned)
        elif node.op.lists is not None and (opened := self._open_list(planned)) is not None:
            opened.bind(planned, self._builder, self.tensors)
        elif node.op.name == "_Recv":
            self._bind_receive(node, planned)
        elif node.outputs or node.inputs or node.op.effect is not Effect.PURE:
            self._bind_action(node, planned)
        if self.tensors.large_registers:
            self._free_registers(node, planned, position)

    def _open_list(self, planned: Node) -> OpenList | None:
        """The list that ``planned`` changes or reads, if a loop has opened it."""
        value = self.tensors[planned.inputs[0]].value if planned.inputs else None
        return value if isinstance(value, OpenList) else None

    def _bind_known(self, node: Node, planned: Node, storage: Storage) -> None:
        """A value that is known now; a variable without a value is checked when it is read."""
        if storage is Storage.CONSTANT:
            array = node.attrs["value"]
            value = array if self._put is None else self._put(array, owner_of(node))
            text = repr(array.item()) if array.size == 1 else f"const{list(array.shape)}"
            operands = [Operand(value, None, text, host_value=array)]
        elif storage is Storage.RESOURCE:
            operands = [Operand(self._resource(node), None, f"%{node.name}")]
        else:
            reads = self.tensors.inputs(planned)
            if node.op.effect is Effect.READ and not reads[0].value.is_initialized:
                self._builder.emit(node, self._kernels.initialization_check(node, reads[0].value))
            operands = self._kernels.views(node, reads)
        for index, operand in enumerate(operands):
            self.tensors.place(planned, index, operand)

    def _bind_feed(self, node: Node, planned: Node) -> None:
        (place,) = self.tensors.create(planned)
        self._feeds[node.name] = self._transfers.feed(node, place)

    def _bind_receive(self, node: Node, planned: Node) -> None:
        """Wait for the tensor, and copy it to an asynchronous device."""
        (place,) = self.tensors.create(planned)
        builder, stream = self._builder, self._builder.stream
        if self._device.is_asynchronous:
            arrived = self.tensors.new_slot()
            builder.cut(self._transfers.key(node), arrived, receive=node)
            builder.use_stream(node, stream)
            builder.emit(node, self._transfers.copy_in(node, place, arrived))
            if is_other_type(node, self._device):
                self.tensors.place(node, 0, place._replace(host_slot=arrived))
        else:
            assert place.slot is not None
            builder.cut(self._transfers.key(node), place.slot, receive=node)
        builder.line(node, [Operand(None, None, node.attrs["send_device"])], [place])

    def _bind_action(self, node: Node, planned: Node) -> None:
        reads, writes = self.tensors.inputs(planned), self.tensors.create(planned)
        if node.op.name == "_Send":
            (ref,) = planned.inputs
            is_list = self.tensors.subgraph.spec(ref).dtype is dtypes.variant
            is_borrowed = not is_list and self.tensors.is_borrowed(ref)
            action = self._transfers.send(node, reads[0], is_list, is_borrowed, self._builder.current_stream)
        elif node.op is contribute_op:
            action = self._transfers.contribute(node, reads[0])
        elif planned.name in self._copied:
            action = self._kernels.copied_read(node, reads, writes)
        else:
            action = self._computing(node, reads, writes)
        self._builder.emit_line(node, action, reads, writes)

    def _computing(self, node: Node, reads: Sequence[Operand], writes: Sequence[Operand]) -> Action:
        """The action of a kernel or loop. What reads registers is compiled now, other than a group: kernels
        may need more registers, of which a program's number is fixed.
        """
        compiled = functools.partial(self._kernels.action, node, reads, writes, self._in_nest)
        loop = None if self._plain_kernels is None else loop_estimate(self._subgraph, node)
        has_registers = "group" not in node.attrs and any(read.slot is not None for read in reads)
        if self._plain_kernels is None or loop is None or has_registers:
            return compiled()
        return Awaiting(self._plain_kernels.action(node, reads, writes), compiled, loop)

    def _free_registers(self, node: Node, planned: Node, position: int) -> None:
        """Free large register values after their last reader, the node. Freed memory is reused by the stream
        that allocated it; so with several streams on one thread, where another may still be reading, values
        are kept to the end of the step, when the streams are joined.
        """
        if self._device.is_asynchronous and self._schedule.count > 1:
            return
        for slot in self.tensors.last_read(planned, position):
            self._builder.emit(node, Free(self.tensors.registers, slot))

    # --- functions

    def _bind_functions(self, node: Node, planned: Node) -> None:
        """Bind the node's outputs, and its functions as a loop or branches after the instructions so far."""
        self.tensors.create(planned)
        functions = [
            functools.partial(self._bind_function, planned, f) for f in self._functions[planned.name]
        ]
        surroundings = self._builder, self.tensors, functions, self._frame
        compiles, trips = self._kernels.compiles_control, self._trips.get(node.name)
        control = ControlBinder(node, planned, *surroundings, compiles, self._in_nest, trips)
        self._controls[node.name] = control.bind()

    def _bind_function(
        self,
        planned: Node,
        function: BufferAssignment,
        arguments: Sequence[Operand],
        outputs: Sequence[Operand],
        frame: Frame | None,
        in_nest: bool,
    ) -> BoundFunction:
        """One function of ``planned``, for ``arguments`` that are there when it runs."""
        partition = Partition.of(self._device, function, self._has_loops)
        tensors = self.tensors.of_function(planned, function, arguments, outputs)
        outer = Outer(tensors, self._depth + 1, frame, in_nest)
        binder = Binder(partition, self._resource, self._ends, outer)
        builder = binder.bind_function()
        self._builder.lines += builder.lines
        fetches = function.subgraph.fetches
        results = [tensors[ref] for ref in fetches]
        are_borrowed = [tensors.is_borrowed(ref) for ref in fetches]
        return BoundFunction(builder, binder.layer, results, are_borrowed)
