"""A stand-in for NCCL and the little of CuPy beside it, over host memory: ranks are threads of this process.

A call returns at once, and a thread does it when all ranks have made it, as a GPU's stream does; sends and
receives of a group are done together. Who aborts ends the calls of all.
"""

from __future__ import annotations

import ctypes
import itertools
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import numpy as np

JOINS = {0: np.add, 1: np.multiply, 2: np.maximum, 3: np.minimum}
DTYPES = {0: np.int8, 2: np.int32, 4: np.int64, 6: np.float16, 7: np.float32, 8: np.float64}


class NcclError(RuntimeError):
    """As CuPy raises it."""


class Array(np.ndarray):
    """On the device: its memory has an address."""

    @property
    def data(self) -> Any:  # type: ignore[override]
        return SimpleNamespace(ptr=self.ctypes.data)


class Cupy:
    """The module ``cupy``."""

    ndarray, divide, floor_divide = Array, np.divide, np.floor_divide

    def __init__(self) -> None:
        self.here = threading.local()
        self.cuda = SimpleNamespace(get_current_stream=lambda: SimpleNamespace(ptr=1, record=self._record))

    def _record(self) -> Any:
        return _Event(self.here.call)

    def asarray(self, array: Any, order: str = "C") -> Any:
        return np.asarray(array, order=order).view(Array)  # type: ignore[call-overload]

    def empty(self, shape: Any, dtype: Any) -> Any:
        return np.empty(shape, dtype).view(Array)

    def zeros(self, shape: Any, dtype: Any) -> Any:
        return np.zeros(shape, dtype).view(Array)


class _Event:
    def __init__(self, call: Future[None]) -> None:
        self._call = call

    @property
    def done(self) -> bool:
        return self._call.done()


class Nccl:
    """The module ``cupy.cuda.nccl``."""

    NCCL_SUM, NCCL_PROD, NCCL_MAX, NCCL_MIN = JOINS
    NCCL_INT8, NCCL_INT32, NCCL_INT64, NCCL_FLOAT16, NCCL_FLOAT32, NCCL_FLOAT64 = DTYPES
    NcclError = NcclError

    def __init__(self, cupy: Cupy) -> None:
        self.cupy = cupy
        self._ids = itertools.count()
        self._groups: dict[tuple[int, ...], _Group] = {}
        self._lock = threading.Lock()

    def get_unique_id(self) -> tuple[int, ...]:
        return (next(self._ids), -1, *[0] * 126)

    def NcclCommunicator(self, size: int, unique_id: tuple[int, ...], rank: int) -> _Rank:
        with self._lock:
            group = self._groups.setdefault(unique_id, _Group(size))
        return _Rank(self, group, rank)

    def groupStart(self) -> None:
        self.cupy.here.group = []

    def groupEnd(self) -> None:
        transfers = self.cupy.here.group
        self.cupy.here.group = None
        transfers[0][0].exchange(transfers)


class _Group:
    def __init__(self, size: int) -> None:
        self.meeting = threading.Barrier(size, timeout=200)
        self.shown: list[Any] = [None] * size


class _Rank:
    """``cupy.cuda.nccl.NcclCommunicator``, with NCCL's order of arguments."""

    def __init__(self, nccl: Nccl, group: _Group, rank: int) -> None:
        self._nccl, self._group, self._rank = nccl, group, rank
        self._stream = ThreadPoolExecutor(1)

    def allReduce(self, array: int, out: int, count: int, dtype: int, op: int, stream: int) -> None:
        self._put((array, count, dtype), lambda all_: _write(out, _join(all_, op)))

    def reduce(self, array: int, out: int, count: int, dtype: int, op: int, root: int, stream: int) -> None:
        here = self._rank == root
        self._put((array, count, dtype), lambda all_: _write(out, _join(all_, op)) if here else None)

    def reduceScatter(self, array: int, out: int, count: int, dtype: int, op: int, stream: int) -> None:
        part = slice(self._rank * count, (self._rank + 1) * count)
        shown = (array, count * len(self._group.shown), dtype)
        self._put(shown, lambda all_: _write(out, _join(all_, op)[part]))

    def broadcast(self, array: int, out: int, count: int, dtype: int, root: int, stream: int) -> None:
        self._put((array, count, dtype), lambda all_: _write(out, all_[root]))

    def allGather(self, array: int, out: int, count: int, dtype: int, stream: int) -> None:
        self._put((array, count, dtype), lambda all_: _write(out, np.concatenate(all_)))

    def send(self, array: int, count: int, dtype: int, peer: int, stream: int) -> None:
        self._nccl.cupy.here.group.append((self, "send", peer, _at(array, count, dtype)))

    def recv(self, array: int, count: int, dtype: int, peer: int, stream: int) -> None:
        self._nccl.cupy.here.group.append((self, "recv", peer, _at(array, count, dtype)))

    def exchange(self, transfers: list[Any]) -> None:
        sends = {peer: array for _, kind, peer, array in transfers if kind == "send"}
        receives = {peer: array for _, kind, peer, array in transfers if kind == "recv"}

        def receive(all_: list[Any]) -> None:
            for peer, array in receives.items():
                array[:] = all_[peer][self._rank]

        self._submit(sends, receive)

    def check_async_error(self) -> None:
        if self._group.meeting.broken:
            raise NcclError("NCCL_ERROR_REMOTE_ERROR")

    def abort(self) -> None:
        self._group.meeting.abort()
        self._stream.shutdown()

    def _put(self, shown: tuple[int, int, int], act: Callable[[list[Any]], None]) -> None:
        self._submit(_at(*shown), act)

    def _submit(self, shown: Any, act: Callable[[list[Any]], None]) -> None:
        self._nccl.cupy.here.call = self._stream.submit(self._meet, shown, act)

    def _meet(self, shown: Any, act: Callable[[list[Any]], None]) -> None:
        group = self._group
        group.shown[self._rank] = shown
        group.meeting.wait()
        copies = [
            {peer: array.copy() for peer, array in each.items()} if isinstance(each, dict) else each.copy()
            for each in group.shown
        ]
        group.meeting.wait()
        act(copies)
        group.meeting.wait()


def _at(address: int, count: int, dtype: int) -> Any:
    nbytes = count * np.dtype(DTYPES[dtype]).itemsize
    return np.frombuffer((ctypes.c_char * nbytes).from_address(address), DTYPES[dtype])


def _join(arrays: list[Any], op: int) -> Any:
    return JOINS[op].reduce(arrays, dtype=arrays[0].dtype)


def _write(address: int, array: Any) -> None:
    ctypes.memmove(address, array.ctypes.data, array.nbytes)
