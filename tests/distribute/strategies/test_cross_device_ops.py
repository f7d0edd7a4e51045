"""Every `CrossDeviceOps` gives the same: reductions, broadcasts and gathers of dense and sparse values."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import flowrt as tf
from flowrt.distribute.strategies.reduce.all_reduce_ops import packs
from flowrt.distribute.strategies.values.distributed_values import PerReplica
from tests.distribute.strategies.cpus import CPUS, mirrored, session
from tests.each import daily

D = tf.distribute
OPS: dict[str, Callable[[], Any]] = {
    "each device": D.ReductionToEachDevice,
    "one device": D.ReductionToOneDevice,
    "a third device": lambda: D.ReductionToOneDevice("/cpu:3"),
    "auto": D.AllReduceCrossDeviceOps,
    "ring, a tensor each": lambda: D.AllReduceCrossDeviceOps("ring", num_packs=0),
    "tree, two packs": lambda: D.AllReduceCrossDeviceOps("tree", num_packs=2),
    "halving and doubling": lambda: D.AllReduceCrossDeviceOps("halving_doubling"),
    "hierarchical": D.HierarchicalCopyAllReduce,
    "native": D.NcclAllReduce,
}
EVERY = pytest.mark.parametrize("name", OPS)
RNG = np.random.default_rng(9)


def placed(arrays: Any) -> PerReplica:
    tensors = []
    for device, array in zip(CPUS, arrays, strict=False):
        with tf.device(device):
            tensors.append(tf.constant(array))
    return PerReplica(tensors)


@EVERY
@pytest.mark.parametrize(
    ("count", "op"),
    daily(product([1, 2, 3, 4], ["SUM", "MEAN"]), lambda count, op: (count in (1, 4)) == (op == "MEAN")),
)
def test_a_batch_is_reduced_on_all_devices(name: str, count: int, op: str) -> None:
    shapes = [(), (1,), (7, 3), (0,), (64,)]
    arrays = [RNG.standard_normal((count, *shape)) for shape in shapes]
    arrays.append(RNG.standard_normal((count, 5)).astype("f"))
    values = [placed(array) for array in arrays]
    reduced = OPS[name]().batch_reduce(op, [(value, CPUS[:count]) for value in values])
    with session() as sess:
        for result, array in zip(reduced, arrays, strict=True):
            parts = result.values if count > 1 else (result,)
            assert [part.device for part in parts] == [f"/device:CPU:{i}" for i in range(count)]
            expected = array.sum(0) if op == "SUM" else array.mean(0)
            for found in sess.run(list(parts)):
                assert found.dtype == array.dtype
                np.testing.assert_allclose(found, expected, atol=1e-12 if array.dtype == np.float64 else 1e-6)


@EVERY
def test_one_destination_gets_one_tensor(name: str) -> None:
    value = placed(np.arange(6.0).reshape(3, 2))
    total = OPS[name]().reduce("SUM", value, "/cpu:1")
    assert total.device == "/device:CPU:1"
    with session() as sess:
        assert sess.run(total).tolist() == [6.0, 9.0]


@EVERY
@pytest.mark.parametrize("op", ["SUM", "MEAN"])
def test_slices_are_gathered(name: str, op: str) -> None:
    slices = []
    for i, device in enumerate(CPUS[:3]):
        with tf.device(device):
            indices = tf.constant([i, 2], tf.int64 if i else tf.int32)
            slices.append(tf.IndexedSlices(tf.ones([2, 1]), indices, tf.constant([4, 1])))
    reduced = OPS[name]().reduce(op, PerReplica(slices), CPUS[:3])
    with session() as sess:
        for part in reduced.values:
            dense = sess.run(tf.convert_to_tensor(part))[:, 0]
            np.testing.assert_allclose(dense, np.array([1, 1, 4, 0]) / (1 if op == "SUM" else 3))


@EVERY
def test_values_are_broadcast_and_gathered(name: str) -> None:
    ops = OPS[name]()
    both = ops.broadcast(tf.constant(5.0), CPUS[:2])
    joined = ops.gather(placed([np.zeros((1, 2)), np.ones((3, 2))]), CPUS[:2], axis=0)
    with session() as sess:
        assert sess.run(list(both.values)) == [5.0, 5.0]
        for found in sess.run(list(joined.values)):
            assert found[:, 0].tolist() == [0.0, 1.0, 1.0, 1.0]


@EVERY
def test_a_strategy_trains_with_any_of_them(name: str) -> None:
    strategy = mirrored(3, cross_device_ops=OPS[name]())
    with strategy.scope():
        v, w = tf.Variable(1.0), tf.Variable(tf.ones([2]))
        optimizer = tf.train.GradientDescentOptimizer(0.5)
    train = strategy.run(lambda: optimizer.minimize((v * v + tf.reduce_sum(w)) / 3))
    with session() as sess:
        sess.run(tf.global_variables_initializer())
        sess.run(train)
        assert [x.item() for x in sess.run(list(v.copies))] == pytest.approx([0.0] * 3, abs=1e-6)
        for found in sess.run(list(w.copies)):
            np.testing.assert_allclose(found, 0.5, atol=1e-6)


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("name", OPS)
def test_copies_stay_equal_bit_for_bit(name: str, dtype: str) -> None:
    """Of a net whose gradients, norms and schedules are rounded everywhere, after steps of two optimizers."""
    count, size = 3, 37
    strategy = mirrored(count, cross_device_ops=OPS[name]())
    rows = RNG.standard_normal((count, 5, size)).astype(dtype)
    with strategy.scope():
        step = tf.train.get_or_create_global_step()
        w = tf.get_variable("w", [size, 3], dtype, tf.random_normal_initializer(stddev=0.3))
        scale = tf.get_variable("scale", [size], dtype, tf.ones_initializer())
        bias = tf.get_variable("bias", [3], dtype, tf.zeros_initializer(), constraint=tf.nn.relu)
        rate = tf.cast(tf.train.exponential_decay(0.1, step, 2, 0.9), dtype)
        first = tf.train.MomentumOptimizer(rate, 0.9, use_nesterov=True)
        second = (
            tf.train.LARSOptimizer(0.1) if dtype == "float32" else tf.train.GradientDescentOptimizer(0.01)
        )

    def fn() -> Any:
        x = tf.constant(rows)[tf.distribute.get_replica_context().replica_id_in_sync_group]
        loss = tf.reduce_mean(tf.nn.softmax(tf.tanh(x * scale @ w + bias)) ** 2) + 0.001 * tf.nn.l2_loss(w)
        return first.minimize(loss, global_step=step), second.minimize(loss)

    train = strategy.group(strategy.run(fn))
    with session() as sess:
        sess.run(tf.global_variables_initializer())
        for _ in range(4):
            sess.run(train)
        for variable in (w, scale, bias):
            copies = [found.tobytes() for found in sess.run(list(variable.copies))]
            assert copies == copies[:1] * count


def test_a_users_own_says_how_one_value_is_reduced() -> None:
    class Doubling(D.CrossDeviceOps):
        def reduce_implementation(
            self, reduce_op: Any, per_replica_value: Any, destinations: Any, options: Any
        ) -> Any:
            total = 2.0 * sum(per_replica_value.values)
            return self.broadcast(total, destinations)

    strategy = mirrored(2, cross_device_ops=Doubling())
    total = strategy.run(lambda: D.get_replica_context().all_reduce("SUM", tf.ones([2])))
    with session() as sess:
        assert [found.tolist() for found in sess.run(list(total.values))] == [[4.0, 4.0]] * 2


@given(st.lists(st.tuples(st.integers(0, 50), st.booleans())), st.integers(0, 4))
def test_packs_hold_each_tensor_once_and_one_dtype(tensors: list[tuple[int, bool]], count: int) -> None:
    with tf.Graph().as_default():
        made = [tf.placeholder(tf.float32 if is_float else tf.int32, [size]) for size, is_float in tensors]
        found = packs(made, count)
    assert sorted(i for pack in found for i in pack) == list(range(len(made)))
    assert all(len({made[i].dtype for i in pack}) == 1 for pack in found)
    if count:
        assert len(found) <= count * len({t.dtype for t in made})


def test_bad_values_are_refused() -> None:
    with pytest.raises(tf.errors.InvalidArgumentError, match="expected a distributed value"):
        D.ReductionToOneDevice().reduce("SUM", tf.constant(1.0), "/cpu:0")
    with pytest.raises(tf.errors.InvalidArgumentError, match="num_packs: expected 0 or more"):
        D.AllReduceCrossDeviceOps(num_packs=-1)
