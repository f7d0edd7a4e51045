"""Dense, Dropout and Flatten."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from flowrt.errors import InvalidArgumentError
from flowrt.graph.construction.graph import Tensor
from flowrt.graph.ops.base.identities import identity
from flowrt.graph.ops.base.shape_manipulation import expand_dims, reshape, shape, transpose
from flowrt.graph.ops.elementwise.comparison import where
from flowrt.graph.ops.linalg.matmul import matmul, tensordot
from flowrt.graph.ops.nn.bias import bias_add
from flowrt.graph.ops.nn.bias import dropout as nn_dropout
from flowrt.graph.shapes import TensorShape
from flowrt.graph.tf1_signatures import passing_on
from flowrt.graph.typing import LayerDataFormat, NumericLike, ShapeTensorLike
from flowrt.initializers import Zeros
from flowrt.layers.base import Layer, activation_function, layer_function
from flowrt.layers.geometry import count
from flowrt.variables.variable import Variable


class KernelLayer(Layer):
    """A layer with a kernel, a bias unless ``use_bias`` is False, and an activation at the end."""

    takes_one = True

    data_format: str | None = None

    def __init__(
        self, activation: Any = None, use_bias: bool = True, kernel_initializer: Any = None,
        bias_initializer: Any = Zeros(), kernel_regularizer: Any = None,  # noqa: B008  immutable
        bias_regularizer: Any = None, activity_regularizer: Any = None, kernel_constraint: Any = None,
        bias_constraint: Any = None, trainable: bool = True, name: str | None = None, **options: Any,
    ) -> None:  # fmt: skip
        super().__init__(trainable, name, activity_regularizer=activity_regularizer, **options)
        self.activation, self.use_bias = activation_function(activation), use_bias
        self.kernel_initializer, self.bias_initializer = kernel_initializer, bias_initializer
        self.kernel_regularizer, self.bias_regularizer = kernel_regularizer, bias_regularizer
        self.kernel_constraint, self.bias_constraint = kernel_constraint, bias_constraint
        self.kernel: Variable | None = None
        self.bias: Variable | None = None

    def _build(self, kernel: Sequence[int], outputs: int) -> None:
        """Create a kernel of that shape and a bias for its outputs."""
        self.kernel = self._add_parameter("kernel", kernel, "kernel")
        self._build_bias(outputs)

    def _build_bias(self, outputs: int) -> None:
        if self.use_bias:
            self.bias = self._add_parameter("bias", [outputs], "bias")

    def _finished(self, outputs: Tensor) -> Tensor:
        """``outputs`` with the bias, through the activation."""
        if self.bias is not None:
            outputs = bias_add(outputs, self.bias, self.data_format)
        return outputs if self.activation is None else self.activation(outputs)


class Dense(KernelLayer):
    """``activation(inputs @ kernel + bias)`` along the last dimension: ``[..., n]`` becomes ``[..., units]``.

    Args:
        units: The size of the result's last dimension.
        activation: A function, or None for none.
        use_bias: Whether a vector of ``units`` is added.
        kernel_initializer: The initializer of the kernel ``[n, units]``; by default `GlorotUniform`.
        bias_initializer: The initializer of the bias.
        kernel_regularizer: A function of the kernel; its result joins REGULARIZATION_LOSSES.
        bias_regularizer: A function of the bias, likewise.
        activity_regularizer: A function of the result, likewise.
        kernel_constraint: A function of the kernel, applied after each optimizer step.
        bias_constraint: A function of the bias, likewise.
        trainable: Whether its variables are trained.
        name: The name of its variables' scope.

    Raises:
        InvalidArgumentError: ``units`` is no integer.

    Example:
        >>> h = tf.layers.dense(tf.zeros([8, 4]), 16, activation=tf.nn.relu)
        >>> h.shape.as_list(), [v.name for v in tf.trainable_variables()]
        ([8, 16], ['dense/kernel:0', 'dense/bias:0'])
    """

    @passing_on(KernelLayer.__init__)
    def __init__(self, units: int, **options: Any) -> None:
        super().__init__(**options)
        self.units = count(units, "Dense: units")

    def build(self, input_shape: TensorShape) -> None:
        self._build([self._known(input_shape, -1), self.units], self.units)

    def call(self, inputs: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        return self._finished(product(inputs, self.kernel))

    def compute_output_shape(self, input_shape: Any) -> TensorShape:
        """The shape of the outputs for inputs of a shape with known rank."""
        return TensorShape(input_shape)[:-1].concatenate(self.units)


def product(inputs: Tensor, kernel: Any) -> Tensor:
    """``inputs`` ``[..., n]`` times ``kernel`` ``[n, m]``."""
    rank = inputs.shape.ndims
    return matmul(inputs, kernel) if rank == 2 else tensordot(inputs, kernel, [[(rank or 1) - 1], [0]])


class Dropout(Layer):
    """Zeroes a fraction of the inputs, redrawn at each step, and scales up the rest; without ``training`` the
    identity.

    Args:
        rate: The probability that an element is zeroed.
        noise_shape: A shape that broadcasts to that of the inputs: see `flowrt.nn.dropout`.
        seed: The operation's seed.
        training: Whether elements are zeroed, a bool or a scalar tensor of bool.
        name: The layer's name.

    Example:
        >>> x = tf.ones([1000])
        >>> y = tf.layers.dropout(x, 0.2, training=True, seed=1).eval()
        >>> sorted({float(value) for value in y})
        [0.0, 1.25]
    """

    takes_one = True

    def __init__(
        self,
        rate: NumericLike = 0.5,
        noise_shape: ShapeTensorLike = None,
        seed: int | None = None,
        name: str | None = None,
        **options: Any,
    ) -> None:
        super().__init__(name=name, **options)
        self.rate, self.noise_shape, self.seed = rate, noise_shape, seed

    def call(self, inputs: Tensor, *args: Any, training: Any = False, **kwargs: Any) -> Tensor:
        if not is_symbolic(training) and not training:
            return identity(inputs)
        dropped = nn_dropout(inputs, noise_shape=self.noise_shape, seed=self.seed, rate=self.rate)
        return where(training, dropped, inputs) if is_symbolic(training) else dropped


def is_symbolic(training: Any) -> bool:
    """Whether ``training`` is known at run time only."""
    return isinstance(training, (Tensor, Variable))


class Flatten(Layer):
    """``[n, ...]`` to ``[n, m]`` (``[n]`` to ``[n, 1]``); "channels_first" inputs are transposed before.

    Example:
        >>> tf.layers.flatten(tf.zeros([8, 7, 7, 4])).shape.as_list()
        [8, 196]
    """

    takes_one = True

    def __init__(self, data_format: str | None = None, name: str | None = None, **options: Any) -> None:
        super().__init__(name=name, **options)
        self.data_format = data_format or "channels_last"

    def call(self, inputs: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        if not inputs.shape.ndims:
            raise self._error(
                InvalidArgumentError, f"expected inputs of known rank, at least 1; got {inputs!r}"
            )
        dims = inputs.shape.as_list()
        if len(dims) == 1:
            return expand_dims(inputs, -1)
        if self.data_format == "channels_first" and len(dims) > 2:
            order = [0, *range(2, len(dims)), 1]
            inputs, dims = transpose(inputs, order), [dims[i] for i in order]
        size = TensorShape(dims[1:]).num_elements()
        rows: Any = dims[0]
        if rows is None:
            rows = -1 if size else shape(inputs)[0]
        flat: Tensor = reshape(inputs, [rows, -1 if size is None else size])
        flat.set_shape([dims[0], size])
        return flat


dense = layer_function(Dense)


dropout = layer_function(Dropout, has_reuse=False, has_training=True)


def flatten(
    inputs: NumericLike, name: str | None = None, data_format: LayerDataFormat = "channels_last"
) -> Tensor:
    """See `Flatten`.

    Example:
        >>> tf.layers.flatten(tf.zeros([8, 3, 4])).shape.as_list()
        [8, 12]
    """
    return Flatten(data_format, name, _scope=name)(inputs)
