"""Embedding."""

from __future__ import annotations

from typing import Any

from flowrt import dtypes
from flowrt.graph.construction.graph import Tensor
from flowrt.graph.ops.base.identities import cast
from flowrt.graph.ops.elementwise.comparison import not_equal
from flowrt.keras import constraints, initializers, regularizers
from flowrt.keras.engine.layer import Layer
from flowrt.keras.state.settings import floatx

__all__ = ["Embedding"]


class Embedding(Layer):
    """Integers ``[batch, time]`` as rows ``[batch, time, output_dim]`` of a matrix with ``input_dim`` rows.

    With ``mask_zero`` the integer 0 is padding, which layers behind leave out.
    """

    takes_one = True

    def __init__(
        self, input_dim: int, output_dim: int, embeddings_initializer: Any = "uniform",
        embeddings_regularizer: Any = None, activity_regularizer: Any = None,
        embeddings_constraint: Any = None, mask_zero: bool = False, input_length: Any = None, **options: Any,
    ) -> None:  # fmt: skip
        if "input_shape" not in options and "batch_input_shape" not in options:
            options["input_shape"] = (
                (input_length,) if isinstance(input_length, int | None) else tuple(input_length)
            )
        options["dtype"] = options.get("dtype") or floatx()
        super().__init__(activity_regularizer=activity_regularizer, **options)
        self.input_dim, self.output_dim, self.mask_zero = input_dim, output_dim, mask_zero
        self.supports_masking = mask_zero
        self.embeddings_initializer = initializers.get(embeddings_initializer)
        self.embeddings_regularizer = regularizers.get(embeddings_regularizer)
        self.embeddings_constraint = constraints.get(embeddings_constraint)

    def build(self, input_shape: Any) -> None:
        self.embeddings = self._add_parameter("embeddings", [self.input_dim, self.output_dim], "embeddings")

    def call(self, inputs: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        indices = inputs if inputs.dtype.is_integer else cast(inputs, dtypes.int32)
        return self.embeddings.sparse_read(indices)

    def compute_mask(self, inputs: Any, mask: Any = None) -> Any:
        return not_equal(inputs, cast(0, inputs.dtype)) if self.mask_zero else None
