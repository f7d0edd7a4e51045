"""`dynamic_decode`: the loop over the steps of a `Decoder`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

from flowrt.control_flow.loops import while_loop
from flowrt.dtypes import int32
from flowrt.errors import DTypeError
from flowrt.functions.tensor_array import TensorArray
from flowrt.graph.construction.constant import constant
from flowrt.graph.construction.graph import Tensor
from flowrt.graph.ops.array.reductions import reduce_all
from flowrt.graph.ops.base.filling import fill, zeros_like
from flowrt.graph.ops.base.shape_manipulation import shape
from flowrt.graph.ops.elementwise.comparison import logical_not, logical_or, where
from flowrt.graph.shapes import TensorShape
from flowrt.graph.source import misuse
from flowrt.nest import assert_same_structure, map_structure
from flowrt.nn.recurrent import transpose_batch_time
from flowrt.nn.rnn_cell.base import zeros_of
from flowrt.nn.sequences import keep_finished
from flowrt.variables.variable_scope import variable_scope

Structure = Any


class Decoder(ABC):
    """One step of decoding after the other. A subclass gives the shape and dtype of what a step makes, how
    decoding begins, and the step.
    """

    @property
    @abstractmethod
    def batch_size(self) -> Any:
        """The number of sequences, an int or a scalar."""

    @property
    @abstractmethod
    def output_size(self) -> Structure:
        """The shape of a sequence's output of one step: a structure of `TensorShape` or ints."""

    @property
    @abstractmethod
    def output_dtype(self) -> Structure:
        """The dtypes of a step's output."""

    @abstractmethod
    def initialize(self, name: str | None = None) -> tuple[Any, Structure, Structure]:
        """``(finished, first_inputs, first_state)``, ``finished`` a bool vector [batch]."""

    @abstractmethod
    def step(
        self, time: Tensor, inputs: Structure, state: Structure, name: str | None = None
    ) -> tuple[Structure, Structure, Structure, Tensor]:
        """``(outputs, next_state, next_inputs, finished)`` of step ``time``."""

    @property
    def tracks_own_finished(self) -> bool:
        """Whether ``finished`` of a step is the whole truth: a sequence may then be unfinished again."""
        return False

    def finalize(self, outputs: Structure, final_state: Structure, sequence_lengths: Tensor) -> Any:
        """The outputs of all steps, ``[time, batch, ...]``, and the last state, as they are returned."""
        return outputs, final_state


def dynamic_decode(
    decoder: Decoder,
    output_time_major: bool = False,
    impute_finished: bool = False,
    maximum_iterations: Any = None,
    parallel_iterations: int = 32,
    swap_memory: bool = False,
    scope: Any = None,
) -> tuple[Structure, Structure, Tensor]:
    """``(outputs, final_state, lengths)`` of ``decoder`` until all sequences are finished, or after
    ``maximum_iterations`` steps.

    ``outputs`` are [batch, time, ...], or [time, batch, ...] if ``output_time_major``; ``lengths`` [batch] is
    int32. With ``impute_finished`` a finished sequence has outputs of zeros and keeps its state, so that no
    error flows through the steps after its end. Variables are made in the scope "decoder".

    Raises `DTypeError` for something that is no `Decoder`, and `InvalidArgumentError` for
    ``maximum_iterations`` that are no scalar.
    """
    if not isinstance(decoder, Decoder):
        raise misuse(f"dynamic_decode: expected a Decoder; got {type(decoder).__name__}", DTypeError)
    limit = None if maximum_iterations is None else constant_or_tensor(maximum_iterations)
    with variable_scope(scope or "decoder"):
        finished, inputs, state = decoder.initialize()
        zeros = map_structure(
            lambda size, dtype: zeros_of(size, decoder.batch_size, dtype),
            decoder.output_size,
            decoder.output_dtype,
        )
        written = map_structure(
            lambda zero: TensorArray(zero.dtype, 0, dynamic_size=True, element_shape=zero.shape), zeros
        )

        def body(
            time: Tensor, written: Any, state: Any, inputs: Any, finished: Tensor, lengths: Tensor
        ) -> tuple[Any, ...]:
            outputs, new_state, new_inputs, ended = decoder.step(time, inputs, state)
            assert_same_structure(zeros, outputs)
            assert_same_structure(state, new_state)
            assert_same_structure(inputs, new_inputs)
            ended = ended if decoder.tracks_own_finished else logical_or(ended, finished)
            lengths = where(finished, lengths, fill(shape(lengths), time + 1))
            if impute_finished:
                outputs = keep_finished(finished, zeros, outputs)
                new_state = keep_finished(finished, state, new_state)
            written = map_structure(lambda array, row: array.write(time, row), written, outputs)
            return time + 1, written, new_state, new_inputs, ended, lengths

        _, written, state, _, _, lengths = while_loop(
            lambda time, written, state, inputs, finished, lengths: logical_not(reduce_all(finished)),
            body,
            (constant(0), written, state, inputs, finished, zeros_like(finished, int32)),
            parallel_iterations=parallel_iterations,
            maximum_iterations=limit,
            swap_memory=swap_memory,
        )
        outputs = map_structure(lambda array: array.stack(), written)
        outputs, state = decoder.finalize(outputs, state, lengths)
        if not output_time_major:
            outputs = map_structure(transpose_batch_time, outputs)
    return outputs, state, lengths


def constant_or_tensor(count: Any) -> Any:
    """``count``, checked to be a scalar."""
    if isinstance(count, Tensor):
        if count.shape.ndims not in (0, None):
            raise misuse(f"dynamic_decode: expected maximum_iterations to be a scalar; got {count!r}")
        return count
    return constant(count, int32, [])


def shape_of_size(size: Any) -> TensorShape:
    """The shape of a row of ``size``: an int or a shape."""
    return size if isinstance(size, TensorShape) else TensorShape([size])
