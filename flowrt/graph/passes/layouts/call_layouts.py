"""The layouts of the tensors of a call, from those in which its inputs are, an axis of the mesh at a time.

Candidates are the factors of the sharding rule of its operation on which an input is sharded already: a
factor that passes through comes before one that is contracted, then the one that leaves most bytes where they
are. Without a candidate, a Partial passes through linear operations if nothing else reads it, so that sums
are added up first and travel once; all else is replicated.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from typing import Any, NamedTuple, final

from flowrt.dtypes import INEXACT
from flowrt.graph.layouts.layout import REPLICATED, Layout, Partial, Placement, Shard
from flowrt.graph.layouts.mesh import Mesh
from flowrt.graph.layouts.sharding_rule import ShardingRule, dim_of
from flowrt.graph.node import TensorSpec
from flowrt.graph.op_def import LINEAR, OpDef


class Call(NamedTuple):
    """All that decides the layouts of a node's tensors: equal for the nodes of equal blocks."""

    op: OpDef[Any]
    rule: ShardingRule
    specs: tuple[TensorSpec, ...]
    made: tuple[TensorSpec, ...]
    on_device: tuple[bool, ...]
    keeps_sums: bool
    have: tuple[Layout, ...]
    """The layouts of the inputs, of which each may be the ``only_reader``, ``free``, a part of a sum that is
    ``summed`` in a layout, or ``sent`` from another position.
    """
    only_reader: tuple[bool, ...]
    free: tuple[bool, ...]
    summed: tuple[Layout | None, ...]
    sent: tuple[bool, ...]


class CallLayouts(NamedTuple):
    """The layouts of the inputs and outputs of a call."""

    inputs: tuple[Layout, ...]
    outputs: tuple[Layout, ...]


def layouts_of_call(call: Call, mesh: Mesh) -> CallLayouts:
    """The layouts over ``mesh`` of the tensors of ``call``."""
    choice = _Choice(call)
    for axis in range(len(mesh.axes)):
        choice.choose(axis)
    inputs = tuple(Layout(mesh, placements) for placements in choice.inputs)
    return CallLayouts(inputs, tuple(Layout(mesh, placements) for placements in choice.outputs))


@final
class _Choice:
    """The placements of the tensors of ``call``, an axis at a time."""

    def __init__(self, call: Call) -> None:
        self._call, self._rule, self._specs, self._have = call, call.rule, call.specs, call.have
        self._parts: dict[int, int] = defaultdict(lambda: 1)
        """The number of parts into which each factor is cut so far."""
        self._uneven: set[int] = set()
        """The factors of which parts are not equally long."""
        self.inputs: list[list[Placement]] = [[] for _ in call.specs]
        self.outputs: list[list[Placement]] = [[] for _ in call.made]

    def choose(self, axis: int) -> None:
        """Append the placements on ``axis``."""
        held = [layout.placements[axis] for layout in self._have]
        factor = self._best_factor(axis, held)
        if factor is None:
            factor = self._scattered_factor(axis, held)
        if factor is not None:
            self._parts[factor] *= self._have[0].mesh.axes[axis].size
            self._cut(factor, self._unit(axis, factor, held))
            return
        passing = self._passing_partial(held)
        for i, placements in enumerate(self.inputs):
            placements.append(Partial() if i in passing else REPLICATED)
        for placements in self.outputs:
            placements.append(Partial() if passing else REPLICATED)

    def _best_factor(self, axis: int, held: Sequence[Placement]) -> int | None:
        size = self._have[0].mesh.axes[axis].size if self._have else 1
        kept: dict[int, int] = defaultdict(int)
        for placement, spec, dims in zip(held, self._specs, self._rule.inputs, strict=True):
            if isinstance(placement, Shard) and placement.dim < len(dims) and dims[placement.dim]:
                factor = dims[placement.dim][0]
                unit = self._rule.unit_of(placement, dims) if self._keeps_rows(axis, factor) else None
                if self._rule.may_cut(factor, size * self._parts[factor], unit):
                    kept[factor] += math.prod(d or 1 for d in spec.shape or ()) * spec.dtype.np.itemsize
        return min(kept, key=lambda f: (self._is_contracted(f), -kept[f], f), default=None)

    def _scattered_factor(self, axis: int, held: Sequence[Placement]) -> int | None:
        """The factor that is cut so that a sum is made in the parts that its variable asks for; None if
        there is none, and while it is only added to other sums, or viewed.
        """
        is_sum = [held[i] == Partial() for i, is_on_device in enumerate(self._call.on_device) if is_on_device]
        if all(is_sum) and self._passing_partial(held):
            return None
        size = self._have[0].mesh.axes[axis].size
        for placement, layout, dims in zip(held, self._call.summed, self._rule.inputs, strict=True):
            wanted = None if layout is None else layout.placements[axis]
            if placement == Partial() and isinstance(wanted, Shard) and wanted.dim < len(dims) - 1:
                factors = dims[wanted.dim]  # not the last dimension: products have parts of it
                if factors and self._rule.may_cut(factors[0], size * self._parts[factors[0]]):
                    return factors[0]
        return None

    def _is_contracted(self, factor: int) -> bool:
        return all(dim_of(factor, dims) is None for dims in self._rule.outputs)

    def _keeps_rows(self, axis: int, factor: int) -> bool:
        """Whether parts of ``factor`` on ``axis`` may be of different length where it has others beside it:
        turns, and parts of these.
        """
        return self._have[0].mesh.axes[axis].is_time or factor in self._uneven

    def _unit(self, axis: int, factor: int, held: Sequence[Placement]) -> int | None:
        """The number of elements of ``factor`` that stay together; None if parts are equally long."""
        units = [
            self._rule.unit_of(placement, dims)
            for placement, dims in zip(held, self._rule.inputs, strict=True)
            if isinstance(placement, Shard)
            and placement.dim < len(dims)
            and dims[placement.dim][:1] == (factor,)
        ]
        unit = next((unit for unit in units if unit is not None), None)
        if unit is None or not self._keeps_rows(axis, factor):
            return None
        if self._rule.is_even(factor, self._parts[factor], unit):
            return None
        self._uneven.add(factor)
        return unit

    def _cut(self, factor: int, unit: int | None) -> None:
        inputs, outputs = self._rule.cut(factor, unit)
        for placements, placement in zip((*self.inputs, *self.outputs), (*inputs, *outputs), strict=True):
            placements.append(placement)

    def _passing_partial(self, held: Sequence[Placement]) -> frozenset[int]:
        """The inputs of which the Partial may pass on to the outputs: all of a linear operation, or one of an
        operation that is linear in each.
        """
        op, inputs = self._call.op, [i for i, is_on_device in enumerate(self._call.on_device) if is_on_device]
        partial = [i for i in inputs if held[i] == Partial()]
        exact = [s.dtype for i, s in enumerate(self._specs) if i in partial] + [
            s.dtype for s in self._call.made
        ]
        if not all(self._call.only_reader[i] and not self._call.sent[i] for i in partial):
            return frozenset()
        if not partial or any(dtype not in INEXACT for dtype in exact):
            return frozenset()
        if op.jvp is LINEAR and all(i in partial or self._is_zero(i, held) for i in inputs):
            return frozenset(inputs)
        is_one = len(partial) == 1 and partial[0] in op.linear_in
        return frozenset(partial) if is_one and self._call.keeps_sums else frozenset()

    def _is_zero(self, index: int, held: Sequence[Placement]) -> bool:
        """Whether input ``index`` is zero on all coordinates: a Partial of zeros."""
        return self._call.free[index] and held[index] == REPLICATED
