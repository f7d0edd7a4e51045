"""Layer normalization and local response normalization as ops with their gradients.

The rules are those of `flowrt.graph.ops.nn.batch_norm`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from flowrt import dtypes
from flowrt.errors import InvalidArgumentError
from flowrt.graph.construction.batching_rules import leading_of_first, merged
from flowrt.graph.construction.graph import Operation, Tensor
from flowrt.graph.op_def import OpDef, Sample, ShapeContext, define_op, sample
from flowrt.graph.ops.array.padding import pad
from flowrt.graph.ops.array.reductions import reduce_mean, reduce_sum
from flowrt.graph.ops.array.slicing import strided_slice
from flowrt.graph.ops.base.identities import cast
from flowrt.graph.ops.base.kernel_output import accumulator, delivered
from flowrt.graph.ops.elementwise.arithmetic import add, add_n, multiply, power, subtract
from flowrt.graph.ops.elementwise.division import realdiv
from flowrt.graph.ops.elementwise.math import number, rsqrt, square
from flowrt.graph.ops.nn.batch_norm import deliver, second_order
from flowrt.graph.shapes import Shape, merge
from flowrt.graph.typing import NumericLike

# --- layer normalization


def _layer_norm_shape(s: ShapeContext) -> Sequence[Shape]:
    x = s.shapes[0]
    if x == ():
        raise InvalidArgumentError("x: expected rank 1 or more; got a scalar")
    vector = merge(None if x is None else (x[-1],), merge(s.shapes[1], s.shapes[2]))
    return [x if x is None or vector is None else (*x[:-1], vector[0])]


def _normalized(xp: Any, x: Any, epsilon: float) -> tuple[Any, Any]:
    """(x less its mean over its deviation, 1 over its deviation), along the last axis, in the dtype to work
    in.
    """
    wide = x.astype(accumulator(x), copy=False)
    centered = wide - wide.mean(axis=-1, keepdims=True)
    variance = xp.square(centered).mean(axis=-1, keepdims=True)
    inverse = 1 / xp.sqrt(variance + wide.dtype.type(epsilon))
    centered *= inverse
    return centered, inverse


def _layer_norm(xp: Any, x: Any, scale: Any, offset: Any, epsilon: float, out: Any = None) -> Any:
    y, _ = _normalized(xp, x, epsilon)
    y *= scale.astype(y.dtype, copy=False)
    y += offset.astype(y.dtype, copy=False)
    if out is None:
        return y.astype(x.dtype, copy=False)
    out[...] = y
    return out


def _layer_norm_grad(xp: Any, y_backprop: Any, x: Any, scale: Any, epsilon: float, out: Any = None) -> Any:
    normal, inverse = _normalized(xp, x, epsilon)
    dy = y_backprop.astype(normal.dtype, copy=False)
    leading = tuple(range(x.ndim - 1))
    scale_gradient, offset_gradient = (dy * normal).sum(axis=leading), dy.sum(axis=leading)
    g = dy * scale.astype(normal.dtype, copy=False)
    along = (g * normal).mean(axis=-1, keepdims=True)
    dx = (g - g.mean(axis=-1, keepdims=True) - normal * along) * inverse
    results = [r.astype(x.dtype, copy=False) for r in (dx, scale_gradient, offset_gradient)]
    return deliver(out, x.dtype, tuple(results))


def _normal(op: Operation, x: Tensor) -> tuple[Tensor, Tensor]:
    """`_normalized` in graph ops."""
    centered = subtract(x, reduce_mean(x, -1, keepdims=True))
    variance = reduce_mean(square(centered), -1, keepdims=True)
    inverse = rsqrt(add(variance, number(op.get_attr("epsilon"), variance)))
    return multiply(centered, inverse), inverse


def _sharded_layer_norm(op: Operation) -> Sequence[Tensor]:
    """The op with a last axis that is cut."""
    x, scale, offset = map(_wide, op.inputs)
    return _narrow(op, [add(multiply(_normal(op, x)[0], scale), offset)])


def _wide(x: Tensor) -> Tensor:
    return cast(x, dtypes.float32) if x.dtype.size == 2 else x


def _narrow(op: Operation, results: Sequence[Tensor]) -> Sequence[Tensor]:
    return [cast(result, y.dtype) for result, y in zip(results, op.outputs, strict=True)]


def _layer_norm_formula(op: Operation) -> Callable[..., Sequence[Tensor]]:
    """The gradient op's computation in graph ops."""

    def formula(dy: Tensor, x: Tensor, scale: Tensor) -> list[Tensor]:
        normal, inverse = _normal(op, x)
        g = multiply(dy, scale)
        along = reduce_mean(multiply(g, normal), -1, keepdims=True)
        inner = subtract(subtract(g, reduce_mean(g, -1, keepdims=True)), multiply(normal, along))
        axes = list(range((x.shape.rank or 2) - 1))
        return [multiply(inner, inverse), reduce_sum(multiply(dy, normal), axes), reduce_sum(dy, axes)]

    return formula


def _layer_norm_samples(rng: np.random.Generator) -> Iterable[Sample]:
    for shape, dtype in [
        ((3, 4), np.float64),
        ((2, 2, 3), np.float64),
        ((0, 3), np.float64),
        ((2, 3), np.float32),
    ]:
        yield sample(*(rng.standard_normal(s).astype(dtype) for s in (shape, shape[-1], shape[-1])))
    for low in (np.float16, dtypes.bfloat16.np):
        yield sample(*(rng.standard_normal(s).astype(low) for s in ((2, 4), 4, 4)))


layer_norm_op: OpDef[Tensor] = define_op(
    "LayerNorm",
    "x: T in FLOATING, scale: T, offset: T -> T",
    attrs="epsilon: float = 1e-5",
    shape=_layer_norm_shape,
    kernel=_layer_norm,
    vjp=lambda op, dy: layer_norm_grad_op(dy, *op.inputs[:2], epsilon=op.get_attr("epsilon")),
    samples=_layer_norm_samples,
    batch=leading_of_first,
    axes="..a c!, c!, c! -> ..a c!",
    sharded=_sharded_layer_norm,
    doc="x less its mean along the last axis, over its deviation, times scale, plus offset.",
)

layer_norm_grad_op: OpDef[list[Tensor]] = define_op(
    "LayerNormGrad",
    "y_backprop: T in FLOATING, x: T, scale: T -> x_backprop: T, scale_backprop: T, offset_backprop: T",
    attrs="epsilon: float = 1e-5",
    shape=lambda s: [merge(s.shapes[0], s.shapes[1]), s.shapes[2], s.shapes[2]],
    kernel=_layer_norm_grad,
    vjp=lambda op, *ddys: second_order(op, _layer_norm_formula(op), ddys),
    samples=lambda rng: [
        sample(rng.standard_normal(s.inputs[0].shape).astype(s.inputs[0].dtype), *s.inputs[:2])
        for s in _layer_norm_samples(rng)
    ],
    axes="..a c!, ..a c!, c! -> ..a c!, c!, c!",
    sharded=lambda op: _narrow(op, _layer_norm_formula(op)(*map(_wide, op.inputs))),
    doc="The gradients of LayerNorm's x, scale and offset.",
)


def layer_norm(
    x: NumericLike, scale: NumericLike, offset: NumericLike, epsilon: float = 1e-5, name: str | None = None
) -> Tensor:
    """``x`` less its mean along the last axis, over its deviation, times the vector ``scale``, plus the
    vector ``offset``.

    Ba, Kiros and Hinton, "Layer normalization" (2016). Raises `InvalidArgumentError` for shapes that do not
    fit.
    """
    return layer_norm_op(x, scale, offset, epsilon=epsilon, name=name)


# --- local response normalization


def _window_sums(xp: Any, x: Any, radius: int) -> Any:
    """Sum for each channel over it and ``radius`` channels to either side."""
    channels = x.shape[-1]
    total = x.copy()
    for distance in range(1, min(radius + 1, channels)):
        total[..., distance:] += x[..., :-distance]
        total[..., :-distance] += x[..., distance:]
    return total


def _lrn(
    xp: Any, input: Any, depth_radius: int, bias: float, alpha: float, beta: float, out: Any = None
) -> Any:
    wide = input.astype(accumulator(input), copy=False)
    number = wide.dtype.type
    norm = _window_sums(xp, xp.square(wide), depth_radius) * number(alpha) + number(bias)
    return delivered(xp, wide * norm ** number(-beta), input.dtype, out)


def _lrn_grad(
    xp: Any, input_grads: Any, input_image: Any, output_image: Any, depth_radius: int, bias: float,
    alpha: float, beta: float, out: Any = None,
) -> Any:  # fmt: skip
    dy, x, y = (v.astype(accumulator(v), copy=False) for v in (input_grads, input_image, output_image))
    number = x.dtype.type
    norm = _window_sums(xp, xp.square(x), depth_radius) * number(alpha) + number(bias)
    shared = _window_sums(xp, dy * y / norm, depth_radius)
    dx = dy * norm ** number(-beta) - number(2 * alpha * beta) * x * shared
    return delivered(xp, dx, input_image.dtype, out)


def _lrn_formula(op: Operation) -> Callable[..., Sequence[Tensor]]:
    """The gradient op's computation in graph ops."""
    radius, bias, alpha, beta = (op.get_attr(key) for key in ("depth_radius", "bias", "alpha", "beta"))

    def window_sums(x: Tensor) -> Tensor:
        padded = pad(x, [[0, 0], [0, 0], [0, 0], [radius, radius]])
        ends = [i - 2 * radius for i in range(2 * radius + 1)]
        return add_n([
            strided_slice(padded, [0, 0, 0, i], [0, 0, 0, end], begin_mask=7, end_mask=7 if end else 15)
            for i, end in enumerate(ends)
        ])  # fmt: skip

    def formula(dy: Tensor, x: Tensor, y: Tensor) -> list[Tensor]:
        norm = add(multiply(window_sums(square(x)), number(alpha, x)), number(bias, x))
        shared = multiply(
            multiply(number(2 * alpha * beta, x), x), window_sums(realdiv(multiply(dy, y), norm))
        )
        return [subtract(multiply(dy, power(norm, number(-beta, x))), shared)]

    return formula


_LRN = "depth_radius: int = 5, bias: float = 1.0, alpha: float = 1.0, beta: float = 0.5"


def _images(count: int) -> Callable[[np.random.Generator], Iterable[Sample]]:
    def samples(rng: np.random.Generator) -> Iterable[Sample]:
        for dtype in (np.float64, np.float32, np.float16, dtypes.bfloat16.np):
            images = [rng.standard_normal((1, 2, 2, 4)).astype(dtype) for _ in range(count)]
            yield sample(*images, depth_radius=1, bias=2.0, alpha=0.5, beta=0.75)
        yield sample(*(rng.standard_normal((2, 1, 1, 3)) for _ in range(count)))
        yield sample(*(np.zeros((0, 1, 1, 3)) for _ in range(count)))

    return samples


lrn_op: OpDef[Tensor] = define_op(
    "LRN",
    "input: T in FLOATING -> T",
    attrs=_LRN,
    shape=lambda s: [merge(s.shapes[0], (None,) * 4)],
    kernel=_lrn,
    vjp=lambda op, dy: [
        lrn_grad_op(dy, op.inputs[0], op.outputs[0], **{k: op.get_attr(k) for k in op.op_def.attrs})
    ],
    samples=_images(1),
    batch=merged(0),
    axes="n h w c! -> n h w c!",
    doc="x / (bias + alpha * s) ** beta, s the sum of the squares of the channels within depth_radius.",
)

lrn_grad_op: OpDef[Tensor] = define_op(
    "LRNGrad",
    "input_grads: T in FLOATING, input_image: T, output_image: T -> T",
    attrs=_LRN,
    shape=lambda s: [merge(merge(s.shapes[0], s.shapes[1]), s.shapes[2])],
    kernel=_lrn_grad,
    vjp=lambda op, ddx: second_order(op, _lrn_formula(op), [ddx]),
    samples=_images(3),
    batch=merged(0, 1, 2),
    axes="n h w c!, n h w c!, n h w c! -> n h w c!",
    doc="The gradient of LRN with respect to its input.",
)


def local_response_normalization(
    input: NumericLike,
    depth_radius: int = 5,
    bias: float = 1,
    alpha: float = 1,
    beta: float = 0.5,
    name: str | None = None,
) -> Tensor:
    """Images divided by ``(bias + alpha * s) ** beta``, s the sum of squares of the channels within
    ``depth_radius``.

    Krizhevsky, Sutskever and Hinton (2012). Raises `InvalidArgumentError` unless ``input`` is ``[n, h, w,
    c]``.
    """
    return lrn_op(input, depth_radius=depth_radius, bias=bias, alpha=alpha, beta=beta, name=name)


lrn = local_response_normalization
