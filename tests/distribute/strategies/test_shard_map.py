"""`shard_map`: what a function of one coordinate computes, on every coordinate; and its gradients."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import flowrt as tf
from flowrt.errors import FailedPreconditionError, InvalidArgumentError
from flowrt.viz import explain_layouts

D = tf.distribute
MESH = D.Mesh([("dp", 2), ("tp", 3)])
CONFIG = tf.ConfigProto(device_count={"CPU": 6})
X = np.random.default_rng(0).standard_normal((4, 6))


@pytest.fixture(autouse=True)
def graph() -> Iterator[None]:
    with tf.Graph().as_default():
        yield


def run(fetches: Any, feed: Any = None) -> Any:
    with tf.Session(config=CONFIG) as session:
        return session.run(fetches, feed)


def parts(x: Any) -> dict[tuple[int, int], Any]:
    """The blocks of ``x`` with rows by dp and columns by tp."""
    rows = [np.split(block, 3, axis=1) for block in np.split(x, 2)]
    return {(i, j): rows[i][j] for i in range(2) for j in range(3)}


def joined(blocks: dict[tuple[int, int], Any]) -> Any:
    return np.block([[blocks[i, j] for j in range(3)] for i in range(2)])


def others(at: tuple[int, int]) -> list[tuple[int, int]]:
    """The coordinates along tp."""
    return [(at[0], j) for j in range(3)]


RING = [(0, 1), (1, 2), (2, 0)]
CASES: dict[str, tuple[Any, Any]] = {
    "psum": (lambda x: D.psum(x, "tp"), lambda p, at: sum(p[o] for o in others(at))),
    "pmean": (lambda x: D.pmean(x, "tp"), lambda p, at: sum(p[o] for o in others(at)) / 3),
    "pmax": (lambda x: D.pmax(x, "tp"), lambda p, at: np.max([p[o] for o in others(at)], 0)),
    "pmin": (lambda x: D.pmin(x, "tp"), lambda p, at: np.min([p[o] for o in others(at)], 0)),
    "of both axes": (lambda x: D.psum(D.psum(x, "tp"), "dp"), lambda p, at: sum(p.values())),
    "ring": (lambda x: D.ppermute(x, "tp", RING), lambda p, at: p[at[0], (at[1] - 1) % 3]),
    "shift": (
        lambda x: D.ppermute(x, "tp", [(0, 1), (1, 2)]),
        lambda p, at: p[at[0], at[1] - 1] if at[1] else 0 * p[at],
    ),
    "all_gather 0": (
        lambda x: D.all_gather(x, "tp"), lambda p, at: np.concatenate([p[o] for o in others(at)])
    ),
    "all_gather 1": (
        lambda x: D.all_gather(x, "tp", dim=1), lambda p, at: np.concatenate([p[o] for o in others(at)], 1)
    ),
    "all_gather of rows": (
        lambda x: D.all_gather(x, "dp", dim=1),
        lambda p, at: np.concatenate([p[i, at[1]] for i in range(2)], 1),
    ),
    "psum_scatter": (
        lambda x: D.psum_scatter(x, "dp", dim=1),
        lambda p, at: (p[0, at[1]] + p[1, at[1]])[:, at[0] : at[0] + 1],
    ),
    "axis_index": (
        lambda x: x * tf.cast(10 * D.axis_index("dp") + D.axis_index("tp"), tf.float64),
        lambda p, at: p[at] * (10 * at[0] + at[1]),
    ),
    "none": (tf.tanh, lambda p, at: np.tanh(p[at])),
    "of a constant": (lambda x: x + D.psum(tf.constant(1.0, tf.float64), "tp"), lambda p, at: p[at] + 3),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_each_coordinate_computes_the_function_of_its_part(case: str) -> None:
    fn, expected = CASES[case]
    layout = ["dp", "tp"]
    y = D.shard_map(fn, [layout], layout, MESH)(tf.constant(X))
    p = parts(X)
    np.testing.assert_allclose(run(y), joined({at: expected(p, at) for at in p}), 1e-12)


@pytest.mark.parametrize("case", CASES)
def test_gradients_are_those_of_all_coordinates(case: str) -> None:
    """Against differences of the sum of all results, with weights."""
    fn, expected = CASES[case]
    layout = ["dp", "tp"]
    x = tf.placeholder(tf.float64, X.shape)
    y = D.shard_map(fn, [layout], layout, MESH)(x)
    weights = np.random.default_rng(1).standard_normal(y.shape.as_list())
    (found,) = tf.gradients(tf.reduce_sum(y * weights), [x])

    def total(at: Any) -> float:
        p = parts(at)
        return float((joined({c: expected(p, c) for c in p}) * weights).sum())

    steps = 1e-6 * np.eye(X.size).reshape(X.size, *X.shape)
    wanted = [(total(X + step) - total(X - step)) / 2e-6 for step in steps]
    np.testing.assert_allclose(run(found, {x: X}).ravel(), wanted, 1e-6, 1e-7)


def test_a_product_of_parts_is_the_product_and_nothing_is_gathered() -> None:
    w0 = np.random.default_rng(2).standard_normal((6, 5))
    x, w = tf.constant(X), tf.placeholder(tf.float64, [6, 5])
    product = D.shard_map(
        lambda x, w: D.psum(tf.matmul(x, w), "tp"), [["dp", "tp"], ["tp", None]], ["dp", None], MESH
    )
    y = product(x, w)
    (gradient,) = tf.gradients(tf.reduce_sum(y * y), [w])
    with tf.Session(config=CONFIG) as session:
        found, slope = session.run([y, gradient], {w: w0})
        np.testing.assert_allclose(found, X @ w0, 1e-12)
        np.testing.assert_allclose(slope, 2 * X.T @ (X @ w0), 1e-12)
        explained = explain_layouts(session, [y, gradient], {w: w0})
        assert "AllGather" not in explained.totals()


def test_several_arguments_and_results_of_the_strategy_in_scope() -> None:
    with D.LayoutStrategy(MESH).scope():
        both = D.shard_map(
            lambda x, b: (x + b, D.psum(tf.reduce_sum(x), "tp")),
            [["dp", "tp"], ["tp"]],
            [["dp", "tp"], ["dp"]],
        )
    with pytest.raises(InvalidArgumentError, match="at most 0 dimensions"):
        both(tf.constant(X), tf.constant(X[0]))
    with D.LayoutStrategy(MESH).scope():
        both = D.shard_map(
            lambda x, b: (x + b, tf.reshape(D.psum(tf.reduce_sum(x), "tp"), [1])),
            [["dp", "tp"], ["tp"]], [["dp", "tp"], ["dp"]],
        )  # fmt: skip
    sums, totals = run(both(tf.constant(X), tf.constant(X[0])))
    np.testing.assert_allclose(sums, X + X[0], 1e-12)
    np.testing.assert_allclose(totals, [X[:2].sum(), X[2:].sum()], 1e-12)


# --- mistakes

ROWS = ["dp", "tp"]


def sine(x: Any) -> Any:
    """A Python call, which has no form for all coordinates."""
    return tf.ensure_shape(tf.py_func(np.sin, [x], tf.float64), x.shape)


@pytest.mark.parametrize(
    ("fn", "before", "after", "message"),
    [
        (tf.tanh, ROWS, ["dp", None], r"a layout with 'tp', on which it differs; got \['dp', None\]"),
        (lambda x: D.psum(x, "tpp"), ROWS, ROWS, r"axis of the mesh \[dp=2, tp=3\]; got 'tpp'. Nearest: tp"),
        (
            tf.tanh,
            ["tp", None],
            ROWS,
            "argument 0: expected a dimension 0 that the 3 parts of tp divide; got 4",
        ),
        (lambda x: [x, x], ROWS, [ROWS], "each of 2 results; got 1"),
        (lambda x: D.psum_scatter(x, "tp"), ROWS, ROWS, "dimension 0 that 3 coordinates divide; got 2"),
        (lambda x: D.ppermute(x, "tp", [(0, 1), (2, 1)]), ROWS, ROWS, "each target once"),
        (sine, ROWS, ROWS, "all coordinates at once; got PyFunc"),
        (lambda x: tf.random.uniform([2]), ROWS, [None], "'dp', 'tp', on which it differs"),
    ],
)
def test_a_wrong_call_is_one_error(fn: Any, before: Any, after: Any, message: str) -> None:
    with pytest.raises(InvalidArgumentError, match=message):
        D.shard_map(fn, [before], after, MESH)(tf.constant(X))


def test_a_captured_draw_is_one_value() -> None:
    noise = tf.random.uniform([2], seed=1, dtype=tf.float64)
    with pytest.raises(InvalidArgumentError, match="expected 1 arguments; got 2"):
        D.shard_map(lambda x: noise, [ROWS], [None], MESH)(tf.constant(X), tf.constant(X))
    y = D.shard_map(lambda x: noise, [ROWS], [None], MESH)(tf.constant(X))
    drawn, mapped = run([noise, y])
    np.testing.assert_array_equal(drawn, mapped)


def test_a_collective_by_axis_outside_of_a_function_is_an_error() -> None:
    with pytest.raises(FailedPreconditionError, match="psum: expected a call in a function of shard_map"):
        D.psum(tf.constant(X), "tp")
    with pytest.raises(FailedPreconditionError, match="expected a mesh, or the scope"):
        D.shard_map(lambda x: x, [ROWS], ROWS)
