"""What a picture or an error says of a reduction: which variable it is for, and the user's line behind it."""

from __future__ import annotations

import inspect
from typing import Any

import pytest

import flowrt as tf
from flowrt.distribute.collectives import Group
from tests.distribute.strategies.cpus import central, mirrored, session
from tests.distribute.strategies.workers_of_one_process import Worker

D = tf.distribute


def made_by(build: Any) -> list[tf.Operation]:
    before = len(tf.get_default_graph().get_operations())
    build()
    return tf.get_default_graph().get_operations()[before:]


def minimized(strategy: Any, names: str = "ab") -> list[tf.Operation]:
    """The operations of a step that trains a variable of each name."""
    with strategy.scope():
        variables = [tf.get_variable(name, [3], initializer=tf.ones_initializer()) for name in names]
        optimizer = tf.train.GradientDescentOptimizer(0.5)

    def fn() -> Any:
        return optimizer.minimize(tf.reduce_sum(tf.add_n([v * v for v in variables])))

    return made_by(lambda: strategy.run(fn))


@pytest.mark.parametrize(
    ("ops", "scopes"),
    [
        (D.ReductionToEachDevice, {"all_reduce/a", "all_reduce/b"}),
        (D.ReductionToOneDevice, {"all_reduce/a", "all_reduce/b"}),
        (lambda: D.AllReduceCrossDeviceOps(num_packs=0), {"all_reduce/a", "all_reduce/b"}),
        (D.AllReduceCrossDeviceOps, {"all_reduce/a_and_1_more"}),
    ],
)
def test_a_reduction_has_the_name_of_its_variables(ops: Any, scopes: set[str]) -> None:
    made = [op.name.split("/") for op in minimized(mirrored(2, cross_device_ops=ops()))]
    assert {"/".join(name[:2]) for name in made if name[0] == "all_reduce"} == scopes


def test_a_sum_for_one_place_is_called_reduce() -> None:
    names = [op.name for op in minimized(central(2))]
    assert "reduce/a/AddN" in names
    assert "reduce/b/AddN" in names


def test_a_bucket_of_workers_has_the_name_of_its_first_gradient() -> None:
    made = minimized(Worker(Group("names", 2, (0,)), bucket_bytes=24), "abc")
    assert [op.name for op in made if op.type == "AllReduce"] == [
        "all_reduce/c_and_1_more/AllReduce",
        "all_reduce/a/AllReduce",
    ]


def test_a_value_has_the_name_of_the_replicas_operation() -> None:
    strategy = mirrored(2)
    made = made_by(
        lambda: strategy.run(lambda: D.get_replica_context().all_reduce("SUM", tf.ones([], name="one")))
    )
    assert "all_reduce/one/AddN" in [op.name for op in made]


# --- lines


def line_of(function: Any, text: str) -> str:
    lines, first = inspect.getsourcelines(function)
    return f"{__file__}:{first + next(i for i, line in enumerate(lines) if text in line)}"


@pytest.mark.parametrize("make", [lambda: mirrored(2), lambda: central(2), lambda: mirrored(1)])
def test_all_that_an_update_makes_is_of_the_users_line(make: Any) -> None:
    made = minimized(make())
    merged = [op for op in made if op.name.startswith(("all_reduce", "reduce", "GradientDescent"))]
    assert {op.source for op in merged} == {line_of(minimized, "optimizer.minimize")}


def test_a_users_merge_has_its_own_lines_and_its_error_names_them() -> None:
    def merge(strategy: Any, value: Any) -> Any:
        total = strategy.reduce("SUM", value, axis=None)
        return tf.log(total)

    def fn() -> Any:
        return D.get_replica_context().merge_call(merge, (tf.ones([]),))

    strategy = mirrored(2)
    with session() as sess:
        assert sess.run(strategy.run(fn)) == pytest.approx(0.6931472)
    ops = {op.type: op.source for op in tf.get_default_graph().get_operations()}
    assert ops["AddN"] == line_of(merge, "strategy.reduce")
    assert ops["Log"] == line_of(merge, "tf.log")
