"""`grpc`: ranks on any hosts, over the transports of clusters. Always available.

The algorithms are those of `flowrt.graph.collectives`, which define senders, receivers and chunks of each
step. Here a step sends, receives, and reduces received chunks. Small arrays are sent from each rank to all
others at once, which is one round, while a tree needs two or more. All ranks choose by the links of rank 0.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, final

import numpy as np

from flowrt.distribute.collectives.communicator import Array, Communicator
from flowrt.distribute.collectives.membership import disagree
from flowrt.distribute.collectives.mesh import Mesh
from flowrt.distribute.collectives.parts import part, parts_of, pieces_together
from flowrt.distribute.collectives.reduction import REDUCTIONS, finish, join
from flowrt.errors import DataLossError, OpError
from flowrt.graph.collectives.algorithms import Group
from flowrt.graph.collectives.cost import Link, Links, cheapest, links_of, schedule_of
from flowrt.graph.collectives.schedule import Schedule, Transfer, offset

AT_ONCE_BYTES = 16 << 10
"""Maximum total for sending a rank's array to all others at once: another round costs as much as 100 KiB."""
PIECE_BYTES = 1 << 20
"""A large transfer travels in such pieces: one is joined while the next is on its way."""


@final
class PeersCommunicator(Communicator):
    """A rank's end of the ``mesh``, which is closed with it. ``links`` are this rank's measured ones; by
    default those from the environment. Raises as `links_of`.
    """

    kind, uses_links = "grpc", True

    def __init__(self, mesh: Mesh, links: Links | None = None) -> None:
        super().__init__(mesh.membership)
        self._mesh = mesh
        self._links = _agreed(mesh, links_of(os.environ) if links is None else links)
        mesh.on_abort(self._end)

    # --- collectives

    def _all_reduce(self, array: Array, out: Array, reduction: str) -> None:
        if array.nbytes * (self.size - 1) <= AT_ONCE_BYTES:
            join([each.view(array.dtype) for each in self._swap(array)], out, reduction)
        else:
            _copy(out, array)
            self._run(self._schedule("AllReduce", out.nbytes), [out], reduction)
            finish(reduction, out, self.size)

    def _reduce(self, array: Array, out: Array | None, reduction: str, root: int) -> None:
        work = array.copy() if out is None else out
        _copy(work, array)
        self._run(self._schedule("Reduce", array.nbytes, root), [work], reduction)
        if out is not None:
            finish(reduction, out, self.size)

    def _broadcast(self, array: Array | None, out: Array, root: int) -> None:
        if array is not None:
            _copy(out, array)
        self._run(self._schedule("Broadcast", out.nbytes, root), [out])

    def _all_gather(self, array: Array, out: Array) -> None:
        self._all_gather_coalesced([array], [out])

    def _all_gather_coalesced(self, arrays: Sequence[Array], outs: Sequence[Array]) -> None:
        for array, out in zip(arrays, outs, strict=True):
            _copy(out[part(out.size, self.size, self.rank)], array)
        self._run(self._schedule("AllGather", sum(out.nbytes for out in outs)), outs)

    def _gather(self, array: Array, out: Array | None, root: int) -> None:
        work = np.empty(array.size * self.size, array.dtype) if out is None else out
        _copy(work[part(work.size, self.size, self.rank)], array)
        self._run(self._schedule("Gather", work.nbytes, root), [work])

    def _scatter(self, array: Array | None, out: Array, root: int) -> None:
        work = np.empty(out.size * self.size, out.dtype) if array is None else array
        self._run(self._schedule("Scatter", work.nbytes, root), [work])
        _copy(out, work[part(work.size, self.size, self.rank)])

    def _reduce_scatter(self, array: Array, out: Array, reduction: str) -> None:
        self._reduce_scatter_coalesced([array], [out], reduction)

    def _reduce_scatter_coalesced(
        self, arrays: Sequence[Array], outs: Sequence[Array], reduction: str
    ) -> None:
        works = [array.copy() for array in arrays]
        self._run(self._schedule("ReduceScatter", sum(work.nbytes for work in works)), works, reduction)
        for work, out in zip(works, outs, strict=True):
            _copy(out, work[part(work.size, self.size, self.rank)])
            finish(reduction, out, self.size)

    def _all_to_all(self, array: Array, out: Array, counts: Any) -> None:
        """Chunk ``i * size + j`` of the schedule goes from rank i to rank j."""
        given, places = parts_of(counts[self.rank]), parts_of(counts[:, self.rank])
        _copy(out[places[self.rank]], array[given[self.rank]])
        schedule = schedule_of("AllToAll", "pairwise", Group(tuple(range(self.size))))
        for _, transfer in schedule.of(self.rank):
            source, target = divmod(transfer.first, self.size)
            if source == self.rank:
                self._send(target, [array[given[target]]])
            else:
                self._receive(source, [out[places[source]]], None)
        self._mesh.flush(str(self._call))

    def _barrier(self) -> None:
        self._swap(np.empty(0, np.uint8))

    # --- schedules

    def _schedule(self, kind: str, nbytes: int, root: int = 0) -> Schedule:
        group = Group(tuple(range(self.size)), root)
        return schedule_of(kind, cheapest(kind, group, nbytes, self._links), group)

    def _run(self, schedule: Schedule, works: Sequence[Array], reduction: str | None = None) -> None:
        """Execute this rank's part of ``schedule`` on ``works``, each divided into the schedule's chunks.
        What a transfer moves of all of them travels together.
        """
        # A sent chunk is not overwritten before all values derived from it have come back, so it may still be
        # in flight during the next steps.
        for step in schedule.steps:
            for transfer in self._mine(step, by_source=True):
                self._send(transfer.target, _chunks(works, schedule, transfer))
            for transfer in self._mine(step, by_source=False):
                function = REDUCTIONS[reduction or "sum"] if transfer.reduces else None
                self._receive(transfer.source, _chunks(works, schedule, transfer), function)
        self._mesh.flush(str(self._call))

    def _mine(self, step: Iterable[Transfer], by_source: bool) -> list[Transfer]:
        return [t for t in step if (t.source if by_source else t.target) == self.rank]

    # --- transfers

    def _send(self, rank: int, arrays: Sequence[Array]) -> None:
        for pieces in _frames(arrays):
            self._mesh.send(rank, self._text, *pieces)
        self.traffic.count(sum(array.nbytes for array in arrays))

    def _receive(self, rank: int, targets: Sequence[Array], function: Any) -> None:
        """Receive from ``rank`` into ``targets``; ``function`` reduces it with the contents."""
        for pieces in _frames(targets):
            found = self._receive_bytes(rank, [piece.nbytes for piece in pieces])
            for piece, came in zip(pieces, found, strict=True):
                if function is None:
                    np.copyto(piece, came.view(piece.dtype))
                else:
                    function(piece, came.view(piece.dtype), out=piece)

    def _receive_bytes(self, rank: int, expected: Sequence[int]) -> Sequence[Array]:
        """The arrays of the next frame of ``rank``, of these numbers of bytes."""
        text, arrays = self._mesh.receive(rank, str(self._call))
        if text != self._text:
            raise disagree(self.membership, [(self.rank, self._text), (rank, text)])
        if (got := [array.nbytes for array in arrays]) != expected:
            raise DataLossError(f"{self}: expected arrays of {expected} bytes of rank {rank}; got {got}")
        return arrays

    def _swap(self, array: Array) -> list[Array]:
        """The bytes of all ranks' arrays, in one round."""
        own = array.view(np.uint8)
        for rank in self.membership.others:
            self._mesh.send(rank, self._text, own)
            self.traffic.count(own.nbytes)
        found = [
            own if rank == self.rank else self._receive_bytes(rank, [own.nbytes])[0]
            for rank in range(self.size)
        ]
        self._mesh.flush(str(self._call))
        return found

    # --- the end

    def _tell_others(self, error: OpError) -> None:
        self._mesh.abort(error)

    def _close(self) -> None:
        self._mesh.close()


def _agreed(mesh: Mesh, links: Links) -> Links:
    """The links of rank 0."""
    if mesh.membership.rank == 0:
        for rank in mesh.membership.others:
            mesh.send(rank, b"links", np.array(links))
        return links
    payload = mesh.receive(0, "agreeing on the links").payload
    if payload is None or payload.nbytes != np.array(links).nbytes:
        raise DataLossError(f"{mesh.membership}: expected the links of rank 0; got {payload!r}")
    return Links(*[Link(*map(float, row)) for row in payload.view(np.float64).reshape(-1, 2)])


def _chunks(works: Sequence[Array], schedule: Schedule, transfer: Transfer) -> list[Array]:
    """The part of each of ``works`` that the ``transfer`` moves."""

    def place(chunk: int, work: Array) -> int:
        return offset(chunk, work.size, schedule.chunks)

    return [work[place(transfer.first, work) : place(transfer.end, work)] for work in works]


def _frames(arrays: Sequence[Array]) -> Iterator[list[Array]]:
    """The pieces of ``arrays`` that travel in one frame each; `PIECE_BYTES` of them together."""
    for group in pieces_together([array.size for array in arrays], PIECE_BYTES // arrays[0].itemsize):
        yield [arrays[number][piece] for number, piece in group]


def _copy(target: Array, source: Array) -> None:
    """Unless they are the same."""
    if target.ctypes.data != source.ctypes.data:
        np.copyto(target, source)
