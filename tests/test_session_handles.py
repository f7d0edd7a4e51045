"""Values that stay in the session between runs, as TensorFlow 1 scripts keep them."""

from __future__ import annotations

import gc

import ml_dtypes
import numpy as np
import pytest

import flowrt as tf
from flowrt.contrib import tpu
from flowrt.graph.construction.dlpack import host_array


@pytest.fixture
def session():
    with tf.Session() as opened:
        yield opened


def test_a_value_is_kept_and_read_in_later_runs(session):
    a, b = tf.constant(10), tf.constant(5)
    handle = session.run(tf.get_session_handle(tf.multiply(a, b)))
    assert isinstance(handle, tf.TensorHandle)
    assert handle.eval() == 50
    holder, value = tf.get_session_tensor(handle.handle, tf.int32)
    assert session.run(tf.multiply(value, 10), {holder: handle.handle}) == 500


def test_each_run_keeps_a_value_of_its_own_that_later_runs_do_not_change(session):
    x = tf.placeholder(tf.float32, [None])
    keep = tf.get_session_handle(tf.tanh(x) * 0 + x)
    handles = [session.run(keep, {x: [i, i]}) for i in range(3)]
    holder, value = tf.get_session_tensor(handles[0].handle, tf.float32)
    total = tf.reduce_sum(value)
    assert [session.run(total, {holder: h.handle}) for h in handles] == [0.0, 2.0, 4.0]
    fetched = session.run(value, {holder: handles[1].handle})
    fetched[:] = 9
    assert handles[1].eval().tolist() == [1.0, 1.0]


def test_a_loop_carries_its_state_in_handles(session):
    start = session.run(tf.get_session_handle(tf.constant(0.0)))
    holder, value = tf.get_session_tensor(start.handle, tf.float32)
    following = tf.get_session_handle(value + 1.0)
    state = start
    for _ in range(100):
        state = session.run(following, {holder: state.handle})
    assert state.eval() == 100.0


def test_a_handle_stands_for_its_value_in_a_feed(session):
    x = tf.placeholder(tf.float32, [3])
    handle = session.run(tf.get_session_handle(tf.constant([1.0, 2.0, 3.0])))
    assert session.run(x * 2, {x: handle}).tolist() == [2.0, 4.0, 6.0]
    words = session.run(tf.get_session_handle(tf.constant(["a", "b"])))
    word = tf.identity(tf.placeholder(tf.string, [2], name="s"))
    assert session.run(word, {"s:0": words}).tolist() == [b"a", b"b"]
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"expected float32 of shape \[2\]"):
        session.run(tf.placeholder(tf.float32, [2]) + 0, {"Placeholder_1:0": handle})


def test_deleting_lets_go_of_the_value(session):
    keep = tf.get_session_handle(tf.constant([1.0]))
    first, second = session.run([keep, tf.get_session_handle(tf.constant(2.0))])
    holder, delete = tf.delete_session_tensor(first.handle)
    session.run(delete, {holder: first.handle})
    second.delete()
    for handle in (first, second):
        with pytest.raises(
            tf.errors.NotFoundError, match=f"tensor handle {handle.handle}: .* it was deleted"
        ):
            handle.eval()
    with pytest.raises(tf.errors.NotFoundError, match="it was deleted"):
        session.run(delete, {holder: first.handle})
    with pytest.raises(tf.errors.NotFoundError, match="it was deleted"):
        second.delete()


def test_a_value_goes_with_its_handle_unless_the_raw_handle_was_taken(session):
    keep = tf.get_session_handle(tf.constant(3.0))
    handle, raw = session.run(keep), session.run(keep).get_raw_handle()
    holder, value = tf.get_session_tensor(handle.handle, tf.float32)
    key = handle.handle
    del handle
    gc.collect()
    with pytest.raises(tf.errors.NotFoundError, match="no longer referenced"):
        session.run(value, {holder: key})
    assert session.run(value, {holder: raw}) == 3.0


def test_values_end_with_their_session():
    with tf.Session() as session:
        handle = session.run(tf.get_session_handle(tf.constant(1.0)))
    with pytest.raises(tf.errors.NotFoundError, match="its session was closed"):
        handle.eval()


def test_the_reader_is_on_the_values_device():
    with tf.Session(config=tf.ConfigProto(device_count={"CPU": 2})) as session:
        with tf.device("/cpu:1"):
            kept = tf.constant([1.0]) + 1.0
        handle = session.run(tf.get_session_handle(kept))
        assert handle.device.endswith("CPU:1")
        with tf.device("/cpu:0"):
            holder, value = tf.get_session_tensor(handle.handle, tf.float32)
        assert value.device == handle.device
        assert session.run(value, {holder: handle.handle}).tolist() == [2.0]


def test_wrong_arguments_are_named(session):
    handle = session.run(tf.get_session_handle(tf.constant(1.0)))
    with pytest.raises(tf.errors.InvalidArgumentError, match="get_session_handle: expected a Tensor; got 3"):
        tf.get_session_handle(3)
    with pytest.raises(tf.errors.InvalidArgumentError, match="expected the handle of a TensorHandle"):
        tf.get_session_tensor("abc", tf.float32)
    holder, value = tf.get_session_tensor(handle, tf.int32)
    with pytest.raises(tf.errors.InvalidArgumentError, match="expected int32; got float32"):
        session.run(value, {holder: handle.handle})
    with pytest.raises(tf.errors.InvalidArgumentError, match="a resource cannot be fetched"):
        session.run(tpu.infeed_dequeue(tf.float32, [2]).op.inputs[0])


def test_other_libraries_read_a_kept_value_where_it_is(session):
    constant = tf.constant([1.0, 2.0])
    plain = session.run(tf.get_session_handle(constant * 2.0))
    brief = session.run(tf.get_session_handle(tf.cast(constant, tf.bfloat16)))
    assert np.shares_memory(np.from_dlpack(plain), plain.value())
    assert np.shares_memory(np.asarray(plain), plain.value())
    assert np.shares_memory(host_array(brief), brief.value())
    assert host_array(brief).dtype == ml_dtypes.bfloat16
    assert not hasattr(plain, "__cuda_array_interface__")
