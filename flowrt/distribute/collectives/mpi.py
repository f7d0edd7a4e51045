"""`mpi`: the ranks of an MPI world, by MPI's own collectives.

MPI's calls wait without a timeout, forever for a dead rank. So each is started, and polled until the
deadline; an unfinished one then stays with MPI, with its memory, and the group ends. A rank that ends the
group notifies the others by a message, for which they poll while they wait.

MPI has no 16-bit arithmetic: such numbers are exchanged as bytes, reduced here, and gathered.
"""

from __future__ import annotations

import os
import time
from typing import Any, final

import numpy as np

from flowrt.distribute.collectives.communicator import Array, Communicator
from flowrt.distribute.collectives.membership import MAX_TEXT, Membership, disagree, missing
from flowrt.distribute.collectives.parts import part
from flowrt.distribute.collectives.reduction import finish, join
from flowrt.distribute.wire.messages import decode_status, encode_status
from flowrt.errors import FailedPreconditionError, OpError, UnavailableError
from flowrt.protos import cluster_pb2 as pb
from flowrt.rendezvous.mpi.mpi_channel import Transfer, open_world

YIELD_S = 1e-3
"""Time for which a waiting rank yields its core and polls; then it sleeps between polls."""
SLEEP_S = 1e-4
_left_behind: list[Any] = []
"""Unfinished MPI operations of ended groups: MPI may still access their memory."""


@final
class MpiCommunicator(Communicator):
    """This process's rank in the world, in one group of all ranks.

    Raises `FailedPreconditionError` if the membership is not the world's, `DeadlineExceededError` if a rank
    does not arrive, and the errors of `open_world`.
    """

    kind = "mpi"

    def __init__(self, membership: Membership) -> None:
        super().__init__(membership)
        self._world = open_world()
        if (self.rank, self.size) != (self._world.rank, self._world.size):
            raise FailedPreconditionError(
                f"{self}: expected MPI's rank {self._world.rank} of {self._world.size}; "
                f"got rank {self.rank} of {self.size}"
            )
        self._is_told = True  # of errors before there is a tag
        self._group, made = self._world.begin_group()
        self._wait(made)
        tag = np.array([self._world.new_tag()], np.int64)
        self._wait(self._group.broadcast(tag, 0), tag)
        self._tag, self._is_told = int(tag[0]), False
        """Tag of messages that end the group."""

    # --- collectives

    def _all_reduce(self, array: Array, out: Array, reduction: str) -> None:
        self._agree()
        if self._group.joins(array.dtype):
            self._wait(self._group.all_reduce(array, out, reduction), array, out)
            finish(reduction, out, self.size)
        else:
            self._gathered(array, out, reduction)
        self._count(2 * array.nbytes * (self.size - 1) // self.size)

    def _reduce(self, array: Array, out: Array | None, reduction: str, root: int) -> None:
        self._agree()
        if self._group.joins(array.dtype):
            self._wait(self._group.reduce(array, out, reduction, root), array, out)
            if out is not None:
                finish(reduction, out, self.size)
        else:
            self._gathered(array, np.empty_like(array) if out is None else out, reduction)
        self._count(array.nbytes)

    def _reduce_scatter(self, array: Array, out: Array, reduction: str) -> None:
        self._agree()
        if self._group.joins(array.dtype):
            self._wait(self._group.reduce_scatter(array, out, reduction), array, out)
            finish(reduction, out, self.size)
        else:
            whole = np.empty_like(array)
            self._gathered(array, whole, reduction)
            np.copyto(out, whole[part(whole.size, self.size, self.rank)])
        self._count(array.nbytes - out.nbytes)

    def _gathered(self, array: Array, out: Array, reduction: str) -> None:
        """`_all_reduce` where MPI has no arithmetic: every rank gets all arrays."""
        every = np.empty((self.size, array.size), array.dtype)
        self._wait(self._group.all_gather(array, every.reshape(-1)), array, every)
        join(list(every), out, reduction)

    def _broadcast(self, array: Array | None, out: Array, root: int) -> None:
        self._agree()
        if array is not None and out.ctypes.data != array.ctypes.data:
            np.copyto(out, array)
        self._wait(self._group.broadcast(out, root), out)
        self._count(0 if array is None else out.nbytes)

    def _all_gather(self, array: Array, out: Array) -> None:
        self._agree()
        self._wait(self._group.all_gather(array, out), array, out)
        self._count(array.nbytes * (self.size - 1))

    def _gather(self, array: Array, out: Array | None, root: int) -> None:
        self._agree()
        self._wait(self._group.gather(array, out, root), array, out)
        self._count(0 if self.rank == root else array.nbytes)

    def _scatter(self, array: Array | None, out: Array, root: int) -> None:
        self._agree()
        self._wait(self._group.scatter(array, out, root), array, out)
        self._count(0 if array is None else array.nbytes - out.nbytes)

    def _all_to_all(self, array: Array, out: Array, counts: Any) -> None:
        self._agree()
        given, taken = counts[self.rank] * array.itemsize, counts[:, self.rank] * array.itemsize
        self._wait(self._group.all_to_all(array, given, out, taken), array, out)
        self._count(array.nbytes - int(given[self.rank]))

    def _barrier(self) -> None:
        self._agree()

    # ---

    def _agree(self) -> None:
        """Compare the call with the other ranks', since MPI would write beyond shorter arrays."""
        own = np.frombuffer(self._text.ljust(MAX_TEXT, b"\0"), np.uint8)
        every = np.empty((self.size, MAX_TEXT), np.uint8)
        self._wait(self._group.all_gather(own, every.reshape(-1)), own, every)
        for rank in self.membership.others:
            if not np.array_equal(every[rank], own):
                texts = [(r, every[r].tobytes().rstrip(b"\0")) for r in (self.rank, rank)]
                raise disagree(self.membership, texts)

    def _wait(self, transfer: Transfer, *keep: Any) -> None:
        """Wait until ``transfer``, which uses ``keep``, is done."""
        begin = time.monotonic()
        try:
            while not transfer.is_done():
                self._check()
                self._hear()
                waited_s = time.monotonic() - begin
                if waited_s > self.membership.timeout_s:
                    raise missing(self.membership, self.membership.others, str(self._call))
                os.sched_yield() if waited_s < YIELD_S else time.sleep(SLEEP_S)
        except OSError as error:
            raise UnavailableError(f"{self}: {self._call}: {error}") from error
        except OpError:
            _left_behind.append((transfer, keep))
            raise

    def _hear(self) -> None:
        """Check whether another rank has ended the group."""
        if self._is_told:
            return
        for rank in self.membership.others:
            arrival = self._world.probe(rank, self._tag)
            if arrival is not None:
                status = bytearray(arrival.nbytes)
                receiving = arrival.receive(status)
                while not receiving.is_done():
                    os.sched_yield()
                self._is_told = True
                raise decode_status(pb.Status.FromString(bytes(status)))

    def _tell_others(self, error: OpError) -> None:
        if self._is_told:
            return
        self._is_told = True
        status = encode_status(error, self.membership.name_of(self.rank)).SerializeToString()
        told = [self._world.send(status, rank, self._tag) for rank in self.membership.others]
        _left_behind.append((told, status))

    def _count(self, nbytes: int) -> None:
        self.traffic.count(nbytes)

    def _close(self) -> None:
        """No-op: MPI's communicator is freed with the process, since freeing it would wait for all ranks."""
