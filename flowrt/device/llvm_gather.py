"""LLVM IR that copies rows of a matrix by number, as text. Pure; nothing here needs LLVM.

    void flowrt_loop(ptr table, i64 begin, i64 end)

The table: the addresses of matrix, numbers and results; how many rows the matrix has, and the bytes of one; a
word that is set to 1 where a number is that of no row, and the number. ``begin`` and ``end`` count numbers.
Rows are copied as bytes, so there is a text for each type of number only.
"""

from __future__ import annotations

from string import Template

from flowrt.device.llvm_loops import FUNCTION
from flowrt.device.llvm_text import TYPES

FAILED, WRONG = 5, 6
"""The words of the table that say whether a number was wrong, and which."""

_TEXT = Template(f"""
declare void @llvm.memcpy.p0.p0.i64(ptr, ptr, i64, i1)

define void @{FUNCTION}(ptr %table, i64 %begin, i64 %end) nounwind {{
entry:
  %matrix = load ptr, ptr %table
  %numbers_place = getelementptr i64, ptr %table, i64 1
  %numbers = load ptr, ptr %numbers_place
  %results_place = getelementptr i64, ptr %table, i64 2
  %results = load ptr, ptr %results_place
  %rows_place = getelementptr i64, ptr %table, i64 3
  %rows = load i64, ptr %rows_place
  %nbytes_place = getelementptr i64, ptr %table, i64 4
  %nbytes = load i64, ptr %nbytes_place
  %failed_place = getelementptr i64, ptr %table, i64 {FAILED}
  %wrong_place = getelementptr i64, ptr %table, i64 {WRONG}
  br label %test
test:
  %i = phi i64 [ %begin, %entry ], [ %next, %done ]
  %more = icmp slt i64 %i, %end
  br i1 %more, label %read, label %exit
read:
  %number_place = getelementptr $type, ptr %numbers, i64 %i
  %stored = load $type, ptr %number_place
  %number = $widen
  %is_there = icmp ult i64 %number, %rows
  br i1 %is_there, label %copy, label %refuse
copy:
  %before = mul i64 %number, %nbytes
  %source = getelementptr i8, ptr %matrix, i64 %before
  %behind = mul i64 %i, %nbytes
  %target = getelementptr i8, ptr %results, i64 %behind
  call void @llvm.memcpy.p0.p0.i64(ptr %target, ptr %source, i64 %nbytes, i1 false)
  br label %done
refuse:
  store i64 1, ptr %failed_place
  store i64 %number, ptr %wrong_place
  br label %done
done:
  %next = add i64 %i, 1
  br label %test
exit:
  ret void
}}
""")


def llvm_gather(numbers: str) -> str:
    """The text for ``numbers`` of this dtype, int32 or int64."""
    widen = "sext i32 %stored to i64" if numbers == "int32" else "add i64 %stored, 0"
    return _TEXT.substitute(type=TYPES[numbers], widen=widen)
