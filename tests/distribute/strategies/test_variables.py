"""Variables of a strategy: synchronization x aggregation, in replicas and outside, saved and restored."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import flowrt as tf
from tests.distribute.strategies.cpus import central, initialized, mirrored, numbered, session

Sync, Aggregation = tf.VariableSynchronization, tf.VariableAggregation
D = tf.distribute
BOTH = pytest.mark.parametrize("make", [mirrored, central])
AGGREGATED = {Aggregation.SUM: 3.0, Aggregation.MEAN: 1.5, Aggregation.ONLY_FIRST_REPLICA: 1.0}
AGGREGATIONS = pytest.mark.parametrize("aggregation", AGGREGATED)


def made(strategy: Any, initial: Any = 10.0, **options: Any) -> Any:
    with strategy.scope():
        return tf.Variable(initial, **options)


def copies(sess: tf.Session, variable: Any) -> list[Any]:
    return [value.tolist() for value in sess.run(list(variable.copies))]


# --- making them


def test_copies_are_on_the_devices_and_only_the_variable_is_collected() -> None:
    v = made(mirrored(2), name="v")
    assert [(c.op.name, c.device) for c in v.copies] == [
        ("v", "/device:CPU:0"),
        ("v/replica_1", "/device:CPU:1"),
    ]
    assert tf.global_variables() == tf.trainable_variables() == [v]
    assert isinstance(v, tf.Variable)
    assert (v.name, v.shape, v.dtype, v.device) == ("v:0", (), tf.float32, "/device:CPU:0")
    local = made(mirrored(2), collections=[tf.GraphKeys.LOCAL_VARIABLES], trainable=False)
    assert tf.local_variables() == [local]


def test_a_random_initial_value_is_drawn_once() -> None:
    v = made(mirrored(3), lambda: tf.random_normal([4]))
    with initialized() as sess:
        first, *others = copies(sess, v)
        assert others == [first, first]
        assert sess.run(tf.report_uninitialized_variables()).size == 0
        assert sess.run(v.initialized_value()).shape == (4,)


def test_central_storage_has_one_copy_on_the_cpu() -> None:
    v = made(central(3))
    assert [copy.device for copy in v.copies] == ["/device:CPU:0"]
    only = D.experimental.CentralStorageStrategy(["/cpu:2"])
    assert made(only).device == "/device:CPU:2"
    placed = D.experimental.CentralStorageStrategy(["/cpu:0", "/cpu:1"], "/cpu:3")
    assert made(placed).device == "/device:CPU:3"


def test_creators_around_a_strategy_see_each_copy_and_those_inside_the_variable() -> None:
    seen = []

    def creator(next_creator: Any, **arguments: Any) -> Any:
        seen.append(arguments["name"])
        return next_creator(**arguments)

    with tf.variable_creator_scope(creator), mirrored(2).scope():
        tf.Variable(1.0, name="v")
    assert seen == ["v", "v/replica_1/"]
    with mirrored(2).scope(), tf.variable_creator_scope(creator):
        tf.get_variable("w", [])
    assert seen[2:] == ["w"]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"synchronization": Sync.NONE}, "ON_WRITE or ON_READ in a strategy's scope; got NONE"),
        ({"synchronization": "on_read"}, "expected a VariableSynchronization"),
        ({"aggregation": "sum"}, "expected a VariableSynchronization"),
        ({"synchronization": Sync.ON_READ, "trainable": True}, "trainable=False"),
    ],
)
def test_wrong_policies_are_refused(options: dict[str, Any], words: str) -> None:
    with pytest.raises(tf.errors.InvalidArgumentError, match=words):
        made(mirrored(2), **options)
    assert not tf.global_variables()


# --- ON_WRITE


@BOTH
def test_cross_replica_writes_reach_every_copy(make) -> None:
    strategy = make(2)
    v = made(strategy)
    with strategy.scope():
        added, assigned = v.assign_add(5.0), v.assign(numbered(strategy, [1.0, 1.0]))
    with initialized() as sess:
        assert sess.run(added) == 15.0
        assert set(copies(sess, v)) == {15.0}
        assert sess.run(assigned) == 1.0
        assert set(copies(sess, v)) == {1.0}
        v.load(4.0, sess)
        assert set(copies(sess, v)) == {4.0}
        assert sess.run([v, v * 2.0]) == [4.0, 8.0]


@BOTH
@AGGREGATIONS
def test_replicas_writes_are_aggregated(make, aggregation: Aggregation) -> None:
    strategy = make(2)
    v = made(strategy, aggregation=aggregation)
    values = numbered(strategy, [1.0, 2.0])
    assigned = strategy.run(v.assign, args=(values,))
    added = strategy.run(lambda x: v.assign_add(x, read_value=False), args=(values,))
    shared = strategy.run(lambda: v.assign_sub(2.0, read_value=False))
    with initialized() as sess:
        total = AGGREGATED[aggregation]
        assert set(sess.run(strategy.experimental_local_results(assigned))) == {total}
        sess.run(added)
        assert set(copies(sess, v)) == {2 * total}
        sess.run(shared)
        assert set(copies(sess, v)) == {2 * total - (4.0 if aggregation is Aggregation.SUM else 2.0)}


@BOTH
def test_one_replicas_result_implies_that_all_copies_are_written(make) -> None:
    strategy = make(2)
    v = made(strategy, aggregation=Aggregation.SUM)
    assigned = strategy.experimental_local_results(strategy.run(lambda: v.assign(1.0)))
    with initialized() as sess:
        assert sess.run(assigned[0]) == 2.0
        assert set(copies(sess, v)) == {2.0}


@BOTH
def test_a_replicas_write_needs_an_aggregation(make) -> None:
    strategy = make(2)
    v = made(strategy)
    with pytest.raises(
        tf.errors.FailedPreconditionError, match="expected an aggregation for AssignAddVariableOp"
    ):
        strategy.run(lambda: v.assign_add(1.0))


@BOTH
@AGGREGATIONS
def test_rows_that_replicas_add_are_aggregated(make, aggregation: Aggregation) -> None:
    strategy = make(2)
    v = made(strategy, np.zeros((3, 2), "f"), aggregation=aggregation)

    def fn(i: Any) -> Any:
        return v.scatter_add(tf.IndexedSlices(tf.ones([2, 2]), tf.stack([i, 2])))

    added = strategy.run(fn, args=(numbered(strategy, [0, 1]),))
    with initialized() as sess:
        sess.run(strategy.experimental_local_results(added))
        expected = {
            Aggregation.SUM: [[1, 1], [1, 1], [2, 2]],
            Aggregation.MEAN: [[0.5, 0.5], [0.5, 0.5], [1, 1]],
            Aggregation.ONLY_FIRST_REPLICA: [[1, 1], [0, 0], [1, 1]],
        }
        assert copies(sess, v) == [expected[aggregation]] * len(v.copies)


def test_rows_that_replicas_set_have_no_sum() -> None:
    strategy = mirrored(2)
    v = made(strategy, np.zeros((3, 2), "f"), aggregation=Aggregation.SUM)
    with pytest.raises(tf.errors.UnimplementedError, match="ONLY_FIRST_REPLICA for ResourceScatterUpdate"):
        strategy.run(lambda: v.scatter_update(tf.IndexedSlices(tf.ones([1, 2]), tf.constant([0]))))


@BOTH
def test_update_changes_each_copy_with_its_own_value(make) -> None:
    strategy = make(2)
    v = made(strategy)
    with strategy.scope():
        places = strategy.extended.broadcast_to(tf.constant(3.0), v)
        result = strategy.extended.update(v, lambda v, x: v.assign_add(x * v), args=(places,), group=False)
        grouped = strategy.extended.update(v, lambda v: v.assign_add(1.0))
        found = strategy.experimental_local_results(result)
        assert [t.device for t in found] == [copy.device for copy in v.copies]
    with initialized() as sess:
        assert sess.run(found) == (40.0,) * len(found)
        sess.run(grouped)
        assert set(copies(sess, v)) == {41.0}


def test_a_copy_a_replica_does_not_count_up() -> None:
    with pytest.raises(tf.errors.UnimplementedError, match="assign_add instead of count_up_to"):
        made(mirrored(2), 0).count_up_to(3)


# --- ON_READ


@BOTH
@AGGREGATIONS
def test_replicas_write_their_own_copies_and_a_read_combines_them(make, aggregation: Aggregation) -> None:
    strategy = make(2)
    v = made(strategy, 0.0, synchronization=Sync.ON_READ, aggregation=aggregation)
    assert not v.trainable
    values = numbered(strategy, [1.0, 2.0])
    own = strategy.run(v.assign_add, args=(values,))
    rows = strategy.run(v.read_value)
    with strategy.scope():
        combined = v.read_value()
        also = strategy.extended.read_var(v)
    with initialized() as sess:
        assert sess.run(list(own.values)) == [1.0, 2.0]
        assert sess.run(list(rows.values)) == [1.0, 2.0]
        assert sess.run([combined, also, v, v + 0.0]) == [AGGREGATED[aggregation]] * 4


def test_on_read_without_an_aggregation_has_no_value_cross_replica() -> None:
    strategy = mirrored(2)
    v = made(strategy, synchronization=Sync.ON_READ)
    with strategy.scope(), pytest.raises(tf.errors.FailedPreconditionError, match="to read it cross-replica"):
        v.read_value()


@AGGREGATIONS
def test_cross_replica_assignments_are_what_a_read_gives(aggregation: Aggregation) -> None:
    strategy = mirrored(2)
    v = made(strategy, 0.0, synchronization=Sync.ON_READ, aggregation=aggregation)
    with strategy.scope():
        assigned = v.assign(5.0)
    with initialized() as sess:
        assert sess.run(assigned) == 5.0
        assert copies(sess, v) == ([2.5, 2.5] if aggregation is Aggregation.SUM else [5.0, 5.0])
        v.load(7.0, sess)
        assert sess.run(v) == 7.0


def test_integers_are_shared_out_without_loss() -> None:
    strategy = mirrored(3)
    v = made(strategy, 0, synchronization=Sync.ON_READ, aggregation=Aggregation.SUM)
    with strategy.scope():
        assigned = v.assign(8)
    with initialized() as sess:
        assert sess.run(assigned) == 8
        assert copies(sess, v) == [4, 2, 2]


@pytest.mark.parametrize("write", ["assign_add", "assign_sub"])
def test_a_sum_is_not_added_to_cross_replica(write: str) -> None:
    strategy = mirrored(2)
    v = made(strategy, synchronization=Sync.ON_READ, aggregation=Aggregation.SUM)
    with strategy.scope(), pytest.raises(tf.errors.FailedPreconditionError, match=r"expected assign\(\)"):
        getattr(v, write)(1.0)
    mean = made(strategy, 0.0, synchronization=Sync.ON_READ, aggregation=Aggregation.MEAN)
    with strategy.scope():
        added = mean.assign_add(1.0)
    with initialized() as sess:
        assert sess.run(added) == 1.0


def test_rows_are_read_of_what_a_read_gives() -> None:
    strategy = mirrored(2)
    v = made(strategy, np.ones((3, 2), "f"), synchronization=Sync.ON_READ, aggregation=Aggregation.SUM)
    with strategy.scope():
        rows = v.sparse_read([1])
    own = strategy.run(lambda: v.sparse_read([1]))
    with initialized() as sess:
        assert sess.run(rows).tolist() == [[2.0, 2.0]]
        assert [x.tolist() for x in sess.run(list(own.values))] == [[[1.0, 1.0]]] * 2


# --- saving


POLICIES = [
    (Sync.ON_WRITE, Aggregation.NONE, [10.0, 10.0], 10.0),
    (Sync.ON_READ, Aggregation.SUM, [1.0, 2.0], 3.0),
    (Sync.ON_READ, Aggregation.MEAN, [1.0, 2.0], 1.5),
    (Sync.ON_READ, Aggregation.ONLY_FIRST_REPLICA, [1.0, 2.0], 1.0),
]


@pytest.mark.parametrize(("synchronization", "aggregation", "before", "saved"), POLICIES)
def test_the_value_is_saved_and_restored(synchronization, aggregation, before, saved, tmp_path: Path) -> None:
    strategy = mirrored(2)
    v = made(strategy, 10.0, name="v", synchronization=synchronization, aggregation=aggregation)
    saver = tf.train.Saver()
    with initialized() as sess:
        for copy, value in zip(v.copies, before, strict=True):
            copy.load(value, sess)
        path = saver.save(sess, str(tmp_path / "model"))
    assert tf.train.load_variable(path, "v") == saved
    with session() as sess:
        saver.restore(sess, path)
        assert copies(sess, v) == ([saved / 2] * 2 if aggregation is Aggregation.SUM else [saved] * 2)
        assert sess.run(v) == saved
    with tf.Graph().as_default(), tf.Session() as sess:
        plain = tf.Variable(0.0, name="v")
        tf.train.Saver().restore(sess, path)
        assert sess.run(plain) == saved


def test_a_strategy_restores_what_a_plain_variable_saved(tmp_path: Path) -> None:
    with tf.Graph().as_default(), tf.Session() as sess:
        plain = tf.Variable(3.0, name="v")
        sess.run(plain.initializer)
        path = tf.train.Saver().save(sess, str(tmp_path / "model"))
    v = made(mirrored(3), name="v")
    with session() as sess:
        tf.train.Saver().restore(sess, path)
        assert copies(sess, v) == [3.0] * 3


@given(st.integers(-100, 100), st.integers(1, 4))
def test_what_copies_are_given_is_together_the_value(value: int, count: int) -> None:
    with tf.Graph().as_default():
        v = made(mirrored(count), 0, synchronization=Sync.ON_READ, aggregation=Aggregation.SUM)
    parts = v.value_for_copies(np.int32(value))
    assert len(parts) == count
    assert v.value_of_copies(parts) == value
