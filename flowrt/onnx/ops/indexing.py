"""Elements by their places."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np

from flowrt.onnx.node import Node
from flowrt.onnx.registry import handles
from flowrt.onnx.surface import tf
from flowrt.onnx.values import Value, axis_of, dtype_of, is_known, rank_of, shape_of


@handles("Gather")
def gather(node: Node, x: Value, indices: Value) -> Value:
    axis = axis_of(node.get("axis", 0), rank_of(x))
    return tf.gather(x, wrapped(indices, shape_of(x)[axis]), axis=axis)


def wrapped(indices: Value, size: int) -> Value:
    """``indices`` counted from the front."""
    if is_known(indices):
        return np.where(indices < 0, indices + size, indices)
    return tf.where_v2(tf.less(indices, 0), tf.add(indices, size), indices)


@handles("GatherElements")
def gather_elements(node: Node, x: Value, indices: Value) -> Value:
    axis = axis_of(node.get("axis", 0), rank_of(x))
    return tf.gather(tf.reshape(x, [-1]), _flat_places(shape_of(x), indices, axis))


def _flat_places(sizes: list[int], indices: Value, axis: int) -> Value:
    """Places in the flattened array of elements that are at ``indices`` along ``axis``, elsewhere where their
    indices are.
    """
    along = tf.cast(wrapped(indices, sizes[axis]), tf.int64)
    strides = [int(np.prod(sizes[i + 1 :], dtype=np.int64)) for i in range(len(sizes))]
    grid = np.indices(shape_of(indices))
    rest = sum(
        (grid[i] * strides[i] for i in range(len(sizes)) if i != axis), np.zeros(shape_of(indices), np.int64)
    )
    return tf.add(tf.multiply(along, strides[axis]), rest)


@handles("GatherND")
def gather_nd(node: Node, x: Value, indices: Value) -> Value:
    batch = node.get("batch_dims", 0)
    sizes, depth = shape_of(x), shape_of(indices)[-1]
    inner = sizes[batch : batch + depth]
    where = [tf.cast(wrapped(_at(indices, i), inner[i]), tf.int64) for i in range(depth)]
    index = tf.stack(where, -1)
    if batch:
        leading = np.indices(shape_of(indices)[:-1])[:batch]
        parts = [tf.constant(each[..., None]) for each in leading]
        index = tf.concat([*parts, index], -1)
    return tf.gather_nd(x, index)


def _at(x: Value, i: int) -> Any:
    return tf.convert_to_tensor(x)[..., i]


@handles("Scatter", "ScatterElements")
def scatter_elements(node: Node, x: Value, indices: Value, updates: Value) -> Value:
    axis = axis_of(node.get("axis", 0), rank_of(x))
    places = tf.reshape(_flat_places(shape_of(x), indices, axis), [-1])
    found = _scattered(
        node, tf.reshape(x, [-1]), places, tf.reshape(updates, [-1]), node.get("reduction", "none")
    )
    return tf.reshape(found, shape_of(x))


@handles("ScatterND")
def scatter_nd(node: Node, x: Value, indices: Value, updates: Value) -> Value:
    sizes, depth = shape_of(x), shape_of(indices)[-1]
    rows, inner = int(np.prod(sizes[:depth], dtype=np.int64)), sizes[depth:]
    strides = [int(np.prod(sizes[i + 1 : depth], dtype=np.int64)) for i in range(depth)]
    parts = [
        tf.multiply(tf.cast(wrapped(_at(indices, i), sizes[i]), tf.int64), strides[i]) for i in range(depth)
    ]
    places = tf.reshape(functools.reduce(tf.add, parts), [-1])
    found = _scattered(
        node,
        tf.reshape(x, [rows, *inner]),
        places,
        tf.reshape(updates, [-1, *inner]),
        node.get("reduction", "none"),
    )
    return tf.reshape(found, sizes)


def _scattered(node: Node, rows: Value, places: Value, updates: Value, reduction: str) -> Value:
    """``rows`` with ``updates`` at ``places``; of the same place all count, without a reduction the last."""
    if reduction == "none":
        return tf.tensor_scatter_update(rows, tf.expand_dims(places, -1), updates)
    if reduction not in _SEGMENTS:
        node.reject(f"expected a reduction of {sorted(_SEGMENTS)}; got {reduction!r}")
    segments, combine = _SEGMENTS[reduction]
    count = shape_of(rows)[0]
    found = segments(updates, places, count)
    touched = tf.greater(tf.unsorted_segment_sum(tf.ones_like(places), places, count), np.int64(0))
    mask = tf.reshape(touched, [count, *[1] * (rank_of(rows) - 1)])
    return tf.where_v2(mask, combine(rows, found), rows)


_SEGMENTS: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {
    "add": (tf.unsorted_segment_sum, tf.add),
    "mul": (tf.unsorted_segment_prod, tf.multiply),
    "max": (tf.unsorted_segment_max, tf.maximum),
    "min": (tf.unsorted_segment_min, tf.minimum),
}


@handles("TensorScatter")
def tensor_scatter(node: Node, past: Value, update: Value, starts: Value = None) -> Value:
    """Rows of ``update`` into ``past`` from a place on for each batch entry, around the end if circular."""
    sizes, axis = shape_of(past), axis_of(node.get("axis", -2), rank_of(past))
    count = shape_of(update)[axis]
    begins = np.zeros(sizes[0], np.int64) if starts is None else starts
    column = tf.reshape(begins, [sizes[0], *[1] * (len(sizes) - 1)])
    along = tf.add(
        tf.cast(column, tf.int64),
        np.arange(count).reshape([count if i == axis else 1 for i in range(len(sizes))]),
    )
    if node.get("mode", "linear") == "circular":
        along = tf.floormod(along, np.int64(sizes[axis]))
    places = tf.broadcast_to(along, shape_of(update))
    flat = tf.reshape(_flat_places(sizes, places, axis), [-1])
    found = _scattered(node, tf.reshape(past, [-1]), flat, tf.reshape(update, [-1]), "none")
    return tf.reshape(found, sizes)


@handles("TopK")
def top_k_by_attribute(node: Node, x: Value) -> Value:
    return top_k(node, x, np.array([node.get("k")]))


@handles("TopK", since=10)
def top_k(node: Node, x: Value, k: Value) -> Value:
    """Values and places; of equal elements the first comes first."""
    axis, count = axis_of(node.get("axis", -1), rank_of(x)), node.integers(k, "k")[0]
    direction = "DESCENDING" if node.get("largest", 1) else "ASCENDING"
    order = tf.argsort(x, axis, direction, stable=True)
    index = tuple(slice(count) if i == axis else slice(None) for i in range(rank_of(x)))
    places = tf.cast(order[index], tf.int64)
    return tf.gather(tf.reshape(x, [-1]), _flat_places(shape_of(x), places, axis)), places


@handles("OneHot")
def one_hot(node: Node, indices: Value, depth: Value, values: Value) -> Value:
    count = node.integers(depth, "a depth")[0]
    places = wrapped(tf.cast(indices, tf.int64), count)
    off, on = (tf.convert_to_tensor(values)[i] for i in range(2))
    axis = axis_of(node.get("axis", -1), rank_of(indices) + 1)
    is_one = tf.one_hot(places, count, axis=axis, dtype=tf.float32)
    return tf.where_v2(tf.greater(is_one, 0.0), on, off)


@handles("NonZero")
def non_zero(node: Node, x: Value) -> Value:
    return tf.transpose(tf.where(tf.not_equal(x, np.zeros((), dtype_of(x)))))


@handles("Compress")
def compress(node: Node, x: Value, condition: Value) -> Value:
    if "axis" not in node.attrs:
        x, axis = tf.reshape(x, [-1]), 0
    else:
        axis = axis_of(node.get("axis"), rank_of(x))
    places = tf.reshape(tf.where(condition), [-1])
    return tf.gather(x, places, axis=axis)


@handles("Unique")
def unique(node: Node, x: Value) -> Value:
    """Values, first places, inverse, counts; ``sorted`` or by first place."""
    along = node.get("axis")
    found = np.unique(node.known(x, "an input"), True, True, True, along)
    values, first, inverse, counts = (np.asarray(each) for each in found)
    inverse = inverse.reshape(-1)
    if not node.get("sorted", 1):
        order = np.argsort(first)
        rank = np.empty_like(order)
        rank[order] = np.arange(order.size)
        values = np.take(values, order, 0 if along is None else along)
        first, counts, inverse = first[order], counts[order], rank[inverse]
    return values, first.astype(np.int64), inverse.astype(np.int64), counts.astype(np.int64)
