"""Lists of a machine-code loop: their elements are rows of memory, accessed sequentially.

A list that a loop only pushes onto, or only pops from, changes in place (`open_lists`). A loop that pushes
writes consecutive new rows; one that pops reads them backwards. Rows become separate arrays only on demand.
When the memory for rows is full, machine code pauses until there is more.
"""

from __future__ import annotations

from typing import Any, final

import numpy as np

from flowrt import dtypes
from flowrt.device.device import Device
from flowrt.errors import InvalidArgumentError
from flowrt.executor.buffers.bound_tensors import BoundTensors
from flowrt.executor.lists.open_lists import NO_ELEMENTS, SLAB_BYTES, OpenList
from flowrt.executor.lists.row_access import stack_access
from flowrt.executor.program.arguments import Operand
from flowrt.executor.program.instruction import Move, Register
from flowrt.executor.program.instruction_builder import InstructionBuilder
from flowrt.graph.node import Node, Ref, static_shape
from flowrt.graph.ops.lists.tensor_lists import check_dtype
from flowrt.graph.resources.tensor_list import TensorList
from flowrt.graph.shapes import format_shape
from flowrt.loops.control_nest import END, TOP, Push, Take

Array = np.ndarray[Any, Any]

FIRST_ROWS = 64
"""Initial number of rows of a list; doubled when full, and the next run starts with the number needed."""

MAX_PIECE = 1 << 24
"""Maximum size in bytes of rows in one array. Several pieces up to this size are copied to one: 2 ms."""


class RowList(OpenList):
    """An open list with elements of one static shape, stored as rows while the loop runs."""

    def __init__(self, slot: int, device: Device) -> None:
        super().__init__(slot, device)
        self._like: Array = np.empty(0)
        """A row's like."""

    def _in_memory(self, node: Node, builder: InstructionBuilder, tensors: BoundTensors, ref: Ref) -> Array:
        """The array of an operand, in C order: a copy if the value is in a register or in another order."""
        value, slot, *_ = tensors[ref]
        if slot is None and value.flags.c_contiguous:
            return value
        spec = tensors.subgraph.spec(ref)
        array = np.empty(static_shape(spec), spec.dtype.np)
        source = value if slot is None else Register(tensors.registers, slot)
        builder.emit(node, Move(array, source))
        return array


@final
class PushedRows(RowList):
    """A list that is pushed onto."""

    def __init__(self, slot: int, device: Device) -> None:
        super().__init__(slot, device)
        self._size = 1
        """Rows of the next piece."""
        self._pieces: list[Array] = []

    def bind(self, node: Node, builder: InstructionBuilder, tensors: BoundTensors) -> None:
        operands = [tensors[ref] for ref in node.inputs[:2]]
        tensors.place(node, 0, operands[0])
        value = self._like = self._in_memory(node, builder, tensors, node.inputs[1])
        self._size = max(1, min(FIRST_ROWS, SLAB_BYTES // value.nbytes))
        access = stack_access(Push(0, value.nbytes), value, self._grow)
        self._words = access.table.words
        builder.emit_line(node, access, operands, operands[:1])

    def open(self, registers: list[Any]) -> None:
        self._pieces = []
        self._grow()

    def _grow(self) -> None:
        """Have room for more rows."""
        rows = self._device.empty((self._size, *self._like.shape), self._like.dtype)
        self._pieces.append(rows)
        self._words[TOP] = rows.ctypes.data
        self._words[END] = rows.ctypes.data + rows.nbytes
        self._size = max(1, min(2 * self._size, self._most))

    def close(self, registers: list[Any]) -> None:
        pieces = self._filled()
        before: TensorList = registers[self.slot]
        if pieces and not before.length and sum(rows.nbytes for rows in pieces) <= MAX_PIECE:
            registers[self.slot] = TensorList.of_rows(before.spec, self._joined(pieces))
        elif pieces:
            elements = [rows[i, ...] for rows in pieces for i in range(len(rows))]
            registers[self.slot] = TensorList(before.spec, [*before.kept(), *elements])

    def _filled(self) -> list[Array]:
        """The pieces, without unused rows. The next list starts with the same capacity."""
        *pieces, last = self._pieces
        free = (int(self._words[END]) - int(self._words[TOP])) // self._like.nbytes
        if free < len(last):
            pieces.append(last[: len(last) - free])
        self._pieces = []
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


@final
class TakenRows(RowList):
    """A list from which the last element is taken again and again."""

    def __init__(self, slot: int, device: Device) -> None:
        super().__init__(slot, device)
        self._rows: Array = self._like

    def bind(self, node: Node, builder: InstructionBuilder, tensors: BoundTensors) -> None:
        spec, handle = node.outputs[1], tensors[node.inputs[0]]
        tensors.place(node, 0, handle)
        self._like = np.empty(static_shape(spec), spec.dtype.np)
        element = Operand(self._like, None, f"{handle.text}[-1]")
        tensors.place(node, 1, element)
        access = stack_access(Take(0, self._like.nbytes), self._like, _refuse)
        self._words = access.table.words
        builder.emit_line(node, access, [handle], [element])

    def open(self, registers: list[Any]) -> None:
        rows = self._rows = rows_of(registers[self.slot], self._like)
        self._words[END] = rows.ctypes.data
        self._words[TOP] = rows.ctypes.data + rows.nbytes

    def close(self, registers: list[Any]) -> None:
        left, spec = int(self._words[TOP] - self._words[END]) // self._like.nbytes, registers[self.slot].spec
        registers[self.slot] = TensorList.of_rows(spec, self._rows[:left]) if left else TensorList(spec)
        self._rows = self._like


def _refuse() -> None:
    raise InvalidArgumentError(NO_ELEMENTS)


def rows_of(value: TensorList, like: Array) -> Array:
    """The elements of ``value``, each ``like`` this one, as rows. Raises `InvalidArgumentError` where one is
    not, `DTypeError`.
    """
    check_dtype(value, dtypes.as_dtype(like.dtype))
    rows = value.rows
    if rows is None:
        zeros = np.zeros_like(like)  # value of elements that are not set
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
