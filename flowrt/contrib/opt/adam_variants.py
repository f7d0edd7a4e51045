"""Variants of Adam. Each docstring states the difference from `flowrt.train.AdamOptimizer` and its source."""

from __future__ import annotations

from typing import Any

from flowrt.graph.construction.graph import Operation, Tensor
from flowrt.graph.ops.base.indexed_slices import IndexedSlices
from flowrt.graph.ops.elementwise.math import sqrt, square
from flowrt.graph.ops.state.variable_ops import resource_scatter_sub
from flowrt.graph.ops.text.python_calls import group
from flowrt.train.optimizers.optimizer import summed_rows
from flowrt.train.optimizers.standard_optimizers import AdamOptimizer
from flowrt.variables.variable import Variable


class LazyAdamOptimizer(AdamOptimizer):
    """Adam that leaves the rows alone that a sparse gradient does not name: their averages do not fade, and
    they do not move. In Adam both do, as a missing row counts as a gradient of zero.
    """

    def _apply_sparse(self, grad: IndexedSlices, var: Variable) -> Operation:
        hypers = ("lr", "beta1", "beta2", "epsilon", "beta1_power", "beta2_power")
        rate, beta1, beta2, epsilon, power1, power2 = (self._hyper(name, var) for name in hypers)
        m, v = self._slots["m"][var], self._slots["v"][var]
        g, rows = summed_rows(grad)
        mean: Any = beta1 * m.sparse_read(rows) + (1 - beta1) * g
        variance: Any = beta2 * v.sparse_read(rows) + (1 - beta2) * square(g)
        step = rate * sqrt(1 - power2) / (1 - power1) * mean / (sqrt(variance) + epsilon)
        slots = [slot.scatter_update(IndexedSlices(new, rows)) for slot, new in ((m, mean), (v, variance))]
        return group(*slots, resource_scatter_sub(var.handle, rows, step))


class NadamOptimizer(AdamOptimizer):
    """Adam with Nesterov's momentum (Dozat 2016): the step is along ``beta1 * m + (1 - beta1) * grad``
    instead of m. A sparse gradient counts as zero in the rows that it does not name.
    """

    def _apply_dense(self, grad: Tensor, var: Variable) -> Operation:
        hypers = ("lr", "beta1", "beta2", "epsilon", "beta1_power", "beta2_power")
        rate, beta1, beta2, epsilon, power1, power2 = (self._hyper(name, var) for name in hypers)
        m, v = self._slots["m"][var], self._slots["v"][var]
        mean: Any = m.assign(beta1 * m.read_value() + (1 - beta1) * grad)
        variance: Any = v.assign(beta2 * v.read_value() + (1 - beta2) * square(grad))
        ahead = beta1 * mean + (1 - beta1) * grad
        step = rate * sqrt(1 - power2) / (1 - power1) * ahead / (sqrt(variance) + epsilon)
        return var.assign_sub(step, read_value=False)
