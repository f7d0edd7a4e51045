"""What a script gets wrong with strategies is refused where it stands, by an error that says what to do."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import flowrt as tf
from flowrt.distribute.collectives import Group
from tests.distribute.strategies.cpus import central, initialized, mirrored, numbered, session
from tests.distribute.strategies.workers_of_one_process import Worker

D = tf.distribute
Refused = tf.errors.FailedPreconditionError
MIRRORED_AND_CENTRAL = pytest.mark.parametrize("make", [mirrored, central])


def made(strategy: Any, initial: Any = 1.0, **options: Any) -> Any:
    with strategy.scope():
        return tf.Variable(initial, name="w", **options)


# --- copies do not drift apart


class OwnOptimizer(tf.train.Optimizer):
    """As scripts define them."""

    def __init__(self) -> None:
        super().__init__(False, "Own")

    def _apply_dense(self, grad: Any, var: Any) -> Any:
        return tf.assign_sub(var, grad).op


OPTIMIZERS = pytest.mark.parametrize(
    "optimizer",
    [
        lambda: tf.train.GradientDescentOptimizer(0.1),
        lambda: tf.train.MomentumOptimizer(0.1, 0.9),
        lambda: tf.train.AdamOptimizer(0.1),
        OwnOptimizer,
    ],
)


@OPTIMIZERS
def test_a_variable_with_copies_is_not_trained_outside_of_its_strategy(optimizer) -> None:
    w = made(mirrored(2))
    loss, before = w * w, len(tf.global_variables())
    with pytest.raises(Refused, match=r"'w:0': expected .* in strategy.run\(\) .*; got .* outside.*Call"):
        optimizer().minimize(loss)
    assert len(tf.global_variables()) == before


@OPTIMIZERS
def test_a_variable_with_copies_is_not_trained_in_another_strategy(optimizer) -> None:
    w, other = made(mirrored(2)), D.OneDeviceStrategy("/cpu:0")
    with pytest.raises(Refused, match=r"'w:0': expected one of <OneDevice.*scope\(\)"):
        other.run(lambda: optimizer().minimize(w * w))


def test_rows_of_a_variable_with_copies_are_not_trained_outside() -> None:
    w = made(mirrored(2), np.ones((3, 2), "f"))
    with pytest.raises(Refused, match="'w:0'"):
        tf.train.GradientDescentOptimizer(0.1).minimize(tf.reduce_sum(tf.gather(w, [0, 1])))


def test_a_variable_with_copies_is_not_counted_up() -> None:
    w = made(mirrored(2), 0)
    with pytest.raises(tf.errors.UnimplementedError, match="assign_add instead of count_up_to"):
        tf.count_up_to(w, 3)


def test_what_writes_all_copies_and_what_reads_stays_allowed_outside() -> None:
    w = made(mirrored(2))
    writes = [w.assign(3.0), tf.assign_add(w, 1.0), w.assign_sub(0.5)]
    other = D.OneDeviceStrategy("/cpu:1").run(lambda: w.assign_add(1.0))
    (gradient,) = tf.gradients(w * w, [w])
    with initialized() as sess:
        for write, expected in zip([*writes, other], [3.0, 4.0, 3.5, 4.5], strict=True):
            sess.run(write)
            assert sess.run([*w.copies, w, w.read_value()]) == [expected] * 4
        assert sess.run(gradient) == 9.0


def test_a_variable_with_one_copy_is_trained_anywhere() -> None:
    w = made(D.OneDeviceStrategy("/cpu:0"))
    train = tf.train.GradientDescentOptimizer(0.5).minimize(w * w)
    with initialized() as sess:
        sess.run(train)
        assert sess.run(w) == 0.0


def test_a_workers_only_copy_is_one_of_several() -> None:
    w = made(Worker(Group("two workers", 2, (0,))))
    assert len(w.copies) == 1
    with pytest.raises(Refused, match="only one copy"):
        tf.train.GradientDescentOptimizer(0.5).minimize(w * w)


@MIRRORED_AND_CENTRAL
def test_a_variable_of_no_strategy_is_not_trained_in_replicas(make) -> None:
    w, strategy = tf.Variable(1.0, name="w"), make(2)
    optimizer = tf.train.GradientDescentOptimizer(0.1)
    with pytest.raises(Refused, match=r"apply_gradients: variable 'w:0'.*inside strategy\.scope\(\)"):
        strategy.run(lambda: optimizer.minimize(w * w))


def test_on_read_without_an_aggregation_is_not_fetched_cross_replica() -> None:
    strategy = mirrored(2)
    w = made(strategy, synchronization=tf.VariableSynchronization.ON_READ)
    own = strategy.run(lambda: w.assign_add(1.0))
    with initialized() as sess:
        for read in (
            lambda: sess.run(w),
            lambda: w.eval(sess),
            lambda: tf.convert_to_tensor(w),
            lambda: w + 1.0,
        ):
            with pytest.raises(Refused, match="expected an aggregation to read it cross-replica"):
                read()
        assert sess.run(list(own.values)) == [2.0, 2.0]


# --- values of replicas


def test_a_value_a_replica_is_no_fetch() -> None:
    strategy = mirrored(2)
    values = numbered(strategy, [1.0, 2.0])
    hint = r"fetches\[0\].*strategy\.reduce\(\) or .*experimental_local_results\(\)"
    with session() as sess, pytest.raises(tf.errors.DTypeError, match=hint):
        sess.run([values])


@MIRRORED_AND_CENTRAL
@pytest.mark.parametrize("value", [3.0, 3, np.float32(3.0), [3.0]])
def test_one_number_for_all_replicas_has_no_sum(make, value) -> None:
    with pytest.raises(tf.errors.InvalidArgumentError, match="one value per replica to sum; got one for all"):
        make(2).reduce("SUM", value)


def test_one_number_for_all_replicas_has_a_mean_and_zeros_a_sum() -> None:
    strategy = mirrored(2)
    found = [strategy.reduce("MEAN", 3.0), strategy.reduce("SUM", 0.0), strategy.reduce("SUM", 0)]
    one = mirrored(1).reduce("SUM", 3.0)
    with session() as sess:
        assert sess.run([*found, one]) == [3.0, 0.0, 0, 3.0]


def test_what_is_reduced_already_has_no_sum_where_a_worker_has_one_device() -> None:
    strategy = Worker(Group("two workers", 2, (0,)))
    w = made(strategy)
    loss = strategy.run(lambda: w * 2.0)
    total = strategy.reduce("SUM", loss)
    for value in (total, total / 8.0, strategy.reduce("MEAN", loss), w, 3.0, [total, loss]):
        with pytest.raises(tf.errors.InvalidArgumentError, match="Is it already reduced"):
            strategy.reduce("SUM", value)


def test_what_a_workers_only_replica_made_has_a_sum() -> None:
    """Also of what was reduced before, as where devices are several."""
    strategy = Worker(Group("two workers", 2, (0,)))
    w = made(strategy)
    total = strategy.reduce("SUM", strategy.run(lambda: w * 2.0))
    mean = strategy.reduce("MEAN", total)
    own = strategy.run(
        lambda value: {"of all": value * 3.0, "own": w + value, "one": tf.constant(1.0)}, [total]
    )
    assert set(strategy.reduce("SUM", own)) == set(own)
    for value in (
        numbered(strategy, [1.0, 2.0]),
        tf.random_uniform([]) * mean,
        tf.placeholder(tf.float32),
        0,
    ):
        assert strategy.reduce("SUM", value).graph is tf.get_default_graph()


# --- what was called, with what


@pytest.mark.parametrize(
    ("called", "call"),
    [
        ("run", lambda s: s.run(lambda: None)),
        ("reduce", lambda s: s.reduce("SUM", tf.constant(1.0))),
        ("gather", lambda s: s.gather(tf.zeros([1]), 0)),
        ("experimental_run", lambda s: s.experimental_run(lambda: None)),
        ("scope", lambda s: s.scope().__enter__()),
    ],
)
def test_what_is_refused_in_a_replica_is_named(called: str, call) -> None:
    strategy = mirrored(2)
    with pytest.raises(Refused, match=rf"strategy\.{called}: expected to be called cross-replica"):
        strategy.run(lambda: call(strategy))


def test_the_scope_around_is_named_by_its_own_strategy() -> None:
    words = r"OneDeviceStrategy\.run: .*inside that of <MirroredStrategy of 2 replicas>"
    with mirrored(2).scope(), pytest.raises(Refused, match=words):
        D.OneDeviceStrategy("/cpu:0").run(lambda: None)


@pytest.mark.parametrize("device", [["/cpu:0"], ("/cpu:0",), 0, None])
def test_one_device_is_one_name(device) -> None:
    with pytest.raises(tf.errors.DTypeError, match="OneDeviceStrategy: expected the name of one device"):
        D.OneDeviceStrategy(device)


@pytest.mark.parametrize("ops", ["ring", D.NcclAllReduce, 0])
def test_cross_device_ops_are_an_object(ops) -> None:
    with pytest.raises(tf.errors.DTypeError, match=r"MirroredStrategy: expected .*CrossDeviceOps.*; got "):
        D.MirroredStrategy(["/cpu:0"], cross_device_ops=ops)


def test_communication_is_one_that_there_is() -> None:
    with pytest.raises(tf.errors.DTypeError, match="one of AUTO, RING, NCCL; got 'ring'"):
        D.experimental.MultiWorkerMirroredStrategy("ring")


def test_a_cluster_is_told_by_a_resolver() -> None:
    with pytest.raises(
        tf.errors.DTypeError, match=r"expected a ClusterResolver as cluster_resolver; got 'ring'"
    ):
        D.experimental.ParameterServerStrategy("ring")


@pytest.mark.parametrize("devices", [3, "/cpu:0", [3]])
def test_devices_are_names(devices) -> None:
    with pytest.raises(tf.errors.DTypeError, match="MirroredStrategy: expected a list of device names; got"):
        D.MirroredStrategy(devices)


@pytest.mark.parametrize("steps", ["ten", 2.5, None, 0])
def test_steps_per_loop_is_a_number_of_steps(steps) -> None:
    with pytest.raises(
        tf.errors.InvalidArgumentError, match=rf"expected steps_per_loop >= 1.*; got {steps!r}$"
    ):
        mirrored(2).experimental_run(lambda: tf.constant(1), steps_per_loop=steps)


@pytest.mark.parametrize("make", [lambda: mirrored(2), D.get_strategy])
@pytest.mark.parametrize("args", [lambda: tf.constant([1.0, 2.0]), lambda: 3, lambda: "ab"])
def test_arguments_are_a_tuple(make, args) -> None:
    with pytest.raises(tf.errors.DTypeError, match=r"strategy\.run: expected args to be a tuple"):
        make().run(lambda x: x, args=args())


# --- names


@pytest.mark.parametrize("shared_name", [None, "batches"])
def test_a_distributed_dataset_has_the_iterators_that_tf_data_makes(shared_name) -> None:
    strategy = mirrored(2)
    dataset = strategy.experimental_distribute_dataset(tf.data.Dataset.range(4).batch(4))
    iterator = tf.data.make_initializable_iterator(dataset, shared_name)
    once = tf.data.make_one_shot_iterator(dataset)
    with session() as sess:
        sess.run(iterator.initializer)
        for each in (iterator, once):
            parts = sess.run(list(strategy.experimental_local_results(each.get_next())))
            assert [part.tolist() for part in parts] == [[0, 1], [2, 3]]


@pytest.mark.parametrize("make", [tf.data.make_initializable_iterator, tf.data.make_one_shot_iterator])
def test_an_iterator_is_of_a_dataset(make) -> None:
    with pytest.raises(tf.errors.DTypeError, match=r"expected a dataset; got \[1, 2\]"):
        make([1, 2])


@pytest.mark.parametrize(
    ("space", "name", "nearest"),
    [
        (D, "ParameterServerStrategy", "distribute.experimental.ParameterServerStrategy"),
        (D, "CentralStorageStrategy", "distribute.experimental.CentralStorageStrategy"),
        (D, "CollectiveAllReduceStrategy", "distribute.MultiWorkerMirroredStrategy"),
        (D.experimental, "CollectiveAllReduceStrategy", "distribute.MultiWorkerMirroredStrategy"),
        (D.experimental, "MirroredStrategy", "distribute.MirroredStrategy"),
    ],
)
def test_a_name_that_is_elsewhere_says_where(space, name: str, nearest: str) -> None:
    with pytest.raises(AttributeError, match=f"Instead: {nearest}"):
        getattr(space, name)


def test_only_what_scripts_use_is_shown() -> None:
    shown = dir(D)
    assert not {"annotations", "worker", "missing_name", "importlib", "Any", "launcher"} & set(shown)
    assert all(callable(getattr(D, name)) for name in shown if name[0].isupper())
    assert {"MirroredStrategy", "Server", "experimental", "cluster_resolver", "get_strategy"} <= set(shown)
    assert {name for name in shown if not callable(getattr(D, name))} == {"cluster_resolver", "experimental"}
