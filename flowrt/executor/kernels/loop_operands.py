"""`GroupKernel`: the compiled loops of a group of operations, and their operands, wherever the arrays are.

A loop depends on the memory layout of its arrays, so it is created when they are known: an operand that
shares its memory with a result is merged with it. Loops are kept, one per layout.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import numpy as np

from flowrt.executor.kernels.fused_program import OperandOf, fused_program
from flowrt.executor.kernels.loop_layout import strides_in
from flowrt.executor.program.arguments import Later
from flowrt.executor.program.instruction import Action, Call
from flowrt.graph.node import Node, TensorSpec, static_shape
from flowrt.graph.passes.fusion.group import Group, Level
from flowrt.loops.loop_program import LoopProgram

SUMS = (Level.COLUMN_SUM, Level.TOTAL)
"""Roles of outputs with partial results."""


class GroupKernel(ABC):
    """The kernel of a fused node: ``kernel(inputs, out=None)`` as any other, where ``inputs`` is one tuple.
    What loops cannot do (a check that fails, memory that overlaps, an unknown instruction) the members' own
    kernels do.
    """

    def __init__(self, node: Node) -> None:
        self._group: Group = node.attrs["group"]
        self._specs = node.outputs
        traced = fused_program(self._group)
        self._program = None if traced is None else traced.program
        self._operands = () if traced is None else traced.operands
        self._loops: dict[Any, Any] = {}

    def __call__(self, inputs: Sequence[Any], out: Sequence[Any] | None = None) -> Sequence[Any]:
        results = [self._empty(spec) for spec in self._specs] if out is None else out
        function, arguments = self.bind(inputs, results).bound()
        function(*arguments)
        return results

    @abstractmethod
    def bind(self, inputs: Sequence[Any], results: Sequence[Any]) -> Action:
        """The action that computes ``results`` from ``inputs``, reusable when their elements change."""

    def bind_late(self, late: Later, registers: list[Any], results: Sequence[Any]) -> Action:
        """The action of `bind`, for inputs that are partly in registers when it is made: it is bound in each
        call.
        """
        self.prepare()
        return Call(lambda: self(late.read(registers), results))

    @abstractmethod
    def _empty(self, spec: TensorSpec) -> Any:
        """New memory for a result."""

    @abstractmethod
    def _made(self, program: LoopProgram, strides: list[tuple[int, ...]], arrays: Sequence[Any]) -> Any:
        """The loop of ``program`` for these operands."""

    def prepare(self) -> None:
        """Compile the loop for C-contiguous arrays, the common case. Raises errors of the compiler."""
        inputs, results = (
            [np.empty(static_shape(spec), spec.dtype.np) for spec in specs]
            for specs in (self._group.inputs.values(), self._specs)
        )
        arrays = arrays_of(self._operands, inputs, results)
        self._loop(arrays, [0 if array is None else array.ctypes.data for array in arrays])

    def _loop(self, arrays: Sequence[Any], addresses: Sequence[int]) -> Any:
        """The loop for ``arrays``, the operands; None where there is none."""
        if self._program is None:
            return None
        strides = strides_of(self._operands, arrays, self._group.domain)
        shared = shared_operands(self._operands, addresses, strides)
        if shared is None or not are_matrices_whole(self._operands, arrays):
            return None
        key = (*strides, *shared.items())
        if key not in self._loops:
            self._loops[key] = self._made(merged(self._program, shared), strides, arrays)
        return self._loops[key]


def arrays_of(operands: Sequence[OperandOf], inputs: Sequence[Any], results: Sequence[Any]) -> list[Any]:
    """The array of each operand; None for a status."""
    return [
        None if number is None else inputs[number] if is_input else results[number]
        for is_input, number, _ in operands
    ]


def strides_of(
    operands: Sequence[OperandOf], arrays: Sequence[Any], domain: tuple[int, ...]
) -> list[tuple[int, ...]]:
    """Strides of each operand in elements, one per dimension of the domain. Sums are treated as columns."""
    return [
        (*[0] * (len(domain) - 1), int(level is Level.COLUMN_SUM))[: len(domain)]
        if level in SUMS
        else strides_in(array, level, domain)
        for (_, _, level), array in zip(operands, arrays, strict=True)
    ]


def are_matrices_whole(operands: Sequence[OperandOf], arrays: Sequence[Any]) -> bool:
    """Whether the matrices that members index by row are in C order, as required."""
    return all(
        array.flags.c_contiguous
        for (_, _, level), array in zip(operands, arrays, strict=True)
        if level is Level.MATRIX
    )


def shared_operands(
    operands: Sequence[OperandOf], addresses: Sequence[int], strides: Sequence[tuple[int, ...]]
) -> dict[int, int] | None:
    """Operands that are identical to an earlier one because a result reuses its memory. None if they would
    not be read and written in the same order.
    """
    shared: dict[int, int] = {}
    places: dict[int, int] = {}
    for position, (is_input, _, level) in enumerate(operands):
        if level in SUMS:
            continue
        other = places.get(addresses[position])
        if is_input:
            places.setdefault(addresses[position], position)
        elif other is not None:
            if strides[other] != strides[position] or operands[other].level is not level:
                return None
            shared[position] = other
    return shared


def merged(program: LoopProgram, shared: dict[int, int]) -> LoopProgram:
    """``program`` with results put into the operands that they share memory with."""
    outputs = [o._replace(operand=shared.get(o.operand, o.operand)) for o in program.outputs]
    return program._replace(outputs=tuple(outputs))
