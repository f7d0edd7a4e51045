"""Xception: depthwise separable convolutions. Chollet, "Xception: Deep Learning with Depthwise Separable
Convolutions", 2016."""

from __future__ import annotations

from typing import Any

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
from flowrt.keras.engine.model import Model

__all__ = ["Xception", "decode_predictions", "preprocess_input"]

preprocess_input = preprocessing("tf")


def _relu(x: Tensor, name: str) -> Tensor:
    made: Tensor = layers.Activation("relu", name=f"{name}_act")(x)
    return made


def _separable(x: Tensor, filters: int, name: str) -> Tensor:
    x = layers.SeparableConv2D(filters, 3, padding="same", use_bias=False, name=name)(x)
    return normalized(x, f"{name}_bn")


def _smaller(x: Tensor, block: int, filters: tuple[int, int]) -> Tensor:
    """A block that halves the image, and what passes around it."""
    name = f"block{block}"
    passing = layers.Conv2D(filters[1], 1, strides=2, padding="same", use_bias=False)(x)
    passing = normalized(passing, None)
    for i, count in enumerate(filters, 1):
        x = _relu(x, f"{name}_sepconv{i}") if block > 2 or i > 1 else x
        x = _separable(x, count, f"{name}_sepconv{i}")
    x = layers.MaxPooling2D(3, strides=2, padding="same", name=f"{name}_pool")(x)
    return layers.Add()([x, passing])


def _body(x: Tensor) -> Tensor:
    for i, (filters, stride) in enumerate([(32, 2), (64, 1)], 1):
        name = f"block1_conv{i}"
        x = layers.Conv2D(filters, 3, strides=stride, use_bias=False, name=name)(x)
        x = _relu(normalized(x, f"{name}_bn"), name)
    for block, filters in ((2, 128), (3, 256), (4, 728)):
        x = _smaller(x, block, (filters, filters))
    for block in range(5, 13):
        passing = x
        for i in range(1, 4):
            name = f"block{block}_sepconv{i}"
            x = _separable(_relu(x, name), 728, name)
        x = layers.Add()([x, passing])
    x = _smaller(x, 13, (728, 1024))
    for i, filters in enumerate((1536, 2048), 1):
        name = f"block14_sepconv{i}"
        x = _relu(_separable(x, filters, name), name)
    return x


def Xception(
    include_top: bool = True, weights: Any = "imagenet", input_tensor: Any = None, input_shape: Any = None,
    pooling: str | None = None, classes: int = 1000,
) -> Model:  # fmt: skip
    """36 convolutions, for images of 299 x 299. See `imagenet.build` for errors."""
    wanted = Wanted(include_top, weights, input_tensor, input_shape, pooling, classes)
    return build(Network("xception", 299, 71, _body, classified("avg_pool", "predictions")), wanted)
