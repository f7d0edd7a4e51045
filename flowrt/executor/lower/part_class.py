"""Classes of parts: devices' parts of a step that are equal but for names share one analysis.

    device 1   VarHandleOp w/shard_1 -> ReadVariableOp -> MatMul -> _Contribute 1     one class: the lifetimes
    device 2   VarHandleOp w/shard_2 -> ReadVariableOp -> MatMul -> _Contribute 2     and buffers of the first
                                                                                      hold, renamed, for all

The same graph on each coordinate of a mesh, or of each replica, is of few classes. What may differ is what
no analysis looks at: names of operations, variables and transfers, ranks, and the values of constants that
are operands on the device. Everything else is compared: operations, attributes, edges, shapes, order.
"""

from __future__ import annotations

from collections.abc import Mapping
from operator import itemgetter
from typing import Any

import numpy as np

from flowrt.graph.layouts.attributes import MEMORY
from flowrt.graph.node import Node, Subgraph
from flowrt.graph.op_def import Effect
from flowrt.graph.ops.array.slicing import slice_op
from flowrt.graph.ops.collective.group_transfer import GROUP_OPS
from flowrt.graph.ops.collective.transfer import contribute_op, recv_op, send_op
from flowrt.graph.passes.fusion.group import Group

_ENDS = frozenset(("tensor_name", "send_device", "recv_device", "send_device_incarnation"))
_NAMES: Mapping[Any, frozenset[str]] = {
    send_op: _ENDS,
    recv_op: _ENDS,
    contribute_op: frozenset(("tensor_name", "devices", "rank")),
    **dict.fromkeys(GROUP_OPS, frozenset(("rank", "ranks", "peer", "edge", "plan"))),
}
"""Attributes of transfers that binding alone reads."""
_OF_HANDLE = frozenset(("shared_name", "container", MEMORY))
_OF_CONSTANT = frozenset(("value",))
_NONE: frozenset[str] = frozenset()
_NAME = itemgetter(0)


def are_of_class(first: Subgraph, other: Subgraph) -> bool:
    """Whether the two have the same operations, in one order, but for what may differ in a class."""
    if len(first) != len(other):
        return False
    names: dict[str, str] = {}
    """The name in ``other`` of each operation of ``first``."""
    unequal = set[str]()
    """Constants of other values in ``other``."""
    for node, its in zip(first, other, strict=True):
        if node.op is not its.op or node.outputs != its.outputs or not _reads_alike(node, its, names):
            return False
        if node.attrs is not its.attrs and not _are_equal(node.attrs, its.attrs, _ignored(node)):
            return False
        if unequal and not unequal.isdisjoint(map(_NAME, node.inputs)) and _looks_at(node, unequal):
            return False
        if node.op.name == "Const" and not _is_same(node.attrs["value"], its.attrs["value"]):
            unequal.add(node.name)
        names[node.name] = its.name
    return (
        [names[name] for name in first.feeds] == [*other.feeds]
        and [(names[name], index) for name, index in first.fetches] == [*other.fetches]
        and [names[name] for name in first.targets] == [*other.targets]
    )


def _reads_alike(node: Node, its: Node, names: Mapping[str, str]) -> bool:
    """Whether ``its`` has the inputs and control inputs of ``node``, by their ``names``."""
    if len(node.inputs) != len(its.inputs) or len(node.controls) != len(its.controls):
        return False
    for (name, index), ref in zip(node.inputs, its.inputs, strict=True):
        if (names[name], index) != ref:
            return False
    return {*map(names.__getitem__, node.controls)} == {*its.controls}


def _ignored(node: Node) -> frozenset[str]:
    if node.op.effect is Effect.HANDLE:
        return _OF_HANDLE
    return _OF_CONSTANT if node.op.name == "Const" else _NAMES.get(node.op, _NONE)


def _are_equal(attrs: Mapping[str, Any], its: Mapping[str, Any], ignored: frozenset[str]) -> bool:
    if attrs.keys() != its.keys():
        return False
    for key, value in attrs.items():
        if value is not its[key] and key not in ignored and not _is_same(value, its[key]):
            return False
    return True


def _is_same(value: Any, other: Any) -> bool:
    """Whether two attributes are equal; functions are if they are one object."""
    if value is other:
        return True
    if isinstance(value, Group) and isinstance(other, Group):
        return value.kind == other.kind
    if not isinstance(value, np.ndarray):
        return type(value) is type(other) and bool(value == other)
    is_alike = isinstance(other, np.ndarray) and (value.dtype, value.shape) == (other.dtype, other.shape)
    return is_alike and value.dtype.kind != "O" and value.tobytes() == other.tobytes()


def _looks_at(node: Node, constants: set[str]) -> bool:
    """Whether the values of ``constants``, which ``node`` reads, may decide how it is bound: if it reads one
    on the host, or passes it on as it is.
    """
    read = [name in constants for name, _ in node.inputs]
    op = node.op
    if op is slice_op and not read[0] and not read[2]:  # a view, wherever it begins
        return False
    return op.alias or op.effect is Effect.NESTED or any(argument.on_host for argument in op.inputs)
