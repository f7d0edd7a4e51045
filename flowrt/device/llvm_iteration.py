"""LLVM IR of a loop over scalars: a `LoopProgram` again and again, as long as its predicate holds. Pure.

    void flowrt_loop(ptr table, i64 begin, i64 end)

The table holds the operands' addresses. ``carried`` operands are read once, kept in registers and written at
the end; so is the predicate, a bool. Up to ``end`` - ``begin`` iterations are made, at least one: who calls
looks at the predicate, and calls again while it holds. A body of a few instructions takes a few nanoseconds,
where a call of each kernel takes 300 each.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import final

from flowrt.device.llvm_loops import FUNCTION
from flowrt.device.llvm_text import STORED, TYPES, Writer
from flowrt.device.loops import LoopProgram


def llvm_iteration(program: LoopProgram, carried: Sequence[int], predicate: int) -> str:
    """The text of a module with the function above. ``carried`` are operands that are read and put,
    ``predicate`` is one that is put only. All others are read only; every value is a row's.
    """
    return _Emitter(program, carried, predicate).run()


@final
class _Emitter(Writer):
    def __init__(self, program: LoopProgram, carried: Sequence[int], predicate: int) -> None:
        super().__init__(program.instructions)
        self._program, self._carried, self._predicate = program, carried, predicate

    def run(self) -> str:
        addresses = [self._address(i) for i in range(len(self._program.dtypes))]
        written = {*self._carried, self._predicate}
        fixed = {i: self._load(i, a) for i, a in enumerate(addresses) if i not in written}
        variables = {i: self._variable(self._type(i), self._load(i, addresses[i])) for i in self._carried}
        count = self._variable("i64", "%begin")
        self._say("br label %again")
        self._lines.append("again:")
        values = self._iteration(fixed, variables)
        following = self._let(f"add nsw i64 {self._let(f'load i64, ptr {count}')}, 1")
        self._say(f"store i64 {following}, ptr {count}")
        holds = values[self._predicate]
        more = self._let(f"and i1 {holds}, {self._let(f'icmp slt i64 {following}, %end')}")
        self._say(f"br i1 {more}, label %again, label %done")
        self._lines.append("done:")
        for i, variable in variables.items():
            self._store(self._let(f"load {self._type(i)}, ptr {variable}"), i, addresses[i])
        self._store(holds, self._predicate, addresses[self._predicate])
        head = [f"define void @{FUNCTION}(ptr %table, i64 %begin, i64 %end) nounwind {{", "entry:"]
        body = [*head, *self._allocas, *self._lines, "  ret void", "}"]
        return "\n".join([*self._declared.values(), *body, ""])

    def _iteration(self, fixed: dict[int, str], variables: dict[int, str]) -> dict[int, str]:
        """One iteration: what each operand that is put becomes."""
        before = {i: self._let(f"load {self._type(i)}, ptr {v}") for i, v in variables.items()}
        names: dict[int, str] = {}
        for number, instruction in enumerate(self._instructions):
            if instruction.op == "load":
                operand = instruction.data
                names[number] = fixed[operand] if operand in fixed else before[operand]
            else:
                names[number] = self._emit(instruction, names.__getitem__)
        values = {output.operand: names[output.value] for output in self._program.outputs}
        for i, variable in variables.items():  # all are computed before the first changes
            self._say(f"store {self._type(i)} {values[i]}, ptr {variable}")
        return values

    def _type(self, operand: int) -> str:
        return TYPES[self._program.dtypes[operand]]

    def _address(self, operand: int) -> str:
        place = self._let(f"getelementptr i64, ptr %table, i64 {operand}")
        return self._let(f"load ptr, ptr {place}")

    def _load(self, operand: int, address: str) -> str:
        dtype = self._program.dtypes[operand]
        value = self._let(f"load {STORED[dtype]}, ptr {address}")
        return self._let(f"icmp ne i8 {value}, 0") if dtype == "bool" else value

    def _store(self, value: str, operand: int, address: str) -> None:
        dtype = self._program.dtypes[operand]
        if dtype == "bool":
            value = self._let(f"zext i1 {value} to i8")
        self._say(f"store {STORED[dtype]} {value}, ptr {address}")
