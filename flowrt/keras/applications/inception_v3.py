"""Inception v3: branches of convolutions side by side. Szegedy, Vanhoucke, Ioffe, Shlens and Wojna,
"Rethinking the Inception Architecture for Computer Vision", 2015."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from flowrt.graph.construction.graph import Tensor
from flowrt.keras import layers
from flowrt.keras.applications.imagenet import (
    Network,
    Wanted,
    build,
    channel_axis,
    classified,
    decode_predictions,
    normalized,
    preprocessing,
)
from flowrt.keras.engine.model import Model

__all__ = ["InceptionV3", "decode_predictions", "preprocess_input"]

preprocess_input = preprocessing("tf")
Branch = Sequence[tuple[int, int, int]]
"""Convolutions one after the other: filters, rows and columns."""


def convolution(
    x: Tensor, filters: int, rows: int, columns: int, padding: str = "same", strides: int = 1
) -> Tensor:
    x = layers.Conv2D(filters, (rows, columns), strides, padding, use_bias=False)(x)
    return layers.Activation("relu")(normalized(x, None, scale=False))


def branch(x: Tensor, convolutions: Branch) -> Tensor:
    for each in convolutions:
        x = convolution(x, *each)
    return x


def joined(parts: list[Tensor], name: str | None = None) -> Tensor:
    return layers.Concatenate(axis=channel_axis(), name=name)(parts)


def mixed(x: Tensor, name: str, branches: Sequence[Branch], pooled: int) -> Tensor:
    """The branches, and one of means with ``pooled`` filters."""
    parts = [branch(x, each) for each in branches]
    means = layers.AveragePooling2D(3, strides=1, padding="same")(x)
    return joined([*parts, convolution(means, pooled, 1, 1)], name)


def smaller(x: Tensor, name: str, branches: Sequence[Branch]) -> Tensor:
    """The branches, with last convolutions that halve the image, and one of maxima."""
    parts = [convolution(branch(x, each[:-1]), *each[-1], "valid", 2) for each in branches]
    return joined([*parts, layers.MaxPooling2D(3, strides=2)(x)], name)


def stem(x: Tensor) -> Tensor:
    x = convolution(x, 32, 3, 3, "valid", 2)
    x = convolution(x, 32, 3, 3, "valid")
    x = layers.MaxPooling2D(3, strides=2)(convolution(x, 64, 3, 3))
    x = convolution(x, 80, 1, 1, "valid")
    return layers.MaxPooling2D(3, strides=2)(convolution(x, 192, 3, 3, "valid"))


def _split(x: Tensor, name: str | None) -> Tensor:
    """A row and a column side by side."""
    return joined([convolution(x, 384, 1, 3), convolution(x, 384, 3, 1)], name)


def _body(x: Tensor) -> Tensor:
    x = stem(x)
    for i, pooled in enumerate((32, 64, 64)):
        five, three = [(48, 1, 1), (64, 5, 5)], [(64, 1, 1), (96, 3, 3), (96, 3, 3)]
        x = mixed(x, f"mixed{i}", [[(64, 1, 1)], five, three], pooled)
    x = smaller(x, "mixed3", [[(384, 3, 3)], [(64, 1, 1), (96, 3, 3), (96, 3, 3)]])
    for i, n in enumerate((128, 160, 160, 192), 4):
        once = [(n, 1, 1), (n, 1, 7), (192, 7, 1)]
        twice = [(n, 1, 1), (n, 7, 1), (n, 1, 7), (n, 7, 1), (192, 1, 7)]
        x = mixed(x, f"mixed{i}", [[(192, 1, 1)], once, twice], 192)
    three, seven = [(192, 1, 1), (320, 3, 3)], [(192, 1, 1), (192, 1, 7), (192, 7, 1), (192, 3, 3)]
    x = smaller(x, "mixed8", [three, seven])
    for i in range(2):
        parts = [convolution(x, 320, 1, 1), _split(convolution(x, 384, 1, 1), f"mixed9_{i}")]
        parts.append(_split(branch(x, [(448, 1, 1), (384, 3, 3)]), None))
        means = layers.AveragePooling2D(3, strides=1, padding="same")(x)
        x = joined([*parts, convolution(means, 192, 1, 1)], f"mixed{9 + i}")
    return x


def InceptionV3(
    include_top: bool = True, weights: Any = "imagenet", input_tensor: Any = None, input_shape: Any = None,
    pooling: str | None = None, classes: int = 1000,
) -> Model:  # fmt: skip
    """94 convolutions, for images of 299 x 299. See `imagenet.build` for errors."""
    wanted = Wanted(include_top, weights, input_tensor, input_shape, pooling, classes)
    file = "inception_v3_weights_tf_dim_ordering_tf_kernels{notop}.h5"
    head = classified("avg_pool", "predictions")
    return build(Network("inception_v3", 299, 75, _body, head, file), wanted)
