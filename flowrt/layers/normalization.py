"""Batch normalization as a layer (Ioffe and Szegedy 2015)."""

from __future__ import annotations

from typing import Any

from flowrt import dtypes
from flowrt.errors import InvalidArgumentError, UnimplementedError
from flowrt.graph.construction.build import convert_to_tensor
from flowrt.graph.construction.graph import Tensor
from flowrt.graph.ops.base.filling import ones, zeros, zeros_like
from flowrt.graph.ops.base.identities import cast
from flowrt.graph.ops.base.shape_manipulation import reshape, size
from flowrt.graph.ops.elementwise.arithmetic import maximum, multiply, subtract
from flowrt.graph.ops.elementwise.comparison import greater, logical_and, where
from flowrt.graph.ops.elementwise.division import realdiv
from flowrt.graph.ops.nn.batch_norm import fused_batch_norm
from flowrt.graph.ops.nn.moments import batch_normalization as normalize
from flowrt.graph.ops.nn.moments import moments
from flowrt.graph.shapes import TensorShape
from flowrt.graph.source import misuse
from flowrt.graph.typing import Ints, NumericLike
from flowrt.initializers import Ones, Zeros
from flowrt.layers.base import Layer, layer_function
from flowrt.layers.core import is_symbolic
from flowrt.train.optimizers.optimizer import on_device_of
from flowrt.variables.variable import Variable, VariableAggregation, VariableSynchronization


class BatchNormalization(Layer):
    """Inputs normalized by mean and standard deviation, times ``gamma``, plus ``beta``: one of each per index
    along ``axis``.

    In training the statistics are the batch's, and the operations in the collection UPDATE_OPS move the
    variables ``moving_mean`` and ``moving_variance`` towards them by ``1 - momentum``: run them with the
    training operation. In a function, branch or loop they run automatically. Otherwise the statistics are
    those variables. ``training`` is a bool or a bool tensor. ``fused`` None means True for images; then the
    moving variance is over n - 1. Raises `UnimplementedError` for renorm, virtual batches and adjustments.
    """

    takes_one = True
    parameters = ("gamma", "beta")
    """The names of its weights, in the order of their creation."""

    def __init__(
        self,
        axis: Ints = -1,
        momentum: NumericLike = 0.99,
        epsilon: float = 1e-3,
        center: bool = True,
        scale: bool = True,
        beta_initializer: Any = Zeros(),  # noqa: B008  immutable
        gamma_initializer: Any = Ones(),  # noqa: B008  immutable
        moving_mean_initializer: Any = Zeros(),  # noqa: B008  immutable
        moving_variance_initializer: Any = Ones(),  # noqa: B008  immutable
        beta_regularizer: Any = None,
        gamma_regularizer: Any = None,
        beta_constraint: Any = None,
        gamma_constraint: Any = None,
        renorm: bool = False,
        renorm_clipping: Any = None,
        renorm_momentum: Any = 0.99,
        fused: bool | None = None,
        trainable: bool = True,
        virtual_batch_size: int | None = None,
        adjustment: Any = None,
        name: str | None = None,
        **options: Any,
    ) -> None:
        super().__init__(trainable, name, **options)
        for feature, asked in (
            ("renorm", renorm),
            ("virtual_batch_size", virtual_batch_size),
            ("adjustment", adjustment),
        ):
            if asked:
                raise misuse(f"layer {self.name!r}: expected no {feature}; got {asked!r}", UnimplementedError)
        axes: list[Any] = list(axis) if isinstance(axis, (list, tuple)) else [axis]
        if len(axes) != 1:
            raise misuse(f"layer {self.name!r}: expected one axis; got {axis!r}")
        self.axis, self.momentum, self.epsilon, self.fused = axes[0], momentum, epsilon, fused
        self.center, self.scale = center, scale
        self.beta_initializer, self.gamma_initializer = beta_initializer, gamma_initializer
        self.moving_mean_initializer = moving_mean_initializer
        self.moving_variance_initializer = moving_variance_initializer
        self.beta_regularizer, self.gamma_regularizer = beta_regularizer, gamma_regularizer
        self.beta_constraint, self.gamma_constraint = beta_constraint, gamma_constraint
        self.gamma: Variable | None = None
        self.beta: Variable | None = None

    def build(self, input_shape: TensorShape) -> None:
        size = [self._known(input_shape, self.axis)]
        rank = input_shape.ndims
        assert rank is not None
        self.axis %= rank
        if self.fused is None:
            self.fused = rank == 4 and self.axis in (1, 3)
        elif self.fused and not (rank == 4 and self.axis in (1, 3)):
            expected = "expected inputs of rank 4 and axis 1 or 3 with fused=True"
            raise self._error(InvalidArgumentError, f"{expected}; got {input_shape}, axis {self.axis}")
        dtype = dtypes.float64 if self.dtype is dtypes.float64 else dtypes.float32
        for name in self.parameters:
            if self.scale if name == "gamma" else self.center:
                setattr(self, name, self._add_parameter(name, size, name, dtype))
        self.moving_mean = self._add_moving("moving_mean", size, dtype, self.moving_mean_initializer)
        self.moving_variance = self._add_moving(
            "moving_variance", size, dtype, self.moving_variance_initializer
        )

    def _add_moving(self, name: str, size: list[int], dtype: dtypes.DType, initializer: Any) -> Variable:
        """A moving statistic: on several replicas each moves its own, and their mean is the value."""
        return self.add_weight(
            name,
            size,
            dtype,
            initializer,
            trainable=False,
            synchronization=VariableSynchronization.ON_READ,
            aggregation=VariableAggregation.MEAN,
        )

    def call(self, inputs: Tensor, *args: Any, training: Any = False, **kwargs: Any) -> Tensor:
        if self.fused and not is_symbolic(training):
            return self._call_fused(inputs, bool(training))
        axes = [i for i in range(len(inputs.shape)) if i != self.axis]
        if not is_symbolic(training) and not training:
            return self._normalized(inputs, self.moving_mean, self.moving_variance)
        dtype = self.moving_mean.dtype
        mean, variance = moments(cast(inputs, dtype), axes)
        counts = self._counts(inputs, training)
        self._move(mean, self._unbiased(variance, inputs) if self.fused else variance, counts)
        if is_symbolic(counts):
            mean, variance = (
                where(counts, mean, self.moving_mean),
                where(counts, variance, self.moving_variance),
            )
        return self._normalized(inputs, mean, variance)

    def _counts(self, inputs: Tensor, training: Any) -> Any:
        """The condition under which the statistics of ``inputs`` count: in training, unless it has no rows (a
        replica gets such batches when the data ends unevenly).
        """
        if inputs.shape.num_elements():
            return training
        has_rows = greater(size(inputs), 0)
        return logical_and(training, has_rows) if is_symbolic(training) else has_rows

    def _call_fused(self, inputs: Tensor, training: bool) -> Tensor:
        dtype, count = self.moving_mean.dtype, self.moving_mean.shape
        outputs, mean, variance = fused_batch_norm(
            inputs,
            ones(count, dtype) if self.gamma is None else self.gamma,
            zeros(count, dtype) if self.beta is None else self.beta,
            None if training else self.moving_mean,
            None if training else self.moving_variance,
            self.epsilon,
            "NHWC" if self.axis == 3 else "NCHW",
            training,
        )
        if training:
            self._move(mean, variance, self._counts(inputs, training))
        return outputs

    def _normalized(self, inputs: Tensor, mean: Any, variance: Any) -> Tensor:
        shape = [1] * len(inputs.shape)
        shape[self.axis] = -1

        def fitted(value: Any) -> Any:
            return None if value is None else cast(reshape(value, shape), inputs.dtype)

        return normalize(
            inputs, fitted(mean), fitted(variance), fitted(self.beta), fitted(self.gamma), self.epsilon
        )

    def _unbiased(self, variance: Tensor, inputs: Tensor) -> Tensor:
        count = realdiv(cast(size(inputs), variance.dtype), cast(size(variance), variance.dtype))
        return multiply(variance, realdiv(count, maximum(subtract(count, 1), 1)))

    def _move(self, mean: Tensor, variance: Tensor, counts: Any) -> None:
        """Note the updates of the moving statistics; they change nothing where ``counts`` is false."""
        for variable, value in ((self.moving_mean, mean), (self.moving_variance, variance)):
            with variable.graph.name_scope("AssignMovingAvg"), on_device_of(variable):
                share = subtract(1.0, convert_to_tensor(self.momentum, variable.dtype))
                delta = multiply(subtract(variable.read_value(), value), share)
                if is_symbolic(counts):  # not a share of 0: 0 x NaN is NaN
                    delta = where(counts, delta, zeros_like(delta))
                self.add_update(variable.assign_sub(delta, name="AssignSubVariableOp", read_value=False))


batch_normalization = layer_function(BatchNormalization, has_training=True, before="renorm")
