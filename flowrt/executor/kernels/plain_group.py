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
        for target, value in zip(out, self._values(inputs, out), strict=True):
            if value is not target:
                np.copyto(target, value)
        return out

    def _values(self, inputs: Sequence[Any], out: Sequence[Any]) -> list[Any]:
        """The outputs: in ``out``, if the kernel takes it and no input is there. Several are no views of an
        input, which the first that is stored may overwrite.
        """
        group = self._group
        targets = {
            ref: target
            for ref, target in zip(group.outputs, out, strict=True)
            if not any(np.may_share_memory(target, value) for value in inputs)
        }
        values = {**group.constants, **dict(zip(group.inputs, inputs, strict=True))}
        for member, dead in zip(group.members, self._dead, strict=True):
            target = targets.get((member.name, 0))
            results = evaluate_node(member, [values[ref] for ref in member.inputs], out=target)
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
