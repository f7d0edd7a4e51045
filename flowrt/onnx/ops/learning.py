"""Steps of optimizers (``ai.onnx.preview.training``), and small operations of ``ai.onnx.ml``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from flowrt.onnx.node import Node
from flowrt.onnx.registry import handles
from flowrt.onnx.surface import tf
from flowrt.onnx.values import Value, dtype_of

TRAINING, ML = "ai.onnx.preview.training", "ai.onnx.ml"


def _each(
    node: Node, tensors: tuple[Value, ...], kinds: int, update: Callable[..., tuple[Value, ...]]
) -> Any:
    """``update`` of each variable with its gradient and states; results by kind, then variable."""
    count = len(tensors) // kinds
    found = [update(*(tensors[k * count + i] for k in range(kinds))) for i in range(count)]
    return tuple(each[k] for k in range(kinds - 1) for each in found)


@handles("Momentum", domain=TRAINING)
def momentum(node: Node, rate: Value, step: Value, *tensors: Value) -> Any:
    alpha, beta, norm = node.get("alpha"), node.get("beta"), node.get("norm_coefficient")
    factor = np.where(np.asarray(node.known(step, "a step")) > 0, beta, 1.0)

    def update(x: Value, gradient: Value, v: Value) -> tuple[Value, ...]:
        kind = dtype_of(x).type
        g = tf.add(tf.multiply(x, kind(norm)), gradient)
        v = tf.add(tf.multiply(v, kind(alpha)), tf.multiply(g, kind(factor)))
        moved = tf.add(g, tf.multiply(v, kind(alpha))) if node.get("mode") == "nesterov" else v
        return tf.subtract(x, tf.multiply(tf.reshape(rate, []), moved)), v

    return _each(node, tensors, 3, update)


@handles("Adagrad", domain=TRAINING)
def adagrad(node: Node, rate: Value, step: Value, *tensors: Value) -> Any:
    decay = node.get("decay_factor", 0.0)
    r = tf.realdiv(tf.cast(rate, tf.float32), 1 + np.float32(node.known(step, "a step")) * np.float32(decay))

    def update(x: Value, gradient: Value, h: Value) -> tuple[Value, ...]:
        kind = dtype_of(x).type
        g = tf.add(tf.multiply(x, kind(node.get("norm_coefficient", 0.0))), gradient)
        h = tf.add(h, tf.square(g))
        part = tf.realdiv(g, tf.add(tf.sqrt(h), kind(node.get("epsilon", 1e-6))))
        return tf.subtract(x, tf.multiply(tf.cast(r, dtype_of(x)), part)), h

    return _each(node, tensors, 3, update)


@handles("Adam", domain=TRAINING)
def adam(node: Node, rate: Value, step: Value, *tensors: Value) -> Any:
    alpha, beta = node.get("alpha", 0.9), node.get("beta", 0.999)
    t = float(node.known(step, "a step"))
    factor = np.sqrt(1 - beta**t) / (1 - alpha**t) if t > 0 else 1.0

    def update(x: Value, gradient: Value, v: Value, h: Value) -> tuple[Value, ...]:
        kind = dtype_of(x).type
        g = tf.add(tf.multiply(x, kind(node.get("norm_coefficient", 0.0))), gradient)
        v = tf.add(tf.multiply(v, kind(alpha)), tf.multiply(g, kind(1 - alpha)))
        h = tf.add(tf.multiply(h, kind(beta)), tf.multiply(tf.square(g), kind(1 - beta)))
        part = tf.realdiv(v, tf.add(tf.sqrt(h), kind(node.get("epsilon", 1e-6))))
        new = tf.subtract(x, tf.multiply(tf.multiply(tf.cast(rate, dtype_of(x)), kind(factor)), part))
        return tf.multiply(new, kind(1 - node.get("norm_coefficient_post", 0.0))), v, h

    return _each(node, tensors, 4, update)


@handles("Gradient", domain=TRAINING)
def gradient(node: Node, *inputs: Value) -> Any:
    return tuple(tf.gradients(node.scope.value(node.get("y")), list(inputs)))


@handles("ArrayFeatureExtractor", domain=ML)
def features(node: Node, x: Value, places: Value) -> Value:
    return tf.gather(x, tf.reshape(places, [-1]), axis=-1)


@handles("Binarizer", domain=ML)
def binarizer(node: Node, x: Value) -> Value:
    return tf.cast(tf.greater(x, dtype_of(x).type(node.get("threshold", 0.0))), dtype_of(x))


@handles("LabelEncoder", domain=ML, since=2)
def label_encoder(node: Node, x: Value) -> Value:
    """The entries of a table for the elements of a known input."""
    keys = _entries(node, "keys")
    values = _entries(node, "values")
    default = _default(node, values)
    table = {_key(k): v for k, v in zip(keys.tolist(), values.tolist(), strict=True)}
    given = node.known(x, "an input")
    found = [table.get(_key(each), default) for each in given.reshape(-1).tolist()]
    return np.array([*found, None], object)[:-1].astype(values.dtype).reshape(given.shape)


def _key(value: Any) -> Any:
    """A NaN is equal to a NaN here."""
    return "nan" if isinstance(value, float) and value != value else value


def _entries(node: Node, name: str) -> Any:
    for suffix, kind in (("tensor", None), ("strings", object), ("int64s", np.int64), ("floats", np.float32)):
        if f"{name}_{suffix}" in node.attrs:
            value = node.get(f"{name}_{suffix}")
            if kind is object:
                return np.array([*[each.encode() for each in value], None], object)[:-1]
            return np.asarray(value, kind)
    return node.reject(f"expected {name} of some kind; got none")


def _default(node: Node, values: Any) -> Any:
    if "default_tensor" in node.attrs:
        return node.get("default_tensor").reshape(-1).tolist()[0]
    if values.dtype.kind == "O":
        return node.get("default_string", "_Unused").encode()
    return node.get("default_int64", -1) if values.dtype.kind == "i" else node.get("default_float", -0.0)
