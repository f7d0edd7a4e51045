"""Binding of loops and branches: passing arguments and results.

The outputs of a node that owns functions are assigned buffers or registers. A loop's variables *are* its
outputs: they are initialized from the inputs before the loop, the body reads them as its parameters, and its
results are moved into them at the end of each iteration, unless its kernels write them in place. A branch's
results are moved to the outputs at its end.

Moves are parallel: a result may be another variable's old value, as in ``a, b = b, a``. So a buffer is
written only after its old contents have been moved, and a cycle is broken by copying one value.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, final

import numpy as np

from flowrt.device.device import Device
from flowrt.device.llvm.call_program import LEFT, PAUSED_AT, Repeat, Resumable, as_call, may_pause
from flowrt.device.llvm.call_sequence import MachineCall, Table
from flowrt.executor.analysis.cost import CALL_SECONDS
from flowrt.executor.buffers.bound_tensors import BoundTensors
from flowrt.executor.kernels.copy_kernels import clear_call
from flowrt.executor.kernels.iterated_program import IteratedProgram, iterated_program
from flowrt.executor.kernels.loop_layout import compiled
from flowrt.executor.lists.compiled_body import (
    Block,
    Compiled,
    DeferredChecks,
    compiled_block,
    compiled_branches,
    iterations_of,
    list_of_lists,
    may_be_compiled,
    row_list,
)
from flowrt.executor.lists.indexed_rows import indexed_lists
from flowrt.executor.lists.list_rows import PushedRows, StackedRows, poison
from flowrt.executor.lists.nested_lists import nested_lists
from flowrt.executor.lists.nested_rows import NoElements, TakenLists, is_inner_list
from flowrt.executor.lists.open_lists import ListBinder, OpenList, OpenListBinder, open_lists
from flowrt.executor.lists.relocation import Relocation
from flowrt.executor.program.arguments import Operand
from flowrt.executor.program.control_flow import Branches, Control, Frame, Loop, has_loop
from flowrt.executor.program.instruction import Action, Call, Checked, Copy, Instruction
from flowrt.executor.program.instruction_builder import InstructionBuilder
from flowrt.executor.program.program import Segment, segment_of
from flowrt.executor.program.time_slice import TimeSlice
from flowrt.graph.node import Node, Subgraph, site_of

MAX_ITERATION_COST = 1e6
"""Estimated work between two pauses of a loop: half a millisecond, or 65 times that on subnormal numbers."""

FIRST_ITERATIONS = 1_000
"""Iterations in the first call of a loop over scalars: 5 us for an addition, 7 ms for a body of 60 powers."""

ITERATION_NS = 50.0
"""Estimated time per iteration of a scalar loop inside a loop over small tensors."""

MAX_ITERATIONS = 500
"""Iterations between two pauses: under a millisecond of small operations. Around another loop it is one: the
inner loop does not pause if it ends within a call, which may take milliseconds.
"""


class BoundFunction(NamedTuple):
    """The instructions of a function, where its results are, which of these may be a variable's memory, and
    the names of those that are in their owner's outputs already.
    """

    builder: InstructionBuilder
    results: Sequence[Operand]
    is_read: Sequence[bool]
    in_place: set[Any]


Bind = Callable[[Sequence[Operand], Sequence[Operand], Frame | None, Mapping[str, ListBinder]], BoundFunction]
"""Binds a function for given arguments and its owner's outputs, in a frame, with lists that are open."""

BindBody = Callable[[Sequence[Operand], Mapping[str, ListBinder]], BoundFunction]
"""Binds a loop's body for given invariant arguments, with lists that are open."""


@final
class ControlBinder:
    """Appends the loop or the branches of ``node``, inside ``frame``, to ``builder``. The node's outputs are
    already in ``tensors``. ``compiles``: arithmetic on scalars is compiled to machine code. ``trips``: the
    trip count, regardless of the predicate.
    """

    def __init__(
        self,
        node: Node,
        builder: InstructionBuilder,
        tensors: BoundTensors,
        functions: Sequence[Bind],
        frame: Frame | None,
        compiles: bool,
        trips: int | None,
    ) -> None:
        self._node, self._builder, self._tensors, self._functions = node, builder, tensors, functions
        self._frame, self._compiles, self._trips = frame, compiles, trips
        self._outputs = tensors.outputs(node)
        (self._first, *self._arguments) = tensors.inputs(node)  # a predicate or an index, and the others
        self._mover = _Mover(node, builder.device, tensors.registers)

    def bind(self) -> None:
        inputs = [self._first, *self._arguments] if self._node.op.name == "_Loop" else [self._first]
        self._builder.line(self._node, [o.text for o in inputs], ", ".join(o.text for o in self._outputs))
        if self._compiles and all(output.slot is None for output in self._outputs):
            program = iterated_program(self._node)
            if program is not None:
                self._bind_iterated(program)
                return
        if self._node.op.name == "_Loop":
            self._bind_loop()
        else:
            self._bind_branches()

    def _cut(self, control: Control) -> None:
        self._builder.cut(None, 0, control)

    def _bind_iterated(self, program: IteratedProgram) -> None:
        """A loop over scalars as one function, which is called again while the predicate holds."""
        node, pred, outputs = self._node, self._first, self._outputs
        held = [np.empty((), dtype) for dtype in program.cells[len(outputs) :]]  # including inner cells
        copies = [Operand(array, None, "") for array in held[: len(self._arguments) - len(outputs)]]
        are_read = [False] * len(self._arguments)
        self._mover.move(self._builder, self._arguments, [*outputs, *copies], are_read)
        arrays = [*[output.value for output in outputs], *held]
        table = Table.of([0, 0, *arrays], ITERATION_NS)
        loop, words = compiled(program.text), table.words.data
        function = loop.call
        goes_on = functools.partial(words.__getitem__, PAUSED_AT)

        def iterate(count: int) -> int:
            function(table, 0, count)
            return count - words[LEFT]

        segment = segment_of([Instruction(node, Call(TimeSlice(iterate, goes_on, FIRST_ITERATIONS)))])
        inner = None
        if pred.slot is None and isinstance(pred.value, np.ndarray):
            whole = MachineCall(loop, table, 0, FIRST_ITERATIONS)
            inner = Compiled(Resumable(pred.value, whole), DeferredChecks())
        frame = Frame(None, node.name)
        self._cut(Loop(node, self._mover.reader(pred), goes_on, (segment,), frame, 1, inner))

    def _bind_branches(self) -> None:
        blocks = []
        for bind in self._functions:
            function = bind(self._arguments, self._outputs, self._frame, {})
            self._mover.move(function.builder, function.results, self._outputs, function.is_read)
            function.builder.cut(None, 0)
            blocks.append(tuple(function.builder.segments))
        compiled = compiled_branches(self._first, blocks) if self._compiles else None
        if compiled is None or may_pause((compiled.part,)):
            self._cut(Branches(self._node, self._mover.reader(self._first), blocks, compiled))
            return
        call = as_call(compiled.part)
        action: Action = Checked(call, compiled.deferred.look) if any(compiled.deferred) else call
        self._builder.emit(self._node, action)

    def _bind_loop(self) -> None:
        node, pred, outputs, mover = self._node, self._first, self._outputs, self._mover
        pairs = list(zip(self._arguments, outputs, strict=False))
        begun = {o.slot: i.value for i, o in pairs if o.slot is not None and is_inner_list(i.value)}
        moved = [(i, o) for i, o in pairs if o.slot not in begun]
        mover.move(self._builder, [i for i, _ in moved], [o for _, o in moved], [False] * len(moved))
        slots = {k: o.slot for k, o in enumerate(outputs) if o.slot is not None}
        lists = open_lists(node, slots) if mover.device.executor.computes else {}
        own_frame = Frame(self._frame, site_of(node))

        def bind(invariant: Sequence[Operand], lists: Mapping[str, ListBinder]) -> BoundFunction:
            return self._functions[0]([*outputs, *invariant], outputs, own_frame, lists)

        body = self._compiled_body(bind, lists, begun) if self._compiles else None
        if begun and (body is None or body.block is None):
            self._builder.emit_call(node, poison)
            return
        if body is not None:
            self._place_inner(body.inner)
        else:
            body = self._body(bind(self._arguments[len(outputs) :], lists), list(lists.values()))
        for opened in body.lists:
            self._builder.emit_call(node, opened.open, mover.registers)
        readers = mover.reader(pred), body.goes_on
        if self._trips is not None:
            counter = _Counter(self._trips)
            readers = counter.begins, counter.goes_on
        compiled = None
        if body.block is not None and pred.slot is None:
            part = Repeat(pred.value, body.predicate.value, body.block.parts)
            compiled = Compiled(part, body.block.deferred)
        self._cut(Loop(node, *readers, body.segments, own_frame, body.iterations, compiled))
        for opened in body.lists:
            self._builder.emit_call(node, opened.close, mover.registers)

    def _place_inner(self, inner: Mapping[int, StackedRows]) -> None:
        """Bind lists that are elements of other lists to their rows, and clear those that begin empty."""
        for k, output in enumerate(self._outputs):
            rows = None if output.slot is None else inner.get(output.slot)
            if rows is not None:
                self._tensors.place(self._node, k, Operand(rows, None, output.text))
            if isinstance(rows, PushedRows):
                self._builder.emit(self._node, clear_call(rows.length))

    def _body(self, function: BoundFunction, lists: Sequence[OpenListBinder]) -> _Body:
        builder, (again, *results) = function.builder, function.results
        self._mover.move(builder, results, self._outputs, function.is_read[1:])
        cost = max(builder.total_cost, 1.0)
        builder.cut(None, 0)
        segments = tuple(builder.segments)
        most = 1 if has_loop(segments) else MAX_ITERATIONS
        iterations = max(1, min(most, int(MAX_ITERATION_COST / cost)))
        return _Body(segments, again, self._mover.reader(again), lists, iterations)

    def _compiled_body(
        self, bind: BindBody, lists: Mapping[str, OpenList], begun: Mapping[int, NoElements | TakenLists]
    ) -> _Body | None:
        """The body that runs all iterations in machine code; None if it contains anything else. ``begun``:
        initial values of lists that are elements of others, by their registers.
        """
        node, device, builder, count = self._node, self._mover.device, self._builder, len(self._outputs)
        invariant = self._arguments[count:]
        slots = {k: o.slot for k, o in enumerate([*self._outputs, *invariant]) if o.slot is not None}
        lists = {**lists, **indexed_lists(node, slots)}
        nested = nested_lists(node, {k: slot for k, slot in slots.items() if k < count})
        function: Subgraph = node.attrs["body"]
        if not may_be_compiled(function, lists, nested):
            return None
        rows = {name: row_list(opened, device) for name, opened in lists.items()}
        rows.update({name: list_of_lists(opened, device) for name, opened in nested.changed.items()})
        inner = {one.slot: one for one in rows.values() if isinstance(one, StackedRows) and one.slot in begun}
        for slot, one in inner.items():
            begun[slot].hand_to(one)
        around = [one for one in rows.values() if one.slot not in inner]
        empty = {name: NoElements(source) for name, source in nested.empty.items()}
        n_lines = len(builder.lines)
        moved = Relocation(invariant, [function.nodes[name].outputs[0] for name in function.feeds[count:]])
        body = self._body(bind(moved.operands, {**rows, **empty}), around)
        block = None if body.predicate.slot is not None else compiled_block(body.segments)
        if block is None or not block.parts:
            del builder.lines[n_lines:]  # rebound below
            return None
        deferred = block.deferred.behind(functools.partial(moved.fill, self._mover.registers))
        made = iterations_of(node, block._replace(deferred=deferred), body.predicate.value)
        relocate = moved.bind(made.table, self._mover.registers)
        if relocate is not None:
            builder.emit_call(node, relocate)
        is_whole = relocate is None and not around
        return body._replace(
            segments=(made.segment,),
            goes_on=made.goes_on,
            iterations=1,
            block=block if is_whole else None,
            inner=inner,
        )


class _Counter:
    """The predicates of a loop of so many iterations."""

    def __init__(self, trips: int) -> None:
        self._trips = self._left = trips

    def begins(self) -> bool:
        self._left = self._trips
        return self._left > 0

    def goes_on(self) -> bool:
        self._left -= 1
        return self._left > 0


class _Body(NamedTuple):
    """A loop's body, bound: where its predicate is and how it is read, the lists that are open, and how often
    it runs between two pauses; as machine code, where nothing else has to be done around the loop; and by
    their registers the lists that are parts of open ones.
    """

    segments: tuple[Segment, ...]
    predicate: Operand
    goes_on: Callable[[], Any]
    lists: Sequence[OpenListBinder]
    iterations: int
    block: Block | None = None
    inner: Mapping[int, StackedRows] = {}


class _Mover:
    """Writes the instructions that move values to the outputs of ``node``."""

    def __init__(self, node: Node, device: Device, registers: list[Any]) -> None:
        self._node, self.device, self.registers = node, device, registers
        self._copyto = device.executor.kernel(node.name, device.xp.copyto, CALL_SECONDS)

    def reader(self, operand: Operand) -> Callable[[], Any]:
        """A function that reads a scalar for the host, from a host copy if there is one. That saves a wait
        for the device, and keeps all devices on the same path even if one of them does not compute.
        """
        if operand.host_value is not None:
            return operand.host_value.item
        registers, slot = self.registers, operand.slot
        to_host = self.device.to_host if self.device.is_asynchronous and not operand.is_host else np.asarray
        if operand.host_slot is not None:
            slot, to_host = operand.host_slot, np.asarray
        if slot is not None:
            return lambda: to_host(registers[slot]).item()
        value = operand.value
        if not self.device.is_asynchronous:
            return value.item
        return lambda: to_host(value).item()

    def move(
        self,
        builder: InstructionBuilder,
        sources: Sequence[Operand],
        targets: Sequence[Operand],
        is_read: Sequence[bool],
    ) -> None:
        """Move ``sources`` to ``targets``, in parallel."""
        copies: list[tuple[Any, Any]] = []  # from and to arrays that are there
        loads: list[tuple[int, Any]] = []  # from registers to arrays
        stores: list[tuple[Operand, int, bool]] = []  # to registers
        for source, target, reads in zip(sources, targets, is_read, strict=True):
            if target.slot is not None:
                if source.slot != target.slot:
                    stores.append((source, target.slot, reads or source.slot is None))
            elif source.slot is not None:
                loads.append((source.slot, target.value))
            elif source.value is not target.value:
                copies.append((source.value, target.value))
        overwritten = {slot for _, slot, _ in stores}
        for position, (slot, array) in enumerate(loads):
            if slot in overwritten:  # the value is kept in a separate register meanwhile
                self.registers.append(None)
                kept = len(self.registers) - 1
                stores.append((Operand(None, slot, ""), kept, False))
                loads[position] = (kept, array)
        self._store(builder, stores)  # first: the arrays have not been overwritten yet
        self._copy(builder, copies)
        for slot, array in loads:
            builder.emit_call(self._node, self._load(slot, array))

    def _load(self, slot: int, array: Any) -> Callable[[], None]:
        registers, copyto = self.registers, self._copyto
        return lambda: copyto(array, registers[slot])

    def _store(self, builder: InstructionBuilder, stores: Sequence[tuple[Operand, int, bool]]) -> None:
        """Set registers, after reading all sources. Values in arrays are copied."""
        if not stores:
            return
        registers, copy = self.registers, self.device.xp.array
        reads = [self._read(source, copy if copies else None) for source, _, copies in stores]
        slots = [slot for _, slot, _ in stores]
        if len(stores) == 1:
            (read,), (slot,) = reads, slots
            builder.emit_call(self._node, lambda: registers.__setitem__(slot, read()))
            return

        def store() -> None:
            values = [read() for read in reads]
            for slot, value in zip(slots, values, strict=True):
                registers[slot] = value

        builder.emit_call(self._node, store)

    def _read(self, source: Operand, copy: Callable[[Any], Any] | None) -> Callable[[], Any]:
        registers, slot, value = self.registers, source.slot, source.value
        if slot is None:
            assert copy is not None
            return lambda: copy(value)
        if copy is None:
            return lambda: registers[slot]
        return lambda: copy(registers[slot])

    def _copy(self, builder: InstructionBuilder, copies: list[tuple[Any, Any]]) -> None:
        """Copies between arrays, in an order in which nothing is overwritten that is still to be read."""
        share = self.device.xp.may_share_memory
        pending = list(copies)
        while pending:
            free = next(
                (c for c in pending if not any(o is not c and share(o[0], c[1]) for o in pending)), None
            )
            if free is None:  # a circle: the first value waits in a copy
                source, target = pending[0]
                waiting = self.device.empty(source.shape, source.dtype)
                builder.emit(self._node, self._copy_to(waiting, source))
                pending[0] = (waiting, target)
                continue
            pending = [c for c in pending if c is not free]  # not by value, as remove() would
            builder.emit(self._node, self._copy_to(free[1], free[0]))

    def _copy_to(self, target: Any, source: Any) -> Action:
        is_host = self.device.executor.computes and not self.device.is_asynchronous
        return Copy(target, source) if is_host else Call(self._copyto, (target, source))
