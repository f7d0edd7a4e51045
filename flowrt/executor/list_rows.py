"""Lists of a loop that is machine code: their elements as rows of memory, along which the loop goes.

A list that a loop only pushes onto, or only takes from, lies open while the loop runs (`open_lists`). A loop
that pushes writes into new rows, which are the list's elements afterwards; one that takes elements reads rows
to which they were copied, the last first. There are rows for a part of the iterations, and between two parts
the list is a list.
"""

from __future__ import annotations

from typing import Any, final

import numpy as np

from flowrt.device.call_sequence import Call, advancing, in_sequence
from flowrt.device.device import Device
from flowrt.executor.arguments import Operand
from flowrt.executor.bound_tensors import BoundTensors
from flowrt.executor.copies import copy_call
from flowrt.executor.open_lists import SLAB_BYTES, OpenList
from flowrt.executor.strand import Strand
from flowrt.graph.node import static_shape

Array = np.ndarray[Any, Any]

FIRST_ROWS = 64
"""Rows for a list that is pushed onto, at first: there are twice as many where they were not enough."""


@final
class RowList:
    """An open list whose elements are rows of one shape while the loop runs. Bind it as an `OpenList`."""

    def __init__(self, opened: OpenList, device: Device, registers: list[Any]) -> None:
        self._opened, self._device, self._registers = opened, device, registers
        self._rows = FIRST_ROWS
        self._words = self._row = self._taken = np.empty(0, np.int64)
        """The table that says where the next row is, first in it; a row's like; and the rows."""

    def bind(self, strand: Strand, tensors: BoundTensors) -> None:
        """The instruction in the loop's body: a copy to the next row, or from it."""
        node, operands = self._opened.node, [tensors[ref] for ref in self._opened.node.inputs[:2]]
        tensors.place(node, 0, operands[0])
        if self._opened.is_pushed:
            element, text = operands[1].value, operands[0].text
        else:
            spec = node.outputs[1]
            element, text = np.empty(static_shape(spec), spec.dtype.np), f"{operands[0].text}[-1]"
            tensors.place(node, 1, Operand(element, None, text))
        strand.emit_line(node, *self._along_rows(element), operands, text)

    def _along_rows(self, element: Array) -> Call:
        self._row = np.empty_like(element, order="C")
        is_pushed = self._opened.is_pushed
        copy = copy_call(self._row, element) if is_pushed else copy_call(element, self._row)
        table = copy[1][0]
        self._words = table.words[int(is_pushed) :]
        return in_sequence([copy, advancing(table, int(is_pushed), self._row.nbytes)])

    # --- a part of the iterations

    def room(self, limit: int) -> int:
        """For how many iterations, of ``limit``, there can be rows."""
        if self._opened.is_pushed:
            return min(limit, self._rows)
        return min(limit, len(self._elements))

    def begin(self, count: int) -> None:
        """Have rows for ``count`` iterations."""
        row = self._row
        self._taken = self._device.empty((count, *row.shape), row.dtype)
        if not self._opened.is_pushed:
            zeros = np.zeros(row.shape, row.dtype)  # what is not set counts as
            last = [zeros if e is None else e for e in self._elements[: -count - 1 : -1]]
            np.stack(last, out=self._taken)
        self._words[0] = self._taken.ctypes.data

    def end(self) -> None:
        """After some iterations: the list as they leave it."""
        taken, elements = self._taken, self._elements
        count = (int(self._words[0]) - taken.ctypes.data) // self._row.nbytes
        if not self._opened.is_pushed:
            del elements[len(elements) - count :]
            return
        elements += [taken[i, ...] for i in range(count)]
        if count == self._rows and 2 * taken.nbytes <= SLAB_BYTES:
            self._rows *= 2

    @property
    def _elements(self) -> list[Any]:
        elements: list[Any] = self._registers[self._opened.slot]
        return elements
