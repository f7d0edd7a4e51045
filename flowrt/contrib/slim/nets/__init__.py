"""``flowrt.contrib.slim.nets``: published networks for images. Their variables have the names of those in
public checkpoints.

resnet_utils   blocks of residual units; the default arguments of residual networks
resnet_v1      residual networks
resnet_v2      residual networks with normalization before each convolution
vgg            VGG
"""

from flowrt.contrib.slim.nets import resnet_utils, resnet_v1, resnet_v2, vgg
from flowrt.tf1.missing_names import missing_from

__all__ = ["resnet_utils", "resnet_v1", "resnet_v2", "vgg"]

__getattr__ = missing_from("contrib.slim.nets")
