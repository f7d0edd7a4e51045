"""oneDNN's BLAS: products of matrices that lie in any way, against the sums in float64; threads, forks."""

from __future__ import annotations

import ctypes
import gc
import os
import signal
import sys
import threading
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given

from flowrt.device.llvm import host_pool
from flowrt.device.onednn import onednn
from flowrt.device.onednn.onednn import MIN_SHARED, Unsupported
from flowrt.device.onednn.onednn_blas import multiply

pytestmark = pytest.mark.skipif(not onednn.is_available(), reason=str(onednn.why_unavailable()))

Array = np.ndarray[Any, Any]

SIDE = 208  # of a product that threads share
assert SIDE**3 >= MIN_SHARED

UNIT = 2.0**-24
"""Half a unit in the last place of 1."""


def square(side: int = SIDE) -> Array:
    return np.random.default_rng(side).standard_normal((side, side)).astype(np.float32)


def product(a: Array, b: Array) -> Array:
    out = np.full((a.shape[0], b.shape[1]), np.nan, np.float32)  # what is there is not read
    multiply(a, b, out)
    return out


def check(a: Array, b: Array) -> None:
    """Any order of additions is right: each of k rounds by half a unit of the sum of absolute values."""
    x, y = a.astype(np.float64), b.astype(np.float64)
    assert np.all(abs(product(a, b) - x @ y) <= (a.shape[1] + 1) * UNIT * (abs(x) @ abs(y)))


@st.composite
def matrices(draw: st.DrawFn, rows: int, columns: int) -> Array:
    """By rows or by columns, which may be parts of longer ones."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    is_turned, more = draw(st.booleans()), draw(st.sampled_from([0, 0, 1, 7]))
    shape = (columns, rows + more) if is_turned else (rows, columns + more)
    whole = rng.standard_normal(shape).astype(np.float32)
    return whole[:, :rows].T if is_turned else whole[:, :columns]


@st.composite
def factors(draw: st.DrawFn) -> tuple[Array, Array]:
    m, k, n = (draw(st.one_of(st.integers(1, 40), st.integers(1, 300))) for _ in range(3))
    return draw(matrices(m, k)), draw(matrices(k, n))


@given(factors())
def test_random_matrices(case: tuple[Array, Array]) -> None:
    check(*case)


def test_threads_share_what_is_large() -> None:
    for a in (square(), square().T):
        for b in (square(), square().T):
            check(a, b)


def batch_of(shape: tuple[int, ...]) -> Array:
    return np.random.default_rng(len(shape)).standard_normal(shape).astype(np.float32)


@pytest.mark.parametrize(
    ("a", "b"),
    [
        (batch_of((3, 2, 5, 7)), batch_of((3, 2, 7, 4))),
        (batch_of((3, 1, 5, 7)), batch_of((1, 2, 7, 4))),
        (batch_of((3, 2, 5, 7)), batch_of((7, 4))),
        (batch_of((2, 5, 3, 7)).swapaxes(0, 2).swapaxes(1, 2), batch_of((3, 2, 4, 7)).swapaxes(-1, -2)),
        (batch_of((6, 5, 7))[::-2], batch_of((3, 7, 9))[..., 2:6]),
    ],
    ids=["plain", "broadcast", "one matrix", "transposed", "backwards and parts"],
)
def test_batches(a: Array, b: Array) -> None:
    expected = a.astype(np.float64) @ b
    whole = np.full((*expected.shape[:-1], 6), 7, np.float32)
    multiply(a, b, whole[..., :4])
    np.testing.assert_allclose(whole[..., :4], expected, atol=1e-5)
    assert np.all(whole[..., 4:] == 7)


def test_a_batch_is_no_loop_in_python() -> None:
    def functions_entered(count: int) -> list[str]:
        a, b, out = np.ones((3, count, 8, 8), np.float32)
        multiply(a, b, out)
        entered: list[str] = []
        gc.disable()  # it calls what garbage has to be told
        sys.setprofile(lambda frame, event, _: entered.append(f"{event} {frame.f_code.co_name}"))
        try:
            multiply(a, b, out)
        finally:
            sys.setprofile(None)
            gc.enable()
        return entered

    assert functions_entered(2) == functions_entered(12)


def test_a_result_may_be_a_part_of_longer_rows() -> None:
    whole = np.full((SIDE, SIDE + 3), 7, np.float32)
    multiply(square(), square(), whole[:, :SIDE])
    assert np.array_equal(whole[:, :SIDE], product(square(), square()))
    assert np.all(whole[:, SIDE:] == 7)


def test_a_nan_or_infinity_reaches_its_row_and_its_column() -> None:
    a, b = np.ones((2, 64, 64), np.float32)
    a[3, 5], b[7, 11] = np.nan, np.inf
    result = product(a, b)
    assert np.array_equal(np.isnan(result), np.arange(64)[:, None] == 3 + np.zeros(64))
    assert np.array_equal(np.isinf(result[np.arange(64) != 3]), np.arange(64) == 11 + np.zeros((63, 1)))


RECORDS = np.zeros(SIDE, np.dtype([("row", np.float32, SIDE), ("y", np.int16)]))


@pytest.mark.parametrize(
    "matrix",
    [
        square(2 * SIDE)[::2, ::2],
        square()[::-1],
        np.broadcast_to(np.float32(1), (SIDE, SIDE)),
        RECORDS["row"],
    ],
    ids=["every second", "backwards", "broadcast", "parts of elements"],
)
def test_without_neighbours_in_rows_or_columns_it_is_unsupported(matrix: Array) -> None:
    for arguments in (
        (matrix, square(), square()),
        (square(), matrix, square()),
        (square(), square(), matrix),
    ):
        with pytest.raises(Unsupported):
            multiply(*arguments)


def test_sums_of_nothing_are_unsupported() -> None:
    with pytest.raises(Unsupported):
        multiply(np.ones((3, 0), np.float32), np.ones((0, 4), np.float32), np.ones((3, 4), np.float32))


def test_a_result_by_columns_is_unsupported() -> None:
    with pytest.raises(Unsupported):
        multiply(square(), square(), square().T)


def test_threads_are_as_many_as_the_pool_has_and_one_for_small_work() -> None:
    count = ctypes.CDLL(onednn._path()).omp_get_max_threads
    try:
        for n_threads in (1, 2, 3):
            host_pool.set_num_threads(n_threads)
            product(square(), square())
            assert count() == n_threads
        product(square(8), square(8))
        assert count() == 1
    finally:
        host_pool.set_num_threads(0)


def test_threads_may_call_at_once() -> None:
    expected = product(square(), square())
    right: list[bool] = []

    def work() -> None:
        right.extend([np.array_equal(product(square(), square()), expected) for _ in range(10)])

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert right == [True] * 40


def test_a_forks_child_multiplies() -> None:
    """In the thread that forked, for which libgomp's threads would never come."""
    host_pool.set_num_threads(2)
    try:
        expected = product(square(), square())
        child = os.fork()
        if child == 0:
            signal.signal(signal.SIGALRM, signal.SIG_DFL)  # the runner has a handler
            signal.alarm(60)  # a child that hangs is killed then
            os._exit(0 if np.allclose(product(square(), square()), expected, atol=1e-3) else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    finally:
        host_pool.set_num_threads(0)
