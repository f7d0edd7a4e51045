"""Constant evaluation of small host values during graph construction, for shape inference.

``reshape(x, stack([shape(x)[0], 10]))`` has a shape that depends on a *value*. Ops used in such arithmetic
define a ``value`` rule; this module follows those rules backwards from one tensor.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from flowrt.graph.node import Node, Ref
from flowrt.graph.op_def import PartialValue, ShapeContext

MAX_ELEMENTS = 1024
"""Larger constants are data, not shapes; the largest rank is 32."""

MAX_DEPTH = 64
"""Maximum depth of the arithmetic followed: each level costs five Python frames."""


def partial_value(lookup: Callable[[str], Node], ref: Ref) -> PartialValue:
    """The known part of the value of ``ref``: an int, bool or float, a nested tuple of them with None for
    unknown elements, or None. ``lookup`` finds a node by name. Each node is evaluated once; evaluation stops
    at depth `MAX_DEPTH`.
    """
    return _evaluate(lookup, ref, {}, 0)


def _evaluate(
    lookup: Callable[[str], Node], ref: Ref, known: dict[Ref, PartialValue], depth: int
) -> PartialValue:
    if ref in known:
        return known[ref]
    node = lookup(ref[0])
    rule = node.op.value
    if rule is None or ref[1] != 0 or depth > MAX_DEPTH:
        return None
    specs = [lookup(name).outputs[index] for name, index in node.inputs]
    inputs = node.inputs
    context = ShapeContext(
        node.op,
        node.attrs,
        [s[1] for s in specs],
        [s[0] for s in specs],
        lambda i: _evaluate(lookup, inputs[i], known, depth + 1),
    )
    known[ref] = rule(context)
    return known[ref]


def as_host_value(array: Any) -> Any:
    """A NumPy array (or scalar) as a Python scalar or nested tuple, the form of host inputs of kernels."""
    return _nested_tuple(array.tolist())


def _nested_tuple(value: Any) -> Any:
    return tuple(_nested_tuple(v) for v in value) if isinstance(value, list) else value
