"""VGG. K. Simonyan and A. Zisserman, Very Deep Convolutional Networks for Large-Scale Image Recognition
(2014).

Images are [batch, 224, 224, 3].
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from flowrt.contrib.layers import conv2d, max_pool2d, repeat
from flowrt.contrib.slim.nets.convolutional import convolutional_arg_scope, convolutional_network
from flowrt.graph.construction.graph import Tensor

__all__ = ["vgg_16", "vgg_19", "vgg_a", "vgg_arg_scope"]


def vgg_arg_scope(weight_decay: float = 0.0005) -> Any:
    """The default arguments of the layers of VGG, for `arg_scope`."""
    return convolutional_arg_scope(weight_decay)


def _network(name: str, convolutions: Sequence[int]) -> Any:
    def features(net: Tensor) -> Tensor:
        sizes = zip(convolutions, (64, 128, 256, 512, 512), strict=True)
        for i, (count, channels) in enumerate(sizes, 1):
            net = repeat(net, count, conv2d, channels, [3, 3], scope=f"conv{i}")
            net = max_pool2d(net, [2, 2], scope=f"pool{i}")
        return net

    def network(
        inputs: Tensor, num_classes: int | None = 1000, is_training: Any = True,
        dropout_keep_prob: float = 0.5, spatial_squeeze: bool = True, scope: Any = name,
    ) -> tuple[Tensor, dict[str, Tensor]]:  # fmt: skip
        return convolutional_network(
            inputs, features, 7, (4096, 4096), num_classes, is_training, dropout_keep_prob, spatial_squeeze,
            scope, name,
        )  # fmt: skip

    network.__name__ = network.__qualname__ = name
    network.__doc__ = f"VGG of {sum(convolutions) + 3} layers: logits, [batch, num_classes], and all outputs."
    network.default_image_size = 224  # type: ignore[attr-defined]
    return network


vgg_a = _network("vgg_a", (1, 1, 2, 2, 2))
vgg_16 = _network("vgg_16", (2, 2, 3, 3, 3))
vgg_19 = _network("vgg_19", (2, 2, 4, 4, 4))
