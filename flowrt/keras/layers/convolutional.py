"""Convolutions, and paddings, crops and enlargements of images and sequences."""

from __future__ import annotations

from typing import Any, ClassVar

from flowrt.graph.construction.graph import Tensor
from flowrt.graph.ops.array.padding import pad
from flowrt.graph.ops.array.tile_and_reverse import tile
from flowrt.graph.ops.base.shape_manipulation import expand_dims, reshape, shape, transpose
from flowrt.graph.ops.nn.conv_functions import depthwise_conv2d
from flowrt.graph.shapes import TensorShape
from flowrt.graph.source import misuse
from flowrt.image.resizing import resize_bilinear
from flowrt.keras.engine.layer import Layer
from flowrt.keras.layers.options import by_name
from flowrt.keras.state.settings import image_data_format
from flowrt.layers import convolutional
from flowrt.layers.core import KernelLayer
from flowrt.layers.geometry import layout, padding_mode, sizes

__all__ = [
    "Conv1D", "Conv2D", "Conv2DTranspose", "Conv3D", "Conv3DTranspose", "Convolution1D", "Convolution2D",
    "Convolution2DTranspose", "Convolution3D", "Cropping1D", "Cropping2D", "Cropping3D", "DepthwiseConv2D",
    "SeparableConv1D", "SeparableConv2D", "SeparableConvolution2D", "UpSampling1D", "UpSampling2D",
    "UpSampling3D", "ZeroPadding1D", "ZeroPadding2D", "ZeroPadding3D",
]  # fmt: skip


class Conv1D(convolutional.Conv1D, Layer):
    """The cross-correlation of sequences ``[n, w, c]`` with ``filters`` filters."""

    __init__ = by_name(convolutional.Conv1D.__init__)


class Conv2D(convolutional.Conv2D, Layer):
    """The cross-correlation of images ``[n, h, w, c]`` with ``filters`` filters."""

    __init__ = by_name(convolutional.Conv2D.__init__)


class Conv3D(convolutional.Conv3D, Layer):
    """The cross-correlation of volumes ``[n, d, h, w, c]`` with ``filters`` filters."""

    __init__ = by_name(convolutional.Conv3D.__init__)


class Conv2DTranspose(convolutional.Conv2DTranspose, Layer):
    """The transpose of a `Conv2D`: strides enlarge."""

    __init__ = by_name(convolutional.ConvTranspose.__init__)


class Conv3DTranspose(convolutional.Conv3DTranspose, Layer):
    """The transpose of a `Conv3D`: strides enlarge."""

    __init__ = by_name(convolutional.ConvTranspose.__init__)


class SeparableConv2D(convolutional.SeparableConv2D, Layer):
    """A depthwise convolution with ``depth_multiplier`` filters per channel, then a pointwise one."""

    __init__ = by_name(convolutional.SeparableConv2D.__init__)


class SeparableConv1D(convolutional.SeparableConv1D, Layer):
    """`SeparableConv2D` of sequences ``[n, w, c]``."""

    __init__ = by_name(convolutional.SeparableConv1D.__init__)


class DepthwiseConv2D(KernelLayer, Layer):
    """A convolution of each channel with ``depth_multiplier`` filters of its own."""

    rank = 4

    def __init__(
        self, kernel_size: Any, strides: Any = 1, padding: str = "valid", depth_multiplier: int = 1,
        data_format: str | None = None, activation: Any = None, use_bias: bool = True,
        depthwise_initializer: Any = "glorot_uniform", bias_initializer: Any = "zeros",
        depthwise_regularizer: Any = None, bias_regularizer: Any = None, activity_regularizer: Any = None,
        depthwise_constraint: Any = None, bias_constraint: Any = None, **options: Any,
    ) -> None:  # fmt: skip
        _kernel_layer(
            self, activation=activation, use_bias=use_bias, kernel_initializer=depthwise_initializer,
            bias_initializer=bias_initializer, kernel_regularizer=depthwise_regularizer,
            bias_regularizer=bias_regularizer, activity_regularizer=activity_regularizer,
            kernel_constraint=depthwise_constraint, bias_constraint=bias_constraint, **options,
        )  # fmt: skip
        self.kernel_size, self.strides = sizes(kernel_size, 2, "kernel_size"), sizes(strides, 2, "strides")
        self.padding: Any = padding_mode(padding)
        self.depth_multiplier = depth_multiplier
        self.data_format = layout(data_format or image_data_format(), 2)

    def build(self, input_shape: TensorShape) -> None:
        channels = self._known(input_shape, 1 if self.data_format == "NCHW" else -1)
        size = [*self.kernel_size, channels, self.depth_multiplier]
        self.depthwise_kernel = self._add_parameter("depthwise_kernel", size, "kernel")
        self._build_bias(channels * self.depth_multiplier)

    def call(self, inputs: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        strides = [1, *self.strides, 1] if self.data_format == "NHWC" else [1, 1, *self.strides]
        made = depthwise_conv2d(
            inputs, self.depthwise_kernel, strides, self.padding, data_format=self.data_format
        )
        return self._finished(made)


_kernel_layer = by_name(KernelLayer.__init__)


class _Spatial(Layer):
    """Base of layers that change the lengths of ``spatial`` dimensions, which begin at ``self._first``."""

    spatial: ClassVar[int]

    def __init__(self, data_format: str | None = None, **options: Any) -> None:
        super().__init__(**options)
        self.data_format = (data_format or image_data_format()) if self.spatial > 1 else "channels_last"
        self._first = 2 if self.data_format == "channels_first" else 1


def _pairs(value: Any, spatial: int, what: str) -> list[tuple[int, int]]:
    """``value`` before and after, for each dimension: a number, one for each, or pairs."""
    if isinstance(value, int):
        return [(value, value)] * spatial
    if spatial == 1:
        return [tuple(value)]
    if len(value) != spatial:
        raise misuse(f"{what}: expected {spatial} numbers or pairs; got {value!r}")
    return [(each, each) if isinstance(each, int) else tuple(each) for each in value]


class _ZeroPadding(_Spatial):
    """Adds zeros at both ends of each dimension."""

    def __init__(self, padding: Any = 1, data_format: str | None = None, **options: Any) -> None:
        super().__init__(data_format, **options)
        self.padding = _pairs(padding, self.spatial, "padding")

    def call(self, inputs: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        amounts = [[0, 0]] * (self.spatial + 2)
        amounts[self._first : self._first + self.spatial] = [list(each) for each in self.padding]
        return pad(inputs, amounts)


class ZeroPadding1D(_ZeroPadding):
    spatial = 1


class ZeroPadding2D(_ZeroPadding):
    spatial = 2


class ZeroPadding3D(_ZeroPadding):
    spatial = 3


class _Cropping(_Spatial):
    """Cuts off both ends of each dimension."""

    def __init__(self, cropping: Any = 1, data_format: str | None = None, **options: Any) -> None:
        super().__init__(data_format, **options)
        self.cropping = _pairs(cropping, self.spatial, "cropping")

    def call(self, inputs: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        index = [slice(None)] * self._first
        index += [slice(before, -after or None) for before, after in self.cropping]
        return inputs[tuple(index)]


class Cropping1D(_Cropping):
    spatial = 1


class Cropping2D(_Cropping):
    spatial = 2

    def __init__(self, cropping: Any = ((0, 0), (0, 0)), **options: Any) -> None:
        super().__init__(cropping, **options)


class Cropping3D(_Cropping):
    spatial = 3


class _UpSampling(_Spatial):
    """Repeats each position ``size`` times."""

    def __init__(self, size: Any = 2, data_format: str | None = None, **options: Any) -> None:
        super().__init__(data_format, **options)
        self.size = sizes(size, self.spatial, "size")

    def call(self, inputs: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        for axis, times in enumerate(self.size, self._first):
            inputs = repeat_elements(inputs, times, axis)
        return inputs


class UpSampling1D(_UpSampling):
    spatial = 1


class UpSampling2D(_UpSampling):
    """Enlarges images: ``interpolation`` is "nearest" or "bilinear"."""

    spatial = 2

    def __init__(
        self,
        size: Any = (2, 2),
        data_format: str | None = None,
        interpolation: str = "nearest",
        **options: Any,
    ) -> None:
        super().__init__(size, data_format, **options)
        if interpolation not in ("nearest", "bilinear"):
            raise misuse(f"UpSampling2D: expected interpolation nearest or bilinear; got {interpolation!r}")
        self.interpolation = interpolation

    def call(self, inputs: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        if self.interpolation == "nearest":
            return super().call(inputs)
        first = self.data_format == "channels_first"
        images = transpose(inputs, [0, 2, 3, 1]) if first else inputs
        found = resize_bilinear(images, new_lengths(images, self.size), half_pixel_centers=True)
        return transpose(found, [0, 3, 1, 2]) if first else found


class UpSampling3D(_UpSampling):
    spatial = 3


def new_lengths(images: Tensor, factors: Any) -> Any:
    """Height and width of ``images``, times ``factors``."""
    dims = images.shape.as_list()[1:3]
    if None in dims:
        raise misuse(
            f"UpSampling2D: expected images of known size for bilinear interpolation; got {images!r}"
        )
    return [n * factor for n, factor in zip(dims, factors, strict=True)]


def repeat_elements(x: Tensor, rep: int, axis: int) -> Tensor:
    """``x`` with each position along ``axis`` repeated."""
    rank, axis = x.shape.ndims or 0, axis % (x.shape.ndims or 1)
    copies = [1] * (rank + 1)
    copies[axis + 1] = rep
    lengths = [shape(x)[i] if n is None else n for i, n in enumerate(x.shape.as_list())]
    lengths[axis] *= rep
    return reshape(tile(expand_dims(x, axis + 1), copies), lengths)


Convolution1D, Convolution2D, Convolution3D = Conv1D, Conv2D, Conv3D
Convolution2DTranspose, SeparableConvolution2D = Conv2DTranspose, SeparableConv2D
