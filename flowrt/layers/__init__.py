"""``flowrt.layers``: layers that own variables, under TensorFlow 1's ``tf.layers`` names.

base                      `Layer`: scope, variables, losses, updates; a class as a function
core                      Dense, Dropout, Flatten
geometry                  sizes, paddings and data formats of layers with windows
convolutional, pooling    Conv1D to Conv3D and their transposes; max and average pooling
normalization             BatchNormalization
regularizers              l1, l2
"""

from typing import Any

from flowrt.base.missing_names import missing_from
from flowrt.layers.base import Layer
from flowrt.layers.convolutional import (
    Conv1D,
    Conv2D,
    Conv2DTranspose,
    Conv3D,
    Conv3DTranspose,
    SeparableConv2D,
    conv1d,
    conv2d,
    conv2d_transpose,
    conv3d,
    conv3d_transpose,
    separable_conv2d,
)
from flowrt.layers.core import Dense, Dropout, Flatten, dense, dropout, flatten
from flowrt.layers.normalization import BatchNormalization, batch_normalization
from flowrt.layers.pooling import (
    AveragePooling1D,
    AveragePooling2D,
    AveragePooling3D,
    MaxPooling1D,
    MaxPooling2D,
    MaxPooling3D,
    average_pooling1d,
    average_pooling2d,
    average_pooling3d,
    max_pooling1d,
    max_pooling2d,
    max_pooling3d,
)

__all__ = [
    "AveragePooling1D", "AveragePooling2D", "AveragePooling3D", "BatchNormalization", "Conv1D", "Conv2D",
    "Conv2DTranspose", "Conv3D", "Conv3DTranspose", "Dense", "Dropout", "Flatten", "Layer", "MaxPooling1D",
    "MaxPooling2D", "MaxPooling3D", "SeparableConv2D", "average_pooling1d", "average_pooling2d",
    "average_pooling3d", "batch_normalization", "conv1d", "conv2d", "conv2d_transpose", "conv3d",
    "conv3d_transpose", "dense", "dropout", "flatten", "max_pooling1d", "max_pooling2d", "max_pooling3d",
    "separable_conv2d",
]  # fmt: skip

__getattr__ = missing_from("layers")
