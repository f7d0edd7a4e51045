"""`Rounds`: synchronization of the ranks of a segment. Each writes its data of a round, reaches it, and
reads.

A rank that has reached round t has read all data of round t - 1. So data of round t may overwrite that of
round t - 2.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, final

from flowrt.device.llvm.host_pool import usable_cpus
from flowrt.distribute.collectives.futex import wait_while, wake
from flowrt.distribute.collectives.membership import disagree, missing
from flowrt.distribute.collectives.mesh import Mesh
from flowrt.distribute.collectives.shared_memory_segment import TEXT_BYTES, Layout
from flowrt.errors import copy_to_raise
from flowrt.rendezvous.channel.channel import Bytes

SPIN_S = 30e-6
"""Spin time of a waiting rank, if each has a core: waking it takes 50 us."""
SLICE_S = 0.02
"""Maximum sleep after that, between checks for a lost rank or the end of the group."""


@final
class Rounds:
    """One rank's view of the ``memory``. ``check()`` raises the error that has ended the group."""

    def __init__(self, mesh: Mesh, layout: Layout, memory: Bytes, check: Callable[[], None]) -> None:
        self._mesh, self._check = mesh, check
        self._spin_s = SPIN_S if layout.size <= usable_cpus() else 0.0
        self._membership = mesh.membership
        self._others = mesh.membership.others
        ranks, chunk = range(layout.size), layout.chunk
        self.slots = [[_cut(memory, layout.slot(r, p), chunk) for r in ranks] for p in (0, 1)]
        self.results = [_cut(memory, layout.result(p), chunk) for p in (0, 1)]
        self.number = 0
        """Number of the round being written; data of the previous one may be read."""
        view = memory.data  # of integers it is three times as fast as NumPy
        self._addresses = [memory.ctypes.data + layout.line(r) for r in ranks]
        self._words = [view[layout.line(r) : layout.line(r) + 8].cast("q") for r in ranks]
        self._texts = [
            [view[layout.text(r, p) : layout.text(r, p) + TEXT_BYTES] for r in ranks] for p in (0, 1)
        ]

    def release(self) -> None:
        """Release the memory; nothing can be written or awaited afterwards."""
        for views in (self.slots, self.results, self._words, self._texts):
            views.clear()

    def synchronise(self, text: bytes | None, doing: Any) -> None:
        """Return when all ranks have arrived. ``text``, if given, is compared with theirs.

        Raises `InvalidArgumentError` if one differs, `UnavailableError` if a missing rank was lost,
        `DeadlineExceededError`, and the errors of ``check``.
        """
        rank, texts = self._membership.rank, self._texts[self.number % 2]
        if text is not None:
            texts[rank][:] = text.ljust(TEXT_BYTES, b"\0")
        self.number = number = self.number + 1
        words = self._words
        words[rank][0] = number
        wake(self._addresses[rank])
        for other in self._others:
            if words[other][0] < number:
                self._wait(number, doing)
                break
        if text is not None:
            self._compare(texts)

    def _compare(self, texts: list[memoryview]) -> None:
        own = texts[self._membership.rank]
        for rank in self._others:
            if texts[rank] != own:
                found = [(r, bytes(texts[r]).rstrip(b"\0")) for r in (self._membership.rank, rank)]
                raise disagree(self._membership, found)

    def _wait(self, number: int, doing: Any) -> None:
        begin = time.monotonic()
        words = self._words
        while absent := [rank for rank in self._others if words[rank][0] < number]:
            waited_s = time.monotonic() - begin
            if waited_s < self._spin_s:
                continue
            self._check()
            for rank in absent:
                if rank in self._mesh.lost and words[rank][0] < number:
                    raise copy_to_raise(self._mesh.lost[rank])
            if waited_s > self._membership.timeout_s:
                raise missing(self._membership, absent, str(doing))
            wait_while(self._addresses[absent[0]], number - 1, SLICE_S)


def _cut(memory: Bytes, start: int, length: int) -> Bytes:
    return memory[start : start + length]
