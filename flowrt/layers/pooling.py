"""Pooling as layers."""

from __future__ import annotations

from typing import Any

from flowrt.graph.construction.graph import Tensor
from flowrt.graph.ops.nn import pooling as ops
from flowrt.graph.typing import LayerDataFormat, LayerPadding
from flowrt.layers.base import Layer, layer_function
from flowrt.layers.geometry import Windowed, layout, padding_mode, sizes

__all__ = [
    "AveragePooling1D", "AveragePooling2D", "AveragePooling3D", "MaxPooling1D", "MaxPooling2D",
    "MaxPooling3D", "average_pooling1d", "average_pooling2d", "average_pooling3d", "max_pooling1d",
    "max_pooling2d", "max_pooling3d",
]  # fmt: skip


class _Pooling(Windowed, Layer):
    """Base of the pooling layers. ``strides`` None means the window's size."""

    takes_one = True

    def __init__(
        self,
        pool_size: Any,
        strides: Any,
        padding: LayerPadding = "valid",
        data_format: LayerDataFormat = "channels_last",
        name: str | None = None,
        **options: Any,
    ) -> None:
        super().__init__(name=name, **options)
        self.pool_size = sizes(pool_size, self.spatial, "pool_size")
        self.strides = self.pool_size if strides is None else sizes(strides, self.spatial, "strides")
        self.padding, self.data_format = padding_mode(padding), layout(data_format, self.spatial)

    def call(self, inputs: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        return type(self)._op(
            inputs, self.pool_size, self.strides, self.padding, data_format=self.data_format
        )


class MaxPooling1D(_Pooling, spatial=1, op=ops.max_pool1d):
    """The maximum of each window of sequences ``[n, w, c]``."""


class MaxPooling2D(_Pooling, spatial=2, op=ops.max_pool):
    """The maximum of each window of images ``[n, h, w, c]``.

    Example:
        >>> tf.layers.max_pooling2d(tf.zeros([8, 28, 28, 4]), pool_size=2, strides=2).shape.as_list()
        [8, 14, 14, 4]
    """


class MaxPooling3D(_Pooling, spatial=3, op=ops.max_pool3d):
    """The maximum of each window of volumes ``[n, d, h, w, c]``."""


class AveragePooling1D(_Pooling, spatial=1, op=ops.avg_pool1d):
    """The mean of each window of sequences ``[n, w, c]``."""


class AveragePooling2D(_Pooling, spatial=2, op=ops.avg_pool):
    """The mean of each window of images ``[n, h, w, c]``."""


class AveragePooling3D(_Pooling, spatial=3, op=ops.avg_pool3d):
    """The mean of each window of volumes ``[n, d, h, w, c]``."""


max_pooling1d = layer_function(MaxPooling1D, has_reuse=False)
max_pooling2d = layer_function(MaxPooling2D, has_reuse=False)
max_pooling3d = layer_function(MaxPooling3D, has_reuse=False)
average_pooling1d = layer_function(AveragePooling1D, has_reuse=False)
average_pooling2d = layer_function(AveragePooling2D, has_reuse=False)
average_pooling3d = layer_function(AveragePooling3D, has_reuse=False)
