"""Updates of variables by compiled loops, adjacent ones joined: an optimizer's are one call.

    Update, Update, Free, Update  ->  Updates, Free

A gradient in a register, received or new in each step, is looked up at each call. It is copied if its layout
does not fit. As in the operations' own kernels, all variables are locked meanwhile, in a fixed order, and all
must be initialized.
"""

from __future__ import annotations

from collections.abc import Sequence
from threading import Lock
from typing import Any, NamedTuple, final

from flowrt.device.host_memory import address_of
from flowrt.device.llvm.call_sequence import Array, BoundCall, MachineCall, Table, in_parallel, in_sequence
from flowrt.device.llvm.host_pool import PARALLEL_NS
from flowrt.device.memory_ranges import Range, Ranges, bounds
from flowrt.errors import FailedPreconditionError, InvalidArgumentError
from flowrt.executor.program.arguments import LateArray
from flowrt.executor.program.instruction import Free, Instruction
from flowrt.graph.evaluate import located
from flowrt.graph.node import Node
from flowrt.graph.resources.variables import VariableResource, locks_of


class Update(NamedTuple):
    """The update of ``node``: ``calls``, with one table, that write ``variables``, of which the ``needed``
    must have a value, and read ``arrays`` and, by the position of its address in the table, each of ``late``,
    which are in ``registers``.
    """

    node: Node
    variables: tuple[VariableResource, ...]
    needed: tuple[VariableResource, ...]
    arrays: tuple[Array, ...]
    late: tuple[tuple[int, LateArray], ...]
    calls: tuple[MachineCall, ...]
    registers: list[Any]

    @property
    def table(self) -> Table:
        return self.calls[0].table

    @property
    def written(self) -> list[Range]:
        return [bounds(variable.array) for variable in self.variables]

    @property
    def read(self) -> list[Range]:
        return list(map(bounds, self.arrays))

    def bound(self) -> BoundCall:
        return Updates([self]).bound()


def join_updates(instructions: Sequence[Instruction]) -> Sequence[Instruction]:
    """Adjacent independent updates as one instruction: what frees registers between them comes behind it."""
    if Update not in {type(action) for _, action in instructions}:
        return instructions
    found: list[Instruction] = []
    memory = _Written()
    updates: list[Update] = []
    freed: list[Instruction] = []

    def end() -> None:
        nonlocal memory, updates, freed
        if updates:
            found.extend([Instruction(updates[0].node, Updates(updates)), *freed])
            memory, updates, freed = _Written(), [], []

    for instruction in instructions:
        action = instruction.action
        if isinstance(action, Update):
            if not memory.admits(action):
                end()
            memory.add(action)
            updates.append(action)
        elif updates and isinstance(action, Free):
            freed.append(Instruction(updates[0].node, action))
        else:
            end()
            found.append(instruction)
    end()
    return found


@final
class Updates:
    """Independent updates as one call: threads share all of their elements. Nothing is written unless all can
    be made.
    """

    def __init__(self, updates: Sequence[Update]) -> None:
        self._updates = tuple(updates)
        self._registers = updates[0].registers
        self._unsure = [(update.node, variable) for update in updates for variable in update.needed]
        """Variables not initialized when last checked; once initialized, they stay so."""
        self._variables = [v for update in updates for v in update.variables]
        self._locks = locks_of(self._variables)
        self._unset = self._variables
        """All before the first update, none afterwards."""
        self._written = Ranges([each for update in updates for each in update.written])
        calls = [call for update in updates for call in update.calls]
        is_long = sum(update.table.nanoseconds for update in updates) > PARALLEL_NS
        joint = in_parallel(calls) if is_long and len(calls) > 1 else in_sequence(calls)
        self._call = joint.bound()

    @property
    def nodes(self) -> tuple[Node, ...]:
        return tuple([update.node for update in self._updates])

    def bound(self) -> BoundCall:
        return self._run, ()

    def _run(self) -> None:
        """Raises `FailedPreconditionError` for a variable without a value, `InvalidArgumentError` for a late
        array of another shape than was known; both name the operation.
        """
        function, arguments = self._call
        held: list[Lock] = []
        try:
            for lock in self._locks:
                lock.acquire()
                held.append(lock)
            if self._unsure:
                self._check()
            kept = self._find_late()
            function(*arguments)
            del kept
            for variable in self._unset:
                variable.is_initialized = True
            self._unset = []
        finally:
            for lock in held:
                lock.release()

    def _find_late(self) -> list[Array]:
        """Point the loops to the current late arrays, 1 us each. Arrays that are also written, by this update
        or another, are copied. Returns the arrays to keep alive until the loops end.
        """
        kept = []
        for update in self._updates:
            for position, expected in update.late:
                try:
                    array = expected.read(self._registers)
                except InvalidArgumentError as error:
                    raise located(update.node, error) from None
                if self._written.overlaps(bounds(array)):
                    array = array.copy()
                update.table.words[position] = address_of(array)
                kept.append(array)
        return kept

    def _check(self) -> None:
        for node, variable in self._unsure:
            try:
                variable.read()
            except FailedPreconditionError as error:
                raise located(node, error) from None
        self._unsure = []


def nodes_of(instruction: Instruction) -> tuple[Node, ...]:
    """The nodes that an instruction runs: several of joined updates."""
    node, action = instruction
    return action.nodes if isinstance(action, Updates) else (node,)


@final
class _Written:
    """Memory that updates read and write."""

    def __init__(self) -> None:
        self._written, self._read = Ranges(), Ranges()

    def admits(self, update: Update) -> bool:
        """Whether ``update`` need not wait for one of them, nor one of them for it."""
        is_written = any(self._written.overlaps(each) for each in (*update.written, *update.read))
        return not is_written and not any(map(self._read.overlaps, update.written))

    def add(self, update: Update) -> None:
        for each in update.written:
            self._written.add(each)
        for each in update.read:
            self._read.add(each)
