"""``flowrt.layers``: layers with variables of their own, under TensorFlow 1's ``tf.layers`` names.

base            `Layer`: scope, variables, losses, updates; how a class becomes a function
core            Dense, Dropout, Flatten
convolutional   Conv1D, Conv2D, Conv3D, their transposes, SeparableConv2D
pooling         MaxPooling, AveragePooling, over 1 to 3 dimensions
normalization   BatchNormalization
regularizers    l1, l2: losses of variables
"""

from typing import Any

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
from flowrt.missing_names import missing_name

__all__ = [
    "AveragePooling1D",
    "AveragePooling2D",
    "AveragePooling3D",
    "BatchNormalization",
    "Conv1D",
    "Conv2D",
    "Conv2DTranspose",
    "Conv3D",
    "Conv3DTranspose",
    "Dense",
    "Dropout",
    "Flatten",
    "Layer",
    "MaxPooling1D",
    "MaxPooling2D",
    "MaxPooling3D",
    "SeparableConv2D",
    "average_pooling1d",
    "average_pooling2d",
    "average_pooling3d",
    "batch_normalization",
    "conv1d",
    "conv2d",
    "conv2d_transpose",
    "conv3d",
    "conv3d_transpose",
    "dense",
    "dropout",
    "flatten",
    "max_pooling1d",
    "max_pooling2d",
    "max_pooling3d",
    "separable_conv2d",
]


def __getattr__(name: str) -> Any:
    raise missing_name("layers", name, globals())
