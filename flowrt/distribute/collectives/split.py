"""Groups of some ranks of a joined group, over its connections and on its thread, as ``MPI_Comm_split``.

    whole group    0  1  2  3          links between each two, one thread a rank
    split 0,2      0     1             the same links and thread; ranks are numbered anew

Nothing is dialled. The ranks of the whole group make all their calls in one order, in whichever of the
groups: so frames of several groups follow each other on a link as they are awaited. An error ends all.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, final

from flowrt.distribute.collectives.mesh import Arrived, Mesh
from flowrt.errors import OpError


@final
class SplitMesh(Mesh):
    """The links of this rank to others of ``ranks``, which are numbers in the group of ``whole``. Closing it
    leaves them open.
    """

    def __init__(self, whole: Mesh, label: str, ranks: Sequence[int]) -> None:
        super().__init__(whole.membership.of(label, ranks))
        self._whole, self._ranks = whole, ranks

    def send(self, rank: int, text: bytes, *arrays: Any) -> None:
        self._whole.send(self._ranks[rank], text, *arrays)

    def take(self, rank: int) -> Arrived | None:
        return self._whole.take(self._ranks[rank])

    def flush(self, doing: str) -> None:
        self._whole.flush(doing)

    def check(self) -> None:
        self._whole.check()

    def kind_of(self, rank: int) -> str:
        return self._whole.kind_of(self._ranks[rank])

    def kinds(self) -> set[str]:
        return {self.kind_of(rank) for rank in self.membership.others}

    @property
    def lost(self) -> Mapping[int, OpError]:
        lost = self._whole.lost
        return {number: lost[rank] for number, rank in enumerate(self._ranks) if rank in lost}

    def on_abort(self, tell: Callable[[OpError], object]) -> None:
        self._whole.on_abort(tell)

    def abort(self, error: OpError) -> None:
        self._whole.abort(error)

    def close(self) -> None:
        """No-op."""
