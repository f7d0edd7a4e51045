"""Normalizations, dropout and random draws."""

from __future__ import annotations

from typing import Any

import numpy as np

from flowrt.onnx.node import Node
from flowrt.onnx.proto import dtype_of as dtype_of_element
from flowrt.onnx.registry import handles
from flowrt.onnx.surface import tf
from flowrt.onnx.values import Value, axis_of, dtype_of, rank_of, shape_of


def _along_channels(value: Value, rank: int) -> Value:
    return tf.reshape(value, [1, -1, *[1] * (rank - 2)])


@handles("BatchNormalization")
def batch_normalization(node: Node, x: Value, scale: Value, bias: Value, mean: Value, variance: Value) -> Any:
    """The result with given statistics; in training mode with the batch's, which move the running ones."""
    rank, epsilon = rank_of(x), node.get("epsilon", 1e-5)
    if not node.get("training_mode", 0):
        return _normalized(x, scale, bias, mean, variance, epsilon)
    momentum = node.get("momentum", 0.9)
    over = [0, *range(2, rank)]
    wide = tf.cast(x, tf.float32)
    now_mean, now_variance = tf.nn.moments(wide, over)
    found = _normalized(
        x, scale, bias, tf.cast(now_mean, dtype_of(mean)), tf.cast(now_variance, dtype_of(variance)), epsilon
    )

    def moved(old: Value, new: Value) -> Value:
        kept = tf.multiply(tf.cast(old, tf.float32), np.float32(momentum))
        return tf.cast(tf.add(kept, tf.multiply(new, np.float32(1 - momentum))), dtype_of(old))

    return found, moved(mean, now_mean), moved(variance, now_variance)


def _normalized(x: Value, scale: Value, bias: Value, mean: Value, variance: Value, epsilon: float) -> Value:
    kind, rank = dtype_of(mean), rank_of(x)
    factor = tf.multiply(tf.cast(scale, kind), tf.rsqrt(tf.add(variance, np.asarray(epsilon, kind))))
    offset = tf.subtract(tf.cast(bias, kind), tf.multiply(mean, factor))
    wide = x if dtype_of(x) == kind else tf.cast(x, kind)
    found = tf.add(tf.multiply(wide, _along_channels(factor, rank)), _along_channels(offset, rank))
    return found if dtype_of(x) == kind else tf.cast(found, dtype_of(x))


@handles("InstanceNormalization")
def instance_normalization(node: Node, x: Value, scale: Value, bias: Value) -> Value:
    rank, kind = rank_of(x), dtype_of(x)
    mean, variance = tf.nn.moments(x, list(range(2, rank)), keep_dims=True)
    factor = tf.multiply(
        _along_channels(scale, rank), tf.rsqrt(tf.add(variance, np.asarray(node.get("epsilon", 1e-5), kind)))
    )
    return tf.add(tf.multiply(tf.subtract(x, mean), factor), _along_channels(bias, rank))


@handles("LRN")
def lrn(node: Node, x: Value) -> Value:
    """The normalization over ``size`` neighbouring channels, more behind than before if it is even."""
    size, kind = node.get("size"), dtype_of(x)
    before, after = (size - 1) // 2, size // 2
    squares = tf.pad(tf.square(x), [[0, 0], [before, after], *[[0, 0]] * (rank_of(x) - 2)])
    sums = tf.cumsum(tf.pad(squares, [[0, 0], [1, 0], *[[0, 0]] * (rank_of(x) - 2)]), 1)
    channels = shape_of(x)[1]
    total = tf.subtract(sums[:, size : size + channels], sums[:, :channels])
    scaled = tf.add(
        tf.multiply(total, kind.type(node.get("alpha", 1e-4) / size)), kind.type(node.get("bias", 1.0))
    )
    return tf.realdiv(x, tf.pow(scaled, kind.type(node.get("beta", 0.75))))


@handles("LayerNormalization")
def layer_normalization(node: Node, x: Value, scale: Value, bias: Value = None) -> Any:
    """The normalization over all dimensions from ``axis`` on, in float32."""
    axis = axis_of(node.get("axis", -1), rank_of(x))
    over = list(range(axis, rank_of(x)))
    kind, epsilon = dtype_of(x), node.get("epsilon", 1e-5)
    if not node.wants(1) and over == [rank_of(x) - 1] and kind == np.float32 and rank_of(scale) == 1:
        offset = np.zeros(shape_of(scale), kind) if bias is None else bias
        return tf.nn.layer_norm(x, scale, offset, epsilon)
    wide = tf.cast(x, tf.float32)
    mean, variance = tf.nn.moments(wide, over, keep_dims=True)
    inverse = tf.rsqrt(tf.add(variance, np.float32(epsilon)))
    found = tf.cast(tf.multiply(tf.subtract(wide, mean), inverse), kind)
    found = tf.multiply(found, scale)
    found = found if bias is None else tf.add(found, bias)
    return found, mean, inverse


@handles("Dropout")
def dropout(node: Node, x: Value, ratio: Value = None, training: Value = None) -> Any:
    """``x`` and True, since all is kept in inference; elements are dropped in training mode."""
    part = node.get("ratio", 0.5) if ratio is None else float(node.known(ratio, "a ratio"))
    if training is not None and node.known(training, "training_mode") and part > 0:
        kind = dtype_of(x)
        keep = tf.greater_equal(_dropped(node, shape_of(x)), np.float32(part))
        return tf.multiply(tf.multiply(x, tf.cast(keep, kind)), kind.type(1 / (1 - part))), keep
    return x, np.ones(shape_of(x), np.bool_)


def _dropped(node: Node, shape: list[int]) -> Value:
    return tf.random_uniform(shape, seed=node.get("seed"))


@handles("RandomNormal", "RandomUniform")
def random(node: Node) -> Value:
    return _drawn(node, node.get("shape"), dtype_of_element(node.get("dtype", 1)))


@handles("RandomNormalLike", "RandomUniformLike")
def random_like(node: Node, x: Value) -> Value:
    kind = dtype_of_element(node.get("dtype")) if "dtype" in node.attrs else dtype_of(x)
    return _drawn(node, shape_of(x), kind)


def _drawn(node: Node, shape: Any, kind: np.dtype[Any]) -> Value:
    seed = int(node.get("seed")) if "seed" in node.attrs else None
    if "Normal" in node.op:
        drawn = tf.random_normal(shape, node.get("mean", 0.0), node.get("scale", 1.0), seed=seed)
    else:
        drawn = tf.random_uniform(shape, node.get("low", 0.0), node.get("high", 1.0), seed=seed)
    return tf.cast(drawn, kind)


@handles("Multinomial")
def multinomial(node: Node, logits: Value) -> Value:
    seed = int(node.get("seed")) if "seed" in node.attrs else None
    drawn = tf.multinomial(logits, node.get("sample_size", 1), seed=seed)
    return tf.cast(drawn, dtype_of_element(node.get("dtype", 6)))
