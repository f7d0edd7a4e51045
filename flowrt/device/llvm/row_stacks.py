"""Stacks of rows in memory: machine code that pushes a value, and one that pops a row.

Both are called like a loop, also in sequences and programs of calls. They fail if there is no memory (`push`)
or no row (`take`): then they set the status word, and change nothing else.

    push, take(table, begin, end)       begin and end are ignored

The words of a table are named below. A row is copied as bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any, TypeAlias

import numpy as np

from flowrt.device.llvm.call_sequence import MachineCall, Table
from flowrt.device.llvm.host_jit import CompiledLoop, compile_functions
from flowrt.loops.llvm_text import with_fields

Array: TypeAlias = "np.ndarray[Any, Any]"

TOP, END, STATUS = 0, 1, 2
"""Words of a table: the address after the last row, which changes; the end of the memory; the status. They
are followed by the address of the value, the bytes of a row, and the addresses of two numbers: the number of
rows of the list on the top, and, for a `take`, a number that must be 0.
"""

NS, NS_PER_BYTE = 5.0, 0.06
"""Time per row and per byte."""

TEXT = with_fields("""
%Stack = type { ptr, ptr, i64, ptr, i64, ptr, ptr }

declare void @llvm.memcpy.p0.p0.i64(ptr, ptr, i64, i1)

define void @push(ptr %table, i64 %begin, i64 %end) nounwind {
  %top = load ptr, ptr %table
  %last = field ptr, %Stack, ptr %table, i64 0, i32 1
  %status_place = getelementptr %Stack, ptr %table, i64 0, i32 2
  %has_room = icmp ult ptr %top, %last
  br i1 %has_room, label %copy, label %refuse
copy:
  %value = field ptr, %Stack, ptr %table, i64 0, i32 3
  %nbytes = field i64, %Stack, ptr %table, i64 0, i32 4
  call void @llvm.memcpy.p0.p0.i64(ptr %top, ptr %value, i64 %nbytes, i1 false)
  %new_top = getelementptr i8, ptr %top, i64 %nbytes
  store ptr %new_top, ptr %table
  %length = field ptr, %Stack, ptr %table, i64 0, i32 5
  %before = load i64, ptr %length
  %after = add i64 %before, 1
  store i64 %after, ptr %length
  ret void
refuse:
  store i64 1, ptr %status_place
  ret void
}

define void @take(ptr %table, i64 %begin, i64 %end) nounwind {
  %length = field ptr, %Stack, ptr %table, i64 0, i32 5
  %before = load i64, ptr %length
  %rest = field ptr, %Stack, ptr %table, i64 0, i32 6
  %status_place = getelementptr %Stack, ptr %table, i64 0, i32 2
  %is_any = icmp sgt i64 %before, 0
  %left = load i64, ptr %rest
  %is_over = icmp eq i64 %left, 0
  %may = and i1 %is_any, %is_over
  br i1 %may, label %copy, label %refuse
copy:
  %top = load ptr, ptr %table
  %value = field ptr, %Stack, ptr %table, i64 0, i32 3
  %nbytes = field i64, %Stack, ptr %table, i64 0, i32 4
  %back = sub i64 0, %nbytes
  %new_top = getelementptr i8, ptr %top, i64 %back
  call void @llvm.memcpy.p0.p0.i64(ptr %value, ptr %new_top, i64 %nbytes, i1 false)
  store ptr %new_top, ptr %table
  %after = sub i64 %before, 1
  store i64 %after, ptr %length
  ret void
refuse:
  store i64 1, ptr %status_place
  ret void
}
""")


@cache
def _functions() -> dict[str, CompiledLoop]:
    return compile_functions(TEXT, ("push", "take"))


def pushing(value: Array, length: Array) -> MachineCall:
    """A call that pushes ``value``, which must be contiguous. ``length``, an int64 scalar, is incremented.
    The caller sets the memory for rows in the table.
    """
    return _call("push", value, [length])


def taking(value: Array, length: Array, rest: Array) -> MachineCall:
    """Takes a row to ``value``, and counts ``length`` down. It refuses if that or ``rest`` is wrong: numbers
    as of `pushing`.
    """
    return _call("take", value, [length, rest])


def _call(name: str, value: Array, numbers: Sequence[Array]) -> MachineCall:
    table = Table.of([0, 0, 0, value, value.nbytes, *numbers], NS + NS_PER_BYTE * value.nbytes)
    return MachineCall(_functions()[name], table, 0, 1)
