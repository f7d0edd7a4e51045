"""Sessions with a device that works by itself: a pretended GPU, whose streams are as late as they can be, and
the null device.
"""

from __future__ import annotations

import gc

import numpy as np
import pytest

import flowrt as tf
from flowrt import dtypes
from flowrt.device import local_devices
from flowrt.device.cuda import cuda, cuda_blas
from flowrt.device.cuda.cuda import GpuDescription
from flowrt.device.stream_executor import EventStatus
from flowrt.executor.analysis import streams as schedule
from flowrt.executor.session import session as session_module
from flowrt.graph.op_def import op_def
from tests.device.pretend_cupy import ILLEGAL_ADDRESS, Cupy
from tests.executor.fused_sessions import plans_of

DESCRIPTIONS = [GpuDescription(i, "Pretended GPU", 1 << 26, (9, 0), f"0000:0{i}") for i in range(2)]


@pytest.fixture
def machine(monkeypatch):
    return plug_in(monkeypatch, 0)


def plug_in(monkeypatch, seed):
    cupy = Cupy(seed)
    monkeypatch.setattr(cuda, "load_cupy", lambda: cupy)
    monkeypatch.setattr(cuda_blas, "load_library", lambda cupy: cupy.cublas.library)
    monkeypatch.setattr(local_devices, "visible_devices", lambda: DESCRIPTIONS)
    return cupy


def config(streams=0, cpus=1, gpus=1, **experimental):
    options = tf.GPUOptions(experimental=tf.GPUOptions.Experimental(**experimental))
    return tf.ConfigProto(
        device_count={"CPU": cpus, "GPU": gpus}, inter_op_parallelism_threads=streams, gpu_options=options
    )


def network(device):
    """A regression; its loss and training step."""
    with tf.device(device):
        x, y = tf.placeholder(tf.float32, [8, 6]), tf.placeholder(tf.float32, [8, 1])
        hidden = x
        for i, width in enumerate((7, 5, 1)):
            rng = np.random.default_rng(i)
            inputs = int(hidden.shape[1])
            w = tf.get_variable(
                f"w{i}", initializer=rng.normal(size=(inputs, width)).astype(np.float32), use_resource=True
            )
            hidden = tf.tanh(tf.matmul(hidden, w))
        loss = tf.reduce_sum(tf.square(hidden - y))
        step = tf.train.GradientDescentOptimizer(0.01).minimize(loss)
    return x, y, loss, step


def train(device, session_config, steps=8):
    rng = np.random.default_rng(5)
    batches = [(rng.normal(size=(8, 6)), rng.normal(size=(8, 1))) for _ in range(steps)]
    with tf.Graph():
        x, y, loss, step = network(device)
        with tf.Session(config=session_config) as session:
            session.run(tf.global_variables_initializer())
            losses = [session.run([loss, step], {x: a, y: b})[0] for a, b in batches]
            return losses, [session.run(v) for v in tf.trainable_variables()]


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("streams", [1, 3])
@pytest.mark.parametrize("captured", [True, False])
def test_training_gives_what_the_cpu_gives(monkeypatch, seed, streams, captured):
    monkeypatch.setattr(schedule, "SWITCH_SECONDS", 0.0)
    monkeypatch.setattr(schedule, "MIN_GAIN", -1e9 if streams > 1 else 0.1)
    expected_losses, expected = train("/cpu:0", tf.ConfigProto(device_count={"GPU": 0}))
    plug_in(monkeypatch, seed)
    losses, values = train("/gpu:0", config(streams, capture_steps=captured))
    np.testing.assert_allclose(losses, expected_losses, rtol=1e-5)
    for value, wanted in zip(values, expected, strict=True):
        np.testing.assert_allclose(value, wanted, rtol=1e-5)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("captured", [True, False])
def test_convolutions_train_as_on_the_cpu(monkeypatch, seed, captured):
    rng = np.random.default_rng(seed)
    images = rng.standard_normal((4, 6, 6, 2), np.float32)
    filters = [rng.standard_normal(shape, np.float32) for shape in ((3, 3, 2, 3), (2, 2, 3, 4))]

    def train_convolutions(device, where):
        with tf.Graph().as_default(), tf.device(device):
            h = x = tf.placeholder(tf.float32, [4, 6, 6, 2])
            variables = [tf.Variable(f) for f in filters]
            for v, stride in zip(variables, (1, 2), strict=True):
                h = tf.tanh(tf.nn.conv2d(h, v, strides=[1, stride, stride, 1], padding="SAME"))
            loss = tf.reduce_mean(tf.square(tf.nn.max_pool(h, [1, 2, 2, 1], [1, 1, 1, 1], "VALID") - 0.1))
            step = tf.train.GradientDescentOptimizer(0.1).minimize(loss)
            with tf.Session(config=where) as session:
                session.run([v.initializer for v in variables])
                losses = [session.run([loss, step], {x: images})[0] for _ in range(6)]
                return losses, any(p.launch for plan in plans_of(session) for p in plan.programs)

    expected, _ = train_convolutions("/cpu:0", tf.ConfigProto(device_count={"GPU": 0}))
    plug_in(monkeypatch, seed)
    losses, is_captured = train_convolutions("/gpu:0", config(capture_steps=captured))
    assert is_captured == captured
    np.testing.assert_allclose(losses, expected, rtol=1e-4)
    assert losses[-1] < losses[0]


def test_a_fixed_step_is_captured_and_launched_as_one(machine):
    x, y, loss, step = network("/gpu:0")
    feeds = {x: np.ones((8, 6)), y: np.zeros((8, 1))}
    with tf.Session(config=config()) as session:
        session.run(tf.global_variables_initializer())
        launched = []
        for _ in range(4):
            session.run([loss, step], feeds)
            (plan,) = [
                p for r in session._requests.values() for p in r.plans.values() if len(r.fetches.tensors) == 1
            ]
            launched.append(any(program.launch for program in plan.programs))
        assert launched == [False, False, True, True]


def test_a_depthwise_convolution_and_its_gradients_are_captured(machine):
    with tf.device("/gpu:0"):
        x, filters = tf.placeholder(tf.float32, [2, 5, 4, 3]), tf.placeholder(tf.float32, [2, 3, 3, 2])
        y = tf.nn.depthwise_conv2d(x, filters, [1, 2, 2, 1], "SAME")
        fetches = [y, *tf.gradients(tf.reduce_sum(y * y), [x, filters])]
    rng = np.random.default_rng(0)
    feeds = {t: rng.standard_normal(t.shape, np.float32) for t in (x, filters)}
    with tf.Session(config=config()) as session:
        runs = [session.run(fetches, feeds) for _ in range(4)]
        (plan,) = [p for request in session._requests.values() for p in request.plans.values()]
        assert any(program.launch for program in plan.programs)
    for first, last in zip(runs[0], runs[-1], strict=True):
        np.testing.assert_allclose(last, first, rtol=1e-6)


@pytest.mark.parametrize("seed", range(4))
def test_tensors_cross_between_cpu_and_gpus(monkeypatch, seed):
    plug_in(monkeypatch, seed)
    x = tf.placeholder(tf.float32, [4])
    with tf.device("/cpu:0"):
        a = tf.sin(x)
    with tf.device("/gpu:0"):
        b = tf.exp(a) * x
    with tf.device("/gpu:1"):
        c = tf.tanh(b) + a
    with tf.device("/cpu:0"):
        d = c - b
    value = np.linspace(0, 1, 4, dtype=np.float32)
    with tf.Session(config=config(gpus=2)) as session:
        assert [d.device_type for d in session.devices] == ["CPU", "GPU", "GPU"]
        for _ in range(3):
            found = session.run([b, c, d], {x: value})
    first = np.exp(np.sin(value)) * value
    second = np.tanh(first) + np.sin(value)
    for got, wanted in zip(found, [first, second, second - first], strict=True):
        np.testing.assert_allclose(got, wanted, rtol=1e-5)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("way", ["cpu gpu", "gpu cpu"])
def test_lists_in_a_list_cross_between_cpu_and_gpu(monkeypatch, seed, way):
    """A list of two lists: one holds an array, two elements of the other are not set."""
    plug_in(monkeypatch, seed)
    writer, reader = way.split()
    x = tf.placeholder(tf.float32, [3])
    with tf.device(f"/{writer}:0"):
        array = op_def("TensorListPushBack")(_list_of(dtypes.float32), x * 2.0)
        unset = op_def("TensorListReserve")([3], 2, element_dtype=dtypes.float32)
        both = op_def("TensorListPushBack")(_list_of(dtypes.variant), array)
        both = op_def("TensorListPushBack")(both, unset)
    item = op_def("TensorListGetItem")
    with tf.device(f"/{reader}:0"):
        first, second = (item(both, i, [3], element_dtype=dtypes.variant) for i in (0, 1))
        y = item(first, 0, [3], element_dtype=dtypes.float32) + 1.0
        z = item(second, 1, [3], element_dtype=dtypes.float32) + 1.0
    with tf.Session(config=config()) as session:
        for n in range(2):
            value = np.arange(3, dtype=np.float32) + n
            np.testing.assert_array_equal(session.run([y, z], {x: value}), [value * 2 + 1, [1, 1, 1]])


def _list_of(dtype):
    return op_def("EmptyTensorList")([3], -1, element_dtype=dtype)


def test_a_feed_to_a_gpu_is_one_transfer(machine):
    x = tf.placeholder(tf.float32, [1000])
    with tf.device("/gpu:0"):
        y = x * 2.0
    with tf.Session(config=config()) as session:
        session.run(y, {x: np.ones(1000, np.float32)})
        before = session.devices[1].transfer.stats
        session.run(y, {x: np.ones(1000, np.float32)})
        after = session.devices[1].transfer.stats
    assert after.transfers_to_device - before.transfers_to_device == 1
    assert after.bytes_to_device - before.bytes_to_device == 4000
    assert after.copies_on_host == before.copies_on_host
    assert after.transfers_to_host - before.transfers_to_host == 1


def test_shapes_stay_on_the_host(machine):
    x = tf.placeholder(tf.float32, [None, 3])
    with tf.device("/gpu:0"):
        y = tf.reshape(x, [-1])
        rows = tf.shape(x)[0]
        z = tf.reshape(y + 1.0, tf.stack([rows, 3]))
    with tf.Session(config=config()) as session:
        for n in (2, 5):
            value = np.arange(n * 3, dtype=np.float32).reshape(n, 3)
            np.testing.assert_array_equal(session.run(z, {x: value}), value + 1)


def test_cupys_arrays_come_from_the_devices_pool(machine, monkeypatch):
    monkeypatch.setattr(session_module, "MAX_SHAPES", 0)  # one plan, which does not know the size
    x = tf.placeholder(tf.float32, [None])
    with tf.device("/gpu:0"):
        y = tf.sin(x) + 1.0
    with tf.Session(config=config()) as session:
        pool = session.devices[1].pool
        session.run(y, {x: np.ones(100)})
        before = pool.stats().num_allocs
        session.run(y, {x: np.ones(100)})
        assert pool.stats().num_allocs > before
        session.close()
    gc.collect()
    assert machine.free_bytes[0] == machine.total


def test_virtual_devices_have_limits_of_their_own(machine):
    virtual = [tf.GPUOptions.Experimental.VirtualDevices(memory_limit_mb=[8, 4])]
    with tf.device("/gpu:1"):
        x = tf.placeholder(tf.float32, [4])
        y = x + 1.0
        large = tf.zeros([1500, 1024])
        wide = tf.tanh(large + y[0])
    with tf.Session(config=config(gpus=1, virtual_devices=virtual)) as session:
        assert [d.memory_limit_bytes >> 20 for d in session.list_devices()[1:]] == [8, 4]
        assert session.run(y, {x: [1, 2, 3, 4]}).tolist() == [2, 3, 4, 5]
        with pytest.raises(tf.errors.ResourceExhaustedError, match="test_remote_device"):
            session.run(wide, {x: [1, 2, 3, 4]})
        assert session.run(y, {x: [1, 2, 3, 4]}).tolist() == [2, 3, 4, 5]


def test_a_device_that_breaks_ends_the_step_everywhere(machine):
    x = tf.placeholder(tf.float32, [4])
    with tf.device("/gpu:0"):
        y = tf.exp(x)
    with tf.device("/cpu:0"):
        z = y + 1.0
    with tf.Session(config=config()) as session:
        session.run(z, {x: np.ones(4)})
        machine.lost = ILLEGAL_ADDRESS
        with pytest.raises(tf.errors.InternalError, match=str(ILLEGAL_ADDRESS)):
            session.run(z, {x: np.ones(4)})
        machine.lost = 0


def test_the_null_device_runs_a_whole_training_script():
    x, y, loss, step = network("/device:NULL:0")
    with tf.Session(config=tf.ConfigProto(device_count={"NULL": 1})) as session:
        session.run(tf.global_variables_initializer())
        assert session.run([loss, step], {x: np.ones((8, 6)), y: np.ones((8, 1))})[0] == 0
        executor = session.devices[-1].executor
        assert "MatMul" in executor.timeline()
        assert executor.now_s > 0
        event = executor.create_event()
        assert event.poll() is EventStatus.UNKNOWN


def test_a_value_of_unknown_shape_is_refused_by_a_device_without_values():
    x = tf.placeholder(tf.float32, [4])
    with tf.device("/device:NULL:0"):
        y = tf.boolean_mask(x, x > 0)
    with tf.Session(config=tf.ConfigProto(device_count={"NULL": 1})) as session:
        with pytest.raises(tf.errors.InvalidArgumentError, match="computes nothing: expected a static shape"):
            session.run(y, {x: np.ones(4)})
        assert session.run(x + 1.0, {x: np.ones(4)}).tolist() == [2] * 4


def loop_beside(device):
    """A loop whose predicate the CPU computes and whose two vectors ``device`` turns, and swaps by moves."""

    def body(i, a, b):
        with tf.device(device):
            turned = tf.tanh(a) * 2.0
        return i + 1, b, turned

    x, n = tf.placeholder(tf.float32, [3]), tf.placeholder(tf.int32, [])
    with tf.device("/cpu:0"):
        return x, n, tf.while_loop(lambda i, *_: i < n, body, [0, x, x + 1.0])


def tangents(session):
    """How often the null device was asked for one since the last call."""
    calls = session.devices[-1].executor.calls
    names = [call.name for call in calls if call.kind == "kernel"]
    calls.clear()
    return sum(name.endswith("Tanh") for name in names)


@pytest.mark.parametrize("steps", [0, 1, 4])
def test_a_device_that_pretends_goes_through_loops_with_the_others(steps):
    x, n, results = loop_beside("/device:NULL:0")
    with tf.Session(config=tf.ConfigProto(device_count={"NULL": 1})) as session:
        for _ in range(2):
            count, *_ = session.run(results, {x: np.ones(3), n: steps})
            assert count == tangents(session) == steps


def test_a_device_that_pretends_takes_the_branch_that_the_host_chose():
    x = tf.placeholder(tf.float32, [3])

    def turned():
        with tf.device("/device:NULL:0"):
            return tf.tanh(x)

    with tf.device("/cpu:0"):
        y = tf.cond(tf.reduce_sum(x) > 0.0, turned, lambda: x)
    with tf.Session(config=tf.ConfigProto(device_count={"NULL": 1})) as session:
        for value in (1.0, -1.0, 1.0):
            session.run(y, {x: [value] * 3})
            assert tangents(session) == (value > 0)


@pytest.mark.parametrize("seed", range(4))
def test_a_predicate_of_the_host_is_not_read_back_from_a_gpu(monkeypatch, seed):
    plug_in(monkeypatch, seed)
    x, n, results = loop_beside("/gpu:0")
    with tf.Session(config=config()) as session:
        a, b = np.ones(3), 2 * np.ones(3)
        for steps in range(6):
            count, *vectors = session.run(results, {x: np.ones(3), n: steps})
            assert count == steps
            np.testing.assert_allclose(vectors, [a, b], rtol=1e-6)
            a, b = b, np.tanh(a) * 2
        assert session.devices[-1].transfer.stats.bytes_to_host % 12 == 0  # vectors, and no predicate


@pytest.mark.parametrize("seed", range(8))
def test_a_step_ends_when_all_its_streams_have(monkeypatch, seed):
    monkeypatch.setattr(schedule, "SWITCH_SECONDS", 0.0)
    plug_in(monkeypatch, seed)
    x = tf.placeholder(tf.float32, [4])
    with tf.device("/gpu:0"):
        ends = []
        for i in range(3):
            y = x + float(i)
            for _ in range(5):
                y = tf.tanh(y)
            ends.append(y)
    with tf.Session(config=config(streams=3, capture_steps=False)) as session:
        for step in range(3):
            found = session.run(ends[::-1], {x: np.full(4, step)})
            for i, value in enumerate(found[::-1]):
                wanted = np.full(4, step + i, np.float32)
                for _ in range(5):
                    wanted = np.tanh(wanted)
                np.testing.assert_allclose(value, wanted, rtol=1e-5)


def test_a_captured_step_gives_results_of_kernels_that_allocate(machine):
    x = tf.placeholder(tf.float32, [2, 3])
    with tf.device("/gpu:0"):
        chosen = tf.where(x > 2.0, x, -x)
        tiled = tf.tile(x + 1.0, [2, 1])
    with tf.Session(config=config()) as session:
        for step in range(5):
            value = np.full((2, 3), step, np.float32)
            first, second = session.run([chosen, tiled], {x: value})
            np.testing.assert_array_equal(first, np.where(value > 2, value, -value))
            np.testing.assert_array_equal(second, np.tile(value + 1, (2, 1)))


def test_handles_of_a_session_are_new_in_every_step(machine):
    with tf.Graph().as_default(), tf.device("/gpu:0"):
        x = tf.placeholder(tf.float32, [3])
        handle = tf.get_session_handle(x * 2.0)
        with tf.Session(config=config()) as session:
            handles = [session.run(handle, {x: [step] * 3}) for step in range(5)]
            assert len({h.handle for h in handles}) == 5
            assert [h.eval().tolist() for h in handles] == [[2.0 * step] * 3 for step in range(5)]


def test_draws_are_not_captured(machine):
    with tf.device("/gpu:0"):
        drawn = tf.random_uniform([4]) * 2.0
    with tf.Session(config=config()) as session:
        values = [session.run(drawn) for _ in range(8)]
    assert len({value.tobytes() for value in values}) == 8
    assert all((value < 2).all() for value in values)
