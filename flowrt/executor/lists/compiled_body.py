"""Loops and branches consisting only of calls of compiled loops, including nested loops and branches, as
machine code.

A small step then costs only its computation, including the values saved for a gradient. Bound instructions
are inspected: a block with only compiled calls becomes part of a program of calls
(`flowrt.device.llvm.call_program`), and the enclosing block can become one in turn.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import NamedTuple, TypeAlias

from flowrt.device.device import Device
from flowrt.device.llvm.call_program import LEFT, PAUSED_AT, Choose, Part, Parts, Repeat, program_of, walker
from flowrt.device.llvm.call_program import Guarded as GuardedPart
from flowrt.device.llvm.call_sequence import Array, MachineCall, Table
from flowrt.errors import OpError
from flowrt.executor.buffers.buffer_assignment import nbytes_of
from flowrt.executor.kernels.copy_kernels import copy_call, is_fit
from flowrt.executor.kernels.iterated_program import is_scalar_loop
from flowrt.executor.kernels.small_calls import may_be_small
from flowrt.executor.lists.indexed_rows import AddedRows, ReadRows, SetRows
from flowrt.executor.lists.list_rows import PushedRows, RowList, StackedRows, TakenRows
from flowrt.executor.lists.nested_lists import NO_LISTS, NestedLists
from flowrt.executor.lists.nested_rows import PushedLists, TakenLists
from flowrt.executor.lists.open_lists import OpenList
from flowrt.executor.program.arguments import Operand
from flowrt.executor.program.instruction import Call, Checked, Copy, Guarded, Instruction
from flowrt.executor.program.program import Segment, segment_of
from flowrt.executor.program.time_slice import TimeSlice
from flowrt.graph.evaluate import located
from flowrt.graph.node import Node, Subgraph, owned_subgraphs
from flowrt.graph.op_def import Effect
from flowrt.graph.op_facets import ListUse
from flowrt.graph.shapes import is_static
from flowrt.loops.loop_program import DTYPES

Check: TypeAlias = tuple[Node, Callable[[], None]]
"""A node, and a function that raises its error if it rejected its inputs."""

MAX_ROW_BYTES = 1 << 17
"""Maximum size in bytes of a list element: copying it takes 5 us."""

FIRST_NS = 1e5
"""Estimated time of the first call."""


def may_be_compiled(body: Subgraph, lists: Mapping[str, OpenList], nested: NestedLists = NO_LISTS) -> bool:
    """Whether a loop's body may be compiled entirely, judged before binding. Its open ``lists`` are keyed by
    the operations that change them; lists of lists are ``nested``.
    """
    known = [lists, nested.changed, nested.empty]
    are_calls = all(any(node.name in n for n in known) or _may_be_call(body, node, nested) for node in body)
    return are_calls and all(_has_rows(body, opened) for opened in lists.values())


def _may_be_call(body: Subgraph, node: Node, nested: NestedLists) -> bool:
    if "group" in node.attrs:
        return True
    if node.name in nested.inner:
        return may_be_compiled(node.attrs["body"], *nested.inner[node.name])
    if node.op.effect is Effect.NESTED:
        functions = owned_subgraphs(node.attrs)
        return is_scalar_loop(node) or all(may_be_compiled(function, {}) for function in functions)
    return node.op.name in ("_Feed", "Const") or node.op.alias or may_be_small(body, node)


def _has_rows(body: Subgraph, opened: OpenList) -> bool:
    """Whether the elements are of a shape that is known, small, and can be copied by loops."""
    node, lists = opened.node, opened.node.op.lists
    assert lists is not None
    spec = body.spec(lists.element_of(node))
    return is_static(spec.shape) and spec.dtype.name in DTYPES and 0 < nbytes_of(spec) <= MAX_ROW_BYTES


_ROWS: Mapping[ListUse, Callable[[OpenList, Device], RowList]] = {
    ListUse.PUSHED: PushedRows,
    ListUse.POPPED: TakenRows,
    ListUse.READ: ReadRows,
    ListUse.SET: SetRows,
    ListUse.ADDED: AddedRows,
}
"""Row binder by the operation's use of the list."""


def row_list(opened: OpenList, device: Device) -> RowList:
    """The list, to be bound as ``opened`` would be."""
    lists = opened.node.op.lists
    assert lists is not None
    return _ROWS[lists.use](opened, device)


def list_of_lists(opened: OpenList, device: Device) -> StackedRows:
    """The same for a list of lists."""
    return (PushedLists if opened.is_pushed else TakenLists)(opened, device)


class Fallback(NamedTuple):
    """Fallback of ``node``: recomputed in Python if ``status`` is set, during a pause of the machine code."""

    node: Node
    status: Array
    fallback: Callable[[], None]


class DeferredChecks(NamedTuple):
    """Deferred checks after machine code returns."""

    fallbacks: Sequence[Fallback] = ()
    checks: Sequence[Check] = ()

    @staticmethod
    def of_all(several: Iterable[DeferredChecks]) -> DeferredChecks:
        items = list(several)
        fallbacks = [fallback for item in items for fallback in item.fallbacks]
        return DeferredChecks(fallbacks, [check for item in items for check in item.checks])

    def behind(self, prepare: Callable[[], None]) -> DeferredChecks:
        """The same with ``prepare()`` before each fallback."""

        def prepared(fallback: Callable[[], None]) -> None:
            prepare()
            fallback()

        fallbacks = [item._replace(fallback=partial(prepared, item.fallback)) for item in self.fallbacks]
        return self._replace(fallbacks=fallbacks)

    def look(self) -> None:
        """Run the fallbacks; raise deferred errors, naming their nodes."""
        for node, status, fallback in self.fallbacks:
            if status[0]:
                status[0] = 0
                _named(node, fallback)
        for node, check in self.checks:
            _named(node, check)


def _named(node: Node, function: Callable[[], None]) -> None:
    try:
        function()
    except OpError as error:
        raise located(node, error) from None


class Compiled(NamedTuple):
    """A loop or branches as machine code."""

    part: Part
    deferred: DeferredChecks


class Block(NamedTuple):
    """A bound function as machine code."""

    parts: Parts
    deferred: DeferredChecks


def compiled_block(segments: Sequence[Segment]) -> Block | None:
    """``segments`` as machine code; None if something is more than that."""
    parts: list[Part] = []
    found: list[DeferredChecks] = []
    for segment in segments:
        for instruction in segment.instructions:
            compiled = _compiled_instruction(instruction)
            if compiled is None:
                return None
            parts.append(compiled.part)
            found.append(compiled.deferred)
        if segment.control is not None:
            if segment.control.compiled is None:
                return None
            parts.append(segment.control.compiled.part)
            found.append(segment.control.compiled.deferred)
        elif segment.key is not None:
            return None
    return Block(tuple(parts), DeferredChecks.of_all(found))


def _compiled_instruction(instruction: Instruction) -> Compiled | None:
    node, action = instruction
    match action:
        case MachineCall():
            return Compiled(action, DeferredChecks())
        case Copy(target, source) if is_fit(target) and is_fit(source) and target.shape == source.shape:
            return Compiled(copy_call(target, source), DeferredChecks())
        case Checked(call, check):
            return Compiled(call, DeferredChecks(checks=[(node, check)]))
        case Guarded(call, status, fallback):
            return Compiled(GuardedPart(call, status), DeferredChecks([Fallback(node, status, fallback)]))
    return None


def compiled_branches(index: Operand, blocks: Sequence[Sequence[Segment]]) -> Compiled | None:
    """The choice between ``blocks`` as machine code; None if something is more than that."""
    if index.slot is not None:
        return None
    found: list[Block] = []
    for segments in blocks:
        block = compiled_block(segments)
        if block is None:
            return None
        found.append(block)
    part = Choose(index.value, tuple([block.parts for block in found]))
    return Compiled(part, DeferredChecks.of_all([block.deferred for block in found]))


class Iterations(NamedTuple):
    """All iterations of a loop: a segment that runs as many as possible without a pause, the table of the
    call in it, and whether the loop is paused.
    """

    segment: Segment
    table: Table
    goes_on: Callable[[], int]


def iterations_of(node: Node, block: Block, again: Array) -> Iterations:
    """The iterations of the loop ``node`` with the body ``block``, while ``again``, a bool, is true."""
    table = program_of((Repeat(None, again, block.parts),))
    function = walker().call
    words = table.words.data  # a look-up takes 40 ns, an array element's 100
    goes_on = partial(words.__getitem__, PAUSED_AT)

    def iterate(count: int) -> int:
        """Returns how many were made, 1 where the first of them was not finished."""
        function(table, 0, count)
        return max(1, count - words[LEFT])

    def iterate_and_look(count: int) -> int:
        """A body affects only the loop's variables, so continuing after an error is harmless."""
        made = iterate(count)
        block.deferred.look()
        return made

    first = max(1, int(FIRST_NS / table.nanoseconds))
    time_slice = TimeSlice(iterate_and_look if any(block.deferred) else iterate, goes_on, first)
    return Iterations(segment_of([Instruction(node, Call(time_slice))]), table, goes_on)
