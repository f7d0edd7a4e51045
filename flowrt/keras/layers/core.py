"""Dense, Dropout, Flatten, Reshape and the other layers without windows."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from flowrt.graph.construction.graph import Tensor
from flowrt.graph.ops.array.reductions import reduce_any
from flowrt.graph.ops.array.tile_and_reverse import tile
from flowrt.graph.ops.base.identities import cast
from flowrt.graph.ops.base.shape_manipulation import expand_dims, reshape, shape, transpose
from flowrt.graph.ops.elementwise.arithmetic import multiply
from flowrt.graph.ops.elementwise.comparison import not_equal
from flowrt.graph.source import misuse
from flowrt.keras import activations, regularizers
from flowrt.keras.engine.layer import Layer, as_tuple, phase
from flowrt.keras.identifiers import deserialize_object
from flowrt.keras.layers.options import by_name
from flowrt.keras.state.settings import image_data_format
from flowrt.layers import core

__all__ = [
    "Activation", "ActivityRegularization", "Dense", "Dropout", "Flatten", "Lambda", "Masking", "Permute",
    "RepeatVector", "Reshape", "SpatialDropout1D", "SpatialDropout2D", "SpatialDropout3D",
]  # fmt: skip


class Dense(core.Dense, Layer):
    """``activation(inputs @ kernel + bias)`` along the last dimension: ``[..., n]`` to ``[..., units]``.

    Args:
        units: The size of the result's last dimension.
        activation: A function, its name, or None for none.
        use_bias: Whether a vector of ``units`` is added.
        kernel_initializer: The initializer of the kernel ``[n, units]``; by default `GlorotUniform`.
        bias_initializer: The initializer of the bias.
        kernel_regularizer: A function of the kernel; its result is added to the losses.
        bias_regularizer: A function of the bias; its result is added to the losses.
        activity_regularizer: A function of the result; its result is added to the losses.
        kernel_constraint: A function of the kernel, applied after each optimizer step.
        bias_constraint: A function of the bias, applied after each optimizer step.
        trainable: Whether its weights are trained.
        name: The layer's name.

    Example:
        >>> layer = tf.keras.layers.Dense(8, activation='relu')
        >>> layer(tf.zeros([2, 4])).shape.as_list(), len(layer.weights)
        ([2, 8], 2)
    """

    __init__ = by_name(core.Dense.__init__)
    supports_masking = True


class Dropout(core.Dropout, Layer):
    """Zeroes a fraction ``rate`` of the inputs in training, and scales up the rest."""

    supports_masking = True

    def __init__(self, rate: float, noise_shape: Any = None, seed: int | None = None, **options: Any) -> None:
        super().__init__(rate, noise_shape, seed, **options)

    def call(self, inputs: Tensor, *args: Any, training: Any = None, **kwargs: Any) -> Tensor:
        return inputs if not self.rate else super().call(inputs, training=as_training(training))


def as_training(training: Any) -> Any:
    found = phase(training)
    return bool(found) if isinstance(found, (int, np.integer)) else found


class _SpatialDropout(Dropout):
    """Drops whole channels."""

    def __init__(self, rate: float, data_format: str | None = None, **options: Any) -> None:
        super().__init__(rate, **options)
        self._channels_first = (data_format or image_data_format()) == "channels_first"

    def call(self, inputs: Tensor, *args: Any, training: Any = None, **kwargs: Any) -> Tensor:
        dims = shape(inputs)
        spatial = [1] * ((inputs.shape.ndims or 3) - 2)
        self.noise_shape = (
            [dims[0], dims[1], *spatial] if self._channels_first else [dims[0], *spatial, dims[-1]]
        )
        return super().call(inputs, training=training)


class SpatialDropout1D(_SpatialDropout):
    """Drops whole channels of sequences ``[n, w, c]``."""

    def __init__(self, rate: float, **options: Any) -> None:
        super().__init__(rate, "channels_last", **options)


class SpatialDropout2D(_SpatialDropout):
    """Drops whole channels of images."""


class SpatialDropout3D(_SpatialDropout):
    """Drops whole channels of volumes."""


class Flatten(core.Flatten, Layer):
    """``[n, ...]`` to ``[n, m]``.

    Args:
        data_format: "channels_last" or "channels_first", which moves channels to the end first.
        name: The layer's name.

    Example:
        >>> tf.keras.layers.Flatten()(tf.zeros([2, 3, 4])).shape.as_list()
        [2, 12]
    """


class Activation(Layer):
    """A function, or one of `flowrt.keras.activations` by name, of each element."""

    supports_masking = True

    def __init__(self, activation: Any, **options: Any) -> None:
        super().__init__(**options)
        self.activation = activations.get(activation)

    def call(self, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        return self.activation(inputs)


class Reshape(Layer):
    """Rows in another shape; one dimension may be -1."""

    def __init__(self, target_shape: Sequence[int], **options: Any) -> None:
        super().__init__(**options)
        self.target_shape = as_tuple(target_shape)

    def call(self, inputs: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        outputs: Tensor = reshape(inputs, [shape(inputs)[0], *self.target_shape])
        dims = inputs.shape.as_list()
        outputs.set_shape([dims[0], *self._resolved(dims[1:])])
        return outputs

    def _resolved(self, dims: Sequence[int | None]) -> list[int | None]:
        """The target with its -1 resolved, as far as the inputs' dimensions are known."""
        target = [None if n == -1 else n for n in self.target_shape]
        if None in dims:
            return target
        size, rest = math.prod(n or 0 for n in dims), math.prod(n for n in target if n is not None)
        if (size % rest if None in target and rest else size != rest) or target.count(None) > 1:
            raise misuse(
                f"layer {self.name!r}: expected rows of as many elements as {list(dims)} has, {size}; "
                f"got target_shape {self.target_shape}"
            )
        if None in target:
            target[target.index(None)] = size // rest if rest else 0
        return target


class Permute(Layer):
    """Rows with their dimensions in another order: ``dims`` counts from 1."""

    def __init__(self, dims: Sequence[int], **options: Any) -> None:
        super().__init__(**options)
        self.dims = tuple(dims)
        if sorted(self.dims) != list(range(1, len(self.dims) + 1)):
            raise misuse(
                f"Permute: expected an order of the dimensions 1 to {len(self.dims)}; got {self.dims}"
            )

    def call(self, inputs: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        return transpose(inputs, [0, *self.dims])


class RepeatVector(Layer):
    """``[batch, features]`` to ``[batch, n, features]``."""

    rank = 2

    def __init__(self, n: int, **options: Any) -> None:
        super().__init__(**options)
        self.n = n

    def call(self, inputs: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        return tile(expand_dims(inputs, 1), [1, self.n, 1])


class Lambda(Layer):
    """A function of tensors as a layer; it must not make variables."""

    def __init__(
        self, function: Any, output_shape: Any = None, mask: Any = None, arguments: Any = None,
        **options: Any,
    ) -> None:  # fmt: skip
        super().__init__(**options)
        self.function = (
            deserialize_object(function, lambda _: None, "Lambda") if isinstance(function, str) else function
        )
        self.arguments, self.mask = dict(arguments or {}), mask
        self.supports_masking = mask is not None

    def call(self, inputs: Any, mask: Any = None, training: Any = None) -> Any:
        names = getattr(getattr(self.function, "__code__", None), "co_varnames", ())
        own = {"mask": mask, "training": training}
        more = {k: v for k, v in own.items() if k in names and k not in self.arguments}
        return self.function(inputs, **self.arguments, **more)

    def compute_mask(self, inputs: Any, mask: Any = None) -> Any:
        return self.mask(inputs, mask) if callable(self.mask) else self.mask


class Masking(Layer):
    """Marks the steps of sequences ``[batch, time, features]`` in which all features are ``mask_value``:
    layers behind leave them out.
    """

    supports_masking = True

    def __init__(self, mask_value: float = 0.0, **options: Any) -> None:
        super().__init__(**options)
        self.mask_value = mask_value

    def call(self, inputs: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        present = reduce_any(not_equal(inputs, self.mask_value), -1, keepdims=True)
        return multiply(inputs, cast(present, inputs.dtype))

    def compute_mask(self, inputs: Any, mask: Any = None) -> Tensor:
        return reduce_any(not_equal(inputs, self.mask_value), -1)


class ActivityRegularization(Layer):
    """Adds ``l1 * sum(|x|) + l2 * sum(x^2)`` of its inputs to the loss."""

    supports_masking = True

    def __init__(self, l1: float = 0.0, l2: float = 0.0, **options: Any) -> None:
        super().__init__(activity_regularizer=regularizers.L1L2(l1, l2), **options)
        self.l1, self.l2 = l1, l2

    def call(self, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        return inputs
