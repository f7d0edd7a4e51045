"""Arrays of other libraries as feeds: DLPack, the CUDA array interface, ``__array__``; and copies."""

from __future__ import annotations

import tracemalloc

import ml_dtypes
import numpy as np
import pytest

import flowrt as tf
from flowrt.device.cuda import cuda
from flowrt.device.local_devices import DeviceRequest, local_devices
from flowrt.executor.ends.feeds import FEED_COUNTS, MIN_COUNTED, bring, converter
from flowrt.graph.construction.dlpack import dlpack_of
from tests.device.pretend_cupy import Cupy

LARGE = MIN_COUNTED // 4 + 1  # float32 elements


class Exported:
    """An array of another library, in host memory, with DLPack only."""

    def __init__(self, array):
        self.array, self.dtype = array, str(array.dtype)

    def __dlpack__(self, **how):
        return dlpack_of(self.array, **how)

    def __dlpack_device__(self):
        return 1, 0


class OnGpu:
    """An array in a GPU's memory, which refuses to become a NumPy array unasked, and counts its transfers."""

    dtype = np.dtype(np.float32)

    def __init__(self, array):
        self.array, self.transfers = array, 0

    def __dlpack__(self, *, dl_device=None, copy=None, **how):
        if dl_device != (1, 0):
            raise BufferError("the memory is on a GPU")
        self.transfers += 1
        return self.array.__dlpack__(copy=copy, **how)

    def __dlpack_device__(self):
        return 2, 0

    def __array__(self, *_, **__):
        raise TypeError("implicit conversion to a NumPy array is not allowed")


class OnlyCudaInterface:
    __cuda_array_interface__ = {"version": 3}  # noqa: RUF012


class InCudaMemory:
    """A vector of float32 on a GPU that says where it is, and no more."""

    def __init__(self, executor, values):
        self.values, self.memory = np.float32(values), executor.allocate(4 * len(values))
        stream = executor.create_stream()
        executor.memcpy_to_device(stream, self.memory, self.values)
        executor.block_host_until_done(stream, 20.0)

    @property
    def __cuda_array_interface__(self):
        data = (self.memory.address, False)
        return {"version": 3, "shape": self.values.shape, "typestr": "<f4", "data": data}


class OldArray:
    def __array__(self, dtype=None, copy=None):
        return np.arange(3, dtype=np.float32)


@pytest.fixture
def counts():
    FEED_COUNTS.clear()
    return FEED_COUNTS


@pytest.fixture
def session():
    with tf.Session() as opened:
        yield opened


def read(value, dtype=tf.float32):
    """What a program of the host reads for ``value``."""
    cpus = local_devices(DeviceRequest({"GPU": 0}))
    return bring([converter(tf.placeholder(dtype, None))(value)], cpus, cpus)[0]


# --- zero copy


def test_a_64_mb_aligned_array_reaches_a_step_without_a_copy(session, counts):
    x = tf.placeholder(tf.float32, [None])
    total, array = tf.reduce_sum(x), np.ones(16 << 20, np.float32)
    session.run(total, {x: array})
    counts.clear()
    tracemalloc.start()
    try:
        assert session.run(total, {x: array}) == 16 << 20
        assert tracemalloc.get_traced_memory()[1] < 1 << 20  # NumPy reports its memory there
    finally:
        tracemalloc.stop()
    assert dict(counts) == {"taken": 1}


def test_dlpack_on_the_host_is_read_where_it_is(counts):
    array = np.arange(LARGE, dtype=np.float32)
    assert np.shares_memory(read(Exported(array)), array)
    assert dict(counts) == {"taken": 1}


def test_read_only_memory_is_read_where_it_is(session):
    array = np.arange(LARGE, dtype=np.float32)
    array.flags.writeable = False
    assert np.shares_memory(read(Exported(array)), array)
    x = tf.placeholder(tf.float32, [None])
    assert session.run(x + 1, {x: Exported(array)})[1] == 2.0
    assert session.run(tf.tanh(x) * 0 + x, {x: array}).tolist() == array.tolist()


def test_bfloat16_crosses_in_its_own_bits():
    array = np.arange(5).astype(ml_dtypes.bfloat16)
    found = read(Exported(array), tf.bfloat16)
    assert found.dtype == ml_dtypes.bfloat16
    assert np.shares_memory(found, array)


# --- transfers and copies


def test_an_array_on_a_gpu_comes_by_exactly_one_transfer(counts):
    array = OnGpu(np.arange(LARGE, dtype=np.float32))
    assert read(array)[2] == 2.0
    assert array.transfers == 1
    assert dict(counts) == {"transferred": 1}


@pytest.mark.parametrize("method", ["get", "copy_to_host", "cpu"])
def test_an_array_on_a_gpu_that_cannot_say_it_in_dlpack_is_asked_to_copy_itself(method):
    array = OnlyCudaInterface()
    setattr(array, method, lambda: Exported(np.ones(3, np.float32)) if method == "cpu" else np.ones(3))
    assert read(array).tolist() == [1.0, 1.0, 1.0]


def test_an_array_that_only_says_where_it_is_comes_through_cupy(monkeypatch, counts):
    machine = Cupy()
    monkeypatch.setattr(cuda, "load_cupy", lambda: machine)
    executor = cuda.CudaExecutor(0, "/device:GPU:0")
    assert read(InCudaMemory(executor, [1, 2, 3])).tolist() == [1.0, 2.0, 3.0]
    assert read([InCudaMemory(executor, [1, 2]), [3, 4]]).tolist() == [[1.0, 2.0], [3.0, 4.0]]
    assert read(InCudaMemory(executor, np.zeros(LARGE))).shape == (LARGE,)
    assert dict(counts) == {"transferred": 1}
    with pytest.raises(tf.errors.InvalidArgumentError, match="that CuPy can read; got a OnlyCudaInterface"):
        read(OnlyCudaInterface())
    executor.close()


def test_copies_are_counted_with_their_reason(counts):
    misaligned = np.zeros(4 * LARGE + 1, np.uint8)[1:].view(np.float32)
    for value in (np.zeros(LARGE), misaligned, [0.0] * LARGE, np.zeros(LARGE, ">f4")):
        assert read(value).flags.aligned
    assert dict(counts) == {"dtype": 2, "alignment": 1, "structure": 1}


def test_a_strided_view_is_read_where_it_is(counts):
    array = np.zeros((LARGE, 2), np.float32)
    assert np.shares_memory(read(array[:, 1]), array)
    assert dict(counts) == {"taken": 1}


def test_small_feeds_are_not_counted(counts):
    for value in (1.0, np.zeros(MIN_COUNTED // 4, np.float32), [1.0, 2.0], Exported(np.zeros(3))):
        read(value)
    assert not counts


# --- kinds of values


@pytest.mark.parametrize(
    "value",
    [
        [Exported(np.arange(3.0)), Exported(np.arange(3.0))],
        [OnGpu(np.arange(3, dtype=np.float32)), [0, 1, 2]],
        (OldArray(), np.arange(3)),
        [[Exported(np.array(i)) for i in range(3)], OldArray()],
    ],
)
def test_lists_of_arrays_are_stacked(session, value):
    x = tf.placeholder(tf.float32, [2, 3])
    assert session.run(x, {x: value}).tolist() == [[0.0, 1.0, 2.0]] * 2


def test_other_dtypes_follow_the_rules_of_numpy_arrays():
    assert read(Exported(np.arange(3))).tolist() == [0.0, 1.0, 2.0]
    with pytest.raises(tf.errors.InvalidArgumentError, match="values of dtype float64 that int"):
        read(Exported(np.array([0.5])), tf.int32)


def test_a_fetched_array_goes_to_other_libraries_as_it_is(session):
    fetched = session.run(tf.ones([4]))
    assert np.shares_memory(np.from_dlpack(fetched), fetched)


# --- errors


class Raises:
    def __init__(self, error):
        self.error = error

    def __array__(self, dtype=None, copy=None):
        raise self.error


class Grad(Exported):
    requires_grad = True

    def __dlpack__(self, **_):
        raise BufferError("cannot export a tensor that requires gradient")


@pytest.mark.parametrize(
    ("value", "kind", "message"),
    [
        (Grad(np.zeros(3)), tf.errors.InvalidArgumentError, r"one that records them .*Use detach\(\)"),
        (OnlyCudaInterface(), tf.errors.UnimplementedError, r"expected an array that .*; got a .*OnlyCuda"),
        (
            [OnlyCudaInterface(), OnlyCudaInterface()],
            tf.errors.UnimplementedError,
            "Copy it to the host first",
        ),
        (
            OnlyCudaInterface(),
            tf.errors.UnimplementedError,
            "Copy it to the host first, or let CuPy: GPU: expected a CUDA device; there is no CuPy today",
        ),
        (Raises(RuntimeError("no")), tf.errors.InvalidArgumentError, r"NumPy can read; got .*Raises.*'no'"),
        (Raises(KeyError("no")), tf.errors.InvalidArgumentError, r"NumPy can read; got .*Raises.*'no'"),
        (Raises(TypeError("no")), tf.errors.InvalidArgumentError, r"NumPy can read; got .*Raises.*'no'"),
        ([Raises(RuntimeError("no"))], tf.errors.InvalidArgumentError, r"NumPy can read; got .*list.*'no'"),
        (Raises(MemoryError("no")), tf.errors.ResourceExhaustedError, "memory for a copy of a Raises"),
        (
            np.zeros(3, [("a", "f4"), ("b", "f4")]),
            tf.errors.DTypeError,
            r"expected float32\[3\]; got \[\(0.* a ndarray of dtype",
        ),
    ],
)
def test_what_cannot_be_read_is_named_with_the_placeholder(session, monkeypatch, value, kind, message):
    monkeypatch.setattr(cuda, "_reason_against_cuda", lambda: "there is no CuPy today")
    x = tf.placeholder(tf.float32, [3], name="x")
    with pytest.raises(kind, match=f"Placeholder 'x' .*feed_dict: .*{message}"):
        session.run(x + 1, {x: value})
    assert session.run(x + 1, {x: np.zeros(3, np.float32)}).tolist() == [1.0] * 3


def test_a_value_for_strings_that_cannot_be_read_is_named_with_the_placeholder(session):
    x = tf.placeholder(tf.string, None, name="x")
    for value in (Raises(RuntimeError("no")), [Raises(RuntimeError("no"))]):
        with pytest.raises(tf.errors.InvalidArgumentError, match=r"Placeholder 'x' .*NumPy can read; .*'no'"):
            session.run(x, {x: value})


def test_torch_tensors(session):
    torch = pytest.importorskip("torch", reason="torch is not installed")
    x = tf.placeholder(tf.float32, [None])
    tensor = torch.arange(LARGE, dtype=torch.float32)
    assert np.shares_memory(read(tensor), tensor.numpy())
    assert torch.equal(torch.from_dlpack(session.run(x, {x: tensor})), tensor)
    assert read(tensor.bfloat16(), tf.bfloat16).dtype == ml_dtypes.bfloat16
