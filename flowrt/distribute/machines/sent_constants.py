"""The large constants of a session in one task, as tracked by its master: each is sent once.

    hold -> numbers, carried      a graph with them is registered; ``carried`` are sent with it
    has_come                      the task has them
    let_go -> numbers             a graph is released; the task may drop those that no other one has

Rule of this file: a constant stays while a registered or pending graph has it, so a task never drops one that
a message in flight relies on, in whatever order they arrive.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, final

import numpy as np

Array = np.ndarray[Any, Any]


@final
class _Held:
    """``holders``: how many graphs have ``array``."""

    __slots__ = ("array", "has_come", "holders")

    def __init__(self, array: Array) -> None:
        self.array, self.holders, self.has_come = array, 0, False


@final
class SentConstants:
    """Arrays are compared by identity, and held, so that no other one can take the identity."""

    def __init__(self) -> None:
        self._held: dict[int, _Held] = {}
        self._numbers: dict[int, int] = {}
        """Numbers by object identity."""
        self._last = 0

    def hold(self, arrays: Sequence[Array]) -> tuple[list[int], list[int]]:
        """The number of each of ``arrays``, and those of the numbers that the task does not have yet, once
        each.
        """
        numbers = [self._hold(array) for array in arrays]
        return numbers, [number for number in dict.fromkeys(numbers) if not self._held[number].has_come]

    def arrays(self, numbers: Iterable[int]) -> list[Array]:
        return [self._held[number].array for number in numbers]

    def have_come(self, numbers: Iterable[int]) -> None:
        """The task has registered the graph that they were for."""
        for number in numbers:
            self._held[number].has_come = True

    def let_go(self, numbers: Iterable[int]) -> list[int]:
        """Release the references that `hold` has counted for one graph. Returns those that no graph holds any
        more.
        """
        gone = []
        for number in numbers:
            held = self._held[number]
            held.holders -= 1
            if not held.holders:
                del self._held[number], self._numbers[id(held.array)]
                gone.append(number)
        return gone

    def _hold(self, array: Array) -> int:
        number = self._numbers.get(id(array))
        if number is None:
            self._last += 1
            number = self._numbers[id(array)] = self._last
            self._held[number] = _Held(array)
        self._held[number].holders += 1
        return number
