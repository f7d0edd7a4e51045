"""Products of matrices."""

from __future__ import annotations

from typing import Any

import numpy as np

from flowrt.onnx.node import Node
from flowrt.onnx.registry import handles
from flowrt.onnx.surface import tf
from flowrt.onnx.values import Value, dtype_of, rank_of


@handles("MatMul")
def matmul(node: Node, a: Value, b: Value) -> Value:
    return product(a, b)


def product(a: Value, b: Value) -> Value:
    """The product as NumPy's: vectors are rows or columns; 16 bits are multiplied in 32."""
    kind = dtype_of(a)
    if kind.itemsize == 2:
        return tf.cast(product(tf.cast(a, tf.float32), tf.cast(b, tf.float32)), kind)
    if kind.kind in "iu":  # exact up to 2**53
        return tf.cast(product(tf.cast(a, tf.float64), tf.cast(b, tf.float64)), kind)
    row, column = rank_of(a) == 1, rank_of(b) == 1
    a = tf.expand_dims(a, 0) if row else a
    b = tf.expand_dims(b, 1) if column else b
    found = tf.matmul(a, b)
    found = tf.squeeze(found, [-1]) if column else found
    return tf.squeeze(found, [-1 if column else -2]) if row else found


@handles("Gemm")
def gemm(node: Node, a: Value, b: Value, c: Value = None) -> Value:
    alpha, beta = node.get("alpha", 1.0), node.get("beta", 1.0)
    kind = dtype_of(a)
    a = tf.transpose(a) if node.get("transA", 0) else a
    b = tf.transpose(b) if node.get("transB", 0) else b
    found = product(a, b)
    if alpha != 1:
        found = tf.multiply(found, np.asarray(alpha, kind))
    if c is None or beta == 0:
        return found
    return tf.add(found, c if beta == 1 else tf.multiply(c, np.asarray(beta, kind)))


@handles("Einsum")
def einsum(node: Node, *inputs: Value) -> Value:
    return tf.einsum(node.get("equation").replace(" ", ""), *inputs)


@handles("Det")
def determinant(node: Node, x: Value) -> Value:
    return tf.matrix_determinant(x)


@handles("MatMulInteger")
def matmul_integer(node: Node, a: Value, b: Value, a_zero: Value = None, b_zero: Value = None) -> Value:
    left, right = shifted(a, a_zero, -1), shifted(b, b_zero, -2)
    return tf.cast(product(left, right), tf.int32)


def shifted(x: Value, zero: Value, axis: int) -> Any:
    """The values in float64 without the zero point; there may be one for each row or column."""
    wide = tf.cast(x, tf.float64)
    if zero is None:
        return wide
    zero = tf.cast(zero, tf.float64)
    return tf.subtract(wide, tf.expand_dims(zero, axis) if rank_of(zero) else zero)
