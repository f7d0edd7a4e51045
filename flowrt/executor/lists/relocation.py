"""Relocation of operands of compiled calls with an address that changes per step, such as large feeds.

A call's table points to its arrays. If one is not known yet, the call is bound to a stand-in of the same
shape, memory that no call accesses; once the array is known, every pointer into the stand-in is patched, as a
linker does when it loads a program.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, final

import numpy as np

from flowrt.device.llvm.call_sequence import Array, Table
from flowrt.executor.program.arguments import Operand
from flowrt.graph.node import TensorSpec, static_shape
from flowrt.graph.shapes import is_static
from flowrt.loops.loop_program import DTYPES


class _Place(NamedTuple):
    """A word of a table, with its byte offset from an array's start."""

    words: Array
    position: int
    offset: int


@final
class Relocation:
    """The ``operands`` of the shapes in ``specs`` that are in registers, as operands in memory."""

    def __init__(self, operands: Sequence[Operand], specs: Sequence[TensorSpec]) -> None:
        self._stand_ins: dict[int, Array] = {}
        """Stand-ins by register."""
        self.operands = [self._stand_in(o, spec) for o, spec in zip(operands, specs, strict=True)]

    def _stand_in(self, operand: Operand, spec: TensorSpec) -> Operand:
        slot, shape = operand.slot, spec.shape
        if slot is None or not is_static(shape) or spec.dtype.name not in DTYPES or 0 in shape:
            return operand
        array = self._stand_ins.setdefault(slot, np.empty(static_shape(spec), spec.dtype.np))
        return Operand(array, None, operand.text)

    def bind(self, table: Table, registers: list[Any]) -> Callable[[], None] | None:
        """The function to call before the call of ``table``, once the values are in their registers; None if
        nothing needs relocation.
        """
        pointers = list(_pointers(table))
        found = [(slot, _places(pointers, array)) for slot, array in self._stand_ins.items()]
        found = [(slot, places) for slot, places in found if places]
        if not found:
            return None

        def relocate() -> None:
            for slot, places in found:
                array = registers[slot] = np.asarray(registers[slot], order="C")
                address = array.ctypes.data
                for words, position, offset in places:
                    words[position] = address + offset

        return relocate

    def fill(self, registers: Sequence[Any]) -> None:
        """Copy register values to their stand-ins, for code that recomputes a failed call in Python with
        arrays instead of addresses.
        """
        for slot, array in self._stand_ins.items():
            np.copyto(array, registers[slot])


def _pointers(table: Table) -> Iterator[tuple[Array, int]]:
    """The words that point to arrays, in ``table`` and in those that it points to: a table's words, and a
    position.
    """
    for position, target in table.pointers.items():
        if isinstance(target, Table):
            yield from _pointers(target)
        elif isinstance(target, np.ndarray):
            yield table.words, position


def _places(pointers: Sequence[tuple[Array, int]], array: Array) -> list[_Place]:
    """The pointers into ``array``."""
    begin, end = array.ctypes.data, array.ctypes.data + array.nbytes
    return [
        _Place(words, position, int(words[position]) - begin)
        for words, position in pointers
        if begin <= words[position] < end
    ]
