"""A compiled partition: basic blocks of bound calls, separated by waits for tensors that must arrive.

A call is ``(function, arguments)``: everything is bound in advance, so running a basic block is one tight
loop (0.25 us per op with ``np.add`` in it, 0.24 of them the addition). A program is run by a generator, which
yields the key of a tensor that has not arrived; its driver (see `flowrt.executor.program.runner`) decides how
to wait.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import zip_longest
from typing import Any, NamedTuple, final

import numpy as np

from flowrt.device.device import Device
from flowrt.device.llvm.call_sequence import BoundCall
from flowrt.device.stream_executor import Stream
from flowrt.dtypes import as_dtype
from flowrt.errors import OpError
from flowrt.executor.ends.feeds import Feed
from flowrt.executor.observe.step_stats import StepRecorder
from flowrt.executor.observe.stream_times import watch_program
from flowrt.executor.program.arguments import Operand
from flowrt.executor.program.control_flow import PAUSE, Block, Control
from flowrt.executor.program.instruction import Instruction, free_late, python_calls
from flowrt.executor.program.updates import join_updates
from flowrt.graph.evaluate import located
from flowrt.graph.inference import infer_outputs
from flowrt.graph.node import Node, TensorSpec

RUNS_BEFORE_CAPTURE = 2
"""Number of runs before capture: the first run of a program on a GPU compiles kernels and creates handles,
which cannot be captured; the second verifies that none are left.
"""

MAX_BLOCK_LENGTH = 2000
"""Instructions between two pauses: under a millisecond of small ops."""


@final
@dataclass(frozen=True)
class Segment:
    """A basic block, then a loop or branches, or a wait: for ``key``, with its tensor stored in register
    ``slot``; `PAUSE`; or None at the end. In a loop, where the key differs per iteration, it is a function.
    """

    key: str | Callable[[], str] | None
    slot: int
    control: Control | None
    receive: Node | None
    """The receive that waits for ``key``, if any."""
    instructions: tuple[Instruction, ...]

    @cached_property
    def _printed(self) -> tuple[tuple[BoundCall, ...], tuple[Node | None, ...]]:
        """`calls` and `nodes`, printed when they are first run: those of interleaved programs never are."""
        printed = python_calls(self.instructions)
        return tuple([call for call, _ in printed]), tuple([node for _, node in printed])

    @cached_property
    def calls(self) -> tuple[BoundCall, ...]:
        """Calls executed without observers."""
        return self._printed[0]

    @cached_property
    def nodes(self) -> tuple[Node | None, ...]:
        """The node of each call; None for several as one piece of machine code."""
        return self._printed[1]

    def with_instructions(self, instructions: Sequence[Instruction]) -> Segment:
        """The same with other instructions."""
        return segment_of(instructions, self.key, self.slot, self.control, self.receive)


def segment_of(
    instructions: Sequence[Instruction],
    key: str | Callable[[], str] | None = None,
    slot: int = 0,
    control: Control | None = None,
    receive: Node | None = None,
) -> Segment:
    """A segment, with updates and machine code joined."""
    return Segment(key, slot, control, receive, tuple(free_late(join_updates(instructions))))


class Line(NamedTuple):
    """One line of a program's text: the node, where its operands and results are, and in how many functions
    it is.
    """

    node: Node
    operands: Sequence[Operand]
    results: Sequence[Operand]
    depth: int = 0


@final
class Program:
    """A partition, or one host stream of it, bound to its buffers. ``registers`` hold values that are new in
    each step: feeds, received tensors, values of unknown size, results. Runs one step at a time.

    ``is_fixed``: every step makes the same calls on the same memory without involving the host. On a device
    that supports it, such a program is captured after `RUNS_BEFORE_CAPTURE` runs and launched as one unit
    from then on.
    """

    __slots__ = (
        "_blank", "_nodes", "_position", "_results", "_runs_to_capture", "device", "feeds", "fetches",
        "launch", "lines", "registers", "segments", "stream", "take",
    )  # fmt: skip

    def __init__(
        self,
        device: Device,
        stream: int,
        segments: Sequence[Segment],
        registers: list[Any],
        feeds: Sequence[Feed],
        fetches: Sequence[Callable[[], Any]],
        take: Callable[[str, Any], Any],
        lines: Sequence[Line],
        is_fixed: bool = False,
    ) -> None:
        self.device = device
        self.stream = stream
        """Index of the host stream that runs it."""
        self.segments = tuple(segments)
        self.registers = registers
        self.feeds = feeds
        """Feeds in order."""
        self.fetches = fetches
        """One function a fetch, in order: the value, which is the caller's."""
        self.take = take
        self.lines = lines
        self.launch: Callable[[], None] | None = None
        """The whole step as one call, once it was captured."""
        self._blank = self._results = list(registers)
        self._nodes: tuple[Node | None, ...] = ()
        """The nodes of the basic block that runs, for `current_operation`."""
        self._position: Iterator[BoundCall] | None = None
        """The calls of that block that have not begun."""
        self._runs_to_capture = RUNS_BEFORE_CAPTURE if is_fixed else -1

    @property
    def is_straight(self) -> bool:
        """Whether it is one basic block, without waits, that runs on the host."""
        return (
            len(self.segments) == 1 and self.segments[0].control is None and not self.device.is_asynchronous
        )

    @property
    def name(self) -> str:
        """The device's name, followed by the stream unless it is the first."""
        return f"{self.device.name}{f'/stream:{self.stream}' if self.stream else ''}"

    def reset(self) -> None:
        """Release the step's values."""
        self.registers[:] = self._blank

    @property
    def current_operation(self) -> Node | None:
        """The innermost operation that the program is at, as seen from any thread; None if it waits, or runs
        several as one piece of machine code. Steps of `run_straight` do not count.
        """
        position, nodes = self._position, self._nodes
        index = -1 if position is None else len(nodes) - position.__length_hint__() - 1  # type: ignore[attr-defined]
        return nodes[index] if 0 <= index < len(nodes) else None

    def run_straight(self) -> None:
        """`run` for a program without waits."""
        segment = self.segments[0]
        position = iter(segment.calls)
        try:
            for function, arguments in position:
                function(*arguments)
        except Exception as error:  # noqa: BLE001 (raised with a type)
            raise blame(segment, position, error) from cause(error)

    def run(self) -> Generator[str, Any, None]:
        """Run to the end. Yields missing keys (to be resumed with the value, or None to check again)."""
        if self.launch is not None or (self._runs_to_capture == 0 and self._capture()):
            return self._run_captured()
        self._runs_to_capture -= 1
        return self._walk(self.segments, self._run_calls, self._wait)

    def run_stepwise(self) -> Generator[str, Any, None]:
        """Run like `run`, with a pause after every instruction: for schedulers that interleave programs."""
        return self._walk(self.segments, self._run_stepwise, self._wait)

    def run_traced(self, clock: Callable[[], int], recorder: StepRecorder) -> Generator[str, Any, None]:
        """`run` with ``recorder`` called for each node, and for each receive's wait, with nanoseconds of
        ``clock``.
        """
        watch = watch_program(self.device, self.stream, clock, recorder)

        def run(segment: Segment) -> Sequence[str]:
            stream, first = None, watch.mark(None)
            for instruction, following in _with_following(segment.instructions):
                stream = self._execute(instruction, stream)
                if following is not instruction.node:  # otherwise it frees values that the node has read
                    watch.record(stream, instruction.node, first)
                    first = watch.mark(stream)
            return ()

        def wait(segment: Segment) -> Generator[str, Any, None]:
            start = clock()
            yield from self._wait(segment)
            if segment.receive is not None:
                watch.waited(segment.receive, start, clock(), is_wait=True)

        yield from self._walk(self.segments, run, wait)
        watch.settle()

    def _walk(
        self, block: Block, run: Callable[[Segment], Iterable[str]], wait: Callable[[Segment], Iterable[str]]
    ) -> Generator[str, Any, None]:
        """Each segment of ``block``: its instructions by ``run``, then a loop, branches, or ``wait``."""
        is_plain = run == self._run_calls
        for segment in block:
            yield from run(segment)
            if segment.control is not None:
                inner = partial(self._walk, run=run, wait=wait)
                yield from segment.control.run(inner, self._run_calls if is_plain else None)
            elif segment.key is PAUSE:
                yield PAUSE
            elif segment.key is not None:
                yield from wait(segment)

    def _run_calls(self, segment: Segment) -> Sequence[str]:
        """The instructions of ``segment``, without an observer."""
        self._nodes = segment.nodes
        position = self._position = iter(segment.calls)
        try:
            if not self.device.is_asynchronous:  # nothing to enter
                for function, arguments in position:
                    function(*arguments)
            else:
                with self.device.activate():
                    for function, arguments in position:
                        function(*arguments)
        except Exception as error:  # noqa: BLE001 (raised with a type)
            raise blame(segment, position, error) from cause(error)
        self._position = None
        return ()

    def _run_stepwise(self, segment: Segment) -> Generator[str, Any, None]:
        stream = None
        for instruction in segment.instructions:
            stream = self._execute(instruction, stream)
            try:
                yield PAUSE
            except OpError as error:  # the driver of the program ends it here
                raise located(instruction.node, error) from None

    def _execute(self, instruction: Instruction, stream: Stream | None) -> Stream | None:
        """Execute one instruction, with ``stream`` as the current one; returns the stream after it."""
        node, action = instruction
        function, arguments = action.bound()
        self._nodes, self._position = (node,), iter(())
        try:
            with self._enter(stream):
                function(*arguments)
                stream = self.device.executor.current_stream
        except Exception as error:  # noqa: BLE001 (raised with a type)
            raise _typed(node, arguments, error) from cause(error)
        self._position = None
        return stream

    @property
    def _enter(self) -> Callable[..., AbstractContextManager[Any]]:
        """The context in which instructions run; it is left during a wait, when another program may run."""
        return self.device.activate if self.device.is_asynchronous else nullcontext

    def _wait(self, segment: Segment) -> Generator[str, Any, None]:
        key = segment.key
        if not isinstance(key, str):
            assert key is not None
            key = key()
        value = self.take(key, None)
        while value is None:
            value = yield key
            if value is None:
                value = self.take(key, None)
        self.registers[segment.slot] = value

    # --- as one unit

    def _capture(self) -> bool:
        """Make `launch`; False if the device cannot, or not now."""
        executor, stream = self.device.executor, self.device.streams[0]

        def run() -> None:
            for segment in self.segments:
                executor.use(stream)
                for function, arguments in segment.calls:
                    function(*arguments)

        with self.device.alone() as is_alone:
            if not is_alone:
                self._runs_to_capture += 1  # the next run tries again
                return False
            self.launch = executor.capture(stream, run)
        self._results = list(self.registers)
        return self.launch is not None

    def _run_captured(self) -> Generator[str, Any, None]:
        with self._enter():
            self.launch()  # type: ignore[misc]  # it was captured
        self.registers[:] = self._results
        yield from ()

    def __str__(self) -> str:
        """The program as text, one line per instruction: result, op, operands, shape and the user's line."""
        return "\n".join([f"program {self.name}", *(_format_line(line) for line in self.lines)])


def _format_line(line: Line) -> str:
    node = line.node
    shapes = ", ".join(str(spec) for spec in node.outputs)
    operands, results = (", ".join(o.text for o in places) for places in (line.operands, line.results))
    arguments = ", ".join(filter(None, [operands, *_flags(node)]))
    text = f"  {'    ' * line.depth}{results or '-':<8} = {node.op.name}({arguments})"
    return f"{text:<56} {shapes:<20} # {node.name}" + (f"  {node.source}" if node.source else "")


def _flags(node: Node) -> list[str]:
    """The switches of ``node`` that are on and not by default: ``transpose_a``."""
    known = node.op.attrs
    return [
        key for key, value in node.attrs.items() if value is True and key in known and not known[key].default
    ]


def _with_following(instructions: Sequence[Instruction]) -> Iterator[tuple[Instruction, Node | None]]:
    """Each of ``instructions`` with the next one's node."""
    return zip_longest(instructions, [instruction.node for instruction in instructions[1:]])


def blame(segment: Segment, position: Iterator[BoundCall], error: Exception) -> Exception:
    """``error`` as a typed error that names the node of the call before ``position``."""
    index = len(segment.calls) - position.__length_hint__() - 1  # type: ignore[attr-defined]  # a tuple's
    node, (_, arguments) = segment.nodes[index], segment.calls[index]
    return error if node is None or index < 0 else _typed(node, arguments, error)


def _typed(node: Node, arguments: tuple[Any, ...], error: Exception) -> Exception:
    return _refusal(node, arguments, error) or located(node, error)


def _refusal(node: Node, arguments: Any, error: Exception) -> OpError | None:
    """The shape rule's error for the actual arrays, if the array library rejected them with its own error.
    None if the rule accepts them, or not all are available.
    """
    values = [v for a in arguments for v in (a if _is_list_of_arrays(a) else (a,))][: len(node.inputs)]
    if not isinstance(error, ValueError) or isinstance(error, OpError) or len(values) < len(node.inputs):
        return None
    if not all(hasattr(v, "dtype") or isinstance(v, (int, float, tuple)) for v in values):
        return None  # a resource
    held = [v if hasattr(v, "dtype") else np.asarray(v) for v in values]
    specs = [TensorSpec(as_dtype(v.dtype), v.shape) for v in held]
    try:
        infer_outputs(
            node.op,
            node.name,
            node.attrs,
            specs,
            [spec.dtype for spec in node.outputs],
            lambda i: None if hasattr(values[i], "dtype") else values[i],
            node.source,
        )
    except OpError as refused:
        return refused
    return None


def _is_list_of_arrays(argument: Any) -> bool:
    return isinstance(argument, (tuple, list)) and any(hasattr(item, "dtype") for item in argument)


def cause(error: Exception) -> BaseException | None:
    """The original cause of ``error``: the exception of the user's own function if a kernel wrapped it."""
    return error.__cause__ if isinstance(error, OpError) else error
