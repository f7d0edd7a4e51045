"""Values of tensors without a session, by the reference interpreter."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from flowrt.dtypes import NARROW, as_dtype
from flowrt.graph.construction.graph import Tensor
from flowrt.graph.evaluate import evaluate
from flowrt.graph.node import Node, Subgraph


def values_of(tensors: list[Tensor], feeds: Mapping[Tensor, Any] = {}) -> list[Any]:
    """The values of ``tensors``; ``feeds`` gives those of placeholders. Resources live for this call only."""
    graph = tensors[0].graph
    fed = {tensor.op.name: np.asarray(value, tensor.dtype.np) for tensor, value in feeds.items()}
    needed: set[str] = set()
    stack = [tensor.op for tensor in tensors]
    while stack:
        op = stack.pop()
        if op.name not in needed:
            needed.add(op.name)
            if op.name not in fed:
                stack += [t.op for t in op.inputs] + list(op.control_inputs)
    nodes = {op.name: op.node for op in graph.get_operations() if op.name in needed}
    resources: dict[str, Any] = {}

    def state(node: Node) -> Any:
        assert node.op.state is not None
        return resources.setdefault(node.name, node.op.state(node))

    return evaluate(Subgraph(nodes, fetches=tuple(t.ref for t in tensors)), fed, state)


def value_of(tensor: Any, feeds: Mapping[Tensor, Any] = {}) -> Any:
    """The value of one tensor (or of anything that becomes one)."""
    if hasattr(tensor, "__flowrt_tensor__"):
        tensor = tensor.__flowrt_tensor__()
    return values_of([tensor], feeds)[0]


def assert_equal(found: Any, expected: Any, what: str = "") -> None:
    """The same array, NaN included; of a narrow dtype bit for bit, as NumPy does not find its NaNs."""
    assert (found.dtype, found.shape) == (expected.dtype, expected.shape), what
    if as_dtype(expected.dtype) in NARROW:
        assert found.tobytes() == expected.tobytes(), f"{what}: {found} in place of {expected}"
    else:
        np.testing.assert_array_equal(found, expected, what)
