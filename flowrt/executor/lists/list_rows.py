"""Lists of a machine-code loop: their elements are rows of memory, accessed sequentially.

A list that a loop only pushes onto, or only pops from, changes in place (`open_lists`). A loop that pushes
writes consecutive new rows; one that pops reads them backwards. Rows become separate arrays only on demand.
When the memory for rows is full, machine code pauses until there is more. For lists of lists see
`flowrt.executor.lists.nested_rows`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from flowrt import dtypes
from flowrt.device.device import Device
from flowrt.errors import InvalidArgumentError
from flowrt.executor.buffers.bound_tensors import BoundTensors
from flowrt.executor.lists.open_lists import NO_ELEMENTS, SLAB_BYTES, OpenList, OpenListBinder
from flowrt.executor.lists.row_access import RowAccess, stack_access
from flowrt.executor.program.arguments import Operand
from flowrt.executor.program.instruction import Move, Register
from flowrt.executor.program.instruction_builder import InstructionBuilder
from flowrt.graph.node import Ref, static_shape
from flowrt.graph.ops.lists.tensor_lists import check_dtype
from flowrt.graph.resources.tensor_list import ListSpec, TensorList
from flowrt.graph.shapes import format_shape
from flowrt.loops.control_nest import END, TOP, Push, Take

Array = np.ndarray[Any, Any]

FIRST_ROWS = 64
"""Initial number of rows of a list; doubled when full, and the next run starts with the number needed."""

ZERO: Array = np.zeros((), np.int64)

MAX_PIECE = 1 << 24
"""Maximum size in bytes of rows in one array. Several pieces up to this size are copied to one: 2 ms."""


class RowList(OpenListBinder):
    """An open list with elements of one static shape, stored as rows while the loop runs."""

    def __init__(self, opened: OpenList, device: Device) -> None:
        self._opened, self._device = opened, device
        self._like: Array = np.empty(0)
        """A row's like."""

    @property
    def spec(self) -> ListSpec:
        return self._opened.spec

    @property
    def slot(self) -> int:
        """The register of the list."""
        return self._opened.slot

    def _in_memory(self, builder: InstructionBuilder, tensors: BoundTensors, ref: Ref) -> Array:
        """The array of an operand, in C order: a copy if the value is in a register or in another order."""
        value, slot, *_ = tensors[ref]
        if slot is None and value.flags.c_contiguous:
            return value
        spec = tensors.subgraph.spec(ref)
        array = np.empty(static_shape(spec), spec.dtype.np)
        source = value if slot is None else Register(tensors.registers, slot)
        builder.emit(self._opened.node, Move(array, source))
        return array


class StackedRows(RowList):
    """A list that changes at its end."""

    _words: Array
    """Words of the stack's table."""

    def __init__(self, opened: OpenList, device: Device) -> None:
        super().__init__(opened, device)
        self.length: Array = np.zeros((), np.int64)
        """Elements of the list, as machine code counts them."""

    def _emit(
        self, builder: InstructionBuilder, access: RowAccess, operands: Sequence[Operand], text: str
    ) -> None:
        self._words = access.table.words
        builder.emit_line(self._opened.node, access, operands, [Operand(None, None, text)])


class PushedRows(StackedRows):
    """A list that is pushed onto."""

    def __init__(self, opened: OpenList, device: Device) -> None:
        super().__init__(opened, device)
        self._size = 1
        """Rows of the next piece."""
        self._pieces: list[Array] = []

    def bind(self, builder: InstructionBuilder, tensors: BoundTensors) -> None:
        node = self._opened.node
        tensors.place(node, 0, tensors[node.inputs[0]])
        value = self._like = self._pushed(builder, tensors)
        self._size = max(1, min(FIRST_ROWS, SLAB_BYTES // value.nbytes))
        access = stack_access(Push(0, value.nbytes), value, self.length, ZERO, self._grow)
        operands = [tensors[ref] for ref in node.inputs[:2]]
        self._emit(builder, access, operands, operands[0].text)

    def _pushed(self, builder: InstructionBuilder, tensors: BoundTensors) -> Array:
        """The array that is pushed."""
        return self._in_memory(builder, tensors, self._opened.node.inputs[1])

    def begin(self) -> None:
        """Have no elements."""
        self._pieces = []
        self._grow()
        self.length[...] = 0

    def _grow(self) -> None:
        """Have room for more rows."""
        rows = self._device.empty((self._size, *self._like.shape), self._like.dtype)
        self._pieces.append(rows)
        self._words[TOP] = rows.ctypes.data
        self._words[END] = rows.ctypes.data + rows.nbytes
        self._size = max(1, min(2 * self._size, self._most))

    def open(self, registers: list[Any]) -> None:
        self.begin()

    def close(self, registers: list[Any]) -> None:
        pieces = self._filled()
        before: TensorList = registers[self.slot]
        if pieces and not before.length and sum(rows.nbytes for rows in pieces) <= MAX_PIECE:
            registers[self.slot] = TensorList.of_rows(self.spec, self._joined(pieces))
        elif pieces:
            elements = [rows[i, ...] for rows in pieces for i in range(len(rows))]
            registers[self.slot] = TensorList(self.spec, [*before.kept(), *elements])

    def finished(self) -> Any:
        """All rows, in place of an array of them. The next list starts with the same capacity."""
        return self._joined(self._filled())

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
        return np.concatenate(pieces, out=rows) if pieces else rows

    @property
    def _most(self) -> int:
        """Rows of a piece."""
        return MAX_PIECE // self._like.nbytes


class TakenRows(StackedRows):
    """A list from which the last element is taken again and again."""

    def __init__(self, opened: OpenList, device: Device) -> None:
        super().__init__(opened, device)
        self._rows: Any = ()

    def bind(self, builder: InstructionBuilder, tensors: BoundTensors) -> None:
        node, spec = self._opened.node, self._opened.node.outputs[1]
        handle = tensors[node.inputs[0]]
        tensors.place(node, 0, handle)
        element = self._like = np.empty(static_shape(spec), spec.dtype.np)
        tensors.place(node, 1, Operand(element, None, f"{handle.text}[-1]"))
        self._bind_take(builder, tensors, ZERO)

    def _bind_take(self, builder: InstructionBuilder, tensors: BoundTensors, rest: Array) -> None:
        """Take rows when ``rest`` is 0."""
        take = Take(0, self._like.nbytes)
        access = stack_access(take, self._like, self.length, rest, self._refuse)
        handle, element = [tensors[self._opened.node.name, i] for i in range(2)]
        self._emit(builder, access, [handle], element.text)

    def _refuse(self) -> None:
        raise InvalidArgumentError(NO_ELEMENTS)

    def begin(self, rows: Any) -> None:
        """Take from ``rows``. The list on their top has no elements yet."""
        self._rows = rows
        self._words[TOP] = rows.ctypes.data + rows.nbytes
        self.length[...] = 0

    def open(self, registers: list[Any]) -> None:
        self.begin(self.rows_of([registers[self.slot]]))
        self.length[...] = registers[self.slot].length

    def close(self, registers: list[Any]) -> None:
        left, spec = int(self.length), self.spec
        registers[self.slot] = TensorList.of_rows(spec, self._rows[:left]) if left else TensorList(spec)
        self.end()

    def end(self) -> None:
        """Release the rows."""
        self._rows = ()

    def rows_of(self, values: Sequence[TensorList]) -> Any:
        """The elements of ``values``, concatenated, as rows. Raises `InvalidArgumentError` or `DTypeError` if
        one does not match.
        """
        found = [rows_of(value, self._like) for value in values]
        if len(found) == 1:
            return found[0]
        # `concatenate` alone may choose another layout for arrays of one row each, not always row-major.
        rows = np.empty((sum(map(len, found)), *self._like.shape), self._like.dtype)
        return np.concatenate(found, out=rows) if found else rows

    def suits(self, rows: Any) -> bool:
        """Whether elements can be taken from ``rows`` as they are."""
        like = self._like
        return (
            isinstance(rows, np.ndarray)
            and (rows.dtype, rows.shape[1:]) == (like.dtype, like.shape)
            and rows.flags.c_contiguous
        )

    def skip(self) -> None:
        """Skip the rest of the list on the top."""
        self._words[TOP] -= int(self.length) * self._like.nbytes
        self.length[...] = 0


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
