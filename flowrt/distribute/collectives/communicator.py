"""`Communicator`: blocking collectives of one rank of a group, on arrays.

    every rank   all_reduce(array, out=out)
       | the array is checked, made contiguous and flat; the call gets its number
    the medium   _all_reduce(flat, flat_out, reduction)       threads, shared memory, connections, MPI, NCCL
       | the ranks check that their calls match, then exchange and reduce the elements
    every rank   out

Rules of this file:

  1. All ranks make the same calls in the same order, each on one thread at a time. On a mismatch, all ranks
     raise one error that shows both calls.
  2. The first error permanently ends the communicator on all ranks. A partial collective cannot be recovered;
     a new group can be formed.
  3. No call waits forever: a rank that does not arrive is reported after `Membership.timeout_s` seconds, a
     dead rank as soon as its connections are lost.
  4. All ranks get bitwise equal results: each element is reduced once, in one order.

Blocking calls need a dedicated thread: `CommunicatorThread`.
"""

from __future__ import annotations

import math
import threading
import time
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, ClassVar, TypeAlias, final

import numpy as np

from flowrt.base.closing import Closing
from flowrt.distribute.collectives.call_totals import TOTALS
from flowrt.distribute.collectives.membership import Call, Membership
from flowrt.distribute.collectives.reduction import check_reduction
from flowrt.errors import (
    CancelledError,
    DTypeError,
    FailedPreconditionError,
    InvalidArgumentError,
    OpError,
    copy_to_raise,
)

Array: TypeAlias = Any
"""A NumPy array; a CuPy array for NCCL."""


@final
@dataclass(slots=True)
class Traffic:
    """Totals of this rank's sends: bytes of arrays, and messages that contain them. Any thread may `count`:
    messages with tags are sent by programs, the others by the communicator's thread.
    """

    bytes_sent: int = 0
    messages_sent: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False, compare=False)

    def count(self, nbytes: int) -> None:
        with self._lock:
            self.bytes_sent += nbytes
            self.messages_sent += 1


class Communicator(Closing):
    """One rank's end of a group of `size` ranks. If a method requires shape [n, ...], it is equal for all
    ranks.

    Results go to ``out``, a C-contiguous array of the result's shape and dtype, or to a new array; ``out``
    may be ``array`` itself, but may not overlap it otherwise. ``name`` is the call's, for errors; it must be
    equal for all ranks.

    All collectives raise `InvalidArgumentError` or `DTypeError` for invalid arguments, without any effect;
    other errors end the communicator: `InvalidArgumentError` if the ranks disagree, `DeadlineExceededError`
    if one does not arrive, `UnavailableError` if one died.
    """

    kind: ClassVar[str]
    """The name under which it is registered."""
    xp: Any = np
    """The module of its arrays."""
    uses_links: ClassVar[bool] = False
    """Whether calls use the group's links, shared with other messages."""

    def __init__(self, membership: Membership) -> None:
        self.membership = membership
        self.rank, self.size = membership.rank, membership.size
        self.traffic = Traffic()
        self._is_busy = threading.Lock()
        self._error: OpError | None = None
        self._error_lock = threading.Lock()
        self._number = 0
        self._call = Call("none")
        self._text = b""

    # --- collectives

    @final
    def all_reduce(
        self, array: Array, reduction: str = "sum", out: Array | None = None, name: str = ""
    ) -> Array:
        """The reduction of the ranks' arrays [...] on all ranks: "sum", "mean", "prod", "min" or "max"."""
        array = self._input(array)
        check_reduction(reduction, array.dtype)
        out = self._output(out, array.shape, array.dtype)
        with self._calling(_call_of("all_reduce", array, name, reduction)):
            self._all_reduce(array.reshape(-1), out.reshape(-1), reduction)
        return out

    @final
    def reduce(
        self, array: Array, root: int = 0, reduction: str = "sum", out: Array | None = None, name: str = ""
    ) -> Array | None:
        """The same as `all_reduce`, but only ``root`` gets the result; the others get None."""
        array = self._input(array)
        check_reduction(reduction, array.dtype)
        result = self._root_output(root, out, array.shape, array.dtype)
        with self._calling(_call_of("reduce", array, name, reduction, root)):
            self._reduce(array.reshape(-1), _flat(result), reduction, root)
        return result

    @final
    def broadcast(self, array: Array, root: int = 0, out: Array | None = None, name: str = "") -> Array:
        """The array of ``root``; those of the others determine only its shape and dtype."""
        array = self._input(array)
        self._check_root(root)
        out = self._output(out, array.shape, array.dtype)
        with self._calling(_call_of("broadcast", array, name, root=root)):
            self._broadcast(array.reshape(-1) if self.rank == root else None, out.reshape(-1), root)
        return out

    @final
    def all_gather(self, array: Array, out: Array | None = None, name: str = "") -> Array:
        """The ranks' arrays [n, ...], concatenated: [size * n, ...]."""
        array = self._with_rows(array)
        out = self._output(out, (array.shape[0] * self.size, *array.shape[1:]), array.dtype)
        with self._calling(_call_of("all_gather", array, name)):
            self._all_gather(array.reshape(-1), out.reshape(-1))
        return out

    @final
    def all_gather_coalesced(
        self, arrays: Sequence[Array], outs: Sequence[Array] | None = None, name: str = ""
    ) -> list[Array]:
        """`all_gather` of each of the ``arrays`` [n, ...] in one call: a [size * n, ...] for each, in
        ``outs`` if they are given. They have one dtype, and none are copied together. Raises
        `InvalidArgumentError` for no arrays and for other ``outs``, `DTypeError` for two dtypes.
        """
        arrays = self._together([self._with_rows(array) for array in arrays])
        places = [None] * len(arrays) if outs is None else outs
        if len(places) != len(arrays):
            raise InvalidArgumentError(f"{self}: expected {len(arrays)} outs; got {len(places)}")
        outs = [
            self._output(place, (a.shape[0] * self.size, *a.shape[1:]), a.dtype)
            for a, place in zip(arrays, places, strict=True)
        ]
        with self._calling(_call_of_all("all_gather_coalesced", arrays, name)):
            self._all_gather_coalesced([a.reshape(-1) for a in arrays], [o.reshape(-1) for o in outs])
        return outs

    @final
    def gather(self, array: Array, root: int = 0, out: Array | None = None, name: str = "") -> Array | None:
        """The same as `all_gather`, but only ``root`` gets the result; the others get None."""
        array = self._with_rows(array)
        shape = (array.shape[0] * self.size, *array.shape[1:])
        result = self._root_output(root, out, shape, array.dtype)
        with self._calling(_call_of("gather", array, name, root=root)):
            self._gather(array.reshape(-1), _flat(result), root)
        return result

    @final
    def scatter(self, array: Array | None, root: int = 0, out: Array | None = None, name: str = "") -> Array:
        """Part ``rank`` of the array [size * n, ...] of ``root``: [n, ...]. The others pass None, and an
        ``out``, which determines the shape.
        """
        self._check_root(root)
        if self.rank == root:
            array = self._parted(array)
            out = self._output(out, (array.shape[0] // self.size, *array.shape[1:]), array.dtype)
        elif array is not None or out is None:
            raise InvalidArgumentError(
                f"{self}: scatter: expected None and an out on rank {self.rank}, which is not the root {root}"
            )
        else:
            out = self._output(out, out.shape, out.dtype)
        with self._calling(_call_of("scatter", out, name, root=root)):
            self._scatter(_flat(array), out.reshape(-1), root)
        return out

    @final
    def reduce_scatter(
        self, array: Array, reduction: str = "sum", out: Array | None = None, name: str = ""
    ) -> Array:
        """Part ``rank`` of the reduction of the ranks' arrays [size * n, ...]: [n, ...]."""
        array = self._parted(array)
        check_reduction(reduction, array.dtype)
        out = self._output(out, (array.shape[0] // self.size, *array.shape[1:]), array.dtype)
        with self._calling(_call_of("reduce_scatter", array, name, reduction)):
            self._reduce_scatter(array.reshape(-1), out.reshape(-1), reduction)
        return out

    @final
    def reduce_scatter_coalesced(
        self, arrays: Sequence[Array], reduction: str = "sum", name: str = ""
    ) -> list[Array]:
        """`reduce_scatter` of each of the ``arrays`` [size * n, ...] in one call: an [n, ...] for each.
        Raises as `all_gather_coalesced`.
        """
        arrays = self._together([self._parted(array) for array in arrays])
        check_reduction(reduction, arrays[0].dtype)
        outs = [self.xp.empty((a.shape[0] // self.size, *a.shape[1:]), a.dtype) for a in arrays]
        with self._calling(_call_of_all("reduce_scatter_coalesced", arrays, name, reduction)):
            flat = [a.reshape(-1) for a in arrays]
            self._reduce_scatter_coalesced(flat, [o.reshape(-1) for o in outs], reduction)
        return outs

    @final
    def all_to_all(self, array: Array, out: Array | None = None, name: str = "") -> Array:
        """Part ``rank`` of each rank's array [size * n, ...], concatenated: [size * n, ...]."""
        array = self._parted(array)
        if out is array:
            raise InvalidArgumentError(f"{self}: all_to_all: expected an out other than the array")
        out = self._output(out, array.shape, array.dtype)
        with self._calling(_call_of("all_to_all", array, name)):
            counts = np.full((self.size, self.size), array.size // self.size)
            self._all_to_all(array.reshape(-1), out.reshape(-1), counts)
        return out

    @final
    def all_to_all_uneven(self, array: Array, counts: Sequence[int], name: str = "") -> Array:
        """The next ``counts[i]`` rows of the array [n, ...] for each rank i. A rank gets as many rows as the
        others have for it, in the order of the ranks; only [...] is equal for all.

        The ranks first tell each other their counts, which takes as long as an `all_gather` of them.
        """
        array = self._with_rows(array)
        sent = self._counts(counts, len(array))
        with self._calling(
            Call("all_to_all_uneven", str(array.dtype), array.shape[1:], name=name), len(array)
        ):
            told = self.xp.empty(self.size**2, np.int64)
            self._all_gather(self.xp.asarray(sent), told)
            table = np.array(told.tolist(), np.int64).reshape(self.size, self.size)
            out = self.xp.empty((int(table[:, self.rank].sum()), *array.shape[1:]), array.dtype)
            self._all_to_all(array.reshape(-1), out.reshape(-1), table * math.prod(array.shape[1:]))
        return out

    @final
    def barrier(self, name: str = "") -> None:
        """Return when all ranks have called it."""
        with self._calling(Call("barrier", name=name)):
            self._barrier()

    # --- the end

    @final
    def abort(self, error: OpError) -> None:
        """End the communicator with ``error``, on all ranks: their calls raise it, those under way too. The
        first error stays. Any thread may call.
        """
        if self._end(error):
            self._tell_others(error)

    @property
    def has_ended(self) -> bool:
        """Whether it was aborted or closed, here or by another rank: no call succeeds any more."""
        return self._error is not None

    @final
    def close(self) -> None:
        """Release its resources, when no call is active. Others may go on until they need it. Idempotent."""
        self._end(CancelledError(f"{self} was closed: expected no further calls"))
        self._close()

    def __str__(self) -> str:
        return f"{self.membership}, {self.kind}"

    # --- implemented by each medium; arrays are flat

    @abstractmethod
    def _all_reduce(self, array: Array, out: Array, reduction: str) -> None: ...

    @abstractmethod
    def _reduce(self, array: Array, out: Array | None, reduction: str, root: int) -> None: ...

    @abstractmethod
    def _broadcast(self, array: Array | None, out: Array, root: int) -> None: ...

    @abstractmethod
    def _all_gather(self, array: Array, out: Array) -> None: ...

    @abstractmethod
    def _gather(self, array: Array, out: Array | None, root: int) -> None: ...

    @abstractmethod
    def _scatter(self, array: Array | None, out: Array, root: int) -> None: ...

    @abstractmethod
    def _reduce_scatter(self, array: Array, out: Array, reduction: str) -> None: ...

    @abstractmethod
    def _all_to_all(self, array: Array, out: Array, counts: Any) -> None:
        """``counts`` [size, size] are elements from row to column; parts are in the order of ranks."""

    @abstractmethod
    def _barrier(self) -> None: ...

    @abstractmethod
    def _tell_others(self, error: OpError) -> None:
        """The communicator has ended on this rank with ``error``: end it on the others, and wake a call that
        waits here. Any thread may call.
        """

    @abstractmethod
    def _close(self) -> None:
        """Idempotent."""

    # --- implemented by media that can do more than one call after the other

    def _all_gather_coalesced(self, arrays: Sequence[Array], outs: Sequence[Array]) -> None:
        for array, out in zip(arrays, outs, strict=True):
            self._all_gather(array, out)

    def _reduce_scatter_coalesced(
        self, arrays: Sequence[Array], outs: Sequence[Array], reduction: str
    ) -> None:
        for array, out in zip(arrays, outs, strict=True):
            self._reduce_scatter(array, out, reduction)

    # --- for media

    def _end(self, error: OpError) -> bool:
        """Have all calls raise ``error`` from now on. False if they do already."""
        with self._error_lock:
            is_first = self._error is None
            self._error = self._error or error
        return is_first

    def _check(self) -> None:
        """Raise the error that has ended the communicator."""
        if self._error is not None:
            raise copy_to_raise(self._error)

    # --- arguments

    @contextmanager
    def _calling(self, call: Call, rows: int = 1) -> Iterator[None]:
        """``call`` has the shape of all ranks' arrays, or of a row if their ``rows`` differ."""
        if not self._is_busy.acquire(blocking=False):
            raise FailedPreconditionError(
                f"{self}: {call}: expected one call at a time; got it during {self._call}"
            )
        began = time.perf_counter()
        try:
            self._check()
            self._number += 1
            self._call, self._text = call, call.text(self._number)
            yield
            TOTALS.add(call, rows, time.perf_counter() - began)
        except OpError as error:
            self.abort(error)
            raise
        except BaseException as error:
            self.abort(CancelledError(f"{self}: {call}: rank {self.rank} failed with {error!r}"))
            raise
        finally:
            self._is_busy.release()

    def _input(self, array: Array) -> Array:
        array = self.xp.asarray(array, order="C")
        if array.dtype.kind in "OSU" or array.dtype.type is np.void:
            raise DTypeError(f"{self}: expected an array of numbers; got {array.dtype}")
        return array

    def _with_rows(self, array: Array) -> Array:
        array = self._input(array)
        if not array.ndim:
            raise InvalidArgumentError(f"{self}: expected an array [n, ...]; got a scalar")
        return array

    def _parted(self, array: Array) -> Array:
        array = self._with_rows(array)
        if array.shape[0] % self.size:
            raise InvalidArgumentError(
                f"{self}: expected an array [{self.size} * n, ...]; got {list(array.shape)}"
            )
        return array

    def _together(self, arrays: Sequence[Array]) -> Sequence[Array]:
        """``arrays``, which have one dtype. Raises `InvalidArgumentError` for none, and `DTypeError`."""
        if not arrays:
            raise InvalidArgumentError(f"{self}: expected at least one array; got none")
        if len({array.dtype for array in arrays}) > 1:
            got = ", ".join(str(array.dtype) for array in arrays)
            raise DTypeError(f"{self}: expected arrays of one dtype; got {got}")
        return arrays

    def _counts(self, counts: Sequence[int], rows: int) -> Any:
        """``counts`` as an array [size]. Raises `InvalidArgumentError` unless they add up to ``rows``."""
        found = np.asarray(counts)
        if found.dtype.kind not in "iu" or found.shape != (self.size,) or (found < 0).any():
            raise InvalidArgumentError(
                f"{self}: expected a number of rows for each of {self.size} ranks; got {counts}"
            )
        if found.sum() != rows:
            raise InvalidArgumentError(f"{self}: expected counts of all {rows} rows; got {counts}")
        return found.astype(np.int64)

    def _output(self, out: Array | None, shape: tuple[int, ...], dtype: Any) -> Array:
        if out is None:
            return self.xp.empty(shape, dtype)
        if not isinstance(out, self.xp.ndarray) or out.shape != shape or out.dtype != dtype:
            got = f"{out.dtype}{list(out.shape)}" if isinstance(out, self.xp.ndarray) else type(out).__name__
            raise InvalidArgumentError(f"{self}: expected an out of {dtype}{list(shape)}; got {got}")
        if not out.flags.c_contiguous or not getattr(out.flags, "writeable", True):
            raise InvalidArgumentError(f"{self}: expected a contiguous, writable out")
        return out

    def _root_output(self, root: int, out: Array | None, shape: tuple[int, ...], dtype: Any) -> Array | None:
        self._check_root(root)
        if self.rank == root:
            return self._output(out, shape, dtype)
        if out is not None:
            raise InvalidArgumentError(f"{self}: expected an out only on the root {root}; got one")
        return None

    def _check_root(self, root: int) -> None:
        if not 0 <= root < self.size:
            raise InvalidArgumentError(f"{self}: expected a root of 0 to {self.size - 1}; got {root}")


def _call_of(op: str, array: Array, name: str, reduction: str = "", root: int | None = None) -> Call:
    return Call(op, str(array.dtype), array.shape, reduction, root, name)


def _call_of_all(op: str, arrays: Sequence[Array], name: str, reduction: str = "") -> Call:
    """The call of several ``arrays``: with the shape of all in a row, and their own in its name."""
    shapes = " ".join(str(list(array.shape)) for array in arrays)
    total = sum(array.size for array in arrays)
    return Call(op, str(arrays[0].dtype), (total,), reduction, None, f"{name} of {shapes}")


def _flat(array: Array | None) -> Array | None:
    return None if array is None else array.reshape(-1)
