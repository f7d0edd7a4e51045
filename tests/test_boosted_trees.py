"""Boosted trees against TensorFlow 1.15's, loss by loss; their numbers against brute force."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import flowrt as tf
from flowrt.errors import InvalidArgumentError
from flowrt.graph.trees.quantiles import QuantileStream, boundaries
from tests.boosted_tree_cases import CASES, columns, data, run

RECORDED = json.loads((Path(__file__).parent / "golden" / "boosted_trees.json").read_text())
BY_DAY = {"regularized", "post-pruned"}


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in BY_DAY else pytest.mark.slow) for name in CASES]
)
def test_training_is_tensorflows(name: str) -> None:
    found, expected = run(tf, name), RECORDED[name]
    for key in ("losses", "predictions", "loss", "bias", "contributions"):
        if key in expected:
            np.testing.assert_allclose(found[key], expected[key], rtol=2e-6, atol=1e-6, err_msg=key)
    assert [name for name, _ in found["importances"]] == [name for name, _ in expected["importances"]]
    importances = [[value for _, value in each["importances"]] for each in (found, expected)]
    np.testing.assert_allclose(*importances, rtol=2e-6, atol=1e-6)
    assert len(found["losses"]) > 10


def in_memory(features: Any, labels: Any) -> Any:
    return lambda: ({key: tf.constant(value) for key, value in features.items()}, tf.constant(labels))


def test_training_goes_on_from_a_checkpoint(tmp_path: Path) -> None:
    features, labels, _ = data()

    def trained(folder: Path, *steps: int) -> Any:
        for count in steps:
            estimator = tf.estimator.BoostedTreesRegressor(
                columns(tf), 1, folder, n_trees=3, max_depth=2, train_in_memory=True
            )
            estimator.train(in_memory(features, labels), steps=count)
        return [estimator.get_variable_value(f"boosted_trees/{name}") for name in ("splits", "numbers")]

    whole, parts = trained(tmp_path / "whole", 6), trained(tmp_path / "parts", 1, 2, 3)
    for a, b in zip(whole, parts, strict=True):
        np.testing.assert_array_equal(a, b)
    assert len(whole[0]) > 10


@pytest.mark.parametrize("count", [90, 3000, 40_000])
def test_buckets_have_about_equal_weight(count: int) -> None:
    rng = np.random.default_rng(count)
    values, weights = rng.standard_normal(count).astype(np.float32), rng.integers(0, 3, count)
    stream = QuantileStream(0.05)
    for part in np.array_split(np.arange(count), 3):
        batch = QuantileStream(0.05, len(part) + 1)
        batch.add(values[part], weights[part].astype(np.float32))
        stream.add_summary(batch.summary())
    limits = boundaries(stream.summary(), 20)
    ranks = [weights[values <= limit].sum() / weights.sum() for limit in limits]
    assert len(limits) <= 22
    assert max(np.diff([0, *ranks])) < 0.16
    assert limits[-1] == values[weights > 0].max()


def test_bad_arguments_are_named() -> None:
    column = tf.feature_column.numeric_column("x")
    classifier = tf.estimator.BoostedTreesClassifier
    with pytest.raises(InvalidArgumentError, match="indicator_column"):
        classifier([tf.feature_column.categorical_column_with_identity("k", 3)], 1)
    with pytest.raises(InvalidArgumentError, match="a head of one logit; got 3"):
        classifier([column], 1, n_classes=3)
    with pytest.raises(InvalidArgumentError, match="pruning_mode: expected one of none, pre, post"):
        classifier([column], 1, pruning_mode="half")
    with pytest.raises(InvalidArgumentError, match="tree_complexity: expected more than 0"):
        classifier([column], 1, pruning_mode="pre")
    with pytest.raises(InvalidArgumentError, match="n_batches_per_layer=1"):
        classifier([column], 2, train_in_memory=True)
    with pytest.raises(InvalidArgumentError, match="center_bias=True"):
        next(classifier([column], 1).experimental_predict_with_explanations(lambda: None))
