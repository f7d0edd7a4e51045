"""ResNet: blocks of three convolutions around which their input passes. He, Zhang, Ren and Sun, "Deep
Residual Learning for Image Recognition", 2015."""

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

__all__ = ["ResNet50", "ResNet101", "ResNet152", "decode_predictions", "preprocess_input"]

preprocess_input = preprocessing("caffe")
EPSILON = 1.001e-5


def stem(x: Tensor) -> Tensor:
    """The convolution of 7 x 7 that all begin with."""
    x = layers.ZeroPadding2D(3, name="conv1_pad")(x)
    return layers.Conv2D(64, 7, strides=2, name="conv1_conv")(x)


def pooled(x: Tensor) -> Tensor:
    x = layers.ZeroPadding2D(1, name="pool1_pad")(x)
    return layers.MaxPooling2D(3, strides=2, name="pool1_pool")(x)


def _block(x: Tensor, filters: int, stride: int, name: str, is_first: bool) -> Tensor:
    passing = x
    if is_first:
        passing = layers.Conv2D(4 * filters, 1, strides=stride, name=f"{name}_0_conv")(x)
        passing = normalized(passing, f"{name}_0_bn", EPSILON)
    for i, (count, size, step) in enumerate([(filters, 1, stride), (filters, 3, 1), (4 * filters, 1, 1)], 1):
        padding = "same" if size == 3 else "valid"
        x = layers.Conv2D(count, size, strides=step, padding=padding, name=f"{name}_{i}_conv")(x)
        x = normalized(x, f"{name}_{i}_bn", EPSILON)
        x = layers.Activation("relu", name=f"{name}_{i}_relu")(x) if i < 3 else x
    x = layers.Add(name=f"{name}_add")([passing, x])
    return layers.Activation("relu", name=f"{name}_out")(x)


def _resnet(name: str, depths: tuple[int, ...], wanted: Wanted) -> Model:
    def body(x: Tensor) -> Tensor:
        x = normalized(stem(x), "conv1_bn", EPSILON)
        x = pooled(layers.Activation("relu", name="conv1_relu")(x))
        for stage, depth in enumerate(depths, 2):
            for i in range(1, depth + 1):
                stride = 2 if i == 1 and stage > 2 else 1
                x = _block(x, 16 << stage, stride, f"conv{stage}_block{i}", i == 1)
        return x

    return build(Network(name, 224, 32, body, classified("avg_pool", "probs"), names_pooling=True), wanted)


def ResNet50(
    include_top: bool = True, weights: Any = "imagenet", input_tensor: Any = None, input_shape: Any = None,
    pooling: str | None = None, classes: int = 1000,
) -> Model:  # fmt: skip
    """50 layers with weights, for images of 224 x 224. See `imagenet.build` for errors."""
    wanted = Wanted(include_top, weights, input_tensor, input_shape, pooling, classes)
    return _resnet("resnet50", (3, 4, 6, 3), wanted)


def ResNet101(
    include_top: bool = True, weights: Any = "imagenet", input_tensor: Any = None, input_shape: Any = None,
    pooling: str | None = None, classes: int = 1000,
) -> Model:  # fmt: skip
    """`ResNet50` with 101 layers."""
    wanted = Wanted(include_top, weights, input_tensor, input_shape, pooling, classes)
    return _resnet("resnet101", (3, 4, 23, 3), wanted)


def ResNet152(
    include_top: bool = True, weights: Any = "imagenet", input_tensor: Any = None, input_shape: Any = None,
    pooling: str | None = None, classes: int = 1000,
) -> Model:  # fmt: skip
    """`ResNet50` with 152 layers."""
    wanted = Wanted(include_top, weights, input_tensor, input_shape, pooling, classes)
    return _resnet("resnet152", (3, 8, 36, 3), wanted)
