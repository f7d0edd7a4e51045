"""TensorFlow's convolution functions over the ops of `flowrt.graph.ops.nn.conv` and
`flowrt.graph.ops.nn.depthwise_conv`.

In all functions, images are ``[n, h, w, c]`` (or NCHW), filters ``[kh, kw, c / groups, f]``; ``padding`` is
SAME, VALID, or a list of (before, after) pairs, one per axis; incompatible shapes and attributes raise
`InvalidArgumentError`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from flowrt.graph.construction.build import convert_to_tensor
from flowrt.graph.construction.graph import Tensor, get_default_graph
from flowrt.graph.op_def import OpDef
from flowrt.graph.ops.base.shape_manipulation import expand_dims, squeeze
from flowrt.graph.ops.nn.conv import (
    conv2d_backprop_filter_op,
    conv2d_backprop_input_op,
    conv2d_op,
    conv3d_backprop_input_op,
    conv3d_op,
)
from flowrt.graph.ops.nn.depthwise_conv import depthwise_conv2d_op
from flowrt.graph.ops.nn.windows import channels_first, every_axis, join_layout, padding_attrs
from flowrt.graph.source import misuse
from flowrt.graph.tf1_signatures import tf1_names
from flowrt.graph.typing import DataFormat, Ints, NumericLike, Padding, ShapeTensorLike

__all__ = [
    "atrous_conv2d", "conv1d", "conv2d", "conv2d_backprop_filter", "conv2d_backprop_input",
    "conv2d_transpose", "conv3d", "conv3d_transpose", "convolution", "depthwise_conv2d",
    "depthwise_conv2d_native", "separable_conv2d",
]  # fmt: skip

_ONES = (1, 1, 1, 1)


@tf1_names(filters="filter")
def conv2d(
    input: NumericLike,
    filter: NumericLike | None = None,
    strides: Ints | None = None,
    padding: Padding | None = None,
    use_cudnn_on_gpu: bool = True,
    data_format: DataFormat = "NHWC",
    dilations: Ints = _ONES,
    name: str | None = None,
) -> Tensor:
    """The cross-correlation of images with filters.

    Args:
        input: Images ``[n, h, w, c]``, or ``[n, c, h, w]`` with ``data_format`` "NCHW".
        filter: Filters ``[kh, kw, c / groups, f]``; ``filters`` is its newer name.
        strides: An int, one per spatial axis, or one per dimension.
        padding: "SAME" for ``ceil(h / stride)`` rows, "VALID" for those of whole windows, or (before, after)
            pairs, one per axis.
        data_format: "NHWC" or "NCHW".
        dilations: The steps between a filter's elements, as ``strides``.

    Returns:
        A tensor ``[n, rows, columns, f]``, or ``[n, f, rows, columns]``.

    Raises:
        InvalidArgumentError: The shapes do not fit, or strides or padding are missing.

    Example:
        >>> image = tf.ones([1, 3, 3, 1])
        >>> tf.nn.conv2d(image, tf.ones([2, 2, 1, 1]), strides=1, padding='VALID').eval()[0, :, :, 0]
        array([[4., 4.],
               [4., 4.]], dtype=float32)
    """
    return _convolve(conv2d_op, (input, filter), 2, strides, padding, data_format, dilations, name)


@tf1_names(filters="filter")
def conv2d_backprop_input(
    input_sizes: NumericLike,
    filter: NumericLike | None = None,
    out_backprop: NumericLike | None = None,
    strides: Ints | None = None,
    padding: Padding | None = None,
    use_cudnn_on_gpu: bool = True,
    data_format: DataFormat = "NHWC",
    dilations: Ints = _ONES,
    name: str | None = None,
) -> Tensor:
    """The gradient of `conv2d` with respect to its input, of shape ``input_sizes``."""
    inputs = input_sizes, filter, out_backprop
    return _convolve(conv2d_backprop_input_op, inputs, 2, strides, padding, data_format, dilations, name)


def conv2d_backprop_filter(
    input: NumericLike,
    filter_sizes: NumericLike,
    out_backprop: NumericLike,
    strides: Ints,
    padding: Padding,
    use_cudnn_on_gpu: bool = True,
    data_format: DataFormat = "NHWC",
    dilations: Ints = _ONES,
    name: str | None = None,
) -> Tensor:
    """The gradient of `conv2d` with respect to its filter, of shape ``filter_sizes``."""
    inputs = input, filter_sizes, out_backprop
    return _convolve(conv2d_backprop_filter_op, inputs, 2, strides, padding, data_format, dilations, name)


@tf1_names("dilations", input="value", filters="filter")
def conv2d_transpose(
    value: NumericLike | None = None,
    filter: NumericLike | None = None,
    output_shape: ShapeTensorLike = None,
    strides: Ints | None = None,
    padding: Padding = "SAME",
    data_format: DataFormat = "NHWC",
    name: str | None = None,
    dilations: Ints | None = None,
) -> Tensor:
    """Transpose of `conv2d`: from its output to an image of ``output_shape``; filter [kh, kw, out, in]."""
    inputs = output_shape, filter, value
    name = name or "conv2d_transpose"
    return _convolve(conv2d_backprop_input_op, inputs, 2, strides, padding, data_format, dilations, name)


def atrous_conv2d(
    value: NumericLike, filters: NumericLike, rate: int, padding: Padding, name: str | None = None
) -> Tensor:
    """`conv2d` with filter elements ``rate`` apart."""
    return _convolve(conv2d_op, (value, filters), 2, 1, padding, "NHWC", rate, name)


@tf1_names(filters="filter")
def conv3d(
    input: NumericLike,
    filter: NumericLike | None = None,
    strides: Ints | None = None,
    padding: Padding | None = None,
    data_format: str = "NDHWC",
    dilations: Ints = (1, 1, 1, 1, 1),
    name: str | None = None,
) -> Tensor:
    """The cross-correlation of volumes ``[n, d, h, w, c]`` (or NCDHW) with filters ``[kd, kh, kw, c, f]``."""
    return _convolve(conv3d_op, (input, filter), 3, strides, padding, data_format, dilations, name)


@tf1_names("dilations", input="value", filters="filter")
def conv3d_transpose(
    value: NumericLike,
    filter: NumericLike | None = None,
    output_shape: ShapeTensorLike = None,
    strides: Ints | None = None,
    padding: Padding = "SAME",
    data_format: str = "NDHWC",
    name: str | None = None,
    dilations: Ints | None = None,
) -> Tensor:
    """The transpose of `conv3d`: from its output to a volume of ``output_shape``."""
    inputs = output_shape, filter, value
    name = name or "conv3d_transpose"
    return _convolve(conv3d_backprop_input_op, inputs, 3, strides, padding, data_format, dilations, name)


@tf1_names("dilations", input="value")
def conv1d(
    value: Any = None,
    filters: Any = None,
    stride: Ints | None = None,
    padding: Padding | None = None,
    use_cudnn_on_gpu: bool | None = None,
    data_format: str | None = None,
    name: str | None = None,
    dilations: Ints | None = None,
) -> Tensor:
    """The cross-correlation of sequences ``[n, w, c]`` (or NCW) with a filter ``[k, c / groups, f]``.

    It is made of `conv2d`, on images of height 1.
    """
    layout = {None: "NHWC", "NWC": "NHWC", "NCW": "NCHW"}.get(data_format, data_format or "")
    axis = 2 if channels_first(layout) else 1
    strides, rates = (
        join_layout(1, (1, *every_axis(key, v, 1, "NWC")[1:2]), 1, layout)
        for key, v in (("stride", stride), ("dilations", 1 if dilations is None else dilations))
    )
    with get_default_graph().name_scope(name or "conv1d"):
        images, filter = expand_dims(value, axis), expand_dims(filters, 0)
        convolved = _convolve(conv2d_op, (images, filter), 2, strides, padding, layout, rates, "conv1d")
        return squeeze(convolved, [axis])


@tf1_names(dilations="rate")
def depthwise_conv2d(
    input: NumericLike,
    filter: NumericLike,
    strides: Ints,
    padding: Padding,
    rate: NumericLike | None = None,
    name: str | None = None,
    data_format: str | None = None,
) -> Tensor:
    """Each channel's cross-correlation with its own m filters, ``filter`` [kh, kw, c, m]: c * m channels.

    ``rate`` (or ``dilations``) is the spacing of the filter's elements.
    """
    name = name or "depthwise"
    return _convolve(
        depthwise_conv2d_op, (input, filter), 2, strides, padding, data_format or "NHWC", rate, name
    )


def depthwise_conv2d_native(
    input: NumericLike, filter: NumericLike, strides: Ints, padding: Padding, data_format: str = "NHWC",
    dilations: Any = (1, 1, 1, 1), name: str | None = None,
) -> Tensor:  # fmt: skip
    """See `depthwise_conv2d`."""
    rate = list(dilations)[1:3] if data_format == "NHWC" else list(dilations)[2:]
    return depthwise_conv2d(input, filter, strides, padding, rate, name, data_format)


@tf1_names(dilations="rate")
def separable_conv2d(
    input: NumericLike,
    depthwise_filter: NumericLike,
    pointwise_filter: NumericLike,
    strides: Ints,
    padding: Padding,
    rate: NumericLike | None = None,
    name: str | None = None,
    data_format: str | None = None,
) -> Tensor:
    """`depthwise_conv2d`, then a 1x1 convolution with ``pointwise_filter`` [1, 1, c * m, f] that mixes the
    channels.
    """
    layout = data_format or "NHWC"
    with get_default_graph().name_scope(name or "separable_conv2d") as scope:
        depthwise = depthwise_conv2d(input, depthwise_filter, strides, padding, rate, "depthwise", layout)
        return _convolve(conv2d_op, (depthwise, pointwise_filter), 2, 1, "VALID", layout, 1, scope)


@tf1_names(filters="filter", dilations="dilation_rate")
def convolution(
    input: NumericLike,
    filter: NumericLike | None = None,
    padding: Padding | None = None,
    strides: Ints | None = None,
    dilation_rate: Ints | None = None,
    name: str | None = None,
    data_format: str | None = None,
) -> Tensor:
    """The cross-correlation over 1, 2 or 3 spatial dimensions, depending on the rank of ``input``."""
    filter = convert_to_tensor(filter)
    x = convert_to_tensor(input, filter.dtype)
    spatial = (x.shape.rank or filter.shape.rank or 0) - 2
    strides, rates = (1 if v is None else v for v in (strides, dilation_rate))
    with get_default_graph().name_scope(name or "convolution") as scope:
        if spatial == 1:
            return conv1d(x, filter, strides, padding, data_format=data_format, dilations=rates, name=scope)
        if spatial == 2:
            return _convolve(conv2d_op, (x, filter), 2, strides, padding, data_format or "NHWC", rates, scope)
        if spatial == 3:
            return _convolve(
                conv3d_op, (x, filter), 3, strides, padding, data_format or "NDHWC", rates, scope
            )
    raise misuse(f"convolution: expected an input of rank 3, 4 or 5; got {x!r}")


def _convolve(
    op: OpDef[Tensor],
    inputs: Sequence[Any],
    spatial: int,
    strides: Any,
    padding: Padding | None,
    data_format: str,
    dilations: Any,
    name: str | None,
) -> Tensor:
    missing = [key for key, value in (("strides", strides), ("padding", padding)) if value is None]
    if missing:
        raise misuse(f"{op.name}: expected {missing[0]}; got none")
    return op(
        *inputs,
        strides=every_axis("strides", strides, spatial, data_format),
        dilations=every_axis("dilations", 1 if dilations is None else dilations, spatial, data_format),
        **padding_attrs(padding),
        data_format=data_format,
        name=name,
    )
