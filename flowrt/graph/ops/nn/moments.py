"""Mean and variance, and normalizing by them, made of other ops."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from flowrt import dtypes
from flowrt.graph.construction.build import convert_to_tensor
from flowrt.graph.construction.graph import Tensor, get_default_graph
from flowrt.graph.ops.array.reductions import reduce_mean, reduce_sum
from flowrt.graph.ops.array.statistics import count_nonzero
from flowrt.graph.ops.base.filling import broadcast_to
from flowrt.graph.ops.base.identities import cast, identity
from flowrt.graph.ops.base.shape_manipulation import shape, size, squeeze
from flowrt.graph.ops.elementwise.arithmetic import add, maximum, multiply, squared_difference, subtract
from flowrt.graph.ops.elementwise.division import realdiv
from flowrt.graph.ops.elementwise.math import number, reciprocal, rsqrt, square
from flowrt.graph.tf1_signatures import tf1_names
from flowrt.graph.typing import NumericLike

__all__ = [
    "batch_norm_with_global_normalization", "batch_normalization", "l2_normalize", "moments",
    "normalize_moments", "sufficient_statistics", "weighted_moments", "zero_fraction",
]  # fmt: skip


@tf1_names("keepdims", keepdims="keep_dims")
def moments(
    x: NumericLike,
    axes: NumericLike,
    shift: Any = None,
    name: str | None = None,
    keepdims: bool | None = None,
) -> tuple[Tensor, Tensor]:
    """The mean and the variance of ``x`` along ``axes``. float16 and bfloat16 are worked on in float32.

    Args:
        x: A tensor of floats.
        axes: A dimension or a list of them.
        shift: Not used: the variance is taken around the mean.
        keepdims: Whether the dimensions of ``axes`` are kept, with size 1.

    Returns:
        (mean, variance), without the dimensions of ``axes``.

    Example:
        >>> mean, variance = tf.nn.moments(tf.constant([1.0, 3.0]), axes=[0])
        >>> mean.eval(), variance.eval()
        (np.float32(2.0), np.float32(1.0))
    """
    keep = bool(keepdims)
    with get_default_graph().name_scope(name or "moments"):
        tensor = convert_to_tensor(x)
        y = cast(tensor, dtypes.float32) if tensor.dtype.size == 2 else tensor
        mean = reduce_mean(y, axes, keepdims=True, name="mean")
        variance = reduce_mean(squared_difference(y, mean), axes, keepdims=True, name="variance")
        return _dropped(mean, axes, keep, tensor), _dropped(variance, axes, keep, tensor)


def _dropped(kept: Tensor, axes: Any, keep: bool, like: Tensor) -> Tensor:
    """``kept`` in the dtype of ``like``, without ``axes`` (of length 1) unless ``keep``."""
    return cast(kept if keep else squeeze(kept, axes), like.dtype)


@tf1_names("keepdims", keepdims="keep_dims")
def weighted_moments(
    x: NumericLike,
    axes: NumericLike,
    frequency_weights: Any,
    name: str | None = None,
    keepdims: bool | None = None,
) -> tuple[Tensor, Tensor]:
    """`moments` of ``x`` with each element counted ``frequency_weights`` times; weights broadcast to x."""
    keep = bool(keepdims)
    with get_default_graph().name_scope(name or "weighted_moments"):
        tensor = convert_to_tensor(x)
        y = cast(tensor, dtypes.float32) if tensor.dtype.size == 2 else tensor
        weights = broadcast_to(cast(frequency_weights, y.dtype), shape(y))
        total = reduce_sum(weights, axes, keepdims=True)
        mean = realdiv(reduce_sum(multiply(weights, y), axes, keepdims=True), total)
        squares = multiply(weights, squared_difference(y, mean))
        variance = realdiv(reduce_sum(squares, axes, keepdims=True), total)
        return _dropped(mean, axes, keep, tensor), _dropped(variance, axes, keep, tensor)


@tf1_names("name", keepdims="keep_dims")
def sufficient_statistics(
    x: NumericLike,
    axes: Sequence[int],
    shift: Any = None,
    name: str | None = None,
    keepdims: bool | None = None,
) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
    """(count, sum, sum of squares, shift) of ``x`` less ``shift`` along ``axes``: see `normalize_moments`."""
    keep = bool(keepdims)
    axes = sorted(set(axes))
    with get_default_graph().name_scope(name or "sufficient_statistics"):
        tensor = convert_to_tensor(x)
        base = None if shift is None else convert_to_tensor(shift, tensor.dtype)
        moved = tensor if base is None else subtract(tensor, base)
        squares = square(tensor) if base is None else squared_difference(tensor, base)
        mean_ss = reduce_sum(moved, axes, keepdims=keep, name="mean_ss")
        variance_ss = reduce_sum(squares, axes, keepdims=keep, name="var_ss")
        return _count_along(tensor, axes), mean_ss, variance_ss, base


def _count_along(x: Tensor, axes: Sequence[int]) -> Tensor:
    """Number of elements combined along ``axes``, as a scalar of x's dtype."""
    static = x.spec.shape
    dims = [None] if static is None else [static[axis] for axis in axes]
    if None not in dims:
        return number(math.prod(dims), x)  # type: ignore[arg-type]
    reduced = reduce_sum(x, axes)
    return realdiv(cast(size(x), x.dtype), cast(size(reduced), x.dtype))


def normalize_moments(
    counts: Any, mean_ss: Any, variance_ss: Any, shift: Any, name: str | None = None
) -> tuple[Tensor, Tensor]:
    """(mean, variance) from the results of `sufficient_statistics`."""
    with get_default_graph().name_scope(name or "normalize"):
        divisor = reciprocal(counts, name="divisor")
        shifted_mean = multiply(mean_ss, divisor, name="mean" if shift is None else "shifted_mean")
        mean = shifted_mean if shift is None else add(shifted_mean, shift, name="mean")
        return mean, subtract(multiply(variance_ss, divisor), square(shifted_mean), name="variance")


def batch_normalization(
    x: NumericLike,
    mean: NumericLike,
    variance: NumericLike,
    offset: NumericLike | None,
    scale: NumericLike | None,
    variance_epsilon: NumericLike,
    name: str | None = None,
) -> Tensor:
    """``scale * (x - mean) / sqrt(variance + variance_epsilon) + offset``; ``scale`` and ``offset`` may be
    None.

    Ioffe and Szegedy, "Batch normalization" (2015), algorithm 2.
    """
    with get_default_graph().name_scope(name or "batchnorm"):
        tensor = convert_to_tensor(x)
        spread = convert_to_tensor(variance)
        inverse = rsqrt(add(spread, convert_to_tensor(variance_epsilon, spread.dtype)))
        if scale is not None:
            inverse = multiply(inverse, scale)
        base = multiply(mean, inverse)
        base = multiply(number(-1, base), base) if offset is None else subtract(offset, base)
        return add(multiply(tensor, cast(inverse, tensor.dtype)), cast(base, tensor.dtype))


def batch_norm_with_global_normalization(
    t: NumericLike,
    m: NumericLike,
    v: NumericLike,
    beta: NumericLike,
    gamma: NumericLike,
    variance_epsilon: float,
    scale_after_normalization: bool,
    name: str | None = None,
) -> Tensor:
    """See `batch_normalization`."""
    scale = gamma if scale_after_normalization else None
    return batch_normalization(t, m, v, beta, scale, variance_epsilon, name)


@tf1_names(axis="dim")
def l2_normalize(
    x: NumericLike, axis: NumericLike | None = None, epsilon: float = 1e-12, name: str | None = None
) -> Tensor:
    """``x`` over its Euclidean norm along ``axis`` (None: of all), which counts as at least
    ``sqrt(epsilon)``.

    Example:
        >>> tf.nn.l2_normalize([3.0, 4.0], axis=0).eval()
        array([0.6, 0.8], dtype=float32)
    """
    with get_default_graph().name_scope(name or "l2_normalize") as scope:
        tensor = convert_to_tensor(x)
        total = reduce_sum(square(tensor), axis, keepdims=True)
        inverse = rsqrt(maximum(total, number(epsilon, tensor)))
        return multiply(tensor, inverse, name=scope)


def zero_fraction(value: NumericLike, name: str | None = None) -> Tensor:
    """The fraction of ``value``'s elements that are zero, float32; NaN for none at all."""
    with get_default_graph().name_scope(name or "zero_fraction"):
        tensor = convert_to_tensor(value)
        total = size(tensor, out_type=dtypes.int64)
        zeros = subtract(total, count_nonzero(tensor))
        fraction = realdiv(cast(zeros, dtypes.float32), cast(total, dtypes.float32))
        return identity(fraction, name="fraction")
