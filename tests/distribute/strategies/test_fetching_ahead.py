"""Batches that are copied to their device while the step before them runs, on pretended GPUs; about 4 s."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import flowrt as tf
from tests.executor.test_remote_device import config, plug_in

D = tf.distribute
WAIT_S = 30.0
GPUS = ["/gpu:0", "/gpu:1"]
PARTS = tf.GPUOptions.Experimental.VirtualDevices(memory_limit_mb=[16, 16])


@pytest.fixture(autouse=True)
def two_gpus(monkeypatch) -> None:
    plug_in(monkeypatch, seed=2)


def session() -> tf.Session:
    return tf.Session(config=config(gpus=1, virtual_devices=[PARTS]))


ROW_BYTES = 400


def rows_copied_to(sess: tf.Session) -> list[int]:
    """How many rows of `batches` were begun to be copied to each GPU; numbers beside them are no row."""
    gpus = [device for device in sess.devices if device.device_type == "GPU"]
    return [device.transfer.stats.bytes_to_device // ROW_BYTES for device in gpus]


def wait_for(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < end, "it has not come"
        time.sleep(0.001)


def batches(rows: int, size: int) -> Any:
    """Of rows of 100 numbers, the first of which is the row's."""
    values = np.zeros((rows, ROW_BYTES // 4), np.float32)
    values[:, 0] = np.arange(rows)
    return tf.data.Dataset.from_tensor_slices(values).batch(size)


def elements_of(sess: tf.Session, tensors: Any) -> list[list[list[float]]]:
    found = []
    while True:
        try:
            found.append([value.tolist() for value in sess.run(list(tensors))])
        except tf.errors.OutOfRangeError:
            return found


# --- ahead of the step


def with_a_look_inside(parts: Any, look: Callable[[], None]) -> Any:
    """The sum of ``parts``, in a step that calls ``look`` when it has them, and ends after that. It copies
    nothing else to a device.
    """

    def add(*values: Any) -> Any:
        look()
        return np.float32(sum(value.sum() for value in values))

    return tf.py_func(add, parts, tf.float32)


@pytest.mark.parametrize("how", ["prefetch_to_device", "copy_to_device and prefetch", "mirrored"])
def test_the_next_batch_is_on_its_way_before_a_step_ends(how: str) -> None:
    dataset, steps, looks = batches(24, 4), 0, list[int]()
    if how == "mirrored":
        iterator = D.MirroredStrategy(GPUS).make_dataset_iterator(dataset)
        parts = list(iterator.get_next().values)
    elif how == "prefetch_to_device":
        ahead = tf.data.experimental.prefetch_to_device("/gpu:0", 1)
        iterator = dataset.apply(ahead).make_initializable_iterator()
        parts = [iterator.get_next()]
    else:
        ahead = tf.data.experimental.copy_to_device("/gpu:0")
        iterator = dataset.apply(ahead).prefetch(1).make_initializable_iterator()
        parts = [iterator.get_next()]

    rows = 4 // len(parts)

    def look() -> None:
        wait_for(lambda: all(count >= rows * (steps + 2) for count in rows_copied_to(sess)[: len(parts)]))
        looks.append(steps)

    total = with_a_look_inside(parts, look)
    with session() as sess:
        sess.run(iterator.initializer)
        for steps in range(5):
            assert sess.run(total) == sum(range(4 * steps, 4 * steps + 4))
    assert looks == list(range(5))


def test_without_a_prefetch_a_batch_is_copied_by_its_own_step() -> None:
    dataset = batches(24, 4).apply(tf.data.experimental.copy_to_device("/gpu:0"))
    iterator = dataset.make_initializable_iterator()
    total = with_a_look_inside([iterator.get_next()], lambda: None)
    with session() as sess:
        sess.run(iterator.initializer)
        for step in range(3):
            sess.run(total)
            assert rows_copied_to(sess)[0] == 4 * (step + 1)


def test_parts_are_copied_by_their_step_when_that_is_asked_for() -> None:
    strategy = D.MirroredStrategy(GPUS)
    options = D.InputOptions(experimental_fetch_to_device=False)
    strategy.experimental_distribute_dataset(batches(8, 4), options).make_one_shot_iterator().get_next()
    kinds = {operation.type for operation in tf.get_default_graph().get_operations()}
    assert "OneShotIterator" in kinds
    assert not kinds & {"Stage", "StagedNext", "DealNext"}


# --- the same elements


@pytest.mark.parametrize("replicas", [1, 2])
@pytest.mark.parametrize("rows", [0, 1, 8, 11])
def test_every_record_comes_once_and_an_iterator_begins_again(rows: int, replicas: int) -> None:
    strategy = D.MirroredStrategy(GPUS[:replicas])
    iterator = strategy.make_dataset_iterator(batches(rows, 4))
    parts = strategy.experimental_local_results(iterator.get_next())
    with session() as sess:
        for _ in range(2):
            sess.run(iterator.initializer)
            found = elements_of(sess, parts)
            assert [row[0] for step in found for part in step for row in part] == list(range(rows))
            assert len(found) == -(-rows // 4)
        sess.run(iterator.initializer)
        if rows:
            sess.run(list(parts))
            sess.run(iterator.initializer)  # in the midst of an epoch
        found = elements_of(sess, parts)
        assert [row[0] for step in found for part in step for row in part] == list(range(rows))


def test_sessions_have_elements_of_their_own() -> None:
    strategy = D.MirroredStrategy(GPUS)
    iterator = strategy.experimental_distribute_dataset(batches(8, 4)).make_one_shot_iterator()
    parts = list(iterator.get_next().values)
    with session() as one, session() as other:
        first = one.run(parts)
        assert np.array_equal(first, other.run(parts))
        assert np.concatenate(one.run(parts))[:, 0].tolist() == [4, 5, 6, 7]


def test_steps_that_fail_leave_the_replicas_together() -> None:
    strategy = D.MirroredStrategy(GPUS)
    iterator = strategy.make_dataset_iterator(batches(16, 4))
    first, second = iterator.get_next().values
    fails = tf.placeholder(tf.bool, [])
    with tf.control_dependencies([tf.debugging.Assert(tf.logical_not(fails), ["as asked"])]):
        second = tf.identity(second)
    with session() as sess:
        sess.run(iterator.initializer)
        assert np.concatenate(sess.run([first, second], {fails: False}))[:, 0].tolist() == [0, 1, 2, 3]
        with pytest.raises(tf.errors.InvalidArgumentError, match="as asked"):
            sess.run([first, second], {fails: True})
        sess.run(first, {fails: False})  # one replica's part alone
        assert np.concatenate(sess.run([first, second], {fails: False}))[:, 0].tolist() == [12, 13, 14, 15]


def test_a_step_ends_at_its_deadline_and_the_next_gets_the_element() -> None:
    gate = threading.Event()

    def elements() -> Any:
        for i in range(2):
            assert gate.wait(WAIT_S)
            yield np.arange(2 * i, 2 * i + 2)

    dataset = tf.data.Dataset.from_generator(elements, tf.int64, [2])
    iterator = D.MirroredStrategy(GPUS).make_dataset_iterator(dataset)
    parts = list(iterator.get_next().values)
    with session() as sess:
        sess.run(iterator.initializer)
        for _ in range(2):
            with pytest.raises(tf.errors.DeadlineExceededError):
                sess.run(parts, options=tf.RunOptions(timeout_in_ms=20))
        gate.set()
        assert np.concatenate(elements_of(sess, parts)).ravel().tolist() == [0, 1, 2, 3]


def test_an_error_of_the_data_is_the_steps() -> None:
    dataset = batches(8, 4).map(lambda x: tf.debugging.check_numerics(x / (x - 5.0), "no number"))
    iterator = D.MirroredStrategy(GPUS).make_dataset_iterator(dataset)
    parts = list(iterator.get_next().values)
    with session() as sess:
        sess.run(iterator.initializer)
        sess.run(parts)
        with pytest.raises(tf.errors.InvalidArgumentError, match="no number"):
            sess.run(parts)


def test_steps_that_are_launched_as_one_take_new_elements_all_the_same() -> None:
    """A capture would repeat the first."""
    dataset = batches(64, 4).apply(tf.data.experimental.prefetch_to_device("/gpu:0"))
    element = dataset.make_one_shot_iterator().get_next()
    with tf.device("/gpu:0"):
        total = tf.get_variable("total", initializer=np.zeros([4, ROW_BYTES // 4], np.float32))
        add = total.assign_add(element * 2.0).op
    with session() as sess:
        sess.run(tf.global_variables_initializer())
        for _ in range(16):
            sess.run(add)
        assert sess.run(total)[:, 0].tolist() == (2 * np.arange(64).reshape(16, 4).sum(0)).tolist()
