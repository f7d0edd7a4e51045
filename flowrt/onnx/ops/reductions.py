"""Operations over dimensions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from flowrt.onnx.node import Node
from flowrt.onnx.registry import handles
from flowrt.onnx.surface import tf
from flowrt.onnx.values import Value, axes_of, axis_of, dtype_of, rank_of

_REDUCED = (
    "ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin", "ReduceProd", "ReduceL1", "ReduceL2", "ReduceLogSum",
    "ReduceLogSumExp", "ReduceSumSquare",
)  # fmt: skip


@handles(*_REDUCED)
def reduce_by_attribute(node: Node, x: Value) -> Value:
    return _reduced(node, x, node.get("axes"))


@handles("ReduceSum", since=13)
def reduce_sum(node: Node, x: Value, axes: Value = None) -> Value:
    return reduce_(node, x, axes)


@handles(*_REDUCED, since=18)
def reduce_(node: Node, x: Value, axes: Value = None) -> Value:
    return _reduced(node, x, None if axes is None else node.integers(axes, "axes"))


def _reduced(node: Node, x: Value, axes: Any) -> Value:
    if not axes and node.get("noop_with_empty_axes", 0):
        return _ELEMENTWISE[node.op](x) if node.op in _ELEMENTWISE else x
    over = axes_of(axes, rank_of(x)) if axes else list(range(rank_of(x)))
    keep = bool(node.get("keepdims", 1))
    if node.op == "ReduceMean" and dtype_of(x).kind in "iu":
        return tf.cast(tf.reduce_mean(tf.cast(x, tf.float64), over, keep), dtype_of(x))
    if dtype_of(x).kind == "b":  # the largest of booleans
        return (tf.reduce_any if node.op == "ReduceMax" else tf.reduce_all)(x, over, keep)
    return _FUNCTIONS[node.op](x, over, keep)


_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "ReduceSum": tf.reduce_sum,
    "ReduceMean": tf.reduce_mean,
    "ReduceMax": tf.reduce_max,
    "ReduceMin": tf.reduce_min,
    "ReduceProd": tf.reduce_prod,
    "ReduceL1": lambda x, over, keep: tf.reduce_sum(tf.abs(x), over, keep),
    "ReduceL2": lambda x, over, keep: tf.sqrt(tf.reduce_sum(tf.square(x), over, keep)),
    "ReduceLogSum": lambda x, over, keep: tf.log(tf.reduce_sum(x, over, keep)),
    "ReduceLogSumExp": tf.reduce_logsumexp,
    "ReduceSumSquare": lambda x, over, keep: tf.reduce_sum(tf.square(x), over, keep),
}

_ELEMENTWISE: dict[str, Callable[..., Any]] = {
    "ReduceL1": tf.abs, "ReduceL2": tf.abs, "ReduceLogSum": tf.log, "ReduceSumSquare": tf.square,
}  # fmt: skip


@handles("ArgMax", "ArgMin")
def arg_best(node: Node, x: Value) -> Value:
    axis = axis_of(node.get("axis", 0), rank_of(x))
    function = tf.argmax if node.op == "ArgMax" else tf.argmin
    if node.get("select_last_index", 0):
        size = tf.shape(x, out_type=tf.int64)[axis]
        found = size - np.int64(1) - function(tf.reverse(x, [axis]), axis)
    else:
        found = function(x, axis)
    return tf.expand_dims(found, axis) if node.get("keepdims", 1) else found


@handles("CumSum", "CumProd")
def cumulate(node: Node, x: Value, axis: Value) -> Value:
    function = tf.cumsum if node.op == "CumSum" else tf.cumprod
    along = axis_of(node.integers(axis, "an axis")[0], rank_of(x))
    return function(x, along, bool(node.get("exclusive", 0)), bool(node.get("reverse", 0)))


@handles("Softmax", "LogSoftmax", "Hardmax")
def softmax_of_matrix(node: Node, x: Value) -> Value:
    """The softmax of all dimensions from ``axis`` on together."""
    axis = axis_of(node.get("axis", 1), rank_of(x))
    sizes = tf.shape(x)
    rows = tf.reduce_prod(sizes[:axis])
    return tf.reshape(_softmax(node.op, tf.reshape(x, tf.stack([rows, -1])), 1), sizes)


@handles("Softmax", "LogSoftmax", "Hardmax", since=13)
def softmax(node: Node, x: Value) -> Value:
    return _softmax(node.op, x, axis_of(node.get("axis", -1), rank_of(x)))


def _softmax(op: str, x: Value, axis: int) -> Value:
    if op == "Softmax":
        return tf.nn.softmax(x, axis)
    if op == "LogSoftmax":
        return tf.nn.log_softmax(x, axis)
    size = tf.shape(x)[axis]
    return tf.one_hot(tf.argmax(x, axis), size, dtype=tf.as_dtype(dtype_of(x)), axis=axis)
