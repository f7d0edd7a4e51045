"""Fusion: sessions whose steps are compiled loops give what plain steps give."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import flowrt as tf
from flowrt.device.llvm import host_jit
from flowrt.device.llvm.host_pool import num_threads, set_num_threads
from flowrt.executor.kernels import loop_layout
from flowrt.executor.kernels.fused_program import program_of
from flowrt.executor.kernels.loop_layout import coalesced
from flowrt.executor.plan import tiers
from tests.each import nightly
from tests.executor.fused_sessions import both, fused_of
from tests.executor.random_programs import RandomProgram, assert_same

pytestmark = pytest.mark.skipif(not host_jit.is_available(), reason=str(host_jit.why_unavailable()))

WAIT_S = 30.0


@pytest.fixture
def eager(monkeypatch):
    monkeypatch.setenv("FLOWRT_JIT", "eager")


# --- random programs


@pytest.mark.parametrize("block", nightly(range(5), 1))
def test_random_programs(eager, block):
    used = 0
    for seed in range(block * 12, block * 12 + 12):
        program = RandomProgram(seed, devices=1 + seed % 2)
        config = tf.ConfigProto(device_count={"CPU": 2}, inter_op_parallelism_threads=seed % 3)
        with tf.Session(graph=program.graph, config=config) as session:
            assert_same(program.run(session), program.expected())
            used += bool(fused_of(session))
    assert used > 5


@pytest.mark.parametrize("block", nightly(range(5), 1))
def test_random_programs_in_any_order(eager, block):
    for seed in range(block * 8, block * 8 + 8):
        program = RandomProgram(seed, devices=2)
        config = tf.ConfigProto(device_count={"CPU": 2}, inter_op_parallelism_threads=3)
        with tf.Session(graph=program.graph, config=config, seed=seed) as session:
            assert_same(program.run(session), program.expected())


# --- groups


def mlp():
    x, y = tf.placeholder(tf.float32, [16, 20]), tf.placeholder(tf.int64, [16])
    hidden = x
    for width in (12, 5):
        w = tf.Variable(np.random.default_rng(width).normal(size=(hidden.shape[1], width)).astype("f"))
        hidden = tf.nn.tanh(tf.matmul(hidden, w) + tf.Variable(tf.zeros([width])))
    losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=y, logits=hidden)
    loss = tf.reduce_mean(losses)
    return [loss, tf.train.AdamOptimizer(0.01).minimize(loss)], {"x": x, "y": y}


def test_a_training_step(monkeypatch):
    rng = np.random.default_rng(0)
    feeds = {"x": rng.normal(size=(16, 20)), "y": rng.integers(0, 5, 16)}
    plain, compiled, groups = both(monkeypatch, mlp, feeds, steps=30)
    assert plain[-1][0] < plain[0][0]
    np.testing.assert_allclose([loss for loss, _ in compiled], [loss for loss, _ in plain], rtol=1e-4)
    assert any("SparseSoftmaxCrossEntropyWithLogits" in group for group in groups)


def layer_norm():
    x = tf.placeholder(tf.float32, [4, 6, 30])
    gain = tf.Variable(np.linspace(0.5, 2, 30).astype("f"))
    mean = tf.reduce_mean(x, -1, keepdims=True)
    variance = tf.reduce_mean(tf.squared_difference(x, mean), -1, keepdims=True)
    y = (x - mean) * tf.rsqrt(variance + 1e-5) * gain
    return [y, *tf.gradients(tf.reduce_sum(tf.sin(y)), [x, gain])], {"x": x}


def test_a_layer_norm_is_one_group(monkeypatch):
    value = np.random.default_rng(0).normal(size=(4, 6, 30))
    plain, compiled, groups = both(monkeypatch, layer_norm, {"x": value})
    for one, other in zip(plain[0], compiled[0], strict=True):
        np.testing.assert_allclose(other, one, rtol=2e-4, atol=2e-4)
    assert max(map(len, groups)) >= 8


@pytest.mark.parametrize("shape", [(3, 5), (1, 1), (1, 7), (5, 1), (2, 3, 4)])
def test_softmax_of_all_shapes_and_values(monkeypatch, shape):
    def build():
        x = tf.placeholder(tf.float32, shape)
        return [tf.nn.softmax(x) * 2.0, tf.nn.log_softmax(x) + 1.0], {"x": x}

    value = np.random.default_rng(0).normal(size=shape) * 20
    value.flat[0] = 1000.0
    plain, compiled, _ = both(monkeypatch, build, {"x": value})
    for one, other in zip(plain[0], compiled[0], strict=True):
        np.testing.assert_allclose(other, one, rtol=1e-6, atol=1e-6)


def test_a_bad_label_is_the_kernels_error(monkeypatch):
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"expected a class number in \[0, 5\); got 7"):
        both(monkeypatch, mlp, {"x": np.ones((16, 20)), "y": np.full(16, 7)})
    monkeypatch.setenv("FLOWRT_JIT", "eager")
    fetches, feed = mlp()
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        for label in (1, 7, 2):
            values = {feed["x"]: np.ones((16, 20)), feed["y"]: np.full(16, label)}
            if label == 7:
                with pytest.raises(tf.errors.InvalidArgumentError, match="got 7"):
                    session.run(fetches, values)
            else:
                assert np.isfinite(session.run(fetches, values)[0])


@pytest.mark.parametrize("axis", [0, 1, 2, (0, 1), (1, 2), (0, 1, 2), -1])
@pytest.mark.parametrize("keep", [True, False])
@pytest.mark.parametrize("reduce", ["sum", "mean", "max", "min", "prod"])
def test_reductions_along_any_axes(monkeypatch, axis, keep, reduce):
    def build():
        x = tf.placeholder(tf.float32, [3, 4, 50])
        return getattr(tf, f"reduce_{reduce}")(tf.square(x) * 0.5 + 0.1, axis, keepdims=keep), {"x": x}

    value = np.random.default_rng(0).normal(size=(3, 4, 50))
    plain, compiled, _ = both(monkeypatch, build, {"x": value})
    np.testing.assert_allclose(compiled[0], plain[0], rtol=1e-5)


def test_operands_that_are_views_or_are_broadcast(monkeypatch):
    def build():
        x, row = tf.placeholder(tf.float32, [6, 8]), tf.placeholder(tf.float32, [6])
        turned = tf.transpose(tf.transpose(x)[:, ::2])
        y = tf.exp(turned * 0.1) + tf.expand_dims(row, 0)[:, :1] * x[::2] + x[:1]
        return [y, y * 2.0], {"x": x, "row": row}

    rng = np.random.default_rng(0)
    feeds = {"x": rng.normal(size=(6, 8)), "row": rng.normal(size=6)}
    plain, compiled, _ = both(monkeypatch, build, feeds)
    for one, other in zip(plain[0], compiled[0], strict=True):
        np.testing.assert_allclose(other, one, rtol=1e-6)


def test_large_feeds_lie_as_they_come(monkeypatch):
    def build():
        x = tf.placeholder(tf.float32, [200, 300])
        return tf.sqrt(tf.abs(x)) + 1.0, {"x": x}

    value = np.random.default_rng(0).normal(size=(300, 200)).astype("f")
    odd = np.frombuffer(b"\0" + value.tobytes(), np.uint8)[1:].view("f").reshape(200, 300)
    for feed in (value.T, value.T[::-1], np.asfortranarray(value.T), odd):
        plain, compiled, _ = both(monkeypatch, build, {"x": feed})
        np.testing.assert_allclose(compiled[0], plain[0], rtol=1e-6)


def test_long_loops_are_shared_by_threads_with_the_same_result(monkeypatch):
    def build():
        x = tf.placeholder(tf.float32, [64, 1 << 14])
        y = tf.tanh(x) * x
        return [y, tf.reduce_sum(y), tf.reduce_sum(y, 0), tf.reduce_mean(y, 1)], {"x": x}

    value = np.random.default_rng(0).normal(size=(64, 1 << 14))
    plain, compiled, _ = both(monkeypatch, build, {"x": value}, steps=3)
    for one, other in zip(plain[0], compiled[0], strict=True):
        np.testing.assert_allclose(other, one, rtol=1e-5, atol=1e-4)
    assert all(
        np.array_equal(a, b) for later in compiled[1:] for a, b in zip(compiled[0], later, strict=True)
    )


@pytest.mark.parametrize("threads", [1, 2])
def test_sums_that_threads_share_begin_anew_in_each_step(monkeypatch, threads):
    def build():
        x = tf.Variable(np.random.default_rng(0).normal(size=(1 << 10, 1 << 9)).astype("f"))
        y = tf.tanh(x) * x
        return tf.stack([tf.reduce_sum(y), tf.reduce_max(tf.reduce_sum(y, 0))]), {}

    before = num_threads()
    set_num_threads(threads)
    try:
        plain, compiled, _ = both(monkeypatch, build, {}, steps=3)
    finally:
        set_num_threads(before)
    for found in compiled:
        np.testing.assert_allclose(found, plain[0], rtol=1e-5)


def test_the_threads_of_one_operation_are_those_of_loops_too():
    before = num_threads()
    try:
        with tf.Session(config=tf.ConfigProto(intra_op_parallelism_threads=1)):
            assert num_threads() == 1
    finally:
        set_num_threads(before)


def test_integers_and_booleans(monkeypatch):
    def build():
        x, y = tf.placeholder(tf.int32, [50]), tf.placeholder(tf.int32, [50])
        less = tf.logical_and(x < y, tf.not_equal(x, 3))
        return [tf.where(less, x * y - 7, tf.maximum(x, y)), tf.cast(less, tf.float32) * 0.5, less], {
            "x": x,
            "y": y,
        }

    rng = np.random.default_rng(0)
    feeds = {"x": rng.integers(-(2**31), 2**31 - 1, 50), "y": rng.integers(-9, 9, 50)}
    plain, compiled, _ = both(monkeypatch, build, feeds)
    assert all(map(np.array_equal, plain[0], compiled[0]))


def test_nothing_is_fused_of_empty_tensors(eager):
    x = tf.placeholder(tf.float32, [0, 4])
    with tf.Session() as session:
        assert session.run(tf.reduce_sum(tf.exp(x) * 2.0 + 1.0), {x: np.zeros((0, 4))}) == 0.0


def test_a_traced_step_shows_its_groups(eager):
    x = tf.placeholder(tf.float32, [8])
    y = tf.add(tf.exp(x, name="power") * 2.0, 1.0, name="sum")
    metadata = tf.RunMetadata()
    options = tf.RunOptions(trace_level=tf.RunOptions.FULL_TRACE, output_partition_graphs=True)
    with tf.Session() as session:
        session.run(y, {x: np.ones(8)}, options=options, run_metadata=metadata)
    (found,) = [node for node in metadata.partition_graphs[0].node if node.op == "_Fused"]
    assert found.attr["group"].s == b"Exp power, Mul mul, AddV2 sum"
    assert "sum" in [n.node_name for d in metadata.step_stats.dev_stats for n in d.node_stats]


# --- updates


@pytest.mark.parametrize("name", ["GradientDescent", "Momentum", "Adam", "RMSProp", "Adagrad", "Ftrl"])
def test_an_optimizer_updates_in_one_pass(monkeypatch, name):
    def build():
        v = tf.Variable(np.linspace(-1, 1, 30).reshape(5, 6).astype("f"))
        options = {"momentum": 0.9} if name == "Momentum" else {}
        step = getattr(tf.train, f"{name}Optimizer")(0.1, **options).minimize(
            tf.reduce_sum(tf.square(v - 0.3))
        )
        with tf.control_dependencies([step]):
            return v.read_value(), {}

    plain, compiled, _ = both(monkeypatch, build, {}, steps=10)
    np.testing.assert_allclose(compiled, plain, rtol=1e-4, atol=1e-5)


def test_an_update_of_a_variable_without_a_value_is_refused(eager):
    v = tf.Variable(tf.ones([4]))
    step = tf.train.AdamOptimizer(0.1).minimize(tf.reduce_sum(tf.square(v)))
    with tf.Session() as session, pytest.raises(tf.errors.FailedPreconditionError, match="no value yet"):
        session.run(step)


def test_threads_that_update_one_variable_lose_nothing(eager):
    v = tf.Variable(np.zeros(1000, np.float32))
    step = v.assign_add(np.ones(1000, np.float32), read_value=False)
    with tf.Session() as session:
        session.run(v.initializer)
        threads = [threading.Thread(target=lambda: [session.run(step) for _ in range(200)]) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(WAIT_S)
        assert session.run(v).tolist() == [800.0] * 1000


# --- tiers


def test_loops_are_compiled_beside_the_steps_and_taken_between_two(monkeypatch):
    monkeypatch.setenv("FLOWRT_JIT", "background")
    may_compile, is_done = threading.Event(), threading.Event()
    beside = tiers.compile_beside

    def compile_beside(work, nodes):
        def run():
            assert may_compile.wait(WAIT_S)
            work()
            is_done.set()

        beside(run, nodes)

    monkeypatch.setattr(tiers, "compile_beside", compile_beside)
    x = tf.placeholder(tf.float32, [8])
    y = tf.exp(x) * 2.0 + 1.0
    with tf.Session() as session:
        for _ in range(5):
            plain = session.run(y, {x: np.ones(8)})
        assert not fused_of(session)
        may_compile.set()
        assert is_done.wait(WAIT_S)
        assert fused_of(session) == [["Exp", "Mul", "AddV2"]]
        np.testing.assert_allclose(session.run(y, {x: np.ones(8)}), plain, rtol=1e-6)


def test_a_compilation_that_fails_leaves_the_kernels_at_work(monkeypatch, caplog):
    monkeypatch.setenv("FLOWRT_JIT", "background")
    monkeypatch.setattr(loop_layout, "compile_loop", lambda text: 1 / 0)
    x = tf.placeholder(tf.float32, [8])
    y = tf.exp(x) * 2.0
    with tf.Session() as session:
        deadline = time.monotonic() + WAIT_S
        while not caplog.records and time.monotonic() < deadline:
            session.run(y, {x: np.ones(8)})
        assert "own kernels remain in use" in caplog.text
        assert np.allclose(session.run(y, {x: np.ones(8)}), 2 * np.e)


def test_off_is_off(monkeypatch):
    monkeypatch.setenv("FLOWRT_JIT", "off")
    monkeypatch.setattr(tiers, "compile_beside", lambda *_: pytest.fail("compiles"))
    x = tf.placeholder(tf.float32, [8])
    with tf.Session() as session:
        for _ in range(5):
            session.run(tf.exp(x) * 2.0, {x: np.ones(8)})


def test_a_mode_that_there_is_not_is_refused(monkeypatch):
    monkeypatch.setenv("FLOWRT_JIT", "always")
    with pytest.raises(
        tf.errors.InvalidArgumentError, match=r"expected one of off, eager, background; got 'al"
    ):
        tf.Session()


# --- layouts


@pytest.mark.parametrize(
    "dims, strides, keeps_rows, expected",
    [
        ((4, 5), [(5, 1), (5, 1)], False, ((20,), [(1,), (1,)])),
        ((4, 5), [(5, 1), (0, 1)], False, ((4, 5), [(5, 1), (0, 1)])),
        ((2, 3, 4), [(12, 4, 1), (0, 0, 1)], False, ((6, 4), [(4, 1), (0, 1)])),
        ((4, 1), [(1, 1), (0, 0)], False, ((4,), [(1,), (0,)])),
        ((1, 1), [(1, 1)], False, ((1,), [(0,)])),
        ((2, 3, 4), [(12, 4, 1)], True, ((6, 4), [(4, 1)])),
        ((7,), [(1,)], True, ((1, 7), [(0, 1)])),
        ((4, 5), [(1, 4)], False, ((4, 5), [(1, 4)])),
    ],
)
def test_dimensions_become_one_where_every_operand_goes_through_them_in_one_stride(
    dims, strides, keeps_rows, expected
):
    assert coalesced(dims, strides, keeps_rows) == expected


def test_threads_that_run_at_once_have_a_plan_compiled_once(monkeypatch):
    """The tier may go while another thread counts its run: nobody sees it half gone."""
    monkeypatch.setenv("FLOWRT_JIT", "background")
    compiled, beside = [], tiers.compile_beside
    monkeypatch.setattr(
        tiers, "compile_beside", lambda work, nodes: (compiled.append(nodes), beside(work, nodes))
    )
    x = tf.placeholder(tf.float32, [8])
    with tf.Session() as session:
        y = tf.exp(x) * 2.0 + 1.0
        expected = session.run(y, {x: np.ones(8)})
        compiled.clear()
        with ThreadPoolExecutor(8) as pool:
            for value in pool.map(lambda _: session.run(y, {x: np.ones(8)}), range(400)):
                np.testing.assert_allclose(value, expected, rtol=1e-6)
    assert len(compiled) == 1


def test_a_plan_that_cannot_be_compiled_leaves_the_first_one_and_is_not_tried_again():
    tried, taken = [], []

    def make():
        tried.append(1)
        raise tf.errors.ResourceExhaustedError("no memory for two plans")

    tier, is_done = tiers.NextTier(make, nodes=10), threading.Event()
    for _ in range(2 * tiers.RUNS_BEFORE_COMPILING):
        tier.count_run(lambda plan: (taken.append(plan), is_done.set()))
    assert is_done.wait(WAIT_S)
    assert (tried, taken) == ([1], [None])


@pytest.mark.parametrize("has_masks", [True, False])
@pytest.mark.parametrize(("columns", "is_ragged"), [(60, True), (64, False), (66, False), (700, False)])
def test_rows_that_end_within_a_vector_are_computed_in_masked_vectors(
    monkeypatch, columns, is_ragged, has_masks
):
    texts = []
    monkeypatch.setattr(loop_layout, "has_masks", lambda: has_masks)
    monkeypatch.setattr(loop_layout, "compiled", texts.append)
    program = program_of(lambda b, x: x / b.row_sum(x), [("float32", False)])
    loop_layout.layout_of(program, (7, columns), [(columns, 1), (columns, 1)])
    assert ("predicate" in texts[0]) == (is_ragged and has_masks)


@pytest.mark.parametrize(("size", "is_brief"), [(1, False), (15, False), (16, True), (63, True), (64, False)])
def test_a_few_elements_have_a_loop_of_their_own_unless_it_is_for_all_sizes(monkeypatch, size, is_brief):
    texts = []
    monkeypatch.setattr(loop_layout, "compiled", texts.append)
    program = program_of(lambda b, x: x * x, [("float32", False)])
    for for_all_sizes in (False, True):
        loop_layout.layout_of(program, (size,), [(1,), (1,)], for_all_sizes)
    assert ["interleave" in text for text in texts] == [is_brief, False]
