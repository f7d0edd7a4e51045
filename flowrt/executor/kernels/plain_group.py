"""`PlainGroup`: a fusion group without its loop, by its members' kernels one after another."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, final

import numpy as np

from flowrt.graph.evaluate import evaluate_node
from flowrt.graph.node import Node, Ref, static_shape
from flowrt.graph.passes.fusion.group import Group


@final
class PlainGroup:
    """The kernel of a fused node on the host: ``kernel(inputs, out=None)``, as of a `GroupKernel`. Temporary
    values are freed after their last reader.
    """

    def __init__(self, node: Node) -> None:
        self._group: Group = node.attrs["group"]
        self._specs = node.outputs
        self._dead = _last_reads(self._group)

    def __call__(self, inputs: Sequence[Any], out: Sequence[Any] | None = None) -> Sequence[Any]:
        if out is None:
            out = [np.empty(static_shape(spec), spec.dtype.np) for spec in self._specs]
        for target, value in zip(out, self._values(inputs), strict=True):
            np.copyto(target, value)
        return out

    def _values(self, inputs: Sequence[Any]) -> list[Any]:
        """The outputs. Several are no views of an input, which the first that is stored may overwrite."""
        group = self._group
        values = {**group.constants, **dict(zip(group.inputs, inputs, strict=True))}
        for member, dead in zip(group.members, self._dead, strict=True):
            results = evaluate_node(member, [values[ref] for ref in member.inputs])
            values.update({(member.name, index): result for index, result in enumerate(results)})
            for ref in dead:
                del values[ref]
        found = [values[ref] for ref in group.outputs]
        if len(found) == 1:
            return found
        return [np.array(v) if any(np.may_share_memory(v, i) for i in inputs) else v for v in found]


def _last_reads(group: Group) -> list[list[Ref]]:
    """The values of members that are dead after each of them."""
    last = {
        ref: position
        for position, member in enumerate(group.members)
        for ref in (*[(member.name, index) for index in range(len(member.outputs))], *member.inputs)
        if ref in group.levels
    }
    dead: list[list[Ref]] = [[] for _ in group.members]
    for ref, position in last.items():
        if ref not in group.outputs:
            dead[position].append(ref)
    return dead
