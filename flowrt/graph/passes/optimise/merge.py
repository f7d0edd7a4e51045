"""Common subexpression elimination: of nodes with equal results, the first is kept.

Two nodes are equal when they have the same op, inputs, controls, attributes and device request. Pure nodes
and reads of a resource are merged: reads between two writes wait for the same write (see
`flowrt.graph.passes.prepare.order_effects`), so equal controls mean equal contents. Nodes that draw random
numbers, have effects, or represent a resource or an external value are never merged. A target keeps its node,
and nodes without outputs are left to `clean_dependencies`.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, final

import numpy as np

from flowrt.graph.node import Node, Subgraph
from flowrt.graph.op_def import Effect, OpDef

MAX_KEY_BYTES = 4096
"""A larger array is its own key, with a hash of some of its bytes: few are compared whole."""

_VALUE_KINDS = frozenset(
    ("int", "bool", "string", "type", "shape", "list(int)", "list(bool)", "list(string)", "list(type)")
)
"""Kinds of attrs with suitable Python equality. Floats are excluded: 0.0 == -0.0."""


def eliminate_common_subexpressions(subgraph: Subgraph) -> Subgraph:
    """Merge equal nodes into the first of them."""
    targets = set(subgraph.targets)
    merged: dict[str, str] = {}
    first: dict[Hashable, str] = {}
    keys: dict[OpDef, Callable[[Node], Hashable]] = {}
    nodes: list[Node] = []
    for node in subgraph:
        if merged:
            node = _with_merged_inputs(node, merged)
        op = node.op
        if (op.effect is Effect.PURE or op.effect is Effect.READ) and node.outputs:
            if op not in keys:
                keys[op] = _attribute_key(op)
            inputs = node.inputs
            if op.commutative:
                inputs = tuple(sorted(inputs))
            controls = frozenset(node.controls) if node.controls else None
            key = (op, inputs, controls, node.device, keys[op](node))
            same = first.setdefault(key, node.name)
            if same != node.name and node.name not in targets:
                merged[node.name] = same
                continue
        nodes.append(node)
    return _merged(subgraph, nodes, merged) if merged else subgraph


def merge_constants(subgraph: Subgraph) -> Subgraph:
    """Merge equal small constants of one device that wait for nothing into the first of them: for passes that
    add the same shapes, bounds and axes many times, after which most nodes would be such constants.
    """
    targets = set(subgraph.targets)
    merged: dict[str, str] = {}
    first: dict[Hashable, str] = {}
    nodes: list[Node] = []
    for node in subgraph:
        if merged:
            node = _with_merged_inputs(node, merged)
        if node.op.name == "Const" and not node.controls and node.attrs["value"].nbytes <= MAX_KEY_BYTES:
            key = node.device, node.outputs, _content(node.attrs["value"])
            same = first.setdefault(key, node.name)
            if same != node.name and node.name not in targets:
                merged[node.name] = same
                continue
        nodes.append(node)
    return _merged(subgraph, nodes, merged) if merged else subgraph


def _merged(subgraph: Subgraph, nodes: Sequence[Node], merged: Mapping[str, str]) -> Subgraph:
    """``subgraph`` with ``nodes``, and the fetches that those in ``merged`` gave."""
    fetches = tuple([(merged.get(name, name), index) for name, index in subgraph.fetches])
    return subgraph.with_nodes(nodes).replace(fetches=fetches)


def _with_merged_inputs(node: Node, merged: dict[str, str]) -> Node:
    for name, _ in node.inputs:
        if name in merged:
            break
    else:
        if not node.controls or merged.keys().isdisjoint(node.controls):
            return node
    inputs = tuple([(merged.get(name, name), index) for name, index in node.inputs])
    controls = tuple(dict.fromkeys([merged.get(name, name) for name in node.controls]))
    return node.replace(inputs=inputs, controls=controls)


def _attribute_key(op: OpDef) -> Callable[[Node], Hashable]:
    """Function from a node of this op to a key that is equal only for attrs with the same effect."""
    if not all(attr.kind in _VALUE_KINDS for attr in op.attrs.values()):
        return lambda node: _frozen(node.attrs)
    variables = {a.type_attr for a in op.inputs} | {a.number_attr for a in op.inputs}
    implied = variables - {None}
    if op.attrs or not op.types.keys() <= implied:
        return lambda node: tuple(node.attrs.items())
    count = len(implied)  # all its attributes are counts and dtypes of its inputs
    return lambda node: None if len(node.attrs) == count else tuple(node.attrs.items())


def _frozen(value: Any) -> Hashable:
    """``value`` as a key that is equal only for equivalent values."""
    if isinstance(value, np.ndarray):
        return value.dtype, value.shape, _content(value)
    if isinstance(value, dict):
        return tuple([(key, _frozen(item)) for key, item in value.items()])
    if isinstance(value, (list, tuple)):
        return tuple([_frozen(item) for item in value])
    if isinstance(value, float):
        return value.hex()
    return value if isinstance(value, Hashable) else id(value)


def _content(array: np.ndarray[Any, Any]) -> Hashable:
    if array.dtype.kind == "O":
        return tuple(array.ravel().tolist())
    return array.tobytes() if array.nbytes <= MAX_KEY_BYTES else _Bytes(array)


@final
class _Bytes:
    """An array as a key: equal to another one of the same bytes. Both are of one dtype and shape."""

    def __init__(self, array: np.ndarray[Any, Any]) -> None:
        self._bytes = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        self._hash = hash(self._bytes[:: self._bytes.size // MAX_KEY_BYTES].tobytes())

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Bytes) and np.array_equal(self._bytes, other._bytes)
