"""Lists of a loop that is machine code, whose elements it reads, or sets, by number: rows of one array.

What a loop unstacks, it reads; what it stacks in the end, it sets. So do loops over time steps with
`TensorArray`s. The list is opened in front of the loop, and closed behind it; an element that is not there,
or is set twice where that is forbidden, is refused when the iterations of a call are over.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, final

import numpy as np

from flowrt import dtypes
from flowrt.device.call_sequence import Table
from flowrt.device.host_call import LoopCall
from flowrt.device.llvm_rows import NUMBER, REFUSED, WRITTEN, gather, scatter
from flowrt.executor.arguments import Operand
from flowrt.executor.bound_tensors import BoundTensors
from flowrt.executor.list_rows import Array, RowList, is_elsewhere, rows_of
from flowrt.executor.loop_layout import compiled
from flowrt.executor.open_lists import OpenList, changed_by
from flowrt.executor.small_calls import NS_PER_BYTE, NS_PER_ROW, run_checked
from flowrt.executor.strand import Strand
from flowrt.graph.node import Node, Subgraph, static_shape
from flowrt.graph.ops.tensor_lists import check_unset
from flowrt.graph.tensor_list import TensorList


def indexed_lists(loop: Node, slots: Mapping[int, int]) -> dict[str, OpenList]:
    """By the name of the operation in the body of ``loop`` that reads or sets an element, its list. ``slots``
    are the registers of the loop's variables and of what it reads besides, by their position.
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
            if node is not None and node.op.name == "TensorListSetItem" and not node.attrs[_GROWS]:
                found[node.name] = OpenList(node, slot)
            continue
        for reader in [body.nodes[name] for name in readers[parameter]]:
            if reader.op.name == "TensorListGetItem":
                found[reader.name] = OpenList(reader, slot)
    return found


_GROWS = "resize_if_index_out_of_bounds"


class IndexedRows(RowList):
    """A list whose elements have rows for all iterations that there may be."""

    _value: TensorList
    """The list, before the loop."""

    def room(self, limit: int) -> int:
        return limit

    def begin(self, count: int) -> None:
        """All rows are there."""

    def end(self) -> None:
        """Nor does their number change."""

    def _emit(
        self,
        strand: Strand,
        make: Callable[[str], str],
        operands: Sequence[Operand],
        row: Array,
        *more: int,
    ) -> None:
        """Emit the copy of a row; `open` sets where the rows are, and how many."""
        if any(operand.slot is not None for operand in operands[1:]):
            strand.emit(self._opened.node, is_elsewhere)
            return
        index = operands[1].value
        words = [0, index.ctypes.data, row.ctypes.data, 0, row.nbytes, 0, 0, *more]
        table = Table.of(words, NS_PER_ROW + NS_PER_BYTE * row.nbytes, index, row)
        self._words = table.words
        call: LoopCall = compiled(make(index.dtype.name)).call_holding_gil
        text = f"{operands[0].text}[{operands[1].text}]"
        strand.emit_line(self._opened.node, run_checked, (call, (table, 0, 1), self._check), operands, text)

    def _check(self) -> None:
        if self._words[REFUSED]:
            self._words[REFUSED] = 0
            self._refuse(int(self._words[NUMBER]))

    @abstractmethod
    def _refuse(self, number: int) -> None:
        """Raise `InvalidArgumentError` for this element."""


@final
class ReadRows(IndexedRows):
    """A list whose elements are read."""

    def bind(self, strand: Strand, tensors: BoundTensors) -> None:
        node, spec = self._opened.node, self._opened.node.outputs[0]
        handle, index = [tensors[ref] for ref in node.inputs[:2]]
        self._like = np.empty(static_shape(spec), spec.dtype.np)
        text = f"{handle.text}[{index.text}]"
        tensors.place(node, 0, Operand(self._like, None, text))
        self._emit(strand, gather, [handle, index], self._like)

    def open(self, registers: list[Any]) -> Callable[[], None]:
        slot = self._opened.slot

        def open() -> None:
            self._value = registers[slot]
            rows = self._rows = rows_of(self._value, self._like)
            self._words[0], self._words[3] = rows.ctypes.data, len(rows)

        return open

    def close(self, registers: list[Any]) -> Callable[[], None]:
        def close() -> None:
            self._rows = self._like[None]

        return close

    def _refuse(self, number: int) -> None:
        self._value.get(number)


@final
class SetRows(IndexedRows):
    """A list whose elements are set."""

    def bind(self, strand: Strand, tensors: BoundTensors) -> None:
        node = self._opened.node
        handle, index, item = [tensors[ref] for ref in node.inputs]
        tensors.place(node, 0, handle)
        self._like = item.value
        self._emit(strand, scatter, [handle, index, item], item.value, 0, int(node.attrs["_write_once"]))

    def open(self, registers: list[Any]) -> Callable[[], None]:
        slot = self._opened.slot

        def open() -> None:
            value = self._value = registers[slot]
            self._rows = self._device.empty((value.length, *self._like.shape), self._like.dtype)
            self._flags = np.array([element is not None for element in value.kept()], np.uint8)
            self._words[0], self._words[3] = self._rows.ctypes.data, value.length
            self._words[NUMBER + 1] = self._flags.ctypes.data

        return open

    def close(self, registers: list[Any]) -> Callable[[], None]:
        slot = self._opened.slot

        def close() -> None:
            registers[slot] = self._changed()
            self._rows = self._like[None]

        return close

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
