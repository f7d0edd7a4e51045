"""Scalar operations of loops and branches as code, to be part of a control nest
(`flowrt.loops.control_nest`).

An addition in a nest costs a nanosecond, a call of its compiled loop 5, and a call of its kernel 300.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from flowrt.device.llvm.call_sequence import Array, BoundCall
from flowrt.executor.kernels.copy_kernels import is_fit
from flowrt.executor.kernels.fused_program import OperandOf, fused_program
from flowrt.executor.kernels.loop_layout import layout_of, whole_on
from flowrt.executor.program.arguments import Operand
from flowrt.graph.node import Node
from flowrt.graph.passes.fusion.group import Group
from flowrt.loops.loop_math import expand_functions
from flowrt.loops.loop_program import ARITHMETIC, COMPARISONS, LoopBuilder, LoopProgram, Store

MAX_INSTRUCTIONS = 1_000
"""Instructions of one operation: the compiler takes a millisecond for every 20."""

_SCALAR = ARITHMETIC | COMPARISONS | {"load", "const", "cast", "select", "spread", "bits", "from_bits"}


class ScalarCode(NamedTuple):
    """``program`` on one element of each of ``arrays``, its operands."""

    program: LoopProgram
    arrays: tuple[Array, ...]

    def bound(self) -> BoundCall:
        """The call of a compiled loop. Compiled at the first call: few blocks of scalar code are called."""
        return _run, (self, [])


def _run(code: ScalarCode, made: list[BoundCall]) -> None:
    if not made:
        layout = layout_of(code.program, (), [()] * len(code.arrays))
        made.append(whole_on(layout, code.arrays).bound())
    function, arguments = made[0]
    function(*arguments)


def scalar_code(node: Node, reads: Sequence[Operand], out: Sequence[Array]) -> ScalarCode | None:
    """The code of ``node``, a fusion group of one element, from ``reads`` into ``out``; None if it is another
    operation, or its inputs are not in memory.
    """
    group: Group | None = node.attrs.get("group")
    if group is None or math.prod(group.domain) != 1 or any(o.slot is not None for o in reads):
        return None
    traced = fused_program(group)
    if traced is None or traced.program.status is not None:
        return None
    program = expand_functions(traced.program)
    values = [operand.value for operand in reads]
    arrays = [_array_of(operand, values, out) for operand in traced.operands]
    is_stored = all(output.store is Store.PUT for output in program.outputs)
    is_scalar = all(i.op in _SCALAR for i in program.instructions) and all(map(_is_element, arrays))
    if not (is_stored and is_scalar) or len(program.instructions) > MAX_INSTRUCTIONS:
        return None
    return ScalarCode(program, tuple(arrays))


def scalar_copy(target: Array, source: Array) -> ScalarCode:
    """The copy of ``source``, one element, to ``target``, with a cast to its dtype."""
    builder = LoopBuilder()
    value = builder.load(builder.operand(source.dtype.name))
    builder.put(builder.cast(value, target.dtype.name), builder.operand(target.dtype.name))
    return ScalarCode(builder.build(), (source, target))


def _array_of(operand: OperandOf, inputs: Sequence[Any], results: Sequence[Array]) -> Any:
    assert operand.number is not None
    return np.asarray(inputs[operand.number]) if operand.is_input else results[operand.number]


def _is_element(array: Any) -> bool:
    return is_fit(array) and array.size == 1
