"""``flowrt.contrib.legacy_seq2seq``: sequences as lists of steps, with the graph of a cell for each.

Encoders and decoders of "Sequence to sequence learning" (Sutskever et al., 2014) and "Grammar as a foreign
language" (Vinyals et al., 2015), which has the attention. New programs take `contrib.seq2seq`.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from flowrt.contrib.rnn import EmbeddingWrapper, OutputProjectionWrapper, linear
from flowrt.control_flow.branches import cond
from flowrt.dtypes import float32
from flowrt.graph.construction.build import convert_to_tensor
from flowrt.graph.construction.graph import Tensor, get_default_graph
from flowrt.graph.ops.array.concat_and_split import concat
from flowrt.graph.ops.array.reductions import reduce_sum
from flowrt.graph.ops.array.selection import embedding_lookup
from flowrt.graph.ops.array.statistics import argmax
from flowrt.graph.ops.base.filling import zeros
from flowrt.graph.ops.base.identities import cast, stop_gradient
from flowrt.graph.ops.base.shape_manipulation import expand_dims, reshape, shape
from flowrt.graph.ops.elementwise.arithmetic import add_n
from flowrt.graph.ops.elementwise.math import tanh
from flowrt.graph.ops.linalg.matmul import matmul, tensordot
from flowrt.graph.ops.nn.bias import bias_add
from flowrt.graph.ops.nn.losses import sparse_softmax_cross_entropy_with_logits
from flowrt.graph.ops.nn.softmax import softmax
from flowrt.graph.source import misuse
from flowrt.nest import flatten, pack_sequence_as
from flowrt.nn.unrolled import static_rnn
from flowrt.tf1.missing_names import missing_from
from flowrt.variables.get_variable import get_variable
from flowrt.variables.variable_scope import get_variable_scope, variable_scope

__all__ = [
    "attention_decoder", "basic_rnn_seq2seq", "embedding_attention_decoder", "embedding_attention_seq2seq",
    "embedding_rnn_decoder", "embedding_rnn_seq2seq", "model_with_buckets", "rnn_decoder", "sequence_loss",
    "sequence_loss_by_example", "tied_rnn_seq2seq",
]  # fmt: skip

Loop = Callable[[Tensor, int], Any]
"""The next input, of the output before and the number of the step."""


# --- decoders


def rnn_decoder(
    decoder_inputs: Iterable[Any],
    initial_state: Any,
    cell: Any,
    loop_function: Loop | None = None,
    scope: Any = None,
) -> tuple[list[Any], Any]:
    """``(outputs, state)`` of ``cell`` over a list of inputs ``[batch, depth]``; with ``loop_function`` it
    reads the first one, then what the function makes of its outputs.
    """
    state, outputs = initial_state, list[Any]()
    with variable_scope(scope or "rnn_decoder"):
        for step, given in enumerate(decoder_inputs):
            given = _next_input(loop_function, outputs, step, given)
            if step:
                get_variable_scope().reuse_variables()
            output, state = cell(given, state)
            outputs.append(output)
    return outputs, state


def _next_input(loop_function: Loop | None, outputs: list[Any], step: int, given: Any) -> Any:
    if loop_function is None or not outputs:
        return given
    with variable_scope("loop_function", reuse=True):
        return loop_function(outputs[-1], step)


def _best_embedded(embedding: Any, output_projection: Any, updates: bool) -> Loop:
    """The embedding of the largest output, with no gradient unless it ``updates``."""

    def loop(previous: Tensor, step: int) -> Tensor:
        if output_projection is not None:
            weights, biases = output_projection
            previous = bias_add(matmul(previous, weights), biases)
        found = embedding_lookup(embedding, argmax(previous, 1))
        return found if updates else stop_gradient(found)

    return loop


def embedding_rnn_decoder(
    decoder_inputs: Sequence[Any],
    initial_state: Any,
    cell: Any,
    num_symbols: int,
    embedding_size: int,
    output_projection: Any = None,
    feed_previous: bool = False,
    update_embedding_for_previous: bool = True,
    scope: Any = None,
) -> tuple[list[Any], Any]:
    """`rnn_decoder` over vectors of symbols, rows of the variable "embedding". With ``feed_previous`` it
    reads the first one, then its own largest outputs, after ``output_projection``, a pair of weights and
    biases.
    """
    with variable_scope(scope or "embedding_rnn_decoder"):
        embedding = get_variable("embedding", [num_symbols, embedding_size])
        loop = _best_embedded(embedding, output_projection, update_embedding_for_previous)
        embedded = [embedding_lookup(embedding, symbols) for symbols in decoder_inputs]
        return rnn_decoder(embedded, initial_state, cell, loop if feed_previous else None)


def attention_decoder(
    decoder_inputs: Sequence[Any],
    initial_state: Any,
    attention_states: Any,
    cell: Any,
    output_size: int | None = None,
    num_heads: int = 1,
    loop_function: Loop | None = None,
    dtype: Any = None,
    scope: Any = None,
    initial_state_attention: bool = False,
) -> tuple[list[Any], Any]:
    """`rnn_decoder` that attends with ``num_heads`` to ``attention_states [batch, steps, depth]``; outputs
    are ``[batch, output_size]``, by default the cell's size. The first step attends to nothing, unless
    ``initial_state_attention``.

    Raises `InvalidArgumentError` without inputs, heads, or a known depth.
    """
    memory = convert_to_tensor(attention_states)
    if not decoder_inputs or num_heads < 1:
        raise misuse("attention_decoder: expected at least one input and one head; got none")
    depth = memory.shape.as_list()[2] if memory.shape.ndims == 3 else None
    if depth is None:
        raise misuse(f"attention_decoder: expected attention_states of a known depth; got {memory!r}")
    size = cell.output_size if output_size is None else output_size
    with variable_scope(scope or "attention_decoder", dtype=dtype):
        heads = [
            (
                tensordot(memory, get_variable(f"AttnW_{a}", [1, 1, depth, depth])[0, 0], 1),
                get_variable(f"AttnV_{a}", [depth]),
            )
            for a in range(num_heads)
        ]

        def attend(query: Any) -> list[Tensor]:
            whole, found = concat(flatten(query), 1), []
            for a, (features, vector) in enumerate(heads):
                with variable_scope(f"Attention_{a}"):
                    y = expand_dims(linear(whole, depth), 1)
                    weights = softmax(cast(reduce_sum(vector * tanh(features + y), 2), float32))
                    found.append(reduce_sum(expand_dims(cast(weights, memory.dtype), 2) * memory, 1))
            return found

        rows = shape(decoder_inputs[0])[0]
        attentions = [zeros([rows, depth], memory.dtype) for _ in heads]
        for attention in attentions:
            attention.set_shape([None, depth])
        if initial_state_attention:
            attentions = attend(initial_state)
        state, outputs = initial_state, list[Any]()
        for step, given in enumerate(decoder_inputs):
            if step:
                get_variable_scope().reuse_variables()
            read = convert_to_tensor(_next_input(loop_function, outputs, step, given))
            width: Any = read.shape.as_list()[1]
            mixed = linear(concat([read, *attentions], 1), width)
            output, state = cell(mixed, state)
            known = True if step == 0 and initial_state_attention else None
            with variable_scope(get_variable_scope(), reuse=known):
                attentions = attend(state)
            with variable_scope("AttnOutputProjection"):
                outputs.append(linear(concat([output, *attentions], 1), size))
    return outputs, state


def embedding_attention_decoder(
    decoder_inputs: Sequence[Any],
    initial_state: Any,
    attention_states: Any,
    cell: Any,
    num_symbols: int,
    embedding_size: int,
    num_heads: int = 1,
    output_size: int | None = None,
    output_projection: Any = None,
    feed_previous: bool = False,
    update_embedding_for_previous: bool = True,
    dtype: Any = None,
    scope: Any = None,
    initial_state_attention: bool = False,
) -> tuple[list[Any], Any]:
    """`attention_decoder` over vectors of symbols; see `embedding_rnn_decoder`."""
    with variable_scope(scope or "embedding_attention_decoder", dtype=dtype):
        embedding = get_variable("embedding", [num_symbols, embedding_size])
        loop = _best_embedded(embedding, output_projection, update_embedding_for_previous)
        return attention_decoder(
            [embedding_lookup(embedding, symbols) for symbols in decoder_inputs],
            initial_state,
            attention_states,
            cell,
            output_size,
            num_heads,
            loop if feed_previous else None,
            initial_state_attention=initial_state_attention,
        )


# --- encoders and decoders


def basic_rnn_seq2seq(
    encoder_inputs: Sequence[Any],
    decoder_inputs: Sequence[Any],
    cell: Any,
    dtype: Any = float32,
    scope: Any = None,
) -> tuple[list[Any], Any]:
    """`rnn_decoder` that begins with the last state of a copy of ``cell`` over ``encoder_inputs``."""
    with variable_scope(scope or "basic_rnn_seq2seq"):
        _, state = static_rnn(copy.deepcopy(cell), encoder_inputs, dtype=dtype)
        return rnn_decoder(decoder_inputs, state, cell)


def tied_rnn_seq2seq(
    encoder_inputs: Sequence[Any],
    decoder_inputs: Sequence[Any],
    cell: Any,
    loop_function: Loop | None = None,
    dtype: Any = float32,
    scope: Any = None,
) -> tuple[list[Any], Any]:
    """`basic_rnn_seq2seq` with one set of variables for both."""
    with variable_scope("combined_tied_rnn_seq2seq"):
        scope = scope or "tied_rnn_seq2seq"
        _, state = static_rnn(cell, encoder_inputs, dtype=dtype, scope=scope)
        get_variable_scope().reuse_variables()
        return rnn_decoder(decoder_inputs, state, cell, loop_function, scope)


def embedding_rnn_seq2seq(
    encoder_inputs: Sequence[Any],
    decoder_inputs: Sequence[Any],
    cell: Any,
    num_encoder_symbols: int,
    num_decoder_symbols: int,
    embedding_size: int,
    output_projection: Any = None,
    feed_previous: Any = False,
    dtype: Any = None,
    scope: Any = None,
) -> tuple[list[Any], Any]:
    """`embedding_rnn_decoder` that begins with the last state of a copy of ``cell`` over embedded
    ``encoder_inputs``. Outputs are ``[batch, num_decoder_symbols]`` unless ``output_projection`` is given.

    ``feed_previous`` may be a bool tensor.
    """
    with variable_scope(scope or "embedding_rnn_seq2seq", dtype=dtype):
        encoder = EmbeddingWrapper(copy.deepcopy(cell), num_encoder_symbols, embedding_size)
        _, state = static_rnn(encoder, encoder_inputs, dtype=dtype or float32)
        if output_projection is None:
            cell = OutputProjectionWrapper(cell, num_decoder_symbols)

        def decode(feeds: bool, updates: bool) -> tuple[list[Any], Any]:
            return embedding_rnn_decoder(
                decoder_inputs, state, cell, num_decoder_symbols, embedding_size, output_projection, feeds,
                updates,
            )  # fmt: skip

        return _either(decode, feed_previous)


def embedding_attention_seq2seq(
    encoder_inputs: Sequence[Any],
    decoder_inputs: Sequence[Any],
    cell: Any,
    num_encoder_symbols: int,
    num_decoder_symbols: int,
    embedding_size: int,
    num_heads: int = 1,
    output_projection: Any = None,
    feed_previous: Any = False,
    dtype: Any = None,
    scope: Any = None,
    initial_state_attention: bool = False,
) -> tuple[list[Any], Any]:
    """`embedding_rnn_seq2seq` with a decoder that attends to the outputs of the encoder."""
    with variable_scope(scope or "embedding_attention_seq2seq", dtype=dtype):
        encoder = EmbeddingWrapper(copy.deepcopy(cell), num_encoder_symbols, embedding_size)
        read, state = static_rnn(encoder, encoder_inputs, dtype=dtype or float32)
        memory = concat([reshape(output, [-1, 1, cell.output_size]) for output in read], 1)
        size = None
        if output_projection is None:
            cell, size = OutputProjectionWrapper(cell, num_decoder_symbols), num_decoder_symbols

        def decode(feeds: bool, updates: bool) -> tuple[list[Any], Any]:
            return embedding_attention_decoder(
                decoder_inputs, state, memory, cell, num_decoder_symbols, embedding_size, num_heads, size,
                output_projection, feeds, updates, initial_state_attention=initial_state_attention,
            )  # fmt: skip

        return _either(decode, feed_previous)


def _either(
    decode: Callable[[bool, bool], tuple[list[Any], Any]], feed_previous: Any
) -> tuple[list[Any], Any]:
    """``decode(feeds, updates)`` for a bool; for a bool tensor that which it says, on the same variables."""
    if isinstance(feed_previous, bool):
        return decode(feed_previous, True)
    structure: list[Any] = []

    def branch(feeds: bool) -> list[Any]:
        with variable_scope(get_variable_scope(), reuse=None if feeds else True):
            found = decode(feeds, False)
        structure[:] = [found]
        return flatten(found)

    flat = cond(feed_previous, lambda: branch(True), lambda: branch(False))
    packed: tuple[list[Any], Any] = pack_sequence_as(structure[0], flat)
    return packed


# --- losses


def sequence_loss_by_example(
    logits: Sequence[Any],
    targets: Sequence[Any],
    weights: Sequence[Any],
    average_across_timesteps: bool = True,
    softmax_loss_function: Callable[..., Any] | None = None,
    name: str | None = None,
) -> Tensor:
    """The weighted cross entropies ``[batch]`` of a list of steps, added up, or averaged by the weights.

    Raises `InvalidArgumentError` for lists of different lengths.
    """
    if not len(logits) == len(targets) == len(weights):
        raise misuse(
            "sequence_loss_by_example: expected lists of equal length; got "
            f"{len(logits)} logits, {len(targets)} targets and {len(weights)} weights"
        )
    function = softmax_loss_function or _cross_entropy
    with get_default_graph().name_scope(name or "sequence_loss_by_example"):
        steps = zip(logits, targets, weights, strict=True)
        total: Tensor = add_n([
            function(labels=target, logits=logit) * weight for logit, target, weight in steps
        ])  # fmt: skip
        return total / (add_n(list(weights)) + 1e-12) if average_across_timesteps else total


def _cross_entropy(labels: Any, logits: Any) -> Tensor:
    return sparse_softmax_cross_entropy_with_logits(labels=reshape(labels, [-1]), logits=logits)


def sequence_loss(
    logits: Sequence[Any],
    targets: Sequence[Any],
    weights: Sequence[Any],
    average_across_timesteps: bool = True,
    average_across_batch: bool = True,
    softmax_loss_function: Callable[..., Any] | None = None,
    name: str | None = None,
) -> Tensor:
    """The sum, or mean, over the batch of `sequence_loss_by_example`, a scalar."""
    with get_default_graph().name_scope(name or "sequence_loss"):
        cost = reduce_sum(
            sequence_loss_by_example(
                logits, targets, weights, average_across_timesteps, softmax_loss_function
            )
        )
        return cost / cast(shape(targets[0])[0], cost.dtype) if average_across_batch else cost


def model_with_buckets(
    encoder_inputs: Sequence[Any],
    decoder_inputs: Sequence[Any],
    targets: Sequence[Any],
    weights: Sequence[Any],
    buckets: Sequence[tuple[int, int]],
    seq2seq: Callable[[Any, Any], tuple[list[Any], Any]],
    softmax_loss_function: Callable[..., Any] | None = None,
    per_example_loss: bool = False,
    name: str | None = None,
) -> tuple[list[list[Any]], list[Tensor]]:
    """``(outputs, losses)`` of ``seq2seq(encoder_inputs, decoder_inputs)`` for each bucket, a pair of lengths
    that the lists are cut to; all share their variables.

    Raises `InvalidArgumentError` for lists shorter than the last bucket.
    """
    longest = buckets[-1]
    for what, given, need in (
        ("encoder_inputs", encoder_inputs, longest[0]),
        ("targets", targets, longest[1]),
        ("weights", weights, longest[1]),
    ):
        if len(given) < need:
            raise misuse(f"model_with_buckets: expected {need} {what}, as the last bucket; got {len(given)}")
    loss = sequence_loss_by_example if per_example_loss else sequence_loss
    outputs, losses = list[list[Any]](), list[Tensor]()
    with get_default_graph().name_scope(name or "model_with_buckets"):
        for number, (before, after) in enumerate(buckets):
            with variable_scope(get_variable_scope(), reuse=True if number else None):
                found, _ = seq2seq(encoder_inputs[:before], decoder_inputs[:after])
            outputs.append(found)
            losses.append(
                loss(found, targets[:after], weights[:after], softmax_loss_function=softmax_loss_function)
            )
    return outputs, losses


__getattr__ = missing_from("contrib.legacy_seq2seq")
