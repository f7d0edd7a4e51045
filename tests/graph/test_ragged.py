"""Ragged tensors against Python's lists. `tests.twins.ragged` compares them with TensorFlow."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import flowrt as tf

ROWS = [[3.0, 1.0], [], [4.0, 1.0, 5.0]]


@pytest.fixture(autouse=True)
def session() -> Iterator[tf.Session]:
    with tf.Graph().as_default(), tf.Session() as session:
        yield session


def test_feeds_and_fetches_are_ragged_values(session: tf.Session) -> None:
    splits = tf.placeholder(tf.int64, [None])
    rows = tf.RaggedTensor(tf.placeholder(tf.float32, [None]), splits)
    value = tf.ragged.constant_value(ROWS, tf.float32)
    fetched = session.run({"twice": rows * 2, "length": rows.row_lengths()}, {rows: value})
    assert isinstance(fetched["twice"], tf.ragged.RaggedTensorValue)
    assert fetched["twice"].to_list() == [[6, 2], [], [8, 2, 10]]
    assert fetched["length"].tolist() == [2, 0, 3]


def test_nested_rows_come_back_as_lists(session: tf.Session) -> None:
    lists = [[[1, 2], []], [], [[3]]]
    rows = tf.ragged.constant(lists)
    assert rows.ragged_rank == 2
    assert session.run(rows).to_list() == lists
    assert session.run(rows[0]).to_list() == [[1, 2], []]
    assert rows.to_tensor().eval().tolist() == [[[1, 2], [0, 0]], [[0, 0], [0, 0]], [[3, 0], [0, 0]]]


@pytest.mark.parametrize("reduction", ["sum", "mean", "max", "min", "prod"])
def test_reductions_along_rows_are_numpys(reduction: str) -> None:
    rows = tf.ragged.constant([row for row in ROWS if row])
    found = getattr(tf, f"reduce_{reduction}")(rows, 1).eval()
    expected = [getattr(np, reduction)(row) for row in ROWS if row]
    np.testing.assert_allclose(found, expected, rtol=1e-6)


def test_reductions_across_rows_skip_what_is_not_there() -> None:
    assert tf.reduce_sum(tf.ragged.constant(ROWS), 0).eval().tolist() == [7, 2, 5]
    assert tf.reduce_mean(tf.ragged.constant(ROWS), 0).eval().tolist() == [3.5, 1, 5]


def test_gradients_reach_the_elements() -> None:
    elements = tf.constant([3.0, 1.0, 4.0, 1.0, 5.0])
    rows = tf.RaggedTensor.from_row_lengths(elements, [2, 0, 3])
    loss = tf.reduce_sum(rows.to_tensor() * [[1.0, 2, 3], [4, 5, 6], [7, 8, 9]])
    assert tf.gradients(loss, elements)[0].eval().tolist() == [1, 2, 7, 8, 9]


CALLS: dict[str, tuple[Callable[..., Any], list[Any]]] = {
    "concat": (lambda r: tf.concat([r, r], 1), [[3, 1, 3, 1], [], [4, 1, 5, 4, 1, 5]]),
    "gather": (lambda r: tf.gather(r, [2, 1]), [[4, 1, 5], []]),
    "slice": (lambda r: r[:, :-1], [[3], [], [4, 1]]),
    "mask": (lambda r: tf.ragged.boolean_mask(r, r > 1), [[3], [], [4, 5]]),
    "where": (lambda r: tf.where(r > 1, r, -r), [[3, -1], [], [4, -1, 5]]),
    "expand_dims": (lambda r: tf.expand_dims(r, 1), [[[3, 1]], [[]], [[4, 1, 5]]]),
    "clip": (lambda r: tf.clip_by_value(r, 2.0, 4.0), [[3, 2], [], [4, 2, 4]]),
    "rows": (lambda r: r + [[1.0], [2.0], [3.0]], [[4, 2], [], [7, 4, 8]]),
}


@pytest.mark.parametrize("name", CALLS)
def test_functions_take_ragged_tensors(session: tf.Session, name: str) -> None:
    function, expected = CALLS[name]
    assert session.run(function(tf.ragged.constant(ROWS))).to_list() == expected


def test_rows_that_do_not_fit_are_an_error_of_the_step(session: tf.Session) -> None:
    rows = tf.RaggedTensor.from_row_lengths([1, 2, 3], [2, 2])
    with pytest.raises(tf.errors.InvalidArgumentError, match="row_splits: expected the number of values"):
        session.run(rows)
    with pytest.raises(tf.errors.InvalidArgumentError, match="the same rows"):
        session.run(tf.ragged.constant([[1], [2]]) + tf.ragged.constant([[1, 2], []]))


def test_a_function_without_a_ragged_form_says_so() -> None:
    with pytest.raises(tf.errors.UnimplementedError, match="MatrixInverse: expected tensors; got Ragged"):
        tf.matrix_inverse(tf.ragged.constant(ROWS))


def test_ragged_tensors_have_no_python_values() -> None:
    rows = tf.ragged.constant([[1, 2], [3]])
    with pytest.raises(TypeError, match=r"test_ragged\.py.*cannot be iterated"):
        list(rows)
    with pytest.raises(TypeError, match="has no truth value"):
        bool(rows)


def test_one_ragged_tensor_is_joined_with_none(session: tf.Session) -> None:
    rows = tf.ragged.constant([[1, 2], [3]])
    assert session.run(tf.concat(rows, 0)).to_list() == [[1, 2], [3]]
    assert session.run(tf.ragged.stack(rows)).to_list() == [[[1, 2], [3]]]


def test_a_mask_along_an_inner_axis_is_refused() -> None:
    with pytest.raises(tf.errors.UnimplementedError, match="expected axis 0; got 1"):
        tf.boolean_mask(tf.ragged.constant(ROWS), [True, False], axis=1)


def test_partitions_are_stacked_and_rows_are_numbered(session: tf.Session) -> None:
    stacked = tf.ragged.stack_dynamic_partitions(tf.ragged.constant(ROWS), [1, 0, 1], 3)
    assert {splits.dtype.name for splits in stacked.nested_row_splits} == {"int64"}
    assert session.run(stacked).to_list() == [[[]], [[3, 1], [4, 1, 5]], []]
    by_value = tf.ragged.stack_dynamic_partitions([[1, 2], [3, 4]], [[1, 0], [2, 0]], 3)
    assert session.run(by_value).to_list() == [[2, 4], [1], [3]]
    with pytest.raises(tf.errors.InvalidArgumentError, match="expected numbers below num_partitions"):
        session.run(tf.ragged.stack_dynamic_partitions([1, 2], [0, tf.placeholder_with_default(7, [])], 3))
    ids = tf.ragged.row_splits_to_segment_ids([0, 2, 2, 3], out_type=tf.int32)
    assert (session.run(ids).tolist(), ids.dtype) == ([0, 0, 2], tf.int32)
    assert session.run(tf.ragged.segment_ids_to_row_splits(ids, 4)).tolist() == [0, 2, 2, 3, 3]


def test_a_ragged_placeholder_is_fed_with_rows(session: tf.Session) -> None:
    rows = tf.ragged.placeholder(tf.float32, 2, [1])
    value = tf.ragged.constant_value([[[[1.0], [2.0]], []], [[[3.0]]]], tf.float32, 2, (1,))
    assert rows.shape.as_list() == [None, None, None, 1]
    assert session.run(rows * 2, {rows: value}).to_list() == [[[[2], [4]], []], [[[6]]]]


@pytest.mark.parametrize("kind", ["int32", "float32"])
def test_a_range_by_steps_of_zero_is_an_error(session: tf.Session, kind: str) -> None:
    found = tf.ragged.range(tf.constant([1, 2], kind), tf.constant([3, 4], kind), tf.constant([1, 0], kind))
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"ragged\.range: expected deltas other than 0"):
        session.run(found.flat_values)


@pytest.mark.parametrize(("partition", "text"), [(-1, "expected none below 0"), (5, "below num_partitions")])
def test_partitions_that_are_no_rows_are_an_error(session: tf.Session, partition: int, text: str) -> None:
    found = tf.ragged.stack_dynamic_partitions([1, 2, 3], [0, partition, 1], 2)
    with pytest.raises(tf.errors.InvalidArgumentError, match=text):
        session.run(found.flat_values)
