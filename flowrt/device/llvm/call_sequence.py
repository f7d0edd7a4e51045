"""Calls of compiled loops, and sequences of them as one call, by machine code that iterates over their table.

From Python a call takes 30 ns, plus 60 of interpreter overhead; from here 3. So a sequence of small loops
takes as long as their arithmetic. A sequence is called like a loop, and may be nested.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache
from itertools import chain
from typing import Any, NamedTuple, TypeAlias, final

import numpy as np

from flowrt.device.llvm.host_jit import CompiledLoop, compile_functions
from flowrt.device.llvm.host_pool import run_in_parallel
from flowrt.device.llvm.work_stealing import prepare
from flowrt.loops.llvm_text import with_fields

Array: TypeAlias = "np.ndarray[Any, Any]"

BoundCall: TypeAlias = tuple[Callable[..., Any], tuple[Any, ...]]
"""A Python function and its arguments."""

CALL_NS = 3.0

RELEASING_NS = 20e3
"""Minimum duration of calls that release the GIL."""

TEXT = with_fields("""
%Call = type { ptr, ptr, i64, i64 }

; Those of the calls in the table that begin and end number.
define void @some(ptr %table, i64 %begin, i64 %end) nounwind {
entry:
  %is_any = icmp slt i64 %begin, %end
  br i1 %is_any, label %call, label %exit
call:
  %i = phi i64 [ %begin, %entry ], [ %i_next, %call ]
  %loop = field ptr, %Call, ptr %table, i64 %i, i32 0
  %its_table = field ptr, %Call, ptr %table, i64 %i, i32 1
  %its_begin = field i64, %Call, ptr %table, i64 %i, i32 2
  %its_end = field i64, %Call, ptr %table, i64 %i, i32 3
  call void %loop(ptr %its_table, i64 %its_begin, i64 %its_end)
  %i_next = add i64 %i, 1
  %is_over = icmp eq i64 %i_next, %end
  br i1 %is_over, label %exit, label %call
exit:
  ret void
}
""")


@cache
def _functions() -> dict[str, CompiledLoop]:
    return compile_functions(TEXT, ("some",))


@final
class Table(int):
    """The address of a compiled loop's int64 words; keeps the targets of its pointers alive."""

    words: Array
    pointers: Mapping[int, Array | CompiledLoop | Table]
    """Targets of words that are addresses, by the words' positions."""
    nanoseconds: float
    """Estimated time of the loop on one thread."""

    @classmethod
    def of(cls, words: Iterable[int | Array | CompiledLoop | Table], nanoseconds: float) -> Table:
        """A table of ``words``: numbers, and targets of pointers."""
        given = list(words)
        pointers = {i: word for i, word in enumerate(given) if isinstance(word, _Pointer)}
        array = np.array([_number(word) for word in given], np.int64)
        table = cls(array.ctypes.data)
        table.words, table.nanoseconds, table.pointers = array, nanoseconds, pointers
        return table

    def arrays(self) -> Iterator[Array]:
        """The arrays of which addresses are here, and in the tables that it refers to."""
        for target in self.pointers.values():
            if isinstance(target, Table):
                yield from target.arrays()
            elif isinstance(target, np.ndarray):
                yield target


_Pointer = np.ndarray | CompiledLoop | Table


def _number(word: int | Array | CompiledLoop | Table) -> int:
    if isinstance(word, np.ndarray):
        return word.ctypes.data
    return word.address if isinstance(word, CompiledLoop) else word


class MachineCall(NamedTuple):
    """Elements ``begin`` to ``end`` of a compiled loop, on the operands in its table."""

    loop: CompiledLoop
    table: Table
    begin: int
    end: int

    def bound(self) -> BoundCall:
        """The call from Python that suits its length."""
        is_long = self.table.nanoseconds > RELEASING_NS
        call = self.loop.call if is_long else self.loop.call_holding_gil
        return call, (self.table, self.begin, self.end)


class ParallelCall(NamedTuple):
    """A call with elements that threads share, in chunks of ``grain``."""

    call: MachineCall
    grain: int

    @property
    def table(self) -> Table:
        return self.call.table

    def bound(self) -> BoundCall:
        prepare()
        loop, *elements = self.call
        return run_in_parallel, (loop.call, *elements, self.grain)


def in_sequence(calls: Sequence[MachineCall]) -> MachineCall:
    """``calls``, at least one, as one."""
    return MachineCall(_functions()["some"], table_of(calls), 0, len(calls))


def in_parallel(calls: Sequence[MachineCall]) -> ParallelCall:
    """``calls`` that may be made in any order, as one: threads share them."""
    return ParallelCall(in_sequence(calls), 1)


def table_of(calls: Sequence[MachineCall]) -> Table:
    """The table of ``calls``: four words each."""
    return Table.of(chain.from_iterable(calls), sum(CALL_NS + call.table.nanoseconds for call in calls))
