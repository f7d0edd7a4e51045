"""group_by_window and bucket_by_sequence_length: what is gathered, in which order, with how much padding."""

from __future__ import annotations

import logging
from typing import Any

import numpy as np
import pytest

import flowrt as tf
from flowrt.data.windows import padding_report
from flowrt.errors import DTypeError, InvalidArgumentError, UnimplementedError

experimental = tf.data.experimental


def read_all(dataset: Any) -> list[Any]:
    following = dataset.make_one_shot_iterator().get_next()
    found = []
    with tf.Session() as session:
        while True:
            try:
                found.append(session.run(following))
            except tf.errors.OutOfRangeError:
                return found


def parity_batches(**size: Any) -> list[Any]:
    grouped = tf.data.Dataset.range(10).apply(
        experimental.group_by_window(lambda x: x % 2, lambda key, window: window.batch(10), **size)
    )
    return [batch.tolist() for batch in read_all(grouped)]


# --- group_by_window


def test_a_window_comes_when_it_is_full_and_at_the_end_what_is_left_by_key() -> None:
    assert parity_batches(window_size=2) == [[0, 2], [1, 3], [4, 6], [5, 7], [8], [9]]


def test_the_size_may_depend_on_the_key() -> None:
    batches = parity_batches(window_size_func=lambda key: 2 + 3 * key)
    assert batches == [[0, 2], [4, 6], [1, 3, 5, 7, 9], [8]]


def test_the_reduction_gets_the_key_and_any_pipeline_of_the_window() -> None:
    def reduced(key: Any, window: Any) -> Any:
        keys = tf.data.Dataset.from_tensors(key).repeat()
        return tf.data.Dataset.zip((window, keys)).map(lambda x, k: x * 10 + k).repeat(2).take(3)

    grouped = tf.data.Dataset.range(5).apply(experimental.group_by_window(lambda x: x // 3, reduced, 3))
    assert read_all(grouped) == [0, 10, 20, 31, 41, 31]


def test_windows_may_be_grouped_again() -> None:
    inner = experimental.group_by_window(lambda x: x % 3, lambda key, window: window.batch(9), 9)
    outer = experimental.group_by_window(lambda x: x % 2, lambda key, window: window.apply(inner), 6)
    batches = [batch.tolist() for batch in read_all(tf.data.Dataset.range(12).apply(outer))]
    assert batches == [[0, 6], [4, 10], [2, 8], [3, 9], [1, 7], [5, 11]]


def test_what_group_by_window_refuses() -> None:
    numbers = tf.data.Dataset.range(4)
    group = experimental.group_by_window
    with pytest.raises(
        InvalidArgumentError, match="either window_size or window_size_func; got None and None"
    ):
        group(lambda x: x, lambda key, window: window)
    with pytest.raises(DTypeError, match="key_func: expected it to return an integer scalar"):
        numbers.apply(group(lambda x: tf.cast(x, tf.float32), lambda key, window: window, 2))
    with pytest.raises(DTypeError, match="reduce_func: expected it to return a Dataset; got"):
        numbers.apply(group(lambda x: x, lambda key, window: key, 2))
    outside = tf.Variable(3, dtype=tf.int64)
    with pytest.raises(UnimplementedError, match="key_func: expected a function of its arguments"):
        numbers.apply(group(lambda x: x + outside, lambda key, window: window, 2))
    with pytest.raises(InvalidArgumentError, match="window size of key 0: expected at least 1; got 0"):
        read_all(numbers.apply(group(lambda x: x, lambda key, window: window, 0)))


# --- bucket_by_sequence_length

LENGTHS = [3, 12, 5, 8, 1, 25, 4, 11, 2, 13, 9, 6]


def sequences() -> Any:
    """Sequences of `LENGTHS`, each filled with its length, and the length beside it."""
    return tf.data.Dataset.from_generator(
        lambda: ((np.full(n, n, np.int32), n) for n in LENGTHS), (tf.int32, tf.int64), ([None], [])
    )


def bucketed(**options: Any) -> Any:
    return sequences().apply(
        experimental.bucket_by_sequence_length(lambda row, n: n, [5, 10], [3, 2, 2], **options)
    )


def test_batches_have_elements_of_one_bucket_padded_to_the_longest() -> None:
    batches = read_all(bucketed())
    assert [lengths.tolist() for _, lengths in batches] == [
        [5, 8], [12, 25], [3, 1, 4], [11, 13], [9, 6], [2],
    ]  # fmt: skip
    for rows, lengths in batches:
        assert rows.shape == (len(lengths), max(lengths))
        for row, length in zip(rows, lengths, strict=True):
            assert row.tolist() == [length] * length + [0] * (len(row) - length)


def test_a_length_at_a_boundary_is_in_the_bucket_above() -> None:
    numbers = tf.data.Dataset.range(3, 8)
    bucket = experimental.bucket_by_sequence_length(lambda n: n, [5], [9, 9])
    assert [batch.tolist() for batch in read_all(numbers.apply(bucket))] == [[3, 4], [5, 6, 7]]


def test_padding_to_the_boundary_gives_one_shape_a_bucket() -> None:
    dataset = sequences().filter(lambda row, n: n < 10).apply(
        experimental.bucket_by_sequence_length(
            lambda row, n: n, [5, 10], [3, 2, 2], padding_values=(-1, np.int64(0)),
            pad_to_bucket_boundary=True, drop_remainder=True,
        )
    )  # fmt: skip
    assert {rows.shape for rows, _ in read_all(dataset)} == {(2, 9), (3, 4)}
    assert read_all(dataset)[0][0][0].tolist() == [5] * 5 + [-1] * 4
    with pytest.raises(InvalidArgumentError, match=r"expected lengths below the last boundary 10 .*got 12"):
        read_all(bucketed(pad_to_bucket_boundary=True))


def test_elements_of_one_length_need_no_padding() -> None:
    rows = tf.data.Dataset.from_tensor_slices(np.arange(6).reshape(3, 2))
    bucket = experimental.bucket_by_sequence_length(
        lambda row: tf.shape(row)[0], [5], [2, 2], no_padding=True
    )
    assert [batch.tolist() for batch in read_all(rows.apply(bucket))] == [[[0, 1], [2, 3]], [[4, 5]]]


def test_what_is_known_of_the_batches() -> None:
    assert bucketed().output_types == (tf.int32, tf.int64)
    shapes = [shape.as_list() for shape in bucketed(drop_remainder=True).output_shapes]
    assert shapes == [[None, None], [None]]
    same = sequences().apply(
        experimental.bucket_by_sequence_length(
            lambda row, n: n, [50], [4, 4], padded_shapes=([30], []), drop_remainder=True
        )
    )
    assert [shape.as_list() for shape in same.output_shapes] == [[4, 30], [4]]


def test_the_share_of_padding_is_logged_at_the_end_of_a_pass(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "flowrt"):
        batches = read_all(bucketed())
    padding = sum(rows.size - lengths.sum() for rows, lengths in batches)
    handed = sum(rows.size + lengths.size for rows, lengths in batches)
    (record,) = [r for r in caplog.records if "bucket_by_sequence_length" in r.message]
    assert f"{padding / handed:.1%} of {handed} numbers are padding" in record.message
    assert "below 5" in record.message
    assert "from 10" in record.message


def test_the_report_of_nothing_says_so() -> None:
    assert padding_report((5,), [[0, 0], [0, 0]]) == "bucket_by_sequence_length: nothing handed out"


def test_bad_boundaries_are_refused() -> None:
    for boundaries, sizes in (([], [1]), ([5, 5], [1, 1, 1]), ([5], [1])):
        with pytest.raises(
            InvalidArgumentError, match="expected increasing bucket_boundaries, and one batch size more"
        ):
            experimental.bucket_by_sequence_length(lambda n: n, boundaries, sizes)


def test_a_step_fed_from_buckets_has_one_plan_a_bucket_and_one_set_of_variables() -> None:
    batch = sequences().filter(lambda row, n: n < 10).repeat(3).apply(
        experimental.bucket_by_sequence_length(
            lambda row, n: n, [5, 10], [3, 2, 2], pad_to_bucket_boundary=True, drop_remainder=True
        )
    ).make_one_shot_iterator().get_next()  # fmt: skip
    rows, lengths = tf.placeholder(tf.int32, [None, None]), tf.placeholder(tf.int64, [None])
    embedded = tf.nn.embedding_lookup(tf.get_variable("embedding", [30, 4]), rows)
    _, state = tf.nn.dynamic_rnn(tf.nn.rnn_cell.GRUCell(3), embedded, lengths, dtype=tf.float32)
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        shapes = set()
        for _ in range(6):
            values, counts = session.run(batch)
            shapes.add(values.shape)
            session.run(state, {rows: values, lengths: counts})
        (request,) = [r for r in session._requests.values() if r.feeds]
        assert len(request.plans) == len(shapes) == 2
    assert len(tf.trainable_variables()) == 5
