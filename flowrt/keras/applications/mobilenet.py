"""MobileNet: depthwise separable convolutions of a chosen width. Howard et al., "MobileNets: Efficient
Convolutional Neural Networks for Mobile Vision Applications", 2017."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from flowrt.graph.construction.graph import Tensor
from flowrt.graph.source import misuse
from flowrt.keras import layers
from flowrt.keras.applications.imagenet import (
    Network,
    Wanted,
    build,
    channel_axis,
    decode_predictions,
    normalized,
    preprocessing,
)
from flowrt.keras.engine.model import Model

__all__ = ["MobileNet", "decode_predictions", "preprocess_input", "relu6"]

preprocess_input = preprocessing("tf")
BLOCKS = [(64, 1), (128, 2), (128, 1), (256, 2), (256, 1), (512, 2), *[(512, 1)] * 5, (1024, 2), (1024, 1)]
"""Filters and strides."""
_WIDTHS = {0.25: "2_5", 0.5: "5_0", 0.75: "7_5", 1.0: "1_0"}
"""The values of alpha that Keras has weights for, as the names of their files have them."""


def relu6(x: Tensor, name: str) -> Tensor:
    """``x`` between 0 and 6."""
    made: Tensor = layers.ReLU(6.0, name=name)(x)
    return made


def image_rows(wanted: Wanted, sizes: Sequence[int]) -> int:
    """Rows of square images of one of the ``sizes`` with weights, 224 of others."""
    shape = wanted.input_shape
    rows, columns = (shape[1:] if channel_axis() == 1 else shape[:2]) if shape else (224, 224)
    return rows if rows == columns and rows in sizes else 224


def check_known(name: str, wanted: Wanted, value: float, known: Sequence[float]) -> None:
    """Raise `InvalidArgumentError` if Keras has weights for the ``known`` values of an argument only."""
    if wanted.weights == "imagenet" and value not in known:
        choices = " or ".join(map(str, known))
        raise misuse(f"{name}: expected {choices} with weights='imagenet'; got {value}")


def MobileNet(
    input_shape: Any = None, alpha: float = 1.0, depth_multiplier: int = 1, dropout: float = 1e-3,
    include_top: bool = True, weights: Any = "imagenet", input_tensor: Any = None,
    pooling: str | None = None, classes: int = 1000,
) -> Model:  # fmt: skip
    """13 blocks of ``alpha`` times the usual filters, for images of 224 x 224. See `imagenet.build`."""
    wanted = Wanted(include_top, weights, input_tensor, input_shape, pooling, classes)
    check_known("MobileNet, alpha", wanted, alpha, list(_WIDTHS))
    check_known("MobileNet, depth_multiplier", wanted, depth_multiplier, [1])
    rows = image_rows(wanted, [128, 160, 192, 224])

    def body(x: Tensor) -> Tensor:
        x = layers.ZeroPadding2D(((0, 1), (0, 1)), name="conv1_pad")(x)
        x = layers.Conv2D(int(32 * alpha), 3, strides=2, use_bias=False, name="conv1")(x)
        x = relu6(normalized(x, "conv1_bn"), "conv1_relu")
        for i, (filters, stride) in enumerate(BLOCKS, 1):
            x = layers.ZeroPadding2D(((0, 1), (0, 1)), name=f"conv_pad_{i}")(x) if stride == 2 else x
            x = layers.DepthwiseConv2D(
                3, stride, "same" if stride == 1 else "valid", depth_multiplier, use_bias=False,
                name=f"conv_dw_{i}",
            )(x)  # fmt: skip
            x = relu6(normalized(x, f"conv_dw_{i}_bn"), f"conv_dw_{i}_relu")
            x = layers.Conv2D(int(filters * alpha), 1, padding="same", use_bias=False, name=f"conv_pw_{i}")(x)
            x = relu6(normalized(x, f"conv_pw_{i}_bn"), f"conv_pw_{i}_relu")
        return x

    def head(x: Tensor, classes: int) -> Tensor:
        width = int(1024 * alpha)
        x = layers.GlobalAveragePooling2D()(x)
        x = layers.Reshape((width, 1, 1) if channel_axis() == 1 else (1, 1, width), name="reshape_1")(x)
        x = layers.Dropout(dropout, name="dropout")(x)
        x = layers.Conv2D(classes, 1, padding="same", name="conv_preds")(x)
        return layers.Activation("softmax", name="act_softmax")(
            layers.Reshape((classes,), name="reshape_2")(x)
        )

    file = f"mobilenet_{_WIDTHS.get(alpha)}_{rows}_tf{{notop}}.h5"
    network = Network(f"mobilenet_{alpha:0.2f}_{rows}", rows, 32, body, head, file, "_no_top")
    return build(network, wanted)
