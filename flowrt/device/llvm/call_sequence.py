"""Sequences of calls of compiled loops as one call, by machine code that iterates over a table of them.

From Python a call takes 30 ns, plus 60 of interpreter overhead; from here 3. So a sequence of small loops
takes as long as their arithmetic. A sequence is called like a loop, and may be nested.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache
from typing import Any, TypeAlias, final

import numpy as np

from flowrt.device.llvm.host_call import LoopAddress
from flowrt.device.llvm.host_jit import CompiledLoop, compile_functions
from flowrt.device.llvm.host_pool import run_in_parallel
from flowrt.device.llvm.llvm_text import with_fields

Call: TypeAlias = tuple[Callable[..., Any], tuple[Any, ...]]
"""A function and its arguments: of a `LoopCall` its table's address, begin and end."""

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
    """The address of a compiled loop's int64 words; keeps the arrays they point to alive.

    ``nanoseconds``: estimated time of the loop on one thread.
    """

    words: np.ndarray[Any, Any]
    nanoseconds: float
    keeps: tuple[Any, ...]

    @classmethod
    def of(cls, words: Iterable[int], nanoseconds: float, *keeps: Any) -> Table:
        array = np.array(list(words), np.int64)
        table = cls(array.ctypes.data)
        table.words, table.nanoseconds, table.keeps = array, nanoseconds, keeps
        return table


def call_of(loop: CompiledLoop, table: Table, begin: int, end: int) -> Call:
    """The call of ``loop`` that suits its length."""
    call = loop.call if table.nanoseconds > RELEASING_NS else loop.call_holding_gil
    return call, (table, begin, end)


def is_compiled(call: Call) -> bool:
    """Whether nothing but machine code is called, which cannot fail."""
    function, arguments = call
    return isinstance(getattr(function, "__self__", None), LoopAddress) and isinstance(arguments[0], Table)


def in_sequence(calls: Sequence[Call]) -> Call:
    """Compiled ``calls``, at least one, as one."""
    return call_of(_functions()["some"], _table(calls), 0, len(calls))


def joined(calls: Iterable[Call]) -> tuple[Call, ...]:
    """``calls``, with adjacent compiled ones merged."""
    found: list[Call] = []
    for are_compiled, run in itertools.groupby(calls, is_compiled):
        several = list(run)
        found += [in_sequence(several)] if are_compiled and len(several) > 1 else several
    return tuple(found)


def shared(calls: Sequence[Call]) -> Call:
    """Compiled ``calls`` that may be made in any order, as one: threads share them."""
    return run_in_parallel, (_functions()["some"].call, _table(calls), 0, len(calls), 1)


def words_of(calls: Iterable[Call]) -> Iterator[int]:
    """The words of compiled ``calls``, four each: the loop, its table, begin, end."""
    for function, arguments in calls:
        yield function.__self__  # type: ignore[attr-defined]  # see `is_compiled`
        yield from arguments


def _table(calls: Sequence[Call]) -> Table:
    nanoseconds = sum(CALL_NS + table.nanoseconds for _, (table, *_) in calls)
    return Table.of(words_of(calls), nanoseconds, *calls)
