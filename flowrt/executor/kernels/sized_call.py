"""Kernel calls with outputs allocated from the pool because they are large or of unknown size.

If the size is unknown, the op's shape rule computes it from the arguments' shapes, once for each set of them.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np

from flowrt.device.device import MIN_POOLED
from flowrt.dtypes import variant
from flowrt.executor.buffers.bound_tensors import owner_of
from flowrt.executor.buffers.buffer_assignment import nbytes_of
from flowrt.graph.node import Node, TensorSpec
from flowrt.graph.op_def import ShapeContext
from flowrt.graph.shapes import Shape, is_static

MAX_KNOWN = 1024
"""Sets of argument shapes that one call remembers; batches of every length do not pile up for ever."""


def is_pooled(node: Node) -> bool:
    """Whether the pool allocates memory for the node: for a single output, possibly large, of a kernel that
    writes into given memory, if it cannot be a view. 64 MB of new pages cost 10 ms. What is waited for comes
    in memory of its own.
    """
    op = node.op
    if not op.takes_out or op.waits or op.alias or len(node.outputs) != 1 or op.outputs[0].is_list:
        return False
    (spec,) = node.outputs
    return spec.dtype.np.kind != "O" and (not is_static(spec.shape) or nbytes_of(spec) >= MIN_POOLED)


def sized_call(node: Node, function: Callable[..., Any], empty: Callable[..., Any]) -> Callable[..., Any]:
    """``function``, called with ``out=empty(shape, dtype, owner=...)`` if the output of ``node`` is large and
    has a static shape, or if its shape rule determines one from the arguments: arrays, and Python values of
    host inputs. Returns new memory.
    """
    if not is_pooled(node):
        return function
    (spec,) = node.outputs
    empty = functools.partial(empty, owner=owner_of(node))
    if is_static(spec.shape):
        return _call_of_size(spec, function, empty)
    if any(argument.is_list or argument.dtype is variant for argument in node.op.inputs):
        return lambda *arguments: _own(function(*arguments))
    return _call_of_any_size(node, function, empty)


def _call_of_size(
    spec: TensorSpec, function: Callable[..., Any], empty: Callable[..., Any]
) -> Callable[..., Any]:
    new = functools.partial(empty, spec.shape, spec.dtype.np)

    def call(*arguments: Any) -> Any:
        out = new()
        function(*arguments, out=out)
        return out

    return call


def _call_of_any_size(
    node: Node, function: Callable[..., Any], empty: Callable[..., Any]
) -> Callable[..., Any]:
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
