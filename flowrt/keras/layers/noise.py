"""Noise in training."""

from __future__ import annotations

from typing import Any

from flowrt.graph.construction.graph import Tensor
from flowrt.graph.ops.base.identities import cast
from flowrt.graph.ops.base.shape_manipulation import shape
from flowrt.graph.ops.elementwise.arithmetic import add, multiply, subtract
from flowrt.graph.ops.elementwise.comparison import greater_equal, where
from flowrt.graph.ops.random.random_ops import random_normal, random_uniform
from flowrt.keras.engine.layer import Layer
from flowrt.keras.layers.core import as_training
from flowrt.keras.state.seeds import op_seed
from flowrt.layers.core import is_symbolic

__all__ = ["AlphaDropout", "GaussianDropout", "GaussianNoise"]


class _Noise(Layer):
    """The inputs with noise in training, else as they are."""

    supports_masking = True

    def call(self, inputs: Tensor, training: Any = None) -> Tensor:
        training = as_training(training)
        if not is_symbolic(training):
            return self.noised(inputs) if training else inputs
        return where(training, self.noised(inputs), inputs)

    def noised(self, inputs: Tensor) -> Tensor:
        raise NotImplementedError


class GaussianNoise(_Noise):
    """Adds normal noise with the deviation ``stddev``."""

    def __init__(self, stddev: float, **options: Any) -> None:
        super().__init__(**options)
        self.stddev = stddev

    def noised(self, inputs: Tensor) -> Tensor:
        return add(inputs, random_normal(shape(inputs), 0.0, self.stddev, inputs.dtype, op_seed(None)))


class GaussianDropout(_Noise):
    """Multiplies with normal noise around 1, of the variance ``rate / (1 - rate)``."""

    def __init__(self, rate: float, **options: Any) -> None:
        super().__init__(**options)
        self.rate = rate

    def noised(self, inputs: Tensor) -> Tensor:
        stddev = (self.rate / (1.0 - self.rate)) ** 0.5
        return multiply(inputs, random_normal(shape(inputs), 1.0, stddev, inputs.dtype, op_seed(None)))


_SATURATION = -1.6732632423543772 * 1.0507009873554805
"""The limit of selu: -scale * alpha (Klambauer et al. 2017)."""


class AlphaDropout(_Noise):
    """Sets a fraction ``rate`` to selu's limit, and keeps mean and variance (Klambauer et al. 2017)."""

    def __init__(self, rate: float, noise_shape: Any = None, seed: int | None = None, **options: Any) -> None:
        super().__init__(**options)
        self.rate, self.noise_shape, self.seed = rate, noise_shape, seed

    def noised(self, inputs: Tensor) -> Tensor:
        size = shape(inputs) if self.noise_shape is None else self.noise_shape
        kept = cast(greater_equal(random_uniform(size, seed=op_seed(self.seed)), self.rate), inputs.dtype)
        a = ((1 - self.rate) * (1 + self.rate * _SATURATION**2)) ** -0.5
        b = -a * _SATURATION * self.rate
        return add(multiply(add(multiply(inputs, kept), multiply(subtract(1.0, kept), _SATURATION)), a), b)
