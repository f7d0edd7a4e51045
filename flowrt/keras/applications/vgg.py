"""VGG: convolutions of 3 x 3 in five blocks. Simonyan and Zisserman, "Very Deep Convolutional Networks for
Large-Scale Image Recognition", 2014."""

from __future__ import annotations

from typing import Any

from flowrt.graph.construction.graph import Tensor
from flowrt.keras import layers
from flowrt.keras.applications.imagenet import Network, Wanted, build, decode_predictions, preprocessing
from flowrt.keras.engine.model import Model

__all__ = ["VGG16", "VGG19", "decode_predictions", "preprocess_input"]

preprocess_input = preprocessing("caffe")


def _vgg(name: str, depths: tuple[int, ...], wanted: Wanted) -> Model:
    def body(x: Tensor) -> Tensor:
        for block, depth in enumerate(depths, 1):
            for i in range(1, depth + 1):
                filters = min(32 << block, 512)
                conv = layers.Conv2D(
                    filters, 3, padding="same", activation="relu", name=f"block{block}_conv{i}"
                )
                x = conv(x)
            x = layers.MaxPooling2D(2, 2, name=f"block{block}_pool")(x)
        return x

    return build(Network(name, 224, 32, body, _head), wanted)


def _head(x: Tensor, classes: int) -> Tensor:
    x = layers.Flatten(name="flatten")(x)
    for name in ("fc1", "fc2"):
        x = layers.Dense(4096, activation="relu", name=name)(x)
    return layers.Dense(classes, activation="softmax", name="predictions")(x)


def VGG16(
    include_top: bool = True, weights: Any = "imagenet", input_tensor: Any = None, input_shape: Any = None,
    pooling: str | None = None, classes: int = 1000,
) -> Model:  # fmt: skip
    """16 layers with weights, for images of 224 x 224. See `imagenet.build` for errors."""
    wanted = Wanted(include_top, weights, input_tensor, input_shape, pooling, classes)
    return _vgg("vgg16", (2, 2, 3, 3, 3), wanted)


def VGG19(
    include_top: bool = True, weights: Any = "imagenet", input_tensor: Any = None, input_shape: Any = None,
    pooling: str | None = None, classes: int = 1000,
) -> Model:  # fmt: skip
    """`VGG16` with 19 layers."""
    wanted = Wanted(include_top, weights, input_tensor, input_shape, pooling, classes)
    return _vgg("vgg19", (2, 2, 4, 4, 4), wanted)
