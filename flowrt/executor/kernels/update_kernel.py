"""Compiled loops of operations that write variables: an optimizer's updates in one pass over memory.

The variables' memory is fixed for the session's lifetime, so the loops are bound to it once. The same loop
updates a variable's copies on all devices, so they stay equal to the last bit.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from flowrt.executor.kernels.copy_kernels import is_fit
from flowrt.executor.kernels.fused_program import by_rule, program_of
from flowrt.executor.kernels.loop_layout import expanded, layout_of, parts_on, strides_in
from flowrt.executor.program.arguments import Later
from flowrt.executor.program.updates import LateArray, Update, are_apart, extents
from flowrt.graph.node import Node, TensorSpec, static_shape
from flowrt.graph.passes.fusion.group import Level
from flowrt.graph.resources.variables import VariableResource
from flowrt.graph.shapes import is_static
from flowrt.loops.loop_program import LoopBuilder, LoopProgram, LoopValue


def late_array(argument: Any, spec: TensorSpec) -> Any:
    """An ``argument`` of ``spec`` in a register and of known shape as a `LateArray`; any other as it is."""
    if not isinstance(argument, Later) or argument.plain_slot is None or not is_static(spec.shape):
        return argument
    return LateArray(argument.plain_slot, np.empty(static_shape(spec), spec.dtype.np))


def update_of(node: Node, arguments: Sequence[Any], registers: list[Any]) -> Update | None:
    """The update of ``node``, with inputs variables, arrays or `LateArray`s; None if no loop supports it."""
    variables = tuple([a for a in arguments if isinstance(a, VariableResource)])
    values = [_array_of(argument) for argument in arguments]
    if not variables or len(set(variables)) < len(variables) or not all(map(is_fit, values)):
        return None
    domain = variables[0].array.shape
    if not variables[0].array.size or any(array.shape not in (domain, ()) for array in values):
        return None
    arrays = tuple([a for a in arguments if isinstance(a, np.ndarray)])
    if not are_apart(extents(arrays), extents([v.array for v in variables])):
        return None  # a gradient that is the variable, read in another order perhaps
    program = update_program(node, arguments, values)
    if program is None:
        return None
    strides = [strides_in(array, Level.ELEMENT, domain) for array in values]
    layout = layout_of(expanded(program), domain, strides)
    read = {data for op, _, _, data, _ in program.instructions if op == "load"}
    needed = tuple([a for i, a in enumerate(arguments) if isinstance(a, VariableResource) and i in read])
    late = tuple([(i, a) for i, a in enumerate(arguments) if isinstance(a, LateArray)])
    return Update(node, variables, needed, arrays, late, tuple(parts_on(layout, values)), registers)


def _array_of(argument: Any) -> Any:
    if isinstance(argument, LateArray):
        return argument.stand_in
    return argument.array if isinstance(argument, VariableResource) else argument


def update_program(node: Node, arguments: Sequence[Any], arrays: Sequence[Any]) -> LoopProgram | None:
    """The program that applies ``node`` to ``arrays``, those of its arguments: each is the operand of its
    index. None if the operation has no rule for that.
    """
    written = [i for i, argument in enumerate(arguments) if isinstance(argument, VariableResource)]

    def rule(b: LoopBuilder, *values: LoopValue) -> list[LoopValue] | None:
        results = by_rule(b, node, values)
        return None if results is None else [b.spread(value) for value in results]

    return program_of(rule, [(array.dtype.name, array.shape == ()) for array in arrays], written)
