"""Random streams: one for each random op of a session, a pure function of (seeds, number of the draw).

Philox4x64-10 (Salmon et al., *Parallel random numbers: as easy as 1, 2, 3*, 2011) maps a 128-bit key and a
256-bit counter to random bits without any state in between. The key is the op's pair of seeds; the counter's
highest word counts the op's draws in this session and the lower ones the blocks within a draw. The numbers
that an op draws in its n-th execution therefore do not depend on the thread or device, on draws of other ops,
or on the number of devices. A new session starts over. A generator can begin anywhere in a draw, so a part of
a draw can be made without the rest.
"""

from __future__ import annotations

import itertools
import secrets
import threading
from collections.abc import Sequence
from typing import Any, final

import numpy as np

from flowrt.graph.node import Node

_WORD = 2**64 - 1


class _Engine:
    """A Philox generator that can be repositioned, in 1 us; creating one for each draw would take 10."""

    def __init__(self) -> None:
        self.generator = np.random.Generator(np.random.Philox(0))
        self.state: Any = dict(self.generator.bit_generator.state)  # fresh: its buffers are empty
        self.counter = np.zeros(4, np.uint64)

    def at(self, key: np.ndarray[Any, Any], draw: int, chunk: int, block: int) -> np.random.Generator:
        self.counter[:] = block, 0, chunk, draw
        self.state["state"] = {"key": key, "counter": self.counter}
        self.generator.bit_generator.state = self.state
        return self.generator


_engines = threading.local()


@final
class Draw:
    """One draw of a random op."""

    __slots__ = ("_key", "_number")

    def __init__(self, key: np.ndarray[Any, Any], number: int) -> None:
        self._key, self._number = key, number

    def generator(self, chunk: int = 0, block: int = 0) -> np.random.Generator:
        """A generator at the beginning of a ``block`` of 256 bits of a ``chunk``, one of 2**64 sequences: the
        thread's own, valid until the thread draws again.
        """
        if not hasattr(_engines, "engine"):
            _engines.engine = _Engine()
        found: np.random.Generator = _engines.engine.at(self._key, self._number, chunk, block)
        return found

    def words(self, block: int) -> list[int]:
        """The key, two words, and the first, third and fourth word of the counter of a ``block`` of chunk 0.
        NumPy
        counts before it draws.
        """
        return [*self._key.tolist(), block + 1, 0, self._number]


@final
class RandomStream:
    """The draws of one random op in one session. `next` is thread-safe.

    ``node``'s attributes ``seed`` and ``seed2`` are the key; if both are 0 the key is fresh entropy.
    """

    __slots__ = ("_draws", "_key")

    def __init__(self, node: Node) -> None:
        first, second = node.attrs["seed"] & _WORD, node.attrs["seed2"] & _WORD
        if first == second == 0:
            first, second = secrets.randbits(64), secrets.randbits(64)
        self._key = np.array([first, second], np.uint64)
        self._draws = itertools.count()  # its next() is atomic

    def draw(self) -> Draw:
        """The next draw."""
        return Draw(self._key, next(self._draws))

    def next(self) -> np.random.Generator:
        """A generator at the start of the next draw: the thread's own, valid until the thread draws again."""
        return self.draw().generator()

    def skip(self) -> np.ndarray[Any, Any]:
        """Skip the next draw. Returns its position, three words: the key and the number of the draw."""
        return np.append(self._key, np.uint64(next(self._draws)))


@final
class Position:
    """A stream fixed at the draw that `RandomStream.skip` skipped: it repeats that draw."""

    __slots__ = ("_draw", "_key")

    def __init__(self, words: Sequence[int]) -> None:
        self._key, self._draw = np.array(words[:2], np.uint64), int(words[2])

    def draw(self) -> Draw:
        """The draw."""
        return Draw(self._key, self._draw)

    def next(self) -> np.random.Generator:
        """A generator at its start: see `RandomStream.next`."""
        return self.draw().generator()
