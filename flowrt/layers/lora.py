"""Low-rank adaptation: a frozen kernel, and two small factors that are trained (Hu et al. 2021, LoRA)."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from flowrt.errors import InvalidArgumentError
from flowrt.graph.construction.graph import Operation, Tensor, get_default_graph
from flowrt.graph.ops.base.filling import zeros_like
from flowrt.graph.ops.elementwise.arithmetic import add_v2, multiply
from flowrt.graph.ops.elementwise.math import number
from flowrt.graph.ops.linalg.matmul import matmul
from flowrt.graph.shapes import TensorShape
from flowrt.graph.tf1_signatures import passing_on
from flowrt.initializers import Zeros
from flowrt.layers.base import layer_function
from flowrt.layers.core import KernelLayer, product
from flowrt.layers.geometry import count


class LoraDense(KernelLayer):
    """``activation(inputs @ (kernel + alpha / rank * down @ up) + bias)`` along the last dimension, of which
    only ``down`` ``[n, rank]`` and ``up`` ``[rank, units]`` are trained.

    Kernel ``[n, units]`` and bias have the names and shapes of `Dense`: its checkpoints fit. They get no
    gradients and no slots. ``up`` begins as zeros, so the layer begins as the `Dense` layer that it was.
    Options are those of `Dense`; ``kernel_initializer`` is that of ``down`` too.

    >>> layer = LoraDense(8, rank=2, alpha=4.0, name="query")
    >>> with tf.Graph().as_default():
    ...     y = layer(tf.ones([3, 6]))
    ...     [v.op.name for v in tf.trainable_variables()]
    ['query/down', 'query/up']

    Raises `InvalidArgumentError` for ``units`` or a ``rank`` that are no positive integers, and for an
    ``alpha`` that is no finite number.
    """

    @passing_on(KernelLayer.__init__)
    def __init__(self, units: int, rank: int, alpha: float = 1.0, **options: Any) -> None:
        super().__init__(**options)
        self.units = count(units, "LoraDense: units")
        self._width = count(rank, "LoraDense: rank", least=1)
        if not _is_finite(alpha):
            raise self._error(InvalidArgumentError, f"alpha: expected a finite number; got {alpha!r}")
        self._scale = float(alpha) / self._width

    def build(self, input_shape: TensorShape) -> None:
        inputs = self._known(input_shape, -1)
        self.kernel = self.add_weight(
            "kernel", [inputs, self.units], initializer=self.kernel_initializer, trainable=False
        )
        if self.use_bias:
            self.bias = self.add_weight(
                "bias", [self.units], initializer=self.bias_initializer, trainable=False
            )
        self.down = self._add_parameter("down", [inputs, self._width], "kernel")
        self.up = self.add_weight("up", [self._width, self.units], initializer=Zeros())

    def call(self, inputs: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        change = self._scaled(product(product(inputs, self.down), self.up))
        return self._finished(add_v2(product(inputs, self.kernel), change))

    def merged_kernel(self) -> Tensor:
        """The kernel of a `Dense` layer that computes the same: ``kernel + alpha / rank * down @ up``."""
        return add_v2(self._built().kernel, self._scaled(matmul(self.down, self.up)))

    def merge(self) -> Operation:
        """An operation that makes the kernel `merged_kernel` and ``up`` zero: the layer computes the same."""
        kernel, up = self._built().kernel, self.up
        merged = kernel.assign(self.merged_kernel(), read_value=False)
        with get_default_graph().control_dependencies([merged]):
            done: Operation = up.assign(zeros_like(up), read_value=False)
        return done

    def _built(self) -> Any:
        """The layer, with variables. Raises `InvalidArgumentError` before its first call."""
        if not self.built:
            raise self._error(InvalidArgumentError, "has no factors to merge before its first call")
        return self

    def _scaled(self, change: Tensor) -> Tensor:
        return multiply(change, number(self._scale, change))


def _is_finite(value: Any) -> bool:
    is_number = isinstance(value, (int, float, np.integer, np.floating)) and not isinstance(value, bool)
    return is_number and math.isfinite(value)


lora_dense = layer_function(LoraDense)
