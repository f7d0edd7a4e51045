"""Lists of a loop that is machine code: their elements are rows of memory, along which the loop goes.

A list that a loop only pushes onto, or only takes from, changes in place (`open_lists`). A loop that pushes
writes into new rows, one behind the other; one that takes elements reads them backwards. No row is an array
of its own unless somebody asks for one. There are rows for a part of the iterations at a time.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, final

import numpy as np

from flowrt.device.call_sequence import advancing, in_sequence
from flowrt.device.device import Device
from flowrt.errors import InvalidArgumentError
from flowrt.executor.arguments import Operand
from flowrt.executor.bound_tensors import BoundTensors
from flowrt.executor.copies import copy_call
from flowrt.executor.open_lists import SLAB_BYTES, OpenList
from flowrt.executor.strand import Strand
from flowrt.graph.node import static_shape
from flowrt.graph.shapes import format_shape
from flowrt.graph.tensor_list import TensorList

Array = np.ndarray[Any, Any]

FIRST_ROWS = 64
"""Rows that a list has at first; where they are not enough there are twice as many more, and the next time as
many as were needed.
"""

MAX_PIECE = 1 << 24
"""Bytes of rows that are one array. What comes in several pieces is copied to one if it is no more: 2 ms."""


def is_elsewhere() -> None:
    """In the place of a copy from a register, which is no machine code: the body is bound anew without it."""


class RowList(ABC):
    """An open list whose elements, all of one static shape, are rows while the loop runs."""

    def __init__(self, opened: OpenList, device: Device) -> None:
        self._opened, self._device = opened, device
        self._like: Array = np.empty(0)
        """A row's like."""
        self._words: Array = np.empty(1, np.int64)
        """The table of the copy from or to a row; the first says where the row is."""

    @property
    def _place(self) -> int:
        """Where the loop is in the rows."""
        return int(self._words[0])

    @abstractmethod
    def bind(self, strand: Strand, tensors: BoundTensors) -> None:
        """Emit the copy from or to a row, as the loop's body has it."""

    @abstractmethod
    def open(self, registers: list[Any]) -> Callable[[], None]:
        """Before the loop: take the list that is in the register."""

    @abstractmethod
    def close(self, registers: list[Any]) -> Callable[[], None]:
        """Behind it: put it there."""

    @abstractmethod
    def room(self, limit: int) -> int:
        """For how many iterations, of ``limit``, there can be rows."""

    @abstractmethod
    def begin(self, count: int) -> None:
        """Have rows for ``count`` iterations."""

    @abstractmethod
    def end(self) -> None:
        """Note how many of them there were."""


@final
class PushedRows(RowList):
    """A list that is pushed onto."""

    def __init__(self, opened: OpenList, device: Device) -> None:
        super().__init__(opened, device)
        self._size = 1
        """Rows of the next piece."""
        self._pieces: list[Array] = []
        self._left = 0
        """Rows of the last piece that are still free."""

    def bind(self, strand: Strand, tensors: BoundTensors) -> None:
        node = self._opened.node
        operands = [tensors[ref] for ref in node.inputs[:2]]
        tensors.place(node, 0, operands[0])
        if operands[1].slot is not None:
            strand.emit(node, is_elsewhere)
            return
        self._like = np.empty_like(operands[1].value, order="C")
        copy = copy_call(self._like, operands[1].value)
        table = copy[1][0]
        self._words = table.words[1:]
        self._size = max(1, min(FIRST_ROWS, SLAB_BYTES // self._like.nbytes))
        call = in_sequence([copy, advancing(table, 1, self._like.nbytes)])
        strand.emit_line(node, *call, operands, operands[0].text)

    def open(self, registers: list[Any]) -> Callable[[], None]:
        def open() -> None:
            self._pieces, self._left = [], 0

        return open

    def close(self, registers: list[Any]) -> Callable[[], None]:
        slot, spec = self._opened.slot, self._opened.spec

        def close() -> None:
            pieces = self._filled()
            before: TensorList = registers[slot]
            if pieces and not before.length and sum(rows.nbytes for rows in pieces) <= MAX_PIECE:
                registers[slot] = TensorList.of_rows(spec, self._joined(pieces))
            elif pieces:
                elements = [rows[i, ...] for rows in pieces for i in range(len(rows))]
                registers[slot] = TensorList(spec, [*before.kept(), *elements])

        return close

    def _filled(self) -> list[Array]:
        """The pieces, without free rows. The next list may have as many."""
        pieces, self._pieces = self._pieces, []
        if pieces:
            pieces[-1] = pieces[-1][: len(pieces[-1]) - self._left]
            self._size = max(1, min(sum(map(len, pieces)), self._most))
        return pieces

    def _joined(self, pieces: list[Array]) -> Array:
        """All rows, in one array."""
        if len(pieces) == 1:
            return pieces[0]
        rows = self._device.empty((sum(map(len, pieces)), *self._like.shape), self._like.dtype)
        return np.concatenate(pieces, out=rows)

    @property
    def _most(self) -> int:
        """Rows of a piece."""
        return MAX_PIECE // self._like.nbytes

    def room(self, limit: int) -> int:
        return min(limit, self._left or self._size)

    def begin(self, count: int) -> None:
        if not self._left:
            self._pieces.append(self._device.empty((self._size, *self._like.shape), self._like.dtype))
            self._left = self._size
            self._size = max(1, min(2 * self._size, self._most))
        self._words[0] = self._end - self._left * self._like.nbytes

    def end(self) -> None:
        self._left = (self._end - self._place) // self._like.nbytes

    @property
    def _end(self) -> int:
        """Where the last piece ends."""
        return self._pieces[-1].ctypes.data + self._pieces[-1].nbytes


@final
class TakenRows(RowList):
    """A list from which the last element is taken again and again."""

    def __init__(self, opened: OpenList, device: Device) -> None:
        super().__init__(opened, device)
        self._rows: Array = np.empty(0)
        self._left = 0

    def bind(self, strand: Strand, tensors: BoundTensors) -> None:
        node, spec = self._opened.node, self._opened.node.outputs[1]
        handle = tensors[node.inputs[0]]
        self._like = element = np.empty(static_shape(spec), spec.dtype.np)
        tensors.place(node, 0, handle)
        tensors.place(node, 1, Operand(element, None, f"{handle.text}[-1]"))
        copy = copy_call(element, np.empty_like(element))
        table = copy[1][0]
        self._words = table.words
        call = in_sequence([copy, advancing(table, 0, -element.nbytes)])
        strand.emit_line(node, *call, [handle], f"{handle.text}[-1]")

    def open(self, registers: list[Any]) -> Callable[[], None]:
        slot = self._opened.slot

        def open() -> None:
            value = registers[slot]
            self._left = value.length
            if value.length:
                self._rows = rows_of(value, self._like)

        return open

    def close(self, registers: list[Any]) -> Callable[[], None]:
        slot, spec = self._opened.slot, self._opened.spec

        def close() -> None:
            left = self._rows[: self._left]
            registers[slot] = TensorList.of_rows(spec, left) if self._left else TensorList(spec)
            self._rows = left[:0]

        return close

    def room(self, limit: int) -> int:
        return min(limit, self._left)

    def begin(self, count: int) -> None:
        self._words[0] = self._last

    def end(self) -> None:
        self._left -= (self._last - self._place) // self._like.nbytes

    @property
    def _last(self) -> int:
        """Where the last row that is left is."""
        return self._rows.ctypes.data + (self._left - 1) * self._like.nbytes


def rows_of(value: TensorList, like: Array) -> Array:
    """The elements of ``value``, each ``like`` this one, as rows. Raises `InvalidArgumentError`."""
    rows = value.rows
    if rows is None:
        zeros = np.zeros_like(like)  # what is not set counts as
        elements = [zeros if e is None else e for e in value.elements()]
        wrong = next((e for e in elements if e.shape != zeros.shape), None)
        if wrong is not None:
            rows = wrong[None]
        else:
            rows = np.stack(elements) if elements else zeros[None][:0]
    if rows.shape[1:] != like.shape:
        expected, got = format_shape(like.shape), format_shape(rows.shape[1:])
        raise InvalidArgumentError(f"expected elements of shape {expected}; got {got}")
    return np.ascontiguousarray(rows)
