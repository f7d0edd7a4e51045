"""Arrays in a GPU's memory as feeds: they stay there if a GPU reads them, and come to the host if not."""

from __future__ import annotations

import gc

import numpy as np
import pytest

import flowrt as tf
from flowrt.executor.ends.feeds import FEED_COUNTS, MIN_COUNTED
from tests.device.pretend_arrays import ON_GPU
from tests.executor.test_remote_device import config, machine, plug_in  # noqa: F401 (a fixture)

LARGE = MIN_COUNTED // 4 + 1  # float32 elements
SIZES = [3, LARGE]


class Interface:
    """Another library's array, which is written by that library's own stream, some time."""

    def __init__(self, cupy, values, ordinal=0, strides=None):
        values = np.asarray(values)
        self._cupy, self._like, self._strides = cupy, values, strides
        cupy.thread.device, before = ordinal, cupy.thread.device
        self._ordinal, self._address = ordinal, cupy.cuda.runtime.malloc(max(values.nbytes, 1))
        self._stream = cupy.cuda.Stream(non_blocking=True)
        cupy.thread.device = before
        self._raw = (np.ctypeslib.ctypes.c_ubyte * values.nbytes).from_address(self._address)
        self.write(values)

    def write(self, values):
        self._stream.put(lambda: np.copyto(np.frombuffer(self._raw, values.dtype), values.ravel()))

    @property
    def _described(self):
        strides = self._strides
        shape = self._like.shape if strides is None else tuple(np.array(self._like.shape) // [1, 2])
        data = (self._address, False)
        return {
            "version": 3,
            "shape": shape,
            "typestr": self._like.dtype.str,
            "strides": strides,
            "data": data,
        }

    @property
    def __cuda_array_interface__(self):
        return {**self._described, "stream": self._stream.ptr}

    def get(self):
        self._stream.synchronize()
        return np.frombuffer(self._raw, self._like.dtype).reshape(self._like.shape).copy()


class Exported(Interface):
    """The same with DLPack only, where the producer has the consumer's stream wait."""

    __cuda_array_interface__ = None

    @property
    def dtype(self):
        return f"library.{self._like.dtype}"

    @property
    def shape(self):
        return self._described["shape"]

    def __dlpack_device__(self):
        return ON_GPU, self._ordinal

    def __dlpack__(self, *, stream=None, **_):
        written = self._cupy.cuda.Event(disable_timing=True)
        written.record(self._stream)
        self._cupy.stream_of(stream).wait_event(written)
        return self._described


@pytest.fixture(autouse=True)
def counts():
    FEED_COUNTS.clear()
    return FEED_COUNTS


@pytest.fixture(params=[Interface, Exported])
def kind(request):
    return request.param


def copies(session, device=1):
    """What a session's device has copied: to it, from it to the host, between GPUs."""
    stats = session.devices[device].transfer.stats
    return stats.transfers_to_device, stats.transfers_to_host, stats.transfers_between


def doubled(size, device="/gpu:0"):
    """A placeholder, and a handle of twice its value, so that nothing is fetched."""
    with tf.device(device):
        x = tf.placeholder(tf.float32, [size])
        return x, tf.get_session_handle(x + x)


# --- to a GPU


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("size", SIZES)
def test_an_array_on_the_gpu_does_not_come_to_the_host(monkeypatch, counts, kind, seed, size):
    cupy = plug_in(monkeypatch, seed)
    x, twice = doubled(size)
    values = np.arange(size, dtype=np.float32)
    with tf.Session(config=config()) as session:
        session.run(twice, {x: values})
        for step in range(4):
            before = copies(session)
            handle = session.run(twice, {x: kind(cupy, values + step)})
            assert np.subtract(copies(session), before).tolist() == [0, 0, 1]
            np.testing.assert_array_equal(handle.eval(), 2 * (values + step))
    assert counts["left"] == (4 if size == LARGE else 0)
    assert counts["transferred"] == 0


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("size", SIZES)
def test_the_owner_may_change_the_array_when_the_run_is_over(monkeypatch, kind, seed, size):
    cupy = plug_in(monkeypatch, seed)
    with tf.device("/gpu:0"):
        x = tf.placeholder(tf.float32, [size])
        total = tf.Variable(np.zeros(size, np.float32))
        add = total.assign_add(x, read_value=False)
    with tf.Session(config=config()) as session:
        session.run(total.initializer)
        array = kind(cupy, np.zeros(size, np.float32))
        for step in range(5):
            array.write(np.full(size, 10.0**step, np.float32))
            session.run(add, {x: array})
        array.write(np.full(size, -1, np.float32))
        np.testing.assert_array_equal(session.run(total), np.full(size, 11111))


def test_an_array_of_cupys_is_read_in_the_order_of_its_users_stream(machine):  # noqa: F811
    x, twice = doubled(3)
    with machine.cuda.Stream(non_blocking=True), tf.Session(config=config()) as session:
        array = machine.array(np.ones(3, np.float32))
        for _ in range(3):
            array = array * np.float32(3)
        handle = session.run(twice, {x: array})
        assert copies(session) == (0, 0, 1)
        assert handle.eval().tolist() == [54.0] * 3


@pytest.mark.gpu
@pytest.mark.parametrize("size", SIZES)
def test_an_array_on_a_real_gpu_does_not_come_to_the_host(size):
    cupy = pytest.importorskip("cupy", reason="needs CuPy and a GPU")
    x, twice = doubled(size)
    with tf.Session(config=config()) as session:
        session.run(twice, {x: np.zeros(size)})
        for step in range(4):
            before, array = copies(session), cupy.full(size, step, np.float32)
            handle = session.run(twice, {x: array})
            array[...] = -1
            assert np.subtract(copies(session), before).tolist() == [0, 0, 1]
            np.testing.assert_array_equal(handle.eval(), np.full(size, 2 * step))


def test_an_array_that_is_not_contiguous_is_copied_in_its_order(machine, kind):  # noqa: F811
    values = np.arange(24, dtype=np.float32).reshape(4, 6)
    with tf.device("/gpu:0"):
        x = tf.placeholder(tf.float32, [4, 3])
        twice = tf.get_session_handle(x + x)
    with tf.Session(config=config()) as session:
        handle = session.run(twice, {x: kind(machine, values, strides=(24, 8))})
        assert copies(session) == (0, 0, 1)
        np.testing.assert_array_equal(handle.eval(), 2 * values[:, ::2])


def test_a_captured_step_reads_what_is_fed(machine, kind):  # noqa: F811
    with tf.device("/gpu:0"):
        x = tf.placeholder(tf.float32, [3])
        y = tf.tanh(x) * 0.0 + x
    with tf.Session(config=config()) as session:
        for step in range(5):
            assert session.run(y, {x: kind(machine, np.full(3, step, np.float32))}).tolist() == [step] * 3


@pytest.mark.parametrize("size", SIZES)
def test_from_another_gpu_of_the_session_it_comes_directly(machine, kind, size):  # noqa: F811
    x, twice = doubled(size)
    values = np.arange(size, dtype=np.float32)
    with tf.Session(config=config(gpus=2)) as session:
        handle = session.run(twice, {x: kind(machine, values, ordinal=1)})
        assert (copies(session, 1), copies(session, 2)) == ((0, 0, 1), (0, 0, 0))
        np.testing.assert_array_equal(handle.eval(), 2 * values)


def test_from_a_gpu_that_the_session_has_not_it_comes_by_the_host(machine, counts):  # noqa: F811
    x, twice = doubled(LARGE)
    values = np.arange(LARGE, dtype=np.float32)
    with tf.Session(config=config(gpus=1)) as session:
        handle = session.run(twice, {x: Interface(machine, values, ordinal=1)})
        assert copies(session) == (1, 0, 0)
        np.testing.assert_array_equal(handle.eval(), 2 * values)
    assert dict(counts) == {"transferred": 1}


def test_an_empty_array(machine, kind):  # noqa: F811
    x, twice = doubled(0)
    with tf.Session(config=config()) as session:
        assert session.run(twice, {x: kind(machine, np.zeros(0, np.float32))}).eval().shape == (0,)


def test_a_variable_is_loaded_from_the_gpu(machine, kind):  # noqa: F811
    with tf.device("/gpu:0"):
        v = tf.Variable([1.0, 2.0])
    with tf.Session(config=config()) as session:
        session.run(v.initializer)
        before = copies(session)
        v.load(kind(machine, np.float32([3, 4])), session)
        assert np.subtract(copies(session), before).tolist() == [0, 0, 1]
        assert session.run(v).tolist() == [3.0, 4.0]


def test_a_partial_run_takes_it(machine, kind):  # noqa: F811
    with tf.device("/gpu:0"):
        x, y = tf.placeholder(tf.float32, [2]), tf.placeholder(tf.float32, [2])
        first = x + 1.0
        second = first * y
    with tf.Session(config=config()) as session:
        run = session.partial_run_setup([first, second], [x, y])
        assert session.partial_run(run, first, {x: kind(machine, np.float32([1, 2]))}).tolist() == [2.0, 3.0]
        assert session.partial_run(run, second, {y: kind(machine, np.float32([5, 6]))}).tolist() == [
            10.0,
            18.0,
        ]


# --- to the host


@pytest.mark.parametrize("device", ["/cpu:0", "/device:NULL:0"])
def test_for_the_host_it_comes_by_one_transfer(machine, counts, device):  # noqa: F811
    x, _ = doubled(LARGE, device)
    with tf.device(device):
        y = x * 2.0
    values = np.arange(LARGE, dtype=np.float32)
    where = config()
    where.device_count["NULL"] = 1
    with tf.Session(config=where) as session:
        found = session.run(y, {x: Interface(machine, values)})
        assert copies(session) == (0, 0, 0)
    np.testing.assert_array_equal(found, np.zeros(LARGE) if "NULL" in device else 2 * values)
    assert dict(counts) == {"transferred": 1}


def test_another_dtype_is_converted_on_the_host(machine, counts):  # noqa: F811
    x, twice = doubled(LARGE)
    with tf.Session(config=config()) as session:
        handle = session.run(twice, {x: Interface(machine, np.arange(LARGE))})
        assert copies(session) == (1, 0, 0)
        np.testing.assert_array_equal(handle.eval(), 2 * np.arange(LARGE))
    assert dict(counts) == {"transferred": 1}


# --- handles


def test_a_handle_is_fed_where_its_value_is(machine):  # noqa: F811
    x, twice = doubled(3)
    where = config(capture_steps=False)
    with tf.Session(config=where) as session, tf.Session(config=where) as other:
        handle = session.run(twice, {x: np.ones(3)})
        before = copies(session)
        for _ in range(3):
            handle = session.run(twice, {x: handle})
        assert np.subtract(copies(session), before).tolist() == [0, 0, 3]
        assert other.run(twice, {x: handle}).eval().tolist() == [32.0] * 3
        assert copies(other) == (0, 0, 1)


def test_a_handle_whose_value_is_gone_is_named_with_the_placeholder(machine):  # noqa: F811
    x, twice = doubled(3)
    with tf.Session(config=config()) as session:
        handles = [session.run(twice, {x: np.ones(3)}) for _ in range(2)]
        handles[0].delete()
        with pytest.raises(tf.errors.NotFoundError, match=r"Placeholder.*feed_dict: .*it was deleted"):
            session.run(twice, {x: handles[0]})
        assert session.run(twice, {x: handles[1]}).eval().tolist() == [4.0] * 3
    with tf.Session(config=config()) as session:
        with pytest.raises(tf.errors.NotFoundError, match="its session was closed"):
            session.run(twice, {x: handles[1]})
        assert session.run(twice, {x: np.ones(3)}).eval().tolist() == [2.0] * 3


# --- what does not fit


def test_shapes_are_held_as_for_other_feeds(machine, kind):  # noqa: F811
    x, twice = doubled(3)
    with tf.Session(config=config()) as session:
        with pytest.raises(
            tf.errors.InvalidArgumentError, match=r"expected float32 of shape \[3\]; got .*\[2\]"
        ):
            session.run(twice, {x: kind(machine, np.zeros(2, np.float32))})
        assert session.run(twice, {x: np.ones(3)}).eval().tolist() == [2.0] * 3


def test_an_array_that_is_not_what_it_says_is_refused(machine):  # noqa: F811
    x, twice = doubled(3)
    array = Exported(machine, np.zeros(3, np.float32))
    real, array._like = array._described, np.zeros(3, np.int32)
    type(array).dtype, before = "float32", type(array).dtype
    try:
        with tf.Session(config=config()) as session:
            with pytest.raises(tf.errors.InvalidArgumentError, match="as it declared; got int32 of shape"):
                session.run(twice, {x: array})
            assert session.run(twice, {x: np.ones(3)}).eval().tolist() == [2.0] * 3
    finally:
        type(array).dtype = before
    assert real["typestr"] == "<f4"


def test_what_cupy_cannot_read_is_asked_to_come_to_the_host(machine):  # noqa: F811
    class Refusing(Interface):
        @property
        def __cuda_array_interface__(self):
            return {**self._described, "data": (0, False)}

    x, twice = doubled(3)
    with tf.Session(config=config()) as session:
        assert session.run(twice, {x: Refusing(machine, np.ones(3, np.float32))}).eval().tolist() == [2.0] * 3
        assert copies(session)[0] == 1


def test_nothing_is_kept_of_an_array_when_the_step_is_over(machine, kind):  # noqa: F811
    x, twice = doubled(LARGE)
    with tf.Session(config=config(capture_steps=False)) as session:
        session.run(twice, {x: np.ones(LARGE, np.float32)}).delete()
        gc.collect()
        in_use = session.devices[1].pool.stats().bytes_in_use
        for _ in range(3):
            session.run(twice, {x: kind(machine, np.ones(LARGE, np.float32))}).delete()
        gc.collect()
        assert session.devices[1].pool.stats().bytes_in_use == in_use
