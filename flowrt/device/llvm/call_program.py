"""Programs of calls: compiled calls with loops and branches, executed by a machine-code interpreter.

A program is a tree of `Part`s, flattened to a table of records: calls in sequence, and jumps between them.
The interpreter's overhead is 3 ns per call and 2 per jump, so a nest of loops on small tensors takes as long
as its arithmetic.

The interpreter pauses after the given number of iterations, at any depth of the nest, and resumes there when
it is called again: a step can be ended in between. Its only state is the index of a record, because all
values are in memory.

    walk(table, begin, iterations)      begin is ignored
    the table                           position of the pause, 0 if none; number of iterations left;
                                        the records
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from itertools import chain
from typing import Any, NamedTuple, TypeAlias, final

import numpy as np

from flowrt.device.llvm.call_sequence import Array, MachineCall, Table, table_of
from flowrt.device.llvm.host_jit import CompiledLoop, compile_functions
from flowrt.loops.llvm_text import with_fields

PAUSED_AT, LEFT = 0, 1
"""Words of a table, and of a `Resumable`'s."""

_START = 1
"""Index of a program's first record: 0 means that there is no pause."""


class Repeat(NamedTuple):
    """``body`` as long as ``again`` holds; not at all unless ``begins``, which is None where that is known.
    Both are bools in memory.
    """

    begins: Array | None
    again: Array
    body: Parts


class Choose(NamedTuple):
    """One of ``blocks``: that of the ``number``, a bool or an int32 in memory, or the last."""

    number: Array
    blocks: tuple[Parts, ...]


class Guarded(NamedTuple):
    """A call after which the interpreter pauses if it has set ``status``, an int64."""

    call: MachineCall
    status: Array


class Resumable(NamedTuple):
    """A compiled function that may pause as this machine does, and has the first two words of its table."""

    begins: Array
    call: MachineCall


Part: TypeAlias = "MachineCall | Guarded | Repeat | Choose | Resumable"
Parts: TypeAlias = "tuple[Part, ...]"


def program_of(parts: Parts) -> Table:
    """The table of a program, to be walked by `walker`."""
    return _Assembler().run(parts)


def walker() -> CompiledLoop:
    """The machine."""
    return _functions()["walk"]


def as_call(part: Part) -> MachineCall:
    """``part``, which does not pause, as one call."""
    return MachineCall(walker(), program_of((part,)), 0, 1)


def may_pause(parts: Parts) -> bool:
    """Whether there is something in ``parts`` that may."""
    return any(
        isinstance(part, Guarded | Repeat | Resumable)
        or (isinstance(part, Choose) and any(map(may_pause, part.blocks)))
        for part in parts
    )


# --- records: an operation, up to two addresses, up to two numbers

_CALLS, _JUMP, _UNLESS, _AGAIN, _CHOOSE, _RESUME, _GUARD, _END, _CALLS_AGAIN = range(9)

TEXT = with_fields("""
; What to do; a and b, addresses; c and d, numbers.
%Record = type { i64, ptr, ptr, i64, i64 }
%Walk = type { i64, i64, [0 x %Record] }
%Call = type { ptr, ptr, i64, i64 }

define void @walk(ptr %table, i64 %begin, i64 %iterations) nounwind {
entry:
  %records = getelementptr %Walk, ptr %table, i64 0, i32 2
  %left_place = getelementptr %Walk, ptr %table, i64 0, i32 1
  %paused_at = load i64, ptr %table
  %is_new = icmp eq i64 %paused_at, 0
  %first = select i1 %is_new, i64 1, i64 %paused_at
  %at_variable = alloca i64
  %left_variable = alloca i64
  store i64 %first, ptr %at_variable
  store i64 %iterations, ptr %left_variable
  br label %fetch

following:
  %following_at = add i64 %at, 1
  store i64 %following_at, ptr %at_variable
  br label %fetch
fetch:
  %at = load i64, ptr %at_variable
  %b_place = getelementptr %Record, ptr %records, i64 %at, i32 2
  %d_place = getelementptr %Record, ptr %records, i64 %at, i32 4
  %kind = field i64, %Record, ptr %records, i64 %at, i32 0
  %a = field ptr, %Record, ptr %records, i64 %at, i32 1
  %c = field i64, %Record, ptr %records, i64 %at, i32 3
  switch i64 %kind, label %end [
    i64 0, label %calls
    i64 1, label %jump
    i64 2, label %unless
    i64 3, label %again
    i64 4, label %choose
    i64 5, label %resume
    i64 6, label %guard
    i64 8, label %iteration
  ]

; c calls, which lie at a; then, of an iteration, its end.
iteration:
  br label %calls
calls:
  %i = phi i64 [ 0, %fetch ], [ 0, %iteration ], [ 0, %repeat ], [ %i_next, %calls ]
  %loop = field ptr, %Call, ptr %a, i64 %i, i32 0
  %its_table = field ptr, %Call, ptr %a, i64 %i, i32 1
  %its_begin = field i64, %Call, ptr %a, i64 %i, i32 2
  %its_end = field i64, %Call, ptr %a, i64 %i, i32 3
  call void %loop(ptr %its_table, i64 %its_begin, i64 %its_end)
  %i_next = add i64 %i, 1
  %is_over = icmp eq i64 %i_next, %c
  br i1 %is_over, label %called, label %calls
called:
  %is_iteration = icmp eq i64 %kind, 8
  br i1 %is_iteration, label %again, label %following

; Go on at c.
jump:
  store i64 %c, ptr %at_variable
  br label %fetch

; The same, if the bool at a is false.
unless:
  %holds = load i8, ptr %a
  %is_true = icmp ne i8 %holds, 0
  br i1 %is_true, label %following, label %jump

; Go on at d, if the bool at b is true: another iteration.
again:
  %goes_on_place = load ptr, ptr %b_place
  %goes_on_byte = load i8, ptr %goes_on_place
  %goes_on = icmp ne i8 %goes_on_byte, 0
  br i1 %goes_on, label %count, label %following
count:
  %left_before = load i64, ptr %left_variable
  %left = sub i64 %left_before, 1
  store i64 %left, ptr %left_variable
  %top = load i64, ptr %d_place
  store i64 %top, ptr %at_variable
  %is_any = icmp sgt i64 %left, 0
  br i1 %is_any, label %repeat, label %leave
repeat:
  %is_whole = icmp eq i64 %top, %at  ; an iteration is this record alone
  br i1 %is_whole, label %calls, label %fetch

; One of the c records behind this one: by the int32 at a, or the bool, if d is 1.
choose:
  %is_bool_number = load i64, ptr %d_place
  %is_bool = icmp ne i64 %is_bool_number, 0
  br i1 %is_bool, label %by_bool, label %by_number
by_bool:
  %index_byte = load i8, ptr %a
  %index_of_bool = zext i8 %index_byte to i64
  br label %chosen
by_number:
  %index_word = load i32, ptr %a
  %index_of_number = sext i32 %index_word to i64
  br label %chosen
chosen:
  %index = phi i64 [ %index_of_bool, %by_bool ], [ %index_of_number, %by_number ]
  %last = sub i64 %c, 1
  %is_there = icmp ult i64 %index, %last
  %number = select i1 %is_there, i64 %index, i64 %last
  %behind = add i64 %at, 1
  %chosen_at = add i64 %behind, %number
  store i64 %chosen_at, ptr %at_variable
  br label %fetch

; The function at a on the table at b, which may pause, and pauses this one then.
resume:
  %b = load ptr, ptr %b_place
  %left_for_it = load i64, ptr %left_variable
  call void %a(ptr %b, i64 0, i64 %left_for_it)
  %its_left = field i64, i64, ptr %b, i64 1
  store i64 %its_left, ptr %left_variable
  %its_pause = load i64, ptr %b
  %is_done = icmp eq i64 %its_pause, 0
  br i1 %is_done, label %following, label %leave

; A pause before the next record, if the number at a is not 0.
guard:
  %status = load i64, ptr %a
  %is_fine = icmp eq i64 %status, 0
  br i1 %is_fine, label %following, label %pause
pause:
  %next_at = add i64 %at, 1
  store i64 %next_at, ptr %at_variable
  br label %leave

end:
  store i64 0, ptr %at_variable
  br label %leave
leave:
  %at_last = load i64, ptr %at_variable
  store i64 %at_last, ptr %table
  %left_at_last = load i64, ptr %left_variable
  store i64 %left_at_last, ptr %left_place
  ret void
}
""")


@cache
def _functions() -> dict[str, CompiledLoop]:
    return compile_functions(TEXT, ("walk",))


@final
class _Assembler:
    """Lays out the records of a program."""

    def __init__(self) -> None:
        self._records: list[list[Any]] = [[_JUMP, 0, 0, _START, 0]]
        self._nanoseconds = 0.0

    def run(self, parts: Parts) -> Table:
        self._add_all(parts)
        self._say(_END)
        return Table.of([0, 0, *chain.from_iterable(self._records)], self._nanoseconds)

    def _add_all(self, parts: Parts) -> None:
        calls: list[MachineCall] = []
        for part in parts:
            if isinstance(part, MachineCall):
                calls.append(part)
            elif isinstance(part, Guarded):
                self._add_calls([*calls, part.call])
                calls = []
                self._say(_GUARD, part.status)
            else:
                self._add_calls(calls)
                calls = []
                self._add(part)
        self._add_calls(calls)

    def _add_calls(self, calls: Sequence[MachineCall]) -> None:
        if calls:
            table = table_of(calls)
            self._nanoseconds += table.nanoseconds
            self._say(_CALLS, table, 0, len(calls))

    def _add(self, part: Repeat | Choose | Resumable) -> None:
        if isinstance(part, Choose):
            self._choose(part)
            return
        skip = None if part.begins is None else self._say(_UNLESS, part.begins)
        if isinstance(part, Repeat):
            top = len(self._records)
            self._add_all(part.body)
            self._repeat(top, part.again)
        else:
            self._nanoseconds += part.call.table.nanoseconds
            self._say(_RESUME, part.call.loop, part.call.table)
        if skip is not None:
            self._go_on_here(skip)

    def _repeat(self, top: int, again: Array) -> None:
        """End an iteration that began at ``top``: merged with preceding calls into one record, if possible,
        because a record costs 1.4 ns.
        """
        last = self._records[-1]
        if last[0] == _CALLS and len(self._records) > top:
            last[0], last[2], last[4] = _CALLS_AGAIN, again, top
        else:
            self._say(_AGAIN, 0, again, 0, top)

    def _choose(self, part: Choose) -> None:
        is_bool = part.number.dtype == np.bool_
        self._say(_CHOOSE, part.number, 0, len(part.blocks), int(is_bool))
        entries = [self._say(_JUMP) for _ in part.blocks]
        ends = []
        for entry, block in zip(entries, part.blocks, strict=True):
            self._go_on_here(entry)
            self._add_all(block)
            ends.append(self._say(_JUMP))
        for end in ends:
            self._go_on_here(end)

    def _say(self, kind: int, a: Any = 0, b: Any = 0, c: int = 0, d: int = 0) -> list[Any]:
        """Append a record; ``a`` and ``b`` may be targets of pointers."""
        record = [kind, a, b, c, d]
        self._records.append(record)
        return record

    def _go_on_here(self, record: list[Any]) -> None:
        record[3] = len(self._records)
