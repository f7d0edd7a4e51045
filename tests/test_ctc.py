"""Losses and decoders against all paths, written out; `tests/twins/ctc.py` has TensorFlow's values."""

from __future__ import annotations

import itertools
from collections import defaultdict
from typing import Any

import numpy as np
import pytest

import flowrt as tf
from flowrt.errors import InvalidArgumentError

TIMES, CLASSES = 5, 4
LOGITS = np.random.default_rng(0).normal(0, 2, (TIMES, 4, CLASSES))
LENGTHS = [5, 4, 3, 5]
LABELS = [[0, 1], [2, 2], [], [1, 0, 1]]


def sparse(rows: Any) -> tf.SparseTensor:
    indices = [[i, j] for i, row in enumerate(rows) for j in range(len(row))]
    return tf.SparseTensor(indices, np.array([x for row in rows for x in row], np.int32), [len(rows), 3])


def chances(row: int, *, merges: bool = True) -> dict[tuple[int, ...], float]:
    """The probability of each sequence of labels, from all paths."""
    shares = np.exp(LOGITS[: LENGTHS[row], row])
    shares /= shares.sum(-1, keepdims=True)
    found = defaultdict(float)
    for path in itertools.product(range(CLASSES), repeat=LENGTHS[row]):
        merged = [x for i, x in enumerate(path) if not (merges and i and x == path[i - 1])]
        labels = tuple(x for x in merged if x != CLASSES - 1)
        found[labels] += float(np.prod(shares[np.arange(len(path)), path]))
    return found


@pytest.mark.parametrize("merges", [True, False])
def test_the_loss_is_of_all_paths_of_the_labels(merges: bool) -> None:
    logits = tf.constant(LOGITS)
    loss = tf.nn.ctc_loss(sparse(LABELS), logits, LENGTHS, ctc_merge_repeated=merges)
    (slope,) = tf.gradients(loss * [1.0, 2, 3, 4], logits)
    step = 1e-6 * np.random.default_rng(1).normal(size=LOGITS.shape)
    with tf.Session() as session:
        values, slopes = session.run((loss, slope))
        above, below = (session.run(loss, {logits: LOGITS + sign * step}) for sign in (1, -1))
    expected = [-np.log(chances(row, merges=merges)[tuple(labels)]) for row, labels in enumerate(LABELS)]
    np.testing.assert_allclose(values, expected)
    rise = ((above - below) / 2 * [1, 2, 3, 4]).sum()
    assert (slopes * step).sum() == pytest.approx(rise, rel=1e-4)
    assert not slopes[3:, 2].any()


def test_what_does_not_fit_is_an_error_or_left_out() -> None:
    logits, labels = tf.constant(LOGITS), sparse([[0, 0, 1], [], [], []])
    loss = tf.nn.ctc_loss(labels, logits, [3, 4, 3, 5])
    ignoring = tf.nn.ctc_loss(labels, logits, [3, 4, 3, 5], ignore_longer_outputs_than_inputs=True)
    with tf.Session() as session:
        with pytest.raises(InvalidArgumentError, match=r"at most 3 times.*need 4 in batch 0"):
            session.run(loss)
        values, slopes = session.run((ignoring, tf.gradients(ignoring, logits)[0]))
        assert values[0] == 0
        assert not slopes[:, 0].any()
        assert slopes[:, 1].any()
        for wrong, message in (([[-1]], "from 0 on; got -1"), ([[3, 1]], r"below the blank, 3.*\[3, 1\]")):
            with pytest.raises(InvalidArgumentError, match=message):
                session.run(tf.nn.ctc_loss(sparse(wrong), logits[:, :1], [5]))
        with pytest.raises(InvalidArgumentError, match=r"expected 0 to 5.*got 6 in batch 1"):
            session.run(tf.nn.ctc_loss(labels, logits, [3, 6, 3, 5]))


def test_dense_labels_that_do_not_fit_have_an_infinite_loss_and_no_gradient() -> None:
    logits = tf.constant(LOGITS)
    loss = tf.nn.ctc_loss_v2([[1, 1], [1, 2], [2, 0], [0, 0]], logits, [2, 2, 1, 0], [2, 2, 2, 5])
    with tf.Session() as session:
        values, slopes = session.run((loss, tf.gradients(loss, logits)[0]))
    assert np.isfinite(values).tolist() == [False, True, True, True]
    assert values[0] == np.inf
    assert slopes.any((0, 2)).tolist() == [False, True, True, True]
    with pytest.raises(InvalidArgumentError, match="expected blank_index"):
        tf.nn.ctc_loss_v2(sparse([[1]]), logits, None, [5])


def test_a_wide_beam_finds_the_most_probable_labels() -> None:
    decoded, scores = tf.nn.ctc_beam_search_decoder(LOGITS, LENGTHS, 500, 3, merge_repeated=False)
    with tf.Session() as session:
        found, logs = session.run((decoded, scores))
    for row in range(4):
        best = sorted(chances(row).items(), key=lambda each: -each[1])[:3]
        np.testing.assert_allclose(logs[row], np.log([share for _, share in best]))
        for (labels, _), path in zip(best, found, strict=True):
            assert tuple(path.values[path.indices[:, 0] == row]) == labels


@pytest.mark.parametrize(
    ("width", "labels", "score"),
    [(2, [2, 2, 4, 3, 0, 2, 3, 4, 1], -6.945871), (10, [2, 2, 4, 2, 2, 3, 4, 1], -6.761558)],
    ids=["width 2", "width 10"],
)
def test_a_narrow_beam_searches_in_tensorflows_order(width: int, labels: list[int], score: float) -> None:
    """The second path as TensorFlow 2.21 has it; a better one is lost when its prefix leaves the beam."""
    logits = np.random.default_rng(4).normal(0, 2, (12, 5, 6))[:, :1].astype(np.float32)
    decoded, scores = tf.nn.ctc_beam_search_decoder(logits, [12], width, 2, merge_repeated=False)
    with tf.Session() as session:
        found, logs = session.run((decoded[1], scores))
    assert found.values.tolist() == labels
    np.testing.assert_allclose(logs[0, 1], score, rtol=1e-6)


@pytest.mark.parametrize(
    ("bits", "width", "paths"),
    [
        ("010 100", 4, [[1, 0], [1]]),  # two are equal but for the rounding of float32
        ("0000 0101 0011 0111", 4, [[1, 2], [1]]),
        ("01000 10110 10100 00111", 7, [[1, 0, 2], [1, 2]]),
        ("01101 11000 11011 00100 11010 01010 10111", 7, [[1, 0, 3], [1, 0, 2, 3]]),
    ],
)
def test_of_equals_those_are_found_that_tensorflow_finds(bits: str, width: int, paths: Any) -> None:
    """TensorFlow 1.15, that is; a few of those of 2.21 are others."""
    logits = np.array([[[int(bit) for bit in row]] for row in bits.split()], np.float32)
    decoded, _ = tf.nn.ctc_beam_search_decoder(logits, [len(logits)], width, 2, merge_repeated=False)
    with tf.Session() as session:
        assert [each.values.tolist() for each in session.run(decoded)] == paths


def test_the_greedy_decoder_takes_the_largest_logits() -> None:
    classes = np.array([[1, 1, 3, 1, 0], [0, 0, 3, 2, 2]])
    logits = np.eye(4, dtype=np.float32)[classes.T]
    for merges, labels in ((True, [[1, 1, 0], [0, 2]]), (False, [[1, 1, 1, 0], [0, 0, 2]])):
        decoded, score = tf.nn.ctc_greedy_decoder(logits, [5, 4], merge_repeated=merges)
        with tf.Session() as session:
            (found,), total = session.run((decoded, score))
        assert [list(found.values[found.indices[:, 0] == row]) for row in range(2)] == labels
        assert list(found.dense_shape) == [2, max(map(len, labels))]
        assert total.tolist() == [[-5], [-4]]


def test_distances_are_the_fewest_edits() -> None:
    words = ["kitten", "", "flaw", "abc", "same"], ["sitting", "xy", "lawn", "", "same"]
    said, meant = (sparse([list(map(ord, word)) for word in each]) for each in words)
    with tf.Session() as session:
        edits, shares = session.run([tf.edit_distance(said, meant, whole) for whole in (False, True)])
    assert edits.tolist() == [3, 2, 2, 3, 0]
    np.testing.assert_allclose(shares, [3 / 7, 1, 0.5, np.inf, 0])
    with pytest.raises(TypeError, match="expected truth as a SparseTensor"):
        tf.edit_distance(said, [[1, 2]])
