"""What the tests of the passes share: subgraphs from tensors, lines from subgraphs, and runs to compare."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

import flowrt.graph.ops.surface.all  # noqa: F401  (defines the ops)
from flowrt.graph.construction.graph import Operation, Tensor, get_default_graph
from flowrt.graph.evaluate import evaluate
from flowrt.graph.node import Node, Subgraph
from flowrt.graph.op_def import op_def
from flowrt.graph.passes.prepare.prune import extract


def subgraph_of(
    fetches: Sequence[Tensor], targets: Sequence[Operation] = (), feeds: Sequence[Tensor] = ()
) -> Subgraph:
    """The subgraph of a run of the default graph; feeds have the shapes of their placeholders."""
    return extract(get_default_graph(), fetches, targets, {t: t.spec.shape for t in feeds})


def op(name: str, /, *inputs: Any, **attrs: Any) -> Any:
    return op_def(name)(*inputs, **attrs)


def lines(subgraph: Subgraph) -> list[str]:
    """One line a node: ``y = AddV2(x, c) ^w``; the output's number only where it is not 0."""
    return [line(node) for node in subgraph]


def line(node: Node) -> str:
    inputs = ", ".join(name if index == 0 else f"{name}:{index}" for name, index in node.inputs)
    text = node.attrs["value"].tolist() if node.op.name == "Const" else inputs
    return " ".join([f"{node.name} = {node.op.name}({text})", *[f"^{c}" for c in node.controls]])


def snapshot(subgraph: Subgraph) -> tuple[Any, ...]:
    """All that a pass must leave alone in its input."""
    ends = subgraph.feeds, subgraph.fetches, subgraph.targets
    return [(name, id(node), line(node), node.device) for name, node in subgraph.nodes.items()], ends


class Resources:
    """The session's objects behind stateful nodes, for `evaluate`; variables start with ``initial``."""

    def __init__(self, initial: Mapping[str, Any] = {}) -> None:
        self._initial, self.made = initial, dict[str, Any]()

    def __call__(self, node: Node) -> Any:
        if node.name not in self.made:
            assert node.op.state is not None
            self.made[node.name] = made = node.op.state(node)
            if node.name in self._initial:
                made.assign(np, self._initial[node.name])
        return self.made[node.name]


def outcome(subgraph: Subgraph, feeds: Mapping[str, Any] = {}, initial: Mapping[str, Any] = {}) -> list[Any]:
    """Dtype, shape and bytes of every fetch, and of every variable afterwards."""
    resources = Resources(initial)
    fetched = evaluate(subgraph, feeds, resources)
    left = {name: resources.made[name].array if name in resources.made else initial[name] for name in initial}
    return [*map(as_bytes, fetched), {name: as_bytes(array) for name, array in left.items()}]


def as_bytes(array: Any) -> tuple[Any, ...]:
    return str(array.dtype), array.shape, array.tobytes()
