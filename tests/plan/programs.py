"""Random class programs that can be played, and links for them."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import numpy.typing as npt

from flowrt.plan.replay.played import ClassProgram, Meeting, Message, Work

KINDS = ("all_reduce", "all_gather", "reduce_scatter")


class ConstantLinks:
    """The same seconds for all meetings, and for all messages."""

    def __init__(self, meeting: float = 0.0, message: float = 0.0) -> None:
        self._meeting, self._message = meeting, message

    def meeting(self, position: int, meeting: Meeting) -> float:
        return self._meeting

    def message(self, position: int, message: Message) -> float:
        return self._message


class UnequalLinks:
    """Seconds by bytes, and another factor for each group of a meeting and each pair of a message: whole
    numbers, so that sums are exact.
    """

    def __init__(self, mesh_shape: dict[str, int]) -> None:
        self._sizes = mesh_shape

    def meeting(self, position: int, meeting: Meeting) -> npt.NDArray[Any]:
        shape = tuple(1 if name in meeting.axes else size for name, size in self._sizes.items())
        return meeting.nbytes * (1.0 + np.arange(np.prod(shape, dtype=int)).reshape(shape) % 3)

    def message(self, position: int, message: Message) -> npt.NDArray[Any]:
        shape = tuple(self._sizes.values())
        return message.nbytes * (1.0 + np.arange(np.prod(shape, dtype=int)).reshape(shape) % 2)


def random_programs(rng: random.Random, positions: int, axes: list[str], works: int) -> list[ClassProgram]:
    """Programs made by drawing what happens next anywhere: so there is an order in which all can run."""
    found: list[list[Work]] = [[] for _ in range(positions)]
    on_the_way: list[Message] = []  # as their receivers have them

    def after(position: int) -> tuple[int, ...]:
        have = range(len(found[position]))
        return tuple(sorted(rng.sample(have, min(len(have), rng.randint(0, 2)))))

    for number in range(works):
        position = rng.randrange(positions)
        kind = rng.choice(["compute", "compute", "meeting", "message", "receive"])
        mine = found[position]
        if kind == "meeting" and axes:
            chosen = tuple(rng.sample(axes, rng.randint(1, len(axes))))
            mine.append(
                Work(f"m{number}", 0, after(position), Meeting(rng.choice(KINDS), chosen, rng.randint(0, 5)))
            )
        elif kind == "message" and positions > 1:
            other = rng.choice([each for each in range(positions) if each != position])
            nbytes = rng.randint(0, 5)
            mine.append(Work(f"s{number}", 0, after(position), Message(other, f"t{number}", nbytes, True)))
            on_the_way.append(Message(position, f"t{number}", nbytes, False))
            found[other] += (
                [Work(f"r{number}", 0, after(other), on_the_way.pop())] if rng.random() < 0.8 else []
            )
        else:
            mine.append(Work(f"c{number}", float(rng.randint(0, 7)), after(position)))
    return [ClassProgram(position, tuple(each)) for position, each in enumerate(found)]
