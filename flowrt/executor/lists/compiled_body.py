"""Loops and branches that consist only of machine code: compiled to one function per nest.

A small step then costs only its computation, including the values saved for a gradient. Binding gives a body
the same instructions whether they become machine code or not: if all of them are compiled loops, scalar code
and rows of lists, a `Lowering` makes a control nest of them (`flowrt.loops.control_nest`) and the table of
its function. Otherwise they are called from Python.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple, final

from flowrt import dtypes
from flowrt.device.device import Device
from flowrt.device.llvm.call_sequence import CALL_NS, Array, MachineCall, Table
from flowrt.device.llvm.host_jit import CompiledLoop
from flowrt.device.memory_ranges import Ranges, bounds
from flowrt.errors import OpError
from flowrt.executor.buffers.buffer_assignment import nbytes_of
from flowrt.executor.kernels.copy_kernels import copy_call, is_fit
from flowrt.executor.kernels.loop_layout import compiled
from flowrt.executor.kernels.scalar_code import ScalarCode, scalar_copy
from flowrt.executor.kernels.small_calls import may_be_small
from flowrt.executor.lists.indexed_rows import AddedRows, ReadRows, WrittenRows
from flowrt.executor.lists.list_rows import PushedRows, RowList, TakenRows
from flowrt.executor.lists.loop_lists import LoopList, loop_lists
from flowrt.executor.lists.open_lists import OpenList, PythonList
from flowrt.executor.lists.row_access import RowAccess
from flowrt.executor.program.control_flow import Branches, Control, Loop
from flowrt.executor.program.instruction import Action, Call, Checked, Instruction, Move
from flowrt.executor.program.program import Segment, segment_of
from flowrt.executor.program.time_slice import TimeSlice
from flowrt.graph.evaluate import located
from flowrt.graph.node import Node, Subgraph, owned_subgraphs
from flowrt.graph.op_def import Effect
from flowrt.graph.op_facets import ListUse
from flowrt.graph.shapes import is_static
from flowrt.loops.control_nest import (
    LEFT,
    POSITION,
    BasicBlock,
    Cell,
    Choice,
    ControlNest,
    Invoke,
    Push,
    Repetition,
    Step,
    Steps,
    Take,
    steps_in,
)
from flowrt.loops.llvm_nest import llvm_nest
from flowrt.loops.loop_program import DTYPES

MAX_ROW_BYTES = 1 << 17
"""Maximum size in bytes of a list element: copying it takes 5 us."""

FIRST_NS = 1e5
"""Estimated time of the first call."""

INSTRUCTION_NS = 1.0
"""Estimated time of a scalar instruction."""


# --- before binding


def loop_may_be_compiled(loop: Node) -> bool:
    """Whether the body of ``loop`` may be compiled entirely, judged before binding."""
    body: Subgraph = loop.attrs["body"]
    lists = loop_lists(loop)
    return may_be_compiled(body, {body.feeds[k] for k, one in lists.items() if _has_rows(one)})


def may_be_compiled(function: Subgraph, rows: Collection[str] = ()) -> bool:
    """The same for a function; its parameters ``rows`` are lists that are rows."""
    return all(_may_be_step(function, node, rows) for node in function)


def _may_be_step(function: Subgraph, node: Node, rows: Collection[str]) -> bool:
    if "group" in node.attrs:
        return True
    if node.op.lists is not None:
        return bool(node.inputs) and node.inputs[0][0] in rows
    if node.op.name == "_Loop":
        lists = [ref for ref in node.inputs if function.spec(ref).dtype is dtypes.variant]
        return loop_may_be_compiled(node) and all(name in rows for name, _ in lists)
    if node.op.effect is Effect.NESTED:
        return all(may_be_compiled(inner) for inner in owned_subgraphs(node.attrs))
    return node.op.name in ("_Feed", "Const") or node.op.alias or may_be_small(function, node)


def _has_rows(found: LoopList) -> bool:
    """Whether the elements are of a shape that is known, small, and can be copied by loops."""
    spec = found.element
    return is_static(spec.shape) and spec.dtype.name in DTYPES and 0 < nbytes_of(spec) <= MAX_ROW_BYTES


_ROWS: Mapping[ListUse, Callable[[int, Device], RowList]] = {
    ListUse.PUSHED: PushedRows,
    ListUse.POPPED: TakenRows,
    ListUse.READ: ReadRows,
    ListUse.SET: WrittenRows,
    ListUse.ADDED: AddedRows,
}
"""Row binder by the operation's use of the list."""


def open_list(found: LoopList, slot: int, device: Device, may_be_rows: bool) -> OpenList | None:
    """The list in register ``slot`` as it is while the loop runs: rows, if ``may_be_rows`` says that the loop
    that uses it may become machine code; a Python list, if that only pushes or pops; None for the list value.
    """
    if may_be_rows and _has_rows(found):
        return _ROWS[found.use](slot, device)
    is_stack = found.use is ListUse.PUSHED or (found.use is ListUse.POPPED and is_static(found.element.shape))
    return PythonList(slot, device) if is_stack and device.executor.computes else None


# --- what is left to Python


class DeferredCheck(NamedTuple):
    """A call of ``run()``, which may raise, for ``node`` after machine code has paused or ended; with a
    ``status`` only if that is set.
    """

    node: Node
    run: Callable[[], None]
    status: memoryview | None = None  # a look-up takes 40 ns, an array element's 100

    def look(self) -> None:
        """Raises errors that name the node."""
        if self.status is not None:
            if not self.status[0]:
                return
            self.status[0] = 0
        try:
            self.run()
        except OpError as error:
            raise located(self.node, error) from None


# --- lowering


class NotMachineCode(Exception):
    """An instruction that is more than machine code."""


class CompiledNest(NamedTuple):
    """The function of a nest, its table, and what is left to Python when it pauses or ends."""

    loop: CompiledLoop
    table: Table
    checks: Sequence[DeferredCheck]


@final
class Lowering:
    """Makes a nest of bound instructions, step by step, and the table of its function."""

    def __init__(self) -> None:
        self._words: list[Any] = [0, 0]
        self._cells: dict[tuple[int, str], int] = {}
        """Numbers of the cells by address and dtype."""
        self._arrays: list[Array] = []
        """Their arrays."""
        self._places: list[int] = []
        """The words of their addresses."""
        self._called: list[Table] = []
        """The tables of calls and lists."""
        self._checks: list[DeferredCheck] = []
        self._nanoseconds = 0.0

    def compile(self, steps: Steps, results: Sequence[Array] = ()) -> CompiledNest:
        """The function of ``steps``. Those of ``results`` that are cells are in memory at its end."""
        called = Ranges([bounds(array) for table in self._called for array in table.arrays()])
        dtypes = [array.dtype.name for array in self._arrays]
        shared = [called.overlaps(bounds(array)) for array in self._arrays]
        cells = tuple(map(Cell, dtypes, self._places, shared))
        wanted = [self._cells.get(_key(array)) for array in results if is_fit(array)]
        kept = frozenset([cell for cell in wanted if cell is not None and not shared[cell]])
        text = llvm_nest(ControlNest(steps, cells, kept))
        table = Table.of(self._words, max(1.0, self._nanoseconds))
        return CompiledNest(compiled(text), table, self._checks)

    def block(self, segments: Sequence[Segment]) -> Steps:
        """The steps of a bound function. Raises `NotMachineCode`."""
        steps: list[Step] = []
        for segment in segments:
            for node, action in segment.instructions:
                steps.append(self._instruction(node, action))
            if segment.control is not None:
                steps.append(self._control(segment.control))
            elif segment.key is not None:
                raise NotMachineCode
        return tuple(steps)

    def iterations(self, loop: Loop) -> Repetition:
        """The iterations of a loop that begins. Raises `NotMachineCode`."""
        return Repetition(None, self._cell(loop.predicates[1]), self.block(loop.body))

    def choice(self, branches: Branches) -> Choice:
        """Raises `NotMachineCode`."""
        return Choice(self._cell(branches.number), tuple([self.block(block) for block in branches.blocks]))

    def _control(self, control: Control) -> Step:
        match control:
            case Loop():
                return self.iterations(control)._replace(begins=self._cell(control.predicates[0]))
            case Branches():
                return self.choice(control)

    def _instruction(self, node: Node, action: Action) -> Step:
        match action:
            case MachineCall():
                return self._invoke(action)
            case ScalarCode():
                return self._scalars(action)
            case Move(target, source) if is_fit(target) and is_fit(source) and target.shape == source.shape:
                is_scalar = target.shape == ()
                return (
                    self._scalars(scalar_copy(target, source))
                    if is_scalar
                    else self._invoke(copy_call(target, source))
                )
            case Checked(MachineCall() as call, settle, status) if status is not None:
                self._checks.append(DeferredCheck(node, settle, status.data))
                return self._invoke(call)._replace(status=self._word(status))
            case Checked(MachineCall() as call, settle):
                self._checks.append(DeferredCheck(node, settle))
                return self._invoke(call)
            case RowAccess(step, table, _, status, run):
                self._checks.append(DeferredCheck(node, run, status.data))
                self._nanoseconds += table.nanoseconds
                self._called.append(table)
                return step._replace(word=self._word(table))
        raise NotMachineCode

    def _invoke(self, call: MachineCall) -> Invoke:
        self._nanoseconds += CALL_NS + call.table.nanoseconds
        self._called.append(call.table)
        return Invoke(self._word(*call))

    def _scalars(self, code: ScalarCode) -> BasicBlock:
        self._nanoseconds += INSTRUCTION_NS * len(code.program.instructions)
        return BasicBlock(code.program, tuple(map(self._cell, code.arrays)))

    def _cell(self, array: Any) -> int:
        """The number of the cell in ``array``, of one element. Raises `NotMachineCode` for other values."""
        if not is_fit(array) or array.size != 1:
            raise NotMachineCode
        key = _key(array)
        if key not in self._cells:
            self._cells[key] = len(self._cells)
            self._arrays.append(array)
            self._places.append(self._word(array, 0))
        return self._cells[key]

    def _word(self, *words: Any) -> int:
        """Append ``words`` to the table; returns the position of the first."""
        self._words += words
        return len(self._words) - len(words)


def _key(array: Array) -> tuple[int, str]:
    return array.ctypes.data, array.dtype.name


def may_pause(steps: Steps) -> bool:
    """Whether the function of ``steps`` may return before its end."""
    return any(
        isinstance(step, Push | Take | Repetition) or (isinstance(step, Invoke) and step.status is not None)
        for step in steps_in(steps)
    )


# --- compiled controls


def compile_loop(loop: Loop, results: Sequence[Any]) -> bool:
    """Have machine code make the iterations of ``loop``, with its ``results``, as many as possible without a
    pause. Returns whether it does: not if the body is more than machine code.
    """
    lowering = Lowering()
    try:
        steps = (lowering.iterations(loop),)
    except NotMachineCode:
        return False
    function, table, checks = lowering.compile(steps, results)
    call, words = function.call, table.words.data  # a look-up takes 40 ns, an array element's 100
    goes_on = partial(words.__getitem__, POSITION)

    def iterate(count: int) -> int:
        """Returns how many were made, 1 where the first of them was not finished."""
        call(table, 0, count)
        return max(1, count - words[LEFT])

    def iterate_and_look(count: int) -> int:
        """A body affects only the loop's variables, so continuing after an error is harmless."""
        made = iterate(count)
        for check in checks:
            check.look()
        return made

    first = max(1, int(FIRST_NS / table.nanoseconds))
    time_slice = TimeSlice(iterate_and_look if checks else iterate, goes_on, first)
    loop.replace(segment_of([Instruction(loop.node, Call(time_slice))]), goes_on, table)
    return True


def compile_branches(branches: Branches, results: Sequence[Any]) -> None:
    """Make one call of machine code of ``branches``, with their ``results``, unless they are more than that,
    or may pause.
    """
    lowering = Lowering()
    try:
        choice = lowering.choice(branches)
    except NotMachineCode:
        return
    if may_pause((choice,)):
        return
    function, table, checks = lowering.compile((choice,), results)
    call = MachineCall(function, table, 0, 1)

    def look() -> None:
        for check in checks:
            check.look()

    branches.compiled, branches.nest = Checked(call, look) if checks else call, table
