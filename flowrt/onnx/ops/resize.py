"""Resize and Upsample: one axis after the other, by known places and weights.

Along an axis each element of the result is a weighted sum of a few elements. Places and weights follow from
the sizes alone, so they are computed here, in float64, and the graph has a gather, or a product with a matrix
[out, in], for each axis that changes.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from flowrt.onnx.node import Node
from flowrt.onnx.registry import handles
from flowrt.onnx.surface import tf
from flowrt.onnx.values import Value, axes_of, bounded, dtype_of, rank_of, shape_of


class _Axis(NamedTuple):
    """A change of an axis: its sizes, the exact scale, and the part of the input that is asked for."""

    size: int
    out: int
    scale: float
    begin: float
    end: float


@handles("Upsample")
def upsample_by_attribute(node: Node, x: Value) -> Value:
    return upsample(node, x, np.array(node.get("scales"), np.float32))


@handles("Upsample", since=9)
def upsample(node: Node, x: Value, scales: Value) -> Value:
    factors = [float(each) for each in node.known(scales, "scales").reshape(-1)]
    return _resized(node, x, factors, None, None, "asymmetric", "floor")


@handles("Resize", since=10)
def resize_in_opset_10(node: Node, x: Value, scales: Value) -> Value:
    return upsample(node, x, scales)


@handles("Resize", since=11)
def resize(node: Node, x: Value, roi: Value = None, scales: Value = None, sizes: Value = None) -> Value:
    factors = None if scales is None else node.known(scales, "scales").reshape(-1).tolist()
    wanted = None if sizes is None else node.integers(sizes, "sizes")
    return _resized(
        node, x, factors or None, wanted, roi, node.get("coordinate_transformation_mode", "half_pixel"),
        node.get("nearest_mode", "round_prefer_floor"),
    )  # fmt: skip


def _resized(
    node: Node, x: Value, factors: Any, wanted: Any, roi: Value, transformation: str, rounding: str
) -> Value:
    axes = axes_of(node.get("axes") or range(rank_of(x)), rank_of(x))
    changes = _changes(node, x, axes, factors, wanted, roi, transformation)
    mode, kind = node.get("mode", "nearest"), dtype_of(x)
    for axis, change in zip(axes, changes, strict=True):
        is_cut = transformation == "tf_crop_and_resize"
        if change.size == change.out and change.scale == 1 and not is_cut:
            continue
        places = _places(change, transformation)
        outside = (places < 0) | (places > change.size - 1) if is_cut else np.zeros(change.out, np.bool_)
        if mode == "nearest":
            x = tf.gather(x, np.clip(_rounded(places, rounding), 0, change.size - 1), axis=axis)
        else:
            matrix = _matrix(node, change, places, mode)
            wide = (
                tf.cast(x, tf.float64)
                if kind.kind in "iu"
                else tf.cast(x, tf.float32)
                if kind.itemsize == 2
                else x
            )
            found = tf.tensordot(wide, matrix.T.astype(dtype_of(wide)), [[axis], [0]])
            order = list(range(rank_of(x) - 1))
            order.insert(axis, rank_of(x) - 1)
            found = tf.transpose(found, order)
            if kind.kind in "iu":
                limits = np.iinfo(kind)
                found = tf.minimum(tf.maximum(tf.round(found), float(limits.min)), float(limits.max))
            x = tf.cast(found, kind)
        if outside.any():
            shape = [-1 if i == axis else 1 for i in range(rank_of(x))]
            fill = np.asarray(node.get("extrapolation_value", 0.0), kind)
            x = tf.where_v2(outside.reshape(shape), fill, x)
    return x


def _changes(
    node: Node, x: Value, axes: list[int], factors: Any, wanted: Any, roi: Value, transformation: str
) -> list[_Axis]:
    sizes = [shape_of(x)[axis] for axis in axes]
    count = len(axes)
    region = [0.0] * count + [1.0] * count
    if transformation == "tf_crop_and_resize" and roi is not None:
        region = node.known(roi, "a region").reshape(-1).astype(np.float64).tolist()
    if factors is None:
        if wanted is None:
            node.reject("expected scales or sizes; got neither")
        factors = [out / size for out, size in zip(wanted, sizes, strict=True)]
        policy = node.get("keep_aspect_ratio_policy", "stretch")
        if policy != "stretch":
            scale = (min if policy == "not_larger" else max)(factors)
            factors, wanted = [scale] * count, [math.floor(scale * size + 0.5) for size in sizes]
    else:
        parts = [e - b for b, e in zip(region[:count], region[count:], strict=True)]
        wanted = [math.floor(size * part * f) for size, part, f in zip(sizes, parts, factors, strict=True)]
    bounded([abs(out) for out in wanted])
    return [_Axis(*each) for each in zip(sizes, wanted, factors, region[:count], region[count:], strict=True)]


def _places(change: _Axis, transformation: str) -> Any:
    """The place in the input of each element of the result."""
    size, out, scale, begin, end = change
    at = np.arange(out, dtype=np.float64)
    exact = scale * size
    match transformation:
        case "half_pixel":
            return (at + 0.5) / scale - 0.5
        case "half_pixel_symmetric":
            adjustment = out / exact
            return size / 2 * (1 - adjustment) + (at + 0.5) / scale - 0.5
        case "pytorch_half_pixel":
            return (at + 0.5) / scale - 0.5 if out > 1 else at * 0
        case "align_corners":
            return at * (size - 1) / (exact - 1) if exact != 1 else at * 0
        case "asymmetric":
            return at / scale
        case "tf_half_pixel_for_nn":
            return (at + 0.5) / scale
        case "tf_crop_and_resize":
            if out > 1:
                return begin * (size - 1) + at * (end - begin) * (size - 1) / (out - 1)
            return at + 0.5 * (begin + end) * (size - 1)
    raise ValueError(f"coordinate_transformation_mode {transformation!r}")


def _rounded(places: Any, rounding: str) -> Any:
    match rounding:
        case "round_prefer_floor":
            return np.ceil(places - 0.5).astype(np.int64)
        case "round_prefer_ceil":
            return np.floor(places + 0.5).astype(np.int64)
        case "ceil":
            return np.ceil(places).astype(np.int64)
    return np.floor(places).astype(np.int64)


def _matrix(node: Node, change: _Axis, places: Any, mode: str) -> Any:
    """The weights [out, in] of a linear or cubic resize."""
    stretch = min(change.scale, 1.0) if node.get("antialias", 0) else 1.0
    reach = (1 if mode == "linear" else 2) / stretch
    matrix = np.zeros(bounded([change.out, change.size]))
    for row, place in enumerate(places):
        # an element just outside of the reach has no weight, so one more on each side does no harm
        near = np.arange(math.floor(place - reach), math.ceil(place + reach) + 1)
        weights = _kernel((near - place) * stretch, mode, node.get("cubic_coeff_a", -0.75))
        if node.get("exclude_outside", 0):
            weights = np.where((near < 0) | (near >= change.size), 0.0, weights)
        weights = weights / weights.sum()
        np.add.at(matrix[row], np.clip(near, 0, change.size - 1), weights)
    return matrix


def _kernel(distance: Any, mode: str, a: float) -> Any:
    d = np.abs(distance)
    if mode == "linear":
        return np.maximum(1 - d, 0)
    near = ((a + 2) * d - (a + 3)) * d * d + 1
    far = ((a * d - 5 * a) * d + 8 * a) * d - 4 * a
    return np.where(d <= 1, near, np.where(d < 2, far, 0.0))
