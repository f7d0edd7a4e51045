"""Static interleaving of programs on one thread: one linear program without waits.

`flowrt.executor.program.runner.run_inline` leaves a program where it waits for a tensor, and returns to it
after running the others. Programs without loops interleave identically in every step. So they are interleaved
once at bind time, recording their instructions instead of running them; a wait becomes an instruction that
takes the sent tensor.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from typing import Any

from flowrt.executor.program.control_flow import PAUSE
from flowrt.executor.program.edge_keys import SentKeys
from flowrt.executor.program.instruction_builder import InstructionBuilder
from flowrt.executor.program.program import Program
from flowrt.executor.program.runner import StepControl, run_inline
from flowrt.graph.ops.collective.transfer import SENDS


def interleaved(programs: Sequence[Program]) -> Program | None:
    """A single program equivalent to ``programs``, which are bound to one rendezvous. None for one program,
    for several streams of one device, and if the interleaving may differ between steps: with loops and
    branches, and on asynchronous devices. Raises `InternalError` if all wait for tensors that are never sent.
    """
    has_streams = any(program.stream for program in programs)
    if len(programs) < 2 or has_streams or not all(map(_is_always_alike, programs)):
        return None
    first, sent, keys = programs[0], SentKeys(), set[str]()
    builder = InstructionBuilder(first.device, 0)
    run_inline([_lay(program, builder, sent, keys) for program in programs], StepControl())
    builder.cut(None, 0)
    return Program(first.device, first.stream, builder.segments, [], (), (), first.take, ())


def _is_always_alike(program: Program) -> bool:
    """Whether it is the host's, and waits for the same keys in the same order in every step."""
    keys_are_known = all(s.control is None and not callable(s.key) for s in program.segments)
    return keys_are_known and not program.device.is_asynchronous


def _lay(
    program: Program, builder: InstructionBuilder, sent: SentKeys, keys: set[str]
) -> Generator[str, Any, None]:
    """Iterate like `Program.run`, without computing. ``keys``: of the tensors sent and not yet taken."""
    for segment in program.segments:
        builder.work(0.0, pause=False)
        builder.extend(segment.instructions)
        for node, _ in segment.instructions:
            if node.op in SENDS:
                keys.update(sent.of(node))
        key = segment.key
        if key is PAUSE:
            builder.cut(PAUSE, 0)
            yield PAUSE
        elif isinstance(key, str):
            while key not in keys:
                yield key
            keys.remove(key)
            assert segment.receive is not None
            builder.emit_call(segment.receive, _receive, program.registers, segment.slot, program.take, key)


def _receive(registers: list[Any], slot: int, take: Callable[[str], Any], key: str) -> None:
    registers[slot] = take(key)
