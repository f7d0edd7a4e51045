"""OverFeat. P. Sermanet et al., OverFeat: Integrated Recognition, Localization and Detection using
Convolutional Networks, ICLR (2014).

Images are [batch, 231, 231, 3].
"""

from __future__ import annotations

from typing import Any

from flowrt.contrib.layers import conv2d, max_pool2d
from flowrt.contrib.slim.nets.convolutional import SMALL, convolutional_arg_scope, convolutional_network
from flowrt.graph.construction.graph import Tensor

__all__ = ["overfeat", "overfeat_arg_scope"]


def overfeat_arg_scope(weight_decay: float = 0.0005) -> Any:
    """The default arguments of the layers of OverFeat, for `arg_scope`."""
    return convolutional_arg_scope(weight_decay, pool_padding="VALID")


def _features(net: Tensor) -> Tensor:
    net = conv2d(net, 64, [11, 11], 4, padding="VALID", scope="conv1")
    net = max_pool2d(net, [2, 2], scope="pool1")
    net = conv2d(net, 256, [5, 5], padding="VALID", scope="conv2")
    net = max_pool2d(net, [2, 2], scope="pool2")
    for i, channels in ((3, 512), (4, 1024), (5, 1024)):
        net = conv2d(net, channels, [3, 3], scope=f"conv{i}")
    return max_pool2d(net, [2, 2], scope="pool5")


def overfeat(
    inputs: Tensor, num_classes: int | None = 1000, is_training: Any = True, dropout_keep_prob: float = 0.5,
    spatial_squeeze: bool = True, scope: Any = "overfeat",
) -> tuple[Tensor, dict[str, Tensor]]:  # fmt: skip
    """OverFeat: logits, [batch, num_classes], and all outputs."""
    return convolutional_network(
        inputs, _features, 6, (3072, 4096), num_classes, is_training, dropout_keep_prob, spatial_squeeze,
        scope, "overfeat", SMALL,
    )  # fmt: skip


overfeat.default_image_size = 231  # type: ignore[attr-defined]
