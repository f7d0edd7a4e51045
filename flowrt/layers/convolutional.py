"""Convolutions as layers."""

from __future__ import annotations

from typing import Any, Literal

from flowrt.graph.construction.graph import Tensor
from flowrt.graph.ops.array.padding import pad
from flowrt.graph.ops.base.shape_manipulation import expand_dims, shape, squeeze
from flowrt.graph.ops.nn import conv_functions as ops
from flowrt.graph.shapes import TensorShape
from flowrt.graph.tf1_signatures import passing_on, without_parameters
from flowrt.graph.typing import Ints, LayerDataFormat, LayerPadding
from flowrt.initializers import Zeros
from flowrt.layers.base import layer_function
from flowrt.layers.core import KernelLayer
from flowrt.layers.geometry import (
    Windowed,
    count,
    layout,
    padded_ends,
    padding_mode,
    sizes,
    transposed_length,
)

__all__ = [
    "Conv1D", "Conv2D", "Conv2DTranspose", "Conv3D", "Conv3DTranspose", "SeparableConv1D", "SeparableConv2D",
    "conv1d", "conv2d", "conv2d_transpose", "conv3d", "conv3d_transpose", "separable_conv1d",
    "separable_conv2d",
]  # fmt: skip


class _Conv(Windowed, KernelLayer):
    """Base of convolutions over ``spatial`` dimensions: arguments, kernel, bias and activation."""

    data_format: str

    @passing_on(KernelLayer.__init__)
    def __init__(
        self,
        filters: int,
        kernel_size: Any,
        strides: Any = 1,
        padding: Literal["valid", "same", "causal", "VALID", "SAME", "CAUSAL"] = "valid",
        data_format: LayerDataFormat = "channels_last",
        dilation_rate: Any = 1,
        **options: Any,
    ) -> None:
        super().__init__(**options)
        self.filters = count(filters, f"{type(self).__name__}: filters")
        self.kernel_size = sizes(kernel_size, self.spatial, "kernel_size")
        self.strides = sizes(strides, self.spatial, "strides")
        self.dilation_rate = sizes(dilation_rate, self.spatial, "dilation_rate")
        self.padding: Any = padding_mode(padding, causal=self.spatial == 1)
        self.data_format = layout(data_format, self.spatial)

    @property
    def channel_axis(self) -> int:
        return 1 if self.data_format.startswith("NC") else -1

    def build(self, input_shape: TensorShape) -> None:
        channels = self._kernel_channels(self._known(input_shape, self.channel_axis))
        self._build([*self.kernel_size, *channels], self.filters)

    def _kernel_channels(self, channels: int) -> tuple[int, int]:
        return channels, self.filters

    def call(self, inputs: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        return self._finished(self._convolve(inputs, self.padding))

    def _convolve(self, inputs: Tensor, padding: Any) -> Tensor:
        return type(self)._op(
            inputs,
            self.kernel,
            self.strides,
            padding,
            data_format=self.data_format,
            dilations=self.dilation_rate,
        )


class Conv1D(_Conv, spatial=1, op=ops.conv1d):
    """The cross-correlation of sequences ``[n, w, c]`` with ``filters`` filters, plus a bias, through
    ``activation``.

    ``padding`` "causal" pads before, so that no output sees later inputs.
    """

    def _convolve(self, inputs: Tensor, padding: Any) -> Tensor:
        return super()._convolve(*_padded_before(self, inputs, padding))


class Conv2D(_Conv, spatial=2, op=ops.conv2d):
    """The cross-correlation of images with filters, plus a bias, through ``activation``.

    Args:
        filters: The number of filters, the channels of the result.
        kernel_size: The filters' height and width: an int or two.
        strides: The steps between windows: an int or two.
        padding: "valid" for whole windows, "same" for ``ceil(h / stride)`` rows.
        data_format: "channels_last" for images ``[n, h, w, c]``, "channels_first" for ``[n, c, h, w]``.
        dilation_rate: The steps between a filter's elements: an int or two.
        activation: A function, or None for none.
        use_bias: Whether a number per filter is added.
        kernel_initializer: The initializer of the filters ``[height, width, c, filters]``; by default
            `GlorotUniform`.
        bias_initializer: The initializer of the bias.
        kernel_regularizer: A function of the filters; its result joins REGULARIZATION_LOSSES.
        bias_regularizer: A function of the bias, likewise.
        activity_regularizer: A function of the result, likewise.
        kernel_constraint: A function of the filters, applied after each optimizer step.
        bias_constraint: A function of the bias, likewise.
        trainable: Whether its variables are trained.
        name: The name of its variables' scope.

    Example:
        >>> tf.layers.conv2d(tf.zeros([8, 28, 28, 1]), filters=4, kernel_size=3, strides=2).shape.as_list()
        [8, 13, 13, 4]
    """


class Conv3D(_Conv, spatial=3, op=ops.conv3d):
    """The cross-correlation of volumes ``[n, d, h, w, c]`` with ``filters`` filters, plus a bias, through
    ``activation``.
    """


class ConvTranspose(_Conv):
    """Base of transposed convolutions, with Keras's arguments: the kernel is ``[..., filters, channels]``."""

    @passing_on(_Conv.__init__)
    def __init__(
        self,
        filters: int,
        kernel_size: Any,
        strides: Any = 1,
        padding: LayerPadding = "valid",
        output_padding: Any = None,
        data_format: LayerDataFormat = "channels_last",
        dilation_rate: Any = 1,
        **options: Any,
    ) -> None:
        super().__init__(filters, kernel_size, strides, padding, data_format, dilation_rate, **options)
        self.output_padding = padded_ends(output_padding, self.strides)

    def _kernel_channels(self, channels: int) -> tuple[int, int]:
        return self.filters, channels

    def _convolve(self, inputs: Tensor, padding: Any) -> Tensor:
        static, dynamic = inputs.shape.as_list(), shape(inputs)
        lengths: list[Any] = [n if n is not None else dynamic[i] for i, n in enumerate(static)]
        first = 2 if self.channel_axis == 1 else 1
        ends = self.output_padding or (None,) * self.spatial
        windows = zip(self.kernel_size, self.dilation_rate, self.strides, ends, strict=True)
        for i, (kernel, rate, stride, end) in enumerate(windows, first):
            lengths[i] = transposed_length(lengths[i], (kernel - 1) * rate + 1, stride, padding, end)
        lengths[self.channel_axis] = self.filters
        outputs: Tensor = type(self)._op(
            inputs, self.kernel, lengths, self.strides, padding, data_format=self.data_format,
            dilations=self.dilation_rate,
        )  # fmt: skip
        outputs.set_shape([n if isinstance(n, int) else None for n in lengths])
        return outputs


class Conv2DTranspose(ConvTranspose, spatial=2, op=ops.conv2d_transpose):
    """The transpose of a `Conv2D`, as an upsampling layer: strides enlarge."""

    __init__ = without_parameters(ConvTranspose.__init__, "output_padding", "dilation_rate")


class Conv3DTranspose(ConvTranspose, spatial=3, op=ops.conv3d_transpose):
    """The transpose of a `Conv3D`, as an upsampling layer: strides enlarge."""

    __init__ = without_parameters(ConvTranspose.__init__, "output_padding", "dilation_rate")


class _SeparableConv(_Conv):
    """A depthwise convolution with ``depth_multiplier`` filters per channel, then a pointwise one."""

    def __init__(
        self,
        filters: int,
        kernel_size: Ints,
        strides: Ints = 1,
        padding: LayerPadding = "valid",
        data_format: LayerDataFormat = "channels_last",
        dilation_rate: Ints = 1,
        depth_multiplier: int = 1,
        activation: Any = None,
        use_bias: bool = True,
        depthwise_initializer: Any = None,
        pointwise_initializer: Any = None,
        bias_initializer: Any = Zeros(),  # noqa: B008  immutable
        depthwise_regularizer: Any = None,
        pointwise_regularizer: Any = None,
        bias_regularizer: Any = None,
        activity_regularizer: Any = None,
        depthwise_constraint: Any = None,
        pointwise_constraint: Any = None,
        bias_constraint: Any = None,
        trainable: bool = True,
        name: str | None = None,
        **options: Any,
    ) -> None:
        super().__init__(
            filters, kernel_size, strides, padding, data_format, dilation_rate, activation, use_bias, None,
            bias_initializer, None, bias_regularizer, activity_regularizer, None, bias_constraint, trainable,
            name, **options,
        )  # fmt: skip
        self.depth_multiplier = depth_multiplier
        self.depthwise_initializer, self.pointwise_initializer = depthwise_initializer, pointwise_initializer
        self.depthwise_regularizer, self.pointwise_regularizer = depthwise_regularizer, pointwise_regularizer
        self.depthwise_constraint, self.pointwise_constraint = depthwise_constraint, pointwise_constraint

    def build(self, input_shape: TensorShape) -> None:
        channels = self._known(input_shape, self.channel_axis)
        kernel = [*self.kernel_size, channels, self.depth_multiplier]
        self.depthwise_kernel = self._add_parameter("depthwise_kernel", kernel, "depthwise")
        mixing = [*(1,) * self.spatial, channels * self.depth_multiplier, self.filters]
        self.pointwise_kernel = self._add_parameter("pointwise_kernel", mixing, "pointwise")
        self._build_bias(self.filters)


class SeparableConv1D(_SeparableConv, spatial=1):
    """A depthwise convolution of sequences ``[n, w, c]`` with ``depth_multiplier`` filters per channel, then
    a pointwise one.

    ``padding`` "causal" pads before, so that no output sees later inputs.
    """

    def _convolve(self, inputs: Tensor, padding: Any) -> Tensor:
        """The convolution of images of one row."""
        inputs, padding = _padded_before(self, inputs, padding)
        row = 1 if self.channel_axis == -1 else 2
        kernels = expand_dims(self.depthwise_kernel, 0), expand_dims(self.pointwise_kernel, 0)
        strides, rate = (*self.strides, *self.strides), (1, *self.dilation_rate)
        layout = self.data_format.replace("W", "HW")
        found = _separable(expand_dims(inputs, row), kernels, strides, padding, rate, layout)
        return squeeze(found, [row])


class SeparableConv2D(_SeparableConv, spatial=2):
    """A depthwise convolution with ``depth_multiplier`` filters per channel, then a pointwise one."""

    def _convolve(self, inputs: Tensor, padding: Any) -> Tensor:
        kernels = (self.depthwise_kernel, self.pointwise_kernel)
        return _separable(inputs, kernels, self.strides, padding, self.dilation_rate, self.data_format)


def _separable(
    images: Tensor, kernels: tuple[Any, Any], strides: Any, padding: Any, rate: Any, layout: str
) -> Tensor:
    steps = (1, 1, *strides) if layout == "NCHW" else (1, *strides, 1)
    return ops.separable_conv2d(images, *kernels, steps, padding, rate=rate, data_format=layout)


def _padded_before(layer: _Conv, inputs: Tensor, padding: str) -> tuple[Tensor, str]:
    """Sequences, and the padding that is left, with zeros before them where it is CAUSAL."""
    if padding != "CAUSAL":
        return inputs, padding
    before = [layer.dilation_rate[0] * (layer.kernel_size[0] - 1), 0]
    return pad(
        inputs, [[0, 0], before, [0, 0]] if layer.channel_axis == -1 else [[0, 0], [0, 0], before]
    ), "VALID"


conv1d = layer_function(Conv1D)
conv2d = layer_function(Conv2D)
conv3d = layer_function(Conv3D)
conv2d_transpose = layer_function(Conv2DTranspose)
conv3d_transpose = layer_function(Conv3DTranspose)
separable_conv1d = layer_function(SeparableConv1D)
separable_conv2d = layer_function(SeparableConv2D)
