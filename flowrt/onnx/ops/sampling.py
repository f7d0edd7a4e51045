"""Samples of images between their elements: GridSample, RoiAlign, and what deformable convolutions take."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from flowrt.onnx.node import Node
from flowrt.onnx.registry import handles
from flowrt.onnx.surface import tf
from flowrt.onnx.values import Value, dtype_of, shape_of


def elements_at(planes: Value, *places: Value) -> Value:
    """Elements [n, c, m] of ``planes`` [n, c, ...] at places [n, m] for each spatial dimension; 0 outside."""
    n, channels, *sizes = shape_of(planes)
    inside: Any = None
    flat: Any = None
    for place, size in zip(places, sizes, strict=True):
        fits = tf.logical_and(tf.greater_equal(place, np.int64(0)), tf.less(place, np.int64(size)))
        inside = fits if inside is None else tf.logical_and(inside, fits)
        bounded = tf.minimum(tf.maximum(place, np.int64(0)), np.int64(size - 1))
        flat = bounded if flat is None else tf.add(tf.multiply(flat, np.int64(size)), bounded)
    rows = tf.transpose(tf.reshape(planes, [n, channels, int(np.prod(sizes))]), [0, 2, 1])
    found = tf.batch_gather(rows, flat)  # [n, m, c]
    return tf.where_v2(
        tf.expand_dims(inside, 1), tf.transpose(found, [0, 2, 1]), np.zeros((), dtype_of(planes))
    )


Bound = Callable[[Value, int], Value]
"""A place, as a float, along a dimension of a size, as one inside of it."""


def corners_at(planes: Value, places: Sequence[Value], bound: Bound | None = None) -> list[Value]:
    """The terms [n, c, m] of linear samples of ``planes`` [n, c, ...] at ``places`` [n, m] for each spatial
    dimension: the elements around, times their weights. Without ``bound`` those outside are 0.
    """
    one = np.ones((), dtype_of(planes))
    sizes = shape_of(planes)[2:]
    lows = [tf.floor(place) for place in places]
    terms = []
    for above in np.ndindex(*[2] * len(places)):
        weight: Any = one
        whole = []
        for place, low, size, step in zip(places, lows, sizes, above, strict=True):
            part = tf.subtract(place, low)
            weight = tf.multiply(weight, part if step else tf.subtract(one, part))
            at = tf.add(low, one) if step else low
            whole.append(tf.cast(at if bound is None else bound(at, size), tf.int64))
        terms.append(tf.multiply(elements_at(planes, *whole), tf.expand_dims(weight, 1)))
    return terms


def linear_at(planes: Value, places: Sequence[Value], bound: Bound | None = None) -> Value:
    """Linear samples [n, c, m]: see `corners_at`."""
    return tf.add_n(corners_at(planes, places, bound))


@handles("GridSample")
def grid_sample(node: Node, x: Value, grid: Value) -> Value:
    """Samples at places of -1 to 1, the last coordinate being the first spatial dimension's."""
    n, channels, *sizes = shape_of(x)
    out = shape_of(grid)[1:-1]
    spatial = len(sizes)
    mode = {"bilinear": "linear", "bicubic": "cubic"}.get(
        node.get("mode", "linear"), node.get("mode", "linear")
    )
    padding, align = node.get("padding_mode", "zeros"), bool(node.get("align_corners", 0))
    kind = dtype_of(x)
    places = []
    for i, size in enumerate(sizes):
        at = tf.cast(tf.reshape(tf.convert_to_tensor(grid)[..., spatial - 1 - i], [n, -1]), tf.as_dtype(kind))
        scaled = (
            tf.multiply(tf.add(at, kind.type(1)), kind.type((size - 1) / 2))
            if align
            else tf.subtract(tf.multiply(tf.add(at, kind.type(1)), kind.type(size / 2)), kind.type(0.5))
        )
        places.append(scaled)
    if mode == "nearest":
        places = [tf.round(place) for place in places]
    if mode != "cubic":
        places = [_bounded(p, size, padding, align, kind) for p, size in zip(places, sizes, strict=True)]
    if mode == "nearest":
        found = elements_at(x, *[tf.cast(place, tf.int64) for place in places])
    elif mode == "linear":
        found = linear_at(x, places, lambda at, size: _whole(at, size, padding, align, kind))
    else:
        found = _cubic_at(x, places, padding, align)
    return tf.reshape(found, [n, channels, *out])


def _bounded(place: Value, size: int, padding: str, align: bool, kind: np.dtype[Any]) -> Value:
    if padding == "border":
        return tf.minimum(tf.maximum(place, kind.type(0)), kind.type(size - 1))
    if padding == "reflection":
        low, high = (0.0, size - 1.0) if align else (-0.5, size - 0.5)
        return _reflected(place, low, high, kind) if high > low else tf.zeros_like(place)
    return place


def _whole(place: Value, size: int, padding: str, align: bool, kind: np.dtype[Any]) -> Value:
    """A whole place inside, by the rule for places outside."""
    bounded = _bounded(place, size, padding, align, kind)
    return tf.round(bounded) if padding == "reflection" else bounded


def _reflected(place: Value, low: float, high: float, kind: np.dtype[Any]) -> Value:
    span = kind.type(high - low)
    away = tf.floormod(tf.subtract(place, kind.type(low)), kind.type(2) * span)
    return tf.add(
        tf.where_v2(tf.greater(away, span), tf.subtract(kind.type(2) * span, away), away), kind.type(low)
    )


CUBIC = -0.75


def _cubic_weights(part: Value, kind: np.dtype[Any]) -> list[Value]:
    """The weights of four neighbours of a place ``part`` behind the second (Keys, 1981)."""

    def near(t: Value) -> Value:
        return tf.add(
            tf.multiply(
                tf.multiply(tf.subtract(tf.multiply(t, kind.type(CUBIC + 2)), kind.type(CUBIC + 3)), t), t
            ),
            kind.type(1),
        )

    def far(t: Value) -> Value:
        a = kind.type(CUBIC)
        return tf.subtract(
            tf.multiply(
                tf.add(tf.multiply(tf.subtract(tf.multiply(t, a), kind.type(5) * a), t), kind.type(8) * a), t
            ),
            kind.type(4) * a,
        )

    one = kind.type(1)
    return [
        far(tf.add(part, one)),
        near(part),
        near(tf.subtract(one, part)),
        far(tf.subtract(kind.type(2), part)),
    ]


def _cubic_at(x: Value, places: list[Value], padding: str, align: bool) -> Value:
    kind, sizes = dtype_of(x), shape_of(x)[2:]
    lows = [tf.floor(place) for place in places]
    weights = [_cubic_weights(tf.subtract(p, low), kind) for p, low in zip(places, lows, strict=True)]
    found: Any = None
    for corner in np.ndindex(*[4] * len(places)):
        weight: Any = None
        whole = []
        for i, step in enumerate(corner):
            weight = weights[i][step] if weight is None else tf.multiply(weight, weights[i][step])
            at = tf.add(lows[i], kind.type(step - 1))
            whole.append(tf.cast(_whole(at, sizes[i], padding, align, kind), tf.int64))
        term = tf.multiply(elements_at(x, *whole), tf.expand_dims(weight, 1))
        found = term if found is None else tf.add(found, term)
    return found
