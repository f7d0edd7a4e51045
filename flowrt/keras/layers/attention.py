"""`Attention` and `AdditiveAttention`: means of values, weighted by the likeness of queries and keys."""

from __future__ import annotations

from typing import Any

from flowrt.dtypes import bool_
from flowrt.graph.construction.graph import Tensor
from flowrt.graph.ops.array.reductions import reduce_sum
from flowrt.graph.ops.base.filling import ones_like
from flowrt.graph.ops.base.identities import cast
from flowrt.graph.ops.base.shape_manipulation import expand_dims
from flowrt.graph.ops.elementwise.arithmetic import add, multiply, subtract
from flowrt.graph.ops.elementwise.comparison import logical_and
from flowrt.graph.ops.elementwise.math import tanh
from flowrt.graph.ops.linalg.matmul import matmul
from flowrt.graph.ops.linalg.matrix_parts import matrix_band_part
from flowrt.graph.ops.nn.softmax import softmax
from flowrt.graph.source import misuse
from flowrt.initializers import GlorotUniform, Ones
from flowrt.keras.engine.layer import Layer

__all__ = ["AdditiveAttention", "Attention"]

_FAR_BELOW = 1e9
"""The number taken from the scores of masked keys, as in TensorFlow."""


class _DenseAttention(Layer):
    """``softmax(scores) @ value`` for ``[query, value]`` or ``[query, value, key]``: ``[batch, tq, dim]``.

    The keys are the values unless given, and ``scores`` are ``[batch, tq, tv]``. Values with a false mask
    count for nothing; with ``causal`` so do those later than the query. Where the query's mask is false
    the output is 0.
    """

    def __init__(self, causal: bool = False, **options: Any) -> None:
        super().__init__(**options)
        self.causal, self.supports_masking = causal, True
        self.scale: Any = None

    def scores(self, query: Any, key: Any) -> Tensor:
        raise NotImplementedError

    def call(self, inputs: Any, mask: Any = None) -> Tensor:
        query, value = inputs[:2]
        scores = self.scores(query, inputs[2] if len(inputs) > 2 else value)
        query_mask, value_mask = (None, None) if mask is None else list(mask)[:2]
        allowed = None if value_mask is None else expand_dims(value_mask, -2)
        if self.causal:
            earlier = cast(matrix_band_part(ones_like(scores), -1, 0), bool_)
            allowed = earlier if allowed is None else logical_and(earlier, allowed)
        if allowed is not None:
            shut = subtract(cast(1, scores.dtype), cast(allowed, scores.dtype))
            scores = subtract(scores, multiply(shut, cast(_FAR_BELOW, scores.dtype)))
        found = matmul(softmax(scores), value)
        return (
            found if query_mask is None else multiply(found, cast(expand_dims(query_mask, -1), found.dtype))
        )

    def _check_rank(self, inputs: Any) -> None:
        if not isinstance(inputs, (list, tuple)) or len(inputs) not in (2, 3):
            raise misuse(
                f"layer {self.name!r}: expected [query, value] or [query, value, key]; got {inputs!r}"
            )

    def compute_mask(self, inputs: Any, mask: Any = None) -> Any:
        return None if mask is None else mask[0]


class Attention(_DenseAttention):
    """Attention with the products of queries and keys as scores (Luong et al. 2015), times a number that is
    trained with ``use_scale``.
    """

    def __init__(self, use_scale: bool = False, **options: Any) -> None:
        super().__init__(**options)
        self.use_scale = use_scale

    def build(self, input_shape: Any) -> None:
        if self.use_scale:
            self.scale = self.add_weight("scale", [], initializer=Ones())

    def scores(self, query: Any, key: Any) -> Tensor:
        found = matmul(query, key, transpose_b=True)
        return found if self.scale is None else multiply(found, self.scale)


class AdditiveAttention(_DenseAttention):
    """Attention with the scores ``sum(scale * tanh(query + key))`` (Bahdanau et al. 2015); ``scale`` is a
    vector that is trained, or 1 without ``use_scale``.
    """

    def __init__(self, use_scale: bool = True, **options: Any) -> None:
        super().__init__(**options)
        self.use_scale = use_scale

    def build(self, input_shape: Any) -> None:
        if self.use_scale:
            depth = self._known(input_shape[1], -1)
            self.scale = self.add_weight("scale", [depth], initializer=GlorotUniform())

    def scores(self, query: Any, key: Any) -> Tensor:
        near = tanh(add(expand_dims(query, -2), expand_dims(key, -3)))
        return reduce_sum(near if self.scale is None else multiply(near, self.scale), -1)
