"""Helpers, or what a `BasicDecoder` samples from its outputs, and what it reads next."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

from flowrt.dtypes import DType, int32
from flowrt.functions.tensor_array import TensorArray
from flowrt.graph.construction.build import convert_to_tensor
from flowrt.graph.construction.graph import Tensor
from flowrt.graph.ops.array.concat_and_split import concat
from flowrt.graph.ops.array.selection import embedding_lookup
from flowrt.graph.ops.array.statistics import argmax
from flowrt.graph.ops.array.tile_and_reverse import tile
from flowrt.graph.ops.base.filling import fill
from flowrt.graph.ops.base.identities import cast
from flowrt.graph.ops.base.shape_manipulation import shape, size
from flowrt.graph.ops.elementwise.arithmetic import maximum, minimum
from flowrt.graph.ops.elementwise.comparison import equal, greater, greater_equal, where
from flowrt.graph.ops.random.random_ops import random_uniform
from flowrt.graph.ops.random.sampling import multinomial
from flowrt.graph.shapes import TensorShape
from flowrt.graph.source import misuse
from flowrt.nest import flatten, map_structure
from flowrt.nn.recurrent import transpose_batch_time

Structure = Any


class Helper(ABC):
    """The part of a `BasicDecoder` that samples and chooses inputs. ``finished`` is a bool vector [batch]."""

    @property
    @abstractmethod
    def batch_size(self) -> Any:
        """The number of sequences."""

    @property
    def sample_ids_shape(self) -> TensorShape:
        """The shape of one sequence's sample."""
        return TensorShape([])

    @property
    def sample_ids_dtype(self) -> DType:
        return int32

    @abstractmethod
    def initialize(self, name: str | None = None) -> tuple[Any, Structure]:
        """``(finished, first_inputs)``."""

    @abstractmethod
    def sample(self, time: Any, outputs: Structure, state: Structure, name: str | None = None) -> Any:
        """The samples of a step's outputs."""

    @abstractmethod
    def next_inputs(
        self, time: Any, outputs: Structure, state: Structure, sample_ids: Any, name: str | None = None
    ) -> tuple[Any, Structure, Structure]:
        """``(finished, next_inputs, next_state)``."""


class TrainingHelper(Helper):
    """Reads ``inputs`` ``[batch, time, ...]``, each for its ``sequence_length``; samples are the largest.

    Inputs are ``[time, batch, ...]`` with ``time_major``. Raises `InvalidArgumentError` for lengths that are
    no vector.
    """

    def __init__(
        self, inputs: Structure, sequence_length: Any, time_major: bool = False, name: str | None = None
    ) -> None:
        self._inputs = map_structure(convert_to_tensor, inputs)
        if not time_major:
            self._inputs = map_structure(transpose_batch_time, self._inputs)
        self._arrays = map_structure(
            lambda rows: TensorArray(
                rows.dtype, shape(rows)[0], element_shape=rows.shape[1:], clear_after_read=False
            ).unstack(rows),
            self._inputs,
        )
        self._last = shape(flatten(self._inputs)[0])[0] - 1
        self._lengths = convert_to_tensor(sequence_length)
        if self._lengths.shape.ndims not in (1, None):
            raise misuse(f"TrainingHelper: expected a vector sequence_length; got {self._lengths!r}")

    @property
    def inputs(self) -> Structure:
        return self._inputs

    @property
    def sequence_length(self) -> Tensor:
        return self._lengths

    @property
    def batch_size(self) -> Any:
        known = self._lengths.shape.as_list()[0] if self._lengths.shape.ndims else None
        return size(self._lengths) if known is None else known

    def initialize(self, name: str | None = None) -> tuple[Any, Structure]:
        return equal(self._lengths, 0), map_structure(lambda array: array.read(0), self._arrays)

    def sample(self, time: Any, outputs: Any, state: Structure, name: str | None = None) -> Any:
        return cast(argmax(outputs, -1), int32)

    def next_inputs(
        self, time: Any, outputs: Any, state: Structure, sample_ids: Any = None, name: str | None = None
    ) -> tuple[Any, Structure, Structure]:
        place = minimum(time + 1, self._last)  # past the end nobody looks at the inputs
        following = map_structure(lambda array: array.read(place), self._arrays)
        return greater_equal(cast(time + 1, self._lengths.dtype), self._lengths), following, state


class ScheduledEmbeddingTrainingHelper(TrainingHelper):
    """`TrainingHelper` that at times, with ``sampling_probability``, reads an embedded sample instead of the
    target: Bengio et al., "Scheduled sampling" (2015). Elsewhere the samples are -1.

    ``embedding`` is a matrix or a function of ids.
    """

    def __init__(
        self,
        inputs: Any,
        sequence_length: Any,
        embedding: Any,
        sampling_probability: Any,
        time_major: bool = False,
        seed: int | None = None,
        scheduling_seed: int | None = None,
        name: str | None = None,
    ) -> None:
        super().__init__(inputs, sequence_length, time_major)
        self._embed = embedding_function(embedding)
        self._probability, self._seed, self._scheduling_seed = sampling_probability, seed, scheduling_seed

    def sample(self, time: Any, outputs: Any, state: Structure, name: str | None = None) -> Any:
        noise = random_uniform(shape(outputs)[:1], seed=self._scheduling_seed)
        return where(
            greater(self._probability, noise), drawn(outputs, self._seed), fill(shape(outputs)[:1], -1)
        )

    def next_inputs(
        self, time: Any, outputs: Any, state: Structure, sample_ids: Any = None, name: str | None = None
    ) -> tuple[Any, Structure, Structure]:
        finished, target, state = super().next_inputs(time, outputs, state)
        return finished, where(greater(sample_ids, -1), self._embed(maximum(sample_ids, 0)), target), state


class ScheduledOutputTrainingHelper(TrainingHelper):
    """`TrainingHelper` that at times, with ``sampling_probability``, reads its own output, or
    ``next_inputs_fn`` of it, with the ``auxiliary_inputs`` ``[batch, time, ...]`` of the step behind it.

    The samples are 1 in the rows where it does.
    """

    def __init__(
        self,
        inputs: Any,
        sequence_length: Any,
        sampling_probability: Any,
        time_major: bool = False,
        seed: int | None = None,
        next_inputs_fn: Callable[[Any], Any] | None = None,
        auxiliary_inputs: Any = None,
        name: str | None = None,
    ) -> None:
        own = None if auxiliary_inputs is None else convert_to_tensor(auxiliary_inputs)
        targets = convert_to_tensor(inputs)
        super().__init__(targets if own is None else concat([targets, own], -1), sequence_length, time_major)
        self._own = None if own is None else TrainingHelper(own, sequence_length, time_major)
        self._probability, self._seed = sampling_probability, seed
        self._following = next_inputs_fn or (lambda outputs: outputs)

    def sample(self, time: Any, outputs: Any, state: Structure, name: str | None = None) -> Any:
        noise = random_uniform(shape(outputs)[:1], seed=self._seed)
        return cast(greater(self._probability, noise), int32)

    def next_inputs(
        self, time: Any, outputs: Any, state: Structure, sample_ids: Any = None, name: str | None = None
    ) -> tuple[Any, Structure, Structure]:
        finished, target, state = super().next_inputs(time, outputs, state)
        own = self._following(outputs)
        if self._own is not None:
            own = concat([own, self._own.next_inputs(time, outputs, state)[1]], -1)
        return finished, where(cast(sample_ids, bool), own, target), state


class GreedyEmbeddingHelper(Helper):
    """Reads the embedding of its own largest output; begins with ``start_tokens`` [batch] and finishes at
    ``end_token``. ``embedding`` is a matrix or a function of ids.

    Raises `InvalidArgumentError` for start tokens that are no vector, and an end token that is no scalar.
    """

    def __init__(self, embedding: Any, start_tokens: Any, end_token: Any) -> None:
        self._embed = embedding_function(embedding)
        self._start = convert_to_tensor(start_tokens, int32)
        self._end = convert_to_tensor(end_token, int32)
        if self._start.shape.ndims not in (1, None) or self._end.shape.ndims not in (0, None):
            raise misuse(
                f"{type(self).__name__}: expected a vector of start_tokens and a scalar end_token; got "
                f"{self._start!r} and {self._end!r}"
            )

    @property
    def batch_size(self) -> Any:
        known = self._start.shape.as_list()[0] if self._start.shape.ndims else None
        return size(self._start) if known is None else known

    def initialize(self, name: str | None = None) -> tuple[Any, Structure]:
        return tile([False], [self.batch_size]), self._embed(self._start)

    def sample(self, time: Any, outputs: Any, state: Structure, name: str | None = None) -> Any:
        return cast(argmax(outputs, -1), int32)

    def next_inputs(
        self, time: Any, outputs: Any, state: Structure, sample_ids: Any, name: str | None = None
    ) -> tuple[Any, Structure, Structure]:
        return equal(sample_ids, self._end), self._embed(sample_ids), state


class SampleEmbeddingHelper(GreedyEmbeddingHelper):
    """`GreedyEmbeddingHelper` that draws from the outputs, as logits over ``softmax_temperature``."""

    def __init__(
        self,
        embedding: Any,
        start_tokens: Any,
        end_token: Any,
        softmax_temperature: Any = None,
        seed: int | None = None,
    ) -> None:
        super().__init__(embedding, start_tokens, end_token)
        self._temperature, self._seed = softmax_temperature, seed

    def sample(self, time: Any, outputs: Any, state: Structure, name: str | None = None) -> Any:
        return drawn(outputs if self._temperature is None else outputs / self._temperature, self._seed)


class CustomHelper(Helper):
    """A helper of three functions, which are called as the methods of `Helper` are."""

    def __init__(
        self,
        initialize_fn: Callable[[], Any],
        sample_fn: Callable[..., Any],
        next_inputs_fn: Callable[..., Any],
        sample_ids_shape: Any = None,
        sample_ids_dtype: Any = None,
    ) -> None:
        self._initialize, self._sample, self._next_inputs = initialize_fn, sample_fn, next_inputs_fn
        self._shape, self._dtype = TensorShape(sample_ids_shape or []), sample_ids_dtype or int32
        self._batch_size: Any = None

    @property
    def batch_size(self) -> Any:
        """The number of sequences. Raises `InvalidArgumentError` before `initialize`."""
        if self._batch_size is None:
            raise misuse("CustomHelper: expected a call of initialize before one of batch_size")
        return self._batch_size

    @property
    def sample_ids_shape(self) -> TensorShape:
        return self._shape

    @property
    def sample_ids_dtype(self) -> Any:
        return self._dtype

    def initialize(self, name: str | None = None) -> tuple[Any, Structure]:
        finished, inputs = self._initialize()
        self._batch_size = size(finished)
        return finished, inputs

    def sample(self, time: Any, outputs: Any, state: Structure, name: str | None = None) -> Any:
        return self._sample(time=time, outputs=outputs, state=state)

    def next_inputs(
        self, time: Any, outputs: Any, state: Structure, sample_ids: Any, name: str | None = None
    ) -> tuple[Any, Structure, Structure]:
        following: tuple[Any, Structure, Structure] = self._next_inputs(
            time=time, outputs=outputs, state=state, sample_ids=sample_ids
        )
        return following


class InferenceHelper(Helper):
    """Reads its own samples, or ``next_inputs_fn`` of them, from ``start_inputs`` on, until ``end_fn`` of the
    samples is true.
    """

    def __init__(
        self,
        sample_fn: Callable[[Any], Any],
        sample_shape: Any,
        sample_dtype: Any,
        start_inputs: Any,
        end_fn: Callable[[Any], Any],
        next_inputs_fn: Callable[[Any], Any] | None = None,
    ) -> None:
        self._sample, self._end, self._following = sample_fn, end_fn, next_inputs_fn
        self._shape, self._dtype = TensorShape(sample_shape), sample_dtype
        self._start = convert_to_tensor(start_inputs)

    @property
    def batch_size(self) -> Any:
        return shape(self._start)[0]

    @property
    def sample_ids_shape(self) -> TensorShape:
        return self._shape

    @property
    def sample_ids_dtype(self) -> Any:
        return self._dtype

    def initialize(self, name: str | None = None) -> tuple[Any, Structure]:
        return tile([False], [self.batch_size]), self._start

    def sample(self, time: Any, outputs: Any, state: Structure, name: str | None = None) -> Any:
        return self._sample(outputs)

    def next_inputs(
        self, time: Any, outputs: Any, state: Structure, sample_ids: Any, name: str | None = None
    ) -> tuple[Any, Structure, Structure]:
        following = sample_ids if self._following is None else self._following(sample_ids)
        return self._end(sample_ids), following, state


def embedding_function(embedding: Any) -> Callable[[Any], Any]:
    """``embedding`` if it is a function of ids, otherwise the look-up in it."""
    return embedding if callable(embedding) else lambda ids: embedding_lookup(embedding, ids)


def drawn(logits: Any, seed: int | None) -> Tensor:
    """A class for each row of ``logits`` [batch, classes], int32."""
    return cast(multinomial(logits, 1, seed)[:, 0], int32)
