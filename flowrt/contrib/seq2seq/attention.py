"""Attention mechanisms: how much a query looks at each step of a memory ``[batch, steps, depth]``.

A mechanism maps a query ``[batch, depth]`` and its last state to alignments ``[batch, steps]`` and a new
state, which is the alignments. Steps past ``memory_sequence_length`` get ``score_mask_value`` as their score,
by default minus infinity, and zeros as their values.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from flowrt.contrib.seq2seq.decoding import Structure
from flowrt.dtypes import as_dtype, float32
from flowrt.functions.functional_ops import scan
from flowrt.graph.construction.build import convert_to_tensor
from flowrt.graph.construction.graph import Tensor, get_default_graph
from flowrt.graph.ops.array.concat_and_split import concat
from flowrt.graph.ops.array.ranges import one_hot, sequence_mask
from flowrt.graph.ops.array.reductions import reduce_sum
from flowrt.graph.ops.array.scans import cumprod, cumsum
from flowrt.graph.ops.array.statistics import argmax
from flowrt.graph.ops.base.filling import fill, ones, ones_like, zeros
from flowrt.graph.ops.base.identities import cast
from flowrt.graph.ops.base.shape_manipulation import expand_dims, reshape, shape, squeeze, transpose
from flowrt.graph.ops.elementwise.arithmetic import clip_by_value
from flowrt.graph.ops.elementwise.comparison import greater, where
from flowrt.graph.ops.elementwise.math import exp, log, rsqrt, sigmoid, square, tanh
from flowrt.graph.ops.linalg.matmul import matmul
from flowrt.graph.ops.nn.softmax import softmax
from flowrt.graph.ops.random.random_ops import random_normal
from flowrt.graph.source import misuse
from flowrt.initializers import Constant, Ones, Zeros
from flowrt.layers.core import Dense
from flowrt.variables.get_variable import get_variable
from flowrt.variables.variable_scope import variable_scope

Probability = Callable[[Tensor, Tensor], Tensor]
"""Alignments from scores and the alignments of the step before."""


class AttentionMechanism:
    """Base of the mechanisms: the memory, its keys, and scores as alignments."""

    def __init__(
        self,
        memory: Any,
        memory_sequence_length: Any,
        memory_layer: Dense,
        probability_fn: Probability,
        score_mask_value: Any,
        name: str,
    ) -> None:
        with get_default_graph().name_scope(name):
            values = convert_to_tensor(memory)
            if values.shape.ndims is None or values.shape.ndims < 3:
                raise misuse(f"{type(self).__name__}: expected memory [batch, steps, depth]; got {values!r}")
            self._mask: Any = None
            if memory_sequence_length is not None:
                self._mask = sequence_mask(memory_sequence_length, shape(values)[1])
                values = values * reshape(
                    cast(self._mask, values.dtype),
                    concat([shape(self._mask), [1] * (values.shape.ndims - 2)], 0),
                )
            self._values, self._keys = values, memory_layer(values)
        self._probability = probability_fn
        self._mask_value = -math.inf if score_mask_value is None else score_mask_value

    @property
    def dtype(self) -> Any:
        return self._keys.dtype

    @property
    def values(self) -> Tensor:
        """The memory ``[batch, steps, depth]``."""
        return self._values

    @property
    def keys(self) -> Tensor:
        """The memory in the space of the queries ``[batch, steps, units]``."""
        return self._keys

    @property
    def batch_size(self) -> Any:
        return _size(self._keys, 0)

    @property
    def alignments_size(self) -> Any:
        """The number of steps of the memory."""
        return _size(self._keys, 1)

    @property
    def state_size(self) -> Any:
        return self.alignments_size

    def initial_alignments(self, batch_size: Any, dtype: Any) -> Tensor:
        """The alignments before the first step."""
        return zeros([batch_size, self.alignments_size], dtype)

    def initial_state(self, batch_size: Any, dtype: Any) -> Structure:
        return self.initial_alignments(batch_size, dtype)

    def __call__(self, query: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """``(alignments, next_state)``."""
        score = self._score(query)
        if self._mask is not None:
            score = where(self._mask, score, self._mask_value * ones_like(score))
        alignments = self._probability(score, state)
        return alignments, alignments

    def _score(self, query: Tensor) -> Tensor:
        raise NotImplementedError


def _size(tensor: Tensor, axis: int) -> Any:
    known = tensor.shape.as_list()[axis]
    return shape(tensor)[axis] if known is None else known


def _probabilities(function: Callable[[Tensor], Tensor] | None) -> Probability:
    return lambda score, _: (function or softmax)(score)


class LuongAttention(AttentionMechanism):
    """Scores are products of query and keys, times a variable with ``scale``: Luong et al., "Effective
    approaches to attention-based neural machine translation" (2015). Queries have ``num_units``.

    ``probability_fn`` makes alignments of scores, by default `softmax`.
    """

    def __init__(
        self,
        num_units: int,
        memory: Any,
        memory_sequence_length: Any = None,
        scale: bool = False,
        probability_fn: Callable[[Tensor], Tensor] | None = None,
        score_mask_value: Any = None,
        dtype: Any = None,
        custom_key_value_fn: Any = None,
        name: str = "LuongAttention",
        _probability: Probability | None = None,
    ) -> None:
        layer = Dense(num_units, use_bias=False, dtype=dtype or float32, name="memory_layer")
        probability = _probability or _probabilities(probability_fn)
        super().__init__(memory, memory_sequence_length, layer, probability, score_mask_value, name)
        _use(self, custom_key_value_fn)
        self._scaled = scale

    def _score(self, query: Tensor) -> Tensor:
        with variable_scope(None, default_name="luong_attention"):
            depth, units = query.shape.as_list()[-1], self._keys.shape.as_list()[-1]
            if depth != units:
                raise misuse(
                    f"{type(self).__name__}: expected queries of num_units, {units}; got {depth} columns"
                )
            score = squeeze(matmul(expand_dims(query, 1), self._keys, transpose_b=True), [1])
            if self._scaled:
                score = get_variable("attention_g", [], query.dtype, Ones()) * score
            return score


class BahdanauAttention(AttentionMechanism):
    """Scores are ``v . tanh(keys + query)``, both in ``num_units``: Bahdanau et al., "Neural machine
    translation by jointly learning to align and translate" (2015). With ``normalize`` the vector has a norm
    that is learned: Salimans and Kingma, "Weight normalization" (2016).

    ``probability_fn`` makes alignments of scores, by default `softmax`.
    """

    def __init__(
        self,
        num_units: int,
        memory: Any,
        memory_sequence_length: Any = None,
        normalize: bool = False,
        probability_fn: Callable[[Tensor], Tensor] | None = None,
        score_mask_value: Any = None,
        dtype: Any = None,
        custom_key_value_fn: Any = None,
        name: str = "BahdanauAttention",
        _probability: Probability | None = None,
    ) -> None:
        layers = [
            Dense(num_units, use_bias=False, dtype=dtype or float32, name=part)
            for part in ("memory_layer", "query_layer")
        ]
        probability = _probability or _probabilities(probability_fn)
        super().__init__(memory, memory_sequence_length, layers[0], probability, score_mask_value, name)
        _use(self, custom_key_value_fn)
        self._query_layer, self._units, self._normalize = layers[1], num_units, normalize

    @property
    def query_layer(self) -> Dense:
        return self._query_layer

    def _score(self, query: Tensor) -> Tensor:
        with variable_scope(None, default_name="bahdanau_attention"):
            dtype, units = query.dtype, self._units
            total = self._keys + expand_dims(self._query_layer(query), 1)
            v: Any = get_variable("attention_v", [units], dtype)
            if self._normalize:
                g = get_variable("attention_g", [], dtype, Constant(math.sqrt(1 / units)))
                total = total + get_variable("attention_b", [units], dtype, Zeros())
                v = g * v * rsqrt(reduce_sum(square(v)))
            return reduce_sum(v * tanh(total), [2])


def _use(mechanism: AttentionMechanism, keys_and_values: Any) -> None:
    """Replace the keys and values by ``keys_and_values`` of them, if that is given."""
    if keys_and_values is not None:
        mechanism._keys, mechanism._values = keys_and_values(mechanism._keys, mechanism._values)


# --- monotonic attention


class LuongMonotonicAttention(LuongAttention):
    """`LuongAttention` that never looks back: Raffel et al., "Online and linear-time attention by enforcing
    monotonic alignments" (2017); see `monotonic_attention` for ``mode``. Noise of ``sigmoid_noise`` is added
    to the scores, and a variable that begins with ``score_bias_init``.
    """

    def __init__(
        self,
        num_units: int,
        memory: Any,
        memory_sequence_length: Any = None,
        scale: bool = False,
        score_mask_value: Any = None,
        sigmoid_noise: float = 0.0,
        sigmoid_noise_seed: int | None = None,
        score_bias_init: float = 0.0,
        mode: str = "parallel",
        dtype: Any = None,
        name: str = "LuongMonotonicAttention",
    ) -> None:
        self._bias = score_bias_init
        super().__init__(
            num_units, memory, memory_sequence_length, scale, None, score_mask_value, dtype, name=name,
            _probability=_monotonic_probability(sigmoid_noise, sigmoid_noise_seed, mode),
        )  # fmt: skip

    def initial_alignments(self, batch_size: Any, dtype: Any) -> Tensor:
        return _at_first_step(self, batch_size, dtype)

    def _score(self, query: Tensor) -> Tensor:
        return super()._score(query) + _score_bias("luong_monotonic_attention", query, self._bias)


class BahdanauMonotonicAttention(BahdanauAttention):
    """`BahdanauAttention` that never looks back; see `LuongMonotonicAttention`."""

    def __init__(
        self,
        num_units: int,
        memory: Any,
        memory_sequence_length: Any = None,
        normalize: bool = False,
        score_mask_value: Any = None,
        sigmoid_noise: float = 0.0,
        sigmoid_noise_seed: int | None = None,
        score_bias_init: float = 0.0,
        mode: str = "parallel",
        dtype: Any = None,
        name: str = "BahdanauMonotonicAttention",
    ) -> None:
        self._bias = score_bias_init
        super().__init__(
            num_units, memory, memory_sequence_length, normalize, None, score_mask_value, dtype, name=name,
            _probability=_monotonic_probability(sigmoid_noise, sigmoid_noise_seed, mode),
        )  # fmt: skip

    def initial_alignments(self, batch_size: Any, dtype: Any) -> Tensor:
        return _at_first_step(self, batch_size, dtype)

    def _score(self, query: Tensor) -> Tensor:
        return super()._score(query) + _score_bias("bahdanau_monotonic_attention", query, self._bias)


def _at_first_step(mechanism: AttentionMechanism, batch_size: Any, dtype: Any) -> Tensor:
    first = fill([batch_size] if isinstance(batch_size, int) else reshape(batch_size, [1]), 0)
    return one_hot(first, mechanism.alignments_size, dtype=dtype)


def _score_bias(scope: str, query: Tensor, begin: float) -> Any:
    with variable_scope(None, default_name=scope):
        return get_variable("attention_score_bias", [], query.dtype, Constant(begin))


def _monotonic_probability(noise: float, seed: int | None, mode: str) -> Probability:
    def probability(score: Tensor, previous: Tensor) -> Tensor:
        noisy = score + noise * random_normal(shape(score), dtype=score.dtype, seed=seed) if noise else score
        chosen = cast(greater(noisy, 0), score.dtype) if mode == "hard" else sigmoid(noisy)
        return monotonic_attention(chosen, previous, mode)

    return probability


def monotonic_attention(p_choose_i: Any, previous_attention: Any, mode: str) -> Tensor:
    """The probability that attention stops at each step, having stopped before as ``previous_attention``, if
    it stops at a step that it looks at with ``p_choose_i``; all are [batch, steps].

    ``mode`` is "recursive" (exact), "parallel" (numerically unstable where probabilities are close to 1) or
    "hard" (for probabilities 0 and 1). Raises `InvalidArgumentError` for another.
    """
    chosen, previous = convert_to_tensor(p_choose_i), convert_to_tensor(previous_attention)
    if mode == "recursive":
        rows = shape(chosen)[0]
        skipped = concat([ones([rows, 1], chosen.dtype), 1 - chosen[:, :-1]], 1)
        reached = scan(
            lambda x, yz: reshape(yz[0] * x + yz[1], [rows]),
            (transpose(skipped), transpose(previous)),
            zeros([rows], chosen.dtype),
        )
        return chosen * transpose(reached)
    if mode == "parallel":
        passed = safe_cumprod(1 - chosen, axis=1, exclusive=True)
        return chosen * passed * cumsum(previous / clip_by_value(passed, 1e-10, 1.0), axis=1)
    if mode == "hard":
        ahead = chosen * cumsum(previous, axis=1)  # of where it was
        return ahead * cumprod(1 - ahead, axis=1, exclusive=True)  # the first one
    raise misuse(f"monotonic_attention: expected mode recursive, parallel or hard; got {mode!r}")


def safe_cumprod(x: Any, *args: Any, **kwargs: Any) -> Tensor:
    """`cumprod` of numbers in [0, 1] as a sum of logarithms, so that its gradient has no division by zero."""
    given = convert_to_tensor(x)
    tiny = float(np.finfo(as_dtype(given.dtype).as_numpy_dtype).tiny)
    return exp(cumsum(log(clip_by_value(given, tiny, 1.0)), *args, **kwargs))


def hardmax(logits: Any, name: str | None = None) -> Tensor:
    """1 at the largest of each row, else 0."""
    rows = convert_to_tensor(logits)
    depth = _size(rows, -1)
    return one_hot(argmax(rows, -1), depth, dtype=rows.dtype)
