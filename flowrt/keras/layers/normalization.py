"""Batch and layer normalization."""

from __future__ import annotations

from typing import Any

from flowrt.graph.construction.graph import Tensor
from flowrt.graph.ops.base.shape_manipulation import reshape
from flowrt.graph.ops.nn.moments import batch_normalization, moments
from flowrt.graph.shapes import TensorShape
from flowrt.keras import constraints, initializers, regularizers
from flowrt.keras.engine.layer import Layer
from flowrt.keras.layers.core import as_training
from flowrt.keras.layers.options import by_name
from flowrt.layers import normalization

__all__ = ["BatchNormalization", "LayerNormalization"]


class BatchNormalization(normalization.BatchNormalization, Layer):
    """Inputs normalized by mean and deviation, of the batch in training and else of moving averages; see
    `flowrt.layers.BatchNormalization`.

    Training updates the averages: see `Model.updates`.
    """

    __init__ = by_name(normalization.BatchNormalization.__init__)
    supports_masking = True

    def call(self, inputs: Tensor, *args: Any, training: Any = None, **kwargs: Any) -> Tensor:
        return super().call(inputs, training=as_training(training))


class LayerNormalization(Layer):
    """Inputs normalized by their mean and deviation along ``axis``, times ``gamma``, plus ``beta`` (Ba et al.
    2016).
    """

    supports_masking = True

    def __init__(
        self, axis: Any = -1, epsilon: float = 1e-3, center: bool = True, scale: bool = True,
        beta_initializer: Any = "zeros", gamma_initializer: Any = "ones", beta_regularizer: Any = None,
        gamma_regularizer: Any = None, beta_constraint: Any = None, gamma_constraint: Any = None,
        **options: Any,
    ) -> None:  # fmt: skip
        super().__init__(**options)
        self.axis = [axis] if isinstance(axis, int) else list(axis)
        self.epsilon, self.center, self.scale = epsilon, center, scale
        self.beta_initializer, self.gamma_initializer = map(
            initializers.get, (beta_initializer, gamma_initializer)
        )
        self.beta_regularizer, self.gamma_regularizer = map(
            regularizers.get, (beta_regularizer, gamma_regularizer)
        )
        self.beta_constraint, self.gamma_constraint = map(
            constraints.get, (beta_constraint, gamma_constraint)
        )
        self.gamma: Any = None
        self.beta: Any = None

    def build(self, input_shape: TensorShape) -> None:
        rank = input_shape.ndims or 0
        self.axis = [axis % rank for axis in self.axis]
        size = [self._known(input_shape, axis) for axis in self.axis]
        if self.scale:
            self.gamma = self._add_parameter("gamma", size, "gamma")
        if self.center:
            self.beta = self._add_parameter("beta", size, "beta")

    def call(self, inputs: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        mean, variance = moments(inputs, self.axis, keepdims=True)
        dims = inputs.shape.as_list()
        spread = [n if i in self.axis else 1 for i, n in enumerate(dims)]
        gamma, beta = (None if w is None else reshape(w, spread) for w in (self.gamma, self.beta))
        result: Tensor = batch_normalization(inputs, mean, variance, beta, gamma, self.epsilon)
        return result
