"""Binding: conversion of a scheduled partition to `Program`s on preassigned memory.

All look-ups are resolved here, once, in one pass over the nodes. Buffers were assigned before
(`flowrt.executor.buffers.buffer_assignment`); here the arena is allocated from the device's pool, views are
created, and each instruction gets its arguments. View ops cost nothing at run time. Host arguments (axes,
shapes) are read now only if they are constants.

Separate modules bind memory (`bound_tensors`), streams (`bind_streams`), transfers and fetches
(`bind_transfer`, `bind_fetches`), loops and branches (`bind_control`, `open_lists`). Kernels are bound here.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias, final

import numpy as np

from flowrt import dtypes
from flowrt.device.device import Device
from flowrt.errors import OpError
from flowrt.executor.analysis.cost import may_block, node_cost, node_seconds
from flowrt.executor.analysis.streams import StreamSchedule
from flowrt.executor.analysis.trip_counts import trip_counts
from flowrt.executor.bind.bind_control import BoundFunction, ControlBinder
from flowrt.executor.bind.bind_fetches import bind_fetches
from flowrt.executor.bind.bind_streams import BoundStreams
from flowrt.executor.bind.bind_transfer import Send, bind_feed, bind_recv, bind_send
from flowrt.executor.bind.verify_program import Layer, is_checking, verify_program
from flowrt.executor.buffers.bound_tensors import BoundTensors, owner_of
from flowrt.executor.buffers.buffer_assignment import (
    BufferAssignment,
    FunctionBuffers,
    Storage,
    assign_buffers,
    is_on_host,
    stand_ins,
)
from flowrt.executor.buffers.lifetimes import Lifetimes
from flowrt.executor.ends.feeds import Feed
from flowrt.executor.kernels.backend import backend_of
from flowrt.executor.kernels.loop_operands import GroupKernel
from flowrt.executor.kernels.scalar_code import scalar_code
from flowrt.executor.kernels.sized_call import is_pooled, sized_call
from flowrt.executor.lists.open_lists import ListBinder
from flowrt.executor.program.arguments import Later, Operand, bound_kernel, late_call
from flowrt.executor.program.control_flow import Frame
from flowrt.executor.program.instruction import Call, Free
from flowrt.executor.program.instruction_builder import InstructionBuilder
from flowrt.executor.program.program import Program, Segment
from flowrt.graph.evaluate import located
from flowrt.graph.node import Node, Subgraph
from flowrt.graph.op_def import Effect, Ufunc
from flowrt.graph.resources.variables import VariableResource

Ends: TypeAlias = tuple[Send, Callable[[str, Any], Any], Callable[[OpError], object]]
"""Functions of the step's rendezvous that a `Binder` uses: send, take, fail."""


class Partition(NamedTuple):
    """One device's part of a step, compiled: everything shared by its instances."""

    subgraph: Subgraph
    device: Device
    schedule: StreamSchedule
    lifetimes: Lifetimes
    buffers: BufferAssignment
    has_loops: bool
    """Whether compiled loops are used where possible."""


def compile_partition(
    subgraph: Subgraph,
    schedule: StreamSchedule,
    device: Device,
    resource: Callable[[Node], Any],
    has_loops: bool = False,
) -> Partition:
    """Lifetimes and memory plan of ``subgraph``. ``resource(node)``: the session's object of the node."""
    lifetimes = Lifetimes(subgraph, schedule)
    places = assign_buffers(subgraph, schedule, lifetimes, resource, device)
    return Partition(subgraph, device, schedule, lifetimes, places, has_loops)


_OF_DEVICE = (Effect.PURE, Effect.READ, Effect.WRITE)


class Outer(NamedTuple):
    """Inputs to a function's binder from its owner's: the function's buffer assignment and the context."""

    tensors: BoundTensors
    depth: int
    """Nesting depth of the function."""
    frame: Frame | None
    """The innermost loop."""
    lists: Mapping[str, ListBinder]
    """Open lists by the name of the operation that changes them."""
    in_nest: bool = False
    """Whether the function may become machine code."""


@final
class Binder:
    """Binds one partition. ``resource(node)`` returns the session's object of a stateful node, ``send(key,
    value)`` and ``take(key, default)`` are the step's rendezvous, and ``fail(error)`` ends the step when a
    copy from the device fails after its instruction. Raises `ResourceExhaustedError`.
    """

    def __init__(
        self,
        partition: Partition,
        resource: Callable[[Node], Any],
        send: Send,
        take: Callable[[str, Any], Any],
        fail: Callable[[OpError], object],
        outer: Outer | None = None,
    ) -> None:
        self._subgraph, self._device, self._schedule, self._lifetimes, places, self._has_loops = partition
        self._xp, self._is_asynchronous = self._device.xp, self._device.is_asynchronous
        self._backend = backend_of(self._device)
        self._storage, memory, self._outputs, self._functions = places
        self._resource, self._send, self._take, self._fail = resource, send, take, fail
        if outer is None:
            tensors = BoundTensors(self._device, self._subgraph, self._lifetimes, memory)
            outer = Outer(tensors, 0, None, {})
        self.tensors, self._depth, self._frame, self._lists, self._in_nest = outer
        self._streams = BoundStreams(self._device, self._schedule, self.tensors, send, self._depth)
        self._builder: InstructionBuilder = self._streams.builders[0]
        """Instruction builder of the node being bound."""
        self._feeds: dict[str, Feed] = {}
        self._trips = {} if self._device.executor.computes else trip_counts(self._subgraph)

    def bind(self) -> list[Program]:
        """Bind one program per stream, or a single one; the first has the feeds and fetches. Raises errors of
        kernels that cannot be bound, and `ResourceExhaustedError`.
        """
        for name in self._subgraph.feeds:
            self._bind_feed(self._subgraph.nodes[name])
        self._streams.fork()
        self._bind_nodes()
        self._streams.join()
        for builder in self._streams.builders:
            builder.cut(None, 0)
        if is_checking():
            self._verify([builder.segments for builder in self._streams.builders])
        feeds = [self._feeds[name] for name in self._subgraph.feeds]
        fetches = bind_fetches(self.tensors)
        programs = []
        for index, builder in enumerate(self._streams.builders):
            ends = ([], []) if index else (feeds, fetches)
            program = Program(
                self._device, index, builder.segments, self.tensors.registers, *ends, self._take,
                builder.lines, builder.is_fixed,
            )  # fmt: skip
            programs.append(program)
        return programs

    def bind_function(self) -> InstructionBuilder:
        """The instructions of a function, which end without a wait."""
        self._bind_nodes()
        if is_checking():
            self._verify([self._builder.segments_so_far()])
        return self._builder

    def _verify(self, blocks: Sequence[Sequence[Segment]]) -> None:
        if not self._is_asynchronous:
            layer = Layer(self._subgraph, self._schedule, self.tensors, {})
            verify_program([layer], self._subgraph.fetches, blocks)

    # --- nodes

    def _bind_nodes(self) -> None:
        for position, node in enumerate(self._schedule.order):
            if node.op.name == "_Feed" and (node.name in self._feeds or (node.name, 0) in self.tensors):
                continue
            try:
                self._bind_on_stream(node, position)
            except OpError as error:
                raise located(node, error) from error.__cause__
            except Exception as error:
                raise located(node, error) from error

    def _bind_on_stream(self, node: Node, position: int) -> None:
        builder = self._builder = self._streams.begin(node)
        self._bind_node(node, position)
        self._free_registers(node, position)
        self._streams.end(node, builder)
        builder.work(node_cost(self._subgraph, node), may_block(node))

    def _bind_node(self, node: Node, position: int) -> None:
        name, storage = node.op.name, self._storage[node.name]
        is_buffer = storage is Storage.BUFFER
        if storage is Storage.CONSTANT:
            self._bind_constant(node)
        elif storage is Storage.RESOURCE:
            self.tensors.place(node, 0, Operand(self._resource(node), None, f"%{node.name}"))
        elif storage is Storage.VIEW:
            self._bind_view(node)
        elif name == "_Feed":
            self._bind_feed(node)
        elif name == "_Recv":
            bind_recv(node, self._builder, self.tensors, is_buffer, self._frame)
        elif name == "_Send":
            is_inside = self._depth > 0
            bind_send(node, self._builder, self.tensors, self._frame, is_inside, self._send, self._fail)
        elif node.op.effect is Effect.NESTED:
            self._bind_functions(node)
        elif node.name in self._lists:
            self._lists[node.name].bind(self._builder, self.tensors)
        elif node.outputs or node.inputs or node.op.effect is not Effect.PURE:
            self._bind_kernel(node, position)

    def _bind_feed(self, node: Node) -> None:
        is_buffer = self._storage[node.name] is Storage.BUFFER
        self._feeds[node.name] = bind_feed(node, self._builder, self.tensors, is_buffer)

    def _bind_constant(self, node: Node) -> None:
        array = node.attrs["value"]
        value = self._device.put(array, owner_of(node)) if self._is_asynchronous else array
        self.tensors.place(node, 0, Operand(value, None, _text(array), host_value=array))

    def _bind_view(self, node: Node) -> None:
        """Make the views now."""
        operands = self.tensors.inputs(node)
        source = operands[node.op.aliased]
        if node.outputs[0].dtype is dtypes.resource:  # a handle passed on
            self.tensors.place(node, 0, source)
            return
        if node.op.effect is Effect.READ:
            variable = source.value
            if not variable.is_initialized:  # it never becomes uninitialized again
                self._builder.emit_call(node, self._device.executor.kernel(node.name, variable.read, 0.0))
            self.tensors.place(node, 0, Operand(variable.array, None, source.text))
            return
        function, arguments = bound_kernel(self._xp, node, operands)
        with np.errstate(all="ignore"):
            array = function(*arguments)
        viewed = f"{node.op.name}({source.text})"
        if isinstance(array, list):
            for index, part in enumerate(array):
                self.tensors.place(node, index, Operand(part, None, f"{viewed}[{index}]"))
            return
        text = source.text if array is source.value else viewed
        host = source.host_value if array is source.value else None
        self.tensors.place(node, 0, Operand(array, None, text, host_value=host))

    def _free_registers(self, node: Node, position: int) -> None:
        """Free large register values after their last reader, the node. Freed memory is reused by the stream
        that allocated it; so with several streams on one thread, where another may still be reading, values
        are kept to the end of the step, when the streams are joined.
        """
        if self._is_asynchronous and self._schedule.count > 1:
            return
        for slot in self.tensors.last_read(node, position):
            self._builder.emit(node, Free(self.tensors.registers, slot))

    # --- functions

    def _bind_functions(self, node: Node) -> None:
        """Bind the node's outputs, and its functions as a loop or branches after the instructions so far."""
        self._builder.is_fixed = False
        for index in range(len(node.outputs)):
            if self._outputs[node.name, index] is Storage.BUFFER:
                self.tensors.new_buffer(node, index)
            else:
                self.tensors.new_register(node, index)
        functions = [functools.partial(self._bind_function, node, f) for f in self._functions[node.name]]
        has_loops = self._has_loops and self._backend.compiles_control
        trips = self._trips.get(node.name)
        control = (node, self._builder, self.tensors, functions, self._frame, has_loops, self._in_nest, trips)
        ControlBinder(*control).bind()

    def _bind_function(
        self,
        node: Node,
        function: FunctionBuffers,
        arguments: Sequence[Operand],
        outputs: Sequence[Operand],
        frame: Frame | None,
        lists: Mapping[str, ListBinder],
        in_nest: bool,
    ) -> BoundFunction:
        """One function of ``node``, for ``arguments`` that are there when it runs."""
        subgraph, schedule, lifetimes, places, in_place = function
        partition = Partition(subgraph, self._device, schedule, lifetimes, places, self._has_loops)
        tensors = self.tensors.of_function(node, function, arguments, outputs)
        outer = Outer(tensors, self._depth + 1, frame, lists, in_nest)
        builder = Binder(partition, self._resource, self._send, self._take, self._fail, outer).bind_function()
        self._builder.lines += builder.lines
        is_variable = [tensors.source(ref).op.effect is Effect.READ for ref in subgraph.fetches]
        return BoundFunction(builder, [tensors[ref] for ref in subgraph.fetches], is_variable, set(in_place))

    # --- kernels

    def _bind_kernel(self, node: Node, position: int) -> None:
        operands = self.tensors.inputs(node)
        if self._builder.is_fixed and (not self._is_of_device(node, operands) or is_on_host(node)):
            self._builder.is_fixed = False
        is_buffer = self._storage[node.name] is Storage.BUFFER
        if node.op.effect is Effect.READ and node.op.alias and self._lifetimes.is_overwritten(node, position):
            self._bind_copied_read(node, operands, is_buffer)
        elif is_buffer:
            self._bind_into_buffers(node, operands)
        else:
            self._bind_into_registers(node, operands)

    def _is_of_device(self, node: Node, operands: Sequence[Operand]) -> bool:
        """Whether every step calls the same on the device. Queues and iterators are the host's: of resources
        only variables are not.
        """
        kinds = [self._subgraph.spec(ref).dtype for ref in node.inputs]
        handles = [o.value for o, kind in zip(operands, kinds, strict=True) if kind is dtypes.resource]
        is_own = all(isinstance(handle, VariableResource) for handle in handles)
        return is_own and node.op.effect in _OF_DEVICE and node.op.state is None

    def _bind_copied_read(self, node: Node, operands: list[Operand], is_buffer: bool) -> None:
        """Rule 2 of `flowrt.executor.buffers.buffer_assignment`."""
        read, arguments = self._kernel(node, operands)
        lock, xp = operands[0].value.lock, self._xp
        store: Callable[[Any], None] | None = None
        if is_buffer:
            make = functools.partial(xp.copyto, self.tensors.new_buffer(node, 0))
        else:
            make, slot = xp.array, self.tensors.new_register(node, 0)
            store = functools.partial(self.tensors.registers.__setitem__, slot)

        def copy(*arguments: Any) -> Any:
            with lock:
                return make(read(*arguments))

        self._emit_call(node, self._timed(node, copy), arguments, operands, store)

    def _bind_into_buffers(self, node: Node, operands: list[Operand]) -> None:
        arrays = [self.tensors.new_buffer(node, index) for index in range(len(node.outputs))]
        several = len(arrays) != 1 or node.op.outputs[0].is_list
        out = tuple(arrays) if several else arrays[0]
        code = scalar_code(node, operands, arrays) if self._in_nest else None
        if code is not None:
            self._builder.emit_line(node, code, operands, self.tensors.text(node))
            return
        function, arguments = self._kernel(node, operands)
        if isinstance(function, GroupKernel):
            (inputs,) = arguments
            if isinstance(inputs, Later):
                self._builder.is_fixed = self._builder.is_fixed and inputs.is_plain
                action = function.bind_late(inputs, self.tensors.registers, arrays)
            else:
                action = function.bind(inputs, arrays)
            self._builder.emit_line(node, action, operands, self.tensors.text(node))
            return
        call = self._backend.call(node, arguments, arrays) if self._has_loops else None
        if call is not None:
            self._builder.emit_line(node, call, operands, self.tensors.text(node))
            return
        if isinstance(node.op.kernel, Ufunc):
            arguments = *arguments, out
        else:
            function = functools.partial(function, out=out)
        self._emit_call(node, self._timed(node, function), arguments, operands)

    def _bind_into_registers(self, node: Node, operands: list[Operand]) -> None:
        function, arguments = self._kernel(node, operands)
        if self._has_loops and self._bind_update(node, arguments, operands):
            return
        function = self._timed(node, self._sized(node, function))
        if not self._device.executor.computes:
            function = functools.partial(function, out=stand_ins(node))
        registers = self.tensors.registers
        slots = [self.tensors.new_register(node, i) for i in range(len(node.outputs))]
        if not slots:
            self._emit_call(node, function, arguments, operands)
            return
        if len(slots) == 1 and not node.op.outputs[0].is_list:
            store: Callable[[Any], None] = functools.partial(registers.__setitem__, slots[0])
        else:

            def store(values: Any) -> None:
                for slot, value in zip(slots, values, strict=True):
                    registers[slot] = value

        self._emit_call(node, function, arguments, operands, store)

    def _bind_update(self, node: Node, arguments: Sequence[Any], operands: list[Operand]) -> bool:
        """Whether a compiled loop does it."""
        if node.op.effect is not Effect.WRITE or node.op.loop is None:
            return False
        specs = [self._subgraph.spec(ref) for ref in node.inputs]
        update = self._backend.update(node, arguments, specs, self.tensors.registers)
        if update is not None:
            self._builder.emit_line(node, update, operands, "")
        return update is not None

    def _kernel(self, node: Node, operands: Sequence[Operand]) -> tuple[Any, tuple[Any, ...]]:
        """The node's kernel with attrs and array module bound, and one argument per input of its signature.

        An argument that is not known yet is a `Later`.
        """
        if "group" in node.attrs:
            convert = self._device.to_host, self._device.to_device
            inputs = bound_kernel(self._xp, node, operands, None, *convert)[1]
            return self._backend.group(node), inputs
        state = self._resource(node) if node.op.state is not None else None
        device = self._device
        own = self._backend.kernel(self._subgraph, node, self._has_loops)
        return bound_kernel(self._xp, node, operands, state, device.to_host, device.to_device, own)

    def _timed(self, node: Node, function: Callable[..., Any]) -> Callable[..., Any]:
        """The function to run for a kernel: itself, or a simulated one on a device that does not compute."""
        executor = self._device.executor
        if executor.computes:
            return function
        return executor.kernel(node.name, function, node_seconds(self._subgraph, node))

    def _sized(self, node: Node, function: Callable[..., Any]) -> Callable[..., Any]:
        """``function``, with the pool's memory for a large result: 64 MB of new pages cost 10 ms."""
        if self._is_asynchronous or not is_pooled(node):
            return function
        self.tensors.pooled.add((node.name, 0))
        return sized_call(node, function, functools.partial(self._device.empty, owner=owner_of(node)))

    def _emit_call(
        self,
        node: Node,
        function: Any,
        arguments: tuple[Any, ...],
        operands: Sequence[Operand],
        store: Callable[[Any], None] | None = None,
    ) -> None:
        """Emit the instruction ``function(*arguments)``, with ``store`` for its result if that is not already
        in its buffer. Arguments that are not known yet are read from registers.
        """
        late = [a for a in arguments if isinstance(a, Later)]
        if late:
            self._builder.is_fixed = self._builder.is_fixed and all(a.is_plain for a in late)
            function, arguments = late_call(self.tensors.registers, function, arguments), ()
        if store is not None:
            function, arguments = _stored(store, function, arguments), ()
        self._builder.emit_line(node, Call(function, arguments), operands, self.tensors.text(node))


def _stored(
    store: Callable[[Any], None], function: Callable[..., Any], arguments: tuple[Any, ...]
) -> Callable[[], None]:
    if not arguments:
        return lambda: store(function())
    return lambda: store(function(*arguments))


def _text(array: Any) -> str:
    return repr(array.item()) if array.size == 1 else f"const{list(array.shape)}"
