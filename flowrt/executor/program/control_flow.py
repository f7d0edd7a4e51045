"""Control flow at run time: loops and branches between the basic blocks of a program.

A `Loop` or a `Branches` is at the end of a segment in place of a wait. It contains segments itself, so a loop
may wait in its body as a program does between its basic blocks. Values are not handled here: arguments and
results are moved by instructions of the blocks around and inside.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, TypeAlias, final

from flowrt.device.llvm.call_sequence import MachineCall, Table
from flowrt.errors import OpError
from flowrt.graph.evaluate import located
from flowrt.graph.node import Node

if TYPE_CHECKING:
    from flowrt.executor.program.instruction import Checked
    from flowrt.executor.program.program import Segment

Block: TypeAlias = tuple["Segment", ...]
RunBlock: TypeAlias = Callable[[Block], Generator[str, Any, None]]

PAUSE = "<pause>"
"""Yielded in place of a key, so that the driver can check deadlines and cancellation."""


@final
class Frame:
    """Position of a step in its loops: the iteration of the innermost, and a number for the path to it.

    Keys of tensors that cross devices inside a loop contain both; all devices count identically. ``site``
    names the loop.
    """

    __slots__ = ("_number", "_outer", "_site", "iteration")

    def __init__(self, outer: Frame | None, site: str) -> None:
        self._outer, self._site = outer, site
        self._number: int | None = None
        self.iteration = 0

    def enter(self) -> None:
        """A loop begins."""
        self.iteration, self._number = 0, None

    @property
    def number(self) -> int:
        """The number of the path to the loop, the iteration there, and the loop itself."""
        if self._number is None:
            outer = self._outer
            path = self._site if outer is None else f"{outer.number}:{outer.iteration}:{self._site}"
            self._number = int.from_bytes(blake2b(path.encode(), digest_size=8).digest(), "little")
        return self._number

    def key(self, prefix: str) -> str:
        """The key that begins with ``prefix``, in this iteration."""
        return f"{prefix}{self.number}:{self.iteration}"


@final
class Loop:
    """``body`` of ``node`` again and again: once if ``begins()``, then as long as ``goes_on()``."""

    __slots__ = (
        "_begins",
        "_frame",
        "_goes_on",
        "_iterations_a_pause",
        "body",
        "bound_body",
        "compile",
        "nest",
        "node",
        "predicates",
    )

    def __init__(
        self,
        node: Node,
        begins: Callable[[], Any],
        goes_on: Callable[[], Any],
        body: Block,
        frame: Frame,
        iterations_a_pause: int,
        predicates: tuple[Any, Any],
    ) -> None:
        self.node = node
        self.predicates = predicates
        """The bools in memory that ``begins`` and ``goes_on`` read; None for one that is elsewhere."""
        self.compile: Callable[[], None] | None = None
        """Compiles the loop on its own, if it does not become part of an enclosing one."""
        self._begins, self._goes_on, self.body, self._frame = begins, goes_on, body, frame
        self.bound_body = body
        """The body as it was bound, before `replace`."""
        self.nest: Table | None = None
        """The table of the machine code that makes the iterations, if it does."""
        self._iterations_a_pause = iterations_a_pause

    def replace(self, segment: Segment, goes_on: Callable[[], Any], nest: Table) -> None:
        """Run ``segment``, machine code with the table ``nest`` for many iterations, as long as
        ``goes_on()``.
        """
        self.body, self._goes_on, self._iterations_a_pause = (segment,), goes_on, 1
        self.nest = nest

    def run(
        self, run_block: RunBlock, run_instructions: Callable[[Segment], object] | None
    ) -> Generator[str, Any, None]:
        """Run all iterations. ``run_instructions``, if given, runs a basic block without interruption."""
        if not self._begins():
            return
        frame, goes_on, body = self._frame, self._goes_on, self.body
        frame.enter()
        if run_instructions is not None and len(body) == 1 and body[0].control is None:
            yield from self._run_straight(run_instructions)
            return
        count = 0
        while True:
            yield from run_block(body)
            if not goes_on():
                return
            frame.iteration += 1
            count += 1
            if count >= self._iterations_a_pause:
                count = 0
                yield from self._pause()

    def _run_straight(self, run_instructions: Callable[[Segment], object]) -> Generator[str, Any, None]:
        """The iterations of a body in which nothing waits."""
        goes_on, (segment,), frame = self._goes_on, self.body, self._frame
        while True:
            for _ in range(self._iterations_a_pause):
                run_instructions(segment)
                if not goes_on():
                    return
                frame.iteration += 1
            yield from self._pause()

    def _pause(self) -> Generator[str, Any, None]:
        try:
            yield PAUSE
        except OpError as error:  # the driver of the program ends it here
            raise located(self.node, error) from None


@final
class Branches:
    """One of ``blocks`` of ``node``: the one at ``index()``, by default the last."""

    __slots__ = ("_index", "blocks", "compiled", "nest", "node", "number")

    def __init__(self, node: Node, index: Callable[[], Any], blocks: Sequence[Block], number: Any) -> None:
        self.node = node
        self._index, self.blocks = index, blocks
        self.number = number
        """The index in memory; None if it is elsewhere."""
        self.compiled: MachineCall | Checked | None = None
        """Machine code in place of this, if there is any."""
        self.nest: Table | None = None
        """The table of that machine code."""

    def run(self, run_block: RunBlock, _: Any) -> Generator[str, Any, None]:
        index = int(self._index())
        yield from run_block(self.blocks[index if 0 <= index < len(self.blocks) else -1])


Control: TypeAlias = Loop | Branches


def loops_in(block: Block) -> Iterator[Loop]:
    """The loops in ``block``, in branches too, but not in loops."""
    for control in [segment.control for segment in block if segment.control is not None]:
        if isinstance(control, Loop):
            yield control
        else:
            for branch in control.blocks:
                yield from loops_in(branch)
