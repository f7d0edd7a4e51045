"""Activations with parameters, as layers."""

from __future__ import annotations

from typing import Any

from flowrt import nn
from flowrt.graph.construction.graph import Tensor
from flowrt.graph.ops.base.identities import cast
from flowrt.graph.ops.elementwise.arithmetic import add, multiply
from flowrt.graph.ops.elementwise.comparison import greater
from flowrt.graph.ops.elementwise.math import negative
from flowrt.graph.shapes import TensorShape
from flowrt.graph.source import misuse
from flowrt.keras import activations, constraints, initializers, regularizers
from flowrt.keras.engine.layer import Layer

__all__ = ["ELU", "LeakyReLU", "PReLU", "ReLU", "Softmax", "ThresholdedReLU"]


class LeakyReLU(Layer):
    """``x``, or ``alpha * x`` where it is negative."""

    supports_masking = True

    def __init__(self, alpha: float = 0.3, **options: Any) -> None:
        super().__init__(**options)
        self.alpha = float(alpha)

    def call(self, inputs: Any, *args: Any, **kwargs: Any) -> Tensor:
        return nn.leaky_relu(inputs, self.alpha)


class PReLU(Layer):
    """`LeakyReLU` with a learned ``alpha`` for each position, or one for all along ``shared_axes``."""

    supports_masking = True

    def __init__(
        self, alpha_initializer: Any = "zeros", alpha_regularizer: Any = None, alpha_constraint: Any = None,
        shared_axes: Any = None, **options: Any,
    ) -> None:  # fmt: skip
        super().__init__(**options)
        self.alpha_initializer = initializers.get(alpha_initializer)
        self.alpha_regularizer = regularizers.get(alpha_regularizer)
        self.alpha_constraint = constraints.get(alpha_constraint)
        self.shared_axes = [shared_axes] if isinstance(shared_axes, int) else list(shared_axes or ())

    def build(self, input_shape: TensorShape) -> None:
        dims = [
            1 if i in self.shared_axes else self._known(input_shape, i) for i in range(1, len(input_shape))
        ]
        self.alpha = self._add_parameter("alpha", dims, "alpha")

    def call(self, inputs: Any, *args: Any, **kwargs: Any) -> Tensor:
        return add(nn.relu(inputs), multiply(negative(self.alpha), nn.relu(negative(inputs))))


class ELU(Layer):
    """``x``, or ``alpha * (exp(x) - 1)`` where it is negative."""

    supports_masking = True

    def __init__(self, alpha: float = 1.0, **options: Any) -> None:
        super().__init__(**options)
        self.alpha = float(alpha)

    def call(self, inputs: Any, *args: Any, **kwargs: Any) -> Tensor:
        return activations.elu(inputs, self.alpha)


class ThresholdedReLU(Layer):
    """``x`` above ``theta``, else 0."""

    supports_masking = True

    def __init__(self, theta: float = 1.0, **options: Any) -> None:
        super().__init__(**options)
        self.theta = float(theta)

    def call(self, inputs: Any, *args: Any, **kwargs: Any) -> Tensor:
        return multiply(inputs, cast(greater(inputs, self.theta), inputs.dtype))


class Softmax(Layer):
    """Positive numbers with the sum 1 along ``axis``."""

    supports_masking = True

    def __init__(self, axis: int = -1, **options: Any) -> None:
        super().__init__(**options)
        self.axis = axis

    def call(self, inputs: Any, *args: Any, **kwargs: Any) -> Tensor:
        return activations.softmax(inputs, self.axis)


class ReLU(Layer):
    """``max(x, 0)``, at most ``max_value``; see `activations.relu`."""

    supports_masking = True

    def __init__(
        self, max_value: float | None = None, negative_slope: float = 0, threshold: float = 0, **options: Any
    ) -> None:
        super().__init__(**options)
        if max_value is not None and max_value < 0:
            raise misuse(f"ReLU: expected max_value of at least 0; got {max_value}")
        self.max_value, self.negative_slope, self.threshold = max_value, negative_slope, threshold

    def call(self, inputs: Any, *args: Any, **kwargs: Any) -> Tensor:
        return activations.relu(inputs, self.negative_slope, self.max_value, self.threshold)
