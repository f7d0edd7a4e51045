"""Bias, the small layers made with it, and dropout."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from flowrt import dtypes
from flowrt.errors import DTypeError, InvalidArgumentError
from flowrt.graph.construction.batching_rules import BatchBuilder, Value, batched, merged, rank_of
from flowrt.graph.construction.build import convert_to_tensor
from flowrt.graph.construction.graph import Tensor, get_default_graph
from flowrt.graph.construction.operation import Operation
from flowrt.graph.op_def import LINEAR, OpDef, ShapeContext, define_op, sample
from flowrt.graph.op_facets import Loop, Traits
from flowrt.graph.ops.array.reductions import reduce_sum
from flowrt.graph.ops.base.filling import zeros_like_op
from flowrt.graph.ops.base.identities import cast
from flowrt.graph.ops.base.kernel_output import accumulator, delivered
from flowrt.graph.ops.base.shape_manipulation import shape
from flowrt.graph.ops.elementwise.arithmetic import add_v2, multiply, subtract
from flowrt.graph.ops.elementwise.comparison import greater_equal, where_v2
from flowrt.graph.ops.elementwise.division import realdiv
from flowrt.graph.ops.elementwise.math import number
from flowrt.graph.ops.linalg.matmul import matmul
from flowrt.graph.ops.nn.activations import relu
from flowrt.graph.ops.random.random_ops import random_uniform
from flowrt.graph.shapes import Shape, format_shape
from flowrt.graph.source import misuse
from flowrt.graph.typing import NumericLike, ShapeTensorLike
from flowrt.loops.loop_program import LoopBuilder, LoopValue


def _channel_axis(value: Sequence[Any], data_format: str) -> int:
    """The channel axis. Raises `InvalidArgumentError` below rank 2."""
    if len(value) < 2:
        raise InvalidArgumentError(
            f"expected a value of rank 2 or more; got shape {format_shape(tuple(value))}"
        )
    return 1 if data_format == "NCHW" else len(value) - 1


def _bias_add_shape(s: ShapeContext) -> Sequence[Shape]:
    value, bias = s.shapes
    if bias is not None and len(bias) != 1:
        raise InvalidArgumentError(f"bias: expected a vector; got shape {format_shape(bias)}")
    if value is None:
        return [None]
    axis = _channel_axis(value, s.attrs["data_format"])
    channels, length = value[axis], bias[0] if bias else None
    if None not in (channels, length) and channels != length:
        raise InvalidArgumentError(
            f"bias: expected one element for each of the {channels} channels; got {length}"
        )
    channels = length if channels is None else channels
    return [(*value[:axis], channels, *value[axis + 1 :])]


def _bias_add(xp: Any, value: Any, bias: Any, data_format: str, out: Any = None) -> Any:
    trailing = value.ndim - 1 - _channel_axis(value.shape, data_format)
    if value.shape[value.ndim - 1 - trailing] != bias.size:
        raise InvalidArgumentError(
            f"expected a bias for each channel of {list(value.shape)}; got {bias.size}"
        )
    return xp.add(value, bias.reshape((-1,) + (1,) * trailing) if trailing else bias, out=out)


def _bias_add_loop(
    b: LoopBuilder, value: LoopValue, bias: LoopValue, *, data_format: str
) -> LoopValue | None:
    """Loop with the channels last, where the bias broadcasts directly."""
    return value + bias if data_format == "NHWC" else None


def _bias_add_grad_shape(s: ShapeContext) -> Sequence[Shape]:
    value = s.shapes[0]
    return [(None if value is None else value[_channel_axis(value, s.attrs["data_format"])],)]


LONG_ROW, MIN_FOLDED = 2048, 32768
"""Elements: NumPy adds rows up at 6 GB/s where they have 32, and at 24 where they have 2048, which pays for
another call from some size on.
"""


def _bias_add_grad(xp: Any, out_backprop: Any, data_format: str, out: Any = None) -> Any:
    channels, dtype = _channel_axis(out_backprop.shape, data_format), accumulator(out_backprop)
    axes = tuple(d for d in range(out_backprop.ndim) if d != channels)
    together = _rows_together(out_backprop) if channels == out_backprop.ndim - 1 else 1
    if together == 1:
        total = xp.sum(out_backprop, axis=axes, dtype=dtype)
    else:
        width = out_backprop.shape[-1]
        long = xp.sum(out_backprop.reshape(-1, together * width), axis=0, dtype=dtype)
        total = xp.sum(long.reshape(together, width), axis=0, dtype=dtype)
    return delivered(xp, total, out_backprop.dtype, out)


def _rows_together(value: Any) -> int:
    """Number of rows summed as one: a power of two that divides the number of rows."""
    if value.size < MIN_FOLDED or not value.flags.c_contiguous:
        return 1
    width = value.shape[-1]
    return math.gcd(value.size // width, 1 << max(0, (LONG_ROW // width).bit_length() - 1))


_LAYOUT = "data_format: string = 'NHWC'"


def _batch_bias_add(b: BatchBuilder, op: Operation, values: Sequence[Value]) -> Sequence[Value] | None:
    value, bias = values
    count = rank_of(op.inputs[0])
    if op.get_attr("data_format") == "NCHW":
        return merged(0)(b, op, values)
    if not bias.is_batched:
        return b.apply(op, [value.tensor, bias.tensor])
    return None if count is None else batched(add_v2(value.tensor, b.with_inner_axes(bias.tensor, count - 1)))


bias_add_op: OpDef[Tensor] = define_op(
    "BiasAdd",
    "value: T in NUMERIC, bias: T -> T",
    attrs=_LAYOUT,
    shape=_bias_add_shape,
    kernel=_bias_add,
    vjp=lambda op, dy: [dy, bias_add_grad(dy, data_format=op.get_attr("data_format"))],
    jvp=LINEAR,
    samples=lambda rng: (
        sample(rng.standard_normal((3, 2)), rng.standard_normal(2)),
        sample(rng.standard_normal((2, 3, 2, 2)), rng.standard_normal(3), data_format="NCHW"),
        sample(rng.standard_normal((1, 2, 2)).astype(np.float16), np.ones(2, np.float16)),
        sample(np.ones((2, 2), dtypes.bfloat16.np), np.ones(2, dtypes.bfloat16.np)),
        sample(np.ones((2, 3), np.int32), np.array([1, 2, 3], np.int32)),
        sample(np.ones((0, 3), np.complex64), np.ones(3, np.complex64)),
    ),
    traits=Traits(elementwise=True),
    loop=Loop(_bias_add_loop),
    batch=_batch_bias_add,
    axes=lambda s: "n c ..a, c -> n c ..a" if s.attrs["data_format"] == "NCHW" else "..a c, c -> ..a c",
    doc="The value with ``bias[c]`` added to channel c: the last axis, or in NCHW the one after the batch.",
)


def _batch_bias_add_grad(b: BatchBuilder, op: Operation, values: Sequence[Value]) -> list[Value] | None:
    count = rank_of(op.inputs[0])
    if count is None:
        return None
    channels = 2 if op.get_attr("data_format") == "NCHW" else count
    return batched(reduce_sum(values[0].tensor, [i for i in range(1, count + 1) if i != channels]))


bias_add_grad: OpDef[Tensor] = define_op(
    "BiasAddGrad",
    "out_backprop: T in NUMERIC -> T",
    attrs=_LAYOUT,
    shape=_bias_add_grad_shape,
    kernel=_bias_add_grad,
    vjp=lambda op, db: [bias_add_op(zeros_like_op(op.inputs[0]), db, data_format=op.get_attr("data_format"))],
    jvp=LINEAR,
    samples=lambda rng: (
        sample(rng.standard_normal((3, 2))),
        sample(rng.standard_normal((2, 3, 2, 2)), data_format="NCHW"),
        sample(rng.standard_normal((2, 2, 2)).astype(np.float16)),
        sample(np.ones((3, 2), dtypes.bfloat16.np)),
        sample(np.ones((0, 3), np.float32)),
        sample(np.ones((2, 3), np.int32)),
    ),
    batch=_batch_bias_add_grad,
    axes=lambda s: "n c ..a -> c" if s.attrs["data_format"] == "NCHW" else "..a c -> c",
    doc="The sum over everything but the channels: the gradient of BiasAdd with respect to the bias.",
)


def bias_add(
    value: NumericLike, bias: NumericLike, data_format: str | None = None, name: str | None = None
) -> Tensor:
    """``value`` with a bias added along its channels.

    Args:
        value: A tensor of rank 2 or more.
        bias: A vector, with one number per channel.
        data_format: "NHWC" and the like for channels along the last axis, the default; "NC..." for axis 1.

    Returns:
        A tensor of the shape of ``value``.

    Raises:
        InvalidArgumentError: The value's rank is below 2, the bias has another length, or the data format is
            unknown.

    Example:
        >>> tf.nn.bias_add([[1.0, 2.0]], [10.0, 20.0]).eval()
        array([[11., 22.]], dtype=float32)
    """
    layout = data_format or "NHWC"
    if not (layout.startswith("N") and (layout.startswith("NC") or layout.endswith("C"))):
        raise misuse(f"bias_add: expected a data format N...C or NC...; got {data_format!r}")
    return bias_add_op(value, bias, data_format="NCHW" if layout.startswith("NC") else "NHWC", name=name)


def xw_plus_b(x: NumericLike, weights: NumericLike, biases: NumericLike, name: str | None = None) -> Tensor:
    """``matmul(x, weights) + biases``."""
    with get_default_graph().name_scope(name or "xw_plus_b") as scope:
        return bias_add(matmul(x, weights), biases, name=scope)


def relu_layer(x: NumericLike, weights: NumericLike, biases: NumericLike, name: str | None = None) -> Tensor:
    """``relu(matmul(x, weights) + biases)``."""
    with get_default_graph().name_scope(name or "relu_layer") as scope:
        return relu(bias_add(matmul(x, weights), biases), name=scope)


# --- dropout


def dropout(
    x: NumericLike,
    keep_prob: NumericLike | None = None,
    noise_shape: ShapeTensorLike = None,
    seed: int | None = None,
    name: str | None = None,
    rate: NumericLike | None = None,
) -> Tensor:
    """``x`` with some elements zeroed, at random in every step, and the others scaled up to keep the mean.

    Args:
        x: A tensor of floats.
        keep_prob: The probability that an element is kept: ``1 - rate``.
        noise_shape: A shape that broadcasts to that of ``x``: elements along dimensions of 1 are kept or
            dropped together. None for the shape of ``x``.
        seed: The operation's seed.
        rate: The probability that an element is zeroed; the others are divided by ``1 - rate``.

    Returns:
        A tensor of the shape and dtype of ``x``.

    Raises:
        DTypeError: ``x`` is not of floats.
        InvalidArgumentError: The rate is outside [0, 1), or missing.

    Example:
        >>> kept = tf.nn.dropout(tf.ones([1000]), rate=0.5, seed=1).eval()
        >>> sorted(set(kept.tolist()))
        [0.0, 2.0]
    """
    rate = _drop_rate(keep_prob, rate)
    with get_default_graph().name_scope(name or "dropout") as scope:
        tensor: Tensor = convert_to_tensor(x)
        if not tensor.dtype.is_floating:
            raise misuse(f"dropout: expected a floating dtype; got {tensor!r}", DTypeError)
        if isinstance(rate, float):
            if rate == 0:
                return tensor
            scaled = multiply(tensor, number(1 / (1 - rate), tensor))
            rate = number(rate, tensor)
        else:
            rate = cast(rate, tensor.dtype)
            scaled = realdiv(tensor, subtract(number(1, tensor), rate))
        draws = random_uniform(_noise_shape(tensor, noise_shape), dtype=tensor.dtype, seed=seed)
        kept: Tensor = where_v2(greater_equal(draws, rate), scaled, number(0, tensor), name=scope)
        kept.set_shape(tensor.shape)
        return kept


def _drop_rate(keep_prob: Any, rate: Any) -> Any:
    """The rate as a float, or the tensor that is or makes it."""
    if (keep_prob is None) == (rate is None):
        raise misuse(f"dropout: expected either keep_prob or rate; got {keep_prob!r} and {rate!r}")
    given = keep_prob if rate is None else rate
    if not isinstance(given, (int, float, np.number)):
        given = convert_to_tensor(given)
        return subtract(number(1, given), given) if rate is None else given
    value = 1 - float(given) if rate is None else float(given)
    if not 0 <= value < 1:
        expected = "keep_prob in (0, 1]" if rate is None else "rate in [0, 1)"
        raise misuse(f"dropout: expected {expected}; got {given}")
    return value


def _noise_shape(x: Tensor, noise_shape: Any) -> Any:
    """``noise_shape`` with x's dimensions in place of None."""
    if noise_shape is None:
        return shape(x)
    if isinstance(noise_shape, Tensor):
        return noise_shape
    given, own = list(noise_shape), x.spec.shape
    if own is None or len(own) != len(given):
        return given
    return [o if g is None else g for g, o in zip(given, own, strict=True)]
