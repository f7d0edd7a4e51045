"""Whole numbers with a scale and a zero point."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np

from flowrt import dtypes
from flowrt.graph.ops.elementwise.narrow_cast import cast_narrow
from flowrt.onnx.node import Node
from flowrt.onnx.ops.convolution import convolve, window_pads
from flowrt.onnx.ops.elementwise import converted, is_narrow
from flowrt.onnx.ops.linear import product, shifted
from flowrt.onnx.proto import dtype_of as dtype_of_element
from flowrt.onnx.registry import handles
from flowrt.onnx.surface import tf
from flowrt.onnx.values import Value, axis_of, dtype_of, rank_of, shape_of


def _spread(value: Value, x: Value, axis: int, block: int) -> Value:
    """``value`` broadcast to ``x``: there is one, or one for each place along ``axis`` or for each block."""
    if rank_of(value) == 0 or (rank_of(value) == 1 and shape_of(value) == [1] and rank_of(x) != 1):
        return tf.reshape(value, [])
    if block:
        return _repeated(value, block, axis, shape_of(x)[axis])
    if rank_of(value) == 1:
        return tf.reshape(value, [-1 if i == axis else 1 for i in range(rank_of(x))])
    return value


def _repeated(value: Value, block: int, axis: int, size: int) -> Value:
    return tf.gather(value, np.arange(size) // block, axis=axis)


@handles("QuantizeLinear")
def quantize(node: Node, x: Value, scale: Value, zero: Value = None) -> Value:
    axis = axis_of(node.get("axis", 1), rank_of(x))
    kind = dtype_of(zero) if zero is not None else dtype_of_element(node.get("output_dtype", 0) or 2)
    block = node.get("block_size", 0)
    found = tf.realdiv(tf.cast(x, tf.float32), tf.cast(_spread(scale, x, axis, block), tf.float32))
    if has_whole_numbers(kind):
        found = tf.round(found)
    if zero is not None:
        found = tf.add(found, wide(_spread(zero, x, axis, block)))
    return saturated(found, kind) if has_whole_numbers(kind) else converted(node, found, kind)


def has_whole_numbers(kind: np.dtype[Any]) -> bool:
    return kind.name.lstrip("u").startswith("int")


def wide(x: Value) -> Value:
    """``x`` as float32."""
    return cast_narrow(x, DstT=dtypes.float32) if is_narrow(dtype_of(x)) else tf.cast(x, tf.float32)


def saturated(x: Value, kind: np.dtype[Any]) -> Value:
    """Whole floats as integers, the nearest that there is."""
    limits: Any = ml_dtypes.iinfo(kind)  # type: ignore[no-untyped-call]
    low, high = (np.asarray(each, dtype_of(x)) for each in (limits.min, limits.max))
    bounded = tf.minimum(tf.maximum(x, low), high)
    return cast_narrow(bounded, DstT=dtypes.as_dtype(kind)) if is_narrow(kind) else tf.cast(bounded, kind)


@handles("DequantizeLinear")
def dequantize(node: Node, x: Value, scale: Value, zero: Value = None) -> Value:
    axis = axis_of(node.get("axis", 1), rank_of(x))
    block = node.get("block_size", 0)
    kind = dtype_of_element(node.get("output_dtype")) if node.get("output_dtype", 0) else dtype_of(scale)
    factor = wide(_spread(scale, x, axis, block))
    found = wide(x)
    if zero is not None:
        found = tf.subtract(found, wide(_spread(zero, x, axis, block)))
    return tf.cast(tf.multiply(found, factor), kind)


@handles("ConvInteger")
def conv_integer(node: Node, x: Value, w: Value, x_zero: Value = None, w_zero: Value = None) -> Value:
    """The convolution in float64, where products of bytes and their sums are exact."""
    return tf.cast(_convolved(node, x, w, x_zero, w_zero), tf.int32)


def _convolved(node: Node, x: Value, w: Value, x_zero: Value, w_zero: Value) -> Value:
    spatial, kernel = rank_of(x) - 2, shape_of(w)[2:]
    strides, dilations = node.get("strides", [1] * spatial), node.get("dilations", [1] * spatial)
    before, after = window_pads(node, shape_of(x)[2:], kernel, strides, dilations)
    left = tf.cast(x, tf.float64)
    left = left if x_zero is None else tf.subtract(left, tf.cast(tf.reshape(x_zero, []), tf.float64))
    right = tf.cast(w, tf.float64)
    if w_zero is not None:
        zero = tf.cast(w_zero, tf.float64)
        right = tf.subtract(right, tf.reshape(zero, [-1, *[1] * (spatial + 1)]) if rank_of(w_zero) else zero)
    return convolve(left, right, strides, dilations, before, after, node.get("group", 1))


@handles("QLinearConv")
def q_linear_conv(node: Node, x: Value, x_scale: Value, x_zero: Value, w: Value, w_scale: Value,
                  w_zero: Value, y_scale: Value, y_zero: Value, bias: Value = None) -> Value:  # fmt: skip
    found = _convolved(node, x, w, x_zero, w_zero)
    column = [1, -1, *[1] * (rank_of(x) - 2)]
    if bias is not None:
        found = tf.add(found, tf.reshape(tf.cast(bias, tf.float64), column))
    weights = tf.cast(w_scale, tf.float64)
    weights = tf.reshape(weights, column) if rank_of(w_scale) else weights
    return _requantized(
        found, tf.multiply(tf.cast(tf.reshape(x_scale, []), tf.float64), weights), y_scale, y_zero
    )


def _requantized(x: Value, factor: Value, scale: Value, zero: Value) -> Value:
    scaled = tf.round(tf.multiply(x, tf.realdiv(factor, tf.cast(scale, tf.float64))))
    return saturated(tf.add(scaled, tf.cast(zero, tf.float64)), dtype_of(zero))


@handles("QLinearMatMul")
def q_linear_matmul(node: Node, a: Value, a_scale: Value, a_zero: Value, b: Value, b_scale: Value,
                    b_zero: Value, y_scale: Value, y_zero: Value) -> Value:  # fmt: skip
    found = product(shifted(a, a_zero, -1), shifted(b, b_zero, -2))
    left, right = (tf.cast(each, tf.float64) for each in (a_scale, b_scale))
    left = tf.expand_dims(left, -1) if rank_of(a_scale) else left
    return _requantized(found, tf.multiply(left, right), y_scale, y_zero)
