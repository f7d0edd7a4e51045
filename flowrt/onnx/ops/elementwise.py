"""Operations on one element at a time."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np

from flowrt.dtypes import NARROW, as_dtype
from flowrt.graph.ops.elementwise.narrow_cast import cast_narrow
from flowrt.onnx.node import Node
from flowrt.onnx.proto import dtype_of as dtype_of_element
from flowrt.onnx.registry import handles
from flowrt.onnx.surface import tf
from flowrt.onnx.values import Value, dtype_of, rank_of, shape_of

SELU_ALPHA, SELU_GAMMA = 1.67326319217681884765625, 1.05070102214813232421875


def _register_unary() -> None:
    functions: dict[str, Callable[..., Any]] = {
        "Acos": tf.acos, "Acosh": tf.acosh, "Asin": tf.asin, "Asinh": tf.asinh, "Atan": tf.atan,
        "Atanh": tf.atanh, "BitwiseNot": tf.bitwise.invert, "Ceil": tf.ceil, "Cos": tf.cos, "Cosh": tf.cosh,
        "Erf": tf.erf, "Exp": tf.exp, "Floor": tf.floor, "IsNaN": tf.is_nan,
        "Log": tf.log, "Neg": tf.negative, "Not": tf.logical_not, "Reciprocal": tf.reciprocal,
        "Relu": tf.nn.relu, "Round": tf.round, "Sigmoid": tf.sigmoid, "Sin": tf.sin, "Sinh": tf.sinh,
        "Softplus": tf.nn.softplus, "Softsign": tf.nn.softsign, "Sqrt": tf.sqrt, "Tan": tf.tan,
        "Tanh": tf.tanh,
    }  # fmt: skip
    for name, function in functions.items():

        def handler(node: Node, x: Value, function: Callable[..., Any] = function) -> Value:
            return function(x)

        handles(name)(handler)


_register_unary()


@handles("Identity")
def identity(node: Node, x: Value) -> Value:
    return x  # a sequence too


@handles("Abs")
def absolute(node: Node, x: Value) -> Value:
    return x if dtype_of(x).kind == "u" else tf.abs(x)


@handles("Sign")
def sign(node: Node, x: Value) -> Value:
    return tf.cast(tf.not_equal(x, _like(x, 0)), dtype_of(x)) if dtype_of(x).kind == "u" else tf.sign(x)


@handles("Add", "Sub", "Mul", "And", "Or", "Xor", "Less", "Greater", "LessOrEqual", "GreaterOrEqual",
         "BitwiseAnd", "BitwiseOr", "BitwiseXor")  # fmt: skip
def binary(node: Node, a: Value, b: Value) -> Value:
    return _BINARY[node.op](a, b)


_BINARY: dict[str, Callable[..., Any]] = {
    "Add": tf.add, "Sub": tf.subtract, "Mul": tf.multiply, "And": tf.logical_and, "Or": tf.logical_or,
    "Xor": tf.logical_xor, "Less": tf.less, "Greater": tf.greater, "LessOrEqual": tf.less_equal,
    "GreaterOrEqual": tf.greater_equal, "BitwiseAnd": tf.bitwise.bitwise_and,
    "BitwiseOr": tf.bitwise.bitwise_or, "BitwiseXor": tf.bitwise.bitwise_xor,
}  # fmt: skip


@handles("Equal")
def equal(node: Node, a: Value, b: Value) -> Value:
    return tf.equal(a, b)


@handles("Div")
def divide(node: Node, a: Value, b: Value) -> Value:
    return tf.truncatediv(a, b) if dtype_of(a).kind in "iu" else tf.realdiv(a, b)


@handles("Mod")
def modulo(node: Node, a: Value, b: Value) -> Value:
    return tf.truncatemod(a, b) if node.get("fmod", 0) else tf.floormod(a, b)


@handles("Pow")
def power(node: Node, base: Value, exponent: Value) -> Value:
    """The power, of the base's dtype; of whole bases with another exponent in float64."""
    kind = dtype_of(base)
    if dtype_of(exponent) == kind and kind.kind != "i":
        return tf.pow(base, exponent)
    if kind.kind in "iu":
        wide = tf.pow(tf.cast(base, tf.float64), tf.cast(exponent, tf.float64))
        return tf.cast(wide, kind)
    return tf.pow(base, tf.cast(exponent, kind))


@handles("BitShift")
def shift(node: Node, a: Value, b: Value) -> Value:
    """The shifted bits; of shifts by all bits nothing is left but the sign, to the right."""
    bits = dtype_of(a).itemsize * 8
    if node.get("direction") == "RIGHT":
        inside = tf.minimum(b, _like(b, bits - 1))
        found = tf.bitwise.right_shift(a, inside)
        return found if dtype_of(a).kind == "i" else tf.where_v2(tf.equal(inside, b), found, _like(a, 0))
    inside = tf.less(b, _like(b, bits))
    return tf.where_v2(inside, tf.bitwise.left_shift(a, tf.where_v2(inside, b, _like(b, 0))), _like(a, 0))


@handles("Max", "Min", "Sum", "Mean")
def variadic(node: Node, *inputs: Value) -> Value:
    function = {"Max": tf.maximum, "Min": tf.minimum}.get(node.op, tf.add)
    found = functools.reduce(function, inputs)
    return tf.realdiv(found, _like(found, len(inputs))) if node.op == "Mean" else found


@handles("Where")
def where(node: Node, condition: Value, a: Value, b: Value) -> Value:
    return tf.where_v2(condition, a, b)


@handles("IsInf")
def is_infinite(node: Node, x: Value) -> Value:
    wide = tf.cast(x, tf.float32) if dtype_of(x).itemsize < 4 else x
    found = tf.is_inf(wide)
    if not node.get("detect_negative", 1):
        found = tf.logical_and(found, tf.greater(wide, _like(wide, 0)))
    if not node.get("detect_positive", 1):
        found = tf.logical_and(found, tf.less(wide, _like(wide, 0)))
    return found


# --- activations


@handles("Elu")
def elu(node: Node, x: Value) -> Value:
    return tf.where_v2(tf.greater(x, _like(x, 0)), x, _scaled(tf.expm1(x), node.get("alpha", 1.0)))


@handles("Selu")
def selu(node: Node, x: Value) -> Value:
    negative = _scaled(tf.expm1(x), node.get("alpha", SELU_ALPHA))
    return _scaled(tf.where_v2(tf.greater(x, _like(x, 0)), x, negative), node.get("gamma", SELU_GAMMA))


@handles("LeakyRelu")
def leaky_relu(node: Node, x: Value) -> Value:
    return tf.nn.leaky_relu(x, node.get("alpha", 0.01))


@handles("PRelu")
def prelu(node: Node, x: Value, slope: Value) -> Value:
    if rank_of(slope) == 1 and shape_of(slope)[0] not in (1, shape_of(x)[-1]):
        slope = as_rank(slope, rank_of(x) - 1)  # as old exporters have it: a slope for each channel
    return tf.where_v2(tf.less(x, _like(x, 0)), tf.multiply(x, slope), x)


@handles("HardSigmoid")
def hard_sigmoid(node: Node, x: Value) -> Value:
    scaled = tf.add(_scaled(x, node.get("alpha", 0.2)), _like(x, node.get("beta", 0.5)))
    return tf.minimum(tf.maximum(scaled, _like(x, 0)), _like(x, 1))


@handles("HardSwish")
def hard_swish(node: Node, x: Value) -> Value:
    return tf.multiply(x, _scaled(tf.nn.relu6(tf.add(x, _like(x, 3))), 1 / 6))


@handles("ThresholdedRelu")
def thresholded_relu(node: Node, x: Value) -> Value:
    return tf.where_v2(tf.greater(x, _like(x, node.get("alpha", 1.0))), x, _like(x, 0))


@handles("Shrink")
def shrink(node: Node, x: Value) -> Value:
    limit, bias = node.get("lambd", 0.5), _like(x, node.get("bias", 0.0))
    below = tf.where_v2(tf.less(x, _like(x, -limit)), tf.add(x, bias), _like(x, 0))
    return tf.where_v2(tf.greater(x, _like(x, limit)), tf.subtract(x, bias), below)


@handles("Gelu")
def gelu(node: Node, x: Value) -> Value:
    return tf.nn.gelu(x, approximate=node.get("approximate", "none") == "tanh")


@handles("Clip")
def clip_by_attributes(node: Node, x: Value) -> Value:
    return clip(
        node, x, *(np.asarray(node.get(n), dtype_of(x)) if n in node.attrs else None for n in ("min", "max"))
    )


@handles("Clip", since=11)
def clip(node: Node, x: Value, low: Value = None, high: Value = None) -> Value:
    x = x if low is None else tf.maximum(x, low)
    return x if high is None else tf.minimum(x, high)


# --- conversion


@handles("Cast")
def cast(node: Node, x: Value) -> Value:
    return converted(node, x, dtype_of_element(node.get("to")))


def is_narrow(kind: np.dtype[Any]) -> bool:
    """Whether a dtype only stores numbers."""
    return kind.kind != "O" and as_dtype(kind) in NARROW


@handles("CastLike")
def cast_like(node: Node, x: Value, like: Value) -> Value:
    return converted(node, x, dtype_of(like))


def converted(node: Node, x: Value, wanted: np.dtype[Any]) -> Value:
    """``x`` as ``wanted``, an object being a string."""
    given = dtype_of(x)
    if given == wanted:
        return x
    if given.kind == "O":
        number = tf.string_to_number(x, tf.float64 if wanted.kind not in "iu" else tf.int64)
        return tf.cast(number, wanted)
    if wanted.kind == "O":
        return tf.as_string(x, shortest=given.kind not in "iub")
    if is_narrow(given) or is_narrow(wanted):
        how = {"saturate": bool(node.get("saturate", 1)), "round_mode": node.get("round_mode", "up")}
        return cast_narrow(x, DstT=as_dtype(wanted), **how)
    return tf.cast(x, wanted)


@handles("BitCast")
def bit_cast(node: Node, x: Value) -> Value:
    wanted = dtype_of_element(node.get("to"))
    return node.known(x, "an input").view(wanted)


# --- helpers


def _like(x: Value, number: float) -> Any:
    """A scalar of the dtype of ``x``."""
    return np.asarray(number).astype(dtype_of(x))


def _scaled(x: Value, factor: float) -> Value:
    return x if factor == 1 else tf.multiply(x, _like(x, factor))


def as_rank(x: Value, rank: int) -> Value:
    """``x`` with ones behind its shape, up to ``rank``."""
    return tf.reshape(x, [*shape_of(x), *[1] * (rank - rank_of(x))])
