"""Parts that networks for ImageNet share: images in, classes out, and files of weights."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from flowrt.errors import NotFoundError
from flowrt.graph.construction.graph import Tensor
from flowrt.graph.source import misuse
from flowrt.keras import layers
from flowrt.keras.engine.model import Model
from flowrt.keras.engine.nodes import history_of, one_or_list, source_inputs
from flowrt.keras.local_files import keras_folder
from flowrt.keras.state.settings import floatx, image_data_format

CLASSES = 1000


class Wanted(NamedTuple):
    """The arguments that all networks have."""

    include_top: bool
    weights: Any
    input_tensor: Any
    input_shape: Any
    pooling: str | None
    classes: int


class Network(NamedTuple):
    """A network: its name, the sizes of its images, and where Keras keeps its weights."""

    name: str
    size: int
    """Rows and columns of the images of ImageNet."""
    least: int
    """The fewest rows and columns."""
    body: Callable[[Tensor], Tensor]
    head: Callable[[Tensor, int], Tensor]
    file: str = "{name}_weights_tf_dim_ordering_tf_kernels{notop}.h5"
    notop: str = "_notop"
    names_pooling: bool = False
    """Whether the pooling of a network without its head is called "avg_pool", not by its class."""


def build(network: Network, wanted: Wanted) -> Model:
    """The model ``network`` as it is ``wanted``. Raises `InvalidArgumentError` for arguments that do not go
    together, `NotFoundError` for weights that are not there.
    """
    _check(network, wanted)
    inputs = _images(network, wanted)
    x = network.body(inputs)
    if wanted.include_top:
        x = network.head(x, wanted.classes)
    elif wanted.pooling is not None:
        pool = {"avg": layers.GlobalAveragePooling2D, "max": layers.GlobalMaxPooling2D}[wanted.pooling]
        x = pool(name=f"{wanted.pooling}_pool" if network.names_pooling else None)(x)
    model = Model(one_or_list(source_inputs(inputs)), x, name=network.name)
    if wanted.weights is not None:
        model.load_weights(_weights(network, wanted))
    return model


def _check(network: Network, wanted: Wanted) -> None:
    name, weights = network.name, wanted.weights
    if weights not in (None, "imagenet") and not os.path.exists(weights):
        raise misuse(f"{name}: expected weights of None, 'imagenet' or the path of a file; got {weights!r}")
    if weights == "imagenet" and wanted.include_top and wanted.classes != CLASSES:
        raise misuse(f"{name}: expected classes={CLASSES} with weights='imagenet'; got {wanted.classes}")
    if wanted.pooling not in (None, "avg", "max"):
        raise misuse(f"{name}: expected pooling None, 'avg' or 'max'; got {wanted.pooling!r}")


def _images(network: Network, wanted: Wanted) -> Tensor:
    """The placeholder of the images, or the given tensor."""
    shape = _shape(network, wanted)
    if wanted.input_tensor is None:
        found: Tensor = layers.Input(shape)
        return found
    if history_of(wanted.input_tensor) is not None:
        return wanted.input_tensor
    return layers.Input(shape, tensor=wanted.input_tensor)


def _shape(network: Network, wanted: Wanted) -> tuple[int | None, ...]:
    """Rows, columns and channels, in the order of `image_data_format`."""
    is_first, shape = image_data_format() == "channels_first", wanted.input_shape
    channels = (shape[0 if is_first else -1] if shape and wanted.weights != "imagenet" else None) or 3
    size = network.size
    usual = (channels, size, size) if is_first else (size, size, channels)
    if not shape:
        return usual if wanted.include_top else tuple(n if n == channels else None for n in usual)
    if len(shape) != 3:
        raise misuse(f"{network.name}: expected an input_shape of three numbers; got {shape}")
    if wanted.include_top and wanted.weights == "imagenet" and tuple(shape) != usual:
        raise misuse(f"{network.name}: expected input_shape={usual} with weights='imagenet'; got {shape}")
    if any(n is not None and n < network.least for n in (shape[1:] if is_first else shape[:2])):
        raise misuse(
            f"{network.name}: expected images of at least {network.least} rows and columns; got {shape}"
        )
    if wanted.include_top and None in shape:
        raise misuse(f"{network.name}: expected a known input_shape with include_top; got {shape}")
    return tuple(shape)


def _weights(network: Network, wanted: Wanted) -> str:
    if wanted.weights != "imagenet":
        return os.fspath(wanted.weights)
    notop = "" if wanted.include_top else network.notop
    return str(model_file(network.file.format(name=network.name, notop=notop)))


def model_file(name: str) -> Any:
    """Keras's file ``name`` in ``~/.keras/models``. Raises `NotFoundError` if it is not there."""
    path = keras_folder() / "models" / name
    if not path.exists():
        raise misuse(
            f"expected Keras's file {name} at {path}; there is none, and none is downloaded", NotFoundError
        )
    return path


# --- parts of networks


def normalized(x: Tensor, name: str | None, epsilon: float = 1e-3, **options: Any) -> Tensor:
    return layers.BatchNormalization(axis=channel_axis(), epsilon=epsilon, name=name, **options)(x)


def channel_axis() -> int:
    return 1 if image_data_format() == "channels_first" else 3


def classified(pool: str | None, dense: str) -> Callable[[Tensor, int], Tensor]:
    """A head: the mean over the image, called ``pool``, and a layer ``dense`` of softmax."""

    def head(x: Tensor, classes: int) -> Tensor:
        x = layers.GlobalAveragePooling2D(name=pool)(x)
        return layers.Dense(classes, activation="softmax", name=dense)(x)

    return head


def strided_padding(x: Tensor, size: int) -> Any:
    """Zeros around ``x`` with which a valid convolution of stride 2 sees what Caffe's does."""
    axes = (2, 3) if channel_axis() == 1 else (1, 2)
    lengths = [x.shape.as_list()[axis] for axis in axes]
    return tuple((size // 2 - (1 if n is None else 1 - n % 2), size // 2) for n in lengths)


# --- images and classes


def preprocess_input(x: Any, data_format: str | None = None, mode: str = "caffe") -> Any:
    """Images ``[..., height, width, 3]`` of 0 to 255 as networks of ``mode`` were trained on.

    "tf": from -1 to 1. "torch": from 0 to 1, then normalized by channel. "caffe": channels from blue to red,
    centred. Raises `InvalidArgumentError` for another mode.
    """
    if mode not in _MODES:
        raise misuse(f"preprocess_input: expected mode {', '.join(map(repr, _MODES))}; got {mode!r}")
    if not isinstance(x, Tensor):
        x = np.asarray(x)
        x = x if np.issubdtype(x.dtype, np.floating) else x.astype(floatx())
    scale, mean, deviation = _MODES[mode]
    is_first = (data_format or image_data_format()) == "channels_first"
    channels = (-1, 1, 1) if is_first else (-1,)
    dtype = x.dtype.as_numpy_dtype if isinstance(x, Tensor) else x.dtype
    if mode == "caffe":
        x = x[..., ::-1, :, :] if is_first else x[..., ::-1]
    x = x / np.array(scale, dtype) - np.reshape(mean, channels).astype(dtype)
    return x / np.reshape(deviation, channels).astype(dtype) if deviation else x


_MODES: dict[str, tuple[float, list[float], list[float]]] = {
    "caffe": (1.0, [103.939, 116.779, 123.68], []),
    "tf": (127.5, [1.0], []),
    "torch": (255.0, [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]),
}
"""A mode's divisor of pixels, and of these the mean and the deviation by channel, those of ImageNet."""


def preprocessing(mode: str) -> Callable[..., Any]:
    """`preprocess_input` for the networks of ``mode``."""

    def preprocess(x: Any, data_format: str | None = None) -> Any:
        return preprocess_input(x, data_format, mode)

    preprocess.__name__, preprocess.__doc__ = (
        "preprocess_input",
        f'See `imagenet.preprocess_input`: "{mode}".',
    )
    return preprocess


def decode_predictions(preds: Any, top: int = 5) -> list[list[tuple[str, str, float]]]:
    """The ``top`` likeliest classes for each row of ``preds``, ``[n, 1000]``: identifier, name,
    probability.

    Raises `InvalidArgumentError` for another shape, `NotFoundError` without Keras's
    ``imagenet_class_index.json`` in ``~/.keras/models``.
    """
    if np.ndim(preds) != 2 or np.shape(preds)[1] != CLASSES:
        raise misuse(
            f"decode_predictions: expected [n, {CLASSES}] probabilities; got shape {np.shape(preds)}"
        )
    classes = json.loads(model_file("imagenet_class_index.json").read_text("utf-8"))
    return [
        [(*classes[str(i)], row[i]) for i in row.argsort()[-top:][::-1]] for row in np.asarray(preds)
    ]  # fmt: skip
