"""MobileNet v2: blocks that are wider inside than at their ends. Sandler, Howard, Zhu, Zhmoginov and Chen,
"MobileNetV2: Inverted Residuals and Linear Bottlenecks", 2018."""

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
    strided_padding,
)
from flowrt.keras.applications.mobilenet import check_known, image_rows, relu6
from flowrt.keras.engine.model import Model

__all__ = ["MobileNetV2", "decode_predictions", "preprocess_input"]

preprocess_input = preprocessing("tf")
STAGES = [(16, 1, 1), (24, 2, 2), (32, 3, 2), (64, 4, 2), (96, 3, 1), (160, 3, 2), (320, 1, 1)]
"""Filters, blocks, and the stride of the first block."""


def _eights(filters: float) -> int:
    """The nearest multiple of 8, but none below nine tenths of ``filters``."""
    near = max(8, int(filters + 4) // 8 * 8)
    return near + 8 if near < 0.9 * filters else near


def _norm(x: Tensor, name: str) -> Tensor:
    return normalized(x, name, momentum=0.999)


def _block(x: Tensor, block: int, filters: int, stride: int) -> Tensor:
    name = f"block_{block}_" if block else "expanded_conv_"
    passing, channels = x, int(x.shape[channel_axis()])
    if block:
        x = layers.Conv2D(6 * channels, 1, padding="same", use_bias=False, name=f"{name}expand")(x)
        x = relu6(_norm(x, f"{name}expand_BN"), f"{name}expand_relu")
    x = layers.ZeroPadding2D(strided_padding(x, 3), name=f"{name}pad")(x) if stride == 2 else x
    padding = "valid" if stride == 2 else "same"
    x = layers.DepthwiseConv2D(3, stride, padding, use_bias=False, name=f"{name}depthwise")(x)
    x = relu6(_norm(x, f"{name}depthwise_BN"), f"{name}depthwise_relu")
    x = layers.Conv2D(filters, 1, padding="same", use_bias=False, name=f"{name}project")(x)
    x = _norm(x, f"{name}project_BN")
    return layers.Add(name=f"{name}add")([passing, x]) if channels == filters and stride == 1 else x


def MobileNetV2(
    input_shape: Any = None, alpha: float = 1.0, include_top: bool = True, weights: Any = "imagenet",
    input_tensor: Any = None, pooling: str | None = None, classes: int = 1000,
) -> Model:  # fmt: skip
    """17 blocks of ``alpha`` times the usual filters, for images of 224 x 224. See `imagenet.build`."""
    wanted = Wanted(include_top, weights, input_tensor, input_shape, pooling, classes)
    check_known("MobileNetV2, alpha", wanted, alpha, [0.35, 0.5, 0.75, 1.0, 1.3, 1.4])
    rows = image_rows(wanted, [96, 128, 160, 192, 224])

    def body(x: Tensor) -> Tensor:
        x = layers.ZeroPadding2D(strided_padding(x, 3), name="Conv1_pad")(x)
        x = layers.Conv2D(_eights(32 * alpha), 3, strides=2, use_bias=False, name="Conv1")(x)
        x = relu6(_norm(x, "bn_Conv1"), "Conv1_relu")
        block = 0
        for filters, blocks, stride in STAGES:
            for i in range(blocks):
                x = _block(x, block, _eights(filters * alpha), stride if i == 0 else 1)
                block += 1
        last = _eights(1280 * max(alpha, 1.0))
        x = layers.Conv2D(last, 1, use_bias=False, name="Conv_1")(x)
        return relu6(_norm(x, "Conv_1_bn"), "out_relu")

    file = f"mobilenet_v2_weights_tf_dim_ordering_tf_kernels_{alpha}_{rows}{{notop}}.h5"
    network = Network(
        f"mobilenetv2_{alpha:0.2f}_{rows}", rows, 32, body, classified(None, "Logits"), file, "_no_top"
    )
    return build(network, wanted)
