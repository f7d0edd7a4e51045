"""Where a thread is: cross-replica, in a replica, or in no strategy; and what may be asked where."""

from __future__ import annotations

import threading

import pytest

import flowrt as tf
from tests.distribute.strategies.cpus import central, initialized, mirrored, session

D = tf.distribute


def test_without_a_strategy_a_thread_is_in_the_only_replica() -> None:
    assert not D.has_strategy()
    assert not D.in_cross_replica_context()
    replica = D.get_replica_context()
    assert (replica.replica_id_in_sync_group, replica.num_replicas_in_sync) == (0, 1)
    assert replica.merge_call(lambda strategy, x: (strategy is D.get_strategy(), x), args=(3,)) == (True, 3)


def test_a_scope_is_cross_replica_and_a_function_is_in_its_replica() -> None:
    strategy = mirrored(2)
    found = []

    def fn() -> None:
        found.append((D.get_replica_context().replica_id_in_sync_group, D.in_cross_replica_context()))
        assert D.get_strategy() is strategy

    with strategy.scope() as opened:
        assert opened is strategy is D.get_strategy()
        assert D.has_strategy()
        assert D.in_cross_replica_context()
        assert D.get_replica_context() is None
        strategy.run(fn)
        assert D.in_cross_replica_context()
    assert found == [(0, False), (1, False)]
    assert not D.has_strategy()


def test_the_same_scope_may_nest_and_makes_the_variables_once() -> None:
    strategy = mirrored(2)
    with strategy.scope(), strategy.scope():
        v = tf.Variable(1.0)
    assert [copy.device for copy in v.copies] == ["/device:CPU:0", "/device:CPU:1"]


def test_another_strategys_scope_may_not_nest() -> None:
    with (
        mirrored(2).scope(),
        pytest.raises(tf.errors.FailedPreconditionError, match=r"inside that of <Mirrored"),
        central(2).scope(),
    ):
        pass
    with pytest.raises(tf.errors.FailedPreconditionError, match="other strategies"), mirrored(1).scope():
        mirrored(2).run(lambda: None)
    assert not D.has_strategy()


@pytest.mark.parametrize(
    "call",
    [
        lambda s: s.run(lambda: None),
        lambda s: s.reduce("SUM", 1.0, axis=None),
        lambda s: s.gather(tf.zeros([1]), 0),
        lambda s: s.scope().__enter__(),
        lambda s: s.experimental_distribute_dataset(tf.data.Dataset.range(4).batch(2)),
        lambda s: s.distribute_datasets_from_function(lambda _: tf.data.Dataset.range(4).batch(2)),
        lambda s: s.extended.update(tf.Variable(1.0), lambda v: v.assign(2.0)),
        lambda s: s.extended.reduce_to("SUM", 1.0, "/cpu:0"),
        lambda s: s.extended.broadcast_to(tf.zeros([]), "/cpu:0"),
    ],
)
def test_what_is_for_all_replicas_is_refused_in_one(call) -> None:
    strategy = mirrored(2)
    with pytest.raises(tf.errors.FailedPreconditionError, match="expected to be called cross-replica"):
        strategy.run(lambda: call(strategy))


def test_a_replica_is_used_by_its_own_function_only() -> None:
    strategy, kept = mirrored(2), []
    strategy.run(lambda: kept.append(D.get_replica_context()))
    for replica in kept:
        with pytest.raises(tf.errors.FailedPreconditionError, match="by its own replica"):
            replica.merge_call(lambda strategy: None)
        with pytest.raises(tf.errors.FailedPreconditionError, match="by its own replica"):
            replica.all_reduce("SUM", tf.constant(1.0))


def test_apply_gradients_belongs_in_a_replica() -> None:
    with mirrored(2).scope():
        v = tf.Variable(1.0)
        optimizer = tf.train.GradientDescentOptimizer(1.0)
        with pytest.raises(
            tf.errors.FailedPreconditionError, match=r"function that is passed to strategy.run"
        ):
            optimizer.apply_gradients([(tf.constant(1.0), v)])


def test_a_scope_belongs_to_its_thread() -> None:
    found = []
    with mirrored(2).scope():
        thread = threading.Thread(target=lambda: found.append(D.has_strategy()))
        thread.start()
        thread.join(30)
    assert found == [False]


def test_a_strategy_can_be_set_for_good() -> None:
    first, second = mirrored(2), central(2)
    D.experimental_set_strategy(first)
    try:
        assert D.get_strategy() is first
        D.experimental_set_strategy(second)
        assert D.get_strategy() is second
    finally:
        D.experimental_set_strategy(None)
    assert not D.has_strategy()
    with first.scope(), pytest.raises(tf.errors.FailedPreconditionError, match="outside strategies"):
        D.experimental_set_strategy(second)


def test_code_for_a_strategy_runs_without_one() -> None:
    strategy = D.get_strategy()
    with strategy.scope():
        v = tf.Variable(2.0)

    def fn(x: float) -> tf.Tensor:
        return D.get_replica_context().all_reduce("mean", v * x)

    total = strategy.reduce("SUM", strategy.run(fn, args=(3.0,)), axis=None)
    with initialized() as sess:
        assert sess.run(total) == 6.0
    assert type(v) is tf.Variable


@pytest.mark.parametrize(
    ("devices", "words"),
    [
        ([], "each once"),
        (["/cpu:0", "/device:CPU:0"], "each once"),
        (["/job:worker"], "with a type"),
        ("/cpu:0", "expected a list"),
        ([0], "expected a list"),
        (["/cpu:x"], "expected parts"),
    ],
)
def test_devices_are_checked(devices, words: str) -> None:
    with pytest.raises(tf.errors.InvalidArgumentError, match=words):
        D.MirroredStrategy(devices)


def test_the_default_device_is_the_cpu_where_there_is_no_gpu() -> None:
    devices = D.MirroredStrategy().extended.worker_devices
    assert len(devices) == max(1, len(tf.config.list_physical_devices("GPU")))


def test_one_device_is_where_everything_is() -> None:
    strategy = D.OneDeviceStrategy("/cpu:1")
    with strategy.scope():
        v = tf.Variable(3.0)
    result = strategy.run(lambda: v * 2.0)
    assert (v.device, result.device) == ("/device:CPU:1", "/device:CPU:1")
    assert strategy.experimental_local_results(result) == (result,)
    with session() as sess:
        sess.run(v.initializer)
        assert sess.run(result) == 6.0


def test_reduce_ops_have_names() -> None:
    strategy = mirrored(2)
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"ReduceOp.SUM or ReduceOp.MEAN; got 'max'"):
        strategy.reduce("max", 1.0, axis=None)
    assert D.ReduceOp.from_variable_aggregation(tf.VariableAggregation.MEAN) is D.ReduceOp.MEAN
    with pytest.raises(tf.errors.UnimplementedError, match="got NONE"):
        D.ReduceOp.from_variable_aggregation(tf.VariableAggregation.NONE)
