"""Verification of bound programs: every read finds the value that the graph says it reads.

The verifier follows the instructions as they are run, on all streams, and notes the value in each byte: nodes
write new ones, moves put them elsewhere. An instruction must find what its nodes read by the graph
(`node_accesses`), and may write only where all uses have ended; the program's own waits must order both
(`stream_clocks`). When the program ends, what is fetched or was sent is still there, but for variables that
are lent: `flowrt.graph.passes.placement.lent_reads` has proved it of the whole step.

Loops and branches are followed on each path: all branches, and a loop that ends before its first iteration or
after some. Parameters must hold the values of the arguments, or of the last iteration's results, and the
owner's outputs the results, for as long as any of these are read.

It knows the graph, the places of the tensors, the instructions and their waits. It does not know lifetimes,
the plan of the arena or the schedule, which decide these: they are what it verifies.

An extended program is verified with what it extends, an interleaved one with all of its devices. It does not
follow:

    lists              The memory of rows is allocated while a loop runs, and elements of list values have no
                       fixed place. A row that is read or written must have the value of the element, in the
                       array from or to which it is copied.
    machine code       The loops and branches of a control nest are followed as Python would run them. Its
                       table must have their calls, scalars and lists; which scalars it keeps in machine
                       registers, and when it writes them, is not seen.
    parts of a value   Two views of one tensor are not told apart.
    sends in loops     A tensor that a function sends is copied (`bind_transfer`), or in a register.
    captures           A captured program is the one that was verified.

With ``FLOWRT_CHECK=1`` every program is verified when it is bound, extended or interleaved.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TypeAlias, final

from flowrt.device.llvm.call_sequence import MachineCall
from flowrt.device.memory_ranges import Range
from flowrt.errors import InternalError, InvalidArgumentError
from flowrt.executor.lists.row_access import RowAccess
from flowrt.executor.program.control_flow import Block, Branches, Loop
from flowrt.executor.program.edge_keys import SentKeys, tensor_key
from flowrt.executor.program.instruction import (
    Checked,
    Free,
    Instruction,
    Move,
    Record,
    Signal,
    UseStream,
    WaitFor,
)
from flowrt.executor.program.program import Segment
from flowrt.executor.program.updates import nodes_of
from flowrt.executor.verify.memory_contents import (
    InitialValues,
    Memory,
    Piece,
    Use,
    View,
    Write,
    address_of,
    is_register,
    register,
)
from flowrt.executor.verify.node_accesses import Layer, Nested, NodeAccesses, Stored
from flowrt.executor.verify.stream_clocks import Moment, StreamClocks
from flowrt.executor.verify.verify_calls import check_calls, check_nest
from flowrt.graph.evaluate import located
from flowrt.graph.node import Node, Ref
from flowrt.graph.op_facets import ListUse
from flowrt.graph.ops.collective.transfer import recv_op

CHECK = "FLOWRT_CHECK"


def is_checking() -> bool:
    """Whether ``FLOWRT_CHECK`` asks for verification. Raises `InvalidArgumentError` unless it is 0 or 1."""
    value = os.environ.get(CHECK) or "0"
    if value not in ("0", "1"):
        raise InvalidArgumentError(f"{CHECK}: expected 0 or 1; got {value!r}")
    return value == "1"


@contextmanager
def checking() -> Iterator[None]:
    """Verify every program that is bound meanwhile."""
    before = os.environ.get(CHECK)
    os.environ[CHECK] = "1"
    try:
        yield
    finally:
        if before is None:
            del os.environ[CHECK]
        else:
            os.environ[CHECK] = before


HostStream: TypeAlias = Sequence[Segment]
"""The instructions of a host stream."""

ITERATIONS = 2
"""Iterations of a loop that are followed: the first has the loop's inputs, all others the results of the one
before.
"""


def verify_program(
    layers: Sequence[Layer],
    fetches: Iterable[Ref],
    streams: Sequence[HostStream],
    kept: Mapping[Ref, Range] = {},
) -> None:
    """Raise `InternalError` if a node of ``layers`` reads another value than it should, or if one of
    ``fetches`` or of the tensors that are sent is not there when the program ends. ``streams`` are the
    instructions of each host stream; an asynchronous device has one for all of its streams. ``kept``: the
    registers to which tensors were spilled.
    """
    replay = _Replay(layers, streams)
    replay.run()
    replay.check_end(replay.accesses.stored(fetches, kept))


@final
class _Replay:
    """Follows the instructions of ``streams``."""

    def __init__(self, layers: Sequence[Layer], streams: Sequence[HostStream]) -> None:
        self._memory, self._clocks = Memory(), StreamClocks()
        self._initial = InitialValues()
        segments = [segment for block in streams for segment in block]
        self.accesses = NodeAccesses(layers, segments, self._initial)
        self._blocks, self._device = streams, layers[0].tensors.device
        self._streams = self._device.streams if self._device.is_asynchronous else []
        self._last: dict[int, tuple[Node, ...]] = {}
        """The nodes that ran last on each stream."""
        instructions = [instruction for segment in segments for instruction in segment.instructions]
        sent = SentKeys()
        self._keys = {key for instruction in instructions for key in _signals(instruction, sent)}
        """Keys that one of the streams sends."""
        self._sent = SentKeys()

    def run(self) -> None:
        """Raise unless each instruction finds what its nodes should read, where nobody else writes."""
        waiting: list[tuple[Iterator[str], str | None]]
        waiting = [(self._follow(self.accesses, n, block), None) for n, block in enumerate(self._blocks)]
        while waiting:
            ready = [w for w in waiting if w[1] is None or self._clocks.is_sent(w[1])]
            if not ready:
                raise InternalError(f"program: expected the event {waiting[0][1]}; got none")
            waiting.remove(ready[0])
            follow, _ = ready[0]
            if (key := next(follow, None)) is not None:
                waiting.append((follow, key))

    # --- the end

    def check_end(self, fetched: Sequence[Stored]) -> None:
        """Raise unless all streams have ended, and ``fetched`` and what was sent is there."""
        for moment in self._clocks.steps():
            self.check_joined(moment)
        ends = [stored._replace(text=f"{stored.text} for the fetch") for stored in fetched]
        for stored in [*ends, *self.accesses.sent]:
            self._read(stored.node, 0, [stored])

    def check_joined(self, moment: Moment) -> None:
        """Raise unless the first stream of a device waits for the others. The host waits for its own."""
        if not self._device.is_asynchronous:
            self._clocks.wait_for_stream(0, moment[0])
        elif not self._clocks.is_over(moment, 0):
            node = self._last[moment[0]][0]
            raise located(node, InternalError("program: ends without a wait for this operation"))

    # --- the instructions

    def _follow(self, accesses: NodeAccesses, stream: int, block: HostStream) -> Iterator[str]:
        """Follow the instructions of a stream, or of a function. Yields the keys that it waits for."""
        for segment in block:
            check_calls(segment)
            stream = 0 if self._device.is_asynchronous else stream  # as in each segment
            for instruction in segment.instructions:
                stream = self._execute(accesses, instruction, stream)
            if segment.control is not None:
                self._enter(accesses, segment.control.node, 0 if self._device.is_asynchronous else stream)
            if segment.key in self._keys and isinstance(segment.key, str):
                yield segment.key
                self._clocks.wait(stream, segment.key)
            if segment.receive is not None:
                self._run(accesses, (segment.receive,), stream)

    def _execute(self, accesses: NodeAccesses, instruction: Instruction, stream: int) -> int:
        """Follow one instruction on ``stream``; returns the current stream after it."""
        node, action = instruction
        match action:
            case UseStream(used):
                return self._streams.index(used)
            case Record(recorded, event):
                self._clocks.send(self._streams.index(recorded), id(event))
            case WaitFor(waiting, other) if other in self._streams:
                self._clocks.wait_for_stream(self._streams.index(waiting), self._streams.index(other))
            case WaitFor(waiting, event):
                self._clocks.wait(self._streams.index(waiting), id(event))
            case Signal():
                pass
            case Free():
                self._release(node, stream, action)
            case _:
                self._compute(accesses, instruction, stream)
        for key in _signals(instruction, self._sent):
            self._clocks.send(stream, key)
        return stream

    def _compute(self, accesses: NodeAccesses, instruction: Instruction, stream: int) -> None:
        node, action = instruction
        nested = accesses.nested(node)
        if nested is not None or not isinstance(action, Move):
            self._run(accesses, nodes_of(instruction), stream)
        match action:
            case Move():
                self._move(node, action, stream)
            case RowAccess():
                self._check_row(accesses, node, action, stream)
            case MachineCall() | Checked() if nested is not None:  # of all its branches
                self._enter(accesses, node, stream)

    def _run(self, accesses: NodeAccesses, nodes: tuple[Node, ...], stream: int) -> None:
        """Follow the first instruction of one or several nodes, which may run in any order: so all read
        before one writes.
        """
        if nodes == self._last.get(stream):
            return
        self._last[stream] = nodes
        for node in nodes:
            if node.op is recv_op and (key := tensor_key(node, None)) in self._keys:
                self.check_sent(node, key)
                self._clocks.wait(stream, key)
        moment = self._clocks.step(stream)
        found = [(node, accesses.of(node)) for node in nodes]
        for node, access in found:
            for stored in access.reads:
                self._find(node, stored, moment)
        for node, access in found:
            for where, write, source in access.writes:
                views = () if source is None or not is_register(where) else self._views(source)
                self._write(node, where, write, moment, views)

    def _views(self, source: Stored) -> tuple[View, ...]:
        """The memory in which a view of ``source`` is. The value of a register stays while it has views."""
        if not is_register(source.where):
            return (View(source.where, source.write),)
        return self._memory.at(source.where)[0].views

    def _check_row(self, accesses: NodeAccesses, node: Node, access: RowAccess, stream: int) -> None:
        """A row of a list is read or written, in an array that has the element's value then."""
        assert node.op.lists is not None
        element = accesses.find(node.op.lists.element_of(node))
        where = address_of(access.array)
        if element is not None and where is not None and not node.op.uses_list(ListUse.ADDED):  # to others
            self._read(node, stream, [element.moved(where, self._initial)])

    # --- functions

    def _enter(self, accesses: NodeAccesses, node: Node, stream: int) -> None:
        """Follow the functions of ``node``, on each path through them, and leave its outputs."""
        self._run(accesses, (node,), stream)
        nested = accesses.nested(node)
        assert nested is not None
        check_nest(nested.bound.control)
        paths = self._loop if isinstance(nested.bound.control, Loop) else self._branches
        found = [self._memory for _ in paths(node, nested, stream)]
        self._memory = found[0]
        for other in found[1:]:
            self._memory.join(other, Write(node, f"the functions of {node.name!r}"))
        moment = self._clocks.step(stream)
        for left in [*nested.outputs, *nested.variables.values()]:
            if left is not None and left.write is not None:
                views = self._memory.at(left.where)[0].views
                self._memory.write(left.where, left.write, Use(moment, node), views)
        self._last[stream] = (node,)

    def _loop(self, node: Node, nested: Nested, stream: int) -> Iterator[None]:
        """Follow some iterations. Yields where the loop may end, with its variables in the outputs."""
        control, (layer,) = nested.bound
        assert isinstance(control, Loop)
        count, updates = len(nested.outputs), nested.updates
        results, invariant = nested.inputs[1 : 1 + count], nested.inputs[1 + count :]
        carried = self._leave(node, nested, stream, results, updates)
        before = self._memory.copy()
        for _ in range(ITERATIONS):
            inner = self._call(layer, control.bound_body, [*carried, *invariant], updates, stream)
            again, *results = [inner.find(ref) for ref in layer.subgraph.fetches]
            updates = inner.updates
            carried = self._leave(node, nested, stream, results, updates)
            if again is not None:
                self._read(node, stream, [again])
        yield
        self._memory = before
        yield

    def _branches(self, node: Node, nested: Nested, stream: int) -> Iterator[None]:
        """Follow each branch. Yields at its end, with its results in the outputs."""
        control, layers = nested.bound
        assert isinstance(control, Branches)
        before = self._memory
        for layer, block in zip(layers, control.blocks, strict=True):
            self._memory = before.copy()
            arguments = nested.inputs[len(nested.inputs) - len(layer.subgraph.feeds) :]
            inner = self._call(layer, block, arguments, nested.updates, stream)
            results = [inner.find(ref) for ref in layer.subgraph.fetches]
            self._leave(node, nested, stream, results, inner.updates)
            yield

    def _call(
        self,
        layer: Layer,
        block: Block,
        arguments: Sequence[Stored | None],
        updates: Mapping[int, Write],
        stream: int,
    ) -> NodeAccesses:
        """Follow one call of a function."""
        inner = NodeAccesses([layer], block, self._initial, arguments, updates)
        self._last.pop(stream, None)
        for key in self._follow(inner, stream, block):
            raise InternalError(f"program: expected no wait for {key} in a function")
        return inner

    def _leave(
        self,
        node: Node,
        nested: Nested,
        stream: int,
        results: Sequence[Stored | None],
        updates: Mapping[int, Write],
    ) -> list[Stored | None]:
        """The ``results`` of a function, which must be in the outputs of ``node`` now."""
        left = [
            None
            if result is None or output is None
            else result.moved(output.where, self._initial)._replace(text=f"{result.text} for {output.text}")
            for result, output in zip(results, nested.outputs, strict=True)
        ]
        variables = [v._replace(write=updates.get(key)) for key, v in nested.variables.items()]
        self._read(node, stream, [*[stored for stored in left if stored is not None], *variables])
        return left

    # --- values

    def _move(self, node: Node, move: Move, stream: int) -> None:
        """Put the value at the move's source into its target, too."""
        source, target = address_of(move.source), address_of(move.target)
        if source is None or target is None:
            return
        moment, pieces = self._clocks.step(stream), self._memory.at(source)
        for piece in pieces:
            self._use(node, "a value to move", piece, moment)
        writes = {piece.write for piece in pieces}
        write = writes.pop() or self._initial.at(source)
        if writes:
            write = Write(node, "parts of several values")
        views = pieces[0].views if move.copy is None else ()
        self._write(node, target, write, moment, views)

    def _read(self, node: Node, stream: int, tensors: Sequence[Stored]) -> None:
        moment = self._clocks.step(stream)
        for stored in tensors:
            self._find(node, stored, moment)

    def _find(self, node: Node, stored: Stored, moment: Moment) -> None:
        """``node`` reads a tensor, and must find its value."""
        for piece in self._memory.at(stored.where):
            self.check_content(node, stored.text, stored.write, piece.write)
            self._use(node, stored.text, piece, moment)

    def _use(self, node: Node, text: str, piece: Piece, moment: Moment) -> None:
        """``node`` reads a value, and what that may be a view of."""
        self.check_wait(node, moment[0], text, piece)
        piece.uses.append(Use(moment, node))
        for where, write in piece.views:
            for viewed in self._memory.at(where):
                self.check_content(node, f"what {text} may be a view of", write, viewed.write)
                self._use(node, text, viewed, moment)

    def _write(
        self, node: Node, where: Range, write: Write, moment: Moment, views: tuple[View, ...] = ()
    ) -> None:
        for piece in self._memory.at(where):
            self.check_write(node, write, piece, moment)
        self._memory.write(where, write, Use(moment, node), views)

    def _release(self, node: Node, stream: int, free: Free) -> None:
        write = Write(node, f"the release of r{free.slot}")
        self._write(node, register(*free), write, self._clocks.step(stream))

    def check_sent(self, node: Node, key: str) -> None:
        if not self._clocks.is_sent(key):
            raise located(node, InternalError("program: reads a tensor before it is sent"))

    def check_content(self, node: Node, text: str, expected: Write | None, found: Write | None) -> None:
        if found is not expected:
            names = ["what was there before the program" if w is None else str(w) for w in (expected, found)]
            message = f"program: reads {text}; expected {names[0]}; got {names[1]}"
            raise located(node, InternalError(message))

    def check_wait(self, node: Node, stream: int, text: str, piece: Piece) -> None:
        if piece.write is not None and not self._clocks.is_over(piece.uses[0].moment, stream):
            raise located(node, InternalError(f"program: reads {text} without a wait for {piece.write}"))

    def check_write(self, node: Node, write: Write, piece: Piece, moment: Moment) -> None:
        for use in piece.uses:
            is_joined = use.moment == moment and use.node is not node
            if is_joined or not self._clocks.is_over(use.moment, moment[0]):
                user = f"{use.node.op.name} {use.node.name!r} ({use.node.source})"
                message = f"program: {write} overwrites what {user} uses, without a wait for it"
                raise located(node, InternalError(message))


def _signals(instruction: Instruction, sent: SentKeys) -> Sequence[str]:
    """The keys of what it sends to other streams and devices."""
    node, action = instruction
    return [action.key] if isinstance(action, Signal) else sent.of(node)
