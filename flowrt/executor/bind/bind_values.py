"""Values that are known when a program is bound, and cost nothing at run time: constants and views."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from flowrt.device.memory_pool import Owner
from flowrt.executor.buffers.bound_tensors import owner_of
from flowrt.executor.program.arguments import Operand, bound_kernel
from flowrt.graph.node import Node
from flowrt.graph.op_def import Effect


def constant(node: Node, put: Callable[[Any, Owner], Any] | None) -> Operand:
    """The value of a constant; on an asynchronous device ``put(array, owner)`` copies it there."""
    array = node.attrs["value"]
    value = array if put is None else put(array, owner_of(node))
    text = repr(array.item()) if array.size == 1 else f"const{list(array.shape)}"
    return Operand(value, None, text, host_value=array)


def views(node: Node, reads: Sequence[Operand], xp: Any) -> list[Operand]:
    """The outputs of ``node`` as views of the memory of one of its inputs, made by its kernel for the array
    module ``xp``, or the handle that it passes on, or that of rows. Raises the kernel's errors, and gives
    NumPy's warnings.
    """
    source = reads[node.op.aliased]
    if node.op.effect is Effect.READ:
        return [Operand(source.value.array, None, source.text)]
    function, arguments = bound_kernel(xp, node, reads)
    array: Any = function(*arguments)
    if array is source.value:
        return [Operand(array, None, source.text, host_value=source.host_value)]
    text = f"{node.op.name}({source.text})"
    if isinstance(array, list):
        return [Operand(part, None, f"{text}[{index}]") for index, part in enumerate(array)]
    return [Operand(array, None, text)]
