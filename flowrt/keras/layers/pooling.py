"""Pooling over windows, and over all positions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

from flowrt.graph.construction.graph import Tensor
from flowrt.graph.ops.array.reductions import reduce_max, reduce_mean, reduce_sum
from flowrt.graph.ops.base.identities import cast
from flowrt.graph.ops.base.shape_manipulation import expand_dims
from flowrt.graph.ops.elementwise.arithmetic import multiply
from flowrt.graph.ops.elementwise.division import realdiv
from flowrt.keras.engine.layer import Layer
from flowrt.keras.layers.options import by_name
from flowrt.keras.state.settings import image_data_format
from flowrt.layers import pooling

__all__ = [
    "AveragePooling1D", "AveragePooling2D", "AveragePooling3D", "AvgPool1D", "AvgPool2D", "AvgPool3D",
    "GlobalAveragePooling1D", "GlobalAveragePooling2D", "GlobalAveragePooling3D", "GlobalAvgPool1D",
    "GlobalAvgPool2D", "GlobalAvgPool3D", "GlobalMaxPool1D", "GlobalMaxPool2D", "GlobalMaxPool3D",
    "GlobalMaxPooling1D", "GlobalMaxPooling2D", "GlobalMaxPooling3D", "MaxPool1D", "MaxPool2D", "MaxPool3D",
    "MaxPooling1D", "MaxPooling2D", "MaxPooling3D",
]  # fmt: skip

_construct = by_name(pooling.MaxPooling2D.__init__, pool_size=2, strides=None)


class MaxPooling1D(pooling.MaxPooling1D, Layer):
    """The maximum of each window of sequences ``[n, w, c]``."""

    __init__ = _construct


class MaxPooling2D(pooling.MaxPooling2D, Layer):
    """The maximum of each window of images ``[n, h, w, c]``."""

    __init__ = _construct


class MaxPooling3D(pooling.MaxPooling3D, Layer):
    """The maximum of each window of volumes ``[n, d, h, w, c]``."""

    __init__ = _construct


class AveragePooling1D(pooling.AveragePooling1D, Layer):
    """The mean of each window of sequences ``[n, w, c]``."""

    __init__ = _construct


class AveragePooling2D(pooling.AveragePooling2D, Layer):
    """The mean of each window of images ``[n, h, w, c]``."""

    __init__ = _construct


class AveragePooling3D(pooling.AveragePooling3D, Layer):
    """The mean of each window of volumes ``[n, d, h, w, c]``."""

    __init__ = _construct


class _Global(Layer):
    """One number for each channel, over all positions."""

    spatial: ClassVar[int]
    reduce: ClassVar[Callable[..., Tensor]]

    def __init__(self, data_format: str | None = None, **options: Any) -> None:
        super().__init__(**options)
        self.data_format = data_format or (image_data_format() if self.spatial > 1 else "channels_last")

    def call(self, inputs: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        first = 2 if self.data_format == "channels_first" else 1
        return type(self).reduce(inputs, list(range(first, first + self.spatial)))


class GlobalMaxPooling1D(_Global):
    spatial, reduce = 1, reduce_max


class GlobalMaxPooling2D(_Global):
    spatial, reduce = 2, reduce_max


class GlobalMaxPooling3D(_Global):
    spatial, reduce = 3, reduce_max


class GlobalAveragePooling1D(_Global):
    """The mean over time: with a mask, of the steps that count."""

    spatial, reduce = 1, reduce_mean
    supports_masking = True

    def call(self, inputs: Tensor, mask: Any = None) -> Tensor:
        if mask is None:
            return super().call(inputs)
        axis = 2 if self.data_format == "channels_first" else 1
        counts = expand_dims(cast(mask, inputs.dtype), 3 - axis)
        return realdiv(reduce_sum(multiply(inputs, counts), axis), reduce_sum(counts, axis))

    def compute_mask(self, inputs: Any, mask: Any = None) -> Any:
        return None


class GlobalAveragePooling2D(_Global):
    spatial, reduce = 2, reduce_mean


class GlobalAveragePooling3D(_Global):
    spatial, reduce = 3, reduce_mean


MaxPool1D, MaxPool2D, MaxPool3D = MaxPooling1D, MaxPooling2D, MaxPooling3D
AvgPool1D, AvgPool2D, AvgPool3D = AveragePooling1D, AveragePooling2D, AveragePooling3D
GlobalMaxPool1D, GlobalMaxPool2D, GlobalMaxPool3D = GlobalMaxPooling1D, GlobalMaxPooling2D, GlobalMaxPooling3D
GlobalAvgPool1D, GlobalAvgPool2D = GlobalAveragePooling1D, GlobalAveragePooling2D
GlobalAvgPool3D = GlobalAveragePooling3D
