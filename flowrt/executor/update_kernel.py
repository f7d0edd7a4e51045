"""The compiled loop of an operation that changes variables: an optimizer's update in one pass over memory.

The variables' memory stays for the session's life, so the loop is bound to it once. As with the operation's
own kernel all variables are locked meanwhile, in one order, and all must have a value.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Any

import numpy as np

from flowrt.device.loops import DTYPES, LoopBuilder, LoopProgram
from flowrt.executor.fused_kernel import call_on, expanded, layout_of, strides_in
from flowrt.graph.node import Node
from flowrt.graph.passes.fuse import Level
from flowrt.graph.resources import VariableResource


def update_call(node: Node, arguments: Sequence[Any]) -> Callable[[], None] | None:
    """What to call for ``node``, whose inputs are variables and arrays; None where no loop does it."""
    variables = [a for a in arguments if isinstance(a, VariableResource)]
    arrays = [a.array if isinstance(a, VariableResource) else a for a in arguments]
    if not variables or len(set(variables)) < len(variables) or not all(map(_is_fit, arrays)):
        return None
    domain = variables[0].array.shape
    if not variables[0].array.size or any(array.shape not in (domain, ()) for array in arrays):
        return None
    if any(
        np.may_share_memory(a, v.array) for a in arguments if isinstance(a, np.ndarray) for v in variables
    ):
        return None  # a gradient that is the variable, read in another order perhaps
    program = _program(node, arguments, arrays)
    if program is None:
        return None
    strides = [strides_in(array, Level.ELEMENT, domain) for array in arrays]
    function, values = call_on(layout_of(program, domain, strides), arrays)
    read = {data for op, _, _, data, _ in program.instructions if op == "load"}
    needed = [a for i, a in enumerate(arguments) if isinstance(a, VariableResource) and i in read]
    ordered = sorted(variables, key=id)

    def update() -> None:
        with ExitStack() as stack:
            for variable in ordered:
                stack.enter_context(variable.lock)
            for variable in needed:
                variable.read()  # raises without a value
            function(*values)
            for variable in ordered:
                variable.is_initialized = True

    return update


def _is_fit(array: Any) -> bool:
    return isinstance(array, np.ndarray) and array.flags.aligned and array.dtype.name in DTYPES


def _program(node: Node, arguments: Sequence[Any], arrays: Sequence[Any]) -> LoopProgram | None:
    """Each argument is the operand of its number."""
    assert node.op.loop is not None
    builder = LoopBuilder()
    values = [builder.load(builder.operand(array.dtype.name), array.shape == ()) for array in arrays]
    results = node.op.loop.build(builder, *values, **{key: node.attrs[key] for key in node.op.loop_attrs})
    if results is None:
        return None
    results = results if isinstance(results, tuple) else (results,)
    written = [i for i, argument in enumerate(arguments) if isinstance(argument, VariableResource)]
    for number, value in zip(written, results, strict=True):
        builder.put(builder.spread(value), number)
    return expanded(builder.build())
