"""AlexNet. A. Krizhevsky, One weird trick for parallelizing convolutional neural networks (2014).

Images are [batch, 224, 224, 3].
"""

from __future__ import annotations

from typing import Any

from flowrt.contrib.layers import conv2d, max_pool2d
from flowrt.contrib.slim.nets.convolutional import SMALL, convolutional_arg_scope, convolutional_network
from flowrt.graph.construction.graph import Tensor

__all__ = ["alexnet_v2", "alexnet_v2_arg_scope"]


def alexnet_v2_arg_scope(weight_decay: float = 0.0005) -> Any:
    """The default arguments of the layers of AlexNet, for `arg_scope`."""
    return convolutional_arg_scope(weight_decay, bias=0.1, pool_padding="VALID")


def _features(net: Tensor) -> Tensor:
    net = conv2d(net, 64, [11, 11], 4, padding="VALID", scope="conv1")
    net = max_pool2d(net, [3, 3], 2, scope="pool1")
    net = conv2d(net, 192, [5, 5], scope="conv2")
    net = max_pool2d(net, [3, 3], 2, scope="pool2")
    for i, channels in ((3, 384), (4, 384), (5, 256)):
        net = conv2d(net, channels, [3, 3], scope=f"conv{i}")
    return max_pool2d(net, [3, 3], 2, scope="pool5")


def alexnet_v2(
    inputs: Tensor, num_classes: int | None = 1000, is_training: Any = True, dropout_keep_prob: float = 0.5,
    spatial_squeeze: bool = True, scope: Any = "alexnet_v2",
) -> tuple[Tensor, dict[str, Tensor]]:  # fmt: skip
    """AlexNet without normalization of local responses: logits, [batch, num_classes], and all outputs."""
    return convolutional_network(
        inputs, _features, 5, (4096, 4096), num_classes, is_training, dropout_keep_prob, spatial_squeeze,
        scope, "alexnet_v2", SMALL,
    )  # fmt: skip


alexnet_v2.default_image_size = 224  # type: ignore[attr-defined]
