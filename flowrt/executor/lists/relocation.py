"""Relocation of operands of compiled calls with an address that changes per step, such as large feeds.

A call's table points to its arrays. If one is not known yet, the call is bound to a stand-in of the same
shape, memory that machine code never accesses; once the array is known, every address of the stand-in in the
table is patched, as a linker does when it loads a program.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, final

import numpy as np

from flowrt.device.llvm.call_sequence import Array, BoundCall, Table
from flowrt.executor.program.arguments import Operand
from flowrt.executor.program.instruction import Move, Register
from flowrt.graph.node import TensorSpec, static_shape
from flowrt.graph.shapes import is_static
from flowrt.loops.loop_program import DTYPES


class _Place(NamedTuple):
    """A word of a table, with its byte offset from the start of the array in register ``slot``."""

    slot: int
    words: Array
    position: int
    offset: int


@final
class Relocation:
    """The ``operands`` of the shapes in ``specs`` that are in ``registers``, as operands in memory. As an
    action, before the loop, it makes the values available there.
    """

    def __init__(
        self, registers: list[Any], operands: Sequence[Operand], specs: Sequence[TensorSpec]
    ) -> None:
        self._registers = registers
        self._stand_ins: dict[int, Array] = {}
        """Stand-ins by register."""
        self._places: list[_Place] | None = None
        self.operands = [self._stand_in(o, spec) for o, spec in zip(operands, specs, strict=True)]

    def _stand_in(self, operand: Operand, spec: TensorSpec) -> Operand:
        slot, shape = operand.slot, spec.shape
        if slot is None or not is_static(shape) or spec.dtype.name not in DTYPES or 0 in shape:
            return operand
        array = self._stand_ins.setdefault(slot, np.empty(static_shape(spec), spec.dtype.np))
        return Operand(array, None, operand.text)

    def link(self, table: Table) -> None:
        """Have the action patch the words of ``table``, and of the tables that it refers to."""
        stand_ins = {id(array): slot for slot, array in self._stand_ins.items()}
        self._places = [
            _Place(stand_ins[id(owner)], words, position, array.ctypes.data - owner.ctypes.data)
            for words, position, array in table.arrays()
            if id(owner := _owner(array)) in stand_ins
        ]

    def bound(self) -> BoundCall:
        return self._prepare, ()

    @property
    def moves(self) -> Sequence[Move]:
        """The moves that the action amounts to."""
        return [Move(array, Register(self._registers, slot)) for slot, array in self._stand_ins.items()]

    def _prepare(self) -> None:
        """Point the table to the values, which are in registers now; for calls from Python, copy them."""
        registers = self._registers
        if self._places is None:
            self.fill()
            return
        for slot in self._stand_ins:
            registers[slot] = np.asarray(registers[slot], order="C")
        for slot, words, position, offset in self._places:
            words[position] = registers[slot].ctypes.data + offset

    def fill(self) -> None:
        """Copy register values to their stand-ins, for what Python computes."""
        for slot, array in self._stand_ins.items():
            np.copyto(array, self._registers[slot])

    def __bool__(self) -> bool:
        """Whether there is anything to do."""
        return bool(self._stand_ins)


def _owner(array: Array) -> Array:
    """The array with the memory that ``array`` is a view of."""
    while isinstance(array.base, np.ndarray):
        array = array.base
    return array
