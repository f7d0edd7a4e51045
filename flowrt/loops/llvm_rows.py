"""LLVM IR that copies or adds rows by index, as text. Pure; nothing here needs LLVM.

    void flowrt_loop(ptr table, i64 begin, i64 end)

`gather` copies a matrix's rows to results, and `scatter_add` adds rows to those of a matrix. The table has
the addresses of the matrix, the indices, and the other rows; the number of rows of the matrix, and the bytes
of one, or its elements; a word that is set if an index is rejected, and the first such index. ``begin`` and
``end`` count indices. Rows are copied as bytes: the text depends only on the type of index.
"""

from __future__ import annotations

from string import Template

from flowrt.loops.llvm_text import FUNCTION, TYPES, with_fields
from flowrt.loops.loop_program import is_float

REFUSED, NUMBER = 5, 6
"""Words of the table that report whether an index was rejected, and which."""

_TEXT = Template(f"""
declare void @llvm.memcpy.p0.p0.i64(ptr, ptr, i64, i1)

define void @{FUNCTION}(ptr %table, i64 %begin, i64 %end) nounwind {{
entry:
  %matrix = load ptr, ptr %table
  %numbers = field ptr, i64, ptr %table, i64 1
  %others = field ptr, i64, ptr %table, i64 2
  %rows = field i64, i64, ptr %table, i64 3
  %length = field i64, i64, ptr %table, i64 4
  %refused_place = getelementptr i64, ptr %table, i64 {REFUSED}
  %refused_number_place = getelementptr i64, ptr %table, i64 {NUMBER}
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
  %before = mul i64 %number, %length
  %row = getelementptr $element, ptr %matrix, i64 %before
  %behind = mul i64 %i, %length
  %other = getelementptr $element, ptr %others, i64 %behind
$found
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

_COPY = """\
  call void @llvm.memcpy.p0.p0.i64(ptr %other, ptr %row, i64 %length, i1 false)
  br label %done"""

_ADD = Template("""\
  br label %element
element:
  %j = phi i64 [ 0, %found ], [ %j_next, %element ]
  %place = getelementptr $element, ptr %row, i64 %j
  %other_place = getelementptr $element, ptr %other, i64 %j
  %before_it = load $element, ptr %place
  %added = load $element, ptr %other_place
  %sum = $add $element %before_it, %added
  store $element %sum, ptr %place
  %j_next = add i64 %j, 1
  %is_over = icmp eq i64 %j_next, %length
  br i1 %is_over, label %done, label %element""")


def gather(numbers: str) -> str:
    """The text for ``numbers`` of this dtype, int32 or int64."""
    return _text(numbers, "i8", _COPY)


def scatter_add(numbers: str, dtype: str) -> str:
    """The text for ``numbers`` of int32 or int64, and rows of ``dtype``, which are not empty."""
    add = "fadd" if is_float(dtype) else "add"
    return _text(numbers, TYPES[dtype], _ADD.substitute(element=TYPES[dtype], add=add))


def _text(numbers: str, element: str, found: str) -> str:
    widen = "sext i32 %stored to i64" if numbers == "int32" else "add i64 %stored, 0"
    return with_fields(_TEXT.substitute(type=TYPES[numbers], widen=widen, element=element, found=found))
