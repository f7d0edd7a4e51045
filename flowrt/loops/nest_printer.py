"""`NestPrinter`: the walk through a loop nest, statement by statement, that all its printers share."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

from flowrt.loops.loop_program import Instruction, Output
from flowrt.loops.nest import Accumulate, ColumnLoop, Compute, Keep, LoopNest, Put, Reload, Statement


class NestPrinter(ABC):
    """Prints the values and statements of ``nest`` in the language of a subclass.

    Names of values are text of that language, and so are columns: None is the column of a row's value.
    """

    def __init__(self, nest: LoopNest) -> None:
        self._nest, self._program = nest, nest.program
        self._instructions: Sequence[Instruction] = nest.program.instructions
        self._names: dict[int, str] = {}
        """The names of values, by the number of the instruction."""

    def _print_row(self) -> None:
        """Print what is computed for one row, without its puts."""
        for step in self._nest.row:
            if isinstance(step, ColumnLoop):
                self._print_columns(step)
            else:
                self._print_statement(step, None)

    def _print_statement(self, statement: Statement, column: str | None) -> None:
        match statement:
            case Compute(number):
                self._names[number] = self._let_value(number, self._value(number, column))
            case Reload(number, operand):
                self._names[number] = self._let_value(number, self._load(operand, column))
            case Keep(number, operand):
                self._store(self._names[number], operand, column)
            case Put(output):
                self._put(output, column)
            case Accumulate():
                self._accumulate(statement)

    def _value(self, number: int, column: str | None) -> str:
        instruction = self._instructions[number]
        match instruction.op:
            case "load":
                return self._load(instruction.data, column)
            case "load_at":
                return self._load_at(instruction.data, self._names[instruction.args[0]], str(column))
            case "column":
                return str(column)
            case "columns":
                return self._columns
        return self._expression(instruction, [self._names[argument] for argument in instruction.args])

    _columns: str
    """The number of columns."""

    @abstractmethod
    def _print_columns(self, loop: ColumnLoop) -> None: ...

    @abstractmethod
    def _expression(self, instruction: Instruction, arguments: list[str]) -> str:
        """The value of an instruction that reads no memory."""

    @abstractmethod
    def _let_value(self, number: int, value: str) -> str:
        """Give ``value`` a name, and return it."""

    @abstractmethod
    def _load(self, operand: int, column: str | None) -> str:
        """The operand's element in this row."""

    @abstractmethod
    def _load_at(self, operand: int, row: str, column: str) -> str:
        """The element of another row of the operand, a matrix."""

    @abstractmethod
    def _store(self, value: str, operand: int, column: str | None) -> None: ...

    @abstractmethod
    def _put(self, output: Output, column: str | None) -> None: ...

    @abstractmethod
    def _accumulate(self, statement: Accumulate) -> None: ...
