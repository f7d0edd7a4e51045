"""`flowrt.contrib.losses`: predictions first; and the inner paths of contrib and of messages."""

from __future__ import annotations

import importlib

import numpy as np
import pytest

import flowrt as tf

LOGITS = np.float32([[0.2, -1.0, 0.7], [1.5, 0.1, -0.3]])
ONE_HOT = np.float32([[0, 0, 1], [1, 0, 0]])


@pytest.mark.parametrize(
    "name", ["absolute_difference", "mean_squared_error", "log_loss", "mean_pairwise_squared_error"]
)
def test_predictions_come_first(name: str) -> None:
    shares = 1 / (1 + np.exp(-LOGITS))
    with tf.Graph().as_default(), tf.Session() as session:
        older = getattr(tf.contrib.losses, name)(shares, ONE_HOT, 2.0)
        newer = getattr(tf.losses, name)(ONE_HOT, shares, 2.0)
        assert tf.contrib.losses.get_losses() == [older, newer]
        first, second = session.run([older, newer])
        assert first == pytest.approx(second)


def test_logits_come_first_and_weights_are_of_rows() -> None:
    with tf.Graph().as_default(), tf.Session() as session:
        older, weights = tf.contrib.losses, np.float32([2.0, 0.0])
        pairs = [
            (older.softmax_cross_entropy(LOGITS, ONE_HOT), tf.losses.softmax_cross_entropy(ONE_HOT, LOGITS)),
            (older.sparse_softmax_cross_entropy(LOGITS, [2, 0]),
             tf.losses.sparse_softmax_cross_entropy([2, 0], LOGITS)),
            (older.sigmoid_cross_entropy(LOGITS, ONE_HOT, weights),
             tf.losses.sigmoid_cross_entropy(ONE_HOT, LOGITS, weights[:, None])),
            (older.mean_squared_error(LOGITS[:, :2], ONE_HOT[:, :2], weights),
             tf.losses.mean_squared_error(ONE_HOT[:, :2], LOGITS[:, :2], weights[:, None])),
        ]  # fmt: skip
        for first, second in session.run(pairs):
            assert first == pytest.approx(second)
        count = len(older.get_losses())
        assert session.run(older.hinge_loss(LOGITS, ONE_HOT)).shape == (2, 3)
        assert len(older.get_losses()) == count


@pytest.mark.parametrize(
    ("path", "name", "public"),
    [
        ("contrib.layers.python.layers.utils", "smart_cond", "python.framework.smart_cond"),
        ("contrib.layers.python.layers.initializers", "xavier_initializer", "contrib.layers"),
        ("contrib.rnn.python.ops.core_rnn_cell", "BasicLSTMCell", "nn.rnn_cell"),
        ("contrib.framework.python.ops.arg_scope", "arg_scope", "contrib.framework"),
        ("contrib.training.python.training.hparam", "HParams", "contrib.training"),
        ("contrib.learn.python.learn", "ModeKeys", "contrib.learn"),
        ("core.framework.summary_pb2", "Summary", "compat.v1"),
        ("core.protobuf.config_pb2", "RunOptions", "compat.v1"),
        ("core.example.feature_pb2", "Feature", "train"),
        ("core.util.event_pb2", "Event", "compat.v1"),
        ("python.estimator.model_fn", "EstimatorSpec", "estimator"),
        ("python.ops.standard_ops", "reduce_sum", "compat.v1"),
    ],
)
def test_inner_paths_have_the_public_objects(path: str, name: str, public: str) -> None:
    found, own = (importlib.import_module(f"flowrt.{each}") for each in (path, public))
    assert getattr(found, name) is getattr(own, name)
