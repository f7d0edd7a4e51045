"""Static interleaving of programs on one thread: one linear program without waits.

`flowrt.executor.program.runner.run_inline` leaves a program where it waits for a tensor, and returns to it
after running the others. Programs without loops interleave identically in every step. So they are interleaved
once at bind time, recording their instructions instead of running them; a wait becomes an instruction that
takes the sent tensor.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from typing import Any, final

from flowrt.executor.program.control_flow import PAUSE
from flowrt.executor.program.edge_keys import contribution_keys, tensor_key
from flowrt.executor.program.instruction_builder import InstructionBuilder
from flowrt.executor.program.program import Program
from flowrt.executor.program.runner import StepControl, run_inline
from flowrt.graph.node import Node
from flowrt.graph.ops.collective.transfer import contribute_op, send_op


def interleaved(programs: Sequence[Program]) -> Program | None:
    """A single program equivalent to ``programs``, which are bound to one rendezvous. None for one program,
    for several streams of one device, and if the interleaving may differ between steps: with loops and
    branches, and on asynchronous devices. Raises `InternalError` if all wait for tensors that are never sent.
    """
    has_streams = any(program.stream for program in programs)
    if len(programs) < 2 or has_streams or not all(map(_is_always_alike, programs)):
        return None
    first, sent = programs[0], _Sent()
    builder = InstructionBuilder(first.device, 0)
    run_inline([_lay(program, builder, sent) for program in programs], StepControl())
    builder.cut(None, 0)
    return Program(first.device, first.stream, builder.segments, [], (), (), first.take, ())


def _is_always_alike(program: Program) -> bool:
    """Whether it is the host's, and waits for the same keys in the same order in every step."""
    keys_are_known = all(s.control is None and not callable(s.key) for s in program.segments)
    return keys_are_known and not program.device.is_asynchronous


@final
class _Sent:
    """The keys of the tensors that were sent and not yet taken."""

    def __init__(self) -> None:
        self._keys: set[str] = set()
        self._missing: dict[str, int] = {}
        """The number of ranks that have not contributed to each reduction."""

    def note(self, node: Node) -> None:
        """What ``node`` sends, if anything."""
        if node.op is send_op:
            self._keys.add(tensor_key(node, None))
        elif node.op is contribute_op:
            name, size = node.attrs["tensor_name"], len(node.attrs["devices"])
            self._missing[name] = self._missing.get(name, size) - 1
            if not self._missing[name]:
                self._keys.update(contribution_keys(node))

    def take(self, key: str) -> bool:
        """Whether ``key`` was sent; it is taken then."""
        is_there = key in self._keys
        self._keys.discard(key)
        return is_there


def _lay(program: Program, builder: InstructionBuilder, sent: _Sent) -> Generator[str, Any, None]:
    """Iterate like `Program.run`, without computing."""
    for segment in program.segments:
        builder.work(0.0, pause=False)
        for node, action in segment.instructions:
            builder.emit(node, action)
            sent.note(node)
        key = segment.key
        if key is PAUSE:
            builder.cut(PAUSE, 0)
            yield PAUSE
        elif isinstance(key, str):
            while not sent.take(key):
                yield key
            assert segment.receive is not None
            builder.emit_call(segment.receive, _receive, program.registers, segment.slot, program.take, key)


def _receive(registers: list[Any], slot: int, take: Callable[[str], Any], key: str) -> None:
    registers[slot] = take(key)
