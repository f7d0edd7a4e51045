"""A stand-in for cuBLAS: products of matrices at addresses, in Fortran's order, on the stream of the handle.

`Cublas` is the library, with C functions in `Cublas.library`. `Wrappers` is what CuPy makes of it: the same,
but refused while a stream is captured. Factors are rounded as far as the type of computation allows, so a
test sees which one was asked for.
"""

from __future__ import annotations

import ctypes
import traceback
from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import ml_dtypes
import numpy as np

from flowrt.device.cuda.cuda_blas import ARGUMENTS

if TYPE_CHECKING:
    from tests.device.pretend_cupy import Cupy

SINGLE, HALF = np.dtype(np.float32), [np.dtype(np.float16), np.dtype(ml_dtypes.bfloat16)]
DTYPES = {
    0: SINGLE,
    1: np.dtype(float),
    2: HALF[0],
    4: np.dtype(np.complex64),
    5: np.dtype(complex),
    14: HALF[1],
}
COMPUTE_32F, COMPUTE_64F, FAST_BFLOAT16, FAST_TF32 = 68, 70, 75, 77
DEFAULT_ALGORITHM = -1
SUCCESS, ALLOC_FAILED, INVALID_VALUE, INTERNAL_ERROR = 0, 3, 7, 14
REFUSAL = "calling cuBLAS API during stream capture is currently unsupported"


class Cublas:
    """The library ``libcublas``; every function returns a status."""

    def __init__(self, cupy: Cupy) -> None:
        self._cupy = cupy
        self._streams: dict[int, int] = {}
        self.compute_types: list[int] = []
        """One for each product."""
        self.batches: list[int] = []
        """How many products each call was asked for."""
        self.status = SUCCESS
        """What the next products return, with nothing done."""

    @property
    def library(self) -> Any:
        """What ``ctypes.CDLL`` gives: functions of C, other objects each time, whose types a caller sets."""
        return SimpleNamespace(
            **{
                name: ctypes.CFUNCTYPE(ctypes.c_int, *types)(partial(_status, getattr(self, name)))
                for name, types in ARGUMENTS.items()
            }
        )

    def cublasSetStream_v2(self, handle: int, stream: int) -> int:
        assert handle == self._cupy.cuda.get_cublas_handle(), "a handle of another thread or device"
        self._streams[handle] = stream
        return SUCCESS

    def cublasGemmEx_64(
        self, handle: int, op_a: int, op_b: int, m: int, n: int, k: int, one: int,
        a: int, type_a: int, lda: int, b: int, type_b: int, ldb: int, zero: int,
        c: int, type_c: int, ldc: int, compute: int, algorithm: int,
    ) -> int:  # fmt: skip
        return self.cublasGemmStridedBatchedEx_64(
            handle, op_a, op_b, m, n, k, one, a, type_a, lda, 0, b, type_b, ldb, 0, zero,
            c, type_c, ldc, 0, 1, compute, algorithm,
        )  # fmt: skip

    def cublasGemmStridedBatchedEx_64(
        self, handle: int, op_a: int, op_b: int, m: int, n: int, k: int, one: int,
        a: int, type_a: int, lda: int, step_a: int, b: int, type_b: int, ldb: int, step_b: int, zero: int,
        c: int, type_c: int, ldc: int, step_c: int, count: int, compute: int, algorithm: int,
    ) -> int:  # fmt: skip
        dtype = DTYPES[type_a]
        assert type_a == type_b == type_c
        assert algorithm == DEFAULT_ALGORITHM
        sums = SINGLE if dtype in HALF else dtype
        assert [_scalar(one, sums), _scalar(zero, sums)] == [1, 0]
        assert (compute == COMPUTE_64F) == (dtype in (float, complex))
        assert compute == COMPUTE_32F or dtype not in HALF
        if min(m, n, k, count) < 1 or lda < (k if op_a else m) or ldb < (n if op_b else k) or ldc < m:
            return INVALID_VALUE
        if self.status != SUCCESS:
            return self.status
        ends = [
            (a, (k, m) if op_a else (m, k), lda, step_a),
            (b, (n, k) if op_b else (k, n), ldb, step_b),
            (c, (m, n), ldc, step_c),
        ]
        views = [self._view(dtype, count, *end) for end in ends]
        left, right = (v.swapaxes(1, 2) if op else v for v, op in zip(views[:2], (op_a, op_b), strict=True))
        self.compute_types.append(compute)
        self.batches.append(count)
        self._stream_of(handle).put(partial(_multiply, left, right, views[2], compute))
        return SUCCESS

    def _stream_of(self, handle: int) -> Any:
        return self._cupy.stream_of(self._streams[handle])

    def _view(
        self,
        dtype: np.dtype[Any],
        count: int,
        address: int,
        shape: tuple[int, int],
        step: int,
        batch_step: int,
    ) -> Any:
        """The matrices, column behind column, as an array over their memory."""
        strides = tuple(n * dtype.itemsize for n in (batch_step, 1, step))
        extent = sum((n - 1) * stride for n, stride in zip((count, *shape), strides, strict=True))
        size = extent + dtype.itemsize
        self._cupy.check_inside(address, size)
        raw = np.frombuffer((ctypes.c_ubyte * size).from_address(address), np.uint8)
        return np.ndarray((count, *shape), dtype, raw, 0, strides)


class Wrappers:
    """The module ``cupy.cuda.cublas``."""

    __file__ = "/nowhere/cublas.so"

    def __init__(self, cupy: Cupy) -> None:
        self._cupy = cupy

    def gemmEx(self, handle: int, *arguments: Any) -> None:
        self._call(self._cupy.cublas.cublasGemmEx_64, handle, arguments)

    def gemmStridedBatchedEx(self, handle: int, *arguments: Any) -> None:
        self._call(self._cupy.cublas.cublasGemmStridedBatchedEx_64, handle, arguments)

    def _call(self, function: Any, handle: int, arguments: tuple[Any, ...]) -> None:
        stream = self._cupy.cuda.get_current_stream()
        if stream.graph is not None:
            raise NotImplementedError(REFUSAL)
        self._cupy.cublas.cublasSetStream_v2(handle, stream.ptr)
        assert function(handle, *arguments) == SUCCESS


def _status(function: Callable[..., int], *arguments: Any) -> int:
    """What ``function`` returns: an exception does not come through C."""
    try:
        return function(*arguments)
    except Exception:  # noqa: BLE001 (shown, and an error to the caller)
        traceback.print_exc()
        return INTERNAL_ERROR


def _multiply(left: Any, right: Any, target: Any, compute: int) -> None:
    with np.errstate(all="ignore"):
        factors = [rounded(x.astype(SINGLE) if x.dtype in HALF else x, compute) for x in (left, right)]
        np.copyto(target, np.matmul(*factors), casting="unsafe")


def rounded(x: Any, compute: int) -> Any:
    """``x`` as a factor in products of the type ``compute``."""
    if x.dtype.kind == "c" and compute in (FAST_TF32, FAST_BFLOAT16):
        return rounded(x.real, compute) + 1j * rounded(x.imag, compute)
    if compute == FAST_TF32:
        bits = np.ascontiguousarray(x).view(np.uint32)
        return ((bits + 0x0FFF + ((bits >> 13) & 1)) & ~np.uint32(0x1FFF)).view(np.float32)
    return x.astype(ml_dtypes.bfloat16).astype(np.float32) if compute == FAST_BFLOAT16 else x


def _scalar(address: int, dtype: np.dtype[Any]) -> Any:
    return np.frombuffer(ctypes.string_at(address, dtype.itemsize), dtype)[0]
