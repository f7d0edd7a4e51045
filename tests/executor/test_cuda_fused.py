"""Fusion on a GPU: sessions on a pretended one, whose kernels are CUDA C that the host runs, with and without
loops.
"""

from __future__ import annotations

import time
from contextlib import closing

import numpy as np
import pytest

import flowrt as tf
from flowrt.device.cuda import cuda
from tests.executor.fused_sessions import fused_of, plans_of
from tests.executor.random_programs import RandomProgram, assert_same
from tests.executor.test_remote_device import config, plug_in
from tests.loops import cuda_on_host

pytestmark = pytest.mark.skipif(
    cuda_on_host.why_no_compiler() is not None, reason=str(cuda_on_host.why_no_compiler())
)

WAIT_S = 30.0


def both(monkeypatch, build, feeds, steps=1, device="/gpu:0", **experimental):
    """The results of a plain session and of one with loops, the groups of the latter, and how many kernels it
    launched.
    """
    found = []
    for mode in ("off", "eager"):
        monkeypatch.setenv("FLOWRT_JIT", mode)
        cupy = plug_in(monkeypatch, 0)
        with tf.Graph().as_default(), tf.device(device):
            fetches, feed = build()
            named = {feed[key]: value for key, value in feeds.items()}
            with tf.Session(config=config(**experimental)) as session:
                session.run(tf.global_variables_initializer())
                found.append([session.run(fetches, named) for _ in range(steps)])
                groups = fused_of(session)
        if mode == "off":
            assert not cupy.launches
    return found[0], found[1], groups, cupy.launches


def assert_close(found, wanted, rtol=1e-5):
    for one, other in zip(found, wanted, strict=True):
        if other is not None:
            np.testing.assert_allclose(one, other, rtol=rtol, atol=rtol)
            assert np.asarray(one).dtype == np.asarray(other).dtype


def variable(*shape, seed=0):
    return tf.Variable(np.random.default_rng(seed).normal(size=shape).astype("f") * 0.3)


def mlp(optimizer=tf.train.AdamOptimizer):
    x, y = tf.placeholder(tf.float32, [16, 20]), tf.placeholder(tf.int64, [16])
    hidden = tf.nn.tanh(tf.matmul(x, variable(20, 12)) + tf.Variable(tf.zeros([12])))
    logits = tf.matmul(hidden, variable(12, 5, seed=1)) + tf.Variable(tf.zeros([5]))
    losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=y, logits=logits)
    loss = tf.reduce_mean(losses)
    return [loss, losses, logits, optimizer(0.01).minimize(loss)], {"x": x, "y": y}


def batch():
    rng = np.random.default_rng(0)
    return {"x": rng.normal(size=(16, 20)), "y": rng.integers(0, 5, 16)}


@pytest.mark.parametrize("captured", [True, False])
def test_a_training_step(monkeypatch, captured):
    plain, compiled, groups, launches = both(monkeypatch, mlp, batch(), steps=6, capture_steps=captured)
    for one, other in zip(compiled, plain, strict=True):
        assert_close(one, other, rtol=1e-4)
    assert compiled[-1][0] < compiled[0][0]
    assert any("SparseSoftmaxCrossEntropyWithLogits" in group for group in groups)
    assert launches


def layer_norm():
    x = tf.placeholder(tf.float32, [4, 6, 30])
    gain = tf.Variable(np.linspace(0.5, 2, 30).astype("f"))
    mean = tf.reduce_mean(x, -1, keepdims=True)
    variance = tf.reduce_mean(tf.squared_difference(x, mean), -1, keepdims=True)
    y = (x - mean) * tf.rsqrt(variance + 1e-5) * gain
    return [y, *tf.gradients(tf.reduce_sum(tf.sin(y)), [x, gain])], {"x": x}


def test_a_layer_norm_is_one_group(monkeypatch):
    value = np.random.default_rng(0).normal(size=(4, 6, 30))
    plain, compiled, groups, _ = both(monkeypatch, layer_norm, {"x": value})
    assert_close(compiled[0], plain[0], rtol=1e-4)
    assert max(map(len, groups)) >= 8


def convolutions():
    """A small LeNet."""
    x, y = tf.placeholder(tf.float32, [4, 8, 8, 1]), tf.placeholder(tf.int32, [4])
    hidden = tf.nn.conv2d(x, variable(3, 3, 1, 4), [1, 1, 1, 1], "SAME")
    hidden = tf.nn.relu(tf.nn.bias_add(hidden, variable(4)))
    hidden = tf.reshape(tf.nn.max_pool(hidden, [1, 2, 2, 1], [1, 2, 2, 1], "SAME"), [4, 64])
    hidden = tf.nn.relu(tf.matmul(hidden, variable(64, 10)) + variable(10))
    logits = tf.matmul(hidden, variable(10, 3)) + variable(3)
    loss = tf.losses.sparse_softmax_cross_entropy(y, logits)
    return [loss, logits, tf.train.MomentumOptimizer(0.05, 0.9).minimize(loss)], {"x": x, "y": y}


def test_convolutions_train(monkeypatch):
    rng = np.random.default_rng(0)
    feeds = {"x": rng.normal(size=(4, 8, 8, 1)), "y": rng.integers(0, 3, 4)}
    plain, compiled, _, _ = both(monkeypatch, convolutions, feeds, steps=4)
    for one, other in zip(compiled, plain, strict=True):
        assert_close(one, other, rtol=1e-4)


def test_a_step_with_groups_is_captured(monkeypatch):
    monkeypatch.setenv("FLOWRT_JIT", "eager")
    cupy = plug_in(monkeypatch, 0)
    with tf.device("/gpu:0"):
        fetches, feed = mlp()
    named = {feed[key]: value for key, value in batch().items()}
    with tf.Session(config=config()) as session:
        session.run(tf.global_variables_initializer())
        launched, launches = [], []
        for _ in range(5):
            session.run(fetches, named)
            (plan,) = [plan for plan in plans_of(session) if plan.has_loops and len(plan._fetched) > 1]
            launched.append(any(program.launch for program in plan.programs))
            launches.append(cupy.launches)
    assert launched == [False, False, True, True, True]
    assert launches[0] < launches[1] < launches[2] == launches[3] == launches[4], "one replay does them all"


@pytest.mark.parametrize("is_host", [True, False])
def test_inputs_that_are_new_in_every_step(monkeypatch, is_host):
    """What a kernel without ``out`` gives is in a register; a shape that only the step knows, on the host."""

    def build():
        x = tf.placeholder(tf.float32, [3, 40])
        if is_host:
            y = tf.cast(tf.shape(tf.boolean_mask(x, x[:, 0] > 0.0)), tf.float32)
            return [y * y + 1.0], {"x": x}
        y = tf.roll(x, 1, 0)
        return [tf.tanh(y) * x + 1.0, tf.reduce_sum(tf.tanh(y) * x, 0)], {"x": x}

    value = np.random.default_rng(0).normal(size=(3, 40))
    plain, compiled, groups, launches = both(monkeypatch, build, {"x": value}, steps=4)
    for one, other in zip(compiled, plain, strict=True):
        assert_close(one, other)
    assert groups
    assert launches


def test_loops_are_taken_in_between_two_steps(monkeypatch):
    monkeypatch.setenv("FLOWRT_JIT", "background")
    plug_in(monkeypatch, 0)
    with tf.device("/gpu:0"):
        x = tf.placeholder(tf.float32, [8])
        y = tf.exp(x) * 2.0 + 1.0
    with tf.Session(config=config()) as session:
        deadline = time.monotonic() + WAIT_S
        while not fused_of(session) and time.monotonic() < deadline:
            assert np.allclose(session.run(y, {x: np.ones(8)}), 2 * np.e + 1)
        assert fused_of(session) == [["Exp", "Mul", "AddV2"]]
        assert np.allclose(session.run(y, {x: np.ones(8)}), 2 * np.e + 1)


def test_a_label_that_is_no_class_makes_its_row_nan(monkeypatch):
    def build():
        x, y = tf.placeholder(tf.float32, [4, 5]), tf.placeholder(tf.int32, [4])
        losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=y, logits=x * 2.0)
        return [losses, tf.gradients(losses, x)[0]], {"x": x, "y": y}

    feeds = {"x": np.random.default_rng(0).normal(size=(4, 5)), "y": [0, 5, -1, 4]}
    plain, compiled, groups, _ = both(monkeypatch, build, feeds)
    assert_close(compiled[0], plain[0])
    assert np.isnan(compiled[0][0]).tolist() == [False, True, True, False]
    assert groups


def test_an_index_that_is_no_row_gives_what_the_kernel_gives(monkeypatch):
    def build():
        table, rows = tf.placeholder(tf.float32, [6, 9]), tf.placeholder(tf.int32, [4])
        return [tf.tanh(tf.gather(table, rows)) * 2.0 + 1.0], {"table": table, "rows": rows}

    feeds = {"table": np.random.default_rng(0).normal(size=(6, 9)), "rows": [0, 5, 3, 5]}
    for rows in ([0, 5, 3, 5], [6, -1, 3, 100]):
        plain, compiled, groups, _ = both(monkeypatch, build, {**feeds, "rows": rows})
        assert_close(compiled[0], plain[0])
        assert groups


def test_large_angles(monkeypatch):
    def build():
        x = tf.placeholder(tf.float64, [4])
        return [tf.sin(x) + 1.0, tf.cos(x) * 2.0], {"x": x}

    plain, compiled, _, _ = both(monkeypatch, build, {"x": [0.5, 2.0**50, -(2.0**60), np.inf]})
    assert_close(compiled[0], plain[0], rtol=1e-12)


@pytest.mark.parametrize("axis", [0, 1, (0, 1), (1, 2), (0, 1, 2)])
def test_reductions_along_any_axes(monkeypatch, axis):
    def build():
        x = tf.placeholder(tf.float32, [3, 4, 50])
        y = tf.square(x) * 0.5 + 0.1
        kinds = ("sum", "mean", "max", "min", "prod")
        return [getattr(tf, f"reduce_{k}")(y, axis, keepdims=k != "sum") for k in kinds], {"x": x}

    value = np.random.default_rng(0).uniform(0.9, 1.5, size=(3, 4, 50))
    plain, compiled, _, _ = both(monkeypatch, build, {"x": value})
    assert_close(compiled[0], plain[0], rtol=1e-5)


def test_operands_that_are_views_or_are_broadcast(monkeypatch):
    def build():
        x, row = tf.placeholder(tf.float32, [6, 8]), tf.placeholder(tf.float32, [6])
        turned = tf.transpose(tf.transpose(x)[:, ::2])
        y = tf.exp(turned * 0.1) + tf.expand_dims(row, 0)[:, :1] * x[::2] + x[:1]
        return [y, y * 2.0, tf.cast(y > 0.0, tf.int32) + 3, tf.reduce_sum(tf.expand_dims(row, 1) * x, 1)], {
            "x": x,
            "row": row,
        }

    rng = np.random.default_rng(0)
    feeds = {"x": rng.normal(size=(6, 8)), "row": rng.normal(size=6)}
    plain, compiled, _, _ = both(monkeypatch, build, feeds)
    assert_close(compiled[0], plain[0], rtol=1e-6)


def test_groups_in_loops_and_branches(monkeypatch):
    def build():
        x = tf.placeholder(tf.float32, [3, 7])

        def body(i, y):
            return i + 1, tf.tanh(y * 0.5 + x) - tf.reduce_mean(y, -1, keepdims=True)

        _, y = tf.while_loop(lambda i, _: i < 5, body, [0, x])
        return [y, *tf.gradients(tf.cond(tf.reduce_sum(y) > 0, lambda: y * y + 1, lambda: tf.exp(-y)), x)], {
            "x": x
        }

    plain, compiled, _, launches = both(monkeypatch, build, {"x": np.linspace(-1, 1, 21).reshape(3, 7)}, 2)
    assert_close(compiled[0], plain[0], rtol=1e-5)
    assert_close(compiled[1], plain[1], rtol=1e-5)
    assert launches


@pytest.mark.parametrize("name", ["GradientDescent", "Momentum", "RMSProp", "Ftrl"])
def test_an_optimizer_updates_in_one_pass(monkeypatch, name):
    def build():
        v = tf.Variable(np.linspace(-1, 1, 30).reshape(5, 6).astype("f"))
        options = {"momentum": 0.9} if name == "Momentum" else {}
        optimizer = getattr(tf.train, f"{name}Optimizer")(0.1, **options)
        step = optimizer.minimize(tf.reduce_sum(tf.square(v - 0.3)))
        with tf.control_dependencies([step]):
            return [v.read_value()], {}

    plain, compiled, _, launches = both(monkeypatch, build, {}, steps=4)
    assert_close(compiled[-1], plain[-1], rtol=1e-4)
    assert launches


def test_an_update_of_a_variable_without_a_value_is_refused(monkeypatch):
    monkeypatch.setenv("FLOWRT_JIT", "eager")
    plug_in(monkeypatch, 0)
    with tf.device("/gpu:0"):
        v = tf.Variable(tf.ones([4]))
        step = tf.train.AdamOptimizer(0.1).minimize(tf.reduce_sum(tf.square(v)))
    with (
        tf.Session(config=config()) as session,
        pytest.raises(tf.errors.FailedPreconditionError, match="no value yet"),
    ):
        session.run(step)


@pytest.mark.parametrize("seed", range(4))
def test_random_programs(monkeypatch, seed):
    monkeypatch.setenv("FLOWRT_JIT", "eager")
    cupy = plug_in(monkeypatch, seed)
    program = RandomProgram(seed, devices=1 + seed % 2, kind="gpu")
    with tf.Session(graph=program.graph, config=config(streams=seed % 3, gpus=2)) as session:
        assert_same(program.run(session), program.expected())
    assert cupy.launches


def test_a_text_that_the_compiler_refuses(monkeypatch):
    plug_in(monkeypatch, 0)
    with (
        closing(cuda.CudaExecutor(0, "/device:GPU:0")) as executor,
        pytest.raises(tf.errors.InternalError, match=r"(?s)expected CUDA C of flowrt_loop; .*nonsense"),
    ):
        executor.compile_kernels('extern "C" __global__ void flowrt_loop() { nonsense }', ["flowrt_loop"])
