"""Binding of loops and branches: passing arguments and results.

The outputs of a node that owns functions are assigned buffers or registers. A loop's variables *are* its
outputs: they are initialized from the inputs before the loop, the body reads them as its parameters, and its
results are moved into them at the end of each iteration, unless its kernels write them in place. A branch's
results are moved to the outputs at its end, unless its kernels write them there. In a loop these may be its
variables in turn, if the branch is their last reader.

Moves are parallel: a result may be another variable's old value, as in ``a, b = b, a``. So a buffer is
written only after its old contents have been moved, and a cycle is broken by copying one value.

If a function may become machine code, which its operations and shapes tell before it is bound, lists are
rows, large operands have stand-ins, and scalar operations are code. The outermost function that may is
compiled, with all that is in it, after it was bound (`flowrt.executor.lists.compiled_body`). Should something
in it turn out to be more than machine code, the same instructions run one by one, and the loops in it are
compiled on their own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple, final

import numpy as np

from flowrt.device.device import Device
from flowrt.device.host_memory import address_of
from flowrt.executor.analysis.cost import CALL_SECONDS
from flowrt.executor.buffers.bound_tensors import BoundTensors
from flowrt.executor.lists.compiled_body import (
    compile_branches,
    compile_loop,
    list_of_lists,
    may_be_compiled,
    row_list,
)
from flowrt.executor.lists.indexed_rows import indexed_lists
from flowrt.executor.lists.list_rows import ZERO, PushedRows, StackedRows
from flowrt.executor.lists.nested_lists import nested_lists
from flowrt.executor.lists.nested_rows import NoElements, TakenLists, is_inner_list
from flowrt.executor.lists.open_lists import ListBinder, OpenListBinder, open_lists
from flowrt.executor.lists.relocation import Relocation
from flowrt.executor.program.arguments import Operand
from flowrt.executor.program.control_flow import Branches, Frame, Loop, loops_in
from flowrt.executor.program.instruction import Copy, Move, Place, Register
from flowrt.executor.program.instruction_builder import InstructionBuilder
from flowrt.executor.program.program import Segment
from flowrt.executor.verify.node_accesses import BoundControl, Layer
from flowrt.graph.node import Node, Subgraph, owned_subgraphs, site_of

MAX_ITERATION_COST = 1e6
"""Estimated work between two pauses of a loop: half a millisecond, or 65 times that on subnormal numbers."""

MAX_ITERATIONS = 500
"""Iterations between two pauses: under a millisecond of small operations. Around another loop it is one: the
inner loop does not pause if it ends within a call, which may take milliseconds.
"""


class BoundFunction(NamedTuple):
    """The instructions of a function, with its tensors, where its results are, and which of these may be in
    memory that is written again.
    """

    builder: InstructionBuilder
    layer: Layer
    results: Sequence[Operand]
    are_borrowed: Sequence[bool]


Bind = Callable[
    [Sequence[Operand], Sequence[Operand], Frame | None, Mapping[str, ListBinder], bool], BoundFunction
]
"""Binds a function for given arguments and its owner's outputs, in a frame, with lists that are open; whether
it may become machine code.
"""


class _Lists(NamedTuple):
    """The lists of a loop, by the operations in its body that change them: those that are opened before the
    loop and closed after it; the rows of those that are elements of other lists, by their registers; and the
    empty lists as which such lists begin.
    """

    opened: Mapping[str, OpenListBinder]
    inner: Mapping[int, tuple[str, StackedRows]]
    empty: Mapping[str, NoElements]

    @property
    def binders(self) -> dict[str, ListBinder]:
        return {**self.opened, **dict(self.inner.values()), **self.empty}


@final
class ControlBinder:
    """Appends the loop or the branches of ``node``, inside ``frame``, to ``builder``. The node's outputs are
    already in ``tensors``, under the name of ``planned``. ``compiles``: loops and branches over small tensors
    become machine code; ``in_nest``: with the function that this is in, if that does. ``trips``: the trip
    count, regardless of the predicate.
    """

    def __init__(
        self,
        node: Node,
        planned: Node,
        builder: InstructionBuilder,
        tensors: BoundTensors,
        functions: Sequence[Bind],
        frame: Frame | None,
        compiles: bool,
        in_nest: bool,
        trips: int | None,
    ) -> None:
        self._node, self._planned, self._builder = node, planned, builder
        self._tensors, self._functions = tensors, functions
        self._frame, self._compiles, self._in_nest, self._trips = frame, compiles, in_nest, trips
        self._outputs = tensors.outputs(planned)
        (self._first, *self._arguments) = tensors.inputs(planned)  # a predicate or an index, and the others
        self._mover = _Mover(node, builder.device, tensors.registers)

    def bind(self) -> BoundControl:
        inputs = [self._first, *self._arguments] if self._node.op.name == "_Loop" else [self._first]
        self._builder.line(self._node, inputs, self._outputs)
        return self._bind_loop() if self._node.op.name == "_Loop" else self._bind_branches()

    def _bind_branches(self) -> BoundControl:
        functions = owned_subgraphs(self._node.attrs)
        may_be = self._compiles and all(may_be_compiled(function, {}) for function in functions)
        blocks, layers = [], []
        for bind in self._functions:
            function = bind(self._arguments, self._outputs, self._frame, {}, may_be)
            layers.append(function.layer)
            self._mover.move(function.builder, function.results, self._outputs, function.are_borrowed)
            function.builder.cut(None, 0)
            blocks.append(tuple(function.builder.segments))
        branches = Branches(self._node, self._mover.reader(self._first), blocks, self._first.value)
        if may_be and not self._in_nest:
            compile_branches(branches, [output.value for output in self._outputs])
            for block in blocks if branches.compiled is None else ():
                _compile_loops(block)
        if branches.compiled is None:
            self._builder.cut(None, 0, branches)
        else:
            self._builder.emit(self._node, branches.compiled)
        return BoundControl(branches, layers)

    def _bind_loop(self) -> BoundControl:
        node, outputs, mover = self._node, self._outputs, self._mover
        body: Subgraph = node.attrs["body"]
        invariant = self._arguments[len(outputs) :]
        pairs = list(zip(self._arguments, outputs, strict=False))
        begun = {o.slot: i.value for i, o in pairs if o.slot is not None and is_inner_list(i.value)}
        borrowed = [self._tensors.is_borrowed(ref) for ref in self._planned.inputs[1 : 1 + len(pairs)]]
        moved = [(*pair, b) for pair, b in zip(pairs, borrowed, strict=True) if pair[1].slot not in begun]
        mover.move(self._builder, [i for i, _, _ in moved], [o for _, o, _ in moved], [b for *_, b in moved])
        rows = self._rows(begun) if self._compiles else None
        specs = [body.nodes[name].outputs[0] for name in body.feeds[len(outputs) :]]
        relocated = ([], []) if rows is None else (invariant, specs)
        relocation = Relocation(mover.registers, *relocated)
        lists = self._open_lists() if rows is None else rows
        frame = Frame(self._frame, site_of(node))
        arguments = [*outputs, *(relocation.operands or invariant)]
        function = self._functions[0](arguments, outputs, frame, lists.binders, rows is not None)
        loop = self._loop(function, frame)
        if rows is not None:
            loop.compile = partial(self._compile, loop, relocation)
            if not self._in_nest:
                loop.compile()
        for opened in lists.opened.values():
            self._builder.emit_call(node, opened.open, mover.registers)
        if relocation:
            self._builder.emit(node, relocation)
        self._place_inner(lists.inner)
        self._builder.cut(None, 0, loop)
        for opened in lists.opened.values():
            self._builder.emit_call(node, opened.close, mover.registers)
        return BoundControl(loop, [function.layer])

    def _loop(self, function: BoundFunction, frame: Frame) -> Loop:
        """The loop, with its variables moved at the end of its body."""
        builder, mover, pred, (again, *results) = function.builder, self._mover, self._first, function.results
        mover.move(builder, results, self._outputs, function.are_borrowed[1:])
        cost = max(builder.total_cost, 1.0)
        builder.cut(None, 0)
        segments = tuple(builder.segments)
        most = 1 if any(loops_in(segments)) else MAX_ITERATIONS
        iterations = max(1, min(most, int(MAX_ITERATION_COST / cost)))
        readers = mover.reader(pred), mover.reader(again)
        if self._trips is not None:
            counter = _Counter(self._trips)
            readers = counter.begins, counter.goes_on
        return Loop(self._node, *readers, segments, frame, iterations, (pred.value, again.value))

    def _compile(self, loop: Loop, relocation: Relocation) -> None:
        """Compile the loop; if that cannot be, those in it."""
        table = compile_loop(loop, [output.value for output in self._outputs], relocation.fill)
        if table is None:
            _compile_loops(loop.body)
        else:
            relocation.link(table)

    # --- lists

    def _open_lists(self) -> _Lists:
        """The lists that are Python lists meanwhile."""
        slots = {k: o.slot for k, o in enumerate(self._outputs) if o.slot is not None}
        computes = self._mover.device.executor.computes
        return _Lists(open_lists(self._node, slots) if computes else {}, {}, {})

    def _rows(self, begun: Mapping[int, NoElements | TakenLists]) -> _Lists | None:
        """The lists that are rows, of a loop that may become machine code; None if it may not. ``begun``:
        initial values of lists that are elements of others, by their registers.
        """
        node, device, count = self._node, self._mover.device, len(self._outputs)
        operands = [*self._outputs, *self._arguments[count:]]
        slots = {k: o.slot for k, o in enumerate(operands) if o.slot is not None}
        variables = {k: slot for k, slot in slots.items() if k < count}
        lists = {**open_lists(node, variables), **indexed_lists(node, slots)}
        nested = nested_lists(node, variables)
        if not may_be_compiled(node.attrs["body"], lists, nested):
            return None
        rows = {name: row_list(opened, device) for name, opened in lists.items()}
        rows.update({name: list_of_lists(opened, device) for name, opened in nested.changed.items()})
        inner: dict[int, tuple[str, StackedRows]] = {}
        for name, one in list(rows.items()):
            if isinstance(one, StackedRows) and one.slot in begun:
                begun[one.slot].hand_to(one)
                inner[one.slot] = name, one
                del rows[name]
        return _Lists(rows, inner, {name: NoElements(source) for name, source in nested.empty.items()})

    def _place_inner(self, inner: Mapping[int, tuple[str, StackedRows]]) -> None:
        """Bind lists that are elements of other lists to their rows, and clear those that begin empty."""
        for k, output in enumerate(self._outputs):
            if output.slot is None or output.slot not in inner:
                continue
            _, rows = inner[output.slot]
            self._tensors.place(self._planned, k, Operand(rows, None, output.text))
            if isinstance(rows, PushedRows):
                self._builder.emit(self._node, Move(rows.length, ZERO))


def _compile_loops(block: Sequence[Segment]) -> None:
    """Compile the loops in a block that is not machine code."""
    for loop in loops_in(tuple(block)):
        if loop.compile is not None:
            loop.compile()


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
        are_borrowed: Sequence[bool],
    ) -> None:
        """Move ``sources`` to ``targets``, in parallel. A register's value that is borrowed from memory that
        may be overwritten (`BoundTensors.is_borrowed`) is copied first.
        """
        pending: list[Move] = []
        for source, target, is_borrowed in zip(sources, targets, are_borrowed, strict=True):
            if source.value is target.value and source.slot == target.slot:
                continue
            copy: Copy | None = self._copyto
            if target.slot is not None:
                copy = self.device.xp.array if is_borrowed or source.slot is None else None
            move = Move(self._place(target), self._place(source), copy)
            if is_borrowed and source.slot is not None and target.slot is None:
                move = self._set_aside(builder, move, self.device.xp.array)
            elif self._rearranges(move):  # which no loop does in place
                move = self._set_aside(builder, move)
            pending.append(move)
        while pending:
            readers = [self._readers(move, pending) for move in pending]
            for move, of_target in zip(pending, readers, strict=True):
                if not of_target:
                    builder.emit(self._node, move)
            if all(readers):  # cycles: a value that is still to be read is put elsewhere
                (first, *_), *_ = readers
                pending = [self._set_aside(builder, move) if move is first else move for move in pending]
            else:
                pending = [move for move, of_target in zip(pending, readers, strict=True) if of_target]

    def _place(self, operand: Operand) -> Place:
        return operand.value if operand.slot is None else Register(self.registers, operand.slot)

    def _readers(self, move: Move, pending: Sequence[Move]) -> list[Move]:
        """The others that may read what is at its target."""
        return [other for other in pending if other is not move and self._reads(other, move.target)]

    def _reads(self, move: Move, place: Place) -> bool:
        """Whether ``move`` may read what is at ``place``."""
        source = move.source
        if isinstance(source, Register) and isinstance(place, Register):
            return source.slot == place.slot
        if isinstance(source, Register):  # if borrowed, it may be a view of it
            return isinstance(move.target, Register) and move.copy is not None
        return not isinstance(place, Register) and bool(self.device.xp.may_share_memory(source, place))

    def _rearranges(self, move: Move) -> bool:
        """Whether ``move`` may read what is at its target in another order, as a transpose of it does."""
        source, target = move.source, move.target
        if not self._reads(move, target):
            return False
        if not (isinstance(source, np.ndarray) and isinstance(target, np.ndarray)):
            return True
        return address_of(source) != address_of(target) or source.strides != target.strides

    def _set_aside(self, builder: InstructionBuilder, move: Move, copy: Copy | None = None) -> Move:
        """Put the value of ``move`` in a new place: an array's in another, a register's in another, where it
        is copied if the move copies it to a register, or by ``copy``. Returns the rest of the move.
        """
        source = move.source
        if not isinstance(source, Register):
            array = self.device.empty(source.shape, source.dtype)
            builder.emit(self._node, Move(array, source, self._copyto))
            return move._replace(source=array)
        self.registers.append(None)
        register = Register(self.registers, len(self.registers) - 1)
        if isinstance(move.target, Register):
            move, copy = move._replace(copy=None), move.copy
        builder.emit(self._node, Move(register, source, copy))
        return move._replace(source=register)
