"""`CudaBlas`: products of CuPy's matrices by cuBLAS, with the precision of `flowrt.device.matmul_precision`.

CuPy's own ``matmul``, in 13.6 and 14.2, is unsuitable: it has no bfloat16 for factors of float32, supports
TensorFloat-32 for single matrices only, copies transposed batches, and calls no cuBLAS while a stream is
captured, so that no step with a product could become a CUDA graph.

So cuBLAS's functions are called directly, with CuPy's handles, in the library that CuPy has loaded. If they
are not found in it, CuPy's wrappers are called, and steps with products are not captured.

To cuBLAS, which is column-major, a matrix in C order is its transpose. So C = A B is computed as C^T = B^T
A^T: the same memory, the factors in the other order.
"""

from __future__ import annotations

import ctypes
import functools
import math
from collections.abc import Callable, Mapping
from itertools import pairwise
from typing import Any, NamedTuple, final

import numpy as np

from flowrt import dtypes
from flowrt.device.matmul_precision import FLOAT32_PRODUCTS, MatmulPrecision
from flowrt.errors import InternalError, ResourceExhaustedError

AS_IS, TRANSPOSED = 0, 1
"""cublasOperation_t"""

DEFAULT_ALGORITHM, ALLOCATION_FAILED = -1, 3
"""Values of cublasGemmAlgo_t and cublasStatus_t."""

FLOAT32_COMPUTE = {MatmulPrecision.HIGHEST: 68, MatmulPrecision.HIGH: 77, MatmulPrecision.MEDIUM: 75}
FLOAT16_COMPUTE, FLOAT64_COMPUTE = dict.fromkeys(MatmulPrecision, 68), dict.fromkeys(MatmulPrecision, 70)
"""cublasComputeType_t: CUBLAS_COMPUTE_32F, _32F_FAST_TF32, _32F_FAST_16BF; CUBLAS_COMPUTE_64F."""

ROUNDS_FROM = (8, 0)
"""The compute capability of the first GPUs that can round factors of float32; older ones never do."""


# --- arguments of cuBLAS


class _Kind(NamedTuple):
    """cuBLAS constants for a dtype."""

    data_type: int
    """cudaDataType"""
    compute: Mapping[MatmulPrecision, int]
    one: int
    """The address of the factor of the product: on the host, of the dtype that sums have."""
    zero: int
    """Zero scalar for the previous contents of the result (beta)."""
    keep: Any
    """The array that has both."""


def _kind(data_type: int, compute: Mapping[MatmulPrecision, int], sums: Any) -> _Kind:
    factors = np.array([1, 0], sums)
    address = factors.ctypes.data
    return _Kind(data_type, compute, address, address + factors.itemsize, factors)


_KINDS = {
    dtypes.float32.np: _kind(0, FLOAT32_COMPUTE, np.float32),
    dtypes.float64.np: _kind(1, FLOAT64_COMPUTE, np.float64),
    dtypes.float16.np: _kind(2, FLOAT16_COMPUTE, np.float32),
    dtypes.complex64.np: _kind(4, FLOAT32_COMPUTE, np.complex64),
    dtypes.complex128.np: _kind(5, FLOAT64_COMPUTE, np.complex128),
    dtypes.bfloat16.np: _kind(14, FLOAT16_COMPUTE, np.float32),
}


class _Factor(NamedTuple):
    """Matrices in place. Steps are in elements."""

    address: int
    operation: int
    step: int
    """Distance between columns, in cuBLAS's column-major view."""
    batch_step: int
    """Distance between matrices; 0 if all are the same."""
    keep: Any
    """The array."""


def _factor(x: Any, batch: tuple[int, ...]) -> _Factor | None:
    """``x`` as a factor in products of ``batch``; None if cuBLAS cannot read its layout."""
    layout, batch_step = _layout(x), _batch_step(x, batch)
    if layout is None or batch_step is None:
        return None
    return _Factor(x.data.ptr, *layout, batch_step, x)


def _layout(x: Any) -> tuple[int, int] | None:
    """The operation and the step of matrices in C order, or in Fortran's; None for any other."""
    rows, columns = x.shape[-2:]
    row_step, column_step = (stride // x.itemsize for stride in x.strides[-2:])
    if (column_step == 1 or columns == 1) and (row_step >= columns or rows == 1):
        return AS_IS, row_step if rows > 1 else columns
    if (row_step == 1 or rows == 1) and column_step >= rows:
        return TRANSPOSED, column_step
    return None


def _batch_step(x: Any, batch: tuple[int, ...]) -> int | None:
    """Distance between matrices of the ``batch``; None if they are not evenly spaced."""
    sizes = x.shape[:-2]
    if math.prod(sizes) == 1:
        return 0
    places = [(size, stride) for size, stride in zip(sizes, x.strides, strict=False) if size > 1]
    is_even = all(outer == size * inner for (_, outer), (size, inner) in pairwise(places))
    step = int(places[-1][1]) // int(x.itemsize)
    return step if sizes == batch and is_even and step >= 0 else None


# --- cuBLAS's functions

_POINTER, _INT, _SIZE = ctypes.c_void_p, ctypes.c_int, ctypes.c_int64
_MATRIX, _MATRICES = (_POINTER, _INT, _SIZE), (_POINTER, _INT, _SIZE, _SIZE)
_HEAD, _TAIL = (_POINTER, _INT, _INT, _SIZE, _SIZE, _SIZE, _POINTER), (_INT, _INT)
ARGUMENTS: dict[str, tuple[Any, ...]] = {
    "cublasSetStream_v2": (_POINTER, _POINTER),
    "cublasGemmEx_64": (*_HEAD, *_MATRIX, *_MATRIX, _POINTER, *_MATRIX, *_TAIL),
    "cublasGemmStridedBatchedEx_64": (
        *_HEAD, *_MATRICES, *_MATRICES, _POINTER, *_MATRICES, _SIZE, *_TAIL,
    ),
}  # fmt: skip
"""Argument types of each function; all return a status."""


class Functions(NamedTuple):
    """cuBLAS's, or CuPy's wrappers of them, which take the same arguments and set the stream."""

    set_stream: Callable[..., Any] | None
    gemm: Callable[..., Any]
    gemm_batched: Callable[..., Any]


def load_library(cupy: Any) -> ctypes.CDLL:
    """CuPy's module that is linked with cuBLAS: symbols of linked libraries are looked up through it."""
    return ctypes.CDLL(cupy.cuda.cublas.__file__)


def _load_functions(cupy: Any) -> Functions:
    try:
        library = load_library(cupy)
        return Functions(*[_declared(library, name) for name in ARGUMENTS])
    except (OSError, AttributeError):
        return Functions(None, cupy.cuda.cublas.gemmEx, cupy.cuda.cublas.gemmStridedBatchedEx)


def _declared(library: ctypes.CDLL, name: str) -> Any:
    function = getattr(library, name)
    function.argtypes, function.restype = ARGUMENTS[name], _INT
    function.errcheck = functools.partial(_check, name)
    return function


def _check(name: str, status: int, function: Any, arguments: tuple[Any, ...]) -> None:
    if status == ALLOCATION_FAILED:
        raise ResourceExhaustedError(f"{name}: the device has no memory for cuBLAS's own use")
    if status:
        raise InternalError(f"{name}: cuBLAS gave status {status}")


# --- products


@final
class CudaBlas:
    """The products of one GPU. To be called where CuPy's current device and stream are the right ones."""

    def __init__(self, cupy: Any, compute_capability: tuple[int, int]) -> None:
        self._cupy = cupy
        self._may_round = compute_capability >= ROUNDS_FROM

    @functools.cached_property
    def _functions(self) -> Functions:
        return _load_functions(self._cupy)

    def matmul(self, a: Any, b: Any, out: Any = None) -> Any:
        """``a @ b``, as `numpy.matmul`. What cuBLAS has no product for (vectors, integers, two dtypes, empty
        arrays, shapes that do not fit) is left to CuPy. ``out`` shares no memory with the factors.

        Raises `ResourceExhaustedError` or `InternalError` when cuBLAS refuses; ``out`` is as it was.
        """
        kind = _KINDS.get(a.dtype)
        if kind is None or b.dtype != a.dtype or not _are_matrices(a, b):
            return self._cupy.matmul(a, b, out=out)
        batch = np.broadcast_shapes(a.shape[:-2], b.shape[:-2])
        shape = (*batch, a.shape[-2], b.shape[-1])
        fits = out is not None and out.flags.c_contiguous and out.dtype == a.dtype and out.shape == shape
        result = out if fits else self._cupy.empty(shape, a.dtype)
        self._multiply(kind, self._factor(b, batch), self._factor(a, batch), a.shape[-1], result)
        if out is None or fits:
            return result
        out[...] = result
        return out

    def _factor(self, x: Any, batch: tuple[int, ...]) -> _Factor:
        """``x``, or a copy in C order if cuBLAS cannot read its layout."""
        found = _factor(x, batch)
        if found is None:
            sizes = x.shape[:-2] if math.prod(x.shape[:-2]) == 1 else batch
            copy = self._cupy.ascontiguousarray(self._cupy.broadcast_to(x, (*sizes, *x.shape[-2:])))
            found = _factor(copy, batch)
            assert found is not None
        return found

    def _multiply(self, kind: _Kind, left: _Factor, right: _Factor, k: int, result: Any) -> None:
        """Write the product of the transposes, with sums of ``k`` products, into the transpose ``result``."""
        cuda, (set_stream, gemm, gemm_batched) = self._cupy.cuda, self._functions
        handle = cuda.get_cublas_handle()
        if set_stream is not None:
            set_stream(handle, cuda.get_current_stream().ptr)
        *batch, n, m = result.shape
        head = (handle, left.operation, right.operation, m, n, k, kind.one)
        matrices = [(address, kind.data_type, step) for address, _, step, *_ in (left, right)]
        target = (kind.zero, result.data.ptr, kind.data_type, m)
        precision = FLOAT32_PRODUCTS.precision if self._may_round else MatmulPrecision.HIGHEST
        tail = (kind.compute[precision], DEFAULT_ALGORITHM)
        count = math.prod(batch)
        if count == 1:
            gemm(*head, *matrices[0], *matrices[1], *target, *tail)
        else:
            steps = left.batch_step, right.batch_step, m * n
            batched = [(*matrix, step) for matrix, step in zip((*matrices, target), steps, strict=True)]
            gemm_batched(*head, *batched[0], *batched[1], *batched[2], count, *tail)


def _are_matrices(a: Any, b: Any) -> bool:
    """Whether there is something to multiply, and it fits."""
    return bool(a.ndim >= 2 and b.ndim >= 2 and a.size and b.size and a.shape[-1] == b.shape[-2])


@final
class ArrayModule:
    """CuPy as kernels are called with it: with the products of `CudaBlas`, and a ``where`` of bfloat16, which
    CuPy 14.2 computes in float32.
    """

    def __init__(self, cupy: Any, blas: CudaBlas) -> None:
        self._cupy, self.matmul = cupy, blas.matmul

    def where(self, condition: Any, *choices: Any) -> Any:
        found = self._cupy.where(condition, *choices)
        if any(getattr(choice, "dtype", None) == dtypes.bfloat16.np for choice in choices):
            return found.astype(self._cupy.result_type(*choices), copy=False)
        return found

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._cupy, name)
        setattr(self, name, found)  # from now on it is found as fast as in the module
        return found
