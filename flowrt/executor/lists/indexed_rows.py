"""Lists of a machine-code loop with elements read or written by index: rows of one array.

A loop reads from unstacked lists, sets elements of lists that are stacked later, and adds gradients to
elements that were read, as in loops over time steps with `TensorArray`s. The list is opened before the loop,
and closed after it; an index out of range, or a forbidden second write, raises after the iterations of a
call.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any, final

import numpy as np

from flowrt import dtypes
from flowrt.device.device import Device
from flowrt.device.llvm.call_sequence import Table
from flowrt.executor.buffers.bound_tensors import BoundTensors
from flowrt.executor.kernels.copy_kernels import elementwise_call
from flowrt.executor.kernels.small_calls import NS_PER_BYTE, NS_PER_ROW
from flowrt.executor.lists.list_rows import Array, RowList, rows_of
from flowrt.executor.lists.row_access import RowAccess
from flowrt.executor.program.arguments import Operand
from flowrt.executor.program.instruction_builder import InstructionBuilder
from flowrt.graph.node import Node, static_shape
from flowrt.graph.op_facets import ListUse
from flowrt.graph.ops.lists.tensor_lists import check_unset, writes_once
from flowrt.graph.resources.tensor_list import ListSpec, TensorList
from flowrt.loops.control_nest import FLAGS, MATRIX, NUMBER, REFUSED, ROWS, WRITTEN, ReadRow, WriteRow

NO_LIST = TensorList(ListSpec(dtypes.float32, None))
"""Placeholder held between two steps."""


class IndexedRows(RowList):
    """A list with rows for all possible iterations."""

    _value: TensorList
    """The list, before the loop."""

    def __init__(self, slot: int, device: Device) -> None:
        super().__init__(slot, device)
        self._tables: list[Array] = []
        """The words of the table of each access."""

    def _access(self, step: ReadRow | WriteRow, index: Array, row: Array) -> RowAccess:
        """The copy of a row; `open` sets where the rows are, and how many."""
        table = Table.of([0, index, row, 0, 0, 0, 0], NS_PER_ROW + NS_PER_BYTE * row.nbytes)
        words = table.words
        self._tables.append(words)
        status = words[REFUSED : REFUSED + 1]
        return RowAccess(step, table, row, status, lambda: self._refuse(int(words[NUMBER])))

    def _operands(self, node: Node, tensors: BoundTensors) -> tuple[list[Operand], str]:
        """The operands, and the text of the element."""
        operands = [tensors[ref] for ref in node.inputs]
        return operands, f"{operands[0].text}[{operands[1].text}]"

    def _place(self, rows: Array, flags: Array | None = None) -> None:
        """Access ``rows``."""
        self._rows, self._flags = rows, flags
        for words in self._tables:
            words[MATRIX], words[ROWS] = rows.ctypes.data, len(rows)
            words[FLAGS] = 0 if flags is None else flags.ctypes.data

    def close(self, registers: list[Any]) -> None:
        self._rows, self._value = self._like[None], NO_LIST

    @abstractmethod
    def _refuse(self, number: int) -> None:
        """Raise `InvalidArgumentError` for this element."""


@final
class ReadRows(IndexedRows):
    """A list that is read."""

    def bind(self, node: Node, builder: InstructionBuilder, tensors: BoundTensors) -> None:
        spec, (operands, text) = node.outputs[0], self._operands(node, tensors)
        row = self._like = np.empty(static_shape(spec), spec.dtype.np)
        read = Operand(row, None, text)
        tensors.place(node, 0, read)
        index = self._in_memory(node, builder, tensors, node.inputs[1])
        step = ReadRow(0, row.nbytes, index.dtype.name)
        builder.emit_line(node, self._access(step, index, row), operands[:2], [read])

    def open(self, registers: list[Any]) -> None:
        self._value = registers[self.slot]
        self._place(rows_of(self._value, self._like))

    def _refuse(self, number: int) -> None:
        self._value.get(number)


class WrittenRows(IndexedRows):
    """A list with elements set by the loop."""

    _flags: Array

    def bind(self, node: Node, builder: InstructionBuilder, tensors: BoundTensors) -> None:
        operands, text = self._operands(node, tensors)
        tensors.place(node, 0, operands[0])
        index, self._like = [self._in_memory(node, builder, tensors, ref) for ref in node.inputs[1:]]
        row = self._prepare(node, builder, index)
        is_once = node.op.uses_list(ListUse.SET) and writes_once(node)
        step = WriteRow(0, row.nbytes, index.dtype.name, is_once)
        written = Operand(None, None, text)
        builder.emit_line(node, self._access(step, index, row), operands, [written])

    def _prepare(self, node: Node, builder: InstructionBuilder, index: Array) -> Array:
        """Emit what makes the row that is written at ``index``, and return it."""
        return self._like

    def open(self, registers: list[Any]) -> None:
        value = self._value = registers[self.slot]
        rows = self._device.empty((value.length, *self._like.shape), self._like.dtype)
        elements = value.kept()
        self._place(rows, np.array([element is not None for element in elements], np.uint8))
        self._fill(elements)

    def _fill(self, elements: Sequence[Any]) -> None:
        """Set the rows of ``elements`` that are read."""

    def close(self, registers: list[Any]) -> None:
        registers[self.slot] = self._changed()
        super().close(registers)

    def _changed(self) -> TensorList:
        is_written = self._flags == WRITTEN
        if len(is_written) and is_written.all():
            return TensorList.of_rows(self._value.spec, self._rows)
        elements = self._value.kept()
        for i in np.flatnonzero(is_written).tolist():
            elements[i] = self._rows[i, ...]
        return TensorList(self._value.spec, elements)

    def _refuse(self, number: int) -> None:
        self._value.get(number)
        check_unset(self._changed(), number)


@final
class AddedRows(WrittenRows):
    """A list with elements added to: an element that is not set counts as zeros."""

    def _prepare(self, node: Node, builder: InstructionBuilder, index: Array) -> Array:
        total = np.empty_like(self._like)
        builder.emit(node, self._access(ReadRow(0, total.nbytes, index.dtype.name), index, total))
        builder.emit(node, elementwise_call(lambda _, one, other: one + other, (total, self._like, total)))
        return total

    def _fill(self, elements: Sequence[Any]) -> None:
        for i, element in enumerate(elements):
            self._rows[i] = 0 if element is None else element
