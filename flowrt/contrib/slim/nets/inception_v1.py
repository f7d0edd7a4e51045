"""Inception v1. C. Szegedy et al., Going Deeper with Convolutions, CVPR (2015).

Images are [batch, 224, 224, 3].
"""

from __future__ import annotations

from typing import Any

from flowrt.contrib.framework import arg_scope
from flowrt.contrib.layers import avg_pool2d, batch_norm, conv2d, dropout, fully_connected, softmax
from flowrt.contrib.slim.nets.inception_blocks import (
    Branch,
    Network,
    build,
    conv,
    inception_arg_scope,
    logits,
    normalization,
    pool,
    stem,
)
from flowrt.graph.construction.graph import Tensor
from flowrt.initializers import TruncatedNormal
from flowrt.variables.variable_scope import variable_scope

__all__ = ["inception_v1", "inception_v1_arg_scope", "inception_v1_base"]


def _mixed(
    single: int, middle: tuple[int, int], last: tuple[int, int], pooled: int, name: str = "Conv2d_0b_3x3"
) -> list[Branch]:
    return [
        [conv("Conv2d_0a_1x1", single)],
        [conv("Conv2d_0a_1x1", middle[0]), conv("Conv2d_0b_3x3", middle[1])],
        [conv("Conv2d_0a_1x1", last[0]), conv(name, last[1])],
        [pool("MaxPool_0a_3x3"), conv("Conv2d_0b_1x1", pooled)],
    ]


_NETWORK: Network = {
    **stem(
        conv("Conv2d_1a_7x7", 64, stride=2),
        pool("MaxPool_2a_3x3", stride=2),
        conv("Conv2d_2b_1x1", 64),
        conv("Conv2d_2c_3x3", 192),
        pool("MaxPool_3a_3x3", stride=2),
    ),
    "Mixed_3b": _mixed(64, (96, 128), (16, 32), 32),
    "Mixed_3c": _mixed(128, (128, 192), (32, 96), 64),
    **stem(pool("MaxPool_4a_3x3", stride=2)),
    "Mixed_4b": _mixed(192, (96, 208), (16, 48), 64),
    "Mixed_4c": _mixed(160, (112, 224), (24, 64), 64),
    "Mixed_4d": _mixed(128, (128, 256), (24, 64), 64),
    "Mixed_4e": _mixed(112, (144, 288), (32, 64), 64),
    "Mixed_4f": _mixed(256, (160, 320), (32, 128), 128),
    **stem(pool("MaxPool_5a_2x2", stride=2)),
    "Mixed_5b": _mixed(256, (160, 320), (32, 128), 128, "Conv2d_0a_3x3"),  # as public checkpoints name it
    "Mixed_5c": _mixed(384, (192, 384), (48, 128), 128),
}


def inception_v1_base(
    inputs: Tensor, final_endpoint: str = "Mixed_5c", scope: Any = "InceptionV1"
) -> tuple[Tensor, dict[str, Tensor]]:
    """The features of images up to ``final_endpoint``, and all end points until there.

    Raises `InvalidArgumentError` if there is no such end point.
    """
    small = TruncatedNormal(stddev=0.01)
    with (
        variable_scope(scope, "InceptionV1", [inputs]),
        arg_scope([conv2d, fully_connected], weights_initializer=small),
    ):
        return build(inputs, _NETWORK, final_endpoint)


def inception_v1(
    inputs: Tensor, num_classes: int = 1000, is_training: Any = True, dropout_keep_prob: float = 0.8,
    prediction_fn: Any = softmax, spatial_squeeze: bool = True, reuse: Any = None, scope: Any = "InceptionV1",
) -> tuple[Tensor, dict[str, Tensor]]:  # fmt: skip
    """Logits, [batch, num_classes], or without ``spatial_squeeze`` [batch, 1, 1, num_classes]; and all end
    points.
    """
    with (
        variable_scope(scope, "InceptionV1", [inputs], reuse=reuse) as own,
        arg_scope([batch_norm, dropout], is_training=is_training),
    ):
        net, ends = inception_v1_base(inputs, scope=own)
        with variable_scope("Logits"):
            net = avg_pool2d(net, [7, 7], stride=1, scope="MaxPool_0a_7x7")
            net = dropout(net, dropout_keep_prob, scope="Dropout_0b")
            ends["Logits"] = found = logits(net, num_classes, spatial_squeeze, "Conv2d_0c_1x1")
            ends["Predictions"] = prediction_fn(found, scope="Predictions")
    return found, ends


inception_v1.default_image_size = 224  # type: ignore[attr-defined]


def inception_v1_arg_scope(
    weight_decay: float = 0.00004, use_batch_norm: bool = True, batch_norm_var_collection: str = "moving_vars"
) -> Any:
    """The default arguments of the layers of Inception v1, for `arg_scope`."""
    normalizer = normalization(batch_norm_var_collection) if use_batch_norm else None
    return inception_arg_scope(weight_decay, normalizer)
