"""Mixed precision and loss scales under layouts: nets train as in float32, and one decision skips a step."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest

import flowrt as tf
from flowrt.errors import DTypeError
from flowrt.viz import explain_layouts
from tests.distribute.strategies.cpus import initialized, mirrored
from tests.distribute.strategies.nets_with_layouts import COLUMNS, NETS, of_net
from tests.each import daily

E = tf.train.experimental
BF16 = tf.distribute.Precision("bfloat16")
FP16 = tf.distribute.Precision("float16")


def scaled(optimizer: Any, scale: float = 2.0**10, period: int = 2000) -> Any:
    return E.MixedPrecisionLossScaleOptimizer(optimizer, E.DynamicLossScale(scale, period))


# --- nets


def losses(net: str, axes: Any, policy: Any, loss_scale: Any = None, steps: int = 20) -> list[float]:
    """The losses of a net whose optimizer is wrapped if there is a loss scale."""
    layouts = of_net(lambda: NETS[net](tf.float32), COLUMNS) if dict(axes).get("tp") else {}
    with tf.Graph().as_default(), pytest.MonkeyPatch.context() as patch:
        if loss_scale is not None:
            adam = tf.train.AdamOptimizer
            patch.setattr(tf.train, "AdamOptimizer", lambda rate: scaled(adam(rate)))
        tf.set_random_seed(7)
        strategy = tf.distribute.LayoutStrategy(tf.distribute.Mesh(axes), batch="dp", policy=policy)
        strategy.variable_layouts(layouts)
        with strategy.scope():
            built = NETS[net](tf.float32)
        with initialized() as sess:
            return [float(sess.run([built.loss, built.train], built.feeds)[0]) for _ in range(steps)]


AXES = [(("dp", 1),), (("dp", 2),), (("dp", 2), ("tp", 2))]
STEPS = {"mlp": 20, "lenet": 20, "lstm": 20, "gpt": 20, "cnn": 6}
"""With batch statistics of 12 images and large steps, last digits soon change a loss by a lot."""


@pytest.mark.parametrize(
    ("net", "axes"),
    daily(itertools.product(STEPS, AXES), lambda net, axes: axes == AXES[-1] or (net == "mlp")),
    ids=str,
)
def test_bfloat16_trains_as_float32(net: str, axes: Any) -> None:
    expected, found = (losses(net, axes, policy, steps=STEPS[net]) for policy in (None, BF16))
    assert found != expected
    np.testing.assert_allclose(found, expected, 0.1, 0.05)


@pytest.mark.parametrize("net", daily(zip(STEPS), lambda net: net in ("mlp", "cnn", "gpt")))
def test_float16_with_a_loss_scale_trains_as_float32(net: str) -> None:
    expected = losses(net, AXES[1], None, steps=STEPS[net])
    found = losses(net, AXES[1], FP16, scaled, STEPS[net])
    assert found != expected
    np.testing.assert_allclose(found, expected, 0.03, 0.02)


def test_a_loss_scale_alone_changes_nothing() -> None:
    """It is a power of two: only exponents change."""
    axes = (("dp", 2),)
    assert losses("mlp", axes, None, scaled) == losses("mlp", axes, None)


# --- what travels


class Built(NamedTuple):
    feeds: dict[Any, Any]
    train: Any


def two_layers(policy: Any, wrap: Callable[[Any], Any], stored: Any = None) -> Built:
    """A step of two kernels, kept as ``stored`` says, and a bias, on a mesh of two devices."""
    with tf.distribute.LayoutStrategy(tf.distribute.Mesh([("dp", 2)]), batch="dp", policy=policy).scope():
        x = tf.placeholder(tf.float32, [8, 16])
        w, v = (tf.get_variable(name, [16, 16], stored=stored) for name in ("w", "v"))
        hidden = tf.matmul(tf.nn.relu(tf.matmul(x, w)), v) + tf.get_variable("b", [16])
        train = wrap(tf.train.MomentumOptimizer(0.1, 0.9)).minimize(tf.reduce_mean(tf.square(hidden)))
    return Built({x: np.ones((8, 16))}, train)


def traffic(*arguments: Any) -> dict[str, tuple[int, int]]:
    with tf.Graph().as_default():
        built = two_layers(*arguments)
        with initialized() as sess:
            found: dict[str, tuple[int, int]] = explain_layouts(sess, built.train, built.feeds).totals()
            return found


def plain(optimizer: Any) -> Any:
    return optimizer


KERNELS, BIAS = 2 * 2 * 16 * 16, 2 * 16


def test_gradients_travel_in_the_dtype_of_sums() -> None:
    assert traffic(None, plain)["AllReduce"] == (3, 4 * (KERNELS + BIAS))
    assert traffic(BF16, plain)["AllReduce"] == (3, 4 * (KERNELS + BIAS))
    in_bfloat16 = tf.distribute.Precision("bfloat16", reduce="bfloat16")
    assert traffic(in_bfloat16, plain)["AllReduce"] == (3, 2 * KERNELS + 4 * BIAS)


def test_a_check_of_whole_gradients_sends_nothing() -> None:
    assert traffic(FP16, scaled) == traffic(FP16, plain)


def test_a_check_of_gradients_in_parts_sends_one_number() -> None:
    """It does not gather them: they are scattered as for the update."""
    found, expected = (traffic(FP16, wrap, ["dp", None]) for wrap in (scaled, plain))
    assert found["ReduceScatter"] == expected["ReduceScatter"] == (2, 4 * KERNELS // 2)
    number = 2 * 4
    assert found["AllReduce"] == (expected["AllReduce"][0] + 1, expected["AllReduce"][1] + number)


# --- an infinity


class Scaled(NamedTuple):
    """A model whose gradient of ``w`` is what is fed, a row for each of 8, and an optimizer of it."""

    factors: Any
    optimizer: Any
    train: Any


def build(**kept: Any) -> Scaled:
    factors = tf.placeholder(tf.float32, [8, 3], name="factors")
    w = tf.get_variable("w", [8, 3], initializer=tf.zeros_initializer(), **kept)
    b = tf.get_variable("b", [3], initializer=tf.ones_initializer())
    optimizer = scaled(tf.train.MomentumOptimizer(0.5, 0.9), 2.0**15, 2)
    loss = tf.reduce_sum(w * factors) + tf.reduce_sum(tf.square(b))
    return Scaled(factors, optimizer, optimizer.minimize(loss, tf.train.get_or_create_global_step()))


def states(model: Scaled, infinite_row: int | None) -> list[dict[str, Any]]:
    """All variables before and after a step, one with an infinity in a row, and two more."""
    good = np.ones((8, 3))
    bad = good.copy()
    if infinite_row is not None:
        bad[infinite_row, 1] = np.inf
    found = []
    with initialized() as sess:
        for factors in (None, good, bad, good, good):
            if factors is not None:
                sess.run(model.train, {model.factors: factors})
            found.append({v.op.name: sess.run(v) for v in tf.global_variables()})
    return found


def check_skipped(states: list[dict[str, Any]]) -> None:
    """The second of the steps changed the scale, and the count of good steps, and nothing else."""
    first, before, after, third, _ = states
    assert set(before) == {
        "w",
        "b",
        "w/Momentum",
        "b/Momentum",
        "global_step",
        "current_loss_scale",
        "good_steps",
    }
    for name in ("w", "b", "w/Momentum", "b/Momentum", "global_step"):
        np.testing.assert_array_equal(after[name], before[name], name)
        assert (before[name] != first[name]).all(), name
        assert (third[name] != after[name]).all(), name
    assert [s["current_loss_scale"] for s in states] == [2**15, 2**15, 2**14, 2**14, 2**15]
    assert [s["good_steps"] for s in states] == [0, 1, 0, 1, 0]


@pytest.mark.parametrize("row", [0, 3, 7])
@pytest.mark.parametrize("kept", [{"layout": ["dp", None]}, {"stored": ["dp", None]}], ids=["used", "stored"])
@pytest.mark.parametrize("count", [2, 4])
def test_an_infinity_on_one_coordinate_skips_the_update_on_all(count: int, kept: Any, row: int) -> None:
    with tf.Graph().as_default():
        with tf.distribute.LayoutStrategy(tf.distribute.Mesh([("dp", count)])).scope():
            model = build(**kept)
        check_skipped(states(model, row))


def test_without_an_infinity_no_step_is_skipped() -> None:
    with tf.Graph().as_default():
        found = states(build(), None)
    assert [s["global_step"] for s in found] == [0, 1, 2, 3, 4]
    assert [s["current_loss_scale"] for s in found] == [2**15, 2**15, 2**16, 2**16, 2**17]


def test_one_device_skips_it_too() -> None:
    with tf.Graph().as_default():
        check_skipped(states(build(), 5))


@pytest.mark.parametrize("infinite", [0, 1, 3])
@pytest.mark.parametrize("replicas", [2, 4])
def test_an_infinity_in_one_replica_skips_the_update_of_all_copies(replicas: int, infinite: int) -> None:
    strategy = mirrored(replicas)
    rows = np.ones((replicas, 3))
    with tf.Graph().as_default():
        with strategy.scope():
            w = tf.get_variable("w", initializer=tf.zeros([3]))
            optimizer = scaled(tf.train.MomentumOptimizer(0.5, 0.9), 2.0**15, 2)
            step = tf.train.get_or_create_global_step()
        feed = [tf.placeholder(tf.float32, [3]) for _ in range(replicas)]
        factors = strategy.experimental_distribute_values_from_function(
            lambda context: feed[context.replica_id_in_sync_group]
        )
        train = strategy.group(
            strategy.run(lambda f: optimizer.minimize(tf.reduce_sum(w * f), step), args=(factors,))
        )
        rows[infinite % replicas, 1] = np.inf
        found = []
        with initialized() as sess:
            for values in (None, np.ones((replicas, 3)), rows, np.ones((replicas, 3))):
                if values is not None:
                    sess.run(train, dict(zip(feed, values, strict=True)))
                found.append([sess.run(list(v.copies)) for v in tf.global_variables()])
        names = [v.op.name for v in tf.global_variables()]
        _, before, after, last = (dict(zip(names, state, strict=True)) for state in found)
    assert set(names) == {"w", "w/Momentum", "global_step", "current_loss_scale", "good_steps"}
    for name in ("w", "w/Momentum", "global_step"):
        np.testing.assert_array_equal(after[name], before[name])
        assert np.all(np.not_equal(last[name], after[name]))
    for state in (before, after, last):
        for copies in state.values():
            assert all((copy == copies[0]).all() for copy in copies)
    np.testing.assert_array_equal(before["w"][0], np.full(3, -0.5 * replicas, np.float32))
    assert [state["current_loss_scale"][0] for state in (before, after, last)] == [2**15, 2**14, 2**14]


# --- misuse


def test_a_policy_must_be_a_precision() -> None:
    with pytest.raises(DTypeError, match="policy: expected a Precision; got 'bfloat16'"):
        tf.distribute.LayoutStrategy(tf.distribute.Mesh([("dp", 1)]), policy="bfloat16")


# --- fully sharded


class Trained(NamedTuple):
    losses: list[float]
    traffic: dict[str, tuple[int, int]]


def trained(strategy: Any, with_scale: bool = False) -> Trained:
    rng = np.random.default_rng(0)
    with tf.Graph().as_default():
        tf.set_random_seed(1)
        with strategy.scope():
            x, y = tf.placeholder(tf.float32, [16, 32]), tf.placeholder(tf.int32, [16])
            h = tf.layers.dense(tf.layers.dense(x, 64, tf.nn.relu, False), 64, tf.nn.relu, False)
            loss = tf.losses.sparse_softmax_cross_entropy(y, tf.layers.dense(h, 10, use_bias=False))
            optimizer = tf.train.AdamOptimizer(0.01)
            train = (scaled(optimizer) if with_scale else optimizer).minimize(loss)
        feeds = {x: rng.standard_normal((16, 32)), y: rng.integers(0, 10, 16)}
        with initialized() as sess:
            losses = [float(sess.run([loss, train], feeds)[0]) for _ in range(8)]
            return Trained(losses, explain_layouts(sess, train, feeds).totals())


@pytest.mark.parametrize("policy", [BF16, FP16], ids=["bfloat16", "float16"])
@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_variables_in_parts_train_as_whole_ones(stage: int, policy: Any) -> None:
    """In a narrow dtype; with float16 and a loss scale. Their values travel in it, and their gradients do in
    float32.
    """
    mesh = tf.distribute.Mesh([("dp", 2)])
    expected = trained(tf.distribute.LayoutStrategy(mesh, batch="dp", policy=policy), policy is FP16)
    found = trained(
        tf.distribute.FullyShardedStrategy(mesh, stage=stage, min_bytes=0, policy=policy), policy is FP16
    )
    np.testing.assert_allclose(found.losses, expected.losses, 1e-4)
    wide = trained(tf.distribute.FullyShardedStrategy(mesh, stage=stage, min_bytes=0))
    assert not np.allclose(found.losses, wide.losses, 1e-6)
    if stage > 0:
        count, nbytes = wide.traffic["AllGather"]
        assert found.traffic["AllGather"] == (count, nbytes // 2)
        assert found.traffic["ReduceScatter"] == wide.traffic["ReduceScatter"]


@pytest.mark.parametrize("offload", ["optimizer", "parameters", 40000])
def test_variables_in_host_memory_train_too(offload: Any) -> None:
    mesh = tf.distribute.Mesh([("dp", 2)])
    expected = trained(tf.distribute.LayoutStrategy(mesh, batch="dp", policy=FP16), True)
    strategy = tf.distribute.FullyShardedStrategy(mesh, min_bytes=0, policy=FP16, offload=offload)
    np.testing.assert_allclose(trained(strategy, True).losses, expected.losses, 1e-4)
