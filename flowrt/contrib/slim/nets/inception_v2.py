"""Inception v2. S. Ioffe and C. Szegedy, Batch Normalization: Accelerating Deep Network Training by Reducing
Internal Covariate Shift, ICML (2015).

Images are [batch, 224, 224, 3].
"""

from __future__ import annotations

from typing import Any

from flowrt.contrib.framework import arg_scope
from flowrt.contrib.layers import batch_norm, dropout, separable_conv2d, softmax
from flowrt.contrib.slim.nets.inception_blocks import (
    Branch,
    Depth,
    Layer,
    Network,
    averaged,
    build,
    conv,
    inception_arg_scope,
    logits,
    normalization,
    pool,
    scaled,
    stem,
)
from flowrt.graph.construction.graph import Tensor
from flowrt.initializers import TruncatedNormal
from flowrt.variables.variable_scope import variable_scope

__all__ = ["inception_v2", "inception_v2_arg_scope", "inception_v2_base"]


def _reduced(depth: int) -> Layer:
    return conv("Conv2d_0a_1x1", depth, std=0.09)


def _mixed(
    single: int, middle: tuple[int, int], last: tuple[int, int], pooled: int, pooling: str = "AvgPool_0a_3x3"
) -> list[Branch]:
    double = [conv("Conv2d_0b_3x3", last[1]), conv("Conv2d_0c_3x3", last[1])]
    return [
        [conv("Conv2d_0a_1x1", single)],
        [_reduced(middle[0]), conv("Conv2d_0b_3x3", middle[1])],
        [_reduced(last[0]), *double],
        [pool(pooling), conv("Conv2d_0b_1x1", pooled, std=0.1)],
    ]


def _halved(first: tuple[int, int], last: tuple[int, int]) -> list[Branch]:
    double = [conv("Conv2d_0b_3x3", last[1]), conv("Conv2d_1a_3x3", last[1], stride=2)]
    return [
        [_reduced(first[0]), conv("Conv2d_1a_3x3", first[1], stride=2)],
        [_reduced(last[0]), *double],
        [pool("MaxPool_1a_3x3", stride=2)],
    ]


def _first(net: Tensor, depth: Depth) -> Tensor:
    return separable_conv2d(
        net,
        depth(64),
        [7, 7],
        depth_multiplier=min(depth(64) // 3, 8),
        stride=2,
        weights_initializer=TruncatedNormal(stddev=1.0),
        scope="Conv2d_1a_7x7",
    )


_NETWORK: Network = {
    **stem(
        Layer("Conv2d_1a_7x7", _first),
        pool("MaxPool_2a_3x3", stride=2),
        conv("Conv2d_2b_1x1", 64, std=0.1),
        conv("Conv2d_2c_3x3", 192),
        pool("MaxPool_3a_3x3", stride=2),
    ),
    "Mixed_3b": _mixed(64, (64, 64), (64, 96), 32),
    "Mixed_3c": _mixed(64, (64, 96), (64, 96), 64),
    "Mixed_4a": _halved((128, 160), (64, 96)),
    "Mixed_4b": _mixed(224, (64, 96), (96, 128), 128),
    "Mixed_4c": _mixed(192, (96, 128), (96, 128), 128),
    "Mixed_4d": _mixed(160, (128, 160), (128, 160), 96),
    "Mixed_4e": _mixed(96, (128, 192), (160, 192), 96),
    "Mixed_5a": _halved((128, 192), (192, 256)),
    "Mixed_5b": _mixed(352, (192, 320), (160, 224), 128),
    "Mixed_5c": _mixed(352, (192, 320), (192, 224), 128, "MaxPool_0a_3x3"),
}


def inception_v2_base(
    inputs: Tensor, final_endpoint: str = "Mixed_5c", min_depth: int = 16, depth_multiplier: float = 1.0,
    scope: Any = None,
) -> tuple[Tensor, dict[str, Tensor]]:  # fmt: skip
    """The features of images up to ``final_endpoint``, and all end points until there. Convolutions have
    ``depth_multiplier`` times the channels of the paper, but at least ``min_depth``.

    Raises `InvalidArgumentError` if there is no such end point, or ``depth_multiplier`` is not positive.
    """
    depth = scaled(depth_multiplier, min_depth)
    with variable_scope(scope, "InceptionV2", [inputs]):
        return build(inputs, _NETWORK, final_endpoint, depth)


def inception_v2(
    inputs: Tensor, num_classes: int = 1000, is_training: Any = True, dropout_keep_prob: float = 0.8,
    min_depth: int = 16, depth_multiplier: float = 1.0, prediction_fn: Any = softmax,
    spatial_squeeze: bool = True, reuse: Any = None, scope: Any = "InceptionV2",
) -> tuple[Tensor, dict[str, Tensor]]:  # fmt: skip
    """Logits, [batch, num_classes], or without ``spatial_squeeze`` [batch, 1, 1, num_classes]; and all end
    points. See `inception_v2_base`.
    """
    with (
        variable_scope(scope, "InceptionV2", [inputs], reuse=reuse) as own,
        arg_scope([batch_norm, dropout], is_training=is_training),
    ):
        net, ends = inception_v2_base(
            inputs, min_depth=min_depth, depth_multiplier=depth_multiplier, scope=own
        )
        with variable_scope("Logits"):
            net = averaged(net, 7, dropout_keep_prob)
            found = logits(net, num_classes, spatial_squeeze, "Conv2d_1c_1x1")
        ends["Logits"] = found
        ends["Predictions"] = prediction_fn(found, scope="Predictions")
    return found, ends


inception_v2.default_image_size = 224  # type: ignore[attr-defined]


def inception_v2_arg_scope(
    weight_decay: float = 0.00004, batch_norm_var_collection: str = "moving_vars"
) -> Any:
    """The default arguments of the layers of Inception v2, for `arg_scope`."""
    return inception_arg_scope(weight_decay, normalization(batch_norm_var_collection))
