"""The convolution ops: Conv2D and Conv3D, each with ops for the gradients of its input and its filter.

Rules of this file: kernels work on channels-last views and on any number of spatial dimensions; a grouped
convolution is one convolution per group on slices of the channels; float16 and bfloat16 are multiplied in
float32. Convolution is bilinear in input and filter, so the gradients of each of the three ops are the other
two, at any order.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from flowrt import dtypes
from flowrt.errors import InvalidArgumentError
from flowrt.graph.construction.batching_rules import merged
from flowrt.graph.construction.graph import Operation, Tensor
from flowrt.graph.node import TensorSpec
from flowrt.graph.op_def import AxesRule, OpDef, ShapeContext, define_op, sample
from flowrt.graph.op_facets import Kernel, Traits
from flowrt.graph.ops.base.axes import images
from flowrt.graph.ops.base.identities import attributes_of
from flowrt.graph.ops.base.kernel_output import accumulator
from flowrt.graph.ops.base.shape_manipulation import shape
from flowrt.graph.ops.nn.windows import (
    Axis,
    Parts,
    Step,
    begin,
    channels_first,
    channels_last,
    image_blocks,
    join_layout,
    lay_windows,
    of_rank,
    output_lengths,
    patches,
    split_layout,
    steps_of,
    taps_of,
)
from flowrt.graph.shapes import Shape, merge, num_elements

# --- geometry


def spatial_steps(attrs: Mapping[str, Any]) -> tuple[Step, ...]:
    """Strides and dilations of the windows along each spatial axis.

    Raises `InvalidArgumentError` for attributes that `steps_of` rejects and for strides along batch or
    channels.
    """
    batch, spatial, channels = split_layout(steps_of(attrs), attrs["data_format"])
    for step in (batch, channels):
        if (step.stride, step.dilation, step.explicit) != (1, 1, (0, 0)):
            raise InvalidArgumentError(
                "expected strides and dilations of 1 and no padding along batch and channels;"
                f" got strides {list(attrs['strides'])}, dilations {list(attrs['dilations'])}"
            )
    return spatial


def conv_axes(x_shape: Sequence[int], taps: Sequence[int], attrs: Mapping[str, Any]) -> list[Axis]:
    """The windows of a convolution along each spatial axis of an input of ``x_shape``."""
    spatial = split_layout(x_shape, attrs["data_format"])[1]
    return [lay_windows(*axis) for axis in zip(spatial, taps, spatial_steps(attrs), strict=True)]


def _check_groups(x_channels: int | None, filter: Sequence[int | None]) -> None:
    """Raise `InvalidArgumentError` when the channels do not fall into groups of the filter's."""
    *_, per_group, filters = filter
    if x_channels is None or per_group is None or filters is None:
        return
    groups = x_channels // max(1, per_group)
    if groups * per_group != x_channels or (groups and filters % groups):
        raise InvalidArgumentError(
            f"expected a filter [..., c, f] where c divides the input's {x_channels} channels into groups, "
            f"and their number divides f; got {list(filter)}"
        )


def _forward_shape(x: Shape, filter: Shape, attrs: Mapping[str, Any]) -> tuple[int | None, ...]:
    layout, rank = attrs["data_format"], len(attrs["strides"])
    steps = spatial_steps(attrs)
    batch, spatial, channels = split_layout(of_rank("input", x, rank), layout)
    taps = of_rank("filter", filter, rank)
    _check_groups(channels, taps)
    return join_layout(batch, output_lengths(spatial, taps[:-2], steps), taps[-1], layout)


ForwardShape: TypeAlias = Callable[[Shape, Shape, Mapping[str, Any]], tuple[int | None, ...]]
"""The shape rule of a convolution: the output's shape from those of input and filter, and the attributes."""


def _sizes(s: ShapeContext, position: int) -> Shape:
    """The shape that is the value of host input ``position``."""
    name, value = s.op.inputs[position].name, s.value(position)
    return of_rank(name, value, len(s.attrs["strides"]))


def check_gradient(
    x: Shape, filter: Shape, dy: Any, attrs: Mapping[str, Any], shape_of: ForwardShape = _forward_shape
) -> None:
    """Raise `InvalidArgumentError` unless ``dy`` has the shape that convolving has: memory is read by it."""
    expected = shape_of(x, filter, attrs)
    if dy.shape != expected:
        raise InvalidArgumentError(f"out_backprop: expected shape {list(expected)}; got {list(dy.shape)}")


# --- kernels

Compute: TypeAlias = Callable[[Any, Any, Any, Any, Sequence[Axis], Any], None]
"""``compute(xp, x, filter, y, axes, workspace)``, channels last, writes one of the three from the others."""


def _by_group(compute: Compute) -> Compute:
    """``compute`` on the channels of the input, filter and output that belong together."""

    def each(xp: Any, x: Any, filter: Any, y: Any, axes: Sequence[Axis], workspace: Any) -> None:
        groups = x.shape[-1] // filter.shape[-2]
        per_x, per_y = x.shape[-1] // groups, y.shape[-1] // groups
        for g in range(groups):
            part, wanted = slice(g * per_x, (g + 1) * per_x), slice(g * per_y, (g + 1) * per_y)
            compute(xp, x[..., part], filter[..., wanted], y[..., wanted], axes, workspace)

    return each


def _convolve(xp: Any, x: Any, filter: Any, y: Any, axes: Sequence[Axis], workspace: Any) -> None:
    """Write the convolution of ``x`` into ``y``, of one group."""
    dtype, new = accumulator(y), begin(xp, workspace)
    matrix = Parts(filter, dtype, new)[...].reshape(-1, filter.shape[-1])
    directly, product = y.dtype == dtype and y.flags.c_contiguous, None
    for block, seen in patches(xp, x, axes, dtype, new):
        part = y[block]
        if directly:
            xp.matmul(seen, matrix, out=part.reshape(-1, y.shape[-1]))
            continue
        if product is None:
            product = new((len(seen), y.shape[-1]), dtype)
        part[...] = xp.matmul(seen, matrix, out=product[: len(seen)]).reshape(part.shape)


def turned_axes(axes: Sequence[Axis]) -> list[Axis] | None:
    """The windows of the transposed convolution if it is itself a convolution: without strides, on the
    output, with the filter reversed. The part of a window beyond the padding then becomes padding.
    """
    if any(a.stride != 1 or (a.taps - 1) * a.dilation < a.before for a in axes):
        return None
    return [
        Axis(a.outputs, a.taps, 1, a.dilation, (a.taps - 1) * a.dilation - a.before, a.length) for a in axes
    ]


def turned_filter(filter: Any) -> Any:
    """The filter ``[*taps, c, f]`` of that convolution, ``[*taps, f, c]``."""
    return filter[(slice(None, None, -1),) * (filter.ndim - 2)].swapaxes(-1, -2)


def _scatter(xp: Any, x: Any, filter: Any, y: Any, axes: Sequence[Axis], workspace: Any) -> None:
    """Write the transposed convolution of ``y`` into ``x``, of one group."""
    turned = turned_axes(axes)
    if turned is not None:
        _convolve(xp, y, turned_filter(filter), x, turned, workspace)
        return
    dtype, new = accumulator(x), begin(xp, workspace)
    outputs, channels, parts = [a.outputs for a in axes], x.shape[-1], Parts(y, dtype, new)
    matrices = Parts(filter.swapaxes(-1, -2), dtype, new)[...]
    blocks = list(image_blocks(x.shape[0], math.prod(outputs) * channels * dtype.itemsize * 4))
    room = new((blocks[0].stop, *(a.padded for a in axes), channels), dtype)
    products = new((blocks[0].stop, *outputs, channels), dtype)
    for block in blocks:
        seen, count = parts[block].reshape(-1, y.shape[-1]), block.stop - block.start
        padded, product = room[:count], products[:count]
        padded[...] = 0
        for tap, where in taps_of(axes):
            xp.matmul(seen, matrices[tap], out=product.reshape(-1, channels))
            padded[(slice(None), *where)] += product
        x[block] = padded[(slice(None), *(a.inner for a in axes))]


def _correlate(xp: Any, x: Any, filter: Any, y: Any, axes: Sequence[Axis], workspace: Any) -> None:
    """Write the gradient of the filter into ``filter``, from input and output gradient, of one group."""
    dtype, new = accumulator(filter), begin(xp, workspace)
    parts = Parts(y, dtype, new)
    total, product = (new((math.prod(filter.shape[:-1]), filter.shape[-1]), dtype) for _ in range(2))
    total[...] = 0
    for block, seen in patches(xp, x, axes, dtype, new):
        total += xp.matmul(seen.T, parts[block].reshape(-1, y.shape[-1]), out=product)
    filter[...] = total.reshape(filter.shape)


def _kernel(sought: int, compute: Compute, shape_of: ForwardShape) -> Kernel:
    """The kernel that computes the one of (images, filter, result) at index ``sought``. If that is images or
    filter, its argument is the shape.
    """

    def kernel(
        xp: Any, *inputs: Any, strides: Any, padding: str, data_format: str, dilations: Any,
        explicit_paddings: Any = (), out: Any = None, workspace: Any = None,
    ) -> Any:  # fmt: skip
        attrs = dict(strides=strides, padding=padding, data_format=data_format, dilations=dilations)
        attrs["explicit_paddings"] = explicit_paddings
        x_shape, filter_shape = (v if i == sought else v.shape for i, v in enumerate(inputs[:2]))
        if sought < 2:
            check_gradient(x_shape, filter_shape, inputs[2], attrs, shape_of)
        wanted = inputs[sought] if sought < 2 else shape_of(x_shape, filter_shape, attrs)
        out = xp.empty(wanted, inputs[sought == 0].dtype) if out is None else out
        if not all(array.size for i, array in enumerate(inputs) if i != sought):
            out[...] = 0
        elif out.size:
            operands: list[Any] = [*inputs[:sought], out, *inputs[sought + 1 :]]
            x, y = (channels_last(xp, array, data_format) for array in operands[::2])
            compute(xp, x, operands[1], y, conv_axes(x_shape, filter_shape[:-2], attrs), workspace)
        return out

    return kernel


# --- samples


def _cases(spatial: int) -> Iterable[tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]]]:
    """Input shape (channels last), filter shape and attributes."""
    ones = (1,) * (spatial + 2)
    wide = (1, *(2,) * spatial, 1)
    sizes = (5, 6, 4)[:spatial]
    taps = (3, 2, 2)[:spatial]
    yield (2, *sizes, 2), (*taps, 2, 3), dict(strides=ones, padding="SAME")
    yield (1, *sizes, 2), (*taps, 2, 2), dict(strides=wide, padding="VALID")
    yield (1, *sizes, 4), (*taps, 2, 2), dict(strides=wide, padding="SAME")  # two groups
    yield (1, *sizes, 1), (*taps, 1, 2), dict(strides=ones, padding="SAME", dilations=wide)
    yield (2, *sizes, 3), (*ones[:spatial], 3, 2), dict(strides=ones, padding="VALID")
    yield (0, *sizes, 2), (*taps, 2, 3), dict(strides=ones, padding="SAME")


def _arrays(rng: np.random.Generator, spatial: int) -> Iterable[tuple[Any, Any, Any, dict[str, Any]]]:
    """(input, filter, output gradient, attributes) of every case, then of other dtypes and layouts."""
    last = "NHWC" if spatial == 2 else "NDHWC"
    cases = [(*case, dtypes.float64, last) for case in _cases(spatial)]
    first = next(iter(_cases(spatial)))
    cases += [(*first, dtype, last) for dtype in (dtypes.float32, dtypes.float16, dtypes.bfloat16)]
    cases.append((*first, dtypes.float64, "NCHW" if spatial == 2 else "NCDHW"))
    if spatial == 2:
        explicit = dict(strides=(1, 2, 1, 1), padding="EXPLICIT", explicit_paddings=(0, 0, 2, 1, 0, 3, 0, 0))
        cases.append(((1, 4, 3, 1), (3, 2, 1, 2), explicit, dtypes.float64, last))
    for x_shape, filter_shape, attrs, dtype, layout in cases:
        attrs = {"dilations": (1,) * (spatial + 2), **attrs, "data_format": layout}
        if channels_first(layout):
            x_shape = join_layout(*split_layout(x_shape, last), layout)
        y_shape = _forward_shape(x_shape, filter_shape, attrs)
        shapes: Any = (x_shape, filter_shape, y_shape)
        x, f, y = (rng.standard_normal(shape).astype(dtype.np) for shape in shapes)
        yield x, f, y, attrs


# --- definitions

ATTRS_2D = (
    "strides: list(int), use_cudnn_on_gpu: bool = True, padding: string, explicit_paddings: list(int) = (), "
    "data_format: string = 'NHWC', dilations: list(int) = (1, 1, 1, 1)"
)

ATTRS_3D = (
    "strides: list(int), padding: string, data_format: string = 'NDHWC', "
    "dilations: list(int) = (1, 1, 1, 1, 1)"
)


class Convolution(NamedTuple):
    """A convolution with the gradients of its input and of its filter, as `define_convolution` makes them."""

    forward: OpDef[Tensor]
    to_input: OpDef[Tensor]
    to_filter: OpDef[Tensor]


def define_convolution(
    names: Sequence[str],
    computes: Sequence[Compute],
    attrs: str,
    shape_of: ForwardShape,
    arrays: Callable[[np.random.Generator], Iterable[tuple[Any, Any, Any, dict[str, Any]]]],
    doc: str,
    inner_dims: int = 1,
    input_sizes: str = "int32",
) -> Convolution:
    """The three ops of a convolution, of these ``names``; ``computes`` write y, x, and the filter.

    ``arrays`` makes samples: (input, filter, output gradient, attributes). An output element is a sum over
    all of the filter but its last ``inner_dims`` dimensions. ``input_sizes``: their dtype, or type variable.
    """

    def cost(y: TensorSpec, filter: TensorSpec) -> float:
        """The multiply-adds: all taps for each output element, in all three ops; 0 if a shape is unknown."""
        taps = filter.shape and filter.shape[:-inner_dims]
        return 2.0 * (num_elements(y.shape) or 0) * (num_elements(taps) or 0)

    def input_shape(s: ShapeContext) -> Sequence[Shape]:
        """The value of `input_sizes`, if convolving that shape gives the third input's."""
        wanted = _sizes(s, 0)
        merge(shape_of(wanted, s.shapes[1], s.attrs), s.shapes[2])
        return [wanted]

    def filter_shape(s: ShapeContext) -> Sequence[Shape]:
        wanted = _sizes(s, 1)
        merge(shape_of(s.shapes[0], wanted, s.attrs), s.shapes[2])
        return [wanted]

    def axes(rule: str) -> AxesRule:
        """``rule`` of the image x, the filter f and the output y; the channels of groups are whole."""

        def text(s: ShapeContext) -> str | None:
            x, f = (
                s.value(i) if argument.on_host else s.shapes[i] for i, argument in enumerate(s.op.inputs[:2])
            )
            if x is None or f is None:
                return None
            layout, rank = s.attrs["data_format"], len(x)
            is_grouped = inner_dims == 1 and x[-1 if layout.endswith("C") else 1] != f[-2]
            inner, filter, outer = ("c", "c m", "(c m)") if inner_dims == 2 else ("c", "c o", "o")
            if is_grouped:
                inner, filter, outer = "g!", "c! o!", "o!"
            return rule.format(
                x=images(layout, inner, rank=rank),
                f=" ".join([*(f"r{i}!" for i in range(rank - 2)), filter]),
                y=images(layout, outer, "p", rank),
            )

        return text

    def forward_vjp(op: Operation, dy: Tensor) -> list[Tensor]:
        (x, filter), known = op.inputs, attributes_of(op)
        return [to_input(shape(x), filter, dy, **known), to_filter(x, shape(filter), dy, **known)]

    def input_vjp(op: Operation, dx: Tensor) -> list[Tensor | None]:
        (_, filter, y), known = op.inputs, attributes_of(op)
        return [None, to_filter(dx, shape(filter), y, **known), forward(dx, filter, **known)]

    def filter_vjp(op: Operation, df: Tensor) -> list[Tensor | None]:
        (x, _, y), known = op.inputs, attributes_of(op)
        return [to_input(shape(x), df, y, **known), None, forward(x, df, **known)]

    forward: OpDef[Tensor] = define_op(
        names[0],
        "input: T in FLOATING, filter: T -> T",
        attrs=attrs,
        shape=lambda s: [shape_of(s.shapes[0], s.shapes[1], s.attrs)],
        kernel=_kernel(2, computes[0], shape_of),
        vjp=forward_vjp,
        samples=lambda rng: [sample(x, f, **a) for x, f, _, a in arrays(rng)],
        cost=lambda inputs, outputs: cost(outputs[0], inputs[1]),
        batch=merged(0),
        traits=Traits(linear_in=(0, 1)),
        axes=axes("{x}, {f} -> {y}"),
        doc=doc,
    )
    to_input: OpDef[Tensor] = define_op(
        names[1],
        f"input_sizes: host shape {input_sizes}, filter: T in FLOATING, out_backprop: T -> T",
        attrs=attrs,
        shape=input_shape,
        kernel=_kernel(0, computes[1], shape_of),
        vjp=input_vjp,
        samples=lambda rng: [sample(np.array(x.shape, np.int32), f, y, **a) for x, f, y, a in arrays(rng)],
        cost=lambda inputs, outputs: cost(inputs[2], inputs[1]),
        batch=merged(2, dims=0),
        traits=Traits(linear_in=(1, 2)),
        axes=axes("{f}, {y} -> {x}"),
        doc=f"The gradient of {names[0]} with respect to its input, from that of its output.",
    )
    to_filter: OpDef[Tensor] = define_op(
        names[2],
        "input: T in FLOATING, filter_sizes: host shape int32, out_backprop: T -> T",
        attrs=attrs,
        shape=filter_shape,
        kernel=_kernel(1, computes[2], shape_of),
        vjp=filter_vjp,
        samples=lambda rng: [sample(x, np.array(f.shape, np.int32), y, **a) for x, f, y, a in arrays(rng)],
        cost=lambda inputs, outputs: cost(inputs[2], outputs[0]),
        traits=Traits(linear_in=(0, 2)),
        axes=axes("{x}, {y} -> {f}"),
        doc=f"The gradient of {names[0]} with respect to its filter, from that of its output.",
    )
    return Convolution(forward, to_input, to_filter)


_BY_GROUP = [_by_group(compute) for compute in (_convolve, _scatter, _correlate)]
conv2d_op, conv2d_backprop_input_op, conv2d_backprop_filter_op = define_convolution(
    ("Conv2D", "Conv2DBackpropInput", "Conv2DBackpropFilter"),
    _BY_GROUP,
    ATTRS_2D,
    _forward_shape,
    lambda rng: _arrays(rng, 2),
    "Cross-correlation of images with a filter [kh, kw, c, f]; fewer channels c make groups.",
)
conv3d_op, conv3d_backprop_input_op, conv3d_backprop_filter_op = define_convolution(
    ("Conv3D", "Conv3DBackpropInputV2", "Conv3DBackpropFilterV2"),
    _BY_GROUP,
    ATTRS_3D,
    _forward_shape,
    lambda rng: _arrays(rng, 3),
    "Cross-correlation of volumes with a filter [kd, kh, kw, c, f].",
    input_sizes="Tshape in INDEX",
)
