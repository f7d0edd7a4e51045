"""ResNet with normalization and activation before the convolutions. He, Zhang, Ren and Sun, "Identity
Mappings in Deep Residual Networks", 2016."""

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
from flowrt.keras.applications.resnet import EPSILON, pooled, stem
from flowrt.keras.engine.model import Model

__all__ = ["ResNet50V2", "ResNet101V2", "ResNet152V2", "decode_predictions", "preprocess_input"]

preprocess_input = preprocessing("tf")


def _active(x: Tensor, name: str) -> Tensor:
    return layers.Activation("relu", name=f"{name}_relu")(normalized(x, f"{name}_bn", EPSILON))


def _block(x: Tensor, filters: int, stride: int, name: str, is_first: bool) -> Tensor:
    before = _active(x, f"{name}_preact")
    if is_first:
        passing = layers.Conv2D(4 * filters, 1, strides=stride, name=f"{name}_0_conv")(before)
    else:
        passing = layers.MaxPooling2D(1, strides=stride)(x) if stride > 1 else x
    x = layers.Conv2D(filters, 1, use_bias=False, name=f"{name}_1_conv")(before)
    x = layers.ZeroPadding2D(1, name=f"{name}_2_pad")(_active(x, f"{name}_1"))
    x = layers.Conv2D(filters, 3, strides=stride, use_bias=False, name=f"{name}_2_conv")(x)
    x = layers.Conv2D(4 * filters, 1, name=f"{name}_3_conv")(_active(x, f"{name}_2"))
    return layers.Add(name=f"{name}_out")([passing, x])


def _resnet(name: str, depths: tuple[int, ...], wanted: Wanted) -> Model:
    def body(x: Tensor) -> Tensor:
        x = pooled(stem(x))
        for stage, depth in enumerate(depths, 2):
            for i in range(1, depth + 1):
                stride = 2 if i == depth and stage < 5 else 1
                x = _block(x, 16 << stage, stride, f"conv{stage}_block{i}", i == 1)
        return _active(x, "post")

    return build(Network(name, 224, 32, body, classified("avg_pool", "probs"), names_pooling=True), wanted)


def ResNet50V2(
    include_top: bool = True, weights: Any = "imagenet", input_tensor: Any = None, input_shape: Any = None,
    pooling: str | None = None, classes: int = 1000,
) -> Model:  # fmt: skip
    """50 layers with weights, for images of 224 x 224. See `imagenet.build` for errors."""
    wanted = Wanted(include_top, weights, input_tensor, input_shape, pooling, classes)
    return _resnet("resnet50v2", (3, 4, 6, 3), wanted)


def ResNet101V2(
    include_top: bool = True, weights: Any = "imagenet", input_tensor: Any = None, input_shape: Any = None,
    pooling: str | None = None, classes: int = 1000,
) -> Model:  # fmt: skip
    """`ResNet50V2` with 101 layers."""
    wanted = Wanted(include_top, weights, input_tensor, input_shape, pooling, classes)
    return _resnet("resnet101v2", (3, 4, 23, 3), wanted)


def ResNet152V2(
    include_top: bool = True, weights: Any = "imagenet", input_tensor: Any = None, input_shape: Any = None,
    pooling: str | None = None, classes: int = 1000,
) -> Model:  # fmt: skip
    """`ResNet50V2` with 152 layers."""
    wanted = Wanted(include_top, weights, input_tensor, input_shape, pooling, classes)
    return _resnet("resnet152v2", (3, 8, 36, 3), wanted)
