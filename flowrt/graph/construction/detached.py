"""Subgraphs without the values of their large constants, to keep text and messages small.

    detach_constants(subgraph) -> (subgraph', arrays)      attach_constants(subgraph', arrays) -> subgraph

A detached constant is a ``_Feed`` that its subgraph does not list among its feeds. The arrays are in the
order of the nodes, with those of a function at the position of the node that owns it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from flowrt.errors import InvalidArgumentError
from flowrt.graph.construction.constant import const, feed_op
from flowrt.graph.evaluate import located
from flowrt.graph.node import Node, Subgraph, TensorSpec, with_functions
from flowrt.graph.op_def import Effect

MIN_DETACHED_BYTES = 1024

Array = np.ndarray[Any, Any]


def detach_constants(subgraph: Subgraph) -> tuple[Subgraph, list[Array]]:
    """``subgraph`` without the values of numeric constants above `MIN_DETACHED_BYTES`, and those values."""
    arrays: list[Array] = []

    def detach(node: Node) -> Node:
        value = node.attrs.get("value") if node.op.name == "Const" else None
        if value is None or value.nbytes <= MIN_DETACHED_BYTES or value.dtype.kind == "O":
            return node
        arrays.append(value)
        return node.replace(op=feed_op, attrs={"dtype": node.attrs["dtype"], "shape": tuple(value.shape)})

    return _changed(subgraph, lambda _, node: detach(node)), arrays


def attach_constants(subgraph: Subgraph, arrays: Sequence[Array]) -> Subgraph:
    """The inverse of `detach_constants`. Raises `InvalidArgumentError` for a wrong number of arrays, or for
    an array that differs from its constant in shape or dtype.
    """
    left: Iterator[Array] = iter(arrays)

    def attach(feeds: frozenset[str], node: Node) -> Node:
        if node.op.name != "_Feed" or node.name in feeds:
            return node
        value, spec = next(left, None), node.outputs[0]
        if value is None or TensorSpec(spec.dtype, value.shape) != spec or value.dtype != spec.dtype.np:
            got = "nothing" if value is None else f"{value.dtype}{list(value.shape)}"
            raise located(node, InvalidArgumentError(f"expected the constant's value, {spec}; got {got}"))
        return node.replace(op=const, attrs={"value": value, "dtype": spec.dtype})

    attached = _changed(subgraph, attach)
    if (more := len(list(left))) > 0:
        raise InvalidArgumentError(f"graph: expected one array per constant; got {more} more")
    return attached


def _changed(subgraph: Subgraph, change: Callable[[frozenset[str], Node], Node]) -> Subgraph:
    """``subgraph`` with ``change(feeds, node)`` applied to every node, including those of its functions."""
    feeds = frozenset(subgraph.feeds)

    def changed(node: Node) -> Node:
        if node.op.effect is Effect.NESTED:
            node = with_functions(node, lambda function: _changed(function, change))
        return change(feeds, node)

    return subgraph.mapped(changed)
