"""Inception-ResNet v2: branches of convolutions; their scaled outputs are added to their input.

Szegedy, Ioffe, Vanhoucke and Alemi, "Inception-v4, Inception-ResNet and the Impact of Residual Connections on
Learning", 2016.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from flowrt.graph.construction.graph import Tensor
from flowrt.keras import layers
from flowrt.keras.applications.imagenet import (
    Network,
    Wanted,
    build,
    classified,
    decode_predictions,
    normalized,
    preprocessing,
)
from flowrt.keras.applications.inception_v3 import Branch, branch, joined, mixed, smaller, stem
from flowrt.keras.engine.model import Model

__all__ = ["InceptionResNetV2", "decode_predictions", "preprocess_input"]

preprocess_input = preprocessing("tf")


class Block(NamedTuple):
    """A kind of blocks: their branches, and by how much their outputs are scaled."""

    name: str
    branches: Sequence[Branch]
    scale: float


_BLOCK_35 = Block(
    "block35", [[(32, 1, 1)], [(32, 1, 1), (32, 3, 3)], [(32, 1, 1), (48, 3, 3), (64, 3, 3)]], 0.17
)
_BLOCK_17 = Block("block17", [[(192, 1, 1)], [(128, 1, 1), (160, 1, 7), (192, 7, 1)]], 0.1)
_BLOCK_8 = Block("block8", [[(192, 1, 1)], [(192, 1, 1), (224, 1, 3), (256, 3, 1)]], 0.2)


def _scaled_sum(inputs: Sequence[Any], scale: float) -> Any:
    return inputs[0] + inputs[1] * scale


def _block(x: Tensor, kind: Block, index: int, is_last: bool = False) -> Tensor:
    """``x`` with what the branches add; the last block neither scales nor ends with an activation."""
    name = f"{kind.name}_{index}"
    parts = joined([branch(x, each) for each in kind.branches], f"{name}_mixed")
    added = layers.Conv2D(x.shape.as_list()[-1], 1, padding="same", name=f"{name}_conv")(parts)
    scale = 1.0 if is_last else kind.scale
    x = layers.Lambda(_scaled_sum, arguments={"scale": scale}, name=name)([x, added])
    return x if is_last else layers.Activation("relu", name=f"{name}_ac")(x)


def _body(x: Tensor) -> Tensor:
    five, three = [(48, 1, 1), (64, 5, 5)], [(64, 1, 1), (96, 3, 3), (96, 3, 3)]
    x = mixed(stem(x), "mixed_5b", [[(96, 1, 1)], five, three], 64)
    for index in range(1, 11):
        x = _block(x, _BLOCK_35, index)
    x = smaller(x, "mixed_6a", [[(384, 3, 3)], [(256, 1, 1), (256, 3, 3), (384, 3, 3)]])
    for index in range(1, 21):
        x = _block(x, _BLOCK_17, index)
    two, three = [(256, 1, 1), (288, 3, 3)], [(256, 1, 1), (288, 3, 3), (320, 3, 3)]
    x = smaller(x, "mixed_7a", [[(256, 1, 1), (384, 3, 3)], two, three])
    for index in range(1, 11):
        x = _block(x, _BLOCK_8, index, is_last=index == 10)
    x = layers.Conv2D(1536, 1, padding="same", use_bias=False, name="conv_7b")(x)
    return layers.Activation("relu", name="conv_7b_ac")(normalized(x, "conv_7b_bn", scale=False))


def InceptionResNetV2(
    include_top: bool = True, weights: Any = "imagenet", input_tensor: Any = None, input_shape: Any = None,
    pooling: str | None = None, classes: int = 1000,
) -> Model:  # fmt: skip
    """244 convolutions, for images of 299 x 299. See `imagenet.build` for errors."""
    wanted = Wanted(include_top, weights, input_tensor, input_shape, pooling, classes)
    file = "inception_resnet_v2_weights_tf_dim_ordering_tf_kernels{notop}.h5"
    head = classified("avg_pool", "predictions")
    return build(Network("inception_resnet_v2", 299, 75, _body, head, file), wanted)
