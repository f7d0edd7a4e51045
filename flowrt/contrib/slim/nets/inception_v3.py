"""Inception v3. C. Szegedy et al., Rethinking the Inception Architecture for Computer Vision, CVPR (2016).

Images are [batch, 299, 299, 3].
"""

from __future__ import annotations

from typing import Any

from flowrt.contrib.framework import arg_scope
from flowrt.contrib.layers import avg_pool2d, batch_norm, conv2d, dropout, max_pool2d, softmax
from flowrt.contrib.slim.nets.inception_blocks import (
    Branch,
    Depth,
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
    whole,
)
from flowrt.graph.construction.graph import Tensor
from flowrt.initializers import TruncatedNormal
from flowrt.variables.variable import GraphKeys
from flowrt.variables.variable_scope import variable_scope

__all__ = ["inception_v3", "inception_v3_arg_scope", "inception_v3_base"]

_VALID: Any = {"padding": "VALID"}


def _pooled(depth: int) -> Branch:
    return [pool("AvgPool_0a_3x3"), conv("Conv2d_0b_1x1", depth)]


def _mixed_5(pooled: int, first: str = "Conv2d_0a_1x1", last: str = "Conv2d_0b_5x5") -> list[Branch]:
    """Kernels of 5 x 5, once as two of 3 x 3."""
    return [
        [conv("Conv2d_0a_1x1", 64)],
        [conv(first, 48), conv(last, 64)],
        [conv("Conv2d_0a_1x1", 64), conv("Conv2d_0b_3x3", 96), conv("Conv2d_0c_3x3", 96)],
        _pooled(pooled),
    ]


def _mixed_6(depth: int) -> list[Branch]:
    """Kernels of 7 x 7 as one of 1 x 7 and one of 7 x 1, once and twice."""
    once = [conv("Conv2d_0b_1x7", depth), conv("Conv2d_0c_7x1", 192)]
    twice = [
        *(conv(name, depth) for name in ("Conv2d_0b_7x1", "Conv2d_0c_1x7", "Conv2d_0d_7x1")),
        conv("Conv2d_0e_1x7", 192),
    ]
    return [
        [conv("Conv2d_0a_1x1", 192)],
        [conv("Conv2d_0a_1x1", depth), *once],
        [conv("Conv2d_0a_1x1", depth), *twice],
        _pooled(192),
    ]


def _mixed_7(tall: str) -> list[Branch]:
    """Kernels of 1 x 3 and 3 x 1 side by side; the first one that is tall is called ``tall``."""
    wide = (conv("Conv2d_0b_1x3", 384), conv(tall, 384))
    wide_behind = (conv("Conv2d_0c_1x3", 384), conv("Conv2d_0d_3x1", 384))
    return [
        [conv("Conv2d_0a_1x1", 320)],
        [conv("Conv2d_0a_1x1", 384), wide],
        [conv("Conv2d_0a_1x1", 448), conv("Conv2d_0b_3x3", 384), wide_behind],
        _pooled(192),
    ]


_HALVING: Any = {"stride": 2, "kernel_size": [3, 3], **_VALID}

_NETWORK: Network = {
    **stem(
        conv("Conv2d_1a_3x3", 32, stride=2, **_VALID),
        conv("Conv2d_2a_3x3", 32, **_VALID),
        conv("Conv2d_2b_3x3", 64),
        pool("MaxPool_3a_3x3", stride=2, **_VALID),
        conv("Conv2d_3b_1x1", 80, **_VALID),
        conv("Conv2d_4a_3x3", 192, **_VALID),
        pool("MaxPool_5a_3x3", stride=2, **_VALID),
    ),
    "Mixed_5b": _mixed_5(32),
    "Mixed_5c": _mixed_5(64, "Conv2d_0b_1x1", "Conv_1_0c_5x5"),  # as public checkpoints name them
    "Mixed_5d": _mixed_5(64),
    "Mixed_6a": [
        [conv("Conv2d_1a_1x1", 384, **_HALVING)],
        [conv("Conv2d_0a_1x1", 64), conv("Conv2d_0b_3x3", 96), conv("Conv2d_1a_1x1", 96, **_HALVING)],
        [pool("MaxPool_1a_3x3", stride=2, **_VALID)],
    ],
    "Mixed_6b": _mixed_6(128),
    "Mixed_6c": _mixed_6(160),
    "Mixed_6d": _mixed_6(160),
    "Mixed_6e": _mixed_6(192),
    "Mixed_7a": [
        [conv("Conv2d_0a_1x1", 192), conv("Conv2d_1a_3x3", 320, **_HALVING)],
        [
            *(conv(name, 192) for name in ("Conv2d_0a_1x1", "Conv2d_0b_1x7", "Conv2d_0c_7x1")),
            conv("Conv2d_1a_3x3", 192, **_HALVING),
        ],
        [pool("MaxPool_1a_3x3", stride=2, **_VALID)],
    ],
    "Mixed_7b": _mixed_7("Conv2d_0b_3x1"),
    "Mixed_7c": _mixed_7("Conv2d_0c_3x1"),
}


def inception_v3_base(
    inputs: Tensor, final_endpoint: str = "Mixed_7c", min_depth: int = 16, depth_multiplier: float = 1.0,
    scope: Any = None,
) -> tuple[Tensor, dict[str, Tensor]]:  # fmt: skip
    """The features of images up to ``final_endpoint``, and all end points until there. Convolutions have
    ``depth_multiplier`` times the channels of the paper, but at least ``min_depth``.

    Raises `InvalidArgumentError` if there is no such end point, or ``depth_multiplier`` is not positive.
    """
    depth = scaled(depth_multiplier, min_depth)
    with variable_scope(scope, "InceptionV3", [inputs]):
        return build(inputs, _NETWORK, final_endpoint, depth)


def inception_v3(
    inputs: Tensor, num_classes: int = 1000, is_training: Any = True, dropout_keep_prob: float = 0.8,
    min_depth: int = 16, depth_multiplier: float = 1.0, prediction_fn: Any = softmax,
    spatial_squeeze: bool = True, reuse: Any = None, scope: Any = "InceptionV3",
) -> tuple[Tensor, dict[str, Tensor]]:  # fmt: skip
    """Logits, [batch, num_classes], or without ``spatial_squeeze`` [batch, 1, 1, num_classes]; and all end
    points, among them ``AuxLogits`` of an earlier one. See `inception_v3_base`.
    """
    depth = scaled(depth_multiplier, min_depth)
    with (
        variable_scope(scope, "InceptionV3", [inputs], reuse=reuse) as own,
        arg_scope([batch_norm, dropout], is_training=is_training),
    ):
        net, ends = inception_v3_base(
            inputs, min_depth=min_depth, depth_multiplier=depth_multiplier, scope=own
        )
        same = arg_scope([conv2d, max_pool2d, avg_pool2d], stride=1, padding="SAME")
        with same, variable_scope("AuxLogits"):
            ends["AuxLogits"] = _auxiliary(ends["Mixed_6e"], num_classes, spatial_squeeze, depth)
        with variable_scope("Logits"):
            ends["PreLogits"] = net = averaged(net, 8, dropout_keep_prob)
            found = logits(net, num_classes, spatial_squeeze, "Conv2d_1c_1x1")
        ends["Logits"] = found
        ends["Predictions"] = prediction_fn(found, scope="Predictions")
    return found, ends


inception_v3.default_image_size = 299  # type: ignore[attr-defined]


def _auxiliary(net: Tensor, num_classes: int, spatial_squeeze: bool, depth: Depth) -> Tensor:
    """Logits that help to train the layers below them."""
    net = avg_pool2d(net, [5, 5], stride=3, padding="VALID", scope="AvgPool_1a_5x5")
    net = conv2d(net, depth(128), [1, 1], scope="Conv2d_1b_1x1")
    size, small = whole(net, 5), TruncatedNormal(stddev=0.01)
    name = "Conv2d_2a_{}x{}".format(*size)
    net = conv2d(net, depth(768), size, weights_initializer=small, padding="VALID", scope=name)
    smaller = TruncatedNormal(stddev=0.001)
    return logits(net, num_classes, spatial_squeeze, "Conv2d_2b_1x1", weights_initializer=smaller)


def inception_v3_arg_scope(
    weight_decay: float = 0.00004, batch_norm_var_collection: str = "moving_vars",
    batch_norm_decay: float = 0.9997, batch_norm_epsilon: float = 0.001,
    updates_collections: Any = GraphKeys.UPDATE_OPS, use_fused_batchnorm: bool | None = True,
) -> Any:  # fmt: skip
    """The default arguments of the layers of Inception v3, for `arg_scope`."""
    normalizer = normalization(
        batch_norm_var_collection, batch_norm_decay, batch_norm_epsilon, updates_collections,
        fused=use_fused_batchnorm,
    )  # fmt: skip
    return inception_arg_scope(weight_decay, normalizer)
