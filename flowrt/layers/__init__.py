"""``flowrt.layers``: layers that own variables, under TensorFlow 1's ``tf.layers`` names.

base                      `Layer`: scope, variables, losses, updates; a class as a function
core                      Dense, Dropout, Flatten
lora                      LoraDense: a frozen Dense with two small trained factors
geometry                  sizes, paddings and data formats of layers with windows
convolutional, pooling    Conv1D to Conv3D, transposes, separable ones; max and average pooling
normalization             BatchNormalization
regularizers              l1, l2
"""

from flowrt.layers import convolutional, pooling
from flowrt.layers.base import InputSpec, Layer
from flowrt.layers.convolutional import *
from flowrt.layers.core import Dense, Dropout, Flatten, dense, dropout, flatten
from flowrt.layers.lora import LoraDense, lora_dense
from flowrt.layers.normalization import BatchNormalization, batch_normalization
from flowrt.layers.pooling import *
from flowrt.tf1.missing_names import missing_from

__all__ = [
    "BatchNormalization", "Dense", "Dropout", "Flatten", "InputSpec", "Layer", "LoraDense",
    "batch_normalization", "dense", "dropout", "flatten", "lora_dense",
]  # fmt: skip
__all__ += convolutional.__all__ + pooling.__all__

__getattr__ = missing_from("layers")
