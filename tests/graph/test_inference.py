"""What operations share whose calls are alike, and what they must not."""

from __future__ import annotations

import pytest

import flowrt as tf


@pytest.fixture(autouse=True)
def graph():
    with tf.Graph() as made:
        yield made


def test_calls_that_are_alike_share_attrs_and_outputs():
    x = tf.placeholder(tf.float32, [2, 1])
    first, second = x * x, x * x
    assert first.op.node.attrs is second.op.node.attrs
    assert first.op.node.outputs is second.op.node.outputs


def test_a_call_with_attrs_is_another_one():
    x = tf.placeholder(tf.float32, [2, 3])
    assert [tf.matmul(x, x, transpose_a=a, transpose_b=not a).shape for a in (True, False)] == [
        [3, 3],
        [2, 2],
    ]


def test_a_shape_that_depends_on_a_value_is_inferred_for_each_call():
    x = tf.placeholder(tf.float32, [6])
    shapes = [tf.constant(shape) for shape in ([2, 3], [3, 2])]
    assert [tf.reshape(x, shape).shape for shape in shapes] == [[2, 3], [3, 2]]


def test_what_is_known_later_of_an_input_counts():
    x = tf.placeholder(tf.float32, [None])
    assert (x + x).shape == [None]
    x.set_shape([5])
    assert (x + x).shape == [5]


def test_other_dtypes_are_another_call():
    y = [tf.placeholder(dtype, [2]) * 2 for dtype in (tf.float32, tf.int64, tf.float32)]
    assert [t.dtype for t in y] == [tf.float32, tf.int64, tf.float32]


def test_a_wrong_call_is_wrong_each_time():
    x, y = tf.placeholder(tf.float32, [2]), tf.placeholder(tf.float32, [3])
    for _ in range(2):
        with pytest.raises(tf.errors.InvalidArgumentError, match="broadcast"):
            tf.add(x, y)


def test_an_operand_has_the_line_of_its_operation():
    total = tf.placeholder(tf.float32, [2]) + 1.0
    assert total.op.inputs[1].op.source == total.op.source
    assert total.op.source.startswith(__file__)


NONE = {
    "batch_to_space": lambda x, none: tf.batch_to_space_nd(x, [2, 2], none),
    "space_to_batch": lambda x, none: tf.space_to_batch_nd(x, [2, 2], none),
    "multinomial": lambda x, none: tf.multinomial(x[0, :, :, 0], none),
    "band_part": lambda x, none: tf.matrix_band_part(x, none, 0),
    "cumsum": tf.cumsum,
    "boxes": lambda x, none: tf.image.non_max_suppression(x[0, 0, :, :1] * [[1.0] * 4], x[0, 0, :, 0], none),
    "range": lambda x, none: tf.range(none),
    "linspace": lambda x, none: tf.linspace(0.0, 1.0, none),
}


@pytest.mark.parametrize("name", NONE)
def test_an_empty_matrix_in_the_place_of_numbers_is_refused(name):
    x = tf.zeros([4, 2, 2, 1])
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"expected .*; got (shape \[0, 2\]|0)"):
        NONE[name](x, tf.zeros([0, 2], tf.int32))
