"""Binding: from a partition with its schedule and places to `Program`s on preassigned memory.

Everything that a step would otherwise look up is decided here, once, walking the nodes in order. Where each
tensor is was decided before (`flowrt.executor.places`); here the arena is taken from the device's pool, the
views are made, and each instruction gets its arguments. An op whose output is a view costs nothing at run
time. Host arguments (axes, shapes) are read now only if they are constants.

On the host a stream is a thread, and each has a program of its own: a node that must wait for another stream
waits for a key, as for a tensor of another device. A device that works by itself gets one program, which
fills all of its streams in order; there the waits are events, and the program never stops for them.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, final

import numpy as np

from flowrt import dtypes
from flowrt.device.device import MIN_POOLED, Device
from flowrt.device.memory_pool import LiveTensor, Owner
from flowrt.device.spec import parse_device
from flowrt.device.stream_executor import DeviceMemory
from flowrt.errors import OpError
from flowrt.executor.arguments import Later, Operand, bound_kernel, late_call
from flowrt.executor.bind_control import BoundFunction, bind_control
from flowrt.executor.control import PAUSE, Control, Frame
from flowrt.executor.cost import may_block, node_cost, node_seconds
from flowrt.executor.fused_kernel import FusedKernel
from flowrt.executor.lifetimes import Lifetimes
from flowrt.executor.memory_plan import MemoryPlan
from flowrt.executor.open_lists import OpenList
from flowrt.executor.places import (
    SCRATCH,
    FunctionPlaces,
    Places,
    Storage,
    assign_places,
    is_on_host,
    nbytes_of,
)
from flowrt.executor.program import MAX_STRETCH, Instruction, Line, Program, Segment
from flowrt.executor.sized_call import sized_call
from flowrt.executor.streams import StreamSchedule
from flowrt.executor.update_kernel import update_call
from flowrt.graph.evaluate import located
from flowrt.graph.node import Node, Ref, Subgraph, static_shape
from flowrt.graph.op_def import Effect, Ufunc
from flowrt.graph.shapes import is_static
from flowrt.rendezvous import create_key

INCARNATION = 0
"""The devices of one process live as long as it does: in keys, theirs is the first life."""

MAX_KEPT_REGISTER = 65536
"""Bytes: a register's value of at most this size may stay until the step ends; a larger one goes after its
last reader.
"""

LIST_OPS = ("TensorListPushBack", "TensorListPopBack")

MAX_STRETCH_COST = 1e7
"""Estimated work between two pauses: some milliseconds, after which a step notices that it was cancelled."""


class Partition(NamedTuple):
    """One device's part of a step, compiled: everything that its instances share."""

    subgraph: Subgraph
    device: Device
    schedule: StreamSchedule
    lifetimes: Lifetimes
    places: Places
    has_loops: bool
    """Whether compiled loops do what they can."""


def compile_partition(
    subgraph: Subgraph,
    schedule: StreamSchedule,
    device: Device,
    resource: Callable[[Node], Any],
    has_loops: bool = False,
) -> Partition:
    """Lifetimes and the memory plan of ``subgraph``. ``resource(node)``: the session's object behind a
    stateful node.
    """
    lifetimes = Lifetimes(subgraph, schedule)
    places = assign_places(subgraph, schedule, lifetimes, resource, device)
    return Partition(subgraph, device, schedule, lifetimes, places, has_loops and not device.is_remote)


@final
class Strand:
    """The instructions of one program as they are bound."""

    def __init__(self, depth: int = 0) -> None:
        self.segments: list[Segment] = []
        self.lines: list[Line] = []
        self.depth = depth
        """In how many functions it is."""
        self.stream = 0
        """Where kernels go, of a device that works by itself."""
        self._instructions: list[Instruction] = []
        self._nodes: list[Node] = []
        self._cost = self.total_cost = 0.0

    def emit(self, node: Node, function: Any, arguments: tuple[Any, ...]) -> None:
        self._instructions.append((function, arguments))
        self._nodes.append(node)

    def line(self, node: Node, operands: tuple[str, ...], result: str) -> None:
        """Note the text of an instruction."""
        self.lines.append(Line(node, operands, result, self.depth))

    def work(self, cost: float, pause: bool) -> None:
        """Note the work of the last node; pause behind it if it is time, or if ``pause`` says so."""
        self._cost += cost
        self.total_cost += cost
        if self._instructions and (
            pause or len(self._instructions) >= MAX_STRETCH or self._cost >= MAX_STRETCH_COST
        ):
            self.cut(PAUSE, 0)

    def cut(self, key: str | Callable[[], str] | None, slot: int, control: Control | None = None) -> None:
        """End the stretch, and wait for ``key`` or enter ``control``."""
        self.segments.append(Segment(tuple(self._instructions), tuple(self._nodes), key, slot, control))
        self._instructions, self._nodes, self._cost = [], [], 0.0
        self.stream = 0  # every stretch begins on the first


class Outer(NamedTuple):
    """What a function's binder has from its owner's: where the function's buffers begin, the operands of its
    parameters, and those of the owner's outputs that it writes itself.
    """

    binder: Binder
    memory: tuple[DeviceMemory | None, int]
    parameters: Mapping[Ref, Operand]
    in_place: Mapping[Ref, Operand]
    frame: Frame | None
    """The innermost loop."""
    lists: Mapping[str, OpenList]
    """By the name of the operation that changes it, each list that is open."""


@final
class Binder:
    """Binds one partition. ``resource(node)`` gives the session's object behind a stateful node,
    ``send(key, value)`` and ``take(key, default)`` are the step's rendezvous, and ``fail(error)`` ends the
    step when a copy from the device fails after its instruction.
    """

    def __init__(
        self,
        partition: Partition,
        resource: Callable[[Node], Any],
        send: Callable[[str, Any], None],
        take: Callable[[str, Any], Any],
        fail: Callable[[OpError], object],
        outer: Outer | None = None,
    ) -> None:
        self._subgraph, self._device, self._schedule, self._lifetimes, places, self._has_loops = partition
        self._xp, self._is_remote = self._device.xp, self._device.is_remote
        self._storage, self._memory, self._outputs, self._functions = places
        self._resource, self._send, self._take, self._fail = resource, send, take, fail
        self._outer, self._frame = outer, None if outer is None else outer.frame
        self._registers: list[Any] = [] if outer is None else outer.binder._registers
        self._arena, self._base = (self._take_arena(), 0) if outer is None else outer.memory
        depth = 0 if outer is None else outer.binder._strand.depth + 1
        self._strands = [Strand(depth) for _ in range(1 if self._is_remote else self._schedule.count)]
        self._strand: Strand = self._strands[0]
        """Of the node that is being bound."""
        self._events: dict[str, Any] = {}
        self._awaited = _awaited(self._schedule)
        self._operands: dict[Ref, Operand] = {}
        self._large_slots: dict[Ref, list[int]] = {}
        self._names: dict[int, str] = {}
        self._feeds: dict[str, Callable[[Any], None]] = {}
        self._fetch_counts = Counter(self._subgraph.fetches)
        self._is_fixed = self._is_remote
        """Whether every step makes the same calls on the same memory, and the host has no say in it."""
        self._pooled: set[Ref] = set()
        """What a step fetches out of the pool: new memory, all of it the caller's."""
        if outer is not None:
            self._names = outer.binder._names
            self._operands.update(outer.parameters)

    def bind(self) -> list[Program]:
        """One program a stream, or one for all of them; the first has the feeds and fetches. Raises what a
        kernel raises when it cannot be bound, and `ResourceExhaustedError`.
        """
        for name in self._subgraph.feeds:
            self._bind_feed(self._subgraph.nodes[name])
        self._fork_streams()
        for position, node in enumerate(self._schedule.order):
            try:
                self._bind_on_stream(node, position)
            except OpError as error:
                raise located(node, error) from error.__cause__
            except Exception as error:
                raise located(node, error) from error
        self._join_streams()
        feeds = [self._feeds[name] for name in self._subgraph.feeds]
        fetches = [self._fetch(ref) for ref in self._subgraph.fetches]
        programs = []
        for index, strand in enumerate(self._strands):
            strand.cut(None, 0)
            ends = ([], []) if index else (feeds, fetches)
            program = Program(
                self._device, index, strand.segments, self._registers, *ends, self._take, strand.lines,
                self._is_fixed,
            )  # fmt: skip
            programs.append(program)
        return programs

    def _take_arena(self) -> DeviceMemory | None:
        """The memory of all buffers; None where there are none. Raises `ResourceExhaustedError`, which names
        the operation of the largest."""
        memory = self._memory
        if not memory.sizes:
            return None
        if not memory.peak:
            return self._device.allocate(0)  # of empty arrays only
        largest = self._subgraph.nodes[max(memory.peak, key=lambda ref: memory.sizes[ref])[0]]
        tensors = functools.partial(_tensors_at_peak, self._subgraph, memory)
        try:
            return self._device.allocate(memory.nbytes, Owner(largest.name, _source(largest), tensors))
        except OpError as error:
            raise located(largest, error) from error.__cause__

    # --- streams

    def _bind_on_stream(self, node: Node, position: int) -> None:
        if node.op.name == "_Feed" and (node.name in self._feeds or (node.name, 0) in self._operands):
            return
        stream = self._schedule.stream_of(node.name)
        strand = self._strand = self._strands[0 if self._is_remote else stream]
        self._use_stream(node)
        for other in self._schedule.waits.get(node.name, ()):
            self._wait(node, stream, other)
        self._bind_node(node, position)
        self._free_registers(node, position)
        for reader in self._awaited.get(node.name, ()):
            self._signal(node, stream, reader)
        strand.work(node_cost(self._subgraph, node), may_block(node))

    def _use_stream(self, node: Node) -> None:
        """On a device that works by itself: have what follows go to the node's stream."""
        strand, stream = self._strand, self._schedule.stream_of(node.name)
        if self._is_remote and stream != strand.stream:
            strand.stream = stream
            strand.emit(node, self._device.executor.use, (self._device.streams[stream],))

    def _wait(self, node: Node, stream: int, other: str) -> None:
        if self._is_remote:
            executor, streams = self._device.executor, self._device.streams
            self._strand.emit(node, executor.wait_for, (streams[stream], self._events[other]))
        else:
            self._strand.cut(self._event_key(other, stream), self._scratch_slot)

    def _signal(self, node: Node, stream: int, reader: int) -> None:
        """Tell the stream ``reader`` that ``node`` is done."""
        if not self._is_remote:
            self._strand.emit(node, self._send, (self._event_key(node.name, reader), True))
        elif node.name not in self._events:
            executor = self._device.executor
            event = self._events[node.name] = executor.create_event()
            self._strand.emit(node, executor.record, (self._device.streams[stream], event))

    def _event_key(self, name: str, reader: int) -> str:
        device = self._device.name
        return create_key(device, INCARNATION, device, f"{name}^stream{reader}", 0, 0)

    @functools.cached_property
    def _scratch_slot(self) -> int:
        """Where what comes with an event goes, which is nothing."""
        self._registers.append(None)
        return len(self._registers) - 1

    def _fork_streams(self) -> None:
        """A step begins on the device's first stream: the others wait for what is on it."""
        if self._is_remote and self._schedule.count > 1:
            first, executor = self._device.streams[0], self._device.executor
            node = self._schedule.order[0]
            for stream in self._device.streams[1 : self._schedule.count]:
                self._strand.emit(node, executor.wait_for, (stream, first))

    def _join_streams(self) -> None:
        """A step ends on the device's first stream, which waits for the others."""
        if self._is_remote and self._schedule.count > 1:
            first, executor = self._device.streams[0], self._device.executor
            node = self._schedule.order[-1]
            for stream in self._device.streams[1 : self._schedule.count]:
                self._strand.emit(node, executor.wait_for, (first, stream))

    # --- nodes

    def _bind_node(self, node: Node, position: int) -> None:
        name, storage = node.op.name, self._storage[node.name]
        if storage is Storage.CONSTANT:
            self._bind_constant(node)
        elif storage is Storage.RESOURCE:
            self._place(node, 0, Operand(self._resource(node), None, f"%{node.name}"))
        elif storage is Storage.VIEW:
            self._bind_view(node)
        elif name == "_Feed":
            self._bind_feed(node)
        elif name == "_Recv":
            self._bind_recv(node)
        elif name == "_Send":
            self._bind_send(node)
        elif node.op.effect is Effect.NESTED:
            self._bind_functions(node)
        elif self._outer is not None and name in LIST_OPS and node.name in self._outer.lists:
            self._bind_open_list(node, self._outer.lists[node.name])
        elif node.outputs or node.inputs or node.op.effect is not Effect.PURE:
            self._bind_kernel(node, position)

    def _bind_constant(self, node: Node) -> None:
        array = node.attrs["value"]
        value = self._device.put(array, Owner(node.name, _source(node))) if self._is_remote else array
        self._place(node, 0, Operand(value, None, _text(array), host_value=array))

    def _bind_feed(self, node: Node) -> None:
        if self._storage[node.name] is Storage.BUFFER:
            array = self._new_buffer(node, 0)
            if self._is_remote:
                memory = self._device.executor.memory_of(array)
                self._feeds[node.name] = functools.partial(self._device.feed, memory)
            else:
                self._feeds[node.name] = functools.partial(array.__setitem__, ...)
            return
        slot, registers = self._new_register(node, 0), self._registers
        if self._is_remote:
            self._is_fixed = False
            put, owner = self._device.put, Owner(node.name, _source(node))
            self._feeds[node.name] = lambda value: registers.__setitem__(slot, put(value, owner))
        else:
            self._feeds[node.name] = functools.partial(registers.__setitem__, slot)

    def _bind_recv(self, node: Node) -> None:
        device, registers = self._device, self._registers
        if not self._is_remote:
            self._strand.cut(self._key(node), self._new_register(node, 0))
        else:
            self._is_fixed = False
            registers.append(None)
            arrived = len(registers) - 1
            self._strand.cut(self._key(node), arrived)
            self._use_stream(node)
            if self._storage[node.name] is Storage.BUFFER:
                memory = device.executor.memory_of(self._new_buffer(node, 0))
                self._strand.emit(node, lambda: device.feed(memory, registers[arrived]), ())
            else:
                slot, owner = self._new_register(node, 0), Owner(node.name, _source(node))
                self._strand.emit(
                    node, lambda: registers.__setitem__(slot, device.put(registers[arrived], owner)), ()
                )
        text = self._operands[node.name, 0].text
        self._strand.line(node, (node.attrs["send_device"],), text)

    def _bind_send(self, node: Node) -> None:
        operand, registers, send = self._operands[node.inputs[0]], self._registers, self._sender(node)
        slot = operand.slot
        self._is_fixed = False
        if self._is_remote and not operand.is_host and self._is_alike(node.attrs["recv_device"]):
            share, stream = self._device.share, self._device.streams[self._strand.stream]
            if slot is None:
                self._emit(node, lambda: send(share(stream, operand.value)), (), (operand,), "")
            else:
                self._emit(node, lambda: send(share(stream, registers[slot])), (), (operand,), "")
        elif self._is_remote and not operand.is_host:
            send_out, stream, fail = self._device.send, self._device.streams[self._strand.stream], self._fail
            ready = self._send_later(node)
            if slot is None:
                self._emit(node, lambda: send_out(stream, operand.value, ready(), fail), (), (operand,), "")
            else:
                self._emit(node, lambda: send_out(stream, registers[slot], ready(), fail), (), (operand,), "")
        elif self._frame is not None and slot is None:  # the next iteration writes there
            array = self._xp.array
            self._emit(node, lambda: send(array(operand.value)), (), (operand,), "")
        elif slot is None:
            self._emit(node, send, (operand.value,), (operand,), "")
        else:
            self._emit(node, lambda: send(registers[slot]), (), (operand,), "")

    def _send_later(self, node: Node) -> Callable[[], Callable[[Any], None]]:
        """What makes, when its instruction runs, the function that sends a copied value."""
        key, send = self._key(node), self._send
        if isinstance(key, str):
            sender = functools.partial(send, key)
            return lambda: sender
        return lambda: functools.partial(send, key())

    def _is_alike(self, device: str) -> bool:
        """Whether values go to ``device`` without coming to the host."""
        return parse_device(device).device_type == self._device.device_type

    def _key(self, node: Node) -> str | Callable[[], str]:
        """The key of a send or receive; in a loop what says it."""
        ends = node.attrs
        key = create_key(ends["send_device"], INCARNATION, ends["recv_device"], ends["tensor_name"], 0, 0)
        return key if self._frame is None else functools.partial(self._frame.key, key.removesuffix("0:0"))

    def _sender(self, node: Node) -> Callable[..., None]:
        """What sends a value under the key of ``node``: its arguments are the value and what follows it."""
        key, send = self._key(node), self._send
        if isinstance(key, str):
            return functools.partial(send, key)
        return lambda *value: send(key(), *value)

    def _bind_view(self, node: Node) -> None:
        """Make the view now."""
        operands = [self._operands[ref] for ref in node.inputs]
        source = operands[0]
        if node.outputs[0].dtype is dtypes.resource:  # a handle passed on
            self._place(node, 0, source)
            return
        if node.op.effect is Effect.READ:
            variable = source.value
            if not variable.is_initialized:  # it never becomes uninitialized again
                check = self._device.executor.kernel(node.name, variable.read, 0.0)
                self._strand.emit(node, check, ())
            self._place(node, 0, Operand(variable.array, None, source.text))
            return
        function, arguments = bound_kernel(self._xp, node, operands)
        with np.errstate(all="ignore"):
            array = function(*arguments)
        text = source.text if array is source.value else f"{node.op.name}({source.text})"
        host = source.host_value if array is source.value else None
        self._place(node, 0, Operand(array, None, text, host_value=host))

    def _bind_kernel(self, node: Node, position: int) -> None:
        operands = [self._operands[ref] for ref in node.inputs]
        is_of_device = node.op.effect in (Effect.PURE, Effect.READ, Effect.WRITE) and node.op.state is None
        if not is_of_device or is_on_host(node):
            self._is_fixed = False
        is_buffer = self._storage[node.name] is Storage.BUFFER
        if node.op.effect is Effect.READ and node.op.alias and self._lifetimes.is_overwritten(node, position):
            self._bind_copied_read(node, operands, is_buffer)
        elif is_buffer:
            self._bind_into_buffers(node, operands)
        else:
            self._bind_into_registers(node, operands)

    def _bind_copied_read(self, node: Node, operands: list[Operand], is_buffer: bool) -> None:
        """Rule 2 of `flowrt.executor.places`."""
        read, arguments = self._kernel(node, operands)
        lock, xp = operands[0].value.lock, self._xp
        if is_buffer:
            array = self._new_buffer(node, 0)
            call = self._timed(node, lambda *a: _locked(lock, lambda: xp.copyto(array, read(*a))))
            self._emit_call(node, call, arguments, operands, _ignore)
        else:
            store = functools.partial(self._registers.__setitem__, self._new_register(node, 0))
            call = self._timed(node, lambda *a: _locked(lock, lambda: xp.array(read(*a))))
            self._emit_call(node, call, arguments, operands, store, returns=True)

    def _bind_into_buffers(self, node: Node, operands: list[Operand]) -> None:
        arrays = [self._new_buffer(node, index) for index in range(len(node.outputs))]
        several = len(arrays) != 1 or node.op.outputs[0].is_list
        out = tuple(arrays) if several else arrays[0]
        function, arguments = self._kernel(node, operands)
        if isinstance(function, FusedKernel):
            result = ", ".join(self._operands[node.name, i].text for i in range(len(arrays)))
            (inputs,) = arguments
            if isinstance(inputs, Later):
                bound = function.bind_late(inputs, self._registers, arrays)
            else:
                bound = function.bind(inputs, arrays)
            self._emit(node, *bound, operands, result)
            return
        if isinstance(node.op.kernel, Ufunc):
            call, arguments = function, (*arguments, out)
        else:
            call = functools.partial(function, out=out)
        self._emit_call(node, self._timed(node, call), arguments, operands, _ignore)

    def _bind_into_registers(self, node: Node, operands: list[Operand]) -> None:
        function, arguments = self._kernel(node, operands)
        if self._has_loops and node.op.effect is Effect.WRITE and node.op.loop is not None:
            update = update_call(node, arguments)
            if update is not None:
                self._emit(node, update, (), operands, "")
                return
        function = self._timed(node, self._sized(node, function))
        registers = self._registers
        slots = [self._new_register(node, i) for i in range(len(node.outputs))]
        if not slots:
            self._emit_call(node, function, arguments, operands, _ignore)
            return
        if len(slots) == 1 and not node.op.outputs[0].is_list:
            store: Callable[[Any], None] = functools.partial(registers.__setitem__, slots[0])
        else:

            def store(values: Any) -> None:
                for slot, value in zip(slots, values, strict=True):
                    registers[slot] = value

        self._emit_call(node, function, arguments, operands, store, returns=True)

    # --- functions

    def _bind_functions(self, node: Node) -> None:
        """The node's outputs, and its functions as loop or branches behind the instructions so far."""
        self._is_fixed = False
        for index in range(len(node.outputs)):
            if self._outputs[node.name, index] is Storage.BUFFER:
                self._new_buffer(node, index)
            else:
                self._new_register(node, index)
        outputs = [self._operands[node.name, index] for index in range(len(node.outputs))]
        inputs = [self._operands[ref] for ref in node.inputs]
        functions = [functools.partial(self._bind_function, node, f) for f in self._functions[node.name]]
        bind_control(
            node,
            self._device,
            self._strand,
            self._registers,
            inputs,
            outputs,
            functions,
            self._frame,
            self._has_loops,
        )

    def _bind_open_list(self, node: Node, opened: OpenList) -> None:
        """Push onto a list that is open, or take its last element."""
        registers, slot = self._registers, opened.slot
        operands = [self._operands[ref] for ref in node.inputs[:2]]
        self._place(node, 0, operands[0])
        if not opened.is_pushed:
            target, spec = self._new_register(node, 1), node.outputs[1]

            def pop() -> None:
                value = registers[slot].pop()
                registers[target] = self._xp.zeros(spec.shape, spec.dtype.np) if value is None else value

            self._emit(node, pop, (), operands[:1], self._operands[node.name, 1].text)
            return
        value, copy = operands[1], self._xp.array
        if value.slot is None:
            array = value.value
            self._emit(node, lambda: registers[slot].append(copy(array)), (), operands, operands[0].text)
        else:
            source = value.slot
            op = self._subgraph.nodes[self._lifetimes.root(node.inputs[1])[0]].op
            if op.effect in (Effect.PURE, Effect.RANDOM) and not op.alias:  # new memory, which nobody writes
                push = lambda: registers[slot].append(registers[source])  # noqa: E731
            else:
                push = lambda: registers[slot].append(copy(registers[source]))  # noqa: E731
            self._emit(node, push, (), operands, operands[0].text)

    def _bind_function(
        self,
        node: Node,
        places: FunctionPlaces,
        arguments: Sequence[Operand],
        outputs: Sequence[Operand],
        frame: Frame | None,
        lists: Mapping[str, OpenList],
    ) -> BoundFunction:
        """One function of ``node``, for ``arguments`` that are there when it runs."""
        function = places.subgraph
        partition = Partition(function, self._device, *places[1:4], self._has_loops)
        parameters = {(name, 0): o for name, o in zip(function.feeds, arguments, strict=True)}
        base = self._base + self._memory.offsets[node.name, SCRATCH]
        in_place = {ref: outputs[index] for ref, index in places.in_place.items()}
        outer = Outer(self, (self._arena, base), parameters, in_place, frame, lists)
        binder = Binder(partition, self._resource, self._send, self._take, self._fail, outer)
        strand = binder.bind_function()
        self._strand.lines += strand.lines
        is_read = [self._is_read(binder, ref) for ref in function.fetches]
        operands = [binder._operands[ref] for ref in function.fetches]
        return BoundFunction(strand, operands, is_read, set(in_place))

    def _is_read(self, binder: Binder, ref: Ref) -> bool:
        """Whether the tensor may be a variable's own memory, which changes under whoever keeps it."""
        source = binder._subgraph.nodes[binder._lifetimes.root(ref)[0]]
        return source.op.effect is Effect.READ

    def bind_function(self) -> Strand:
        """The instructions of a function, which end without a wait."""
        for position, node in enumerate(self._schedule.order):
            try:
                self._bind_on_stream(node, position)
            except OpError as error:
                raise located(node, error) from error.__cause__
            except Exception as error:
                raise located(node, error) from error
        return self._strand

    # --- kernels

    def _kernel(self, node: Node, operands: Sequence[Operand]) -> tuple[Any, tuple[Any, ...]]:
        """The node's kernel with attrs and array module bound, and one argument an input of its signature.

        An argument that is not known yet stands as a `Later`.
        """
        if "group" in node.attrs and not self._is_remote:
            inputs = bound_kernel(self._xp, node, operands)[1]
            kernel = FusedKernel(node)
            kernel.prepare()
            return kernel, inputs
        state = self._resource(node) if node.op.state is not None else None
        device = self._device
        return bound_kernel(self._xp, node, operands, state, device.to_host, device.to_device)

    def _timed(self, node: Node, function: Callable[..., Any]) -> Callable[..., Any]:
        """What the device runs for a kernel: the kernel, unless it only pretends."""
        return self._device.executor.kernel(node.name, function, node_seconds(self._subgraph, node))

    def _sized(self, node: Node, function: Callable[..., Any]) -> Callable[..., Any]:
        """``function``, with the pool's memory for a large result: 64 MB of new pages cost 10 ms."""
        op = node.op
        if self._is_remote or not op.takes_out or len(node.outputs) != 1 or op.outputs[0].is_list:
            return function
        spec, owner = node.outputs[0], Owner(node.name, _source(node))
        if spec.dtype.np.kind == "O":
            return function
        if is_static(spec.shape) and nbytes_of(spec) < MIN_POOLED:
            return function
        self._pooled.add((node.name, 0))
        if not is_static(spec.shape):
            return sized_call(node, function, functools.partial(self._device.empty, owner=owner))
        empty = functools.partial(self._device.empty, spec.shape, spec.dtype.np, owner)

        def call(*arguments: Any) -> Any:
            out = empty()
            function(*arguments, out=out)
            return out

        return call

    def _emit_call(
        self,
        node: Node,
        function: Any,
        arguments: tuple[Any, ...],
        operands: Sequence[Operand],
        store: Callable[[Any], None],
        returns: bool = False,
    ) -> None:
        """Emit the instruction ``store(function(*arguments))``, reading registers where arguments come
        later.
        """
        result = ", ".join(self._operands[node.name, i].text for i in range(len(node.outputs)))
        if not any(isinstance(a, Later) for a in arguments):
            if returns:
                self._emit(node, lambda: store(function(*arguments)), (), operands, result)
            else:
                self._emit(node, function, arguments, operands, result)
            return
        self._is_fixed = self._is_fixed and all(a.is_plain for a in arguments if isinstance(a, Later))
        call = late_call(self._registers, function, arguments)
        self._emit(node, (lambda: store(call())) if returns else call, (), operands, result)

    def _emit(
        self, node: Node, function: Any, arguments: tuple[Any, ...], operands: Sequence[Operand], text: str
    ) -> None:
        self._strand.emit(node, function, arguments)
        self._strand.line(node, tuple(o.text for o in operands), text)

    # --- places

    def _place(self, node: Node, index: int, operand: Operand) -> None:
        self._operands[node.name, index] = operand

    def _new_register(self, node: Node, index: int) -> int:
        slot, spec = len(self._registers), node.outputs[index]
        self._registers.append(None)
        if not is_static(spec.shape) or nbytes_of(spec) > MAX_KEPT_REGISTER:
            self._large_slots.setdefault(self._lifetimes.root((node.name, index)), []).append(slot)
        is_host = self._is_remote and is_on_host(node)
        self._place(node, index, Operand(None, slot, f"r{slot}", is_host=is_host))
        return slot

    def _new_buffer(self, node: Node, index: int) -> Any:
        """The output's array in the arena, by the memory plan."""
        spec, ref = node.outputs[index], (node.name, index)
        if self._outer is not None and ref in self._outer.in_place:
            operand = self._outer.in_place[ref]
            self._place(node, index, operand)
            return operand.value
        assert self._arena is not None
        offset = self._base + self._memory.offsets[ref]
        array = self._device.executor.array(self._arena, static_shape(spec), spec.dtype.np, offset)
        name = self._names.setdefault(offset, f"b{len(self._names)}")
        self._place(node, index, Operand(array, None, name))
        return array

    def _free_registers(self, node: Node, position: int) -> None:
        """After the node: let go of large values that it was the last to read. Memory that one stream asked
        for goes back to it, so with several streams of one thread, where another may still be reading, the
        step keeps all to its end, when they are joined.
        """
        if not self._large_slots or (self._is_remote and self._schedule.count > 1):
            return
        outputs = [(node.name, i) for i in range(len(node.outputs))]
        for root in dict.fromkeys([self._lifetimes.root(ref) for ref in [*node.inputs, *outputs]]):
            if (
                root in self._large_slots
                and self._lifetimes.is_read_last_at(root, position)
                and self._lifetimes.are_done(root, node.name)
            ):
                for slot in self._large_slots.pop(root):
                    self._strand.emit(node, self._registers.__setitem__, (slot, None))

    # --- fetches

    def _fetch(self, ref: Ref) -> Callable[[], Any]:
        """A function that gives the tensor's value to the caller, who owns it."""
        operand = self._operands[ref]
        registers, slot = self._registers, operand.slot
        take = self._take_out(ref)
        if slot is not None:
            return lambda: take(registers[slot])
        source = self._subgraph.nodes[self._lifetimes.root(ref)[0]]
        if source.op.effect is Effect.READ and source.op.alias:
            lock = self._operands[source.inputs[0]].value.lock  # another step may be updating the variable
            return lambda: _locked(lock, take, operand.value)
        return functools.partial(take, operand.value)

    def _take_out(self, ref: Ref) -> Callable[[Any], Any]:
        device = self._device
        if self._is_remote and self._subgraph.spec(ref).dtype is dtypes.resource:
            return lambda handle: _after(device.finish, handle)  # others read its value in no order with us
        if self._is_remote and not self._operands[ref].is_host:
            fetch = device.fetch
            return lambda array: _own(fetch(array))
        if self._operands[ref].slot is None:
            return _copy
        is_new = self._subgraph.nodes[ref[0]].op.effect in (Effect.PURE, Effect.RANDOM)
        if is_new and self._lifetimes.root(ref) == ref and self._fetch_counts[ref] == 1:
            return _scalar_or_array if ref in self._pooled else _own
        return _copy


def _awaited(schedule: StreamSchedule) -> dict[str, list[int]]:
    """For each node that others wait for, the streams of those."""
    awaited: dict[str, list[int]] = {}
    for name, others in schedule.waits.items():
        for other in others:
            readers = awaited.setdefault(other, [])
            if schedule.stream_of(name) not in readers:
                readers.append(schedule.stream_of(name))
    return awaited


def _tensors_at_peak(subgraph: Subgraph, memory: MemoryPlan) -> list[LiveTensor]:
    """What an arena holds when most of it is in use."""
    nodes = subgraph.nodes
    return [LiveTensor(ref[0], memory.sizes[ref], _source(nodes[ref[0]])) for ref in memory.peak]


def _source(node: Node) -> str | None:
    return None if node.source is None else str(node.source)


def _locked(lock: Any, function: Callable[..., Any], *arguments: Any) -> Any:
    with lock:
        return function(*arguments)


def _after(function: Callable[[], None], value: Any) -> Any:
    function()
    return value


def _ignore(_: Any) -> None:
    """What becomes of a result that is in its buffer already."""


def _text(array: Any) -> str:
    return repr(array.item()) if array.size == 1 else f"const{list(array.shape)}"


def _scalar_or_array(value: Any) -> Any:
    """A new array as the caller gets it: 0-d arrays become scalars."""
    return value[()] if isinstance(value, np.ndarray) and value.ndim == 0 else value


def _own(value: Any) -> Any:
    """A fetched value as the caller gets it: scalars, and copies for views of larger arrays."""
    if not isinstance(value, np.ndarray):
        return value
    if value.ndim == 0:
        return value[()]
    return value if value.flags.owndata else value.copy()


def _copy(value: Any) -> Any:
    """A fetched value that somebody else still has."""
    return _own(np.array(value)) if isinstance(value, (np.ndarray, np.generic)) else value
