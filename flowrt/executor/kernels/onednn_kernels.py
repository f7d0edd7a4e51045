"""Host kernels computed by oneDNN: convolutions, mean pooling, matrix products, of float32.

The operation's own kernel handles unsupported cases: other dtypes, empty arrays, products too small to
benefit, windows without fast code.

Results differ from the operations' own in the order of additions; and where padding meets a filter's infinity
or NaN: 0 times that value is added there, and nothing here.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import lru_cache, partial
from typing import Any, TypeAlias

import numpy as np

from flowrt.device.onednn.onednn import Unsupported
from flowrt.device.onednn.onednn_blas import multiply
from flowrt.device.onednn.primitives import (
    Axis,
    Layout,
    Primitive,
    convolution,
    convolution_filter_gradient,
    convolution_source_gradient,
    layout_of,
    matrix_product,
    mean_pooling,
    mean_pooling_gradient,
)
from flowrt.graph.op_def import OpDef, ShapeContext
from flowrt.graph.ops.linalg.matmul import batch_matmul, matmul_op
from flowrt.graph.ops.nn.conv import (
    conv2d_backprop_filter_op,
    conv2d_backprop_input_op,
    conv2d_op,
    conv3d_backprop_filter_op,
    conv3d_backprop_input_op,
    conv3d_op,
    conv_axes,
)
from flowrt.graph.ops.nn.depthwise_conv import (
    depthwise_backprop_filter_op,
    depthwise_backprop_input_op,
    depthwise_conv2d_op,
)
from flowrt.graph.ops.nn.pooling import (
    average_pool3d_grad_op,
    average_pool3d_op,
    average_pool_grad_op,
    average_pool_op,
    pool_axes,
)
from flowrt.graph.ops.nn.windows import Axis as WindowAxis
from flowrt.graph.ops.nn.windows import channels_first
from flowrt.graph.shapes import Shape, is_static

Array: TypeAlias = np.ndarray[Any, Any]
Kernel: TypeAlias = Callable[..., Any]

MIN_PRODUCT = 1 << 18
"""Minimum number of multiplications of a matrix product. Smaller ones take OpenBLAS 4 us or less, and the
call of oneDNN takes 6; for larger ones OpenBLAS uses threads, which occupy the cores for another 25 ms.
"""

MAX_UNPACKED = 1 << 29
"""Maximum number of multiplications of a matrix product for oneDNN's primitive. It does not pack its
operands, which pays while they are in the caches; the library's BLAS, used for larger ones, packs them. On
two cores that takes 0.90 to 0.96 of the primitive's time for 1024**3, a half for 1536**3, 0.3 for 3072**3;
and 0.87 to 0.93 of OpenBLAS's.
"""

MAX_KNOWN = 1024
"""Shapes of calls that are remembered; batches of every length do not pile up for ever."""

Attributes: TypeAlias = tuple[tuple[str, Any], ...]


def _result(op: OpDef, attrs: Mapping[str, Any], arguments: Sequence[Any], dtype: Any, out: Any) -> Array:
    """``out``, or an array for the result of ``op``. Raises `InvalidArgumentError` for arguments that do not
    fit.
    """
    seen = tuple([a.shape if isinstance(a, np.ndarray) else a for a in arguments])
    shape = _result_shape(op, tuple(attrs.items()), seen)
    return np.empty(shape, dtype) if out is None else out


@lru_cache(maxsize=MAX_KNOWN)
def _result_shape(op: OpDef, attrs: Attributes, seen: tuple[Any, ...]) -> tuple[int, ...]:
    """Result of the op's shape rule for its inputs' shapes, or, for host inputs, their values."""
    on_host = [argument.on_host for argument in op.inputs]
    shapes: list[Shape] = [(len(s),) if is_value else s for s, is_value in zip(seen, on_host, strict=True)]
    context = ShapeContext(op, dict(attrs), shapes, [], lambda i: seen[i] if on_host[i] else None)
    (shape,) = op.shape(context)
    assert is_static(shape)
    return shape


def _check(*arrays: Array) -> None:
    if not all(array.dtype == np.float32 and array.size for array in arrays):
        raise Unsupported("dtype or size")


# --- convolution

Grouping: TypeAlias = Callable[[Array, int], Array]
"""Converts the operation's filter, given the channels of the images, to ``[g, f, c, *taps]``."""


def _by_group(filter: Array, channels: int) -> Array:
    """A filter ``[*taps, c, g * f]``."""
    if not filter.flags.c_contiguous:
        raise Unsupported("filter")  # its groups may be no view
    *taps, per_group, filters = filter.shape
    groups, n = channels // per_group, len(taps)
    split = filter.reshape(*taps, per_group, groups, filters // groups)
    return split.transpose(n + 1, n + 2, n, *range(n))


def _by_channel(filter: Array, channels: int) -> Array:
    """A depthwise filter ``[*taps, g, f]``."""
    n = filter.ndim - 2
    return filter.transpose(n, n + 1, *range(n))[:, :, None]


def _convolve(
    op: OpDef, xp: Any, input: Array, filter: Array, out: Any = None, workspace: Any = None,
    *, group: Grouping, **attrs: Any,
) -> Any:  # fmt: skip
    with suppress(Unsupported):
        y = _result(op, attrs, (input, filter), input.dtype, out)
        _run_convolution(convolution, group, input, filter, y, attrs)
        return y
    return op.kernel(xp, input, filter, out=out, workspace=workspace, **attrs)


def _convolve_to_input(
    op: OpDef, xp: Any, input_sizes: Any, filter: Array, out_backprop: Array, out: Any = None,
    workspace: Any = None, *, group: Grouping, **attrs: Any,
) -> Any:  # fmt: skip
    arguments = input_sizes, filter, out_backprop
    with suppress(Unsupported):
        x = _result(op, attrs, arguments, filter.dtype, out)
        _run_convolution(convolution_source_gradient, group, x, filter, out_backprop, attrs)
        return x
    return op.kernel(xp, *arguments, out=out, workspace=workspace, **attrs)


def _convolve_to_filter(
    op: OpDef, xp: Any, input: Array, filter_sizes: Any, out_backprop: Array, out: Any = None,
    workspace: Any = None, *, group: Grouping, **attrs: Any,
) -> Any:  # fmt: skip
    arguments = input, filter_sizes, out_backprop
    with suppress(Unsupported):
        filter = _result(op, attrs, arguments, input.dtype, out)
        _run_convolution(convolution_filter_gradient, group, input, filter, out_backprop, attrs)
        return filter
    return op.kernel(xp, *arguments, out=out, workspace=workspace, **attrs)


def _run_convolution(
    make: Callable[..., Primitive], group: Grouping, x: Array, filter: Array, y: Array, attrs: dict[str, Any]
) -> None:
    """Compute one of ``x``, ``filter`` and ``y`` from the other two."""
    _check(x, filter, y)
    is_last = not channels_first(attrs["data_format"])
    axes = _conv_axes(x.shape, filter.shape[:-2], tuple(attrs.items()))
    x, y = _images(x, is_last), _images(y, is_last)
    filter = group(filter, x.shape[1])
    make(_image_layout(x), layout_of(filter, is_free=True), _image_layout(y), axes)(x, filter, y)


@lru_cache(maxsize=MAX_KNOWN)
def _conv_axes(x_shape: tuple[int, ...], taps: tuple[int, ...], attrs: Attributes) -> tuple[Axis, ...]:
    return _axes(conv_axes(x_shape, taps, dict(attrs)))


def _axes(axes: Sequence[WindowAxis]) -> tuple[Axis, ...]:
    return tuple([Axis(a.taps, a.stride, a.dilation, a.before, a.padded - a.before - a.length) for a in axes])


def _images(array: Array, is_last: bool) -> Array:
    """Images as ``[n, c, *spatial]``; ``is_last``: the channels are last."""
    return array.transpose(0, array.ndim - 1, *range(1, array.ndim - 1)) if is_last else array


def _image_layout(images: Array) -> Layout:
    """Channels-last stays as it is: it is among the fastest, and a copy is saved."""
    is_last = images.transpose(0, *range(2, images.ndim), 1).flags.c_contiguous
    return layout_of(images, is_free=not is_last)


# --- mean pooling


def _pool(op: OpDef, xp: Any, value: Array, out: Any = None, workspace: Any = None, **attrs: Any) -> Any:
    with suppress(Unsupported):
        y = _result(op, attrs, (value,), value.dtype, out)
        _run_pooling(mean_pooling, value, y, attrs)
        return y
    return op.kernel(xp, value, out=out, workspace=workspace, **attrs)


def _pool_to_input(
    op: OpDef, xp: Any, sizes: Any, grad: Array, out: Any = None, workspace: Any = None, **attrs: Any
) -> Any:
    with suppress(Unsupported):
        x = _result(op, attrs, (sizes, grad), grad.dtype, out)
        _run_pooling(mean_pooling_gradient, x, grad, attrs)
        return x
    return op.kernel(xp, sizes, grad, out=out, workspace=workspace, **attrs)


def _run_pooling(make: Callable[..., Primitive], x: Array, y: Array, attrs: dict[str, Any]) -> None:
    """Compute ``x`` or ``y`` from the other."""
    _check(x, y)
    axes = _pool_axes(x.shape, tuple(attrs.items()))
    is_last = axes[-1] == WHOLE
    batch, *spatial = (*axes[:1], *axes[1:-1]) if is_last else (axes[0], *axes[2:])
    if batch != WHOLE or axes[-1 if is_last else 1] != WHOLE:
        raise Unsupported("windows over images or channels")
    x, y = _images(x, is_last), _images(y, is_last)
    make(layout_of(x), layout_of(y), tuple(spatial))(x, y)


@lru_cache(maxsize=MAX_KNOWN)
def _pool_axes(x_shape: tuple[int, ...], attrs: Attributes) -> tuple[Axis, ...]:
    return _axes(pool_axes(x_shape, **dict(attrs)))


WHOLE = Axis(taps=1, stride=1, dilation=1, before=0, after=0)
"""Axis for dimensions without windows."""


# --- products of matrices


def _matmul(
    op: OpDef, xp: Any, a: Array, b: Array, transpose_a: bool, transpose_b: bool, out: Any = None
) -> Any:
    with suppress(Unsupported):
        return _product(a.T if transpose_a else a, b.T if transpose_b else b, out)
    return op.kernel(xp, a, b, transpose_a, transpose_b, out)


def _batch_matmul(op: OpDef, xp: Any, x: Array, y: Array, adj_x: bool, adj_y: bool, out: Any = None) -> Any:
    with suppress(Unsupported):
        return _product(x.swapaxes(-1, -2) if adj_x else x, y.swapaxes(-1, -2) if adj_y else y, out)
    return op.kernel(xp, x, y, adj_x, adj_y, out)


def _product(a: Array, b: Array, out: Any) -> Array:
    (*batch, m, k), (*other, k2, n) = a.shape, b.shape
    if a.dtype != np.float32 or b.dtype != np.float32 or k != k2 or m == 1 or n == 1:
        raise Unsupported("dtype, shape, or a matrix by a vector, which BLAS does faster")
    if batch != other:
        a, b = _of_one_rank(a, b)
        batch = list(np.broadcast_shapes(a.shape[:-2], b.shape[:-2]))
    if math.prod(batch) * m * k * n <= MIN_PRODUCT:
        raise Unsupported("size")
    result: Array = np.empty((*batch, m, n), np.float32) if out is None else out
    if m * k * n > MAX_UNPACKED:
        multiply(a, b, result)
    else:
        matrix_product(layout_of(a), layout_of(b), layout_of(result))(a, b, result)
    return result


def _of_one_rank(a: Array, b: Array) -> tuple[Array, Array]:
    rank = max(a.ndim, b.ndim)
    return a[(None,) * (rank - a.ndim)], b[(None,) * (rank - b.ndim)]


# --- all of them

ONEDNN_KERNELS: Mapping[OpDef, Kernel] = {
    conv2d_op: partial(_convolve, group=_by_group),
    conv2d_backprop_input_op: partial(_convolve_to_input, group=_by_group),
    conv2d_backprop_filter_op: partial(_convolve_to_filter, group=_by_group),
    conv3d_op: partial(_convolve, group=_by_group),
    conv3d_backprop_input_op: partial(_convolve_to_input, group=_by_group),
    conv3d_backprop_filter_op: partial(_convolve_to_filter, group=_by_group),
    depthwise_conv2d_op: partial(_convolve, group=_by_channel),
    depthwise_backprop_input_op: partial(_convolve_to_input, group=_by_channel),
    depthwise_backprop_filter_op: partial(_convolve_to_filter, group=_by_channel),
    average_pool_op: _pool,
    average_pool_grad_op: _pool_to_input,
    average_pool3d_op: _pool,
    average_pool3d_grad_op: _pool_to_input,
    matmul_op: _matmul,
    batch_matmul: _batch_matmul,
}
"""``kernel(op, xp, *inputs, out=None, **attrs)``."""
