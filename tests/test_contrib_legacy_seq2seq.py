"""Sequences as lists of steps: against NumPy, and decoders that read what they made."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import flowrt as tf
from flowrt.contrib import legacy_seq2seq, rnn
from flowrt.errors import InvalidArgumentError

rng = np.random.default_rng(0)
SYMBOLS, UNITS = 5, 4


def run(fetches: Any, feed: Any = None) -> Any:
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        return session.run(fetches, feed)


def symbols(steps: int) -> list[tf.Tensor]:
    return [tf.constant(rng.integers(0, SYMBOLS, 3)) for _ in range(steps)]


def test_losses_of_lists() -> None:
    logits = [rng.normal(size=(2, 3)) for _ in range(2)]
    targets, weights = [[0, 2], [1, 1]], [[1.0, 1.0], [1.0, 0.0]]
    arrays = [tf.constant(each) for each in logits]
    masks = [tf.constant(each, tf.float64) for each in weights]
    found = run((
        legacy_seq2seq.sequence_loss_by_example(arrays, targets, masks),
        legacy_seq2seq.sequence_loss(arrays, targets, masks),
    ))  # fmt: skip
    each = [
        np.log(np.exp(logit).sum(-1)) - logit[[0, 1], target]
        for logit, target in zip(logits, targets, strict=True)
    ]
    expected = [(each[0][0] + each[1][0]) / 2, each[0][1]]
    np.testing.assert_allclose(found[0], expected, rtol=1e-6)
    assert found[1] == pytest.approx(np.mean(expected))
    with pytest.raises(InvalidArgumentError, match="expected lists of equal length"):
        legacy_seq2seq.sequence_loss(arrays, targets, masks[:1])


def test_a_decoder_reads_what_it_made() -> None:
    cell = rnn.OutputProjectionWrapper(rnn.BasicRNNCell(UNITS), SYMBOLS)
    given = symbols(4)
    outputs, _ = legacy_seq2seq.embedding_rnn_decoder(
        given, tf.zeros([3, UNITS]), cell, SYMBOLS, UNITS, feed_previous=True
    )
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        made, tokens = session.run((outputs, given[0]))
        values = {v.op.name: session.run(v) for v in tf.trainable_variables()}
    table = values.pop("embedding_rnn_decoder/embedding")
    inner, outer = (
        [value for name, value in values.items() if ("basic_rnn_cell" in name) == is_inner]
        for is_inner in (True, False)
    )
    state = np.zeros((3, UNITS))
    for output in made:
        state = np.tanh(np.concatenate([table[tokens], state], 1) @ inner[0] + inner[1])
        np.testing.assert_allclose(output, state @ outer[0] + outer[1], rtol=1e-5, atol=1e-6)
        tokens = output.argmax(-1)


@pytest.mark.parametrize("attention", [False, True], ids=["plain", "attention"])
def test_a_bool_tensor_chooses_between_targets_and_own_outputs(attention: bool) -> None:
    sources, targets = symbols(3), symbols(4)
    model = legacy_seq2seq.embedding_attention_seq2seq if attention else legacy_seq2seq.embedding_rnn_seq2seq
    feeds = tf.placeholder(tf.bool, [])

    def build(feed_previous: Any, reuse: bool = False) -> Any:
        with tf.variable_scope("model", reuse=reuse):
            return model(
                sources, targets, rnn.BasicLSTMCell(UNITS), SYMBOLS, SYMBOLS, 6, feed_previous=feed_previous
            )

    outputs, state = build(feeds)
    count = len(tf.trainable_variables())
    own, _ = build(True, reuse=True)
    given, _ = build(False, reuse=True)
    assert len(tf.trainable_variables()) == count
    slopes = [g for g in tf.gradients(tf.add_n(given), tf.trainable_variables()) if g is not None]
    assert len(slopes) == count
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        for value, expected in ((True, own), (False, given)):
            found, wanted, last = session.run((outputs, expected, state), {feeds: value})
            np.testing.assert_allclose(found, wanted, rtol=1e-6)
            assert last.c.shape == (3, UNITS)
        first, second = session.run((own, given))
    np.testing.assert_allclose(first[0], second[0])
    assert np.abs(first[1] - second[1]).max() > 0


def test_buckets_share_variables() -> None:
    sources, targets = symbols(4), symbols(5)
    weights = [tf.ones([3])] * 5

    def model(encoder: Any, decoder: Any) -> Any:
        return legacy_seq2seq.embedding_attention_seq2seq(
            encoder, decoder, rnn.GRUCell(UNITS), SYMBOLS, SYMBOLS, 6, num_heads=2
        )

    outputs, losses = legacy_seq2seq.model_with_buckets(
        sources, targets, targets, weights, [(2, 3), (4, 5)], model
    )
    assert [len(each) for each in outputs] == [3, 5]
    assert all(np.isfinite(run(losses)))
    assert len({v.op.name for v in tf.trainable_variables()}) == len(tf.trainable_variables())
    with pytest.raises(InvalidArgumentError, match="expected 5 targets"):
        legacy_seq2seq.model_with_buckets(sources, targets, targets[:3], weights, [(4, 5)], model)
