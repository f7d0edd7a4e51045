"""k-means beside its formulas in NumPy."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import flowrt as tf
from flowrt.contrib.factorization import KMeans, KMeansClustering
from flowrt.errors import InvalidArgumentError

POINTS = (np.random.default_rng(0).normal(size=(60, 3)) + np.repeat(np.eye(3) * 5, 20, 0)).astype(np.float32)
FIRST = POINTS[[0, 1, 30]]


def normalized(x: Any, cosine: bool) -> Any:
    return x / np.linalg.norm(x, axis=1, keepdims=True) if cosine else x


def trained(batches: Any, **options: Any) -> tuple[list[Any], list[Any]]:
    """The distances to the nearest centers before each step, and the centers after it."""
    points = tf.placeholder(tf.float32, [None, 3])
    _, _, nearest, is_started, start, step = KMeans(points, 3, **options).training_graph()
    centers = tf.global_variables("clusters")[-1]
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        session.run(start, {points: POINTS})
        assert session.run(is_started)
        found = [(session.run(nearest[0], {points: b}), session.run(step, {points: b})) for b in batches]
        return [distances for distances, _ in found], session.run(centers)


@pytest.mark.parametrize("cosine", [False, True], ids=["euclidean", "cosine"])
@pytest.mark.parametrize("kind", ["whole", "small", "late"])
def test_steps_are_those_of_the_formulas(kind: str, cosine: bool) -> None:
    batches = [POINTS] * 4 if kind == "whole" else [POINTS[i : i + 20] for i in (0, 10, 20, 30)]
    distances, centers = trained(
        batches,
        initial_clusters=FIRST,
        distance_metric="cosine" if cosine else "squared_euclidean",
        use_mini_batch=kind != "whole",
        mini_batch_steps_per_iteration=3 if kind == "late" else 1,
    )
    seen = moved = normalized(FIRST, cosine)
    counts = np.zeros(3) if kind == "late" else np.ones(3)
    for i, batch in enumerate(batches):
        x, against = normalized(batch, cosine), normalized(seen, cosine)
        every = ((x[:, None] - against) ** 2).sum(-1)
        np.testing.assert_allclose(distances[i], every.min(1) * (0.5 if cosine else 1), rtol=1e-4, atol=1e-5)
        mine = every.argmin(1)[:, None] == np.arange(3)
        if kind == "late" and i == 3:  # after three steps
            seen, counts = normalized(moved, cosine), np.zeros(3)
        new = mine.sum(0)
        if kind == "whole":
            seen = moved = normalized(mine.T @ x / (new + 1e-6)[:, None], cosine)
        else:
            counts += new
            moved = moved + (mine.T @ x - new[:, None] * moved) / np.maximum(counts, 1)[:, None]
            seen = moved if kind == "small" else seen
    np.testing.assert_allclose(centers, moved, rtol=1e-4, atol=1e-5)


def test_the_distance_of_a_point_to_itself_has_a_root() -> None:
    points = POINTS[:20] + 5
    _, _, nearest, _, start, _ = KMeans(points, 20, initial_clusters=points).training_graph()
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        session.run(start)
        assert session.run(nearest[0]).min() >= 0  # rounding takes some below 0


@pytest.mark.parametrize("choice", ["random", "kmeans_plus_plus"])
def test_first_centers_are_points_and_those_far_apart_are_likelier(choice: str) -> None:
    points = np.repeat(np.array([[0, 0, 1], [90, 0, 0], [0, 90, 0]], np.float32), 20, 0)
    _, _, _, is_started, start, _ = KMeans(tf.constant(points), 3, choice, random_seed=3).training_graph()
    centers = tf.global_variables("clusters")[0]
    found = []
    with tf.Session() as session:
        for _ in range(5):
            session.run(tf.global_variables_initializer())
            session.run(start)
            assert session.run(is_started)
            found.append(len(np.unique(session.run(centers), axis=0)))
            assert {tuple(row) for row in session.run(centers)} <= {tuple(row) for row in points}
    if choice == "kmeans_plus_plus":
        assert found == [3] * 5


def test_centers_are_chosen_from_several_batches_if_one_has_too_few_points() -> None:
    points = tf.placeholder(tf.float32, [None, 3])
    _, _, _, is_started, start, _ = KMeans(points, 5).training_graph()
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        session.run(start, {points: POINTS[:3]})
        assert not session.run(is_started)
        session.run(start, {points: POINTS[3:5]})
        assert session.run(is_started)
        np.testing.assert_array_equal(session.run(tf.global_variables("clusters")[0]), POINTS[:5])


def test_the_estimator_finds_groups_and_stops_when_it_is_steady(tmp_path: Path) -> None:
    def input_fn() -> Any:
        columns = {"b": tf.constant(POINTS[:, 1:]), "a": tf.constant(POINTS[:, :1])}
        return {name: tf.train.limit_epochs(column, num_epochs=1) for name, column in columns.items()}

    k_means = KMeansClustering(
        3, tmp_path, POINTS[[0, 20, 40]], use_mini_batch=False, relative_tolerance=1e-6
    )
    k_means.train(lambda: tf.constant(POINTS), steps=50)
    assert k_means.get_variable_value("global_step") < 10
    means = POINTS.reshape(3, 20, 3).mean(1)
    np.testing.assert_allclose(k_means.cluster_centers(), means, rtol=1e-5)
    assert list(k_means.predict_cluster_index(input_fn)) == [0] * 20 + [1] * 20 + [2] * 20
    distances = np.array(list(k_means.transform(input_fn)))
    np.testing.assert_allclose(distances, ((POINTS[:, None] - means) ** 2).sum(-1), rtol=1e-4)
    assert k_means.score(input_fn) == pytest.approx(distances.min(1).sum(), rel=1e-5)


def test_choices_that_there_are_not_are_named() -> None:
    with pytest.raises(InvalidArgumentError, match=r"initial_clusters: expected one of random, .*'kmc2'"):
        KMeans(tf.constant(POINTS), 3, "kmc2")
    with pytest.raises(InvalidArgumentError, match=r"KMeansClustering: distance_metric: .* got 'manhattan'"):
        KMeansClustering(3, distance_metric="manhattan")
