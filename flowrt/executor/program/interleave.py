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
from flowrt.executor.program.edge_keys import tensor_key
from flowrt.executor.program.program import MAX_BLOCK_LENGTH, Instruction, Program, Segment, segment_of
from flowrt.executor.program.runner import StepControl, run_inline
from flowrt.graph.node import Node
from flowrt.graph.ops.collective.transfer import send_op


def interleaved(programs: Sequence[Program]) -> Program | None:
    """A single program equivalent to ``programs``, which are bound to one rendezvous. None for one program,
    for several streams of one device, and if the interleaving may differ between steps: with loops and
    branches, and on asynchronous devices. Raises `InternalError` if all wait for tensors that are never sent.
    """
    has_streams = any(program.stream for program in programs)
    if len(programs) < 2 or has_streams or not all(map(_is_always_alike, programs)):
        return None
    laid = _Laid()
    run_inline([laid.lay(program) for program in programs], StepControl())
    laid.cut(None)
    first = programs[0]
    return Program(first.device, first.stream, laid.segments, [], (), (), first.take, ())


def _is_always_alike(program: Program) -> bool:
    """Whether it is the host's, and waits for the same keys in the same order in every step."""
    keys_are_known = all(s.control is None and not callable(s.key) for s in program.segments)
    return keys_are_known and not program.device.is_asynchronous


@final
class _Laid:
    """The segments so far, and which tensors have been sent and not taken."""

    def __init__(self) -> None:
        self.segments: list[Segment] = []
        self._instructions: list[Instruction] = []
        self._nodes: list[Node] = []
        self._sent: set[str] = set()

    def lay(self, program: Program) -> Generator[str, Any, None]:
        """Iterate like `Program.run`, without computing."""
        for segment in program.segments:
            if len(self._instructions) >= MAX_BLOCK_LENGTH:
                self.cut(PAUSE)
            self._instructions += segment.instructions
            self._nodes += segment.nodes
            self._sent.update(tensor_key(node, None) for node in segment.nodes if node.op is send_op)
            key = segment.key
            if key is PAUSE:
                self.cut(PAUSE)
                yield PAUSE
            elif isinstance(key, str):
                while key not in self._sent:
                    yield key
                self._sent.remove(key)
                assert segment.receive is not None
                self._instructions.append((_receive, (program.registers, segment.slot, program.take, key)))
                self._nodes.append(segment.receive)

    def cut(self, key: str | None) -> None:
        self.segments.append(segment_of(self._instructions, self._nodes, key))
        self._instructions, self._nodes = [], []


def _receive(registers: list[Any], slot: int, take: Callable[[str], Any], key: str) -> None:
    registers[slot] = take(key)
