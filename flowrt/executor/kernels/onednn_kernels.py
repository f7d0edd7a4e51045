"""Host kernels computed by oneDNN: convolutions, mean pooling, batch normalization, matrix products, of
float32; convolutions and products of 16-bit floats are computed in float32 and rounded once.

The operation's own kernel handles unsupported cases: other dtypes, empty arrays, products too small to
benefit, windows without fast code.

Results differ from the operations' own in the order of additions; and where padding meets a filter's infinity
or NaN: 0 times that value is added there, and nothing here. A relu that follows a convolution makes NaN
of -inf.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import lru_cache, partial
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from flowrt.device.host_memory import address_of
from flowrt.device.onednn.onednn import Unsupported
from flowrt.device.onednn.onednn_blas import multiply
from flowrt.device.onednn.primitives import (
    CLIP,
    DIFFERENCE,
    HARD_SWISH,
    LINEAR,
    PRODUCT,
    SUM,
    SWISH,
    Activation,
    Axis,
    Combination,
    Layout,
    PostOp,
    Primitive,
    batch_normalization,
    batch_normalization_gradient,
    convolution,
    convolution_filter_gradient,
    convolution_source_gradient,
    layout_of,
    matrix_product,
    mean_pooling,
    mean_pooling_gradient,
)
from flowrt.dtypes import bfloat16, float16
from flowrt.errors import InvalidArgumentError
from flowrt.graph.op_def import OpDef, ShapeContext
from flowrt.graph.ops.base.kernel_output import delivered
from flowrt.graph.ops.linalg.matmul import batch_matmul, matmul_op
from flowrt.graph.ops.nn.activations import relu
from flowrt.graph.ops.nn.batch_norm import batch_norm_grad_op, batch_norm_op, statistics_given
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
from flowrt.graph.passes.fusion import result_functions
from flowrt.graph.passes.fusion.accumulated_products import matmul_add_op
from flowrt.graph.passes.fusion.epilogues import Epilogue, fused_conv_op
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
    """``out``, or an array for the result of ``op``. Raises `InvalidArgumentError` for other arguments."""
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


IMAGES, FILTER, RESULT = range(3)

CONVOLUTION_GRADIENTS = (convolution_source_gradient, convolution_filter_gradient)
"""Primitives by what they compute: the images, the filter."""


class _Then(NamedTuple):
    """The post-ops of a convolution, and their other operands."""

    post_ops: tuple[PostOp, ...] = ()
    operands: tuple[Array, ...] = ()


def _nothing(result: Array) -> _Then:
    return _Then()


def _convolve(
    group: Grouping,
    sought: int,
    op: OpDef,
    attrs: Mapping[str, Any],
    arguments: Any,
    out: Any,
    epilogue: Callable[[Array], _Then] = _nothing,
) -> Any:
    """Compute the one of (images, filter, result) at index ``sought`` from the other two. The arguments are
    in this order; in place of images or filter to compute there is their shape. ``epilogue(result)``, with
    the result as images, is what follows the result of a convolution.
    """
    arrays = [*arguments, None][:3]
    given = arrays[1 if sought == 0 else 0]
    result = arrays[sought] = _result(op, attrs, arguments, given.dtype, out)
    if sought == RESULT:
        find, used = _forward_on(group, attrs, arrays, epilogue)
        find()(*used)
    else:
        images = _as_images(group, attrs, arrays)
        CONVOLUTION_GRADIENTS[sought](*images.layouts, images.axes)(*images.arrays)
    return result


class _Images(NamedTuple):
    """Images, filter and result as the library's, with the windows."""

    arrays: tuple[Array, Array, Array]
    layouts: tuple[Layout, Layout, Layout]
    axes: tuple[Axis, ...]


def _as_images(group: Grouping, attrs: Mapping[str, Any], arrays: Sequence[Array]) -> _Images:
    x, filter, y = arrays
    _check(x, filter, y)
    is_last = not channels_first(attrs["data_format"])
    axes = _conv_axes(x.shape, filter.shape[:-2], tuple(attrs.items()))
    x, y = _images(x, is_last), _images(y, is_last)
    filter = group(filter, x.shape[1])
    layouts = _image_layout(x), layout_of(filter, is_free=True), _image_layout(y)
    return _Images((x, filter, y), layouts, axes)


def _forward_on(
    group: Grouping, attrs: Mapping[str, Any], arrays: Sequence[Array], epilogue: Callable[[Array], _Then]
) -> tuple[Callable[[], Primitive], tuple[Array, ...]]:
    """A function that finds the primitive of a convolution, and the arrays that it is called with."""
    images = _in_rows(_as_images(group, attrs, arrays))
    then = epilogue(images.arrays[RESULT])
    find = partial(convolution, *images.layouts, images.axes, then.post_ops)
    return find, (*images.arrays, *then.operands)


def _in_rows(images: _Images) -> _Images:
    """``images``, with columns turned to rows. The library has a product for each row of the result: of 512
    pixels in a column it takes 38 ms for what takes 4 in a row.
    """
    if len(images.axes) != 2 or any(array.shape[-1] != 1 for array in images.arrays):
        return images
    x, filter, y = (array.swapaxes(-1, -2) for array in images.arrays)
    layouts = _image_layout(x), layout_of(filter, is_free=True), _image_layout(y)
    return _Images((x, filter, y), layouts, images.axes[::-1])


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
    return layout_of(images).channels_last() if is_last else layout_of(images, is_free=True)


# --- convolution with an epilogue

FORWARD: Mapping[OpDef, Grouping] = {
    conv2d_op: _by_group,
    conv3d_op: _by_group,
    depthwise_conv2d_op: _by_channel,
}

RELU = Activation(HARD_SWISH, alpha=float(np.finfo(np.float32).max)), Activation(LINEAR, alpha=1.0)
"""x * min(max(alpha * x, 0), 1) + 0. The library's own relu makes 0 of NaN, and would hide it; this one makes
NaN of -inf too.
"""


def _convolve_and_finish(op: OpDef, attrs: Mapping[str, Any], arguments: Any, out: Any) -> Any:
    """A convolution with its epilogue; where the library has no such, with the steps one by one."""
    epilogue: Epilogue = attrs["epilogue"]
    ((x, filter, *others),) = arguments
    conv = epilogue.conv
    own = {key: conv.attrs[key] for key in conv.op.kernel_attrs}
    with suppress(Unsupported, InvalidArgumentError):
        then = partial(_post_ops, epilogue, others)
        return _convolve(FORWARD[conv.op], RESULT, conv.op, own, (x, filter), out, then)
    result = ONEDNN_KERNELS[conv.op](conv.op, np, x, filter, **own)
    return delivered(np, epilogue.apply(np, result, others), result.dtype, out)


def _post_ops(epilogue: Epilogue, others: Sequence[Array], images: Array) -> _Then:
    """The post-ops for a result that becomes ``images``."""
    post_ops: list[PostOp] = []
    operands: list[Array] = []

    def combine(kind: int, other: Array) -> None:
        if other.ndim == images.ndim and other.shape != images.shape:
            other = other.swapaxes(-1, -2)  # as `_in_rows`
        if other.shape != images.shape:
            other = _by_channels(other, images)
        _check(other)
        post_ops.append(Combination(kind, _image_layout(other)))
        operands.append(other)

    is_last = not channels_first(epilogue.conv.attrs["data_format"])
    for step, values in epilogue.split(others):
        node = step.node
        if step.function is not None:
            _follow(post_ops, step.function)
        elif node.op is relu:
            post_ops += RELU
        elif node.op is batch_norm_op:
            scale, offset, mean, variance = values
            combine(DIFFERENCE, mean)
            combine(PRODUCT, scale / np.sqrt(variance + np.float32(node.attrs["epsilon"])))
            combine(SUM, offset)
        else:
            (other,) = values
            combine(SUM, _images(other, is_last) if other.ndim == images.ndim else other)
    return _Then(tuple(post_ops), tuple(operands))


def _follow(post_ops: list[PostOp], function: result_functions.ResultFunction) -> None:
    """Add ``function`` to ``post_ops``, or let it be part of the last, of two of which one does."""
    match function:
        case result_functions.Linear():
            before = post_ops[-1] if post_ops else None
            if isinstance(before, Activation) and before.kind == LINEAR:
                function = result_functions.Linear(before.alpha, before.beta).then(function)
                post_ops.pop()
            post_ops.append(Activation(LINEAR, *function))
        case result_functions.Clip(high):
            post_ops += (Activation(CLIP, -np.inf, high), *RELU)  # NaN is -inf between them
        case result_functions.HardSwish(alpha, beta, high):
            post_ops.append(Activation(HARD_SWISH, alpha / high, beta / high))
            _follow(post_ops, result_functions.Linear(high))
        case result_functions.Swish(alpha):
            post_ops.append(Activation(SWISH, alpha))


def _by_channels(vector: Array, images: Array) -> Array:
    """``vector``, one element per channel, in a shape that broadcasts to ``images``."""
    if vector.shape != images.shape[1:2]:
        raise Unsupported("shape")
    return vector[(None, slice(None), *[None] * (images.ndim - 2))]


# --- mean pooling


def _pool(op: OpDef, attrs: Mapping[str, Any], arguments: Any, out: Any) -> Any:
    """The means of the images, or, given their shape and the means' gradient, the images' gradient."""
    given = arguments[-1]
    result = _result(op, attrs, arguments, given.dtype, out)
    is_gradient = len(arguments) == 2
    x, y = (result, given) if is_gradient else (given, result)
    _check(x, y)
    axes = _pool_axes(x.shape, tuple(attrs.items()))
    is_last = axes[-1] == WHOLE
    batch, *spatial = (*axes[:1], *axes[1:-1]) if is_last else (axes[0], *axes[2:])
    if batch != WHOLE or axes[-1 if is_last else 1] != WHOLE:
        raise Unsupported("windows over images or channels")
    x, y = _images(x, is_last), _images(y, is_last)
    make = mean_pooling_gradient if is_gradient else mean_pooling
    make(layout_of(x), layout_of(y), tuple(spatial))(x, y)
    return result


@lru_cache(maxsize=MAX_KNOWN)
def _pool_axes(x_shape: tuple[int, ...], attrs: Attributes) -> tuple[Axis, ...]:
    return _axes(pool_axes(x_shape, **dict(attrs)))


WHOLE = Axis(taps=1, stride=1, dilation=1, before=0, after=0)
"""Axis for dimensions without windows."""


# --- batch normalization


def _batch_norm(op: OpDef, attrs: Mapping[str, Any], arguments: Any, out: Any) -> Any:
    x, scale, offset, *old = arguments
    y = np.empty_like(x) if out is None else out[0]
    is_training = attrs["is_training"]
    mean, variance = [np.empty_like(scale) for _ in old] if is_training else old
    images = _fit_images(attrs, (x, y), (scale, offset, mean, variance))
    normalize = batch_normalization(layout_of(images[0]), layout_of(scale), attrs["epsilon"], is_training)
    normalize(images[0], scale, offset, mean, variance, images[1])
    given = statistics_given(mean, variance, old, x.size // mean.size, attrs)
    return _delivered(out, (y, *given, mean, variance, np.zeros((), scale.dtype)))


def _batch_norm_grad(op: OpDef, attrs: Mapping[str, Any], arguments: Any, out: Any) -> Any:
    dy, x, scale, mean, variance, _ = arguments
    dx, dscale, doffset = [np.empty_like(a) for a in (x, scale, scale)] if out is None else out[:3]
    dy, x, images = _fit_images(attrs, (dy, x, dx), (scale, mean, variance, dscale, doffset))
    layouts = layout_of(x), layout_of(scale)
    differentiate = batch_normalization_gradient(*layouts, attrs["epsilon"], attrs["is_training"])
    differentiate(dy, x, scale, mean, variance, images, dscale, doffset)
    nothing = np.zeros(0, scale.dtype)
    return _delivered(out, (dx, dscale, doffset, nothing, nothing))


def _fit_images(attrs: Mapping[str, Any], images: Sequence[Array], vectors: Sequence[Array]) -> list[Array]:
    """``images`` in the library's order of dimensions, if they fit each other and the ``vectors``. It is 20
    times as fast as NumPy if the channels are last, and no faster if they are first.
    """
    arrays = *images, *vectors
    _check(*arrays)
    shape, is_last = images[0].shape, not channels_first(attrs["data_format"])
    are_alike = all(a.shape == shape for a in images) and all(a.shape == shape[-1:] for a in vectors)
    if not (is_last and are_alike and all(array.flags.c_contiguous for array in arrays)):
        raise Unsupported("layout")
    return [_images(array, True) for array in images]


def _delivered(out: Any, results: Sequence[Array]) -> Any:
    """``results``; in the arrays of ``out``, which has the first already, if there are some."""
    if out is None:
        return tuple([result.copy() if i else result for i, result in enumerate(results)])
    for target, result in zip(out[1:], results[1:], strict=True):
        if target is not result:
            target[...] = result
    return tuple(out)


# --- products of matrices


def _factors(attrs: Mapping[str, Any], arguments: Any) -> list[Array]:
    """Two factors, each as it is or, by the attributes in their order, transposed."""
    return [
        factor.swapaxes(-1, -2) if is_turned else factor
        for factor, is_turned in zip(arguments, attrs.values(), strict=True)
    ]


def _matrices(attrs: Mapping[str, Any], arguments: Any) -> tuple[Array, Array, tuple[int, ...], int]:
    """Two factors as matrices or batches of one rank, the shape of their product, and the number of
    multiplications for one matrix.
    """
    a, b = _factors(attrs, arguments)
    (*batch, m, k), (*other, k2, n) = a.shape, b.shape
    if a.dtype != np.float32 or b.dtype != np.float32 or k != k2 or m == 1 or n == 1:
        raise Unsupported("dtype, shape, or a matrix-vector product, which is faster in BLAS")
    if batch != other:
        rank = max(a.ndim, b.ndim)
        a, b = a[(None,) * (rank - a.ndim)], b[(None,) * (rank - b.ndim)]
        batch = list(np.broadcast_shapes(a.shape[:-2], b.shape[:-2]))
    if math.prod(batch) * m * k * n <= MIN_PRODUCT:
        raise Unsupported("size")
    return a, b, (*batch, m, n), m * k * n


def _product(op: OpDef, attrs: Mapping[str, Any], arguments: Any, out: Any) -> Array:
    """The product of two factors."""
    a, b, shape, work = _matrices(attrs, arguments)
    result: Array = np.empty(shape, np.float32) if out is None else out
    if work > MAX_UNPACKED:
        multiply(a, b, result)
    else:
        _primitive_of(a, b, result)(a, b, result)
    return result


def _added_product(op: OpDef, attrs: Mapping[str, Any], arguments: Any, out: Any) -> Array:
    """The product of two factors, added to a matrix, which may be at the place of the result."""
    total, *factors = arguments
    a, b, shape, work = _matrices(attrs, factors)
    _check(total)
    if work > MAX_UNPACKED:
        raise Unsupported("size")
    result: Array = np.empty(shape, np.float32) if out is None else out
    add = _primitive_of(a, b, result, adds=True)
    if address_of(total) != address_of(result):
        np.copyto(result, total)
    add(a, b, result)
    return result


def _primitive_of(a: Array, b: Array, c: Array, adds: bool = False) -> Primitive:
    return matrix_product(layout_of(a), layout_of(b), layout_of(c), adds)


# --- primitives on memory that stays


class PrimitiveOn(NamedTuple):
    """A function that finds a primitive, and the ``arrays`` that it is called with: each is a view of the
    argument of that number among ``sources``, or, for None, of the result.
    """

    find: Callable[[], Primitive]
    arrays: tuple[Array, ...]
    sources: tuple[int | None, ...]


def _product_on(op: OpDef, attrs: Mapping[str, Any], arguments: Sequence[Array], out: Array) -> PrimitiveOn:
    adds = op is matmul_add_op
    if adds and address_of(arguments[0]) != address_of(out):
        raise Unsupported("a sum at two places")
    a, b, shape, work = _matrices(attrs, arguments[-2:])
    if out.shape != shape or out.dtype != np.float32 or work > MAX_UNPACKED:
        raise Unsupported("shape or size")
    find = partial(matrix_product, layout_of(a), layout_of(b), layout_of(out), adds)
    first = len(arguments) - 2
    return PrimitiveOn(find, (a, b, out), (first, first + 1, None))


def _convolution_on(
    op: OpDef, attrs: Mapping[str, Any], arguments: Sequence[Array], out: Array
) -> PrimitiveOn:
    x, filter, *others = arguments
    then: Callable[[Array], _Then] = _nothing
    if op is fused_conv_op:
        epilogue: Epilogue = attrs["epilogue"]
        if any(step.node.op is batch_norm_op for step in epilogue.steps):
            raise Unsupported("factors that are computed in each call")
        op, then = epilogue.conv.op, partial(_post_ops, epilogue, others)
        attrs = {key: epilogue.conv.attrs[key] for key in op.kernel_attrs}
    find, arrays = _forward_on(FORWARD[op], attrs, (x, filter, out), then)
    return PrimitiveOn(find, arrays, (0, 1, None, *range(2, len(arguments))))


_ON_MEMORY: Mapping[OpDef, Callable[..., PrimitiveOn]] = {
    **dict.fromkeys((matmul_op, batch_matmul, matmul_add_op), _product_on),
    **dict.fromkeys((*FORWARD, fused_conv_op), _convolution_on),
}

PRIMITIVES = frozenset(_ON_MEMORY)
"""The operations that may be one primitive."""


def primitive_on(op: OpDef, attrs: Mapping[str, Any], arguments: Sequence[Array], out: Array) -> PrimitiveOn:
    """The primitive of one of `PRIMITIVES` on arrays with these layouts. ``arguments`` are all inputs.

    Raises `Unsupported` where it takes more than a primitive, or the library has none.
    """
    return _ON_MEMORY[op](op, attrs, arguments, out)


# --- all of them

_NARROW = (float16.np, bfloat16.np)


def _in_float32(
    compute: Callable[..., Any], op: OpDef, attrs: Mapping[str, Any], arguments: Any, out: Any
) -> Any:
    """``compute``, of 16-bit floats by way of float32, as the operation's own kernel does it."""
    narrow = next((a.dtype for a in arguments if isinstance(a, np.ndarray) and a.dtype in _NARROW), None)
    if narrow is None:
        return compute(op, attrs, arguments, out)
    wide = [a.astype(np.float32) if isinstance(a, np.ndarray) else a for a in arguments]
    return delivered(np, compute(op, attrs, wide, None), narrow, out)


def _or_own(
    compute: Callable[..., Any], op: OpDef, xp: Any, *inputs: Any, out: Any = None, workspace: Any = None,
    **attrs: Any,
) -> Any:  # fmt: skip
    """``compute(op, attrs, inputs, out)``, or the operation's own kernel where that raises `Unsupported`."""
    with suppress(Unsupported):
        return compute(op, attrs, inputs, out)
    own = partial(op.kernel, workspace=workspace) if op.takes_workspace else op.kernel
    return own(xp, *inputs, out=out, **attrs)


_COMPUTED: Mapping[OpDef, Callable[..., Any]] = {
    conv2d_op: partial(_in_float32, partial(_convolve, _by_group, RESULT)),
    conv2d_backprop_input_op: partial(_in_float32, partial(_convolve, _by_group, IMAGES)),
    conv2d_backprop_filter_op: partial(_in_float32, partial(_convolve, _by_group, FILTER)),
    conv3d_op: partial(_in_float32, partial(_convolve, _by_group, RESULT)),
    conv3d_backprop_input_op: partial(_in_float32, partial(_convolve, _by_group, IMAGES)),
    conv3d_backprop_filter_op: partial(_in_float32, partial(_convolve, _by_group, FILTER)),
    depthwise_conv2d_op: partial(_in_float32, partial(_convolve, _by_channel, RESULT)),
    depthwise_backprop_input_op: partial(_in_float32, partial(_convolve, _by_channel, IMAGES)),
    depthwise_backprop_filter_op: partial(_in_float32, partial(_convolve, _by_channel, FILTER)),
    fused_conv_op: _convolve_and_finish,
    average_pool_op: _pool,
    average_pool_grad_op: _pool,
    average_pool3d_op: _pool,
    average_pool3d_grad_op: _pool,
    batch_norm_op: _batch_norm,
    batch_norm_grad_op: _batch_norm_grad,
    matmul_op: partial(_in_float32, _product),
    batch_matmul: partial(_in_float32, _product),
    matmul_add_op: _added_product,
}

ONEDNN_KERNELS: Mapping[OpDef, Kernel] = {op: partial(_or_own, compute) for op, compute in _COMPUTED.items()}
"""``kernel(op, xp, *inputs, out=None, **attrs)``."""
