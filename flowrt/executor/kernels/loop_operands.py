"""The operands of a group's program on the arrays of its inputs and results, wherever these are."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from flowrt.device.loops.loop_program import LoopProgram
from flowrt.executor.kernels.fused_program import OperandOf
from flowrt.executor.kernels.loop_layout import strides_in
from flowrt.graph.passes.fusion.group import Level

SUMS = (Level.COLUMN_SUM, Level.TOTAL)
"""Roles of outputs with partial results."""


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
    operands: Sequence[OperandOf],
    addresses: Sequence[int],
    strides: Sequence[tuple[int, ...]],
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
