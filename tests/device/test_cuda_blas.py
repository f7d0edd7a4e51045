"""`CudaBlas`: what cuBLAS is asked for, on a pretended GPU and on a real one where there is one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple
from unittest import mock

import ml_dtypes
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from flowrt.device.cuda import cuda, cuda_blas
from flowrt.device.cuda.cuda import CudaExecutor
from flowrt.device.matmul_precision import FLOAT32_PRODUCTS, MatmulPrecision
from flowrt.device.stream_executor import Stream
from flowrt.errors import InternalError, ResourceExhaustedError
from tests.device.pretend_cublas import (
    ALLOC_FAILED,
    COMPUTE_32F,
    COMPUTE_64F,
    FAST_BFLOAT16,
    FAST_TF32,
    INTERNAL_ERROR,
    SUCCESS,
)
from tests.device.pretend_cupy import Cupy

HIGHEST, HIGH, MEDIUM = MatmulPrecision
SOON_S = 60.0


class Gpu(NamedTuple):
    """One device with a stream. ``machine`` is None where it is real."""

    executor: CudaExecutor
    stream: Stream
    machine: Any

    def matmul(self, a: Any, b: Any, out: Any = None) -> Any:
        """The product of arrays of the device, on the host."""
        return self.executor.xp.matmul(a, b, out=out).get()

    def put(self, array: np.ndarray[Any, Any]) -> Any:
        return self.executor.xp.array(array)


def open_gpu(machine: Cupy | None) -> Gpu:
    if machine is None:
        executor = CudaExecutor(0, "/device:GPU:0")
    else:
        with mock.patch.object(cuda, "load_cupy", return_value=machine):
            executor = CudaExecutor(0, "/device:GPU:0")
    return Gpu(executor, executor.create_stream(), machine)


@pytest.fixture(params=["library", "wrappers", pytest.param("real", marks=pytest.mark.gpu)])
def gpu(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Gpu]:
    """With cuBLAS's own functions, with CuPy's wrappers of them, and the real one."""
    if request.param == "library":
        monkeypatch.setattr(cuda_blas, "load_library", lambda cupy: cupy.cublas.library)
    opened = open_gpu(None if request.param == "real" else Cupy())
    with opened.executor.activate(opened.stream):
        yield opened
    opened.executor.close()


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Cupy:
    monkeypatch.setattr(cuda_blas, "load_library", lambda cupy: cupy.cublas.library)
    return Cupy()


@pytest.fixture(autouse=True)
def as_before() -> Iterator[None]:
    before = FLOAT32_PRODUCTS.precision
    yield
    FLOAT32_PRODUCTS.choose(before)


# --- which products


LAYOUTS: dict[str, Callable[[Any, Any], Any]] = {
    "C": lambda xp, x: x,
    "Fortran": lambda xp, x: x.swapaxes(-1, -2),
    "columns of more": lambda xp, x: x[..., 1:3],
    "every second column": lambda xp, x: x[..., ::2],
    "every second row": lambda xp, x: x[..., ::2, :],
    "rows in reverse": lambda xp, x: x[..., ::-1, :],
    "matrices in reverse": lambda xp, x: x[::-1],
    "every second matrix": lambda xp, x: x[::2],
    "one row": lambda xp, x: x[..., :1, :],
    "one column": lambda xp, x: x[..., :1],
    "one row for all": lambda xp, x: xp.broadcast_to(x[..., :1, :], x.shape),
    "one column for all": lambda xp, x: xp.broadcast_to(x[..., :1], x.shape),
    "one matrix for all": lambda xp, x: xp.broadcast_to(x[:1], x.shape),
    "matrices between": lambda xp, x: x.swapaxes(0, -2),
}
SIZES = st.lists(st.integers(1, 5), min_size=2, max_size=4)


@given(
    SIZES, SIZES, st.sampled_from(sorted(LAYOUTS)), st.sampled_from(sorted(LAYOUTS)), st.booleans(), st.data()
)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_two_views_are_multiplied_as_by_numpy(
    gpu: Gpu, left: list[int], right: list[int], turn: str, turn_b: str, into: bool, data: st.DataObject
) -> None:
    a, b = (np.arange(np.prod(sizes), dtype=np.float32).reshape(sizes) % 7 for sizes in (left, right))
    xp = gpu.executor.xp
    x, y = LAYOUTS[turn](xp, gpu.put(a)), LAYOUTS[turn_b](xp, gpu.put(b))
    a, b = LAYOUTS[turn](np, a), LAYOUTS[turn_b](np, b)
    inner = min(a.shape[-1], b.shape[-2])
    x, y, a, b = x[..., :inner], y[..., :inner, :], a[..., :inner], b[..., :inner, :]
    try:
        expected = np.matmul(a, b)
    except ValueError:  # the batches do not go together
        with pytest.raises(ValueError, match=r"."):
            gpu.matmul(x, y)
        return
    out = gpu.put(np.empty(expected.shape, np.float32))
    out = LAYOUTS[data.draw(st.sampled_from(["C", "Fortran"]))](xp, out)
    if out.shape != expected.shape or not into:
        out = None
    found = gpu.matmul(x, y, out)
    np.testing.assert_array_equal(found, expected)
    if out is not None:
        np.testing.assert_array_equal(out.get(), expected)


@pytest.mark.parametrize(
    "dtype", [np.float16, ml_dtypes.bfloat16, np.float32, np.float64, np.complex64, np.complex128]
)
def test_every_dtype_of_cublas(gpu: Gpu, dtype: Any) -> None:
    rng = np.random.default_rng(0)
    a, b = (rng.integers(-4, 5, shape).astype(dtype) for shape in ((3, 4, 5), (5, 2)))
    if np.dtype(dtype).kind == "c":
        a, b = a * (1 + 2j), b * (2 - 1j)
    found = gpu.matmul(gpu.put(a), gpu.put(b))
    assert found.dtype == dtype
    np.testing.assert_array_equal(found, a @ b)


@pytest.mark.parametrize(
    ("a", "b"),
    [
        (np.arange(6, dtype=np.int32).reshape(2, 3), np.arange(3, dtype=np.int32).reshape(3, 1)),
        (np.ones((2, 3), np.float32), np.ones(3, np.float32)),
        (np.ones((2, 0), np.float32), np.ones((0, 3), np.float32)),
        (np.ones((0, 2), np.float32), np.ones((2, 3), np.float32)),
        (np.ones((2, 3), np.float32), np.ones((3, 2), np.float64)),
    ],
)
def test_what_cublas_has_no_product_for_is_left_to_cupy(machine: Cupy, a: Any, b: Any) -> None:
    executor, stream, _ = gpu = open_gpu(machine)
    with executor.activate(stream):
        np.testing.assert_array_equal(gpu.matmul(gpu.put(a), gpu.put(b)), a @ b)
        with pytest.raises(ValueError, match="mismatch"):
            gpu.matmul(gpu.put(np.ones((2, 3), np.float32)), gpu.put(np.ones((2, 3), np.float32)))
    assert machine.cublas.compute_types == []
    executor.close()


def test_transposed_and_shared_factors_are_read_where_they_are(machine: Cupy) -> None:
    executor, stream, _ = gpu = open_gpu(machine)
    with executor.activate(stream):
        a, shared = gpu.put(np.ones((6, 4, 5), np.float32)), gpu.put(np.ones((3, 4), np.float32))
        out = gpu.put(np.zeros((6, 5, 3), np.float32))
        taken = []
        executor.set_allocator(lambda nbytes, stream: taken.append(nbytes) or executor.allocate(nbytes))
        found = gpu.matmul(a.swapaxes(1, 2), shared.T, out)
        assert not taken
        gpu.matmul(a[..., ::2], shared)
        assert taken == [6 * 4 * 4 * 4, 6 * 4 * 3 * 4]  # the result, and a copy of what has gaps
        taken.clear()
        gpu.matmul(a[..., :4], gpu.put(np.ones((4, 8), np.float32))[:, ::2])
        assert taken[1:] == [6 * 4 * 4 * 4, 4 * 4 * 4]  # of one matrix, not of a batch
    np.testing.assert_array_equal(found, np.full((6, 5, 3), 4))
    assert machine.cublas.batches[0] == 6
    executor.close()


# --- how exactly


@pytest.mark.parametrize(("precision", "expected"), [(HIGHEST, 68), (HIGH, 77), (MEDIUM, 75)])
def test_the_setting_is_for_products_of_float32_and_complex64(
    machine: Cupy, precision: MatmulPrecision, expected: int
) -> None:
    assert expected in (COMPUTE_32F, FAST_TF32, FAST_BFLOAT16)
    executor, stream, _ = gpu = open_gpu(machine)
    FLOAT32_PRODUCTS.choose(precision)
    with executor.activate(stream):
        for dtype in (np.float32, np.complex64, np.float16, ml_dtypes.bfloat16, np.float64, np.complex128):
            for batch in ((), (3,)):
                x = gpu.put(np.ones((*batch, 2, 2), dtype))
                gpu.matmul(x, x)
    assert machine.cublas.compute_types == [expected] * 4 + [COMPUTE_32F] * 4 + [COMPUTE_64F] * 4
    executor.close()


def test_a_change_is_for_the_next_product(machine: Cupy) -> None:
    executor, stream, _ = gpu = open_gpu(machine)
    with executor.activate(stream):
        x = gpu.put(np.ones((2, 2), np.float32))
        for precision in (HIGHEST, MEDIUM, HIGH, HIGHEST):
            FLOAT32_PRODUCTS.choose(precision)
            gpu.matmul(x, x)
    assert machine.cublas.compute_types == [COMPUTE_32F, FAST_BFLOAT16, FAST_TF32, COMPUTE_32F]
    executor.close()


def test_a_gpu_that_cannot_round_computes_in_float32(machine: Cupy) -> None:
    machine.capability = (7, 5)
    executor, stream, _ = gpu = open_gpu(machine)
    FLOAT32_PRODUCTS.choose(MEDIUM)
    with executor.activate(stream):
        x = gpu.put(np.ones((2, 2), np.float32))
        gpu.matmul(x, x)
    assert machine.cublas.compute_types == [COMPUTE_32F]
    executor.close()


@pytest.mark.parametrize("shape", [(256, 256), (4, 128, 256)])
@pytest.mark.parametrize(
    ("precision", "least", "most"), [(HIGHEST, 0.0, 1e-6), (HIGH, 1e-5, 1e-3), (MEDIUM, 1e-5, 1e-2)]
)
def test_the_error_of_each_step(
    gpu: Gpu, shape: tuple[int, ...], precision: MatmulPrecision, least: float, most: float
) -> None:
    """Of sums of 256 products of random factors, relative to the largest sum."""
    if gpu.machine is None and cuda.visible_devices()[0].compute_capability < cuda_blas.ROUNDS_FROM:
        pytest.skip("rounding factors takes compute capability 8.0")
    rng = np.random.default_rng(1)
    a, b = rng.standard_normal(shape, np.float32), rng.standard_normal((256, 192), np.float32)
    exact = a.astype(np.float64) @ b.astype(np.float64)
    FLOAT32_PRODUCTS.choose(precision)
    error = np.abs(gpu.matmul(gpu.put(a), gpu.put(b)) - exact).max() / np.abs(exact).max()
    assert least <= error <= most


# --- captured, refused


def test_products_are_captured_by_cublass_own_functions_only(
    gpu: Gpu, request: pytest.FixtureRequest
) -> None:
    executor, stream, _ = gpu
    a, b, c = (gpu.put(np.full((2, 3, 3), n, np.float32)) for n in (1, 2, 0))

    def run() -> None:
        executor.xp.matmul(a, b, out=c)
        executor.xp.add(a, c, out=a)

    run()  # handles are made before
    replay = executor.capture(stream, run)
    if request.node.callspec.params["gpu"] == "wrappers":
        assert replay is None
        return
    assert replay is not None
    for expected in (49, 343):
        replay()
        np.testing.assert_array_equal(a.get(), np.full((2, 3, 3), expected))


@pytest.mark.parametrize(
    ("status", "error"), [(ALLOC_FAILED, ResourceExhaustedError), (INTERNAL_ERROR, InternalError)]
)
@pytest.mark.parametrize("batch", [(), (2,)])
def test_what_cublas_refuses_is_said_and_the_next_product_is_made(
    machine: Cupy, status: int, error: type[Exception], batch: tuple[int, ...]
) -> None:
    executor, stream, _ = gpu = open_gpu(machine)
    with executor.activate(stream):
        x = gpu.put(np.ones((*batch, 2, 2), np.float32))
        machine.cublas.status = status
        with pytest.raises(error, match=r"cublasGemm\w+_64: "):
            gpu.matmul(x, x)
        machine.cublas.status = SUCCESS
        np.testing.assert_array_equal(gpu.matmul(x, x), np.full((*batch, 2, 2), 2))
    executor.close()
