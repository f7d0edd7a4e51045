"""A function once a replica: threads take turns, merges are barriers, values are taken apart and put back."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import flowrt as tf
from flowrt.distribute.strategies.values.distributed_values import Mirrored, PerReplica, regroup, select
from tests.distribute.strategies.cpus import CPUS, initialized, mirrored, numbered, session

D = tf.distribute


def here() -> Any:
    return D.get_replica_context()


def replica_threads() -> list[str]:
    return [t.name for t in threading.enumerate() if t.name.startswith("flowrt-replica")]


# --- values


def test_each_replica_gets_its_own_and_results_are_regrouped() -> None:
    strategy = mirrored(3)
    given_ = PerReplica(["a", "b", "c"])
    result = strategy.run(
        lambda x, *, y: {"both": (x + y["z"], "same")}, args=(given_,), kwargs={"y": {"z": "!"}}
    )
    assert result["both"][0].values == ("a!", "b!", "c!")
    assert result["both"][1] == "same"


def test_operations_are_on_the_replicas_device_and_in_its_name_scope() -> None:
    strategy = mirrored(3)
    with tf.name_scope("outer"), tf.device("/job:localhost"):
        tensors = strategy.run(lambda: tf.constant(1.0, name="x")).values
    assert [t.device for t in tensors] == [f"/job:localhost/device:CPU:{i}" for i in range(3)]
    assert [t.op.name for t in tensors] == ["outer/x", "outer/replica_1/x", "outer/replica_2/x"]


def test_control_inputs_around_run_hold_in_every_replica() -> None:
    strategy, before = mirrored(2), tf.no_op(name="before")
    with tf.control_dependencies([before]):
        tensors = strategy.run(lambda: tf.placeholder(tf.float32)).values
    assert all(list(t.op.control_inputs) == [before] for t in tensors)


def test_what_the_replicas_return_has_one_structure() -> None:
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"replica 0 has \[0\], replica 1 has \[0, 1\]"):
        mirrored(2).run(lambda: list(range(1 + here().replica_id_in_sync_group)))


structures = st.recursive(
    st.integers(0, 3) | st.none() | st.text(max_size=2),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=2), inner, max_size=3),
)


@settings(max_examples=settings.default.max_examples // 2)
@given(structures, st.integers(1, 4))
def test_regroup_is_undone_by_select(structure: Any, count: int) -> None:
    def of(replica: int, value: Any) -> Any:
        """``value`` with another object in the place of each number."""
        if isinstance(value, list):
            return tuple(of(replica, item) for item in value)
        if isinstance(value, dict):
            return {key: of(replica, item) for key, item in value.items()}
        return (replica, value) if isinstance(value, int) else value

    replicas = [of(replica, structure) for replica in range(count)]
    grouped = regroup(replicas)
    assert [select(replica, grouped) for replica in range(count)] == replicas


def test_a_value_of_all_replicas_is_no_tensor() -> None:
    strategy = mirrored(2)
    value = numbered(strategy, [1.0, 2.0])
    with pytest.raises(tf.errors.FailedPreconditionError, match=r"got one per replica. Use strategy.reduce"):
        value + tf.constant(1.0)
    with pytest.raises(tf.errors.InvalidArgumentError, match="experimental_local_results"):
        list(value)
    captured = strategy.run(lambda: tf.identity(value) * 10.0)
    with session() as sess:
        assert sess.run(list(captured.values)) == [10.0, 20.0]


def test_local_results_and_group_take_structures() -> None:
    strategy = mirrored(2)
    value = numbered(strategy, [1.0, 2.0])
    assert strategy.experimental_local_results(value) == value.values
    assert strategy.experimental_local_results({"a": value, "b": 5})[1] == {"a": value.values[1], "b": 5}
    assert strategy.experimental_local_results(7) == (7,)
    group = strategy.group([value, tf.no_op()], name="all")
    assert {op.name for op in group.control_inputs} >= {v.op.name for v in value.values}


# --- merges


def test_a_merge_is_called_once_with_all_values() -> None:
    calls = []

    def merge(strategy: Any, a: Any, b: Any) -> Any:
        calls.append((D.in_cross_replica_context(), a.values, b))
        return PerReplica([f"r{i}" for i in range(3)]), "all"

    result = mirrored(3).run(lambda: here().merge_call(merge, (here().replica_id_in_sync_group,), {"b": 7}))
    assert calls == [(True, (0, 1, 2), 7)]
    assert result[0].values == ("r0", "r1", "r2")
    assert result[1] == "all"


def test_replicas_run_one_at_a_time_from_merge_to_merge() -> None:
    log = []

    def fn() -> None:
        number = here().replica_id_in_sync_group
        for step in range(3):
            log.append((step, number))
            here().merge_call(lambda _, at: log.append((at, "merge")), (step,))

    mirrored(3).run(fn)
    assert log == [(step, who) for step in range(3) for who in (0, 1, 2, "merge")]
    assert not replica_threads()


def test_a_merge_has_the_names_of_its_place_and_the_control_inputs_of_all() -> None:
    def fn() -> tf.Operation:
        first = tf.no_op(name="first")
        with tf.name_scope("inner"), tf.control_dependencies([first]), tf.variable_scope("scope"):
            return here().merge_call(lambda _: (tf.no_op(name="merged"), tf.get_variable_scope().name))

    merged, scope = mirrored(2).run(fn)
    assert merged.name == "inner/scope/merged"
    assert {op.name for op in merged.control_inputs} == {"first", "replica_1/first"}
    assert scope == "scope"


@pytest.mark.parametrize("last", [0, 1])
def test_replicas_that_merge_unequally_often_are_told(last: int) -> None:
    def fn() -> None:
        if here().replica_id_in_sync_group == last:
            here().merge_call(lambda strategy: None)

    with pytest.raises(tf.errors.InvalidArgumentError, match=rf"one more of replicas \[{last}\]"):
        mirrored(2).run(fn)
    assert not replica_threads()


def test_different_arguments_of_a_merge_are_told() -> None:
    with pytest.raises(tf.errors.InvalidArgumentError, match="values of the same structure"):
        mirrored(2).run(
            lambda: here().merge_call(lambda *_: None, tuple(range(here().replica_id_in_sync_group)))
        )
    assert not replica_threads()


@pytest.mark.parametrize("failing", [0, 1, 2])
def test_what_a_replica_raises_is_raised_and_all_leave_their_functions(failing: int) -> None:
    left = []

    def fn() -> None:
        try:
            here().merge_call(lambda strategy: None)
            if here().replica_id_in_sync_group == failing:
                raise KeyError("mine")
            here().merge_call(lambda strategy: None)
        finally:
            left.append(here().replica_id_in_sync_group)

    with pytest.raises(KeyError, match="mine"):
        mirrored(3).run(fn)
    assert sorted(left) == list(range(3))
    assert not replica_threads()
    assert not D.has_strategy()


def test_a_function_that_merges_while_it_is_left_does_not_stay() -> None:
    def fn() -> None:
        try:
            here().merge_call(lambda strategy: None)
            if here().replica_id_in_sync_group == 1:
                raise KeyError("mine")
            here().merge_call(lambda strategy: None)
        finally:
            here().merge_call(lambda strategy: None)

    with pytest.raises(tf.errors.InvalidArgumentError, match="equally often"):
        mirrored(2).run(lambda: fn() if here().replica_id_in_sync_group else None)
    with pytest.raises(KeyError, match="mine"):
        mirrored(2).run(fn)
    assert not replica_threads()


def test_what_a_merge_raises_is_raised() -> None:
    def broken(strategy: Any) -> None:
        raise LookupError("merge")

    with pytest.raises(LookupError, match="merge"):
        mirrored(2).run(lambda: here().merge_call(broken))
    assert not replica_threads()
    assert tf.get_default_graph().get_name_scope() == ""


def test_a_merge_inside_a_branch_is_refused() -> None:
    def fn() -> tf.Tensor:
        return tf.cond(tf.constant(True), lambda: here().all_reduce("sum", 1.0), lambda: 2.0)

    with pytest.raises(tf.errors.FailedPreconditionError, match="branch or loop inside it"):
        mirrored(2).run(fn)
    assert not replica_threads()


def test_one_device_merges_without_a_thread() -> None:
    strategy = D.OneDeviceStrategy("/cpu:0")
    assert strategy.run(lambda: here().merge_call(lambda s, x: (s is strategy, x), (5,))) == (True, 5)


ACTIONS = st.sampled_from(["operation", "variable", "layer", "merge", "scope", "reduce"])


@given(
    st.lists(ACTIONS, max_size=6),
    st.integers(1, 3),
    st.none() | st.tuples(st.integers(0, 2), st.integers(0, 5)),
)
def test_any_program_builds_the_same_for_each_replica_or_leaves_nothing(
    program: list[str], count: int, failure: tuple[int, int] | None
) -> None:
    """``failure``: the replica and the action at which the function raises, if it gets there."""

    def step(action: str) -> None:
        if action == "variable":
            tf.Variable(1.0)
        elif action == "layer":
            tf.layers.dense(tf.ones([1, 2]), 1)
        elif action == "merge":
            here().merge_call(lambda _: tf.Variable(2.0))
        elif action == "reduce":
            here().all_reduce("sum", tf.constant(1.0))
        else:
            tf.no_op()

    def fn() -> int:
        for at, action in enumerate(program):
            if failure == (here().replica_id_in_sync_group, at):
                raise LookupError(f"at {at}")
            with tf.name_scope("inner") if action == "scope" else tf.variable_scope(None, "outer"):
                step(action)
        return len(program)

    with tf.Graph().as_default() as graph:
        if failure and failure[0] < count and failure[1] < len(program):
            with pytest.raises(LookupError, match=f"at {failure[1]}"):
                mirrored(count).run(fn)
        else:
            assert mirrored(count).run(fn) == len(program)
            made = program.count("variable") + 2 * program.count("layer") + program.count("merge")
            assert len(tf.global_variables()) == made
            assert len({v.op.name for v in tf.global_variables()}) == made
        assert (graph.get_name_scope(), tf.get_variable_scope().name) == ("", "")
    assert not D.has_strategy()
    assert not replica_threads()


# --- variables made in replicas


def test_a_function_makes_each_variable_once() -> None:
    def fn() -> tuple[Any, ...]:
        with tf.variable_scope("scope"):
            got = tf.get_variable("v", [2])
        layer = tf.layers.dense(tf.ones([1, 3]), 2)
        return (
            got,
            tf.Variable(1.0, name="plain"),
            tf.Variable(2.0, name="plain"),
            tf.Variable(3.0, name="v"),
            layer,
        )

    strategy = mirrored(2)
    got, first, second, same_name, _ = strategy.run(fn)
    names = [v.op.name for v in (got, first, second, same_name)]
    assert names == ["scope/v", "plain", "plain_1", "v"]
    expected = ["scope/v", "dense/kernel", "dense/bias", "plain", "plain_1", "v"]
    assert [v.op.name for v in tf.global_variables()] == expected
    assert [copy.op.name for copy in first.copies] == ["plain", "plain/replica_1"]


def test_a_variable_that_get_variable_made_is_not_paired_with_another_of_its_name() -> None:
    def fn() -> tuple[Any, Any]:
        return tf.get_variable("v", []), tf.Variable(2.0, name="v")

    got, plain = mirrored(2).run(fn)
    assert tf.global_variables() == [got, plain]


def test_names_may_not_depend_on_the_replica() -> None:
    with pytest.raises(
        tf.errors.InvalidArgumentError, match=r"variable 'v1': expected replica 0 to create it"
    ):
        mirrored(2).run(lambda: tf.Variable(1.0, name=f"v{here().replica_id_in_sync_group}"))


def test_a_second_run_makes_new_layers_as_a_second_call_would() -> None:
    strategy = mirrored(2)
    for _ in range(2):
        strategy.run(lambda: tf.layers.dense(tf.ones([1, 3]), 2, use_bias=False))
    assert [v.op.name for v in tf.global_variables()] == ["dense/kernel", "dense_1/kernel"]


def test_a_layer_object_is_shared() -> None:
    strategy, layer = mirrored(2), tf.layers.Dense(1, kernel_initializer=tf.ones_initializer())
    value = numbered(strategy, [np.ones((1, 2), "f"), np.full((1, 2), 2, "f")])
    out = strategy.run(layer, args=(value,))
    with initialized() as sess:
        assert [v.item() for v in sess.run(list(out.values))] == [2.0, 4.0]
    assert len(layer.weights) == 2


# --- reductions in replicas


@pytest.mark.parametrize(("op", "total"), [("sum", 6.0), ("MEAN", 2.0)])
def test_all_reduce_gives_every_replica_the_reduction(op: str, total: float) -> None:
    strategy = mirrored(3)
    value = numbered(strategy, [1.0, 2.0, 3.0])
    result = strategy.run(lambda x: here().all_reduce(op, {"a": x, "b": [x * 2.0]}), args=(value,))
    assert [v.device for v in result["a"].values] == ["/device:CPU:0", "/device:CPU:1", "/device:CPU:2"]
    with session() as sess:
        assert sess.run(list(result["a"].values)) == [total] * 3
        assert sess.run(list(result["b"][0].values)) == [2 * total] * 3


def test_the_gradient_of_all_reduce_is_that_of_all_replicas_losses() -> None:
    strategy = mirrored(3)

    def fn(x: tf.Tensor) -> Any:
        total = here().all_reduce("sum", x)
        return tf.gradients(total * x, x)[0]

    with session() as sess:
        # L = sum_j t x_j with t = sum_j x_j, of which each replica has one term: dL/dx_i = 2 t
        assert (
            sess.run(list(strategy.run(fn, args=(numbered(strategy, [1.0, 2.0, 4.0]),)).values)) == [14.0] * 3
        )


def test_all_reduce_of_slices_gathers_them() -> None:
    strategy = mirrored(2)

    def fn(i: tf.Tensor) -> Any:
        slices = tf.IndexedSlices(tf.ones([1, 2]), tf.reshape(i, [1]), tf.constant([3, 2]))
        total = here().all_reduce("sum", slices)
        return tf.convert_to_tensor(total)

    dense = strategy.run(fn, args=(numbered(strategy, [0, 2]),))
    with session() as sess:
        for value in sess.run(list(dense.values)):
            np.testing.assert_array_equal(value, [[1, 1], [0, 0], [1, 1]])


def test_all_gather_joins_what_differs_along_the_axis() -> None:
    strategy = mirrored(2)
    value = numbered(strategy, [np.zeros((2, 1)), np.ones((2, 3))])
    result = strategy.run(lambda x: here().all_gather(x, axis=1), args=(value,))
    gathered = strategy.gather(value, axis=1)
    with session() as sess:
        for found in sess.run([*result.values, gathered]):
            np.testing.assert_array_equal(found, [[0, 1, 1, 1]] * 2)


# --- reductions of results


def test_reduce_of_a_mean_counts_elements() -> None:
    strategy = mirrored(2)
    value = numbered(strategy, [np.array([1.0, 2.0, 3.0, 4.0]), np.array([5.0, 9.0])])
    with session() as sess:
        assert sess.run(strategy.reduce("mean", value, axis=0)) == 4.0  # 24 / 6, not (2.5 + 7) / 2
        assert sess.run(strategy.reduce("sum", value, axis=0)) == 24.0


def test_a_mean_of_integers_along_an_axis_is_no_integer() -> None:
    strategy = mirrored(2)
    value = numbered(strategy, [np.array([1, 2]), np.array([2])])
    with session() as sess:
        assert sess.run(strategy.reduce("mean", value, axis=0)) == pytest.approx(5 / 3, abs=1e-15)


def test_one_tensor_or_number_for_all_is_its_own_mean_and_is_not_summed() -> None:
    strategy = mirrored(2)
    with session() as sess:
        assert sess.run(strategy.reduce("sum", strategy.run(lambda: tf.constant(3)), axis=None)) == 6
        assert sess.run(strategy.reduce("mean", tf.constant(3.0), axis=None)) == 3.0
        assert sess.run(strategy.reduce("mean", strategy.run(lambda: 3), axis=None)) == 3
    for value in (tf.constant(3.0), strategy.run(lambda: 3)):
        with pytest.raises(tf.errors.InvalidArgumentError, match="Is it already reduced"):
            strategy.reduce("sum", value, axis=None)


def test_mirrored_values_are_the_first_outside() -> None:
    strategy = mirrored(2)
    with strategy.scope():
        both = strategy.extended.broadcast_to(tf.constant(2.0), None)
    assert isinstance(both, Mirrored)
    assert [v.device for v in both.values] == ["/device:CPU:0", "/device:CPU:1"]
    with session() as sess:
        assert sess.run([both, both + 1.0]) == [2.0, 3.0]


def test_each_replica_may_draw_its_own_numbers() -> None:
    strategy = mirrored(len(CPUS))
    with session() as sess:
        assert len(set(sess.run(list(strategy.run(lambda: tf.random_uniform([])).values)))) == len(CPUS)
