"""Random forests learn what trees of TensorFlow 1.15 learn, stay in their limits, and are saved."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import flowrt as tf
from flowrt.contrib import tensor_forest
from flowrt.errors import InvalidArgumentError, UnimplementedError
from flowrt.graph.trees.forest import ForestRules, Growth, RandomTree, leaves_of, room_of

RNG = np.random.default_rng(3)
X = RNG.random((600, 4), np.float32)
CLASSES = (X[:, 0] > 0.5).astype(np.int32) + (X[:, 1] > 0.7)


def params(**options: Any) -> Any:
    given = {
        "num_classes": 3,
        "num_features": 4,
        "num_trees": 8,
        "split_after_samples": 20,
        "base_random_seed": 7,
    }
    return tensor_forest.ForestHParams(**{**given, **options}).fill()


def trained(labels: Any, steps: int, **options: Any) -> tuple[Any, Any, tf.Session]:
    forest = tensor_forest.RandomForestGraphs(params(**options))
    rows = tf.placeholder(tf.int32, [None])
    train = forest.training_graph(tf.gather(X, rows), tf.gather(labels, rows))
    session = tf.Session()
    session.run(tf.global_variables_initializer())
    for _ in range(steps):
        session.run(train, {rows: RNG.integers(0, len(X), 200)})
    return forest, rows, session


@pytest.mark.parametrize("bagging", [1.0, 0.6])
def test_a_forest_learns_classes(bagging: float) -> None:
    forest, _, session = trained(
        CLASSES, 30, bagging_fraction=bagging, feature_bagging_fraction=bagging if bagging == 1 else 0.75
    )
    probabilities, paths, variance = session.run(forest.inference_graph(X))
    np.testing.assert_allclose(probabilities.sum(1), 1, rtol=1e-5)
    assert paths.shape == (0, 8)
    assert np.mean(probabilities.argmax(1) == CLASSES) > 0.9
    assert (variance >= 0).all()
    importances = session.run(forest.feature_importances())
    np.testing.assert_allclose(importances.sum(), 1, rtol=1e-5)
    if bagging == 1:  # otherwise some trees do not know the features that matter
        assert importances[:2].sum() > importances[2:].sum()


def test_a_forest_learns_numbers() -> None:
    numbers = np.stack([X[:, 0] * 3, X[:, 1] - X[:, 2]], 1)
    forest, _, session = trained(numbers, 60, num_classes=2, regression=True)
    found, _, _ = session.run(forest.inference_graph(X))
    assert found.shape == (600, 2)
    error = np.square(found - numbers).mean(0) / numbers.var(0)
    assert (error < 0.3).all(), error


def test_no_leaf_is_split_in_a_tree_with_enough_nodes() -> None:
    forest, _, session = trained(CLASSES, 30, max_nodes=7)
    sizes = session.run(forest._sizes)
    assert sizes.max() == 7
    assert session.run(forest.training_loss(X, CLASSES)) == pytest.approx(-sizes.mean())


def test_a_restored_forest_says_the_same(tmp_path: Path) -> None:
    forest, _, session = trained(CLASSES, 5)
    probabilities, *_ = forest.inference_graph(X)
    path = tf.train.Saver().save(session, str(tmp_path / "forest"))
    before = session.run(probabilities)
    with tf.Session() as other:
        tf.train.Saver().restore(other, path)
        np.testing.assert_array_equal(other.run(probabilities), before)


def test_the_leaf_is_split_by_the_candidate_with_the_least_impurity() -> None:
    """Against all candidates counted one example at a time."""
    rules = ForestRules(2, False, 6, 40, 10, False)
    room = room_of(rules.max_nodes)
    tree = RandomTree(
        np.zeros((room, 3), np.int32), np.zeros(room, np.float32), np.zeros((room, 2), np.float32),
        np.ones((), np.int32),
    )  # fmt: skip
    growth = Growth(rules, np.arange(4), 0)
    labels, weights = (X[:, 2] > 0.4).astype(np.float32), np.ones(len(X), np.float32)
    for start in range(0, 48, 16):
        part = slice(start, start + 16)
        before = growth._feature[0].copy() if len(growth._feature) else None
        growth.step(tree, X[part], labels[part], weights[part])
    assert before is not None
    assert tree.size == 3

    def impurity(rows: Any) -> float:
        counts = np.bincount(labels[rows].astype(int), minlength=2)
        total = counts.sum()
        return float(total * (1 - ((counts + 1) ** 2).sum() / (total + 2) ** 2))

    counted = np.arange(6, 48)  # the first six are the candidates
    features, thresholds = growth._feature[0], growth._threshold[0]
    scores = []
    for feature, threshold in zip(features, thresholds, strict=True):
        left = X[counted, feature] <= threshold
        useless = left.all() or not left.any()
        scores.append(np.inf if useless else impurity(counted[left]) + impurity(counted[~left]))
    best = int(np.argmin(scores))
    assert tree.splits[0].tolist() == [features[best], 1, 2]
    assert tree.thresholds[0] == thresholds[best]
    reached = leaves_of(tree, X[counted])
    for leaf in (1, 2):
        expected = np.bincount(labels[counted[reached == leaf]].astype(int), minlength=2)
        np.testing.assert_array_equal(tree.values[leaf], expected)


def test_bad_arguments_are_named() -> None:
    with pytest.raises(InvalidArgumentError, match="num_features from 1 on"):
        tensor_forest.ForestHParams(num_classes=2).fill()
    with pytest.raises(UnimplementedError, match="split_pruning_name: expected 'none'; got 'half'"):
        params(split_pruning_name="half")
    with pytest.raises(InvalidArgumentError, match="expected labels from 0 to 2; got 1 to 5"):
        trained(np.where(CLASSES == 0, 5, 1), 1)
    with pytest.raises(InvalidArgumentError, match=r"expected 200 labels and.*shape \(200, 3\)"):
        trained(np.eye(3)[CLASSES], 1)


def test_a_walk_does_not_read_the_features_of_the_next_example() -> None:
    splits = np.array([[1, 1, 2], [0, 1, 1], [0, 2, 2]], np.int32)
    tree = RandomTree(splits, np.zeros(3, np.float32), np.zeros((3, 1), np.float32), np.array(3, np.int32))
    with pytest.raises(InvalidArgumentError, match="expected at least the 2 features of the trees; got 1"):
        leaves_of(tree, np.zeros((4, 1), np.float32))


def test_an_estimator_is_fitted_evaluated_and_asked(tmp_path: Path) -> None:
    estimator = tensor_forest.TensorForestEstimator(params(), model_dir=tmp_path)
    estimator.fit(X, CLASSES.astype(np.int64), steps=20, batch_size=200)
    assert estimator.evaluate(X, CLASSES.astype(np.int64), steps=1)["accuracy"] > 0.85
    found = next(iter(estimator.predict(X[:5])))
    assert {"classes", "probabilities", tensor_forest.VARIANCE_PREDICTION_KEY} <= found.keys()


@pytest.mark.slow
def test_an_estimator_learns_numbers() -> None:
    estimator = tensor_forest.TensorForestEstimator(params(num_classes=1, regression=True))
    estimator.fit(X, X[:, 0] * 2, steps=40, batch_size=200)
    assert estimator.evaluate(X, X[:, 0] * 2, steps=1)["loss"] < 0.1
