"""`nccl`: ranks with one GPU each, by NCCL through CuPy.

    the mesh    sends NCCL's id to all ranks, compares their calls, and reports lost ranks
    NCCL        exchanges and reduces the arrays, on CuPy's current stream

NCCL waits without a timeout, on the device. So the host submits a call to the stream, compares it with the
other ranks' meanwhile, and polls the stream until it has passed; if it cannot pass, NCCL is aborted, which
ends its kernels.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, final

import numpy as np

from flowrt.device.cuda.cuda import load_cupy, load_nccl
from flowrt.distribute.collectives.communicator import Array, Communicator
from flowrt.distribute.collectives.membership import disagree, missing
from flowrt.distribute.collectives.mesh import Mesh
from flowrt.distribute.collectives.parts import part, parts_of
from flowrt.errors import DTypeError, OpError, UnavailableError

ASK_S = 20e-6
"""Interval between polls of the stream."""

_DTYPES = {
    "int8": "INT8", "uint8": "UINT8", "int32": "INT32", "uint32": "UINT32", "int64": "INT64",
    "uint64": "UINT64", "float16": "FLOAT16", "float32": "FLOAT32", "float64": "FLOAT64",
    "bfloat16": "BFLOAT16",
}  # fmt: skip
_JOINS = {"sum": "SUM", "mean": "SUM", "prod": "PROD", "min": "MIN", "max": "MAX"}


@final
class NcclCommunicator(Communicator):
    """A rank's GPU, the one that is CuPy's current device; the ranks have different ones. Arrays are CuPy's.

    ``mesh`` closes with it. Raises `FailedPreconditionError` without CuPy, a GPU or NCCL.
    """

    kind, uses_links = "nccl", True

    def __init__(self, mesh: Mesh) -> None:
        super().__init__(mesh.membership)
        self._nccl = load_nccl()
        self.xp = load_cupy()
        self._mesh = mesh
        mesh.on_abort(self._end)
        unique_id = self._share_id()
        try:
            self._native = self._nccl.NcclCommunicator(self.size, unique_id, self.rank)
        except self._nccl.NcclError as error:
            raise UnavailableError(f"{self}: NCCL cannot start: {error}") from error
        self._is_aborted = False

    def _share_id(self) -> tuple[int, ...]:
        """NCCL's id, a tuple of 128 small numbers, from rank 0."""
        if self.rank:
            payload = self._mesh.receive(0, "beginning NCCL").payload
            return () if payload is None else tuple(payload.view(np.int8).tolist())
        made: tuple[int, ...] = tuple(self._nccl.get_unique_id())
        for rank in self.membership.others:
            self._mesh.send(rank, b"id", np.array(made, np.int8))
        return made

    # --- collectives

    def _all_reduce(self, array: Array, out: Array, reduction: str) -> None:
        arguments = (*_ends(array, out), array.size, self._dtype(array), self._join(reduction))
        self._do(self._native.allReduce, *arguments)
        self._finish(out, reduction)

    def _reduce(self, array: Array, out: Array | None, reduction: str, root: int) -> None:
        target = array if out is None else out  # the others' is not written
        arguments = (*_ends(array, target), array.size, self._dtype(array), self._join(reduction), root)
        self._do(self._native.reduce, *arguments)
        self._finish(out, reduction)

    def _reduce_scatter(self, array: Array, out: Array, reduction: str) -> None:
        arguments = (*_ends(array, out), out.size, self._dtype(array), self._join(reduction))
        self._do(self._native.reduceScatter, *arguments)
        self._finish(out, reduction)

    def _broadcast(self, array: Array | None, out: Array, root: int) -> None:
        given = out if array is None else array
        self._do(self._native.broadcast, *_ends(given, out), *_bytes(out), root)

    def _all_gather(self, array: Array, out: Array) -> None:
        self._do(self._native.allGather, *_ends(array, out), *_bytes(array))

    def _gather(self, array: Array, out: Array | None, root: int) -> None:
        def exchange(stream: int) -> None:
            if out is not None:
                for rank in range(self.size):
                    self._receive(out[part(out.size, self.size, rank)], rank, stream)
            self._send(array, root, stream)

        self._do(self._grouped(exchange))

    def _scatter(self, array: Array | None, out: Array, root: int) -> None:
        def exchange(stream: int) -> None:
            if array is not None:
                for rank in range(self.size):
                    self._send(array[part(array.size, self.size, rank)], rank, stream)
            self._receive(out, root, stream)

        self._do(self._grouped(exchange))

    def _all_to_all(self, array: Array, out: Array, counts: Any) -> None:
        parts = zip(parts_of(counts[self.rank]), parts_of(counts[:, self.rank]), strict=True)

        def exchange(stream: int) -> None:
            for rank, (given, place) in enumerate(parts):
                self._send(array[given], rank, stream)
                self._receive(out[place], rank, stream)

        self._do(self._grouped(exchange))

    def _barrier(self) -> None:
        one = self.xp.zeros(1, np.int32)
        self._all_reduce(one, one, "sum")

    # --- calls

    def _do(self, call: Callable[..., Any], *arguments: Any) -> None:
        """Put a call on the stream, and wait until that has passed it."""
        for rank in self.membership.others:
            self._mesh.send(rank, self._text)
        stream = self.xp.cuda.get_current_stream()
        with self._as_op_error():
            call(*arguments, stream.ptr)
            passed = stream.record()
        for rank in self.membership.others:
            text = self._mesh.receive(rank, str(self._call)).text
            if text != self._text:
                raise disagree(self.membership, [(self.rank, self._text), (rank, text)])
        end = time.monotonic() + self.membership.timeout_s
        while not passed.done:
            self._check()
            self._mesh.check()
            with self._as_op_error():
                self._native.check_async_error()
            if time.monotonic() > end:
                raise missing(self.membership, self.membership.others, str(self._call))
            time.sleep(ASK_S)

    def _grouped(self, exchange: Callable[[int], None]) -> Callable[[int], None]:
        """Sends and receives as one call: one by one they would wait for each other."""

        def call(stream: int) -> None:
            self._nccl.groupStart()
            exchange(stream)
            self._nccl.groupEnd()

        return call

    def _send(self, array: Array, rank: int, stream: int) -> None:
        self._native.send(array.data.ptr, *_bytes(array), rank, stream)
        if rank != self.rank:
            self.traffic.count(array.nbytes)

    def _receive(self, array: Array, rank: int, stream: int) -> None:
        self._native.recv(array.data.ptr, *_bytes(array), rank, stream)

    def _finish(self, out: Array | None, reduction: str) -> None:
        if out is not None and reduction == "mean":
            divide = self.xp.floor_divide if out.dtype.kind in "iu" else self.xp.divide
            divide(out, out.dtype.type(self.size), out=out)

    def _dtype(self, array: Array) -> int:
        name = _DTYPES.get(str(array.dtype), "")
        if not hasattr(self._nccl, f"NCCL_{name}"):
            raise DTypeError(f"{self}: expected a dtype that NCCL can reduce; got {array.dtype}")
        return int(getattr(self._nccl, f"NCCL_{name}"))

    def _join(self, reduction: str) -> int:
        return int(getattr(self._nccl, f"NCCL_{_JOINS[reduction]}"))

    @contextmanager
    def _as_op_error(self) -> Iterator[None]:
        try:
            yield
        except self._nccl.NcclError as error:
            raise UnavailableError(f"{self}: {self._call}: NCCL: {error}") from error

    # --- the end

    def _tell_others(self, error: OpError) -> None:
        self._mesh.abort(error)
        self._abort_native()

    def _abort_native(self) -> None:
        if not self._is_aborted:
            self._is_aborted = True
            self._native.abort()

    def _close(self) -> None:
        self._abort_native()
        self._mesh.close()


def _ends(array: Array, out: Array) -> tuple[int, int]:
    return array.data.ptr, out.data.ptr


def _bytes(array: Array) -> tuple[int, int]:
    """An array that is only moved: its number of bytes, and NCCL's number for one (ncclInt8)."""
    return array.nbytes, 0
