"""Values that are known when a program is bound, and cost nothing at run time: constants and views."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from flowrt import dtypes
from flowrt.device.device import Device
from flowrt.executor.buffers.bound_tensors import owner_of
from flowrt.executor.program.arguments import Operand, bound_kernel
from flowrt.graph.node import Node
from flowrt.graph.op_def import Effect


def constant(node: Node, device: Device) -> Operand:
    """The value of a constant, in the memory of ``device``."""
    array = node.attrs["value"]
    value = device.put(array, owner_of(node)) if device.is_asynchronous else array
    text = repr(array.item()) if array.size == 1 else f"const{list(array.shape)}"
    return Operand(value, None, text, host_value=array)


def views(node: Node, reads: Sequence[Operand], device: Device) -> list[Operand]:
    """The outputs of ``node`` as views of the memory of one of its inputs, or the handle that it passes on.
    Raises errors of the operation's kernel.
    """
    source = reads[node.op.aliased]
    if node.outputs[0].dtype is dtypes.resource:
        return [source]
    if node.op.effect is Effect.READ:
        return [Operand(source.value.array, None, source.text)]
    function, arguments = bound_kernel(device.xp, node, reads)
    with np.errstate(all="ignore"):
        array: Any = function(*arguments)
    if array is source.value:
        return [Operand(array, None, source.text, host_value=source.host_value)]
    text = f"{node.op.name}({source.text})"
    if isinstance(array, list):
        return [Operand(part, None, f"{text}[{index}]") for index, part in enumerate(array)]
    return [Operand(array, None, text)]
