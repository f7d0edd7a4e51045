"""Conditional random fields against all sequences of tags, written out."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

import flowrt as tf
from flowrt.contrib import crf

rng = np.random.default_rng(0)
TAGS, STEPS = 3, 4
LENGTHS = [4, 2, 1]
SCORES = rng.normal(size=(3, STEPS, TAGS))
MOVES = rng.normal(size=(TAGS, TAGS))


def score(row: int, tags: Any) -> float:
    own = sum(SCORES[row, step, tag] for step, tag in enumerate(tags))
    return float(own + sum(MOVES[a, b] for a, b in itertools.pairwise(tags)))


def all_scores(row: int) -> dict[tuple[int, ...], float]:
    return {tags: score(row, tags) for tags in itertools.product(range(TAGS), repeat=LENGTHS[row])}


def test_likelihoods_norms_and_gradients() -> None:
    tags = rng.integers(0, TAGS, (3, STEPS))
    inputs, moves = tf.constant(SCORES), tf.constant(MOVES)
    found, same = crf.crf_log_likelihood(inputs, tags, LENGTHS, moves)
    assert same is moves
    norm = crf.crf_log_norm(inputs, LENGTHS, moves)
    slope = tf.gradients(tf.reduce_sum(norm), inputs)[0]
    bitmap = np.ones((3, STEPS, TAGS), bool)
    bitmap[:, 0, 1] = False
    some = crf.crf_multitag_sequence_score(inputs, bitmap, LENGTHS, moves)
    with tf.Session() as session:
        likelihoods, norms, shares, partial = session.run((found, norm, slope, some))
    for row in range(3):
        every = all_scores(row)
        total = np.log(np.sum(np.exp(list(every.values()))))
        assert norms[row] == pytest.approx(total)
        assert likelihoods[row] == pytest.approx(score(row, tags[row, : LENGTHS[row]]) - total)
        allowed = [value for path, value in every.items() if path[0] != 1]
        assert partial[row] == pytest.approx(np.log(np.sum(np.exp(allowed))))
        for tag in range(TAGS):  # the gradient is the probability of a tag at a step
            there = sum(np.exp(value - total) for path, value in every.items() if path[0] == tag)
            assert shares[row, 0, tag] == pytest.approx(there)
    assert not shares[1, 2:].any()


def test_the_best_tags() -> None:
    found, best = crf.crf_decode(tf.constant(SCORES), tf.constant(MOVES), LENGTHS)
    with tf.Session() as session:
        tags, scores = session.run((found, best))
    assert tags.dtype == np.int32
    for row, length in enumerate(LENGTHS):
        every = all_scores(row)
        expected = max(every, key=lambda path: every[path])
        assert tuple(tags[row, :length]) == expected
        assert not tags[row, length:].any()
        assert scores[row] == pytest.approx(every[expected])
        path, value = crf.viterbi_decode(SCORES[row, :length], MOVES)
        assert tuple(path) == expected
        assert value == pytest.approx(every[expected])


def test_transitions_are_a_variable_by_default() -> None:
    _, moves = crf.crf_log_likelihood(tf.zeros([2, 1, TAGS]), [[0], [1]], [1, 0])
    assert moves.op.name == "transitions"
    assert moves.shape.as_list() == [TAGS, TAGS]
