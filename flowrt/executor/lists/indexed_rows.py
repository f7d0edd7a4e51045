"""Lists of a machine-code loop with elements read or written by index: rows of one array.

A loop reads from unstacked lists, sets elements of lists that are stacked later, and adds gradients to
elements that were read, as in loops over time steps with `TensorArray`s. The list is opened before the loop,
and closed after it; an index out of range, or a forbidden second write, raises after the iterations of a
call.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, final

import numpy as np

from flowrt import dtypes
from flowrt.device.llvm.call_sequence import MachineCall, Table, in_sequence
from flowrt.executor.buffers.bound_tensors import BoundTensors
from flowrt.executor.kernels.copy_kernels import elementwise_call
from flowrt.executor.kernels.loop_layout import compiled
from flowrt.executor.kernels.small_calls import NS_PER_BYTE, NS_PER_ROW
from flowrt.executor.lists.list_rows import Array, RowList, poison, rows_of
from flowrt.executor.lists.open_lists import OpenList, changed_by
from flowrt.executor.program.arguments import Operand
from flowrt.executor.program.instruction import Checked
from flowrt.executor.program.instruction_builder import InstructionBuilder
from flowrt.graph.node import Node, Subgraph, static_shape
from flowrt.graph.op_facets import ListUse
from flowrt.graph.ops.lists.tensor_lists import check_unset, writes_once
from flowrt.graph.resources.tensor_list import ListSpec, TensorList
from flowrt.loops.llvm_rows import NUMBER, REFUSED, WRITTEN, gather, scatter


def indexed_lists(loop: Node, slots: Mapping[int, int]) -> dict[str, OpenList]:
    """Lists by the name of the operation in the body of ``loop`` that reads or sets an element. ``slots`` are
    the registers of the loop's variables and other inputs, by their position.
    """
    body: Subgraph = loop.attrs["body"]
    carried, readers = len(loop.attrs["T"]), body.consumers()
    found: dict[str, OpenList] = {}
    for position, slot in slots.items():
        parameter = body.feeds[position]
        if body.nodes[parameter].outputs[0].dtype is not dtypes.variant:
            continue
        if position < carried:
            node = changed_by(body, position, readers)
            if node is not None and _is_written(body, node):
                found[node.name] = OpenList(node, slot)
            continue
        for reader in [body.nodes[name] for name in readers[parameter]]:
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
    """The table of the copy from or to a row."""

    def _copy(self, make: Callable[[str], str], index: Array, row: Array, *more: int) -> MachineCall:
        """The copy of a row; `open` sets where the rows are, and how many."""
        words: list[int | Array] = [0, index, row, 0, row.nbytes, 0, 0, *more]
        table = Table.of(words, NS_PER_ROW + NS_PER_BYTE * row.nbytes)
        self._words = table.words
        return MachineCall(compiled(make(index.dtype.name)), table, 0, 1)

    def _emit(self, builder: InstructionBuilder, operands: Sequence[Operand], *calls: MachineCall) -> None:
        """Emit ``calls``, followed by a check for rejected indices."""
        text = f"{operands[0].text}[{operands[1].text}]"
        builder.emit_line(self._opened.node, Checked(in_sequence(calls), self._check), operands, text)

    def close(self, registers: list[Any]) -> None:
        self._rows, self._value = self._like[None], NO_LIST

    def _check(self) -> None:
        if self._words[REFUSED]:
            self._words[REFUSED] = 0
            self._refuse(int(self._words[NUMBER]))

    @abstractmethod
    def _refuse(self, number: int) -> None:
        """Raise `InvalidArgumentError` for this element."""


@final
class ReadRows(IndexedRows):
    """A list that is read."""

    def bind(self, builder: InstructionBuilder, tensors: BoundTensors) -> None:
        node, spec = self._opened.node, self._opened.node.outputs[0]
        handle, index = [tensors[ref] for ref in node.inputs[:2]]
        self._like = np.empty(static_shape(spec), spec.dtype.np)
        tensors.place(node, 0, Operand(self._like, None, f"{handle.text}[{index.text}]"))
        if index.slot is not None:
            builder.emit_call(node, poison)
            return
        self._emit(builder, [handle, index], self._copy(gather, index.value, self._like))

    def open(self, registers: list[Any]) -> None:
        self._value = registers[self.slot]
        rows = self._rows = rows_of(self._value, self._like)
        self._words[0], self._words[3] = rows.ctypes.data, len(rows)

    def _refuse(self, number: int) -> None:
        self._value.get(number)


class WrittenRows(IndexedRows):
    """A list with elements that are written."""

    def bind(self, builder: InstructionBuilder, tensors: BoundTensors) -> None:
        node = self._opened.node
        handle, index, item = operands = [tensors[ref] for ref in node.inputs]
        tensors.place(node, 0, handle)
        if index.slot is not None or item.slot is not None:
            builder.emit_call(node, poison)
            return
        self._like = item.value
        self._emit(builder, operands, *self._writing(index.value))

    @abstractmethod
    def _writing(self, index: Array) -> Sequence[MachineCall]:
        """The calls that write the element at ``index``."""

    def open(self, registers: list[Any]) -> None:
        value = self._value = registers[self.slot]
        self._rows = self._device.empty((value.length, *self._like.shape), self._like.dtype)
        elements = value.kept()
        self._flags = np.array([element is not None for element in elements], np.uint8)
        self._fill(elements)
        self._words[0], self._words[3] = self._rows.ctypes.data, value.length
        self._words[NUMBER + 1] = self._flags.ctypes.data

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
class SetRows(WrittenRows):
    """A list with elements set by the loop."""

    def _writing(self, index: Array) -> Sequence[MachineCall]:
        is_once = int(writes_once(self._opened.node))
        return [self._copy(scatter, index, self._like, 0, is_once)]


@final
class AddedRows(WrittenRows):
    """A list with elements added to: an element that is not set counts as zeros."""

    def _writing(self, index: Array) -> Sequence[MachineCall]:
        total = np.empty_like(self._like, order="C")
        read = self._copy(gather, index, total)
        self._read_words = self._words
        add = elementwise_call(lambda _, one, other: one + other, (total, self._like, total))
        return [read, add, self._copy(scatter, index, total, 0, 0)]

    def _fill(self, elements: Sequence[Any]) -> None:
        for i, element in enumerate(elements):
            self._rows[i] = 0 if element is None else element
        self._read_words[0], self._read_words[3] = self._rows.ctypes.data, len(self._rows)
