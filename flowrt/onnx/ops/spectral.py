"""Fourier transforms, as products with matrices, and windows."""

from __future__ import annotations

from typing import Any

import numpy as np

from flowrt.onnx.node import Node
from flowrt.onnx.ops.shaping import padded
from flowrt.onnx.proto import dtype_of as dtype_of_element
from flowrt.onnx.registry import handles
from flowrt.onnx.surface import tf
from flowrt.onnx.values import Value, axis_of, dtype_of, rank_of, shape_of


@handles("DFT", since=17)
def dft_by_attribute(node: Node, x: Value, length: Value = None) -> Value:
    return _dft(node, x, length, node.get("axis", 1))


@handles("DFT", since=20)
def dft(node: Node, x: Value, length: Value = None, axis: Value = None) -> Value:
    return _dft(node, x, length, -2 if axis is None else node.integers(axis, "an axis")[0])


def _dft(node: Node, x: Value, length: Value, axis: int) -> Value:
    along = axis_of(axis, rank_of(x))
    inverse, half = bool(node.get("inverse", 0)), bool(node.get("onesided", 0))
    size = shape_of(x)[along]
    if length is not None:
        count = node.integers(length, "a length")[0]
    else:
        count = 2 * (size - 1) if inverse and half else size
    wanted = count // 2 + 1 if inverse and half else count
    x = padded(x, [0] * rank_of(x), [wanted - size if i == along else 0 for i in range(rank_of(x))])
    parts = tf.convert_to_tensor(x)
    if inverse and half:
        return _from_half(parts, along, count)
    return _transformed(parts, along, count, inverse, half)


def _transformed(x: Value, axis: int, count: int, inverse: bool, half: bool) -> Value:
    """[..., 1 or 2] to [..., 2], real and imaginary."""
    kind = dtype_of(x)
    rows = count // 2 + 1 if half else count
    angle = 2 * np.pi / count * (np.arange(count)[:, None] * np.arange(rows)[None, :] % count)
    cos, sin = np.cos(angle), np.sin(angle) * (1 if inverse else -1)
    scale = 1 / count if inverse else 1.0
    real = _along(x[..., :1], cos * scale, axis, kind), _along(x[..., :1], sin * scale, axis, kind)
    if shape_of(x)[-1] == 1:
        return tf.concat(real, -1)
    imaginary = _along(x[..., 1:], cos * scale, axis, kind), _along(x[..., 1:], sin * scale, axis, kind)
    return tf.concat([tf.subtract(real[0], imaginary[1]), tf.add(real[1], imaginary[0])], -1)


def _from_half(x: Value, axis: int, count: int) -> Value:
    """The real values of which ``x`` [..., 2] is one half of the transform."""
    kind, rows = dtype_of(x), count // 2 + 1
    angle = 2 * np.pi / count * (np.arange(rows)[:, None] * np.arange(count)[None, :] % count)
    weight = np.full((rows, 1), 2.0)
    weight[0] = 1
    if count % 2 == 0:
        weight[-1] = 1
    cos, sin = np.cos(angle) * weight / count, np.sin(angle) * weight / count
    return tf.subtract(_along(x[..., :1], cos, axis, kind), _along(x[..., 1:], sin, axis, kind))


def _along(x: Value, matrix: Any, axis: int, kind: np.dtype[Any]) -> Value:
    """The product of ``x`` along ``axis`` with ``matrix`` [in, out]."""
    found = tf.tensordot(x, matrix.astype(kind), [[axis], [0]])
    order = list(range(rank_of(x) - 1))
    order.insert(axis, rank_of(x) - 1)
    return tf.transpose(found, order)


@handles("STFT", since=17)
def stft(node: Node, signal: Value, step: Value, window: Value = None, length: Value = None) -> Value:
    """Transforms of frames of ``signal`` [batch, samples, 1 or 2]: [batch, frames, bins, 2]."""
    hop = node.integers(step, "a step")[0]
    if length is not None:
        count = node.integers(length, "a length")[0]
    else:
        count = shape_of(window)[0]
    frames = (shape_of(signal)[1] - count) // hop + 1
    places = np.arange(frames)[:, None] * hop + np.arange(count)
    parts = tf.gather(signal, places, axis=1)  # [batch, frames, count, 1 or 2]
    if window is not None:
        parts = tf.multiply(parts, tf.reshape(window, [count, 1]))
    return _transformed(tf.convert_to_tensor(parts), 2, count, False, bool(node.get("onesided", 1)))


@handles("HannWindow", "HammingWindow", "BlackmanWindow", since=17)
def window(node: Node, size: Value) -> Value:
    count = node.integers(size, "a size")[0]
    n = count if node.get("periodic", 1) else count - 1
    angle = 2 * np.pi * np.arange(count) / n
    match node.op:
        case "HannWindow":
            found = 0.5 - 0.5 * np.cos(angle)
        case "HammingWindow":
            found = 25 / 46 - 21 / 46 * np.cos(angle)
        case _:
            found = 0.42 - 0.5 * np.cos(angle) + 0.08 * np.cos(2 * angle)
    return found.astype(dtype_of_element(node.get("output_datatype", 1)))


@handles("MelWeightMatrix", since=17)
def mel_weights(node: Node, bins: Value, length: Value, rate: Value, lowest: Value, highest: Value) -> Value:
    """Triangles over the bins of a transform, equally far apart in mel."""
    count, size = (node.integers(each, "a size")[0] for each in (bins, length))
    sample_rate = float(node.known(rate, "a rate"))
    edges = [2595 * np.log10(1 + float(node.known(each, "an edge")) / 700) for each in (lowest, highest)]
    spectrum = size // 2 + 1
    step = (edges[1] - edges[0]) / (count + 2)
    mels = np.arange(count + 2) * step + edges[0]
    places = ((size + 1) * (700 * (10 ** (mels / 2595) - 1)) // sample_rate).astype(np.int64)
    found = np.zeros((spectrum, count))
    for i in range(count):
        low, middle, high = places[i : i + 3]
        if low == middle:
            found[middle, i] = 1
        for j in range(low, middle + 1):
            found[j, i] = (j - low) / (middle - low) if middle > low else found[j, i]
        for j in range(middle, high):
            found[j, i] = (high - j) / (high - middle)
    return found.astype(dtype_of_element(node.get("output_datatype", 1)))
