"""`string_input_producer`, `batch` and their like, as TensorFlow 1's scripts feed themselves; about 3 s."""

from __future__ import annotations

import contextlib
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import flowrt as tf

WAIT_S = 60.0


@contextlib.contextmanager
def running():
    """A session whose queue runners run; at its end all of their threads have ended."""
    with tf.Session() as session:
        session.run([tf.global_variables_initializer(), tf.local_variables_initializer()])
        coord = tf.train.Coordinator()
        threads = tf.train.start_queue_runners(session, coord)
        try:
            yield session
        finally:
            coord.request_stop()
            coord.join(threads, stop_grace_period_secs=WAIT_S)
        assert not any(thread.is_alive() for thread in threads)


def all_of(session, fetch):
    """What ``fetch`` gives until the data is used up."""
    found = []
    with contextlib.suppress(tf.errors.OutOfRangeError):
        while True:
            found.append(session.run(fetch))
    return found


# --- producers


def test_file_names_come_in_order_for_as_many_epochs():
    name = tf.train.string_input_producer(["a", "b", "c"], num_epochs=2, shuffle=False).dequeue()
    with running() as session:
        assert all_of(session, name) == [b"a", b"b", b"c"] * 2


def test_each_epoch_has_an_order_of_its_own():
    number = tf.train.range_input_producer(20, num_epochs=2, seed=3).dequeue()
    with running() as session:
        numbers = [int(n) for n in all_of(session, number)]
    first, second = numbers[:20], numbers[20:]
    assert sorted(first) == sorted(second) == list(range(20))
    assert first != second


def test_without_a_number_of_epochs_there_is_no_end():
    number = tf.train.range_input_producer(2, shuffle=False).dequeue_many(7)
    with running() as session:
        assert session.run(number).tolist() == [0, 1, 0, 1, 0, 1, 0]


def test_rows_of_several_tensors_stay_together():
    rows = np.arange(12.0).reshape(6, 2)
    row, label = tf.train.slice_input_producer([rows, np.arange(6)], num_epochs=1, seed=1)
    assert (row.shape.as_list(), label.shape.as_list()) == ([2], [])
    with running() as session:
        found = all_of(session, [row, label])
    assert len(found) == 6
    for values, number in found:
        assert np.array_equal(values, rows[number])


def test_limit_epochs_counts_in_a_local_variable():
    limited = tf.train.limit_epochs(tf.constant(7), num_epochs=2)
    (epochs,) = tf.local_variables()
    with tf.Session() as session:
        session.run(epochs.initializer)
        assert all_of(session, limited) == [7, 7]
        assert session.run(epochs) == 2


def test_what_is_no_input_is_refused():
    for wrong, message in [
        (lambda: tf.train.limit_epochs(1, num_epochs=0), "num_epochs > 0; got 0"),
        (lambda: tf.train.input_producer(1.0), "rank 1 or more; got a scalar"),
        (lambda: tf.train.input_producer(tf.placeholder(tf.float32)), "rows of a known shape; got "),
        (lambda: tf.train.input_producer(tf.zeros([2, 3]), [4]), r"got \[3\] and element_shape \[4\]"),
        (lambda: tf.train.string_input_producer([]), "at least one string; got none"),
        (lambda: tf.train.slice_input_producer([]), "equal numbers of rows"),
        (lambda: tf.train.slice_input_producer([[1, 2], [1]]), "equal numbers of rows"),
        (lambda: tf.train.batch([], 2), "expected at least one tensor; got none"),
        (lambda: tf.train.batch([tf.placeholder(tf.float32)], 2), "fully defined shapes"),
        (lambda: tf.train.batch([tf.constant(1)], 2, enqueue_many=True), "expected tensors of rank >= 1"),
        (lambda: tf.train.batch([1, 2], 2, shapes=[[]]), "a shape for each of 2 tensors"),
        (lambda: tf.train.batch([1], 2, capacity=0), "batch: expected a capacity of 1 or more; got 0"),
        (lambda: tf.train.shuffle_batch([1], 2, 4, 4), "more than min_after_dequeue=4; got 4"),
        (lambda: tf.train.batch_join([[1], [1.0]], 2), r"equal dtypes; got \(int32\), \(float32\)"),
    ]:
        with pytest.raises(tf.errors.InvalidArgumentError, match=message):
            wrong()


def test_no_file_names_when_it_runs_are_the_coordinators_error():
    names = tf.placeholder_with_default(np.array([], object), [None])
    name = tf.train.string_input_producer(names, num_epochs=1).dequeue()
    with tf.Session() as session:
        session.run(tf.local_variables_initializer())
        coord = tf.train.Coordinator()
        threads = tf.train.start_queue_runners(session, coord)
        with pytest.raises(tf.errors.OpError):
            session.run(name)
        with pytest.raises(tf.errors.InvalidArgumentError, match="at least one string"):
            coord.join(threads, stop_grace_period_secs=WAIT_S)


# --- batches


@pytest.mark.parametrize("smaller", [False, True])
def test_the_last_batch_is_left_out_or_smaller(smaller):
    number = tf.train.range_input_producer(7, num_epochs=1, shuffle=False).dequeue()
    batch = tf.train.batch([number, number * 2], 3, allow_smaller_final_batch=smaller)
    assert batch[0].shape.as_list() == [None if smaller else 3]
    with running() as session:
        found = all_of(session, batch)
    assert [one.tolist() for one, _ in found] == [[0, 1, 2], [3, 4, 5], *([[6]] if smaller else [])]
    assert all(np.array_equal(two, 2 * one) for one, two in found)


def test_elements_are_tensors_lists_or_dicts_and_so_are_batches():
    number = tf.train.range_input_producer(4, shuffle=False).dequeue()
    as_dict = tf.train.batch({"b": number, "a": tf.to_float(number)}, 2)
    as_list, as_tensor = tf.train.batch([number, number], 2), tf.train.batch(number, 2)
    assert {key: value.dtype for key, value in as_dict.items()} == {"a": tf.float32, "b": tf.int32}
    assert isinstance(as_list, list)
    assert isinstance(as_tensor, tf.Tensor)


def test_sequences_are_padded():
    number = tf.train.range_input_producer(4, num_epochs=1, shuffle=False).dequeue()
    batch = tf.train.batch([tf.range(number)], 2, dynamic_pad=True)
    with running() as session:
        assert [one.tolist() for one in all_of(session, batch)] == [[[0], [0]], [[0, 1, 0], [0, 1, 2]]]


def test_a_shuffled_batch_has_its_seeds_order_and_every_element_once():
    def run():
        with tf.Graph().as_default():
            number = tf.train.range_input_producer(32, num_epochs=1, shuffle=False).dequeue()
            batch = tf.train.shuffle_batch([number], 8, capacity=40, min_after_dequeue=30, seed=1)
            with running() as session:
                return np.concatenate(all_of(session, batch)).tolist()

    numbers = run()
    assert sorted(numbers) == list(range(32))
    assert numbers != sorted(numbers)


def test_what_is_kept():
    number = tf.train.range_input_producer(12, num_epochs=1, shuffle=False).dequeue()
    one = tf.train.maybe_batch(number, tf.equal(number % 3, 0), 2)
    numbers = tf.train.range_input_producer(12, num_epochs=1, shuffle=False).dequeue_many(6)
    many = tf.train.maybe_batch(numbers, numbers > 3, 4, enqueue_many=True)
    with running() as session:
        assert [each.tolist() for each in all_of(session, one)] == [[0, 3], [6, 9]]
        assert [each.tolist() for each in all_of(session, many)] == [[4, 5, 6, 7], [8, 9, 10, 11]]


@pytest.mark.parametrize("shuffles", [False, True])
def test_several_graphs_fill_one_queue(shuffles):
    sources = [
        [tf.train.range_input_producer(limit, num_epochs=1).dequeue() + 100 * limit] for limit in (3, 4, 5)
    ]
    if shuffles:
        batch = tf.train.shuffle_batch_join(sources, 4, capacity=20, min_after_dequeue=3)
    else:
        batch = tf.train.batch_join(sources, 4)
    with running() as session:
        numbers = np.concatenate(all_of(session, batch))
    assert sorted(numbers) == [100 * limit + i for limit in (3, 4, 5) for i in range(limit)]


@settings(max_examples=12, deadline=None)
@given(
    rows=st.integers(1, 12),
    epochs=st.integers(1, 3),
    size=st.integers(1, 5),
    threads=st.integers(1, 3),
    reserve=st.one_of(st.none(), st.integers(0, 6)),
)
def test_every_row_comes_once_an_epoch_whatever_the_threads(rows, epochs, size, threads, reserve):
    with tf.Graph().as_default():
        row, _ = tf.train.slice_input_producer([np.arange(rows), np.zeros(rows)], num_epochs=epochs)
        options = {"num_threads": threads, "allow_smaller_final_batch": True}
        if reserve is None:
            batch = tf.train.batch([row], size, **options)
        else:
            batch = tf.train.shuffle_batch([row], size, reserve + size, reserve, **options)
        with running() as session:
            found = all_of(session, batch)
    assert Counter(np.concatenate(found).tolist()) == dict.fromkeys(range(rows), epochs)
    assert all(len(each) == size for each in found[:-1])


def test_a_script_may_stop_in_the_midst_of_its_data():
    number = tf.train.range_input_producer(1000).dequeue()
    batch = tf.train.shuffle_batch([number], 4, capacity=8, min_after_dequeue=2, num_threads=3)
    with running() as session:
        assert session.run(batch).shape == (4,)


def test_a_monitored_session_starts_the_threads_and_ends_with_the_data():
    number = tf.train.range_input_producer(6, num_epochs=1, shuffle=False).dequeue()
    batch, found = tf.train.batch([number], 2), []
    with tf.train.MonitoredSession() as session:
        while not session.should_stop():
            found.append(session.run(batch).tolist())
    assert found == [[0, 1], [2, 3], [4, 5]]


def test_how_full_the_queues_are_is_summarized():
    number = tf.train.range_input_producer(4, capacity=16).dequeue()
    tf.train.shuffle_batch([number], 2, capacity=10, min_after_dequeue=4)
    names = [tensor.op.name for tensor in tf.get_collection(tf.GraphKeys.SUMMARIES)]
    assert names == ["input_producer/fraction_of_16_full", "shuffle_batch/fraction_over_4_of_10_full"]
