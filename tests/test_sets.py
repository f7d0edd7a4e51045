"""Sets in rows beside Python's own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import flowrt as tf
from flowrt.errors import DTypeError, InvalidArgumentError

OPERATIONS: dict[str, tuple[Callable[..., Any], Callable[[set[Any], set[Any]], set[Any]]]] = {
    "intersection": (tf.sets.set_intersection, set.intersection),
    "union": (tf.sets.union, set.union),
    "difference": (tf.sets.set_difference, set.difference),
    "other_difference": (lambda a, b: tf.sets.difference(a, b, aminusb=False), lambda a, b: b - a),
}
Rows = dict[tuple[int, int], list[Any]]


def rows(rng: np.random.Generator, width: int, is_sparse: bool, dtype: Any) -> tuple[Any, Rows]:
    """A tensor of [2, 3, width], and the values of each row."""
    values = np.array([b"%d" % i for i in range(6)], object) if dtype is bytes else np.arange(6, dtype=dtype)
    dense = values[rng.integers(0, 6, (2, 3, width))]
    kept = rng.random(dense.shape) < (0.6 if is_sparse else 2)
    places = {(i, j): dense[i, j][kept[i, j]].tolist() for i in range(2) for j in range(3)}
    given = tf.SparseTensor(np.argwhere(kept), dense[kept], dense.shape) if is_sparse else tf.constant(dense)
    return given, places


@pytest.mark.parametrize("dtype", [np.int64, np.uint8, bytes], ids=["int64", "uint8", "string"])
@pytest.mark.parametrize("name", OPERATIONS)
def test_operations_are_those_of_python(name: str, dtype: Any) -> None:
    rng = np.random.default_rng(1)
    operate, of_sets = OPERATIONS[name]
    for sparse in ((True, True), (False, True), (True, False), (False, False)):
        (a, ours), (b, theirs) = rows(rng, 4, sparse[0], dtype), rows(rng, 5, sparse[1], dtype)
        found = tf.Session().run(operate(a, b))
        expected = {place: sorted(of_sets(set(row), set(theirs[place]))) for place, row in ours.items()}
        places = [(*place, k) for place, row in expected.items() for k in range(len(row))]
        assert found.indices.tolist() == list(map(list, places))
        assert found.values.tolist() == [value for row in expected.values() for value in row]
        assert found.dense_shape.tolist() == [2, 3, max(map(len, expected.values()))]


def test_sizes_count_different_values() -> None:
    given, values = rows(np.random.default_rng(2), 5, True, bytes)
    found = tf.Session().run(tf.sets.size(given))
    assert found.dtype == np.int32
    assert found.tolist() == [[len(set(values[i, j])) for j in range(3)] for i in range(2)]
    empty = tf.SparseTensor(np.zeros((0, 2), np.int64), np.zeros(0, np.int64), [2, 0])
    assert tf.contrib.metrics.set_size(empty).eval(session=tf.Session()).tolist() == [0, 0]


def test_rows_may_be_of_any_width() -> None:
    """Such as places that are hashes: 4 rows of 2**62 are more places than an int64 counts."""
    given = tf.SparseTensor([[0, 5], [0, 2**61], [3, 0]], [7, 1, 2], [4, 2**62])
    found, sizes = tf.Session().run([tf.sets.union(given, given), tf.sets.size(given)])
    assert found.indices.tolist() == [[0, 0], [0, 1], [3, 0]]
    assert found.values.tolist() == [1, 7, 2]
    assert sizes.tolist() == [2, 0, 0, 1]


def test_mistakes_are_typed() -> None:
    row = tf.SparseTensor([[0, 1], [0, 0]], [1, 2], [1, 2])
    session = tf.Session()
    with pytest.raises(InvalidArgumentError, match="set1_indices: expected places in ascending order"):
        session.run(tf.sets.union(row, row))
    session.run(tf.sets.union(row, row, validate_indices=False))
    with pytest.raises(
        InvalidArgumentError, match=r"differ in the last size only; got \[1, 2\] and \[2, 1\]"
    ):
        session.run(tf.sets.union([[1, 2]], [[1], [2]]))
    with pytest.raises(DTypeError, match="set_size: expected a SparseTensor"):
        tf.sets.set_size([[1]])
    with pytest.raises(DTypeError, match="float32"):
        tf.sets.union([[1.0]], [[2.0]])


def test_rows_beyond_the_numbers_of_int64_are_refused() -> None:
    places, values = np.array([[0, 0], [2**62, 0]]), np.array([1, 2])
    many = tf.SparseTensor(places, values, [2**62 + 1, 2])
    more = tf.SparseTensor(np.insert(places, 0, 0, 1), values, [4, 2**62 + 1, 2])
    with tf.Session() as session:
        with pytest.raises(InvalidArgumentError, match=f"below 2.*63; got row {2**62}, 2 values"):
            session.run(tf.sets.union(many, many))
        with pytest.raises(InvalidArgumentError, match=r"set1_shape: expected fewer than 2\*\*63 rows"):
            session.run(tf.sets.union(more, more))
