"""A builder: the instructions of one program, or of one function in it, as they are bound."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, final

from flowrt.device.device import Device
from flowrt.device.stream_executor import Stream
from flowrt.executor.program.arguments import Operand
from flowrt.executor.program.control_flow import PAUSE, Control
from flowrt.executor.program.instruction import Action, Call, Instruction, UseStream
from flowrt.executor.program.program import MAX_BLOCK_LENGTH, Line, Segment, segment_of
from flowrt.graph.node import Node

MAX_BLOCK_SECONDS = 10e-3
"""Estimated time between two pauses, after which a step notices that it was cancelled."""
NEGLIGIBLE_S = 1e-6
"""Estimated time of a node that still runs before a pause which is due: so a stage of a pipeline first sends
what it has computed.
"""


@final
class InstructionBuilder:
    """Takes instructions one by one and cuts them into segments. ``depth``: in how many functions it is."""

    def __init__(self, device: Device, depth: int) -> None:
        self.device = device
        self.segments: list[Segment] = []
        self.lines: list[Line] = []
        self.depth = depth
        self.stream = 0
        """Current stream of an asynchronous device."""
        self._instructions: list[Instruction] = []
        self._seconds = self.total_seconds = 0.0

    @property
    def current_stream(self) -> Stream | None:
        """The current stream of an asynchronous device."""
        return self.device.streams[self.stream] if self.device.is_asynchronous else None

    def emit(self, node: Node, action: Action) -> None:
        self._instructions.append(Instruction(node, action))

    def extend(self, instructions: Iterable[Instruction]) -> None:
        """`emit` instructions that are made."""
        self._instructions += instructions

    def emit_call(self, node: Node, function: Callable[..., Any], *arguments: Any) -> None:
        self.emit(node, Call(function, arguments))

    def line(self, node: Node, operands: Sequence[Operand], results: Sequence[Operand]) -> None:
        """Note the operands of an instruction, for its text."""
        self.lines.append(Line(node, operands, results, self.depth))

    def emit_line(
        self, node: Node, action: Action, operands: Sequence[Operand], results: Sequence[Operand]
    ) -> None:
        """`emit` an instruction and note its operands."""
        self._instructions.append(Instruction(node, action))
        self.lines.append(Line(node, operands, results, self.depth))

    def use_stream(self, node: Node, stream: int) -> None:
        """Switch an asynchronous device to that stream for the following instructions, from ``node`` on."""
        if self.device.is_asynchronous and stream != self.stream:
            self.stream = stream
            self.emit(node, UseStream(self.device.streams[stream]))

    def begin_work(self, seconds: float) -> None:
        """Pause before the next node, which takes that time, if it is due by the time of those before."""
        if self._instructions and self._seconds >= MAX_BLOCK_SECONDS and seconds > NEGLIGIBLE_S:
            self.cut(PAUSE, 0)

    def work(self, seconds: float, pause: bool) -> None:
        """Add the time of the last node; pause after it if the block is long, or if ``pause`` is set."""
        self._seconds += seconds
        self.total_seconds += seconds
        if self._instructions and (pause or len(self._instructions) >= MAX_BLOCK_LENGTH):
            self.cut(PAUSE, 0)

    def note_check(self) -> None:
        """The last node has looked itself whether the step must end."""
        self._seconds = 0.0

    def cut(
        self,
        key: str | Callable[[], str] | None,
        slot: int,
        control: Control | None = None,
        receive: Node | None = None,
    ) -> None:
        """End the basic block, and wait for ``key``, which ``receive`` may need, or enter ``control``."""
        self.segments.append(segment_of(self._instructions, key, slot, control, receive))
        self._instructions, self._seconds = [], 0.0
        self.stream = 0  # every basic block begins on the first
