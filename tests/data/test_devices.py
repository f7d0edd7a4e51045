"""Iterators and time: a step with a deadline ends in it and loses no element. Datasets for a device."""

from __future__ import annotations

import threading

import pytest

import flowrt as tf
from flowrt.executor.program.runner import StepControl
from flowrt.graph.ops.state.iterators import IteratorResource
from flowrt.graph.resources.step_context import step_scope

WAIT_S = 30.0


def gated(gate, count):
    """A dataset whose elements 0, 1, … come once ``gate`` is set."""

    def elements():
        for i in range(count):
            assert gate.wait(WAIT_S)
            yield i

    return tf.data.Dataset.from_generator(elements, tf.int64, [])


@pytest.mark.parametrize("prefetched", [False, True])
def test_a_step_ends_at_its_deadline_and_the_next_gets_the_element(prefetched):
    gate = threading.Event()
    dataset = gated(gate, 3).prefetch(1) if prefetched else gated(gate, 3)
    element = dataset.make_one_shot_iterator().get_next()
    with tf.Session() as session:
        for _ in range(2):
            with pytest.raises(tf.errors.DeadlineExceededError):
                session.run(element, options=tf.RunOptions(timeout_in_ms=20))
        gate.set()
        assert session.run(element) == 0
        with step_scope(StepControl(WAIT_S)):
            assert [session.run(element) for _ in range(2)] == [1, 2]
            with pytest.raises(tf.errors.OutOfRangeError):
                session.run(element)
        with pytest.raises(tf.errors.OutOfRangeError):
            session.run(element)


def test_a_late_element_of_an_iterator_that_began_again_is_dropped():
    gate = threading.Event()
    iterator = gated(gate, 2).make_initializable_iterator()
    element = iterator.get_next()
    with tf.Session() as session:
        session.run(iterator.initializer)
        with pytest.raises(tf.errors.DeadlineExceededError):
            session.run(element, options=tf.RunOptions(timeout_in_ms=20))
        gate.set()
        session.run(iterator.initializer)
        assert [session.run(element) for _ in range(2)] == [0, 1]


def test_steps_without_a_deadline_take_elements_on_their_own_thread():
    threads = []

    class Elements:
        def __next__(self):
            threads.append(threading.current_thread())
            return ()

        def close(self):
            pass

    handle = tf.data.Dataset.range(1).make_one_shot_iterator().resource.op.node
    iterator = IteratorResource(handle, lambda *_: Elements())
    iterator.next()
    with step_scope(StepControl()):
        iterator.next()
    with step_scope(StepControl(WAIT_S)):
        iterator.next()
    assert [t is threading.current_thread() for t in threads] == [True, True, False]


@pytest.mark.parametrize(
    "transform",
    [
        tf.data.experimental.prefetch_to_device("/device:CPU:1", 2),
        tf.data.experimental.prefetch_to_device("/device:CPU:1"),
        tf.data.experimental.copy_to_device("/device:CPU:1"),
    ],
)
@pytest.mark.parametrize("make", ["make_one_shot_iterator", "make_initializable_iterator"])
def test_elements_are_given_out_on_their_device(transform, make):
    iterator = getattr(tf.data.Dataset.range(4).batch(2).apply(transform), make)()
    element = iterator.get_next()
    assert element.device == "/device:CPU:1"
    with tf.Session(config=tf.ConfigProto(device_count={"CPU": 2})) as session:
        if make == "make_initializable_iterator":
            session.run(iterator.initializer)
        assert [session.run(element).tolist() for _ in range(2)] == [[0, 1], [2, 3]]


def test_a_prefetch_may_follow_and_other_transformations_are_the_hosts():
    copied = tf.data.Dataset.range(3).apply(tf.data.experimental.copy_to_device("/gpu:0"))
    assert copied.prefetch(1).make_one_shot_iterator().get_next().device == "/device:GPU:0"
    assert copied.batch(2).make_one_shot_iterator().get_next().device == "/device:CPU:0"


def test_what_a_device_cannot_have_is_refused():
    words = tf.data.Dataset.from_tensors("word")
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"prefetch_to_device: .*got strings"):
        words.apply(tf.data.experimental.prefetch_to_device("/gpu:0"))
    with pytest.raises(tf.errors.InvalidArgumentError, match="copy_to_device: expected elements from a CPU"):
        tf.data.experimental.copy_to_device("/cpu:0", source_device="/gpu:0")
