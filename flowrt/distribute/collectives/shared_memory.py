"""`shared_memory`: ranks that are processes of one host, around one segment of memory.

    round t    copy chunk t to its slot
               reduce its part of chunk t - 1, of all slots, into the result
               -- all have reached round t --
               copy the result of chunk t - 1 out

So there is one barrier per chunk, and each element passes through the caches once in each direction; each
rank reduces 1 / size of it.

Rules of this file:

  1. A rank writes only its line, its slots and its part of the results.
  2. Memory is written before the round that announces it. x86-64 guarantees this order (stores are seen in
     order); on other machines this medium is unavailable.
"""

from __future__ import annotations

import platform
from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import Any, final

import numpy as np

from flowrt.distribute.collectives.communicator import Array, Communicator
from flowrt.distribute.collectives.mesh import Mesh
from flowrt.distribute.collectives.parts import part, parts_of, pieces, pieces_together
from flowrt.distribute.collectives.reduction import join
from flowrt.distribute.collectives.shared_memory_rounds import Rounds
from flowrt.distribute.collectives.shared_memory_segment import Layout, share_segment
from flowrt.errors import FailedPreconditionError, OpError

CHUNK_BYTES = 2 << 20
"""A meeting a chunk, so the larger the fewer; larger ones no longer stay in the cores' caches. On 2 cores
64 MB take 2 ranks 15.5 ms and 4 ranks 42 (Gloo 49 and 105 in the same minutes).
"""
SMALL_BYTES = 16 << 10
"""Maximum size that every rank reduces completely: one barrier, while sharing the work takes two."""


@final
class SharedMemoryCommunicator(Communicator):
    """A rank's end of the segment. ``mesh`` reports lost ranks, and errors that ended the group; it is closed
    with this.

    Raises the errors of `share_segment`, and `FailedPreconditionError` on machines other than x86-64.
    """

    kind = "shared_memory"

    def __init__(self, mesh: Mesh) -> None:
        super().__init__(mesh.membership)
        if platform.machine() not in ("x86_64", "AMD64"):
            raise FailedPreconditionError(
                f"{self}: expected an x86-64 processor, with ordered stores; got {platform.machine()}"
            )
        self._mesh = mesh
        layout = Layout(self.size, CHUNK_BYTES)
        memory = share_segment(mesh, layout.nbytes).array(layout.nbytes)
        self._rounds = Rounds(mesh, layout, memory, self._check)
        self._compared = 0
        """The number of the last call that was compared with the others'."""
        mesh.on_abort(self._end)

    # --- collectives

    def _all_reduce(self, array: Array, out: Array, reduction: str) -> None:
        if array.nbytes > SMALL_BYTES:
            self._join_chunks(array, out, reduction)
            return
        self._post([array])
        self._meet()
        join(self._all_posted(array), out, reduction)

    def _reduce(self, array: Array, out: Array | None, reduction: str, root: int) -> None:
        self._join_chunks(array, out, reduction)

    def _join_chunks(self, array: Array, out: Array | None, reduction: str) -> None:
        rounds, before = self._rounds, None
        for chunk in [*pieces(slice(0, array.size), CHUNK_BYTES // array.itemsize), None]:
            if chunk is not None:
                self._post_for_others(array[chunk])
            if before is not None:
                self._join_part(array[before], reduction)
            self._meet()
            if before is not None and out is not None:
                np.copyto(out[before], _as(rounds.results[(rounds.number - 1) % 2], out[before]))
            before = chunk

    def _post_for_others(self, chunk: Array) -> None:
        """All but the own part, which this rank joins from where it is."""
        slot = _as(self._rounds.slots[self._rounds.number % 2][self.rank], chunk)
        own = part(chunk.size, self.size, self.rank)
        for piece in (slice(0, own.start), slice(own.stop, chunk.size)):
            np.copyto(slot[piece], chunk[piece])
        self.traffic.count(chunk.nbytes - chunk[own].nbytes)

    def _join_part(self, chunk: Array, reduction: str) -> None:
        """Reduce this rank's part of the chunk of the previous round."""
        own = part(chunk.size, self.size, self.rank)
        joining = [each[own] for each in self._all_posted(chunk)]
        joining[self.rank] = chunk[own]
        result = _as(self._rounds.results[self._rounds.number % 2], chunk)[own]
        join(joining, result, reduction)
        self.traffic.count(result.nbytes)

    def _reduce_scatter(self, array: Array, out: Array, reduction: str) -> None:
        self._reduce_scatter_coalesced([array], [out], reduction)

    def _reduce_scatter_coalesced(
        self, arrays: Sequence[Array], outs: Sequence[Array], reduction: str
    ) -> None:
        for number, piece, posted in self._exchange(arrays, [out.size for out in outs], outs[0].dtype):
            join([each[self.rank] for each in posted], outs[number][piece], reduction)

    def _all_to_all(self, array: Array, out: Array, counts: Any) -> None:
        """A slot has as much room for each rank; the longest part determines the number of rounds."""
        given, places = parts_of(counts[self.rank]), parts_of(counts[:, self.rank])
        for piece in pieces(slice(0, int(counts.max())), self._row_length(array.dtype)):
            self._post_rows([array[part][piece] for part in given], piece)
            self._meet()
            count = self.size * (piece.stop - piece.start)
            for place, (each,) in zip(places, self._posted([count], array.dtype), strict=True):
                target = out[place][piece]
                np.copyto(target, each.reshape(self.size, -1)[self.rank, : target.size])

    def _post_rows(self, rows: list[Array], piece: slice) -> None:
        """Write a row for each rank, of at most the length of ``piece``, for the next round."""
        length = piece.stop - piece.start
        slot = self._rounds.slots[self._rounds.number % 2][self.rank]
        room = slot[: self.size * length * rows[0].itemsize].view(rows[0].dtype).reshape(self.size, -1)
        for target, row in zip(room, rows, strict=True):
            np.copyto(target[: row.size], row)
            self.traffic.count(row.nbytes)

    def _row_length(self, dtype: Any) -> int:
        """Elements of a row, if a slot has one for each rank."""
        return max(1, CHUNK_BYTES // (dtype.itemsize * self.size))

    def _scatter(self, array: Array | None, out: Array, root: int) -> None:
        arrays = None if array is None else [array]
        for _, piece, posted in self._exchange(arrays, [out.size], out.dtype):
            np.copyto(out[piece], posted[root][self.rank])

    def _exchange(
        self, arrays: Sequence[Array] | None, lengths: Sequence[int], dtype: Any
    ) -> Iterator[tuple[int, slice, list[Array]]]:
        """Exchange ``arrays`` [size * length] piece by piece: each has a row for every rank. Yields the
        number of an array, a piece of a row, and the pieces of the ranks [size, piece], by rank, valid until
        the next iteration; a rank without arrays posts none.
        """
        rows = [array.reshape(self.size, -1) for array in arrays or ()]
        for group in pieces_together(lengths, self._row_length(dtype)):
            self._post([rows[number][:, piece] for number, piece in group] if rows else [])
            self._meet()
            counts = [self.size * (piece.stop - piece.start) for _, piece in group]
            posted = [*zip(*self._posted(counts, dtype), strict=True)]
            for (number, piece), pieces_by_rank in zip(group, posted, strict=True):
                yield number, piece, [each.reshape(self.size, -1) for each in pieces_by_rank]

    def _broadcast(self, array: Array | None, out: Array, root: int) -> None:
        for piece in pieces(slice(0, out.size), CHUNK_BYTES // out.itemsize):
            if array is not None:
                self._post([array[piece]])
            self._meet()
            np.copyto(out[piece], self._all_posted(out[piece])[root])

    def _all_gather(self, array: Array, out: Array) -> None:
        self._all_gather_coalesced([array], [out])

    def _gather(self, array: Array, out: Array | None, root: int) -> None:
        self._all_gather_coalesced([array], [] if out is None else [out])

    def _all_gather_coalesced(self, arrays: Sequence[Array], outs: Sequence[Array]) -> None:
        """A rank without ``outs`` only gives."""
        rows, dtype = [out.reshape(self.size, -1) for out in outs], arrays[0].dtype
        for group in pieces_together([each.size for each in arrays], CHUNK_BYTES // dtype.itemsize):
            given = [arrays[number][piece] for number, piece in group]
            self._post(given)
            self._meet()
            for rank, posted in enumerate(self._posted([each.size for each in given], dtype) if rows else ()):
                for (number, piece), each in zip(group, posted, strict=True):
                    np.copyto(rows[number][rank, piece], each)

    def _barrier(self) -> None:
        self._meet()

    # --- rounds

    def _post(self, arrays: Sequence[Array]) -> None:
        """Write arrays, one behind the other, for the next round. Those of a unit are so already, but to find
        that takes as long as one copy saves: 9 us of the 125 that six parts of 1.5 MB take.
        """
        slot, begin = self._rounds.slots[self._rounds.number % 2][self.rank], 0
        for array in arrays:
            np.copyto(_as(slot[begin:], array).reshape(array.shape), array)
            begin += array.nbytes
        self.traffic.count(begin)

    def _posted(self, lengths: Sequence[int], dtype: Any) -> list[list[Array]]:
        """The arrays, of these ``lengths``, that each rank wrote for the last round."""
        ends = [*accumulate(lengths)]
        begun = [slice(end - length, end) for end, length in zip(ends, lengths, strict=True)]
        slots = self._rounds.slots[(self._rounds.number - 1) % 2]
        wrote = [each[: ends[-1] * dtype.itemsize if ends else 0].view(dtype) for each in slots]
        return [[each[piece] for piece in begun] for each in wrote]

    def _all_posted(self, like: Array) -> list[Array]:
        """The array, like ``like``, that each rank wrote for the last round."""
        return [_as(slot, like) for slot in self._rounds.slots[(self._rounds.number - 1) % 2]]

    def _meet(self) -> None:
        is_first = self._compared != self._number
        self._compared = self._number
        self._rounds.synchronise(self._text if is_first else None, self._call)

    # --- the end

    def _tell_others(self, error: OpError) -> None:
        self._mesh.abort(error)

    def _close(self) -> None:
        self._rounds.release()
        self._mesh.close()


def _as(memory: Array, like: Array) -> Array:
    """The first bytes of ``memory`` as an array [n] with the number of elements of ``like``."""
    return memory[: like.nbytes].view(like.dtype)
