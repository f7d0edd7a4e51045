"""A kernel's call whose result has a size that only the step knows: its memory is asked for before the call.

The op's shape rule says what the size is, from the arguments' shapes; it is asked once for each set of them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from flowrt.graph.node import Node
from flowrt.graph.op_def import ShapeContext
from flowrt.graph.shapes import Shape, is_static

MAX_KNOWN = 1024
"""Sets of argument shapes that one call remembers; batches of every length do not pile up for ever."""


def sized_call(node: Node, function: Callable[..., Any], empty: Callable[..., Any]) -> Callable[..., Any]:
    """``function``, called with ``out=empty(shape, dtype)`` where the shape rule of ``node`` knows the one
    output's shape from the arguments: arrays, and Python values that say how. What it returns is new memory.
    """
    if any(argument.is_list for argument in node.op.inputs):
        return lambda *arguments: _own(function(*arguments))
    dtype, known = node.outputs[0].dtype.np, dict[Any, Shape]()

    def call(*arguments: Any) -> Any:
        key = tuple([a.shape if isinstance(a, np.ndarray) else a for a in arguments])
        shape = known.get(key)
        if shape is None:
            shape = _infer(node, arguments)
            if not is_static(shape):
                return _own(function(*arguments))
            if len(known) >= MAX_KNOWN:
                known.clear()
            known[key] = shape
        out = empty(shape, dtype)
        function(*arguments, out=out)
        return out

    return call


def _own(value: Any) -> Any:
    return value if not isinstance(value, np.ndarray) or value.flags.owndata else value.copy()


def _infer(node: Node, arguments: tuple[Any, ...]) -> Shape:
    """The output's shape by the op's rule, or None where the rule needs more than shapes."""
    on_host = [argument.on_host for argument in node.op.inputs]
    arrays = [np.asarray(a) for a in arguments]
    context = ShapeContext(
        node.op,
        node.attrs,
        [a.shape for a in arrays],
        [node.outputs[0].dtype for _ in arrays],
        lambda i: arguments[i] if on_host[i] else None,
    )
    (shape,) = node.op.shape(context)
    return shape
