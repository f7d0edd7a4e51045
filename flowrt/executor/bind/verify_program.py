"""Verification of bound programs: every read finds the value that the graph says it reads.

The verifier follows the instructions as they are run, on all streams, and notes the last write to each byte.
An instruction must find what its nodes read by the graph (`node_accesses`), and may write only where all uses
have ended; the program's own waits must order both (`stream_clocks`). When the program ends, what is fetched
or was sent is still there.

It knows the graph, the places of the tensors, the instructions and their waits. It does not know lifetimes,
the plan of the arena or the schedule, which decide these: they are what it verifies.

A function is verified as one iteration on its own, without the moves of its results to its owner's outputs;
an extended program with what it extends; an interleaved one with all of its devices. Lists are not followed,
nor what a compiled body makes of its instructions. A captured program is the one that was verified.

With ``FLOWRT_CHECK=1`` every program is verified when it is bound, extended or interleaved.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TypeAlias, final

from flowrt.device.device import Device
from flowrt.device.llvm.call_sequence import MachineCall
from flowrt.errors import InternalError, InvalidArgumentError
from flowrt.executor.bind.memory_contents import Memory, Piece, Range, Use, Write, register
from flowrt.executor.bind.node_accesses import Access, Layer, NodeAccesses, Part, Stored
from flowrt.executor.bind.stream_clocks import Moment, StreamClocks
from flowrt.executor.program.edge_keys import tensor_key
from flowrt.executor.program.instruction import Call, Free, Instruction, Spilled
from flowrt.executor.program.program import Segment
from flowrt.executor.program.updates import Updates, nodes_of
from flowrt.graph.evaluate import located
from flowrt.graph.node import Node, Ref
from flowrt.graph.ops.collective.transfer import recv_op, send_op

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


Block: TypeAlias = Sequence[Segment]


def verify_program(
    layers: Sequence[Layer], fetches: Iterable[Ref], blocks: Sequence[Block], kept: Mapping[Ref, Range] = {}
) -> None:
    """Raise `InternalError` if a node of ``layers`` reads another value than it should, or if one of
    ``fetches`` or of the tensors that are sent is not there when the program ends. ``blocks`` are the
    instructions of each host stream; an asynchronous device has one for all of its streams. ``kept``: the
    registers to which tensors were spilled.
    """
    replay = _Replay(layers, blocks)
    replay.run()
    replay.check_end(replay.accesses.stored(fetches, kept))


def verify_function(layer: Layer, block: Block) -> None:
    """`verify_program` for one iteration of a loop's body, or for a branch. Its parameters, which the next
    iteration or the owner may read, are overwritten by its results at most.
    """
    replay = _Replay([layer], [block])
    replay.run()
    results = replay.accesses.stored(layer.subgraph.fetches)
    replay.check_end(results)
    replay.check_parameters({part.write for result in results for part in result.parts})


@final
class _Replay:
    """Follows the instructions of ``blocks``."""

    def __init__(self, layers: Sequence[Layer], blocks: Sequence[Block]) -> None:
        segments = [segment for block in blocks for segment in block]
        self.accesses = NodeAccesses(layers, segments)
        self._blocks, self._memory, self._clocks = blocks, Memory(), StreamClocks()
        self._device: Device = layers[0].tensors.device
        self._streams = self._device.streams if self._device.is_asynchronous else []
        self._last: dict[int, tuple[Node, ...]] = {}
        """The nodes that ran last on each stream."""
        signals = [_signal(instruction) for segment in segments for instruction in segment.instructions]
        self._keys = {key for key in signals if key is not None}
        """Keys that one of the blocks sends."""
        for segment in segments:
            check_calls(segment)

    def run(self) -> None:
        """Raise unless each instruction finds what its nodes should read, where nobody else writes."""
        waiting: list[tuple[Iterator[str], str | None]]
        waiting = [(self._follow(stream, block), None) for stream, block in enumerate(self._blocks)]
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
        ends = [Stored(node, f"{text} for the fetch", parts) for node, text, parts in fetched]
        for stored in [*ends, *self.accesses.sent]:
            self._access(0, [(stored.node, Access([stored], []))])

    def check_joined(self, moment: Moment) -> None:
        """Raise unless the first stream of a device waits for the others. The host waits for its own."""
        if not self._device.is_asynchronous:
            self._clocks.wait_for_stream(0, moment[0])
        elif not self._clocks.is_over(moment, 0):
            node = self._last[moment[0]][0]
            raise located(node, InternalError("program: ends without a wait for this operation"))

    def check_parameters(self, results: Collection[Write | None]) -> None:
        """Raise if a parameter was overwritten by anything but ``results``."""
        for feed, text, parts in self.accesses.parameters:
            for where, expected in parts:
                for piece in self._memory.at(where):
                    if piece.write is not expected and piece.write not in results:
                        message = f"program: expected parameter {text} to stay; got {piece.write}"
                        raise located(feed, InternalError(message))

    # --- the instructions

    def _follow(self, stream: int, block: Block) -> Iterator[str]:
        """Follow one block. Yields the keys that it waits for."""
        for segment in block:
            stream = 0 if self._device.is_asynchronous else stream  # as in each segment
            for instruction in segment.instructions:
                stream = self._execute(instruction, stream)
            if segment.control is not None:
                self._run((segment.control.node,), 0 if self._device.is_asynchronous else stream)
            if segment.key in self._keys and isinstance(segment.key, str):
                yield segment.key
                self._clocks.wait(stream, segment.key)
            if segment.receive is not None:
                self._run((segment.receive,), stream)

    def _execute(self, instruction: Instruction, stream: int) -> int:
        """Follow one instruction on ``stream``; returns the current stream after it."""
        node, action = instruction
        if isinstance(action, Call) and action.function == self._device.executor.use:
            return self._streams.index(action.arguments[0])
        if isinstance(action, Call) and self._is_wait(action):
            return stream
        if isinstance(action, Spilled):
            self._access(stream, [(node, self.accesses.of_spill(node, action))])
        elif not isinstance(action, Free):
            self._run(nodes_of(instruction), stream)
        for free in action.freed if isinstance(action, Updates) else [action]:
            if isinstance(free, Free):
                cleared = Part(
                    register(free.registers, free.slot), Write(node, f"the release of r{free.slot}")
                )
                self._access(stream, [(node, Access([], [cleared]))])
        if (key := _signal(instruction)) is not None:
            self._clocks.send(stream, key)
        return stream

    def _is_wait(self, action: Call) -> bool:
        """Whether it only orders the streams of a device."""
        executor = self._device.executor
        if action.function == executor.record:
            recorded, event = action.arguments
            self._clocks.send(self._streams.index(recorded), id(event))
        elif action.function == executor.wait_for:
            waiting, other = action.arguments
            stream = self._streams.index(waiting)
            if other in self._streams:
                self._clocks.wait_for_stream(stream, self._streams.index(other))
            else:
                self._clocks.wait(stream, id(other))
        else:
            return False
        return True

    def _run(self, nodes: tuple[Node, ...], stream: int) -> None:
        """Follow the first instruction of one or several nodes."""
        if nodes == self._last.get(stream):
            return
        self._last[stream] = nodes
        for node in nodes:
            if node.op is recv_op and (key := tensor_key(node, None)) in self._keys:
                self.check_sent(node, key)
                self._clocks.wait(stream, key)
        self._access(stream, [(node, self.accesses.of(node)) for node in nodes])

    def _access(self, stream: int, accesses: Sequence[tuple[Node, Access]]) -> None:
        """The accesses of one instruction: its nodes may run in any order, so all read before one writes."""
        moment = self._clocks.step(stream)
        for node, access in accesses:
            for _, text, parts in access.reads:
                for where, expected in parts:
                    for piece in self._memory.at(where):
                        self.check_content(node, text, expected, piece.write)
                        self.check_wait(node, stream, text, piece)
                        piece.uses.append(Use(moment, node))
        for node, access in accesses:
            for where, write in access.writes:
                assert write is not None
                for piece in self._memory.at(where):
                    self.check_write(node, write, piece, moment)
                self._memory.write(where, write, Use(moment, node))

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


def _signal(instruction: Instruction) -> str | None:
    """The key of what it sends to another stream or device."""
    node, action = instruction
    if isinstance(action, Call) and len(action.arguments) == 2 and isinstance(action.arguments[0], str):
        return action.arguments[0]  # an event
    return tensor_key(node, None) if node.op is send_op else None


def check_calls(segment: Segment) -> None:
    """Raise unless the segment's calls are its instructions, some of them joined as machine code."""
    left = iter(segment.instructions)
    for (function, arguments), node in zip(segment.calls, segment.nodes, strict=True):
        for words in [None] if node is not None else arguments[0].words.reshape(-1, 4).tolist():
            at, action = next(left)
            if words is None:
                is_same = at is node and action.bound()[0] == function
            else:
                is_same = isinstance(action, MachineCall) and words == _words(action)
            if not is_same:
                raise located(at, InternalError("program: expected the call of this operation; got another"))


def _words(call: MachineCall) -> list[int]:
    """The call in the table of a sequence."""
    return [call.loop.address, int(call.table), call.begin, call.end]
