"""Compiled loops of operations that write variables: an optimizer's updates in one pass over memory.

The memory of a variable of static shape is fixed for the session's lifetime, so the loops are bound to it
once; other variables have no loops. The same loop updates a variable's copies on all devices, so they stay
equal to the last bit.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any, NamedTuple

import numpy as np

from flowrt.device.memory_ranges import Ranges, bounds
from flowrt.executor.kernels.copy_kernels import is_fit
from flowrt.executor.kernels.fused_program import by_rule, program_of, remembered
from flowrt.executor.kernels.loop_layout import layout_of, parts_on, strides_in
from flowrt.executor.program.arguments import LateArray
from flowrt.executor.program.updates import Update
from flowrt.graph.node import Node
from flowrt.graph.passes.fusion.group import Level
from flowrt.graph.resources.variables import VariableResource
from flowrt.loops.loop_program import LoopBuilder, LoopProgram, LoopValue


def update_of(node: Node, arguments: Sequence[Any], registers: list[Any]) -> Update | None:
    """The update of ``node``, with inputs variables, arrays or `LateArray`s; None if no loop supports it."""
    variables = tuple([a for a in arguments if isinstance(a, VariableResource)])
    if not all(variable.is_pinned for variable in variables):
        return None
    arrays = tuple([a for a in arguments if isinstance(a, np.ndarray)])
    values = [a.stand_in if isinstance(a, LateArray) else array_of(a) for a in arguments]
    written = Ranges([bounds(variable.array) for variable in variables])
    if not all(map(is_fit, values)) or any(written.overlaps(bounds(array)) for array in arrays):
        return None  # a gradient that is the variable, read in another order perhaps
    loop = update_loop(node, arguments, values)
    if loop is None:
        return None
    layout = layout_of(loop.program, loop.domain, loop.strides, for_all_sizes=True)
    late = tuple([(i, a) for i, a in enumerate(arguments) if isinstance(a, LateArray)])
    return Update(node, variables, loop.needed, arrays, late, tuple(parts_on(layout, values)), registers)


def array_of(argument: Any) -> Any:
    """The memory of a variable; any other argument as it is."""
    return argument.array if isinstance(argument, VariableResource) else argument


_programs: dict[Hashable, LoopProgram | None] = {}
"""Programs by operation and operands."""


class UpdateLoop(NamedTuple):
    """The loop of an update: each argument is the operand of its index. The values of ``needed`` variables
    are read.
    """

    program: LoopProgram
    domain: tuple[int, ...]
    strides: list[tuple[int, ...]]
    needed: tuple[VariableResource, ...]


def update_loop(node: Node, arguments: Sequence[Any], arrays: Sequence[Any]) -> UpdateLoop | None:
    """The loop that applies ``node`` to ``arrays``, those of its arguments; None if the operation has no rule
    for them, or they are not all of the variables' shape, or numbers.
    """
    variables = {i: a for i, a in enumerate(arguments) if isinstance(a, VariableResource)}
    if not variables or len(set(variables.values())) < len(variables):
        return None
    domain = arrays[min(variables)].shape
    if 0 in domain or any(array.shape not in (domain, ()) for array in arrays):
        return None

    def rule(b: LoopBuilder, *values: LoopValue) -> list[LoopValue] | None:
        results = by_rule(b, node, values)
        return None if results is None else [b.spread(value) for value in results]

    reads, attrs = [(array.dtype.name, array.shape == ()) for array in arrays], node.attrs
    key = (
        node.op.name, tuple([str(attrs[name]) for name in node.op.loop_attrs]),
        tuple([spec.dtype for spec in node.outputs]), *reads, *variables,
    )  # fmt: skip
    program = remembered(_programs, key, lambda: program_of(rule, reads, tuple(variables)))
    if program is None:
        return None
    needed = tuple([variable for i, variable in variables.items() if i in program.read])
    return UpdateLoop(program, domain, [strides_in(a, Level.ELEMENT, domain) for a in arrays], needed)
