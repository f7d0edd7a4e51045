"""Batch normalization as one op, and its gradient.

Rules of this file: 16-bit inputs are computed in float32; a gradient op is an exact function of *its* inputs,
so its statistics inputs are independent variables, and gradients of the forward op's statistics outputs are
added in its vjp. The second order of such a gradient op is the first order of its formula in graph ops.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from flowrt import dtypes
from flowrt.errors import InvalidArgumentError
from flowrt.graph.construction.build import convert_to_tensor
from flowrt.graph.construction.constant import constant
from flowrt.graph.construction.graph import Operation, Tensor
from flowrt.graph.derivatives.gradients import gradients
from flowrt.graph.node import static_shape
from flowrt.graph.op_def import OpDef, Sample, ShapeContext, define_op, sample
from flowrt.graph.ops.array.reductions import reduce_mean, reduce_sum
from flowrt.graph.ops.base.axes import images, input_rank
from flowrt.graph.ops.base.filling import ones_like
from flowrt.graph.ops.base.identities import cast, identity
from flowrt.graph.ops.base.shape_manipulation import reshape, size
from flowrt.graph.ops.elementwise.arithmetic import add, add_n, multiply, subtract
from flowrt.graph.ops.elementwise.division import realdiv
from flowrt.graph.ops.elementwise.math import number, rsqrt, square
from flowrt.graph.shapes import Shape, merge
from flowrt.graph.typing import DataFormat, NumericLike


def second_order(
    op: Operation, formula: Callable[..., Sequence[Tensor]], ddys: Sequence[Tensor | None]
) -> list[Any]:
    """The gradients of op's inputs from those of its outputs; ``formula`` computes the same as op.

    The formula is applied to copies: its inputs may depend on each other, which must not affect the result.
    """
    inputs = [identity(x) for x in op.inputs]
    pairs = [(y, d) for y, d in zip(formula(*inputs), ddys, strict=False) if d is not None]
    return gradients([y for y, _ in pairs], inputs, [d for _, d in pairs])


def _layout(x: Any, data_format: str) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The axes of x besides the channels, and the shape in which a vector of channels broadcasts to x."""
    if data_format.startswith("NC"):
        return (0, *range(2, x.ndim)), (-1,) + (1,) * (x.ndim - 2)
    return tuple(range(x.ndim - 1)), (-1,)


def _batch_norm_shape(s: ShapeContext) -> Sequence[Shape]:
    x = s.shapes[0]
    if x is not None and len(x) < 2:
        raise InvalidArgumentError(f"x: expected rank 4 or 5; got shape {list(x)}")
    axis = 1 if s.attrs["data_format"].startswith("NC") else -1
    vector: Shape = (None if x is None else x[axis],)
    for parameter in s.shapes[1:3]:
        vector = merge(vector, parameter)
    if not s.attrs["is_training"]:
        for statistic in s.shapes[3:5]:
            vector = merge(vector, statistic)
    return [x, vector, vector, vector, vector, ()]


def _batch_norm(
    xp: Any, x: Any, scale: Any, offset: Any, mean: Any, variance: Any, epsilon: float,
    exponential_avg_factor: float,
    data_format: str, is_training: bool, out: Any = None,
) -> Any:  # fmt: skip
    axes, shape = _layout(x, data_format)
    wide = x.astype(scale.dtype, copy=False)
    old = mean, variance
    if is_training:
        mean = _mean(wide, axes)
        centered = wide - mean.reshape(shape)
        variance = _mean(xp.square(centered), axes)
    else:
        centered = wide - mean.reshape(shape)
    slope = scale / xp.sqrt(variance + scale.dtype.type(epsilon))
    centered *= slope.reshape(shape)
    centered += offset.reshape(shape)
    attrs = {"is_training": is_training, "exponential_avg_factor": exponential_avg_factor}
    given = statistics_given(mean, variance, old, x.size // max(1, mean.size), attrs)
    return deliver(out, x.dtype, (centered, *given, mean, variance, xp.zeros((), scale.dtype)))


def statistics_given(
    mean: Any, variance: Any, old: Sequence[Any], count: int, attrs: Mapping[str, Any]
) -> tuple[Any, Any]:
    """The op's outputs ``batch_mean`` and ``batch_variance``: of the statistics of ``count`` elements a
    channel, mixed into the ``old`` ones.
    """
    if not attrs["is_training"]:
        return mean, variance
    factor = mean.dtype.type(attrs["exponential_avg_factor"])
    unbiased = variance * mean.dtype.type(count / max(1, count - 1))
    if factor == 1:
        return mean, unbiased
    return (1 - factor) * old[0] + factor * mean, (1 - factor) * old[1] + factor * unbiased


def _mean(x: Any, axes: tuple[int, ...]) -> Any:
    """The mean along ``axes``; of no elements NaN, without NumPy's warning."""
    return x.mean(axis=axes) if x.size else x.sum(axis=axes) + x.dtype.type("nan")


def deliver(out: Any, dtype: Any, results: tuple[Any, ...]) -> tuple[Any, ...]:
    """``results``, the first in ``dtype``; in the arrays of ``out`` if there are some."""
    if out is None:  # results must be distinct arrays: some are inputs, or the same
        return (results[0].astype(dtype, copy=False), *[r.copy() for r in results[1:]])
    for target, result in zip(out, results, strict=True):
        target[...] = result
    return tuple(out)


def _batch_norm_grad(
    xp: Any, y_backprop: Any, x: Any, scale: Any, mean: Any, variance: Any, unused: Any, epsilon: float,
    data_format: str, is_training: bool, out: Any = None,
) -> Any:  # fmt: skip
    axes, shape = _layout(x, data_format)
    dtype = scale.dtype
    dy = y_backprop.astype(dtype, copy=False)
    inverse = 1 / xp.sqrt(variance + dtype.type(epsilon))
    centered = x.astype(dtype, copy=False) - mean.reshape(shape)
    offset_gradient = dy.sum(axis=axes)
    scale_gradient = (dy * centered).sum(axis=axes)
    if x.size:  # the statistics of no elements are NaN, but the sum over none is 0
        scale_gradient *= inverse
    if is_training:
        count = dtype.type(max(1, x.size // max(1, mean.size)))
        centered *= (scale_gradient * inverse / count).reshape(shape)
        centered += (offset_gradient / count).reshape(shape)
        dx = xp.subtract(dy, centered, out=centered)
        dx *= (scale * inverse).reshape(shape)
    else:
        dx = dy * (scale * inverse).reshape(shape)
    nothing = xp.zeros(0, dtype)
    return deliver(out, x.dtype, (dx, scale_gradient, offset_gradient, nothing, nothing))


def _channels(vector: Tensor, like: Tensor, data_format: str) -> Tensor:
    """A vector of channels in the shape that broadcasts to ``like``."""
    if not data_format.startswith("NC"):
        return vector
    return reshape(vector, [-1] + [1] * ((like.shape.rank or 4) - 2))


def _batch_norm_formula(op: Operation) -> Callable[..., Sequence[Tensor]]:
    """The gradient op's computation in graph ops."""
    layout, training = op.get_attr("data_format"), op.get_attr("is_training")
    rank = op.inputs[1].shape.rank or 4
    axes = [0, *range(2, rank)] if layout.startswith("NC") else list(range(rank - 1))

    def formula(
        dy: Tensor, x: Tensor, scale: Tensor, mean: Tensor, variance: Tensor, _: Tensor
    ) -> list[Tensor]:
        g, wide = cast(dy, scale.dtype), cast(x, scale.dtype)
        inverse = rsqrt(add(variance, number(op.get_attr("epsilon"), variance)))
        centered = subtract(wide, _channels(mean, x, layout))
        offset_gradient = reduce_sum(g, axes)
        scale_gradient = multiply(reduce_sum(multiply(g, centered), axes), inverse)
        dx = g
        if training:
            share = multiply(centered, _channels(multiply(scale_gradient, inverse), x, layout))
            spread = add(share, _channels(offset_gradient, x, layout))
            dx = subtract(g, realdiv(spread, _count(wide, mean)))
        dx = multiply(dx, _channels(multiply(scale, inverse), x, layout))
        return [cast(dx, x.dtype), scale_gradient, offset_gradient]

    return formula


def _count(x: Tensor, vector: Tensor) -> Tensor:
    """Elements of ``x`` a channel, as a number of its dtype."""
    return realdiv(cast(size(x), x.dtype), cast(size(vector), x.dtype))


def _batch_norm_vjp(
    op: Operation, dy: Any, dmean: Any, dvariance: Any, dr1: Any, dr2: Any, _: Any
) -> list[Any]:
    x, scale, *_rest = op.inputs
    training, layout = op.get_attr("is_training"), op.get_attr("data_format")
    statistics = op.outputs[3:6] if training else (*op.inputs[3:5], op.outputs[5])
    attrs = {key: op.get_attr(key) for key in ("epsilon", "data_format", "is_training")}
    found: list[Any] = [None] * 3
    if dy is not None:
        found = list(batch_norm_grad_op(dy, x, scale, *statistics, **attrs)[:3])
    given = (dmean, dvariance, dr1, dr2)
    if training and any(d is not None for d in given):
        extra = cast(_through_statistics(op, *given, layout), x.dtype)
        found[0] = extra if found[0] is None else add(found[0], extra)
    return [*found, None, None]


def _through_statistics(op: Operation, dmean: Any, dvariance: Any, dr1: Any, dr2: Any, layout: str) -> Tensor:
    """The gradient of x through the op's statistics outputs: mean, and variance over n and over n - 1."""
    x, mean = cast(op.inputs[0], op.outputs[3].dtype), op.outputs[3]
    factor, count, one = number(op.get_attr("exponential_avg_factor"), mean), _count(x, mean), number(1, mean)
    means = [d for d in (dr1, dmean if dmean is None else multiply(dmean, factor)) if d is not None]
    bessel = realdiv(multiply(factor, count), subtract(count, one))
    variances = [
        d for d in (dr2, dvariance if dvariance is None else multiply(dvariance, bessel)) if d is not None
    ]
    parts = [_channels(add_n(means), x, layout)] if means else []
    if variances:
        twice = multiply(number(2, mean), subtract(x, _channels(mean, x, layout)))
        parts.append(multiply(twice, _channels(add_n(variances), x, layout)))
    total = parts[0] if len(parts) == 1 else add(parts[0], parts[1])
    return multiply(realdiv(total, count), ones_like(x))


def _batch_norm_samples(rng: np.random.Generator) -> Iterable[Sample]:
    nothing = np.zeros(0)
    layouts: list[tuple[Any, dict[str, Any]]] = [((2, 3, 2, 2), {}), ((2, 2, 3, 2), {"data_format": "NCHW"})]
    for shape, attrs in layouts:
        vectors = [rng.uniform(0.5, 2, 2) for _ in range(4)]
        x = rng.standard_normal(shape)
        yield sample(x, *vectors[:2], nothing, nothing, **attrs)
        yield sample(x, *vectors, is_training=False, **attrs)
        yield sample(x, *vectors, exponential_avg_factor=0.25, **attrs)
    for dtype in (dtypes.float32, dtypes.float16, dtypes.bfloat16):
        ones = np.ones(2, np.float32)
        yield sample(rng.standard_normal((2, 3, 2, 2)).astype(dtype.np), ones, ones, ones[:0], ones[:0])


def _batch_norm_grad_samples(rng: np.random.Generator) -> Iterable[Sample]:
    for s in _batch_norm_samples(rng):
        x, scale, *_ = s.inputs
        attrs = {k: v for k, v in s.attrs.items() if k != "exponential_avg_factor"}
        statistics = rng.uniform(0.5, 1, (2, 2)).astype(scale.dtype)
        yield sample(
            rng.standard_normal(x.shape).astype(x.dtype),
            x,
            scale,
            *statistics,
            np.zeros((), scale.dtype),
            **attrs,
        )


_BATCH_NORM = "epsilon: float = 1e-4, data_format: string = 'NHWC', is_training: bool = True"


def _batch_norm_axes(s: ShapeContext) -> str | None:
    rank = input_rank(s)
    if rank is None:
        return None
    x, given = _image(s, rank), "m!" if s.shapes[3] == (0,) else "c"
    return f"{x.replace('n ', 'n~ ')}, c, c, {given}, {given} -> {x}, c, c, c, c, "


def _batch_norm_grad_axes(s: ShapeContext) -> str | None:
    rank = input_rank(s)
    return (
        None
        if rank is None
        else f"{_image(s, rank)}, {_image(s, rank)}, c, c, c, -> {_image(s, rank)}, c, c, e!, e!"
    )


def _image(s: ShapeContext, rank: int) -> str:
    """The dimensions of x. Statistics are those of the whole batch: it is cut only if they are given."""
    text = images(s.attrs["data_format"], rank=rank)
    return text.replace("n", "n!") if s.attrs["is_training"] else text


def _sharded_batch_norm(op: Operation) -> Sequence[Tensor]:
    """The op with the statistics of a batch that is cut: those of the whole (Peng et al. 2018, MegDet)."""
    x, scale, offset, *old = op.inputs
    training, layout = op.get_attr("is_training"), op.get_attr("data_format")
    sizes, factor = static_shape(x.spec), op.get_attr("exponential_avg_factor")
    axes = [i for i in range(len(sizes)) if i != (1 if layout.startswith("NC") else len(sizes) - 1)]
    wide = cast(x, scale.dtype)
    mean = reduce_mean(wide, axes) if training else old[0]
    centered = subtract(wide, _channels(mean, x, layout))
    variance = reduce_mean(square(centered), axes) if training else old[1]
    slope = multiply(scale, rsqrt(add(variance, number(op.get_attr("epsilon"), variance))))
    y = add(multiply(centered, _channels(slope, x, layout)), _channels(offset, x, layout))
    given = [mean, variance]
    if training:
        count = math.prod(sizes[i] for i in axes)
        given[1] = multiply(variance, number(count / max(1, count - 1), variance))
    if training and factor != 1:
        kept = [multiply(number(1 - factor, was), was) for was in old]
        given = [add(was, multiply(number(factor, now), now)) for was, now in zip(kept, given, strict=True)]
    return [cast(y, x.dtype), *given, mean, variance, number(0, mean)]


def _nothing(like: Tensor) -> Tensor:
    return constant(np.zeros(0, like.dtype.np))


batch_norm_op: OpDef[list[Tensor]] = define_op(
    "FusedBatchNormV3",
    "x: T in FLOATING, scale: U in float32 | float64, offset: U, mean: U, variance: U -> y: T, "
    "batch_mean: U, batch_variance: U, reserve_space_1: U, reserve_space_2: U, reserve_space_3: U",
    attrs=f"{_BATCH_NORM}, exponential_avg_factor: float = 1.0",
    shape=_batch_norm_shape,
    kernel=_batch_norm,
    vjp=_batch_norm_vjp,
    samples=_batch_norm_samples,
    axes=_batch_norm_axes,
    sharded=_sharded_batch_norm,
    doc="x less its mean, over its deviation, times scale, plus offset, by channel; the reserve spaces are "
    "the statistics used, batch_mean and batch_variance (over n - 1) are for running averages.",
)

batch_norm_grad_op: OpDef[list[Tensor]] = define_op(
    "FusedBatchNormGradV3",
    "y_backprop: T in FLOATING, x: T, scale: U in float32 | float64, reserve_space_1: U, reserve_space_2: U, "
    "reserve_space_3: U -> x_backprop: T, scale_backprop: U, offset_backprop: U, reserve_space_4: U, "
    "reserve_space_5: U",
    attrs=_BATCH_NORM,
    shape=lambda s: [merge(s.shapes[0], s.shapes[1]), s.shapes[2], s.shapes[2], (0,), (0,)],
    kernel=_batch_norm_grad,
    vjp=lambda op, *ddys: second_order(op, _batch_norm_formula(op), ddys[:3]),
    samples=_batch_norm_grad_samples,
    axes=_batch_norm_grad_axes,
    sharded=lambda op: [*_batch_norm_formula(op)(*op.inputs), *[_nothing(op.inputs[2])] * 2],
    doc="The gradients of FusedBatchNormV3's x, scale and offset; the reserve spaces are mean and variance.",
)


def fused_batch_norm(
    x: NumericLike,
    scale: NumericLike,
    offset: NumericLike,
    mean: NumericLike | None = None,
    variance: NumericLike | None = None,
    epsilon: float = 0.001,
    data_format: DataFormat = "NHWC",
    is_training: bool = True,
    name: str | None = None,
    exponential_avg_factor: float = 1.0,
) -> tuple[Tensor, Tensor, Tensor]:
    """Batch normalization by channel of images: (y, mean, variance) with the statistics for a running
    average.

    In training the statistics are the batch's (variance over n - 1), mixed into ``mean`` and ``variance``
    with weight ``exponential_avg_factor``; otherwise they are the given ones, with which x is normalized.
    ``epsilon`` is at least 1.001e-5, as in TensorFlow. Raises `InvalidArgumentError` if mean and variance are
    needed but not given.
    """
    if (mean is None or variance is None) and (not is_training or exponential_avg_factor != 1.0):
        raise InvalidArgumentError(
            "fused_batch_norm: expected mean and variance, as is_training is False or the factor is"
            f" {exponential_avg_factor}"
        )
    tensor = convert_to_tensor(x)
    statistics_dtype = dtypes.float64 if tensor.dtype is dtypes.float64 else dtypes.float32
    scale, offset, mean, variance = (
        convert_to_tensor([] if v is None else v, statistics_dtype) for v in (scale, offset, mean, variance)
    )
    outputs = batch_norm_op(
        tensor, scale, offset, mean, variance, epsilon=max(epsilon, 1.001e-5), data_format=data_format,
        is_training=is_training, exponential_avg_factor=exponential_avg_factor, name=name,
    )  # fmt: skip
    return outputs[0], outputs[1], outputs[2]
