"""`Schedule`: a collective as steps of transfers, and the composition of schedules.

The model is the one-port model of Thakur, Rabenseifner and Gropp, "Optimization of Collective Communication
Operations in MPICH" (2005): in a step a rank sends at most one message and receives at most one, and all
messages of a step contain data that the rank held before it.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias, final

from flowrt.errors import InvalidArgumentError


class Transfer(NamedTuple):
    """``source`` sends its chunks [first, end) to ``target``, which reduces them into its own (by addition,
    multiplication, ...) if the transfer ``reduces``, and otherwise overwrites its own.
    """

    source: int
    target: int
    first: int
    end: int
    reduces: bool


Step: TypeAlias = tuple[Transfer, ...]


@final
@dataclass(frozen=True, slots=True)
class Schedule:
    """Steps among the ranks 0 .. ``ranks`` - 1, on a payload of ``chunks`` chunks."""

    ranks: int
    chunks: int
    steps: tuple[Step, ...]

    def __post_init__(self) -> None:
        for number, step in enumerate(self.steps):
            for transfer in step:
                self._check(number, transfer)

    def _check(self, number: int, transfer: Transfer) -> None:
        source, target, first, end, _ = transfer
        is_inside = 0 <= source < self.ranks and 0 <= target < self.ranks and 0 <= first < end <= self.chunks
        if not is_inside or source == target:
            raise InvalidArgumentError(
                f"schedule of {self.ranks} ranks and {self.chunks} chunks, step {number}: "
                f"expected a transfer between two of them; got {transfer}"
            )

    def of(self, rank: int) -> list[tuple[int, Transfer]]:
        """Transfers from or to ``rank``: (step number, transfer), in order."""
        return [
            (number, transfer)
            for number, step in enumerate(self.steps)
            for transfer in step
            if rank in (transfer.source, transfer.target)
        ]

    def messages(self) -> Iterator[Transfer]:
        """All transfers, in order."""
        return itertools.chain.from_iterable(self.steps)


def offset(chunk: int, size: int, chunks: int) -> int:
    """First element of chunk number ``chunk`` of ``size`` elements split into ``chunks``: the first ``size %
    chunks`` have one element more, as in ``numpy.array_split``.
    """
    return chunk * (size // chunks) + min(chunk, size % chunks)


def in_sequence(first: Schedule, *others: Schedule) -> Schedule:
    """The schedules one after the other. All must have the same ranks and chunks."""
    steps = [*first.steps, *itertools.chain.from_iterable(other.steps for other in others)]
    return Schedule(first.ranks, first.chunks, tuple(steps))


def at_once(schedules: Iterable[Schedule]) -> Schedule:
    """The schedules merged step by step; no rank may be in two. All must have the same ranks and chunks."""
    found = list(schedules)
    rows = itertools.zip_longest(*[schedule.steps for schedule in found], fillvalue=())
    steps = tuple(tuple(itertools.chain.from_iterable(row)) for row in rows)
    return Schedule(found[0].ranks, found[0].chunks, steps)


def among(schedule: Schedule, members: Sequence[int], ranks: int, chunks: int) -> Schedule:
    """``schedule`` between ``members`` of ``ranks`` ranks, its chunks split into ``chunks`` in total."""
    width = chunks // schedule.chunks
    return Schedule(
        ranks,
        chunks,
        tuple(
            tuple(
                Transfer(members[source], members[target], first * width, end * width, reduces)
                for source, target, first, end, reduces in step
            )
            for step in schedule.steps
        ),
    )
