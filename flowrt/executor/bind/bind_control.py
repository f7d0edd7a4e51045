"""Binding of loops and branches: passing arguments and results.

The outputs of a node that owns functions are assigned buffers or registers. A loop's variables *are* its
outputs: they are initialized from the inputs before the loop, the body reads them as its parameters, and its
results are moved into them at the end of each iteration, unless its kernels write them in place. A branch's
results are moved to the outputs at its end, unless its kernels write them there. In a loop these may be its
variables in turn, if the branch is their last reader.

Moves are parallel: a result may be another variable's old value, as in ``a, b = b, a``. So a buffer is
written only after its old contents have been moved, and a cycle is broken by copying one value.

If a function may become machine code, which its operations and shapes tell before it is bound, lists are
rows, large operands are copied to memory, and scalar operations are code. The outermost function that may is
compiled, with all that is in it, after it was bound (`flowrt.executor.lists.compiled_body`). Should something
in it turn out to be more than machine code, the same instructions run one by one, and the loops in it are
compiled on their own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache, partial
from typing import Any, NamedTuple, final

import numpy as np

from flowrt.device.device import Device
from flowrt.device.host_memory import address_of
from flowrt.executor.analysis.cost import CALL_SECONDS
from flowrt.executor.buffers.bound_tensors import BoundTensors, owner_of
from flowrt.executor.lists.compiled_body import (
    compile_branches,
    compile_loop,
    loop_may_be_compiled,
    may_be_compiled,
    open_list,
)
from flowrt.executor.lists.loop_lists import loop_lists
from flowrt.executor.lists.open_lists import OpenList
from flowrt.executor.program.arguments import Operand
from flowrt.executor.program.control_flow import Branches, Frame, Loop, loops_in
from flowrt.executor.program.instruction import Copy, Move, Place, Register
from flowrt.executor.program.instruction_builder import InstructionBuilder
from flowrt.executor.program.program import Segment
from flowrt.executor.verify.node_accesses import BoundControl, Layer
from flowrt.graph.node import Node, Ref, Subgraph, TensorSpec, owned_subgraphs, site_of, static_shape
from flowrt.graph.shapes import is_static
from flowrt.loops.loop_program import DTYPES

MAX_ITERATION_SECONDS = 1e-3
"""Estimated time between two pauses of a loop; it may be 65 times as long on subnormal numbers."""

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


Bind = Callable[[Sequence[Operand], Sequence[Operand], Frame | None, bool], BoundFunction]
"""Binds a function for given arguments and its owner's outputs, in a frame; whether it may become machine
code.
"""


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
        self._may_be_compiled = cache(lambda loop: compiles and loop_may_be_compiled(loop))
        """Whether a loop, this one or one in it, may become machine code."""

    def bind(self) -> BoundControl:
        inputs = [self._first, *self._arguments] if self._node.op.name == "_Loop" else [self._first]
        self._builder.line(self._node, inputs, self._outputs)
        return self._bind_loop() if self._node.op.name == "_Loop" else self._bind_branches()

    def _bind_branches(self) -> BoundControl:
        functions = owned_subgraphs(self._node.attrs)
        may_be = self._compiles and all(map(may_be_compiled, functions))
        blocks, layers = [], []
        for bind in self._functions:
            function = bind(self._arguments, self._outputs, self._frame, may_be)
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
        node, mover, count = self._node, self._mover, len(self._outputs)
        body: Subgraph = node.attrs["body"]
        self._pass_open_lists()
        borrowed = [self._tensors.is_borrowed(ref) for ref in self._planned.inputs[1 : 1 + count]]
        mover.move(self._builder, self._arguments[:count], self._outputs, borrowed)
        may_be = self._may_be_compiled(node)
        opened = self._opened()
        inside = [
            operand if (one := opened.get(k)) is None else Operand(one, None, operand.text)
            for k, operand in enumerate([*self._outputs, *self._arguments[count:]])
        ]
        variables, invariants = inside[:count], inside[count:]
        for k, name in enumerate(body.feeds[count:]):
            if may_be or self._is_read_in_compiled(name, body):
                ref = self._planned.inputs[1 + count + k]
                invariants[k] = self._in_memory(ref, invariants[k], body.nodes[name].outputs[0])
        frame = Frame(self._frame, site_of(node))
        function = self._functions[0]([*variables, *invariants], variables, frame, may_be)
        loop = self._loop(function, frame, variables)
        if may_be:
            loop.compile = partial(self._compile, loop)
            if not self._in_nest:
                loop.compile()
        for one in opened.values():
            self._builder.emit_call(node, one.open, mover.registers)
        self._builder.cut(None, 0, loop)
        for one in opened.values():
            self._builder.emit_call(node, one.close, mover.registers)
        return BoundControl(loop, [function.layer])

    def _is_read_in_compiled(self, name: str, function: Subgraph) -> bool:
        """Whether loops inside ``function`` that may become machine code read its parameter ``name``."""
        ref = name, 0
        for node in function:
            is_loop = node.op.name == "_Loop"
            if is_loop and ref in node.inputs[1 + len(node.outputs) :] and self._may_be_compiled(node):
                return True
            for inner in owned_subgraphs(node.attrs) if ref in node.inputs else ():
                given = node.inputs[len(node.inputs) - len(inner.feeds) :]
                feeds = [feed for feed, argument in zip(inner.feeds, given, strict=True) if argument == ref]
                if any(self._is_read_in_compiled(feed, inner) for feed in feeds):
                    return True
        return False

    def _in_memory(self, ref: Ref, operand: Operand, spec: TensorSpec) -> Operand:
        """``operand``, of ``spec``, where machine code finds it: copied out of a register, if that fits. All
        loops of a function, and those in them, share one copy of tensor ``ref``.
        """
        shape, dtype = spec.shape, spec.dtype
        if operand.slot is None or not is_static(shape) or dtype.name not in DTYPES or 0 in shape:
            return operand
        copies = self._tensors.copies
        if ref not in copies:
            array = self._builder.device.empty(static_shape(spec), dtype.np, owner_of(self._node))
            copies[ref] = self._mover.copied(self._builder, operand, array)
        return copies[ref]

    def _pass_open_lists(self) -> None:
        """Have variables that are lists which an outer loop has opened be these lists."""
        for k, argument in enumerate(self._arguments[: len(self._outputs)]):
            if isinstance(argument.value, OpenList):
                self._outputs[k] = argument
                self._tensors.place(self._planned, k, argument)

    def _opened(self) -> dict[int, OpenList]:
        """The lists that are open while the loop runs, but not before it, by their position."""
        places = [*self._outputs, *self._arguments[len(self._outputs) :]]
        opened: dict[int, OpenList] = {}
        for k, found in loop_lists(self._node).items():
            slot = places[k].slot
            if slot is not None:
                one = open_list(found, slot, self._mover.device, self._may_be_compiled(found.loop))
                if one is not None:
                    opened[k] = one
        return opened

    def _loop(self, function: BoundFunction, frame: Frame, variables: Sequence[Operand]) -> Loop:
        """The loop, with its ``variables`` moved at the end of its body."""
        builder, mover, pred, (again, *results) = function.builder, self._mover, self._first, function.results
        mover.move(builder, results, variables, function.are_borrowed[1:])
        builder.cut(None, 0)
        segments = tuple(builder.segments)
        most = 1 if any(loops_in(segments)) else MAX_ITERATIONS
        iterations = max(1, min(most, int(MAX_ITERATION_SECONDS / max(builder.total_seconds, 1e-9))))
        readers = mover.reader(pred), mover.reader(again)
        if self._trips is not None:
            counter = _Counter(self._trips)
            readers = counter.begins, counter.goes_on
        return Loop(self._node, *readers, segments, frame, iterations, (pred.value, again.value))

    def _compile(self, loop: Loop) -> None:
        """Compile the loop; if that cannot be, those in it."""
        if not compile_loop(loop, [output.value for output in self._outputs]):
            _compile_loops(loop.body)


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

    def copied(self, builder: InstructionBuilder, operand: Operand, array: Any) -> Operand:
        """``operand``, copied to ``array``."""
        builder.emit(self._node, Move(array, self._place(operand), self._copyto))
        return Operand(array, None, operand.text)

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
