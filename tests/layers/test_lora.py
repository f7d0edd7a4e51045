"""`LoraDense`: what is trained, what is merged, and that nothing exists for the frozen kernel."""

from __future__ import annotations

import contextlib
from typing import Any

import numpy as np
import pytest

import flowrt as tf
from flowrt.errors import InvalidArgumentError
from flowrt.viz import explain_layouts

INPUTS, UNITS, RANK, BATCH = 10, 14, 3, 8
PLAN = {"first/(kernel|up)": "column", "second/(kernel|down)": "row"}


def net() -> tuple[Any, Any, Any, Any]:
    """Two adapted layers, the second back to the inputs' size."""
    x = tf.placeholder(tf.float64, [BATCH, 4, INPUTS])
    h = tf.layers.lora_dense(x, UNITS, RANK, 2.0, activation=tf.nn.tanh, name="first")
    y = tf.layers.lora_dense(h, INPUTS, RANK, 2.0, name="second")
    loss = tf.reduce_mean(tf.square(y - x[:, ::-1]))
    return x, y, loss, tf.train.AdamOptimizer(0.01).minimize(loss)


FEED = np.random.default_rng(0).standard_normal((BATCH, 4, INPUTS))


def trained(strategy: Any = None) -> tuple[list[float], Any]:
    """The losses of 10 steps, and the layouts of one."""
    with tf.Graph().as_default():
        tf.set_random_seed(1)
        if strategy is None:
            x, _, loss, train = net()
        else:
            with strategy.scope():
                x, _, loss, train = net()
        with tf.Session(config=tf.ConfigProto(device_count={"CPU": 4})) as session:
            session.run(tf.global_variables_initializer())
            losses = [session.run([loss, train], {x: FEED})[0] for _ in range(10)]
            found = explain_layouts(session, [loss, train], {x: FEED})
            return losses, found


def moved(step: Any) -> dict[str, tuple[int, int]]:
    """What sends messages, as counts and bytes by kind."""
    return {kind: total for kind, total in step.totals().items() if total[1]}


def test_only_the_factors_are_trained() -> None:
    """There are no slots for a kernel, and a step computes no gradient of its shape."""
    with tf.Graph().as_default():
        net()
        names = [v.op.name for v in tf.global_variables()]
    factors = ["first/down", "first/up", "second/down", "second/up"]
    assert [n for n in names if n.endswith("Adam")] == [f"{factor}/Adam" for factor in factors]
    _, step = trained(tf.distribute.LayoutStrategy(tf.distribute.Mesh([("dp", 2)])))
    gradients = {t.layout for t in step.tensors if t.name.startswith("gradients/")}
    assert f"float64[{INPUTS}, {RANK}]" in gradients
    assert not {f"float64[{INPUTS}, {UNITS}]", f"float64[{UNITS}, {INPUTS}]"} & gradients


def test_it_begins_as_the_dense_layer_whose_checkpoint_it_reads(tmp_path: Any) -> None:
    x = np.random.default_rng(1).standard_normal((2, INPUTS))
    with tf.Graph().as_default(), tf.Session() as session:
        y = tf.layers.dense(tf.constant(x), UNITS, bias_initializer=tf.ones_initializer(), name="layer")
        session.run(tf.global_variables_initializer())
        path, expected = tf.train.Saver().save(session, f"{tmp_path}/dense"), session.run(y)
    with tf.Graph().as_default(), tf.Session() as session:
        y = tf.layers.lora_dense(tf.constant(x), UNITS, RANK, name="layer")
        session.run(tf.global_variables_initializer())
        frozen = [v for v in tf.global_variables() if v not in tf.trainable_variables()]
        tf.train.Saver(frozen).restore(session, path)
        np.testing.assert_array_equal(session.run(y), expected)


def test_a_merged_kernel_computes_the_same() -> None:
    with tf.Graph().as_default(), tf.Session() as session:
        tf.set_random_seed(0)
        layer = tf.layers.LoraDense(UNITS, RANK, alpha=5.0, activation=tf.nn.tanh)
        x = tf.placeholder(tf.float64, [None, INPUTS])
        y, merge = layer(x), layer.merge()
        session.run(tf.global_variables_initializer())
        session.run(layer.up.assign(tf.random_normal([RANK, UNITS], dtype=tf.float64)))
        feed = {x: FEED[:, 0]}
        before, merged = session.run([y, layer.merged_kernel()], feed)
        np.testing.assert_allclose(np.tanh(FEED[:, 0] @ merged), before, 1e-6)
        session.run(merge)
        np.testing.assert_array_equal(session.run(layer.kernel), merged)
        assert not session.run(layer.up).any()
        np.testing.assert_allclose(session.run(y, feed), before, 1e-6)


def test_data_parallelism_moves_the_gradients_of_the_factors_alone() -> None:
    strategy = tf.distribute.LayoutStrategy(tf.distribute.Mesh([("dp", 2)]), batch="dp")
    losses, step = trained(strategy)
    np.testing.assert_allclose(losses, trained()[0], 1e-12)
    factors = 2 * (INPUTS * RANK + RANK * UNITS)
    assert moved(step) == {"AllReduce": (4, 2 * 8 * factors)}


@pytest.mark.parametrize("axes", [[("tp", 2)], [("dp", 2), ("tp", 2)]])
def test_factors_are_in_parts_with_their_kernels(axes: Any) -> None:
    """A pair of layers is one sum, of the base and the change together. The inner numbers of the change are
    summed once, for the gradient of ``up``, and so is the gradient of the ``down`` that is whole.
    """
    mesh = tf.distribute.Mesh(axes)
    strategy = tf.distribute.TensorParallelStrategy(mesh, plan=PLAN, batch="dp" if len(axes) > 1 else None)
    losses, step = trained(strategy)
    np.testing.assert_allclose(losses, trained()[0], 1e-12)
    assert step.remarks == ()
    if len(axes) == 1:
        rows = BATCH * 4
        summed = rows * INPUTS + rows * RANK + INPUTS * RANK
        assert moved(step) == {"AllReduce": (3, 2 * 8 * summed)}


@pytest.mark.parametrize("stage", [1, 2, 3])
def test_fully_sharded_a_frozen_kernel_is_gathered_at_most(stage: int) -> None:
    """Of gradients and updates, only those of the factors are sent."""
    mesh = tf.distribute.Mesh([("dp", 2)])
    losses, step = trained(tf.distribute.FullyShardedStrategy(mesh, stage=stage, min_bytes=0))
    np.testing.assert_allclose(losses, trained()[0], 1e-12)
    found, factors = moved(step), 2 * (INPUTS * RANK + RANK * UNITS)
    assert found.keys() == {"ReduceScatter", "AllGather"}
    assert found["ReduceScatter"] == (4, 8 * factors)
    if stage < 3:
        assert found["AllGather"] == (4, 8 * factors)


@pytest.mark.parametrize("stage", [2, 3])
@pytest.mark.parametrize("axes", [[("dp", 2)], [("dp", 2), ("tp", 2)]])
def test_what_is_merged_in_parts_is_that_of_one_device(axes: Any, stage: int) -> None:
    def run(scope: Any) -> list[Any]:
        with tf.Graph().as_default(), scope:
            tf.set_random_seed(0)
            layer = tf.layers.LoraDense(UNITS, RANK, alpha=5.0, name="first")
            x = tf.placeholder(tf.float64, [BATCH, INPUTS])
            y, feed = layer(x), {x: FEED[:, 0]}
            train = tf.train.AdamOptimizer(0.1).minimize(tf.reduce_mean(tf.square(y - 1)))
            merge = layer.merge()
            with tf.Session(config=tf.ConfigProto(device_count={"CPU": 4})) as session:
                session.run(tf.global_variables_initializer())
                for _ in range(3):
                    session.run(train, feed)
                before = session.run(y, feed)
                session.run(merge)
                np.testing.assert_allclose(session.run(y, feed), before, 1e-9)
                return [before, *session.run([layer.kernel, layer.down, layer.up])]

    plan = {"plan": {"first/(kernel|up)": "column"}} if len(axes) > 1 else {}
    mesh = tf.distribute.Mesh(axes)
    strategy = tf.distribute.FullyShardedStrategy(mesh, stage=stage, min_bytes=0, **plan)
    for found, expected in zip(run(strategy.scope()), run(contextlib.nullcontext()), strict=True):
        np.testing.assert_allclose(found, expected, 1e-9, 1e-12)


def test_mistakes() -> None:
    for rank, alpha, message in [
        (0, 1.0, "LoraDense: rank: expected an integer >= 1; got 0"),
        (-1, 1.0, "LoraDense: rank: expected an integer >= 1; got -1"),
        (2.5, 1.0, "LoraDense: rank: expected an integer >= 1; got 2.5"),
        (2, float("nan"), "alpha: expected a finite number; got nan"),
        (2, "4", "alpha: expected a finite number; got '4'"),
        (2, None, "alpha: expected a finite number; got None"),
        (2, [1.0], r"alpha: expected a finite number; got \[1.0\]"),
        (2, True, "alpha: expected a finite number; got True"),
        ("a", 1.0, "rank: expected an integer"),
    ]:
        with pytest.raises(InvalidArgumentError, match=message):
            tf.layers.LoraDense(4, rank, alpha)
    with pytest.raises(InvalidArgumentError, match="no factors to merge before its first call"):
        tf.layers.LoraDense(4, 2).merge()
