"""LLVM IR of small products of matrices, as text. Pure; nothing here needs LLVM.

    void flowrt_loop(ptr table, i64 begin, i64 end)

The table holds three addresses: c = a @ b; ``begin`` and ``end`` are rows of c. All sizes are part of the
text, so that the compiler can unroll what is short.

A sum is added up in order, or, where both factors lie along it, in as many parts as a vector has numbers.
"""

from __future__ import annotations

from typing import NamedTuple, final

from flowrt.device.llvm_loops import FUNCTION
from flowrt.device.llvm_text import TYPES, Writer


class Matrix(NamedTuple):
    """How a matrix lies: ``[row, column]`` is so many elements from the first."""

    row_step: int
    column_step: int


class Product(NamedTuple):
    """c, ``m`` by ``n``, of a, ``m`` by ``k``, and b, ``k`` by ``n``, all of one float ``dtype``."""

    dtype: str
    m: int
    n: int
    k: int
    a: Matrix
    b: Matrix
    c: Matrix

    @property
    def is_along(self) -> bool:
        """Whether a vector is better taken along a sum than along a row of c."""
        return self.n == 1 or (self.b.column_step != 1 and self.b.row_step == 1 == self.a.column_step)

    @property
    def is_scattered(self) -> bool:
        """Whether there are vectors in neither way."""
        return self.b.column_step != 1 and not self.is_along


def llvm_product(product: Product) -> str:
    """The text of a module with the function above. c shares no memory with a or b."""
    return _Emitter(product).run()


@final
class _Emitter(Writer):
    def __init__(self, product: Product) -> None:
        super().__init__(())
        self._product, self._type = product, TYPES[product.dtype]

    def run(self) -> str:
        p = self._product
        with self._loop("%begin", "%end") as row:
            a = self._at("%a", (row, p.a.row_step))
            c = self._at("%c", (row, p.c.row_step))
            if p.is_along:
                self._sum_up(a, c)
            else:
                self._add_rows(a, c)
        names = "abc"
        arguments = ", ".join([*[f"ptr noalias %{name}" for name in names], "i64 %begin, i64 %end"])
        body = [f"define internal void @body({arguments}) noinline nounwind {{", "entry:"]
        return "\n".join([*body, *self._allocas, *self._lines, "  ret void", "}", *self._wrapper(names), ""])

    def _wrapper(self, names: str) -> list[str]:
        lines = [f"define void @{FUNCTION}(ptr %table, i64 %begin, i64 %end) {{"]
        for position, name in enumerate(names):
            lines.append(f"  %place_{name} = getelementptr ptr, ptr %table, i64 {position}")
            lines.append(f"  %{name} = load ptr, ptr %place_{name}")
        passed = ", ".join([*[f"ptr %{name}" for name in names], "i64 %begin, i64 %end"])
        return [*lines, f"  call void @body({passed})", "  ret void", "}"]

    def _sum_up(self, a: str, c: str) -> None:
        """A row of c, element by element."""
        p, type_ = self._product, self._type
        with self._loop("0", str(p.n)) as column:
            b = self._at("%b", (column, p.b.column_step))
            total = self._variable(type_, "0.0")
            with self._loop("0", str(p.k)) as number:
                term = self._times(self._read(a, (number, p.a.column_step)), b, (number, p.b.row_step))
                before = self._let(f"load {type_}, ptr {total}")
                after = self._let(f"fadd reassoc contract {type_} {before}, {term}")
                self._say(f"store {type_} {after}, ptr {total}")
            value = self._let(f"load {type_}, ptr {total}")
            self._say(f"store {type_} {value}, ptr {self._at(c, (column, p.c.column_step))}")

    def _add_rows(self, a: str, c: str) -> None:
        """A row of c, as the sum of rows of b."""
        p, type_ = self._product, self._type
        with self._loop("0", str(p.n)) as column:
            self._say(f"store {type_} 0.0, ptr {self._at(c, (column, p.c.column_step))}")
        with self._loop("0", str(p.k)) as number:
            factor, b = self._read(a, (number, p.a.column_step)), self._at("%b", (number, p.b.row_step))
            with self._loop("0", str(p.n)) as column:
                term, place = self._times(factor, b, (column, p.b.column_step)), (column, p.c.column_step)
                target = self._at(c, place)
                before = self._let(f"load {type_}, ptr {target}")
                after = self._let(f"fadd contract {type_} {before}, {term}")
                self._say(f"store {type_} {after}, ptr {target}")

    def _times(self, factor: str, base: str, place: tuple[str, int]) -> str:
        return self._let(f"fmul contract {self._type} {factor}, {self._read(base, place)}")

    def _read(self, base: str, place: tuple[str, int]) -> str:
        return self._let(f"load {self._type}, ptr {self._at(base, place)}")

    def _at(self, base: str, place: tuple[str, int]) -> str:
        """``base`` and (number, step) so many elements more."""
        number, step = place
        offset = number if step == 1 else self._let(f"mul nsw i64 {number}, {step}")
        return self._let(f"getelementptr inbounds {self._type}, ptr {base}, i64 {offset}")
