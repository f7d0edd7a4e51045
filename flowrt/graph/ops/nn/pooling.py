"""Pooling: the maximum or the mean of every window.

Rules of this file: a window has a size along every axis of the input, batch and channels too (where it is 1),
so kernels are independent of data format and number of dimensions. Maxima and sums are computed one axis at a
time: 3x3 takes 4 passes, not 8. The gradient of a maximum flows to its first occurrence in the window, in
row-major order; an element's gradients are added up in the order of their windows, as in TensorFlow.

The maximum with a NaN is NaN, as in NumPy, and has no gradient. TensorFlow's CPU kernels ignore NaNs, but
give a gradient to one that is first in its window.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from flowrt import dtypes
from flowrt.errors import InvalidArgumentError, UnimplementedError
from flowrt.graph.construction.batching_rules import merged
from flowrt.graph.construction.graph import Operation, Tensor, get_default_graph
from flowrt.graph.op_def import LINEAR, AxesRule, OpDef, Sample, ShapeContext, define_op, sample
from flowrt.graph.op_facets import Traits
from flowrt.graph.ops.base.axes import images
from flowrt.graph.ops.base.identities import attributes_of
from flowrt.graph.ops.base.kernel_output import accumulator
from flowrt.graph.ops.base.shape_manipulation import expand_dims, shape, squeeze
from flowrt.graph.ops.nn.windows import (
    Axis,
    New,
    Tap,
    begin,
    channels_first,
    check_positive,
    every_axis,
    lay_windows,
    of_rank,
    output_lengths,
    pad,
    padding_attrs,
    ranked_elements,
    steps_of,
    taps_inside,
)
from flowrt.graph.shapes import Shape, merge
from flowrt.graph.tf1_signatures import tf1_names
from flowrt.graph.typing import DataFormat, Ints, NumericLike, PaddingName

__all__ = [
    "avg_pool", "avg_pool1d", "avg_pool2d", "avg_pool3d", "max_pool", "max_pool1d", "max_pool2d",
    "max_pool3d", "pool",
]  # fmt: skip

# --- geometry


def _pooled_shape(x: Shape, attrs: Mapping[str, Any]) -> tuple[int | None, ...]:
    ksize = attrs["ksize"]
    check_positive("ksize", ksize, len(ksize))
    steps = steps_of(attrs)
    if len(steps) != len(ksize):
        raise InvalidArgumentError(f"strides: expected {len(ksize)} numbers, like ksize; got {len(steps)}")
    return output_lengths(of_rank("input", x, len(ksize)), ksize, steps)


def _max_grad_shape(s: ShapeContext) -> Sequence[Shape]:
    for pooled in s.shapes[1:]:
        merge(_pooled_shape(s.shapes[0], s.attrs), pooled)
    return [s.shapes[0]]


def _max_grad_grad_shape(s: ShapeContext) -> Sequence[Shape]:
    whole = merge(s.shapes[0], s.shapes[2])
    return [merge(_pooled_shape(whole, s.attrs), s.shapes[1])]


def _average_grad_shape(s: ShapeContext) -> Sequence[Shape]:
    sizes = of_rank("orig_input_shape", s.value(0), len(s.attrs["ksize"]))
    merge(_pooled_shape(sizes, s.attrs), s.shapes[1])
    return [sizes]


def pool_axes(x_shape: Sequence[int], *pooled: Sequence[int], **attrs: Any) -> list[Axis]:
    """The windows along every axis. Raises `InvalidArgumentError` unless ``pooled`` are shapes of results."""
    expected = _pooled_shape(tuple(x_shape), attrs)
    for found in pooled:
        if found != expected:
            raise InvalidArgumentError(f"expected a gradient of shape {list(expected)}; got {list(found)}")
    return [lay_windows(*axis) for axis in zip(x_shape, attrs["ksize"], steps_of(attrs), strict=True)]


# --- kernels


def _fold(function: Any, x: Any, axes: Sequence[Axis], out: Any, new: New) -> None:
    """``function`` over the elements of every window of the padded ``x``, one axis after the other, into
    ``out``.
    """
    folded = [d for d, a in enumerate(axes) if a.taps > 1 or a.stride > 1]
    if not folded:
        out[...] = x
    for d in folded:
        first, *rest = [x[(slice(None),) * d + (axes[d].at(t),)] for t in range(axes[d].taps)]
        if not rest:
            x = first
            if d == folded[-1]:
                out[...] = first
            continue
        x = out if d == folded[-1] else new(first.shape, first.dtype)
        function(first, rest[0], out=x)
        for part in rest[1:]:
            function(x, part, out=x)


def lowest(dtype: Any) -> Any:
    """The identity element of the maximum, used as padding."""
    return np.iinfo(dtype).min if dtype.kind in "iu" else -np.inf


def _max_pool(
    xp: Any, input: Any, ksize: Any, strides: Any, padding: str, explicit_paddings: Any = (), out: Any = None,
    workspace: Any = None,
) -> Any:  # fmt: skip
    attrs = dict(ksize=ksize, strides=strides, padding=padding, explicit_paddings=explicit_paddings)
    axes = pool_axes(input.shape, **attrs)
    out, new = xp.empty([a.outputs for a in axes], input.dtype) if out is None else out, begin(xp, workspace)
    _fold(xp.maximum, pad(input, axes, input.dtype, lowest(input.dtype), new), axes, out, new)
    return out


def _ranks(xp: Any, x: Any, y: Any, taps: Sequence[Tap], new: New) -> Any:
    """The rank of the first of ``taps`` with the maximum ``y`` of each window: the last tap is 1, the one
    before 2; 0 if none is equal to it, as with NaN.
    """
    ranks, room = (new(y.shape, np.min_scalar_type(len(taps))) for _ in range(2))
    ranks[...] = 0
    for behind, (windows, elements) in zip(range(len(taps), 0, -1), taps, strict=True):
        rank, highest = room[windows], ranks[windows]
        xp.equal(x[elements], y[windows], out=rank)
        rank *= behind
        xp.maximum(highest, rank, out=highest)
    return ranks


def _max_pool_grad(
    xp: Any, orig_input: Any, orig_output: Any, grad: Any, ksize: Any, strides: Any, padding: str,
    explicit_paddings: Any = (), out: Any = None, workspace: Any = None,
) -> Any:  # fmt: skip
    attrs = dict(ksize=ksize, strides=strides, padding=padding, explicit_paddings=explicit_paddings)
    axes = pool_axes(orig_input.shape, orig_output.shape, grad.shape, **attrs)
    out, new = xp.empty(orig_input.shape, grad.dtype) if out is None else out, begin(xp, workspace)
    taps = taps_inside(axes)
    ranks = _ranks(xp, orig_input, orig_output, taps, new)
    if xp is np:
        total, gradient = new((orig_input.size + 1,), grad.dtype), new(grad.shape, grad.dtype)
        total[...] = 0
        gradient[...] = grad
        np.add.at(total, ranked_elements(ranks, axes, new).reshape(-1), gradient.reshape(-1))
        out[...] = total[:-1].reshape(orig_input.shape)
        return out
    # On a device each tap is a pass: NumPy takes twice as long so, but atomic additions have no fixed order.
    out[...] = 0
    for rank, (windows, elements) in enumerate(reversed(taps), 1):  # reversed: in the order of the windows
        out[elements] += xp.where(ranks[windows] == rank, grad[windows], grad.dtype.type(0))
    return out


def _max_pool_grad_grad(
    xp: Any, orig_input: Any, orig_output: Any, grad: Any, ksize: Any, strides: Any, padding: str,
    explicit_paddings: Any = (), out: Any = None, workspace: Any = None,
) -> Any:  # fmt: skip
    attrs = dict(ksize=ksize, strides=strides, padding=padding, explicit_paddings=explicit_paddings)
    taps = taps_inside(pool_axes(orig_input.shape, orig_output.shape, **attrs))
    if grad.shape != orig_input.shape:
        raise InvalidArgumentError(f"grad: expected shape {list(orig_input.shape)}; got {list(grad.shape)}")
    out, new = xp.empty(orig_output.shape, grad.dtype) if out is None else out, begin(xp, workspace)
    ranks = _ranks(xp, orig_input, orig_output, taps, new)
    room = new(orig_output.shape, np.bool_)
    out[...] = 0
    for rank, (windows, elements) in enumerate(reversed(taps), 1):
        is_here = room[windows]
        xp.equal(ranks[windows], rank, out=is_here)
        xp.copyto(out[windows], grad[elements], where=is_here)
    return out


def _counts(xp: Any, axes: Sequence[Axis], dtype: Any) -> Any:
    """Number of elements of each window inside the input: an array that broadcasts to the output."""
    counts = xp.ones((1,) * len(axes), dtype)
    for d, a in enumerate(axes):
        taken = xp.arange(a.outputs)[:, None] * a.stride + xp.arange(a.taps) * a.dilation - a.before
        inside = xp.count_nonzero((taken >= 0) & (taken < a.length), axis=1)
        if a.taps > 1:
            counts = counts * inside.astype(dtype).reshape((-1,) + (1,) * (len(axes) - d - 1))
    return counts


def _average_pool(
    xp: Any, value: Any, ksize: Any, strides: Any, padding: str, out: Any = None, workspace: Any = None
) -> Any:
    axes = pool_axes(value.shape, ksize=ksize, strides=strides, padding=padding)
    dtype = accumulator(value)
    out, new = xp.empty([a.outputs for a in axes], value.dtype) if out is None else out, begin(xp, workspace)
    total = out if dtype == value.dtype else new(out.shape, dtype)
    _fold(xp.add, pad(value, axes, dtype, 0, new), axes, total, new)
    out[...] = xp.divide(total, _counts(xp, axes, dtype), out=total)
    return out


def _average_pool_grad(
    xp: Any, orig_input_shape: Any, grad: Any, ksize: Any, strides: Any, padding: str, out: Any = None,
    workspace: Any = None,
) -> Any:  # fmt: skip
    axes = pool_axes(orig_input_shape, grad.shape, ksize=ksize, strides=strides, padding=padding)
    dtype = accumulator(grad)
    out, new = xp.empty(orig_input_shape, grad.dtype) if out is None else out, begin(xp, workspace)
    spread = xp.divide(grad, _counts(xp, axes, dtype), out=new(grad.shape, dtype))
    for d, a in enumerate(axes):
        if a.taps == a.stride == 1:
            continue
        total = new((*spread.shape[:d], a.padded, *spread.shape[d + 1 :]), dtype)
        total[...] = 0
        for tap in range(a.taps):
            total[(slice(None),) * d + (a.at(tap),)] += spread
        spread = total[(slice(None),) * d + (a.inner,)]
    out[...] = spread
    return out


# --- samples


def _cases(spatial: int) -> Iterable[tuple[tuple[int, ...], dict[str, Any]]]:
    """Input shape and attributes."""
    two, three = ((1, *(n,) * spatial, 1) for n in (2, 3))
    x = (2, 5, 4, 3)[: spatial + 1]
    yield (*x, 2), dict(ksize=two, strides=two, padding="VALID")
    yield (*x, 2), dict(ksize=three, strides=two, padding="SAME")
    yield (*x, 1), dict(ksize=two, strides=(1,) * (spatial + 2), padding="SAME")
    yield (0, *x[1:], 1), dict(ksize=two, strides=two, padding="SAME")
    first = "NCHW" if spatial == 2 else "NCDHW"
    taps, steps = (1, 1, 3, *(2,) * (spatial - 1)), (1, 1, *(2,) * spatial)
    yield (1, 2, *x[1:]), dict(ksize=taps, strides=steps, padding="SAME", data_format=first)


def _arrays(rng: np.random.Generator, spatial: int) -> Iterable[tuple[Any, Any, dict[str, Any]]]:
    """(input without equal elements, pooled gradient, attributes)."""
    cases = [(x, attrs, dtypes.float64) for x, attrs in _cases(spatial)]
    floating = sorted(dtypes.FLOATING, key=str)
    cases += [(*case, dtype) for case, dtype in zip(_cases(spatial), floating, strict=False)]
    for x_shape, attrs, dtype in cases:
        count = int(np.prod(x_shape))
        x = (rng.permutation(count) / max(1, count)).reshape(x_shape).astype(dtype.np)
        y_shape: Any = _pooled_shape(x_shape, attrs)
        yield x, np.asarray(rng.standard_normal(y_shape)).astype(dtype.np), attrs


def _samples(
    spatial: int, choose: Callable[[Any, Any, Any], tuple[Any, ...]]
) -> Callable[[Any], Iterable[Sample]]:
    return lambda rng: [
        sample(*choose(x, _sample_maximum(x, attrs), y), **attrs) for x, y, attrs in _arrays(rng, spatial)
    ]


def _sample_maximum(x: Any, attrs: dict[str, Any]) -> Any:
    return _max_pool(np, x, attrs["ksize"], attrs["strides"], attrs["padding"])


# --- definitions


def _third_tangent(
    op: Operation, dx: Tensor | None, dy: Tensor | None, dgrad: Tensor | None
) -> list[Tensor | None]:
    """The tangent of grad alone: almost everywhere, the positions of the maxima are constant."""
    return [None if dgrad is None else op.op_def(*op.inputs[:2], dgrad, **attributes_of(op))]


_WINDOW = "ksize: list(int), strides: list(int), padding: string"
_EXPLICIT = "explicit_paddings: list(int) = ()"


def _axes(rule: str, spatial: int) -> AxesRule:
    """``rule`` of images x and their windows y, in the op's data format."""

    def axes(s: ShapeContext) -> str:
        layout, rank = s.attrs["data_format"], spatial + 2
        return rule.format(x=images(layout, rank=rank), y=images(layout, spatial="p", rank=rank))

    return axes


def _define_maximum(dims: str, spatial: int, types: str, attrs: str) -> tuple[OpDef[Tensor], OpDef[Tensor]]:
    """The maximum over windows, and its gradient and that one's transpose as ops. Returns the first two."""
    of_input = "TInput" if dims == "3D" else "T"  # as TensorFlow has the attributes of MaxPool3DGrad
    forward: OpDef = define_op(
        f"MaxPool{dims}",
        f"input: T in {types} -> T",
        attrs=attrs,
        shape=lambda s: [_pooled_shape(s.shapes[0], s.attrs)],
        kernel=_max_pool,
        vjp=lambda op, dy: [to_input(op.inputs[0], op.outputs[0], dy, **attributes_of(op))],
        jvp=lambda op, dx: [to_output(op.inputs[0], op.outputs[0], dx, **attributes_of(op))],
        samples=_samples(spatial, lambda x, y, dy: (x,)),
        batch=merged(0),
        axes=_axes("{x} -> {y}", spatial),
        traits=Traits(narrows=True),
        doc="The maximum of every window.",
    )
    to_input: OpDef = define_op(
        f"MaxPool{dims}Grad",
        f"orig_input: {of_input} in {types}, orig_output: {of_input}, grad: T in {types} -> T",
        attrs=attrs,
        shape=_max_grad_shape,
        kernel=_max_pool_grad,
        vjp=lambda op, dx: [None, None, to_output(*op.inputs[:2], dx, **attributes_of(op))],
        jvp=_third_tangent,
        samples=_samples(spatial, lambda x, y, dy: (x, y, dy)),
        batch=merged(0, 1, 2),
        axes=_axes("{x}, {y}, {y} -> {x}", spatial),
        traits=Traits(narrows=True),
        doc="The gradient of the maximum with respect to its input: each window's, at its first maximum.",
    )
    to_output: OpDef = define_op(
        f"MaxPool{dims}GradGrad",
        f"orig_input: T in {types}, orig_output: T, grad: T -> T",
        attrs=attrs,
        shape=_max_grad_grad_shape,
        kernel=_max_pool_grad_grad,
        vjp=lambda op, dy: [None, None, to_input(*op.inputs[:2], dy, **attributes_of(op))],
        jvp=_third_tangent,
        samples=_samples(spatial, lambda x, y, dy: (x, y, x)),
        batch=merged(0, 1, 2),
        axes=_axes("{x}, {y}, {x} -> {y}", spatial),
        traits=Traits(narrows=True),
        doc="The element of ``grad`` where each window has its first maximum: the transpose of the gradient.",
    )
    return forward, to_input


def _define_average(
    dims: str, spatial: int, input_name: str, attrs: str
) -> tuple[OpDef[Tensor], OpDef[Tensor]]:
    """The mean over windows, and its gradient as an op."""
    forward: OpDef = define_op(
        f"AvgPool{dims}",
        f"{input_name}: T in FLOATING -> T",
        attrs=attrs,
        shape=lambda s: [_pooled_shape(s.shapes[0], s.attrs)],
        kernel=_average_pool,
        vjp=lambda op, dy: [to_input(shape(op.inputs[0]), dy, **attributes_of(op))],
        jvp=LINEAR,
        samples=_samples(spatial, lambda x, y, dy: (x,)),
        batch=merged(0),
        axes=_axes("{x} -> {y}", spatial),
        doc="The mean of every window, over its elements inside the input.",
    )
    to_input: OpDef = define_op(
        f"AvgPool{dims}Grad",
        "orig_input_shape: host shape int32, grad: T in FLOATING -> T",
        attrs=attrs,
        shape=_average_grad_shape,
        kernel=_average_pool_grad,
        vjp=lambda op, dx: [None, forward(dx, **attributes_of(op))],
        jvp=LINEAR,
        samples=_samples(spatial, lambda x, y, dy: (np.array(x.shape, np.int32), dy)),
        batch=merged(1, dims=0),
        axes=_axes("{y} -> {x}", spatial),
        doc="The gradient of the mean with respect to its input.",
    )
    return forward, to_input


_IMAGES, _VOLUMES = (f"{_WINDOW}, data_format: string = {layout!r}" for layout in ("NHWC", "NDHWC"))
max_pool_op, max_pool_grad_op = _define_maximum("", 2, "REAL", f"{_IMAGES}, {_EXPLICIT}")
max_pool3d_op, max_pool3d_grad_op = _define_maximum("3D", 3, "FLOATING", _VOLUMES)
average_pool_op, average_pool_grad_op = _define_average("", 2, "value", _IMAGES)
average_pool3d_op, average_pool3d_grad_op = _define_average("3D", 3, "input", _VOLUMES)

# --- TensorFlow's functions


@tf1_names(input="value")
def max_pool(
    value: NumericLike,
    ksize: Ints,
    strides: Ints,
    padding: PaddingName,
    data_format: DataFormat = "NHWC",
    name: str | None = None,
) -> Tensor:
    """The maximum of each window of images. Padding is never the maximum.

    Args:
        value: Images ``[n, h, w, c]``, or ``[n, c, h, w]`` with ``data_format`` "NCHW".
        ksize: The window: an int, one per spatial axis, or one per dimension.
        strides: The steps between windows, likewise.
        padding: "SAME", "VALID", or a list of (before, after) pairs, one per axis.
        data_format: "NHWC" or "NCHW".

    Returns:
        A tensor of the same rank and dtype, with one row and column per window.

    Example:
        >>> image = tf.reshape(tf.range(16.0), [1, 4, 4, 1])
        >>> tf.nn.max_pool(image, ksize=2, strides=2, padding='VALID').eval()[0, :, :, 0]
        array([[ 5.,  7.],
               [13., 15.]], dtype=float32)
    """
    return _pool_nd(max_pool_op, 2, value, ksize, strides, padding, data_format, name)


def max_pool2d(
    input: NumericLike,
    ksize: Ints,
    strides: Ints,
    padding: PaddingName,
    data_format: DataFormat = "NHWC",
    name: str | None = None,
) -> Tensor:
    """The same as `max_pool`."""
    return _pool_nd(max_pool_op, 2, input, ksize, strides, padding, data_format, name)


@tf1_names(input="value")
def avg_pool(
    value: NumericLike,
    ksize: Ints,
    strides: Ints,
    padding: PaddingName,
    data_format: DataFormat = "NHWC",
    name: str | None = None,
) -> Tensor:
    """The mean of each window of images ``[n, h, w, c]`` (or NCHW); elements of the padding do not count.

    ``ksize`` and ``strides`` are an int, one per spatial axis, or one per dimension; ``padding`` is SAME or
    VALID.

    Example:
        >>> image = tf.reshape(tf.range(16.0), [1, 4, 4, 1])
        >>> tf.nn.avg_pool(image, ksize=2, strides=2, padding='VALID').eval()[0, :, :, 0]
        array([[ 2.5,  4.5],
               [10.5, 12.5]], dtype=float32)
    """
    return _pool_nd(average_pool_op, 2, value, ksize, strides, padding, data_format, name)


avg_pool2d = avg_pool


def max_pool3d(
    input: NumericLike,
    ksize: Ints,
    strides: Ints,
    padding: PaddingName,
    data_format: str = "NDHWC",
    name: str | None = None,
) -> Tensor:
    """The maximum of each window of volumes ``[n, d, h, w, c]`` (or NCDHW)."""
    return _pool_nd(max_pool3d_op, 3, input, ksize, strides, padding, data_format, name)


def avg_pool3d(
    input: NumericLike,
    ksize: Ints,
    strides: Ints,
    padding: PaddingName,
    data_format: str = "NDHWC",
    name: str | None = None,
) -> Tensor:
    """The mean of each window of volumes ``[n, d, h, w, c]`` (or NCDHW); elements of the padding do not
    count.
    """
    return _pool_nd(average_pool3d_op, 3, input, ksize, strides, padding, data_format, name)


def max_pool1d(
    input: NumericLike,
    ksize: Ints,
    strides: Ints,
    padding: PaddingName,
    data_format: str = "NWC",
    name: str | None = None,
) -> Tensor:
    """The maximum of each window of sequences ``[n, w, c]`` (or NCW)."""
    return _pool1d(max_pool_op, input, ksize, strides, padding, data_format, name or "max_pool1d")


def avg_pool1d(
    input: NumericLike,
    ksize: Ints,
    strides: Ints,
    padding: PaddingName,
    data_format: str = "NWC",
    name: str | None = None,
) -> Tensor:
    """The mean of each window of sequences ``[n, w, c]`` (or NCW); elements of the padding do not count."""
    return _pool1d(average_pool_op, input, ksize, strides, padding, data_format, name or "avg_pool1d")


def _pool_nd(
    op: OpDef[Tensor],
    spatial: int,
    x: Any,
    ksize: Any,
    strides: Any,
    padding: PaddingName,
    data_format: str,
    name: str | None,
) -> Tensor:
    ksize = every_axis("ksize", ksize, spatial, data_format)
    strides = every_axis("strides", strides, spatial, data_format)
    return op(x, ksize=ksize, strides=strides, **padding_attrs(padding), data_format=data_format, name=name)


def _pool1d(
    op: OpDef[Tensor], x: Any, ksize: Any, strides: Any, padding: PaddingName, data_format: str, name: str
) -> Tensor:
    """Pool sequences as images of height 1."""
    axis = 2 if channels_first(data_format) else 1
    layout = data_format.replace("W", "HW")
    sizes = [every_axis(key, v, 1, data_format) for key, v in (("ksize", ksize), ("strides", strides))]
    ksize, strides = ((*v[:axis], 1, *v[axis:]) for v in sizes)
    with get_default_graph().name_scope(name):
        return squeeze(_pool_nd(op, 2, expand_dims(x, axis), ksize, strides, padding, layout, None), [axis])


@tf1_names(dilations="dilation_rate")
def pool(
    input: Any,
    window_shape: Sequence[int],
    pooling_type: str,
    padding: PaddingName,
    dilation_rate: Ints | None = None,
    strides: Any = None,
    name: str | None = None,
    data_format: str | None = None,
) -> Tensor:
    """The maximum (``pooling_type`` MAX) or mean (AVG) of windows of ``window_shape``, of 1 to 3 spatial
    dimensions.

    Raises `UnimplementedError` for dilations other than 1.
    """
    spatial = len(window_shape)
    if dilation_rate is not None and set(every_axis("dilations", dilation_rate, spatial, "NHWC")) != {1}:
        raise UnimplementedError(f"pool: expected dilations of 1; got {dilation_rate}")
    if pooling_type not in ("MAX", "AVG") or not 1 <= spatial <= 3:
        raise InvalidArgumentError(
            f"pool: expected MAX or AVG over 1 to 3 dimensions; got {pooling_type!r} over {spatial}"
        )
    pools = (
        (max_pool1d, max_pool2d, max_pool3d) if pooling_type == "MAX" else (avg_pool1d, avg_pool, avg_pool3d)
    )
    layout: Any = data_format or ("NWC", "NHWC", "NDHWC")[spatial - 1]
    strides = (1,) * spatial if strides is None else strides
    return pools[spatial - 1](input, window_shape, strides, padding, layout, name)
