"""Layers of `flowrt.keras` against their formulas in NumPy, with weights as TensorFlow 1.15 stores them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import flowrt as tf
from flowrt import keras
from flowrt.errors import InvalidArgumentError, UnimplementedError
from flowrt.keras import layers

RANDOM = np.random.RandomState(0)


@pytest.fixture(autouse=True)
def own_graph() -> Iterator[None]:
    with tf.Graph().as_default():
        yield


def with_random_weights(layer: Any) -> list[np.ndarray[Any, Any]]:
    layer.set_weights([RANDOM.normal(size=w.shape.as_list()) for w in layer.weights])
    return layer.get_weights()


def from_cudnn(kernel: Any, gates: int) -> Any:
    """A kernel of cuDNN's order, ``[units, inputs]`` in each gate, as one to multiply with."""
    return np.hstack([part.reshape(part.shape[::-1]).T for part in np.hsplit(kernel, gates)])


@pytest.mark.parametrize("kind", ["LSTM", "GRU"])
def test_layers_of_cudnn_are_the_plain_ones_of_other_weights(kind: str) -> None:
    gates = {"LSTM": 4, "GRU": 3}[kind]
    x = keras.Input((5, 3))
    fast = getattr(layers, f"CuDNN{kind}")(2, return_sequences=True)
    options = {"reset_after": True} if kind == "GRU" else {}
    plain = getattr(layers, kind)(2, recurrent_activation="sigmoid", return_sequences=True, **options)
    model = keras.Model(x, [fast(x), plain(x)])
    assert [w.name for w in fast.weights] == [
        f"cu_dnn{kind.lower()}/{name}:0" for name in ("kernel", "recurrent_kernel", "bias")
    ]
    if kind == "LSTM":
        np.testing.assert_array_equal(np.flatnonzero(fast.get_weights()[2]), [10, 11])
    kernel, recurrent, bias = with_random_weights(fast)
    halves = bias.reshape(2, -1)
    plain.set_weights([
        from_cudnn(kernel, gates), from_cudnn(recurrent, gates), halves.sum(0) if kind == "LSTM" else halves,
    ])  # fmt: skip
    found, expected = model.predict(RANDOM.normal(size=(4, 5, 3)))
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)
    masked = layers.Masking()(x)
    with pytest.raises(InvalidArgumentError, match="expected inputs without a mask"):
        getattr(layers, f"CuDNN{kind}")(2)(masked)


@pytest.mark.parametrize("kind", ["Attention", "AdditiveAttention"])
def test_attention_is_a_mean_of_values_weighted_by_scores(kind: str) -> None:
    words = np.array([[1, 2, 0], [2, 1, 1]])
    x = keras.Input((3,), dtype="int32")
    embedding, layer = (
        layers.Embedding(3, 4, mask_zero=True),
        getattr(layers, kind)(use_scale=True, causal=True),
    )
    rows = embedding(x)
    model = keras.Model(x, layers.Lambda(lambda t: t)(layer([rows, rows])))
    (table,), (scale,) = with_random_weights(embedding), with_random_weights(layer)
    value = table[words]
    if kind == "Attention":
        scores = scale * np.einsum("bqd,bkd->bqk", value, value)
    else:
        scores = np.sum(scale * np.tanh(value[:, :, None] + value[:, None]), -1)
    scores = np.where(np.tri(3, dtype=bool) & (words > 0)[:, None], scores, -np.inf)
    weights = np.exp(scores) / np.exp(scores).sum(-1, keepdims=True)
    expected = weights @ value * (words > 0)[..., None]
    np.testing.assert_allclose(model.predict(words), expected, rtol=1e-5, atol=1e-6)
    with pytest.raises(InvalidArgumentError, match=r"expected \[query, value\]"):
        getattr(layers, kind)()(rows)


@pytest.mark.parametrize("data_format", ["channels_last", "channels_first"])
def test_a_local_convolution_has_a_kernel_for_each_place(data_format: str) -> None:
    first = data_format == "channels_first"
    images = RANDOM.normal(size=(2, 3, 5, 6) if first else (2, 5, 6, 3)).astype("float32")
    layer = layers.LocallyConnected2D(4, (3, 2), strides=(2, 1), data_format=data_format)
    model = keras.Sequential([layers.Lambda(lambda t: t, input_shape=images.shape[1:]), layer])
    kernel, bias = with_random_weights(layer)
    assert kernel.shape == (2 * 5, 3 * 2 * 3, 4)
    expected = np.empty([2, 2, 5, 4])
    for row, column in np.ndindex(2, 5):
        window = (slice(2 * row, 2 * row + 3), slice(column, column + 2))
        part = images[(slice(None), slice(None), *window) if first else (slice(None), *window)]
        expected[:, row, column] = part.reshape(2, -1) @ kernel[row * 5 + column]
    if first:
        expected = expected.transpose(0, 3, 1, 2) + bias.reshape(4, 2, 5)
    else:
        expected += bias
    np.testing.assert_allclose(model.predict(images), expected, rtol=1e-5, atol=1e-5)
    with pytest.raises(UnimplementedError, match="expected padding 'valid'"):
        layers.LocallyConnected1D(4, 3, padding="same")


def test_rarer_functions_of_the_backend(capfd: pytest.CaptureFixture[str]) -> None:
    K = keras.backend
    x, kernels = RANDOM.normal(size=(2, 5, 6, 3)), RANDOM.normal(size=(6, 12, 4))
    windows = [x[:, 2 * i : 2 * i + 2, 2 * j : 2 * j + 2].reshape(2, 12) for i in range(2) for j in range(3)]
    expected = np.stack([w @ k for w, k in zip(windows, kernels, strict=True)], 1).reshape(2, 2, 3, 4)
    found = K.eval(K.local_conv2d(K.constant(x), K.constant(kernels), (2, 2), (2, 2), (2, 3)))
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)

    volume = RANDOM.normal(size=(1, 2, 2, 3, 2)).astype("float32")
    doubled = K.resize_volumes(K.constant(volume), 2, 3, 1, "channels_last")
    np.testing.assert_array_equal(K.eval(doubled), volume.repeat(2, 1).repeat(3, 2))

    mean, variance = x.mean((0, 2)), x.var((0, 2))  # of channels that are not last
    parts = K.normalize_batch_in_training(K.constant(x), None, None, [0, 2])
    for part, value in zip(K.batch_get_value(list(parts[1:])), (mean, variance), strict=True):
        np.testing.assert_allclose(part, value, rtol=1e-4, atol=1e-5)
    scaled = (x - mean[:, None]) / np.sqrt(variance[:, None] + 1e-3)
    np.testing.assert_allclose(K.eval(parts[0]), scaled, rtol=1e-4, atol=1e-4)

    with K.learning_phase_scope(1):
        assert K.eval(K.in_train_phase(K.constant(1.0), K.constant(2.0))) == 1
    assert K.eval(K.in_train_phase(K.constant(1.0), K.constant(2.0))) == 2
    K.eval(K.print_tensor(K.constant([1.0, 2.0]), "values:"))
    assert capfd.readouterr().out == "values: [1 2]\n"
