"""`local`: ranks that are threads of one process. Nothing is copied for sharing.

    every thread   publish arrays  --barrier-->  compute its part of all of them  --barrier-->  return

After the first barrier all arrays are available; after the second all parts are done, and other ranks' arrays
are no longer read. Each rank computes one part of the elements, for all: it reads every array once, and
writes every result once, while the part is in its cache.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any, NamedTuple, final

import numpy as np

from flowrt.device.interruptible import acquire
from flowrt.distribute.collectives.communicator import Array, Communicator
from flowrt.distribute.collectives.membership import Membership, disagree, missing
from flowrt.distribute.collectives.parts import part, parts_of, pieces
from flowrt.distribute.collectives.reduction import join
from flowrt.errors import AlreadyExistsError, OpError, UnavailableError, copy_to_raise

CACHED_BYTES = 1 << 20
"""Total size of the ranks' arrays in a piece that is reduced at once: half of a level 2 cache of 2 MiB."""


class Shown(NamedTuple):
    """Arrays that a rank publishes at a barrier."""

    text: bytes
    array: Array | None
    out: Array | None


@final
class Meeting:
    """A reusable barrier of ``size`` threads. Thread-safe."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._lock = threading.Lock()
        self._shown: dict[int, Any] = {}
        self._asleep: list[threading.Lock] = []
        self._error: OpError | None = None

    def synchronise(self, rank: int, shown: Any, timeout_s: float) -> dict[int, Any]:
        """The values published by the ranks, by rank: of all, or of those that arrived within ``timeout_s``
        seconds. Raises the error passed to `abort`, unless all had arrived before.
        """
        mailbox = threading.Lock()
        mailbox.acquire()
        with self._lock:
            if self._error is not None:
                raise copy_to_raise(self._error)
            here = self._shown
            here[rank] = shown
            is_last = len(here) == self._size
            if is_last:
                self._shown = {}
                self._wake()
            else:
                self._asleep.append(mailbox)
        if not is_last:
            acquire(mailbox, timeout_s)
        if len(here) < self._size and self._error is not None:
            raise copy_to_raise(self._error)
        return here

    def abort(self, error: OpError) -> None:
        """Make all present and future waiters raise ``error``; the first one is kept."""
        with self._lock:
            self._error = self._error or error
            self._wake()

    def _wake(self) -> None:
        """Wake the waiters; the lock is held."""
        for mailbox in self._asleep:
            mailbox.release()
        self._asleep = []


@final
class InProcessCommunicator(Communicator):
    """The rank of one of the threads, which share a ``meeting``."""

    kind = "local"

    def __init__(self, membership: Membership, meeting: Meeting) -> None:
        super().__init__(membership)
        self._meeting = meeting

    # --- collectives

    def _all_reduce(self, array: Array, out: Array, reduction: str) -> None:
        arrays, outs = self._show(array, out)
        for piece, joined in self._join(arrays, part(array.size, self.size, self.rank), reduction):
            for rank, each in enumerate(outs):
                np.copyto(each[piece], joined)
                self._count(rank, joined.nbytes)
        self._leave()

    def _reduce(self, array: Array, out: Array | None, reduction: str, root: int) -> None:
        arrays, outs = self._show(array, out)
        for piece, joined in self._join(arrays, part(array.size, self.size, self.rank), reduction):
            np.copyto(outs[root][piece], joined)
            self._count(root, joined.nbytes)
        self._leave()

    def _reduce_scatter(self, array: Array, out: Array, reduction: str) -> None:
        arrays, _ = self._show(array, out)
        own = part(array.size, self.size, self.rank)
        for piece, joined in self._join(arrays, own, reduction):
            np.copyto(out[piece.start - own.start : piece.stop - own.start], joined)
        self._count_others(out.nbytes)
        self._leave()

    def _broadcast(self, array: Array | None, out: Array, root: int) -> None:
        arrays, _ = self._show(array, out)
        np.copyto(out, arrays[root])
        if self.rank == root:
            self._count_others(out.nbytes)
        self._leave()

    def _all_gather(self, array: Array, out: Array) -> None:
        arrays, _ = self._show(array, out)
        for rank, each in enumerate(arrays):
            np.copyto(out[part(out.size, self.size, rank)], each)
        self._count_others(array.nbytes)
        self._leave()

    def _gather(self, array: Array, out: Array | None, root: int) -> None:
        _, outs = self._show(array, out)
        np.copyto(outs[root][part(outs[root].size, self.size, self.rank)], array)
        self._count(root, array.nbytes)
        self._leave()

    def _scatter(self, array: Array | None, out: Array, root: int) -> None:
        arrays, _ = self._show(array, out)
        np.copyto(out, arrays[root][part(arrays[root].size, self.size, self.rank)])
        if self.rank == root:
            self._count_others(out.nbytes)
        self._leave()

    def _all_to_all(self, array: Array, out: Array, counts: Any) -> None:
        arrays, _ = self._show(array, out)
        for rank, (each, place) in enumerate(zip(arrays, parts_of(counts[:, self.rank]), strict=True)):
            np.copyto(out[place], each[parts_of(counts[rank])[self.rank]])
            self._count(rank, int(counts[self.rank, rank]) * array.itemsize)
        self._leave()

    def _barrier(self) -> None:
        self._show(None, None)

    # ---

    def _show(self, array: Array | None, out: Array | None) -> tuple[list[Any], list[Any]]:
        """The ranks' arrays and outs, when all have shown theirs. Raises `InvalidArgumentError` where one
        calls something else.
        """
        found = self._meet(Shown(self._text, array, out))
        shown = [found[rank] for rank in range(self.size)]
        for rank, each in enumerate(shown):
            if each.text != self._text:
                raise disagree(self.membership, [(self.rank, self._text), (rank, each.text)])
        return [each.array for each in shown], [each.out for each in shown]

    def _leave(self) -> None:
        """Return when no rank needs another's arrays any more."""
        self._meet(None)

    def _meet(self, shown: Any) -> dict[int, Any]:
        found = self._meeting.synchronise(self.rank, shown, self.membership.timeout_s)
        if len(found) < self.size:
            raise missing(self.membership, set(range(self.size)) - found.keys(), str(self._call))
        return found

    def _join(self, arrays: list[Any], own: slice, reduction: str) -> Iterator[tuple[slice, Array]]:
        """Each piece of ``own`` with its reduction, valid until the next iteration."""
        # Not in an out, which may be one of the arrays that are still to be read.
        length = max(1, CACHED_BYTES // (arrays[0].itemsize * self.size))
        scratch = np.empty(min(length, own.stop - own.start), arrays[0].dtype)
        for piece in pieces(own, length):
            joined = scratch[: piece.stop - piece.start]
            join([each[piece] for each in arrays], joined, reduction)
            yield piece, joined

    def _count(self, rank: int, nbytes: int) -> None:
        if rank != self.rank:
            self.traffic.count(nbytes)

    def _count_others(self, nbytes: int) -> None:
        for rank in self.membership.others:
            self._count(rank, nbytes)

    def _tell_others(self, error: OpError) -> None:
        self._meeting.abort(error)

    def _close(self) -> None:
        name = self.membership.name_of(self.rank)
        self._meeting.abort(UnavailableError(f"{self.membership}: {name} has closed its communicator"))


# --- groups

_forming_lock = threading.Lock()
_forming: dict[tuple[str, int], tuple[Meeting, set[int]]] = {}
"""Groups with ranks still missing, by key and size."""


def join_in_process(membership: Membership) -> InProcessCommunicator:
    """The communicator of one rank of a group inside this process. Does not wait for the others. A key may be
    reused when all ranks of a group have arrived.
    """
    place = (membership.key, membership.size)
    with _forming_lock:
        meeting, here = _forming.get(place) or (Meeting(membership.size), set())
        _forming[place] = (meeting, here)
        if membership.rank in here:
            raise AlreadyExistsError(f"{membership}: expected each rank once; got {membership.rank} again")
        here.add(membership.rank)
        if len(here) == membership.size:
            del _forming[place]
    return InProcessCommunicator(membership, meeting)
