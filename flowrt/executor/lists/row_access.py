"""Accesses to rows of lists: steps of control nests (`flowrt.loops.control_nest`), or calls from Python."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from flowrt.device.llvm.call_sequence import Array, BoundCall, Table
from flowrt.executor.kernels.loop_layout import compiled
from flowrt.executor.kernels.small_calls import NS_PER_BYTE, NS_PER_ROW
from flowrt.loops.control_nest import STATUS, ControlNest, Push, ReadRow, Take, WriteRow
from flowrt.loops.llvm_nest import llvm_nest

Step = Push | Take | ReadRow | WriteRow


class RowAccess(NamedTuple):
    """``step`` on ``table``: the copy of a row of a list from or to ``array``. If it sets ``status`` in the
    table, ``settle()`` makes it possible, or raises the operation's error.
    """

    step: Step
    table: Table
    array: Array
    status: Array
    settle: Callable[[], None]

    def bound(self) -> BoundCall:
        """A function of this step alone. Compiled at the first call: most accesses are parts of nests."""
        return _run, (self, Table.of([0, 0, self.table], self.table.nanoseconds), [])


def _run(access: RowAccess, table: Table, made: list[Callable[..., Any]]) -> None:
    if not made:
        nest = ControlNest((access.step._replace(word=2),))
        made.append(compiled(llvm_nest(nest)).call_holding_gil)
    status = access.status.data
    made[0](table, 0, 1)
    while status[0]:
        status[0] = 0
        access.settle()
        made[0](table, 0, 1)


def stack_access(step: Push | Take, value: Array, settle: Callable[[], None]) -> RowAccess:
    """Access the end of a list. The caller sets the memory of the rows in the table."""
    table = Table.of([0, 0, 0, value], NS_PER_ROW + NS_PER_BYTE * value.nbytes)
    return RowAccess(step, table, value, table.words[STATUS : STATUS + 1], settle)
