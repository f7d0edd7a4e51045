"""Variance, logsumexp, norms and counts, the positions of extremes, bincount and histograms."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from flowrt import dtypes
from flowrt.dtypes import DType, DTypeLike, as_dtype
from flowrt.errors import InvalidArgumentError
from flowrt.graph.construction.batching_rules import on_axes
from flowrt.graph.construction.build import convert_to_tensor
from flowrt.graph.construction.constant import constant
from flowrt.graph.construction.graph import Operation, Tensor, get_default_graph
from flowrt.graph.node import static_shape
from flowrt.graph.op_def import LINEAR, NONDIFFERENTIABLE, OpDef, ShapeContext, define_op, sample
from flowrt.graph.ops.array.concat_and_split import stack
from flowrt.graph.ops.array.gather_scatter import gather, scatter_nd
from flowrt.graph.ops.array.ranges import static_array
from flowrt.graph.ops.array.reductions import (
    reduce,
    reduce_max,
    reduce_mean,
    reduce_min,
    reduce_sum,
    reduction_op,
    reduction_samples,
    sum_op,
    with_kept_dims,
)
from flowrt.graph.ops.array.scatter_rows import fold_rows
from flowrt.graph.ops.base.axes import factors, input_rank, whole_reduced
from flowrt.graph.ops.base.filling import ones_like
from flowrt.graph.ops.base.identities import cast, static_value, stop_gradient
from flowrt.graph.ops.base.kernel_output import accumulator, delivered
from flowrt.graph.ops.base.shape_manipulation import reshape, shape, size
from flowrt.graph.ops.elementwise.arithmetic import add, add_v2, maximum, minimum, multiply, subtract
from flowrt.graph.ops.elementwise.comparison import equal, less, logical_or, not_equal, select_v2, where_v2
from flowrt.graph.ops.elementwise.complex_parts import complex_abs
from flowrt.graph.ops.elementwise.division import realdiv
from flowrt.graph.ops.elementwise.math import exp, is_finite, log, number, sqrt, square
from flowrt.graph.shapes import Shape, format_shape, merge, normalize_axis
from flowrt.graph.tf1_signatures import tf1_names
from flowrt.graph.typing import NumericLike, TensorLike


def _euclidean_norm(xp: Any, input: Any, reduction_indices: Any, keep_dims: bool, out: Any = None) -> Any:
    squares = xp.square(xp.abs(input))
    norm = xp.sqrt(squares.sum(axis=reduction_indices, dtype=accumulator(squares), keepdims=keep_dims))
    return delivered(xp, norm, input.dtype, out)


def _norm_vjp(op: Operation, dy: Tensor) -> list[Tensor | None]:
    scale = realdiv(dy, op.outputs[0])
    return [multiply(op.inputs[0], with_kept_dims(op, scale)), None]


def _sharded_norm(op: Operation) -> Sequence[Tensor]:
    """The norm along axes that are cut: of the sum of the squares, as in the kernel in 32 bits at least."""
    x, made = op.inputs[0], op.outputs[0].dtype
    magnitudes = complex_abs(x) if x.dtype.is_complex else x
    wide = cast(magnitudes, dtypes.float32) if magnitudes.dtype.size == 2 else magnitudes
    return [cast(sqrt(sum_op(square(wide), op.inputs[1], keep_dims=op.get_attr("keep_dims"))), made)]


euclidean_norm_op = reduction_op(
    "EuclideanNorm",
    _euclidean_norm,
    "INEXACT",
    reduction_samples(0.5, np.complex64),
    vjp=_norm_vjp,
    axes=whole_reduced,
    sharded=_sharded_norm,
    doc="The square root of the sum of squared magnitudes along axes.",
)


def reduce_euclidean_norm(
    input_tensor: TensorLike, axis: NumericLike | None = None, keepdims: bool = False, name: str | None = None
) -> Tensor:
    """The square root of the sum of squared magnitudes along ``axis``."""
    return reduce(euclidean_norm_op, input_tensor, axis, keepdims, name)


@tf1_names(axis="reduction_indices", keepdims="keep_dims")
def reduce_logsumexp(
    input_tensor: TensorLike,
    axis: NumericLike | None = None,
    keepdims: bool | None = None,
    name: str | None = None,
) -> Tensor:
    """log(sum(exp(x))) along ``axis``, without overflow: the largest element is taken out of the sum.

    Example:
        >>> tf.reduce_logsumexp([0.0, 0.0]).eval()
        np.float32(0.6931472)
    """
    with get_default_graph().name_scope(name or "ReduceLogSumExp"):
        x = convert_to_tensor(input_tensor)
        largest = reduce_max(x, axis, keepdims=True)
        offset = stop_gradient(where_v2(is_finite(largest), largest, np.zeros((), x.dtype.np)))
        total = log(reduce_sum(exp(subtract(x, offset)), axis, keepdims=keepdims))
        return add_v2(total, offset if keepdims else reshape(offset, shape(total)))


def reduce_variance(
    input_tensor: TensorLike, axis: NumericLike | None = None, keepdims: bool = False, name: str | None = None
) -> Tensor:
    """The mean squared distance from the mean along ``axis`` (of magnitudes, if complex)."""
    with get_default_graph().name_scope(name or "reduce_variance"):
        x = convert_to_tensor(input_tensor)
        deviation = subtract(x, reduce_mean(x, axis, keepdims=True))
        if x.dtype.is_complex:
            deviation = complex_abs(deviation, Tout=x.dtype.real_dtype)
        return reduce_mean(square(deviation), axis, keepdims=keepdims)


def reduce_std(
    input_tensor: TensorLike, axis: NumericLike | None = None, keepdims: bool = False, name: str | None = None
) -> Tensor:
    """The square root of `reduce_variance`."""
    with get_default_graph().name_scope(name or "reduce_std"):
        return sqrt(reduce_variance(input_tensor, axis, keepdims))


@tf1_names(axis="reduction_indices", keepdims="keep_dims", input_tensor="input")
def count_nonzero(
    input_tensor: TensorLike | None = None,
    axis: NumericLike | None = None,
    keepdims: bool | None = None,
    dtype: DTypeLike = dtypes.int64,
    name: str | None = None,
) -> Tensor:
    """The number of nonzero elements (or nonempty strings) along ``axis``, as ``dtype``.

    Example:
        >>> tf.count_nonzero([0, 3, 4]).eval()
        np.int64(2)
    """
    with get_default_graph().name_scope(name or "count_nonzero"):
        x = convert_to_tensor(input_tensor)
        zero = np.array(b"" if x.dtype is dtypes.string else 0, x.dtype.np)
        counted = cast(not_equal(x, zero), dtypes.int64)
        total = reduce_sum(counted, axis, keepdims)
        return cast(total, dtype)


# --- positions of extremes


def _position_shape(s: ShapeContext) -> Sequence[Shape]:
    dims, axis = s.shapes[0], s.value(1)
    if dims is None:
        return [None]
    if isinstance(axis, tuple):
        (axis,) = axis
    if axis is None:
        return [(None,) * (len(dims) - 1)]
    axis = normalize_axis(axis, len(dims))
    if dims[axis] == 0:
        raise InvalidArgumentError(f"expected elements along axis {axis}; got shape {format_shape(dims)}")
    return [(*dims[:axis], *dims[axis + 1 :])]


def _position_axes(s: ShapeContext) -> str | None:
    rank, axis = input_rank(s), s.value(1)
    if rank is None or axis is None:
        return None
    kept = [f"d{i}" for i in range(rank) if i != axis % rank]
    return f"{factors(rank, {axis % rank})} -> {' '.join(kept)}"


def _sharded_position(op: Operation, extreme: Callable[..., Tensor]) -> Sequence[Tensor]:
    """The position along an axis that is cut: the first at which the value is the extreme, or NaN."""
    x, axis = op.inputs[0], static_value(op.inputs[1])
    sizes = static_shape(x.spec)
    axis = normalize_axis(axis, len(sizes))
    values = cast(x, dtypes.int32) if x.dtype is dtypes.bool_ else x
    is_found = equal(values, extreme(values, axis, keepdims=True))
    if values.dtype in dtypes.FLOATING:
        is_found = logical_or(is_found, not_equal(values, values))
    numbers = constant(np.arange(sizes[axis]).reshape(-1, *[1] * (len(sizes) - 1 - axis)))
    found = reduce_min(where_v2(is_found, numbers, number(sizes[axis], numbers)), axis)
    return [cast(found, op.outputs[0].dtype)]


def _position(name: str, method: str, doc: str) -> OpDef[Tensor]:
    def kernel(xp: Any, input: Any, dimension: Any, output_type: DType, out: Any = None) -> Any:
        find = getattr(xp, method)
        if out is not None and output_type is dtypes.int64:
            return find(input, dimension, out=out)
        return delivered(xp, find(input, dimension), output_type.np, out)

    return define_op(
        name,
        "input: T in REAL | bool, dimension: host Tidx in INDEX -> output_type in INTEGER",
        attrs="output_type: type = int64",
        shape=_position_shape,
        kernel=kernel,
        samples=lambda rng: (
            sample(rng.standard_normal((2, 3)), np.array(-1, np.int32)),
            sample(
                rng.standard_normal(3).astype(dtypes.bfloat16.np),
                np.array(0, np.int64),
                output_type=dtypes.int32,
            ),
            sample(np.zeros((0, 2), np.int8), np.array(1, np.int32)),
            sample(np.array([False, True, True]), np.array(0, np.int32), output_type=dtypes.uint16),
        ),
        batch=on_axes(),
        axes=_position_axes,
        sharded=lambda op: _sharded_position(op, reduce_max if method == "argmax" else reduce_min),
        doc=doc,
    )


argmax_op = _position(
    "ArgMax", "argmax", "The index of the largest element along an axis, the first of equals."
)
argmin_op = _position(
    "ArgMin", "argmin", "The index of the smallest element along an axis, the first of equals."
)


@tf1_names("output_type", axis="dimension")
def argmax(
    input: TensorLike,
    axis: NumericLike | None = None,
    name: str | None = None,
    output_type: DTypeLike = dtypes.int64,
) -> Tensor:
    """The index of the largest element along ``axis``, the first of equals.

    Args:
        input: A tensor of numbers.
        axis: The dimension, by default 0; negative from the last.
        output_type: The dtype of the indices, int32 or int64.

    Returns:
        A tensor of ``output_type``, of the input's shape without ``axis``.

    Raises:
        InvalidArgumentError: The axis is out of range or has no elements.

    Example:
        >>> tf.argmax([[1.0, 5.0], [3.0, 2.0]], axis=1).eval()
        array([1, 0])
    """
    return argmax_op(input, 0 if axis is None else axis, output_type=output_type, name=name)


@tf1_names("output_type", axis="dimension")
def argmin(
    input: TensorLike,
    axis: NumericLike | None = None,
    name: str | None = None,
    output_type: DTypeLike = dtypes.int64,
) -> Tensor:
    """The index of the smallest element along ``axis`` (0 by default), the first of equals: see `argmax`.

    Example:
        >>> tf.argmin([[1.0, 5.0], [3.0, 2.0]], axis=1).eval()
        array([0, 1])
    """
    return argmin_op(input, 0 if axis is None else axis, output_type=output_type, name=name)


# --- counts of values


def _bincount_shape(s: ShapeContext) -> Sequence[Shape]:
    if s.shapes[2] != (0,):
        merge(s.shapes[0], s.shapes[2])
    count = s.value(1)
    if count is not None and count < 0:
        raise InvalidArgumentError(f"size: expected at least 0; got {count}")
    return [(count,)]


def _bincount(xp: Any, arr: Any, size: int, weights: Any, out: Any = None) -> Any:
    bins = arr.reshape(-1)
    if xp is np and bins.size and bins.min() < 0:
        raise InvalidArgumentError(f"arr: expected numbers of at least 0; got {int(bins.min())}")
    result = xp.empty(size, weights.dtype) if out is None else out
    result[...] = 0
    given = xp.ones(bins.size, weights.dtype) if not weights.size else weights.reshape(-1)
    if given.size != bins.size:
        raise InvalidArgumentError(f"weights: expected shape {format_shape(arr.shape)}; got {weights.shape}")
    if xp is np:
        inside = bins < size
        np.add.at(result, bins[inside], given[inside])
    else:
        fold_rows(xp, "add", result[:, None], bins, given[:, None])
    return result


def _bincount_vjp(op: Operation, dy: Tensor) -> list[Tensor | None]:
    arr, count, weights = op.inputs
    if weights.spec.shape == (0,):
        return [None, None, None]
    last = subtract(count, 1)
    picked = gather(dy, minimum(arr, last))
    return [None, None, select_v2(less(arr, count), picked, np.array(0, dy.dtype.np))]


bincount_op: OpDef[Tensor] = define_op(
    "Bincount",
    "arr: int32, size: host int32, weights: T in int32 | int64 | float32 | float64 -> bins: T",
    shape=_bincount_shape,
    kernel=_bincount,
    vjp=_bincount_vjp,
    jvp=LINEAR,
    samples=lambda rng: (
        sample(np.array([[1, 1], [3, 9]], np.int32), np.int32(5), rng.standard_normal((2, 2))),
        sample(np.array([1, 1, 3], np.int32), np.int32(2), np.zeros(0, np.int32)),
        sample(np.zeros(0, np.int32), np.int32(0), np.zeros(0, np.float32)),
    ),
    axes=lambda s: "..i, z! -> v" if s.shapes[2] == (0,) else "..i, ..i -> v",
    doc="The number of occurrences in arr of each integer below size, or the sum of its weights; others are"
    " ignored.",
)


def _dense_bincount_shape(s: ShapeContext) -> Sequence[Shape]:
    numbers, bins = s.shapes[0], s.value(1)
    if numbers is not None and len(numbers) > 2:
        raise InvalidArgumentError(f"input: expected rank 2 at most; got shape {format_shape(numbers)}")
    return [None if numbers is None else (*numbers[:-1], bins)]


def _dense_bincount(
    xp: Any, input: Any, size: int, weights: Any, binary_output: bool, out: Any = None
) -> Any:
    rows = input.reshape(-1, input.shape[-1] if input.ndim == 2 else max(input.size, 1))
    given = weights.reshape(rows.shape) if weights.size else xp.ones(rows.shape, weights.dtype)
    if bool((rows < 0).any()):
        raise InvalidArgumentError("input: expected numbers of at least 0")
    made = xp.zeros((rows.shape[0], size), weights.dtype)
    inside = rows < size
    places = (xp.arange(rows.shape[0])[:, None] * size + rows)[inside]
    if binary_output:
        made.reshape(-1)[places] = 1
    else:
        fold_rows(xp, "add", made.reshape(-1, 1), places.astype(np.int64), given[inside][:, None])
    return delivered(xp, made.reshape((*input.shape[:-1], size)), weights.dtype, out)


dense_bincount_op: OpDef[Tensor] = define_op(
    "DenseBincount",
    "input: Tidx in INDEX, size: host Tidx, weights: T in int32 | int64 | float32 | float64 -> output: T",
    attrs="binary_output: bool = False",
    shape=_dense_bincount_shape,
    kernel=_dense_bincount,
    vjp=NONDIFFERENTIABLE,
    samples=lambda rng: (
        sample(np.array([1, 4, 1, 9], np.int32), np.int32(5), rng.standard_normal(4)),
        sample(np.array([[1, 4, 1], [0, 0, 9]]), np.int64(5), np.zeros(0), binary_output=True),
    ),
    doc="The occurrences of numbers below size in each row, or the sums of their weights.",
)


def _largest_plus_one(numbers: Tensor) -> Tensor:
    """0 for no numbers; a constant when they are."""
    known = static_array(numbers)
    if known is not None:
        return convert_to_tensor(known.max(initial=-1) + 1, numbers.dtype)
    zero, one = (np.array(v, numbers.dtype.np) for v in (0, 1))
    return select_v2(equal(size(numbers), 0), zero, add(reduce_max(reshape(numbers, [-1]), 0), one))


def bincount(
    arr: Any,
    weights: TensorLike | None = None,
    minlength: TensorLike | None = None,
    maxlength: TensorLike | None = None,
    dtype: DTypeLike = dtypes.int32,
    name: str | None = None,
) -> Tensor:
    """The number of occurrences in ``arr`` of each integer from 0 to the largest, or the sum of its
    ``weights``.

    ``dtype`` is that of counts. The result has at least ``minlength`` and at most ``maxlength`` entries;
    larger integers are ignored. A negative integer raises `InvalidArgumentError` at run time; on a GPU it is
    ignored.
    """
    with get_default_graph().name_scope(name or "bincount"):
        numbers = convert_to_tensor(arr, dtypes.int32, name="arr") if not isinstance(arr, Tensor) else arr
        numbers = cast(numbers, dtypes.int32)
        length = _largest_plus_one(numbers)
        if minlength is not None:
            length = maximum(cast(convert_to_tensor(minlength), dtypes.int32), length)
        if maxlength is not None:
            length = minimum(cast(convert_to_tensor(maxlength), dtypes.int32), length)
        amounts = np.zeros(0, as_dtype(dtype).np) if weights is None else weights
        return bincount_op(numbers, length, amounts)


def _histogram(xp: Any, values: Any, value_range: Any, nbins: int, dtype: Any, out: Any = None) -> Any:
    low, high = value_range.tolist() if xp is np else value_range.astype(np.float64)
    if xp is np and not low < high:
        raise InvalidArgumentError(f"value_range: expected [low, high] with low < high; got {[low, high]}")
    if nbins <= 0:
        raise InvalidArgumentError(f"nbins: expected at least 1; got {nbins}")
    steps = xp.floor((values.reshape(-1).astype(np.float64) - low) / (high - low) * nbins)
    bins = xp.clip(steps, 0, nbins - 1).astype(np.int64)
    if xp is np:
        return delivered(np, np.bincount(bins, minlength=nbins), dtype.np, out)
    counts = xp.zeros((nbins, 1), dtype.np)
    fold_rows(xp, "add", counts, bins, xp.ones((bins.size, 1), dtype.np))
    return delivered(xp, counts.reshape(nbins), dtype.np, out)


def _histogram_shape(s: ShapeContext) -> Sequence[Shape]:
    merge(s.shapes[1], (2,))
    return [(s.value(2),)]


histogram_op: OpDef[Tensor] = define_op(
    "HistogramFixedWidth",
    "values: T in INDEX | float32 | float64, value_range: T, nbins: host int32 -> out: dtype in INDEX",
    attrs="dtype: type = int32",
    shape=_histogram_shape,
    kernel=_histogram,
    samples=lambda rng: (
        sample(np.array([-1.0, 0.0, 1.5, 2.0, 5.0, 15.0]), np.array([0.0, 5.0]), np.int32(5)),
        sample(np.zeros((0, 2), np.int32), np.array([0, 5], np.int32), np.int32(2), dtype=dtypes.int64),
    ),
    axes="..i, r! -> v",
    doc="The number of values in each of nbins equal parts of value_range; values outside count in the "
    "nearest part.",
)


def histogram_fixed_width(
    values: Any,
    value_range: TensorLike,
    nbins: TensorLike = 100,
    dtype: DTypeLike = dtypes.int32,
    name: str | None = None,
) -> Tensor:
    """The number of ``values`` in each of ``nbins`` equal parts of ``value_range`` = [low, high].

    Values outside count in the first or last part. Raises `InvalidArgumentError` at run time for an empty
    range; on a GPU the counts are then undefined.
    """
    numbers = convert_to_tensor(values)
    bounds = convert_to_tensor(value_range, numbers.dtype)
    return histogram_op(numbers, bounds, nbins, dtype=dtype, name=name or "histogram_fixed_width")


def confusion_matrix(
    labels: TensorLike,
    predictions: TensorLike,
    num_classes: TensorLike | None = None,
    dtype: DTypeLike = dtypes.int32,
    name: str | None = None,
    weights: TensorLike | None = None,
) -> Tensor:
    """Entry [i, j] counts the examples of class i predicted as class j, or adds up their ``weights``.

    Both are vectors of class numbers, below ``num_classes`` (by default one more than the largest): one
    outside is an `InvalidArgumentError` when it runs; on a GPU its example is left out.

    Example:
        >>> tf.confusion_matrix([0, 1, 1], [0, 1, 0]).eval()
        array([[1, 0],
               [1, 1]], dtype=int32)
    """
    with get_default_graph().name_scope(name or "confusion_matrix"):
        truth, guess = (cast(convert_to_tensor(v), dtypes.int64) for v in (labels, predictions))
        merge(truth.spec.shape, guess.spec.shape)
        if num_classes is None:
            num_classes = maximum(_largest_plus_one(truth), _largest_plus_one(guess))
        classes = cast(convert_to_tensor(num_classes), dtypes.int64)
        kind = as_dtype(dtype)
        amounts = ones_like(truth, dtype=kind)
        if weights is not None:
            amounts = multiply(amounts, cast(convert_to_tensor(weights), kind))
        return scatter_nd(stack([truth, guess], axis=1), amounts, stack([classes, classes]))
