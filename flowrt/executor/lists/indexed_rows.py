"""Lists of a machine-code loop with elements read or written by index: rows of one array.

A loop reads from unstacked lists, sets elements of lists that are stacked later, and adds gradients to
elements that were read, as in loops over time steps with `TensorArray`s. The list is opened before the loop,
and closed after it; an index out of range, or a forbidden second write, raises after the iterations of a
call.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, final

import numpy as np

from flowrt import dtypes
from flowrt.device.llvm.call_sequence import Table
from flowrt.executor.buffers.bound_tensors import BoundTensors
from flowrt.executor.kernels.copy_kernels import elementwise_call
from flowrt.executor.kernels.small_calls import NS_PER_BYTE, NS_PER_ROW
from flowrt.executor.lists.list_rows import Array, RowList, rows_of
from flowrt.executor.lists.open_lists import OpenList, changed_lists, is_list
from flowrt.executor.lists.row_access import RowAccess
from flowrt.executor.program.arguments import Operand
from flowrt.executor.program.instruction_builder import InstructionBuilder
from flowrt.graph.node import Node, Subgraph, static_shape
from flowrt.graph.op_facets import ListUse
from flowrt.graph.ops.lists.tensor_lists import check_unset, writes_once
from flowrt.graph.resources.tensor_list import ListSpec, TensorList
from flowrt.loops.control_nest import FLAGS, MATRIX, NUMBER, REFUSED, ROWS, WRITTEN, ReadRow, WriteRow


def indexed_lists(loop: Node, slots: Mapping[int, int]) -> dict[str, OpenList]:
    """Lists by the name of the operation in the body of ``loop`` that reads or sets an element. ``slots`` are
    the registers of the loop's variables and other inputs, by their position.
    """
    body: Subgraph = loop.attrs["body"]
    carried, readers = len(loop.attrs["T"]), body.consumers()
    variables = {position: slot for position, slot in slots.items() if position < carried}
    found = {n.name: OpenList(n, slot) for slot, n in changed_lists(body, variables) if _is_written(body, n)}
    for position, slot in slots.items():
        if position >= carried and is_list(body, position):
            for reader in [body.nodes[name] for name in readers[body.feeds[position]]]:
                if reader.op.uses_list(ListUse.READ):
                    found[reader.name] = OpenList(reader, slot)
    return found


def _is_written(body: Subgraph, node: Node) -> bool:
    """Whether ``node`` writes one element of a list of fixed length."""
    if node.op.uses_list(ListUse.ADDED):
        return body.spec(node.inputs[1]).shape == ()
    return node.op.uses_list(ListUse.SET) and not node.attrs["resize_if_index_out_of_bounds"]


NO_LIST = TensorList(ListSpec(dtypes.float32, None))
"""Placeholder held between two steps."""


class IndexedRows(RowList):
    """A list with rows for all possible iterations."""

    _value: TensorList
    """The list, before the loop."""
    _words: Array
    """The table of the access to a row."""

    def _access(self, step: ReadRow | WriteRow, index: Array, row: Array) -> RowAccess:
        """The copy of a row; `open` sets where the rows are, and how many."""
        table = Table.of([0, index, row, 0, 0, 0, 0], NS_PER_ROW + NS_PER_BYTE * row.nbytes)
        words = self._words = table.words
        status = words[REFUSED : REFUSED + 1]
        return RowAccess(step, table, row, status, lambda: self._refuse(int(words[NUMBER])))

    def _operands(self, tensors: BoundTensors) -> tuple[list[Operand], str]:
        """The operands, and the text of the element."""
        operands = [tensors[ref] for ref in self._opened.node.inputs]
        return operands, f"{operands[0].text}[{operands[1].text}]"

    def _place(self, rows: Array) -> None:
        """Access ``rows``."""
        self._words[MATRIX], self._words[ROWS] = rows.ctypes.data, len(rows)

    def close(self, registers: list[Any]) -> None:
        self._rows, self._value = self._like[None], NO_LIST

    @abstractmethod
    def _refuse(self, number: int) -> None:
        """Raise `InvalidArgumentError` for this element."""


@final
class ReadRows(IndexedRows):
    """A list that is read."""

    def bind(self, builder: InstructionBuilder, tensors: BoundTensors) -> None:
        node, spec = self._opened.node, self._opened.node.outputs[0]
        operands, text = self._operands(tensors)
        self._like = np.empty(static_shape(spec), spec.dtype.np)
        row = Operand(self._like, None, text)
        tensors.place(node, 0, row)
        index = self._in_memory(builder, tensors, node.inputs[1])
        step = ReadRow(0, self._like.nbytes, index.dtype.name)
        builder.emit_line(node, self._access(step, index, self._like), operands[:2], [row])

    def open(self, registers: list[Any]) -> None:
        self._value = registers[self.slot]
        self._rows = rows_of(self._value, self._like)
        self._place(self._rows)

    def _refuse(self, number: int) -> None:
        self._value.get(number)


class WrittenRows(IndexedRows):
    """A list with elements set by the loop."""

    def bind(self, builder: InstructionBuilder, tensors: BoundTensors) -> None:
        node = self._opened.node
        operands, text = self._operands(tensors)
        tensors.place(node, 0, operands[0])
        index, self._like = [self._in_memory(builder, tensors, ref) for ref in node.inputs[1:]]
        row = self._prepare(builder, index)
        is_once = node.op.uses_list(ListUse.SET) and writes_once(node)
        step = WriteRow(0, row.nbytes, index.dtype.name, is_once)
        written = Operand(None, None, text)
        builder.emit_line(node, self._access(step, index, row), operands, [written])

    def _prepare(self, builder: InstructionBuilder, index: Array) -> Array:
        """Emit what makes the row that is written at ``index``, and return it."""
        return self._like

    def open(self, registers: list[Any]) -> None:
        value = self._value = registers[self.slot]
        self._rows = self._device.empty((value.length, *self._like.shape), self._like.dtype)
        elements = value.kept()
        self._flags = np.array([element is not None for element in elements], np.uint8)
        self._fill(elements)
        self._place(self._rows)
        self._words[FLAGS] = self._flags.ctypes.data

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

    def _prepare(self, builder: InstructionBuilder, index: Array) -> Array:
        total, node = np.empty_like(self._like), self._opened.node
        read = self._access(ReadRow(0, total.nbytes, index.dtype.name), index, total)
        self._read_words = self._words
        builder.emit(node, read)
        builder.emit(node, elementwise_call(lambda _, one, other: one + other, (total, self._like, total)))
        return total

    def _fill(self, elements: Sequence[Any]) -> None:
        for i, element in enumerate(elements):
            self._rows[i] = 0 if element is None else element
        self._read_words[MATRIX], self._read_words[ROWS] = self._rows.ctypes.data, len(self._rows)
