"""Decoders against NumPy: a loop written out, all sequences of a small vocabulary, TensorFlow's formulas."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

import flowrt as tf
from flowrt.contrib import seq2seq
from flowrt.errors import DTypeError, InvalidArgumentError

rng = np.random.default_rng(0)
TOKENS, DEPTH, STEPS = 5, 4, 3
EMBEDDING = rng.normal(size=(TOKENS, DEPTH))
MEMORY = rng.normal(size=(2, 3, DEPTH))
LENGTHS = np.array([3, 2])


class Adding(tf.nn.rnn_cell.RNNCell):
    """A cell without variables: the state is a decayed sum of what it reads."""

    state_size = output_size = DEPTH

    def call(self, inputs: Any, state: Any, *_: Any, **__: Any) -> Any:
        new = tf.tanh(0.5 * state + inputs)
        return new, new


def softmax(x: np.ndarray[Any, Any]) -> Any:
    powers = np.exp(x - x.max(-1, keepdims=True))
    return powers / powers.sum(-1, keepdims=True)


def test_a_training_decoder_attends_as_luong_does() -> None:
    targets = rng.integers(0, TOKENS, size=(2, STEPS))
    mechanism = seq2seq.LuongAttention(DEPTH, tf.constant(MEMORY), tf.constant(LENGTHS), dtype=tf.float64)
    cell = seq2seq.AttentionWrapper(
        Adding(), mechanism, alignment_history=True, cell_input_fn=lambda x, attention: x + attention
    )
    helper = seq2seq.TrainingHelper(tf.constant(EMBEDDING[targets]), tf.constant([3, 2]))
    decoder = seq2seq.BasicDecoder(cell, helper, cell.zero_state(2, tf.float64))
    outputs, state, lengths = seq2seq.dynamic_decode(decoder, impute_finished=True)
    (kernel,) = tf.trainable_variables()
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        values = session.run((kernel, outputs, state.alignment_history.stack(), state.time, lengths))
        slope = session.run(tf.gradients(tf.reduce_sum(outputs.rnn_output), kernel)[0])
    weights, (got, samples), history, steps, ends = values
    assert kernel.op.name == "memory_layer/kernel"
    assert steps == 3
    assert ends.tolist() == [3, 2]
    assert np.abs(slope).max() > 0

    state_, attention = np.zeros((2, DEPTH)), np.zeros((2, DEPTH))
    keys = MEMORY @ weights
    for time in range(STEPS):
        state_ = np.tanh(0.5 * state_ + EMBEDDING[targets[:, time]] + attention)
        scores = np.einsum("bd,bsd->bs", state_, keys)
        scores[1, 2] = -np.inf
        aligned = softmax(scores)
        attention = np.einsum("bs,bsd->bd", aligned, MEMORY)
        rows = [0, 1] if time < 2 else [0]
        np.testing.assert_allclose(history[time][rows], aligned[rows], rtol=1e-9, atol=1e-12)
        np.testing.assert_allclose(got[rows, time], attention[rows], rtol=1e-9)
        assert samples[rows, time].tolist() == attention[rows].argmax(-1).tolist()
    assert not got[1, 2].any()


def test_bahdanau_scores() -> None:
    query = rng.normal(size=(2, DEPTH))
    plain, normed = (
        seq2seq.BahdanauAttention(6, tf.constant(MEMORY), normalize=normalize, dtype=tf.float64)
        for normalize in (False, True)
    )
    alignments = [m(tf.constant(query), m.initial_state(2, tf.float64))[0] for m in (plain, normed)]
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        values = {v.op.name: session.run(v) for v in tf.trainable_variables()}
        first, second = session.run(alignments)
    assert values["bahdanau_attention_1/attention_g"] == pytest.approx(np.sqrt(1 / 6))
    for found, suffix in ((first, ""), (second, "_1")):
        scope = f"bahdanau_attention{suffix}"
        v = values[f"{scope}/attention_v"]
        if suffix:
            v = v * np.sqrt(1 / 6) / np.linalg.norm(v)
        both = (
            MEMORY @ values[f"memory_layer{suffix}/kernel"]
            + (query @ values[f"{scope}/query_layer/kernel"])[:, None]
        )
        np.testing.assert_allclose(found, softmax(np.tanh(both) @ v), rtol=1e-9)


def test_monotonic_attention_is_the_same_in_all_modes_where_they_may_be_compared() -> None:
    chosen, previous = rng.uniform(0.1, 0.9, (2, 6)), softmax(rng.normal(size=(2, 6)))
    hard = rng.integers(0, 2, (2, 6)).astype(float)
    before = np.eye(6)[[1, 3]]
    with tf.Session() as session:
        exact, parallel = (
            session.run(seq2seq.monotonic_attention(chosen, previous, mode))
            for mode in ("recursive", "parallel")
        )
        np.testing.assert_allclose(exact, parallel, rtol=1e-9)
        found = session.run(seq2seq.monotonic_attention(hard, before, "hard"))
        np.testing.assert_allclose(found, session.run(seq2seq.monotonic_attention(hard, before, "recursive")))
    with pytest.raises(InvalidArgumentError, match="expected mode recursive"):
        seq2seq.monotonic_attention(chosen, previous, "soft")


def test_a_tree_is_read_from_its_leaves() -> None:
    steps = np.array([[[1, 2, 3]], [[4, 5, 6]], [[7, 8, 9]], [[-1, -1, -1]]])
    parents = np.array([[[0, 0, 0]], [[0, 1, 1]], [[2, 1, 2]], [[-1, -1, -1]]])
    found = seq2seq.gather_tree(steps, parents, [3], 10)
    with tf.Session() as session:
        assert session.run(found)[:, 0].tolist() == [[2, 2, 2], [6, 5, 6], [7, 8, 9], [10, 10, 10]]
        ends = session.run(seq2seq.gather_tree(steps, parents, [3], 6))
        assert ends[:, 0].tolist() == [[2, 2, 2], [6, 5, 6], [6, 8, 6], [6, 6, 6]]


@pytest.mark.parametrize("weight", [0.0, 1.0])
def test_a_wide_beam_finds_the_best_of_all_sequences(weight: float) -> None:
    layer, width = np.asarray(rng.normal(size=(DEPTH, TOKENS))) * 3, TOKENS**STEPS

    class Logits(tf.layers.Dense):
        def call(self, inputs: Any, *_: Any, **__: Any) -> Any:
            return tf.matmul(inputs, tf.constant(layer))

    first = rng.normal(size=(2, DEPTH))
    decoder = seq2seq.BeamSearchDecoder(
        Adding(), tf.constant(EMBEDDING), [1, 1], 0, seq2seq.tile_batch(tf.constant(first), width), width,
        Logits(TOKENS), length_penalty_weight=weight,
    )  # fmt: skip
    outputs, state, _ = seq2seq.dynamic_decode(decoder, maximum_iterations=STEPS)
    with tf.Session() as session:
        found, log_probs, scores = session.run(
            (outputs.predicted_ids, state.log_probs, outputs.beam_search_decoder_output.scores)
        )
    for row in range(2):
        ranked = []
        for sequence in itertools.product(range(TOKENS), repeat=STEPS):
            hidden, token, total, length, ended = first[row], 1, 0.0, 0, False
            for time, following in enumerate(sequence):
                if ended and following != 0:
                    break
                if not ended:
                    hidden = np.tanh(0.5 * hidden + EMBEDDING[token])
                    total += np.log(softmax(hidden @ layer))[following]
                    length += following != 0 or time < STEPS - 1  # as TensorFlow counts the end
                    ended, token = following == 0, following
            else:
                ranked.append((total / ((5 + length) / 6) ** weight, total, sequence))
        ranked.sort(reverse=True)
        best = ranked[: min(20, len(ranked))]
        assert [tuple(beam) for beam in found[row].T[: len(best)]] == [sequence for *_, sequence in best]
        np.testing.assert_allclose(scores[row, -1, : len(best)], [score for score, *_ in best], rtol=1e-6)
        np.testing.assert_allclose(log_probs[row, : len(best)], [total for _, total, _ in best], rtol=1e-9)


def test_a_greedy_helper_reads_what_it_made_until_the_end() -> None:
    cycle = np.roll(np.eye(4), 1, axis=1)  # a token is followed by the next one

    class Identity(tf.nn.rnn_cell.RNNCell):
        state_size = output_size = 4

        def call(self, inputs: Any, state: Any, *_: Any, **__: Any) -> Any:
            return 9 * inputs, state

    for helper in (
        seq2seq.GreedyEmbeddingHelper(tf.constant(cycle), [0, 2], 3),
        seq2seq.SampleEmbeddingHelper(
            lambda ids: tf.gather(tf.constant(cycle), ids), [0, 2], 3, softmax_temperature=0.01, seed=1
        ),
    ):
        decoder = seq2seq.BasicDecoder(Identity(), helper, tf.zeros([2, 4], tf.float64))
        outputs, _, lengths = seq2seq.dynamic_decode(decoder, output_time_major=True)
        with tf.Session() as session:
            samples, ends = session.run((outputs.sample_id, lengths))
        assert samples[:, 0].tolist() == [1, 2, 3]
        assert samples[0, 1] == 3
        assert ends.tolist() == [3, 1]


def test_scheduled_sampling_reads_targets_or_samples() -> None:
    targets = rng.integers(1, TOKENS, size=(2, STEPS))
    for probability in (0.0, 1.0):
        helper = seq2seq.ScheduledEmbeddingTrainingHelper(
            tf.constant(EMBEDDING[targets]), [3, 3], tf.constant(EMBEDDING), probability
        )
        logits = tf.constant(np.eye(TOKENS)[[0, 1]] * 1e3)
        samples = helper.sample(0, logits, None)
        _, following, _ = helper.next_inputs(0, logits, None, samples)
        with tf.Session() as session:
            values, read = session.run((samples, following))
        assert values.tolist() == ([0, 1] if probability else [-1, -1])
        np.testing.assert_array_equal(read, EMBEDDING[[0, 1] if probability else targets[:, 1]])


def test_mistakes_are_typed() -> None:
    with pytest.raises(DTypeError, match="expected a Decoder; got int"):
        seq2seq.dynamic_decode(3)  # type: ignore[arg-type]
    with pytest.raises(InvalidArgumentError, match="expected a vector sequence_length"):
        seq2seq.TrainingHelper(tf.zeros([2, 3, 4]), tf.constant(3))
    with pytest.raises(InvalidArgumentError, match="expected memory"):
        seq2seq.LuongAttention(3, tf.zeros([2, 3]))
    with pytest.raises(DTypeError, match="expected an AttentionMechanism"):
        seq2seq.AttentionWrapper(Adding(), "luong")


def test_a_state_of_a_beam_search_has_a_row_for_each_beam() -> None:
    with tf.Graph().as_default():
        cell = tf.nn.rnn_cell.GRUCell(4)
        with pytest.raises(InvalidArgumentError, match=r"batch \* beam_width rows, 6; got .* tile_batch"):
            tf.contrib.seq2seq.BeamSearchDecoder(
                cell, tf.zeros([5, 4]), tf.fill([2], 1), 2, cell.zero_state(2, tf.float32), 3
            )
