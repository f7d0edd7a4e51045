"""Infeed and outfeed: a host thread feeds running steps and reads from them, with back-pressure."""

from __future__ import annotations

import threading

import numpy as np
import pytest

import flowrt as tf
from flowrt.contrib import tpu
from flowrt.graph.ops.state.infeed import CAPACITY

WAIT_S = 60.0


def start(function):
    thread = threading.Thread(target=function, daemon=True)
    thread.start()
    return thread


def test_a_training_loop_is_fed_and_read_by_other_threads():
    x = tf.placeholder(tf.float32, [3])
    feed = tpu.infeed_enqueue(x, [3], device_ordinal=1)
    with tf.device("/device:CPU:1"):
        step = tpu.outfeed_enqueue(tpu.infeed_dequeue(tf.float32, [3]) * 2.0)
    read = tpu.outfeed_dequeue(tf.float32, [3], device_ordinal=1)
    results, count = [], 2 * CAPACITY + 3
    with tf.Session(config=tf.ConfigProto(device_count={"CPU": 2})) as session:
        threads = [
            start(lambda: [session.run(feed, {x: np.full(3, i)}) for i in range(count)]),
            start(lambda: results.extend(session.run(read) for _ in range(count))),
        ]
        for _ in range(count):
            session.run(step)
        for thread in threads:
            thread.join(WAIT_S)
    assert np.array_equal(results, [[2.0 * i] * 3 for i in range(count)])


def test_a_queue_lives_with_its_device_end_whatever_the_other_end_asks_for():
    with tf.device("/cpu:0"):
        feed = tpu.infeed_enqueue(tf.constant(1.0), device_ordinal=1)
    with tf.device("/cpu:1"):
        value = tpu.infeed_dequeue(tf.float32, [])
    with tf.Session(config=tf.ConfigProto(device_count={"CPU": 2})) as session:
        session.run(feed)
        assert session.run(value) == 1.0
        assert feed.inputs[0].device == "/device:CPU:1"


def test_ordinals_tell_queues_apart():
    feeds = [tpu.infeed_enqueue(tf.constant(i), device_ordinal=i) for i in range(2)]
    values = [tpu.infeed_dequeue(tf.int32, [], device_ordinal=i) for i in range(2)]
    with tf.Session(config=tf.ConfigProto(device_count={"CPU": 2})) as session:
        session.run(feeds)
        assert session.run(values[::-1]) == [1, 0]
        assert [value.op.inputs[0].device for value in values] == ["/device:*:0", "/device:*:1"]


def test_an_end_without_an_ordinal_is_of_its_own_devices_queue():
    with tf.device("/cpu:1"):
        own = [tpu.infeed_enqueue(tf.constant(1)), tpu.infeed_enqueue(tf.constant(2), device_ordinal=None)]
        value = tpu.infeed_dequeue(tf.int32, [])
    assert {op.inputs[0] for op in own} == {value.op.inputs[0]}
    assert tpu.infeed_enqueue(tf.constant(3)).inputs[0] is not value.op.inputs[0]


def test_a_device_that_there_is_not_has_no_queue():
    feed, value = tpu.infeed_enqueue(tf.constant(1), device_ordinal=7), tpu.outfeed_dequeue(tf.int32, [], 3)
    with tf.Session() as session:
        for fetch, ordinal in ((feed, 7), (value, 3)):
            with pytest.raises(
                tf.errors.InvalidArgumentError, match=rf"requests /device:\*:{ordinal}\. The dev"
            ):
                session.run(fetch)


@pytest.mark.parametrize("ordinal", [-2, "0", 1.5])
def test_what_is_no_ordinal_is_refused(ordinal):
    with pytest.raises(tf.errors.InvalidArgumentError, match=f"index, or -1 .*; got {ordinal!r}"):
        tpu.infeed_enqueue(tf.constant(1), device_ordinal=ordinal)


@pytest.mark.parametrize("device", ["/cpu:1", lambda op: "/cpu:1"])
def test_a_device_takes_from_its_own_queue_only(device):
    graph = tf.get_default_graph()
    tpu.infeed_enqueue(tf.constant(1), device_ordinal=0)  # so that there is the queue
    before = graph.version
    with (
        tf.device(device),
        pytest.raises(tf.errors.InvalidArgumentError, match="expected device_ordinal 1, that"),
    ):
        tpu.infeed_dequeue(tf.int32, [], device_ordinal=0)
    assert graph.version == before


def test_a_deadline_says_which_queue_is_empty_or_full():
    feed, value = tpu.infeed_enqueue(tf.constant(1)), tpu.outfeed_dequeue(tf.int32, [])
    options = tf.RunOptions(timeout_in_ms=500)
    with tf.Session() as session:
        with pytest.raises(
            tf.errors.DeadlineExceededError, match="within 500 ms: queue 'outfeed_queue_0' is empty"
        ):
            session.run(value, options=options)
        for _ in range(CAPACITY):
            session.run(feed)
        full = f"'infeed_queue_0' is full, with {CAPACITY} items"
        with pytest.raises(tf.errors.DeadlineExceededError, match=full):
            session.run(feed, options=options)


def test_tuples_keep_their_components_together_and_values_are_copies():
    x = tf.placeholder(tf.float32, [None])
    feed = tpu.infeed_enqueue_tuple([x, tf.constant("label")], [[None], []])
    out = tpu.infeed_dequeue_tuple([tf.float32, tf.string], [[None], []])
    with tf.Session() as session:
        fed = np.ones(100_000, np.float32)
        session.run(feed, {x: fed})
        fed[:] = 0
        values, label = session.run(out)
        assert values.all()
        assert label == b"label"


def test_a_value_that_does_not_fit_is_named():
    feed = tpu.infeed_enqueue(tf.constant([1.0, 2.0]))
    wrong_shape = tpu.infeed_dequeue(tf.float32, [3])
    wrong_type = tpu.infeed_dequeue(tf.int32, [2])
    wrong_count = tpu.infeed_dequeue_tuple([tf.float32, tf.float32], [[2], [2]])
    with tf.Session() as session:
        for fetch, kind, message in (
            (wrong_shape, tf.errors.InvalidArgumentError, r"expected a value of shape \[3\]; got \[2\]"),
            (wrong_type, tf.errors.InvalidArgumentError, "expected int32; got float32"),
            (wrong_count, tf.errors.InvalidArgumentError, "2 components; got 1"),
        ):
            session.run(feed)
            with pytest.raises(kind, match=message):
                session.run(fetch)
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"infeed_enqueue: expected shape \[3\]"):
        tpu.infeed_enqueue(tf.constant([1.0, 2.0]), [3])


def test_a_full_queue_makes_the_feeder_wait_until_its_step_ends_and_nothing_is_lost():
    x = tf.placeholder(tf.int32, [])
    feed, value = tpu.infeed_enqueue(x), tpu.infeed_dequeue(tf.int32, [])
    with tf.Session() as session:
        for i in range(CAPACITY):
            session.run(feed, {x: i})
        with pytest.raises(tf.errors.DeadlineExceededError):
            session.run(feed, {x: -1}, tf.RunOptions(timeout_in_ms=20))
        assert [session.run(value) for _ in range(CAPACITY)] == list(range(CAPACITY))


@pytest.mark.parametrize("end", ["get", "put"])
def test_closing_the_session_ends_both_ends(end):
    feed, value = tpu.infeed_enqueue(tf.constant(1)), tpu.infeed_dequeue(tf.int32, [])
    session, outcome = tf.Session(), []
    fetch = value if end == "get" else feed

    def run_until_it_ends():
        try:
            while True:
                session.run(fetch)
        except tf.OpError as error:
            outcome.append(type(error))

    if end == "put":
        session.run(feed)
    else:
        session.run([feed, value])
    thread = start(run_until_it_ends)
    session.close()
    thread.join(WAIT_S)
    assert outcome
    assert set(outcome) <= {
        tf.errors.CancelledError,
        tf.errors.OutOfRangeError,
        tf.errors.FailedPreconditionError,
    }
