"""`ReducedValues`: the tensors of a graph that are equal on all workers as results of `Strategy.reduce`.

A worker with one device has plain tensors both for results of `Strategy.run`, which are its own, and for
values reduced over all. With several devices, a `PerReplica` distinguishes them.
"""

from __future__ import annotations

from typing import Any, final
from weakref import WeakSet

import numpy as np

from flowrt.base.structure import Structure, flatten
from flowrt.distribute.strategies.values.distributed_values import DistributedValues
from flowrt.graph.construction.graph import Tensor
from flowrt.graph.op_def import Effect
from flowrt.graph.ops.base.indexed_slices import IndexedSlices
from flowrt.variables.variable import Variable


@final
class ReducedValues:
    """Reduced values of one strategy."""

    def __init__(self) -> None:
        self._reduced: WeakSet[Tensor] = WeakSet()
        self._of_replicas: WeakSet[Tensor] = WeakSet()

    def note_reduced(self, value: Structure) -> None:
        """Record ``value`` as a result of `Strategy.reduce`."""
        self._reduced.update(leaf for leaf in flatten(value) if isinstance(leaf, Tensor))

    def note_of_replicas(self, value: Structure) -> None:
        """Record ``value`` as a result of `Strategy.run`: a replica's own, whatever it depends on."""
        tensors = [leaf for leaf in flatten(value) if isinstance(leaf, Tensor)]
        self._of_replicas.update(tensor for tensor in tensors if tensor not in self._reduced)

    def is_for_all(self, value: Any) -> bool:
        """Whether ``value`` is a variable, a nonzero number, or depends only on reduced tensors and
        constants.
        """
        if isinstance(value, Tensor):
            return self._is_made_of_reduced(value)
        if isinstance(value, DistributedValues | IndexedSlices):
            return False
        return isinstance(value, Variable) or bool(np.any(value))

    def _is_made_of_reduced(self, tensor: Tensor) -> bool:
        found, seen, ahead = False, {tensor}, [tensor]
        while ahead:
            each = ahead.pop()
            if each in self._reduced:
                found = True
            elif each in self._of_replicas or not _is_computed(each):
                return False
            else:
                new = [source for source in each.op.inputs if source not in seen]
                seen.update(new)
                ahead += new
        return found


def _is_computed(tensor: Tensor) -> bool:
    """Whether it is a constant, or depends on its inputs only."""
    op = tensor.op
    return op.type == "Const" or (bool(op.inputs) and op.node.op.effect is Effect.PURE)
