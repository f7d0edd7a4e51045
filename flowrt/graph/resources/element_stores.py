"""Stores of an `ElementQueue`, which determine the order of its elements. Pure.

InOrder      first in, first out
Shuffled     a random one of those present, with a minimum kept back to choose from
ByPriority   the smallest first component first; equal ones in FIFO order
"""

from __future__ import annotations

import heapq
import itertools
from collections import deque
from collections.abc import Sequence
from typing import Any, Protocol, TypeAlias, final

from flowrt.graph.resources.random_stream import RandomStream

Element: TypeAlias = tuple[Any, ...]
"""One array per component."""


class Store(Protocol):
    """``reserve``: number of elements kept back while the queue is open."""

    reserve: int

    def __len__(self) -> int: ...

    def add(self, element: Element) -> None: ...

    def take(self) -> Element:
        """The next element; the store is not empty."""

    def give_back(self, elements: Sequence[Element]) -> None:
        """Put back ``elements``, the last ones taken, in this order, after an attempt was withdrawn."""


@final
class InOrder:
    reserve = 0

    def __init__(self) -> None:
        self._elements: deque[Element] = deque()

    def __len__(self) -> int:
        return len(self._elements)

    def add(self, element: Element) -> None:
        self._elements.append(element)

    def take(self) -> Element:
        return self._elements.popleft()

    def give_back(self, elements: Sequence[Element]) -> None:
        self._elements.extendleft(reversed(elements))


@final
class Shuffled:
    """Each element present is equally likely to be next, by the draws of ``stream``."""

    def __init__(self, stream: RandomStream, reserve: int) -> None:
        self.reserve, self._stream = reserve, stream
        self._elements: list[Element] = []

    def __len__(self) -> int:
        return len(self._elements)

    def add(self, element: Element) -> None:
        self._elements.append(element)

    def take(self) -> Element:
        elements, place = self._elements, int(self._stream.next().integers(len(self._elements)))
        elements[place], elements[-1] = elements[-1], elements[place]
        return elements.pop()

    def give_back(self, elements: Sequence[Element]) -> None:
        self._elements.extend(elements)


@final
class ByPriority:
    reserve = 0

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, Element]] = []
        self._behind, self._in_front = itertools.count(), itertools.count(-1, -1)
        """Sequence numbers among equal priorities."""

    def __len__(self) -> int:
        return len(self._heap)

    def add(self, element: Element) -> None:
        heapq.heappush(self._heap, (int(element[0]), next(self._behind), element))

    def take(self) -> Element:
        return heapq.heappop(self._heap)[2]

    def give_back(self, elements: Sequence[Element]) -> None:
        for element in reversed(elements):
            heapq.heappush(self._heap, (int(element[0]), next(self._in_front), element))
