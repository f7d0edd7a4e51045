"""The arrays of a pretended CuPy: NumPy's, over memory of the device, whose functions put themselves on the
current stream. `tests.device.pretend_cupy` is the module.
"""

from __future__ import annotations

import ctypes
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np

ON_GPU = 2  # DLPack's number


class Array(np.ndarray):
    """An array over memory of the device; what is done to it happens on the current stream, later."""

    _cupy: Any

    def __new__(cls, shape: tuple[int, ...], dtype: Any, memptr: Any, strides: Any = None) -> Any:
        size = extent(shape, strides, np.dtype(dtype))
        raw = (ctypes.c_ubyte * size).from_address(memptr.ptr)
        buffer = np.frombuffer(raw, np.uint8) if size else None
        array = np.ndarray.__new__(cls, shape, dtype, buffer, 0, strides if size else None)
        array._memory = memptr.mem
        return array

    def __array_finalize__(self, whole: Any) -> None:
        self._memory = getattr(whole, "_memory", None)

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, out: Any = (), **options: Any) -> Any:
        if ufunc is np.matmul:
            self._cupy.refuse_in_capture()
        hosts = [as_numpy(x) for x in inputs]
        if method == "at":
            self._cupy.thread.stream.put(partial(compute, ufunc.at, hosts, options, None))
            return None
        with np.errstate(all="ignore"):
            like = getattr(ufunc, method)(*hosts, **options)  # of what is there now: only shape and dtype
        result = out[0] if out else self._cupy.empty(like.shape, like.dtype)
        target = as_numpy(result)

        def work() -> None:
            with np.errstate(all="ignore"):
                getattr(ufunc, method)(*hosts, out=target, **options)

        self._cupy.thread.stream.put(work)
        return result

    def __array_function__(self, function: Any, types: Any, args: Any, kwargs: Any) -> Any:
        """Views at once; everything else is computed later, too."""
        if function in SIZED_BY_VALUES:
            self._cupy.thread.stream.synchronize()
        if function in CALLING_CUBLAS:
            self._cupy.refuse_in_capture()
        hosts, options = as_numpys(args), {k: as_numpys(v) for k, v in kwargs.items() if k != "out"}
        function = _take if function is np.take else function
        with np.errstate(all="ignore"):
            like = None if function is np.copyto else function(*hosts, **options)
        if _is_view(like, hosts):
            return super().__array_function__(function, types, args, kwargs)
        if hasattr(like, "_make"):  # several arrays, as of a decomposition
            results = [self._cupy.empty(part.shape, part.dtype) for part in like]
            self._cupy.thread.stream.put(partial(compute_all, function, hosts, options, as_numpys(results)))
            return like._make(results)
        if like is not None and not isinstance(like, np.ndarray | np.generic):
            return like
        result = kwargs.get("out")
        if result is None and like is not None:
            result = self._cupy.empty(like.shape, like.dtype)
        self._cupy.thread.stream.put(partial(compute, function, hosts, options, as_numpy(result)))
        return result

    def __getitem__(self, key: Any) -> Any:
        arrays = [k for k in (key if isinstance(key, tuple) else (key,)) if isinstance(k, np.ndarray)]
        if not arrays:  # a view, also of one element
            found = super().__getitem__(key)
            is_element = isinstance(found, np.generic)
            return (
                super().__getitem__((*key, ...) if isinstance(key, tuple) else (key, ...))
                if is_element
                else found
            )
        if any(k.dtype == bool for k in arrays):  # the size depends on values, and CuPy waits for them
            self._cupy.thread.stream.synchronize()
        host, key = as_numpy(self), as_numpys(key)
        like = host[_as_zeros(key)]  # only shape and dtype: the indices may not be there yet
        result = self._cupy.empty(like.shape, like.dtype)
        self._cupy.thread.stream.put(partial(compute, host.__getitem__, [key], {}, as_numpy(result)))
        return result

    def __setitem__(self, key: Any, value: Any) -> None:
        arguments = [as_numpys(key), as_numpys(value)]
        self._cupy.thread.stream.put(partial(compute, as_numpy(self).__setitem__, arguments, {}, None))

    # NumPy's methods would write at once, or copy to the host.

    def fill(self, value: Any) -> None:
        self[...] = value

    def astype(self, dtype: Any, copy: bool = True, **_: Any) -> Any:
        if not copy and self.dtype == dtype:
            return self
        result = self._cupy.empty(self.shape, dtype)
        self._cupy.thread.stream.put(partial(compute, as_numpy(self).astype, [dtype], {}, as_numpy(result)))
        return result

    def copy(self, order: str = "C") -> Any:
        return self.astype(self.dtype)

    def reshape(self, *shape: Any, **options: Any) -> Any:
        found = super().reshape(*shape, **options)
        return found if _is_view(found, (self,)) or not self.size else self.copy().reshape(*shape, **options)

    def ravel(self, order: str = "C") -> Any:
        return self.reshape(-1)

    def get(self) -> Any:
        """On the host, when all streams are done."""
        for stream in self._cupy.streams:
            stream.synchronize()
        return as_numpy(self).copy()

    def item(self, *args: Any) -> Any:
        self._cupy.thread.stream.synchronize()
        return as_numpy(self).item(*args)

    def tolist(self) -> Any:
        self._cupy.thread.stream.synchronize()
        return as_numpy(self).tolist()

    def __bool__(self) -> bool:
        return bool(self.item())

    def __int__(self) -> int:
        return int(self.item())

    def __index__(self) -> int:
        return int(self.item())

    def __float__(self) -> float:
        return float(self.item())

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        interface = self.__array_interface__
        stream = self._cupy.cuda.get_current_stream().ptr
        names = ("shape", "typestr", "strides", "data")
        return {"version": 3, "stream": stream, **{name: interface[name] for name in names}}

    def __dlpack_device__(self) -> tuple[int, int]:
        return ON_GPU, self.device.id

    def __dlpack__(self, *, stream: int | None = None, **_: Any) -> Any:
        """In the order of the stream that this thread has entered."""
        mark = self._cupy.cuda.Event(disable_timing=True)
        mark.record(self._cupy.cuda.get_current_stream())
        self._cupy.stream_of(stream).wait_event(mark)
        return self.__cuda_array_interface__

    @property
    def device(self) -> Any:
        return self._cupy.cuda.Device(self._memory.device_id)

    @property
    def data(self) -> Any:
        return SimpleNamespace(ptr=self.__array_interface__["data"][0], mem=self._memory)


MAKERS = {np.array, np.full, np.zeros, np.ones, np.arange, np.eye, np.linspace}

CALLING_CUBLAS = {np.dot, np.einsum, np.inner, np.tensordot, np.vdot}

SIZED_BY_VALUES = {np.nonzero, np.flatnonzero, np.argwhere, np.unique, np.compress, np.extract, np.bincount}
"""Functions that CuPy waits in: how much they give depends on what is in the array."""


def _is_view(value: Any, of: tuple[Any, ...]) -> bool:
    return isinstance(value, np.ndarray) and any(
        isinstance(a, np.ndarray) and np.may_share_memory(value, a) for a in of
    )


def compute(function: Any, arguments: Any, options: Any, target: Any) -> None:
    with np.errstate(all="ignore"):
        value = function(*arguments, **options)
        if target is not None:
            np.copyto(target, value)


def compute_all(function: Any, arguments: Any, options: Any, targets: Any) -> None:
    for target, value in zip(targets, function(*arguments, **options), strict=True):
        np.copyto(target, value)


def as_numpys(value: Any) -> Any:
    return type(value)(map(as_numpys, value)) if isinstance(value, list | tuple) else as_numpy(value)


def _take(array: Any, indices: Any, axis: int) -> Any:
    """Indices are wrapped around, as by CuPy (NumPy's ``mode="wrap"`` takes n steps for n times around)."""
    return np.take(array, indices % array.shape[axis], axis=axis)


def _as_zeros(key: Any) -> Any:
    """An index with 0 for every number in its arrays."""
    if isinstance(key, tuple):
        return tuple(map(_as_zeros, key))
    return np.zeros_like(key) if isinstance(key, np.ndarray) and key.dtype != bool else key


def as_numpy(value: Any) -> Any:
    """A view of an array's bytes that does not keep them, as a kernel's pointer does not."""
    if not isinstance(value, np.ndarray):
        return value
    return np.asarray(SimpleNamespace(__array_interface__=value.__array_interface__)).view(value.dtype)


def extent(shape: tuple[int, ...], strides: tuple[int, ...] | None, dtype: np.dtype[Any]) -> int:
    """How many bytes there are from the first element to the last."""
    if strides is None or 0 in shape:
        return int(np.prod(shape)) * dtype.itemsize
    return sum((n - 1) * stride for n, stride in zip(shape, strides, strict=True)) + dtype.itemsize
