"""The candidate samplers draw without repetition, as often as they say; the losses approach the full ones."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

import flowrt as tf
from flowrt.errors import InvalidArgumentError

CLASSES = 12


def test_a_unique_sample_has_no_class_twice() -> None:
    drawn = tf.nn.log_uniform_candidate_sampler([[0]], 1, CLASSES, True, CLASSES)
    with tf.Session() as session:
        assert sorted(session.run(drawn.sampled_candidates)) == list(range(CLASSES))


@pytest.mark.parametrize("unique", [True, False])
@pytest.mark.parametrize("sampler", [tf.nn.log_uniform_candidate_sampler, tf.nn.uniform_candidate_sampler])
def test_expected_counts_are_the_average_counts(sampler: object, unique: bool) -> None:
    """Over 4,000 draws a count's standard error is below 0.01.

    Without repetition the said count is lower by up to 0.08 for the likeliest of so few classes, because the
    last arrival is no chance. (TensorFlow counts tries instead of time, and says 0.16 too much.)
    """
    drawn = sampler([[i] for i in range(CLASSES)], 1, 4, unique, CLASSES, seed=3)  # type: ignore[operator]
    counts, said = np.zeros(CLASSES), np.zeros(CLASSES)
    with tf.Session() as session:
        step = session.make_callable([drawn.sampled_candidates, drawn.true_expected_count])
        for _ in range(4000):
            sampled, expected = step()
            counts += np.bincount(sampled, minlength=CLASSES)
            said += expected[:, 0]
    np.testing.assert_allclose(counts / 4000, said / 4000, atol=0.1 if unique else 0.05)


def test_sampled_softmax_over_all_classes_is_the_softmax() -> None:
    """With every class sampled, accidental hits removed and equal corrections, nothing is left out."""
    rng = np.random.default_rng(0)
    weights, inputs = (rng.normal(size=s).astype(np.float32) for s in ((CLASSES, 5), (7, 5)))
    biases, labels = rng.normal(size=CLASSES).astype(np.float32), rng.integers(0, CLASSES, (7, 1))
    every = (tf.constant(np.arange(CLASSES)), tf.ones([7, 1]), tf.ones([CLASSES]))
    sampled = tf.nn.sampled_softmax_loss(
        weights, biases, labels, inputs, CLASSES, CLASSES, sampled_values=every
    )
    full = tf.nn.sparse_softmax_cross_entropy_with_logits(
        labels=labels[:, 0], logits=tf.matmul(inputs, weights, transpose_b=True) + biases
    )
    with tf.Session() as session:
        np.testing.assert_allclose(*session.run([sampled, full]), rtol=1e-5)


@pytest.mark.parametrize("loss", [tf.nn.nce_loss, tf.nn.sampled_softmax_loss])
def test_removed_hits_leave_finite_losses_in_half_precision(loss: Callable[..., tf.Tensor]) -> None:
    losses = []
    for dtype in (tf.float64, tf.float16):
        rng = np.random.default_rng(0)
        weights, biases, inputs = (tf.constant(rng.normal(size=s), dtype) for s in ((9, 5), 9, (3, 5)))
        sample = (tf.constant([2, 3, 7], tf.int64), tf.fill([3, 1], tf.cast(0.5, dtype)), tf.ones([3], dtype))
        losses.append(
            loss(
                weights, biases, [[1], [3], [7]], inputs, 3, 9, sampled_values=sample,
                remove_accidental_hits=True,
            )
        )  # fmt: skip
    with tf.Session() as session:
        np.testing.assert_allclose(*session.run(losses), rtol=0.02, atol=0.01)


def test_nce_loss_is_logistic_regression_against_the_sample() -> None:
    weights, biases = np.eye(4, dtype=np.float32), np.zeros(4, np.float32)
    sample = (tf.constant([2, 3]), tf.fill([1, 1], 0.5), tf.constant([0.25, 0.5]))
    loss = tf.nn.nce_loss(weights, biases, [[1]], [[0.0, 2.0, 1.0, -1.0]], 2, 4, sampled_values=sample)
    logits = np.array([2 - np.log(0.5), 1 - np.log(0.25), -1 - np.log(0.5)])
    expected = np.log1p(np.exp(-logits[0])) + np.log1p(np.exp(logits[1:])).sum()
    with tf.Session() as session:
        np.testing.assert_allclose(session.run(loss), [expected], rtol=1e-6)


def test_accidental_hits_say_where_they_are() -> None:
    hits = tf.nn.compute_accidental_hits([[1], [3]], [3, 5, 1], 1)
    with tf.Session() as session:
        rows, places, weights = session.run(hits)
    assert (rows.tolist(), places.tolist()) == ([0, 1], [2, 0])
    assert (weights < -1e29).all()


def test_more_classes_than_there_are_cannot_be_drawn_without_repetition() -> None:
    with pytest.raises(tf.errors.InvalidArgumentError, match="expected 1 to 12 classes"):
        tf.nn.uniform_candidate_sampler([[0]], 1, CLASSES + 1, True, CLASSES)


@pytest.mark.parametrize("loss", [tf.nn.nce_loss, tf.nn.sampled_softmax_loss])
def test_labels_in_the_place_of_inputs_are_told_at_the_call(loss: Callable[..., tf.Tensor]) -> None:
    weights, biases = tf.ones([CLASSES, 5]), tf.zeros([CLASSES])
    embedded = tf.ones([3, 5])
    for labels in (tf.zeros([3], tf.int32), tf.zeros([3, 1], tf.int64), np.zeros([3, 1], np.int32)):
        message = r"test_sampled\.py:\d+\): inputs: expected floats .*got int.*labels come before"
        with pytest.raises(InvalidArgumentError, match=message):
            loss(weights, biases, embedded, labels, 4, CLASSES)
    cast = tf.zeros([3, 1])
    assert loss(weights, biases, cast, embedded, 4, CLASSES).shape == [3]
