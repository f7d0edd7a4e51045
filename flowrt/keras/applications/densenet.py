"""DenseNet: each layer sees the outputs of all before it in its block. Huang, Liu, van der Maaten and
Weinberger, "Densely Connected Convolutional Networks", 2016."""

from __future__ import annotations

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

__all__ = ["DenseNet121", "DenseNet169", "DenseNet201", "decode_predictions", "preprocess_input"]

preprocess_input = preprocessing("torch")
EPSILON = 1.001e-5
GROWTH = 32


def _active(x: Tensor, bn: str, relu: str) -> Tensor:
    return layers.Activation("relu", name=relu)(normalized(x, bn, EPSILON))


def _conv(x: Tensor, filters: int, size: int, name: str, **options: Any) -> Tensor:
    made: Tensor = layers.Conv2D(filters, size, use_bias=False, name=name, **options)(x)
    return made


def _layer(x: Tensor, name: str) -> Tensor:
    new = _conv(_active(x, f"{name}_0_bn", f"{name}_0_relu"), 4 * GROWTH, 1, f"{name}_1_conv")
    new = _conv(_active(new, f"{name}_1_bn", f"{name}_1_relu"), GROWTH, 3, f"{name}_2_conv", padding="same")
    return layers.Concatenate(axis=channel_axis(), name=f"{name}_concat")([x, new])


def _narrowed(x: Tensor, name: str) -> Tensor:
    """Half of the channels, of half of the rows and columns."""
    half = int(x.shape[channel_axis()]) // 2
    x = _conv(_active(x, f"{name}_bn", f"{name}_relu"), half, 1, f"{name}_conv")
    return layers.AveragePooling2D(2, strides=2, name=f"{name}_pool")(x)


def _densenet(name: str, depths: tuple[int, ...], wanted: Wanted) -> Model:
    def body(x: Tensor) -> Tensor:
        x = _conv(layers.ZeroPadding2D(3)(x), 64, 7, "conv1/conv", strides=2)
        x = layers.ZeroPadding2D(1)(_active(x, "conv1/bn", "conv1/relu"))
        x = layers.MaxPooling2D(3, strides=2, name="pool1")(x)
        for stage, depth in enumerate(depths, 2):
            x = _narrowed(x, f"pool{stage - 1}") if stage > 2 else x
            for i in range(1, depth + 1):
                x = _layer(x, f"conv{stage}_block{i}")
        return _active(x, "bn", "relu")

    return build(Network(name, 224, 32, body, classified("avg_pool", "fc1000"), names_pooling=True), wanted)


def DenseNet121(
    include_top: bool = True, weights: Any = "imagenet", input_tensor: Any = None, input_shape: Any = None,
    pooling: str | None = None, classes: int = 1000,
) -> Model:  # fmt: skip
    """121 layers with weights, for images of 224 x 224. See `imagenet.build` for errors."""
    wanted = Wanted(include_top, weights, input_tensor, input_shape, pooling, classes)
    return _densenet("densenet121", (6, 12, 24, 16), wanted)


def DenseNet169(
    include_top: bool = True, weights: Any = "imagenet", input_tensor: Any = None, input_shape: Any = None,
    pooling: str | None = None, classes: int = 1000,
) -> Model:  # fmt: skip
    """`DenseNet121` with 169 layers."""
    wanted = Wanted(include_top, weights, input_tensor, input_shape, pooling, classes)
    return _densenet("densenet169", (6, 12, 32, 32), wanted)


def DenseNet201(
    include_top: bool = True, weights: Any = "imagenet", input_tensor: Any = None, input_shape: Any = None,
    pooling: str | None = None, classes: int = 1000,
) -> Model:  # fmt: skip
    """`DenseNet121` with 201 layers."""
    wanted = Wanted(include_top, weights, input_tensor, input_shape, pooling, classes)
    return _densenet("densenet201", (6, 12, 48, 32), wanted)
