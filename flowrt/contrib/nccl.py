"""``flowrt.contrib.nccl``: sums and extremes over the devices of a graph, as NCCL's functions in TensorFlow.

They are ordinary operations on the first tensor's device; `flowrt.distribute` has rings over GPUs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce
from typing import Any

from flowrt.graph.construction.graph import Tensor
from flowrt.graph.ops.base.identities import identity
from flowrt.graph.ops.elementwise.arithmetic import add_v2, maximum, minimum, multiply
from flowrt.graph.source import misuse
from flowrt.variables.graph_scopes import device

__all__ = ["all_max", "all_min", "all_prod", "all_sum", "broadcast", "reduce_sum"]


def all_sum(tensors: Sequence[Tensor]) -> list[Tensor]:
    """The sum of ``tensors``, of one shape, on the device of each of them.

    Example:
        >>> from flowrt.contrib import nccl
        >>> nccl.all_sum([tf.constant([1.0, 2.0]), tf.constant([3.0, 4.0])])[1].eval()
        array([4., 6.], dtype=float32)
    """
    return _on_each("all_sum", tensors, add_v2)


def all_prod(tensors: Sequence[Tensor]) -> list[Tensor]:
    """The product of ``tensors`` on the device of each of them."""
    return _on_each("all_prod", tensors, multiply)


def all_min(tensors: Sequence[Tensor]) -> list[Tensor]:
    """The elementwise minimum of ``tensors`` on the device of each of them."""
    return _on_each("all_min", tensors, minimum)


def all_max(tensors: Sequence[Tensor]) -> list[Tensor]:
    """The elementwise maximum of ``tensors`` on the device of each of them."""
    return _on_each("all_max", tensors, maximum)


def reduce_sum(tensors: Sequence[Tensor]) -> Tensor:
    """The sum of ``tensors``, on the device of the scope that it is asked for in."""
    return _folded("reduce_sum", tensors, add_v2)


def broadcast(tensor: Tensor) -> Tensor:
    """The tensor, which every device reads from where it is."""
    return identity(tensor)


def _folded(name: str, tensors: Sequence[Tensor], function: Callable[[Any, Any], Tensor]) -> Tensor:
    if not tensors:
        raise misuse(f"nccl.{name}: expected a tensor of each device; got none")
    return reduce(function, tensors)


def _on_each(name: str, tensors: Sequence[Tensor], function: Callable[[Any, Any], Tensor]) -> list[Tensor]:
    results = []
    with device(tensors[0].device if tensors else ""):
        total = _folded(name, tensors, function)
    for tensor in tensors:
        with device(tensor.device):
            results.append(identity(total))
    return results
