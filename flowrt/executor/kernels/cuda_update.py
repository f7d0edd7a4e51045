"""Operations that write variables of a GPU, such as an optimizer's update, as one kernel.

The memory of a variable of static shape is fixed for the session's lifetime, so the kernel is bound to it
once. As in the operation's own kernel, all variables are locked meanwhile, in a fixed order, and all that are
read must be initialized.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from flowrt.device.device import Device
from flowrt.executor.buffers.bound_tensors import owner_of
from flowrt.executor.kernels.cuda_kernel import bound_loop
from flowrt.executor.kernels.update_kernel import array_of, update_loop
from flowrt.graph.node import Node
from flowrt.graph.resources.variables import VariableResource, held, locks_of
from flowrt.loops.loop_program import DTYPES


def cuda_update(device: Device, node: Node, arguments: Sequence[Any]) -> Callable[[], None] | None:
    """The call for ``node``, with variables and arrays of ``device`` as inputs; None if no loop supports it.
    Raises errors of the compiler.
    """
    xp = device.xp
    variables = [a for a in arguments if isinstance(a, VariableResource)]
    arrays = [array_of(a) for a in arguments]
    if not all(isinstance(a, xp.ndarray) and a.dtype.name in DTYPES for a in arrays):
        return None
    if not all(variable.is_pinned for variable in variables):
        return None
    rest = [a for a in arguments if not isinstance(a, VariableResource)]
    if any(xp.may_share_memory(a, v.array) for a in rest for v in variables):
        return None  # a gradient that is the variable, read in another order perhaps
    update = update_loop(node, arguments, arrays)
    if update is None:
        return None
    loop = bound_loop(device, owner_of(node), update.program, update.domain, update.strides, arrays)
    return None if loop is None else _update(variables, update.needed, *loop.bind(arrays))


def _update(
    variables: Sequence[VariableResource],
    needed: Sequence[VariableResource],
    function: Callable[..., Any],
    arguments: tuple[Any, ...],
) -> Callable[[], None]:
    locks = locks_of(variables)

    def update() -> None:
        with held(locks):
            for variable in needed:
                variable.read()  # raises without a value
            function(*arguments)
            for variable in variables:
                variable.is_initialized = True

    return update
