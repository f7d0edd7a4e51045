"""Sparse tensors: fed, fetched, refused; `tests/twins` compares their functions with TensorFlow's."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import flowrt as tf
from flowrt.errors import DTypeError, InvalidArgumentError

PLACES, VALUES = [[0, 1], [2, 0]], [5.0, 7.0]
DENSE = [[0, 5], [0, 0], [7, 0]]


@pytest.fixture(autouse=True)
def session() -> Any:
    with tf.Graph().as_default(), tf.Session() as session:
        yield session


def test_a_sparse_tensor_is_fed_and_fetched_with_its_parts(session: tf.Session) -> None:
    fed = tf.sparse_placeholder(tf.float32, name="x")
    assert (fed.indices.name, fed.values.name, fed.dense_shape.name) == (
        "x/indices:0",
        "x/values:0",
        "x/shape:0",
    )
    for value in (tf.SparseTensorValue(PLACES, VALUES, [3, 2]), (PLACES, VALUES, [3, 2])):
        found, dense = session.run([{"x": fed}, tf.sparse_tensor_to_dense(fed)], {fed: value})
        assert isinstance(found["x"], tf.SparseTensorValue)
        np.testing.assert_array_equal(found["x"].indices, PLACES)
        np.testing.assert_array_equal(dense, DENSE)
        assert fed.eval({fed: value}).values.tolist() == VALUES
    with pytest.raises(InvalidArgumentError, match="expected 3 values"):
        session.run(fed, {fed: (PLACES, VALUES)})


def test_the_shape_is_known_as_far_as_it_can_be() -> None:
    assert tf.SparseTensor(PLACES, VALUES, [3, 2]).shape.as_list() == [3, 2]
    assert tf.sparse_placeholder(tf.float32, [3, 2]).get_shape().as_list() == [3, 2]
    assert tf.sparse_placeholder(tf.float32, [None, 2]).shape.as_list() == [None, None]
    assert tf.sparse_placeholder(tf.float32).shape.ndims is None


@pytest.mark.parametrize(
    "parts",
    [(PLACES, [1.0], [3, 2]), (PLACES, VALUES, [3]), ([0, 1], VALUES, [3]), (PLACES, [VALUES], [3, 2])],
)
def test_parts_that_do_not_fit_are_refused(parts: Any) -> None:
    with pytest.raises(InvalidArgumentError, match=r"expected indices \[n, rank\], values \[n\]"):
        tf.SparseTensor(*parts)


def test_places_outside_and_out_of_order_are_found_when_run(session: tf.Session) -> None:
    outside = tf.sparse_tensor_to_dense(tf.SparseTensor([[3, 0]], [1.0], [3, 2]))
    with pytest.raises(InvalidArgumentError, match="sparse_indices"):
        session.run(outside)
    turned = tf.SparseTensor(PLACES[::-1], VALUES[::-1], [3, 2])
    with pytest.raises(InvalidArgumentError, match="ascending order"):
        session.run(tf.sparse_tensor_to_dense(turned))
    for dense in (
        tf.sparse_tensor_to_dense(turned, validate_indices=False),
        tf.sparse_tensor_to_dense(tf.sparse_reorder(turned)),
    ):
        np.testing.assert_array_equal(session.run(dense), DENSE)


def test_a_product_trains_its_dense_factor(session: tf.Session) -> None:
    weights = tf.Variable(np.ones((2, 3), np.float32))
    product = tf.sparse_tensor_dense_matmul(tf.SparseTensor(PLACES, VALUES, [3, 2]), weights)
    train = tf.train.GradientDescentOptimizer(0.1).minimize(tf.reduce_sum(product))
    session.run(tf.global_variables_initializer())
    session.run(train)
    np.testing.assert_allclose(session.run(weights), [[0.3] * 3, [0.5] * 3], rtol=1e-5)


def test_a_dense_tensor_is_refused_where_a_sparse_one_is_expected() -> None:
    with pytest.raises(DTypeError, match="sparse_reorder: expected a SparseTensor"):
        tf.sparse_reorder([1.0])
    with pytest.raises(DTypeError, match="SparseTensor of int32; got float32"):
        tf.convert_to_tensor_or_sparse_tensor(tf.SparseTensor(PLACES, VALUES, [3, 2]), tf.int32)
    assert isinstance(tf.convert_to_tensor_or_sparse_tensor([1.0]), tf.Tensor)


def test_products_with_dense_tensors_are_of_the_values() -> None:
    sparse = tf.SparseTensor([[0, 1], [2, 0]], [2.0, 3.0], [3, 2])
    with tf.Session() as session:
        assert session.run((sparse * 2.0).values).tolist() == [4.0, 6.0]
        assert session.run(sparse * [[1.0], [2.0], [5.0]]).values.tolist() == [2.0, 15.0]
        assert session.run((sparse / tf.constant([4.0, 8.0])).values).tolist() == [0.25, 0.75]


def test_tensors_of_other_sizes_are_neither_added_nor_joined(session: tf.Session) -> None:
    a, b = tf.sparse_placeholder(tf.float32), tf.SparseTensor(PLACES, VALUES, [3, 2])
    fed = {a: ([[0, 1]], [1.0], [3, 4])}
    with pytest.raises(InvalidArgumentError, match="sizes"):
        session.run(tf.sparse_add(a, b), fed)
    with pytest.raises(InvalidArgumentError, match="sizes"):
        session.run(tf.sparse_concat(0, [a, b]), fed)
    with pytest.raises(InvalidArgumentError, match="the axis 2; got rank 2"):
        tf.sparse_concat(2, [b, b])


def test_a_shape_may_be_a_tensor_and_a_mask_of_unknown_rank() -> None:
    fed = tf.sparse_placeholder(tf.float32, tf.constant([3, 2], tf.int64))
    assert fed.shape.as_list() == [3, 2]
    mask = tf.placeholder(tf.bool)
    with tf.Session() as session:
        kept = session.run(
            tf.sparse_retain(fed, mask), {fed: ([[0, 1], [2, 0]], [2.0, 3.0], [3, 2]), mask: [True, False]}
        )
    assert kept.values.tolist() == [2.0]


def test_strings_that_are_not_empty_make_a_sparse_tensor(session: tf.Session) -> None:
    found = session.run(tf.sparse.from_dense([["", "a"], ["b", ""]]))
    assert (found.indices.tolist(), found.values.tolist()) == ([[0, 1], [1, 0]], [b"a", b"b"])


def test_sizes_and_segments_that_do_not_fit_are_found_when_run(session: tf.Session) -> None:
    sparse = tf.SparseTensor(PLACES, VALUES, [3, 2])
    for wrong in ([2, 2], [3, 2, 1]):
        with pytest.raises(InvalidArgumentError, match="new_shape"):
            session.run(tf.sparse_reset_shape(sparse, wrong))
    with pytest.raises(InvalidArgumentError, match="num_split must not exceed"):
        session.run(tf.sparse_split(sp_input=sparse, num_split=3, axis=1))
    with pytest.raises(InvalidArgumentError, match="segment_ids must be below"):
        session.run(tf.sparse_segment_sum([1.0, 2.0], [0, 1], [0, 2], num_segments=2))
    with pytest.raises(InvalidArgumentError, match="ids"):
        session.run(tf.sparse_segment_sqrt_n([1.0, 2.0], [0, 1], [1, 0]))


def test_arguments_of_merges_and_splits_are_checked() -> None:
    sparse = tf.SparseTensor(PLACES, VALUES, [3, 2])
    with pytest.raises(DTypeError, match="expected ids of int32 or int64; got float32"):
        tf.sparse_merge(sparse, sparse, 3)
    with pytest.raises(InvalidArgumentError, match="one vocab_size per ids; got 1 for 2"):
        tf.sparse_merge([sparse, sparse], sparse, 3)
    with pytest.raises(InvalidArgumentError, match="expected an axis and a num_split"):
        tf.sparse_split(sp_input=sparse, num_split=2)
    with pytest.raises(InvalidArgumentError, match="the axis 3; got rank 2"):
        tf.sparse.expand_dims(sparse, 3)
