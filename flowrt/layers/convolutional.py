"""Convolutions as layers."""

from __future__ import annotations

from typing import Any, ClassVar

from flowrt.graph.construction.graph import Tensor
from flowrt.graph.ops.array.padding import pad
from flowrt.graph.ops.base.shape_manipulation import shape
from flowrt.graph.ops.nn import conv_functions as ops
from flowrt.graph.ops.nn.bias import bias_add
from flowrt.graph.shapes import TensorShape
from flowrt.initializers import Zeros
from flowrt.layers.base import Layer, activation_function, layer_function
from flowrt.layers.geometry import count, layout, padding_mode, sizes, transposed_length
from flowrt.variables.variable import Variable


class _Conv(Layer):
    """What convolutions over ``spatial`` dimensions share: the arguments, the kernel, the bias and the
    activation.
    """

    spatial: ClassVar[int]

    def __init__(
        self,
        filters: int,
        kernel_size: Any,
        strides: Any = 1,
        padding: str = "valid",
        data_format: str = "channels_last",
        dilation_rate: Any = 1,
        activation: Any = None,
        use_bias: bool = True,
        kernel_initializer: Any = None,
        bias_initializer: Any = Zeros(),  # noqa: B008  immutable
        kernel_regularizer: Any = None,
        bias_regularizer: Any = None,
        activity_regularizer: Any = None,
        kernel_constraint: Any = None,
        bias_constraint: Any = None,
        trainable: bool = True,
        name: str | None = None,
        **options: Any,
    ) -> None:
        super().__init__(trainable, name, activity_regularizer=activity_regularizer, **options)
        self.filters = count(filters, f"{type(self).__name__}: filters")
        self.activation = activation_function(activation)
        self.use_bias = use_bias
        self.kernel_size = sizes(kernel_size, self.spatial, "kernel_size")
        self.strides = sizes(strides, self.spatial, "strides")
        self.dilation_rate = sizes(dilation_rate, self.spatial, "dilation_rate")
        self.padding = padding_mode(padding, causal=self.spatial == 1)
        self.data_format = layout(data_format, self.spatial)
        self.kernel_initializer, self.bias_initializer = kernel_initializer, bias_initializer
        self.kernel_regularizer, self.bias_regularizer = kernel_regularizer, bias_regularizer
        self.kernel_constraint, self.bias_constraint = kernel_constraint, bias_constraint
        self.kernel: Variable | None = None
        self.bias: Variable | None = None

    @property
    def channel_axis(self) -> int:
        return 1 if self.data_format.startswith("NC") else -1

    def build(self, input_shape: TensorShape) -> None:
        self.kernel = self.add_weight(
            "kernel",
            [*self.kernel_size, *self._kernel_channels(self._known(input_shape, self.channel_axis))],
            initializer=self.kernel_initializer,
            regularizer=self.kernel_regularizer,
            constraint=self.kernel_constraint,
        )
        self._build_bias()

    def _kernel_channels(self, channels: int) -> tuple[int, int]:
        return channels, self.filters

    def _build_bias(self) -> None:
        if self.use_bias:
            self.bias = self.add_weight(
                "bias",
                [self.filters],
                initializer=self.bias_initializer,
                regularizer=self.bias_regularizer,
                constraint=self.bias_constraint,
            )

    def call(self, inputs: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        outputs = self._convolve(inputs)
        if self.bias is not None:
            outputs = bias_add(outputs, self.bias, self.data_format)
        return outputs if self.activation is None else self.activation(outputs)

    def _convolve(self, inputs: Tensor) -> Tensor:
        raise NotImplementedError


class Conv1D(_Conv):
    """The cross-correlation of sequences ``[n, w, c]`` with ``filters`` filters, plus a bias, through
    ``activation``.

    ``padding`` "causal" pads before, so that no output sees later inputs.
    """

    rank, spatial = 3, 1

    def _convolve(self, inputs: Tensor) -> Tensor:
        padding = self.padding
        if padding == "CAUSAL":
            before = self.dilation_rate[0] * (self.kernel_size[0] - 1)
            paddings = (
                [[0, 0], [before, 0], [0, 0]] if self.channel_axis == -1 else [[0, 0], [0, 0], [before, 0]]
            )
            inputs, padding = pad(inputs, paddings), "VALID"
        return ops.conv1d(
            inputs,
            self.kernel,
            self.strides[0],
            padding,
            data_format=self.data_format,
            dilations=self.dilation_rate[0],
        )


class Conv2D(_Conv):
    """The cross-correlation of images ``[n, h, w, c]`` with ``filters`` filters, plus a bias, through
    ``activation``.
    """

    rank, spatial = 4, 2

    def _convolve(self, inputs: Tensor) -> Tensor:
        return ops.conv2d(
            inputs,
            self.kernel,
            self.strides,
            self.padding,
            data_format=self.data_format,
            dilations=self.dilation_rate,
        )


class Conv3D(_Conv):
    """The cross-correlation of volumes ``[n, d, h, w, c]`` with ``filters`` filters, plus a bias, through
    ``activation``.
    """

    rank, spatial = 5, 3

    def _convolve(self, inputs: Tensor) -> Tensor:
        return ops.conv3d(
            inputs,
            self.kernel,
            self.strides,
            self.padding,
            data_format=self.data_format,
            dilations=self.dilation_rate,
        )


class _ConvTranspose(_Conv):
    """A transposed convolution: the kernel is ``[..., filters, channels]``."""

    _op: ClassVar[Any]

    def __init__(
        self,
        filters: int,
        kernel_size: Any,
        strides: Any = 1,
        padding: str = "valid",
        data_format: str = "channels_last",
        activation: Any = None,
        use_bias: bool = True,
        kernel_initializer: Any = None,
        bias_initializer: Any = Zeros(),  # noqa: B008  immutable
        kernel_regularizer: Any = None,
        bias_regularizer: Any = None,
        activity_regularizer: Any = None,
        kernel_constraint: Any = None,
        bias_constraint: Any = None,
        trainable: bool = True,
        name: str | None = None,
        **options: Any,
    ) -> None:
        super().__init__(
            filters, kernel_size, strides, padding, data_format, 1, activation, use_bias, kernel_initializer,
            bias_initializer, kernel_regularizer, bias_regularizer, activity_regularizer, kernel_constraint,
            bias_constraint, trainable, name, **options,
        )  # fmt: skip

    def _kernel_channels(self, channels: int) -> tuple[int, int]:
        return self.filters, channels

    def _convolve(self, inputs: Tensor) -> Tensor:
        static, dynamic = inputs.shape.as_list(), shape(inputs)
        lengths: list[Any] = [n if n is not None else dynamic[i] for i, n in enumerate(static)]
        first = 2 if self.channel_axis == 1 else 1
        for i, (kernel, stride) in enumerate(zip(self.kernel_size, self.strides, strict=True), first):
            lengths[i] = transposed_length(lengths[i], kernel, stride, self.padding)
        lengths[self.channel_axis] = self.filters
        outputs: Tensor = type(self)._op(
            inputs, self.kernel, lengths, self.strides, self.padding, data_format=self.data_format
        )
        outputs.set_shape([n if isinstance(n, int) else None for n in lengths])
        return outputs


class Conv2DTranspose(_ConvTranspose):
    """The transpose of a `Conv2D` that makes what it is given: strides enlarge."""

    rank, spatial = 4, 2
    _op = staticmethod(ops.conv2d_transpose)


class Conv3DTranspose(_ConvTranspose):
    """The transpose of a `Conv3D` that makes what it is given: strides enlarge."""

    rank, spatial = 5, 3
    _op = staticmethod(ops.conv3d_transpose)


class SeparableConv2D(_Conv):
    """A convolution of each channel with ``depth_multiplier`` filters of its own, then one that mixes the
    channels.
    """

    rank, spatial = 4, 2

    def __init__(
        self,
        filters: int,
        kernel_size: Any,
        strides: Any = 1,
        padding: str = "valid",
        data_format: str = "channels_last",
        dilation_rate: Any = 1,
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
        self.depthwise_kernel = self.add_weight(
            "depthwise_kernel",
            [*self.kernel_size, channels, self.depth_multiplier],
            initializer=self.depthwise_initializer,
            regularizer=self.depthwise_regularizer,
            constraint=self.depthwise_constraint,
        )
        self.pointwise_kernel = self.add_weight(
            "pointwise_kernel",
            [1, 1, channels * self.depth_multiplier, self.filters],
            initializer=self.pointwise_initializer,
            regularizer=self.pointwise_regularizer,
            constraint=self.pointwise_constraint,
        )
        self._build_bias()

    def _convolve(self, inputs: Tensor) -> Tensor:
        strides = (1, 1, *self.strides) if self.channel_axis == 1 else (1, *self.strides, 1)
        return ops.separable_conv2d(
            inputs,
            self.depthwise_kernel,
            self.pointwise_kernel,
            strides,
            self.padding,
            rate=self.dilation_rate,
            data_format=self.data_format,
        )


conv1d = layer_function(Conv1D)
conv2d = layer_function(Conv2D)
conv3d = layer_function(Conv3D)
conv2d_transpose = layer_function(Conv2DTranspose)
conv3d_transpose = layer_function(Conv3DTranspose)
separable_conv2d = layer_function(SeparableConv2D)
