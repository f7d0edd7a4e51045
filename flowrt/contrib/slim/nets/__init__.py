"""``flowrt.contrib.slim.nets``: published networks for images. Their variables have the names of those in
public checkpoints.

convolutional     dense layers as convolutions
alexnet           AlexNet
overfeat          OverFeat
vgg               VGG
inception_blocks  Inception networks as tables of layers
inception         Inception v1 to v3: inception_v1, inception_v2, inception_v3
resnet_utils      blocks of residual units; the default arguments of residual networks
resnet_v1         residual networks
resnet_v2         residual networks with normalization before each convolution
"""

from flowrt.contrib.slim.nets import (
    alexnet,
    inception,
    inception_v1,
    inception_v2,
    inception_v3,
    overfeat,
    resnet_utils,
    resnet_v1,
    resnet_v2,
    vgg,
)
from flowrt.tf1.missing_names import missing_from

__all__ = [
    "alexnet", "inception", "inception_v1", "inception_v2", "inception_v3", "overfeat", "resnet_utils",
    "resnet_v1", "resnet_v2", "vgg",
]  # fmt: skip

__getattr__ = missing_from("contrib.slim.nets")
