"""LLVM IR that copies rows by index, as text. Pure; nothing here needs LLVM.

    void flowrt_loop(ptr table, i64 begin, i64 end)

`gather` copies a matrix's rows to results, `scatter` copies values to a matrix's rows. The table of both has
the addresses of the matrix, the indices, and the results or values; the number of rows of the matrix, and the
bytes of one; a word that is set if an index is rejected, and the first such index. That of `scatter`
continues with the address of one byte per row, which is set to `WRITTEN`, and a word: 1 to reject rows with a
byte other than 0.

``begin`` and ``end`` count indices. Rows are copied as bytes: the text depends only on the type of index.
"""

from __future__ import annotations

from string import Template

from flowrt.loops.llvm_text import FUNCTION, TYPES, with_fields

REFUSED, NUMBER = 5, 6
"""Words of the table that report whether an index was rejected, and which."""

WRITTEN = 2

_TEXT = Template(f"""
declare void @llvm.memcpy.p0.p0.i64(ptr, ptr, i64, i1)

define void @{FUNCTION}(ptr %table, i64 %begin, i64 %end) nounwind {{
entry:
  %matrix = load ptr, ptr %table
  %numbers = field ptr, i64, ptr %table, i64 1
  %others = field ptr, i64, ptr %table, i64 2
  %rows = field i64, i64, ptr %table, i64 3
  %nbytes = field i64, i64, ptr %table, i64 4
  %refused_place = getelementptr i64, ptr %table, i64 {REFUSED}
  %refused_number_place = getelementptr i64, ptr %table, i64 {NUMBER}
  %flags_place = getelementptr i64, ptr %table, i64 {NUMBER + 1}
  %once_place = getelementptr i64, ptr %table, i64 {NUMBER + 2}
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
  br i1 %is_there, label %found, label %refuse
found:
  %before = mul i64 %number, %nbytes
  %row = getelementptr i8, ptr %matrix, i64 %before
  %behind = mul i64 %i, %nbytes
  %other = getelementptr i8, ptr %others, i64 %behind
$found
  br label %done
refuse:
  %refused = load i64, ptr %refused_place
  %is_first = icmp eq i64 %refused, 0
  br i1 %is_first, label %note, label %done
note:
  store i64 1, ptr %refused_place
  store i64 %number, ptr %refused_number_place
  br label %done
done:
  %next = add i64 %i, 1
  br label %test
exit:
  ret void
}}
""")

_GATHER = """\
  call void @llvm.memcpy.p0.p0.i64(ptr %other, ptr %row, i64 %nbytes, i1 false)"""

_SCATTER = f"""\
  %flags = load ptr, ptr %flags_place
  %once = load i64, ptr %once_place
  %flag = field i8, i8, ptr %flags, i64 %number
  %is_set = icmp ne i8 %flag, 0
  %is_once = icmp ne i64 %once, 0
  %is_again = and i1 %is_set, %is_once
  br i1 %is_again, label %refuse, label %write
write:
  call void @llvm.memcpy.p0.p0.i64(ptr %row, ptr %other, i64 %nbytes, i1 false)
  store i8 {WRITTEN}, ptr %flag_place"""


def gather(numbers: str) -> str:
    """The text for ``numbers`` of this dtype, int32 or int64."""
    return _text(numbers, _GATHER)


def scatter(numbers: str) -> str:
    """The text for ``numbers`` of this dtype, int32 or int64."""
    return _text(numbers, _SCATTER)


def _text(numbers: str, found: str) -> str:
    widen = "sext i32 %stored to i64" if numbers == "int32" else "add i64 %stored, 0"
    return with_fields(_TEXT.substitute(type=TYPES[numbers], widen=widen, found=found))
