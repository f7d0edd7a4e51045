"""`Network`: a proxy before each task, all served by one thread. It delays bytes, and flips a bit of them.

It counts what it did: a delay that held nothing back, or a flip that met no bytes, did nothing.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from random import Random
from types import TracebackType
from typing import NamedTuple, final

from flowrt.distribute.cluster.cluster_spec import parse_address

READ_BYTES = 64 << 10
MIN_FLIPPED = (200, 2000)
"""Bytes of a piece in which a bit is flipped: small ones are mostly signs of life, large ones tensors."""


class Flip(NamedTuple):
    """A flip that happened: in a piece of ``size`` bytes, at ``at`` there, from ``before`` to ``after``."""

    size: int
    at: int
    before: int
    after: int


class _Way:
    """What happens to the bytes to and from one task."""

    def __init__(self) -> None:
        self.delay_s = 0.0
        self.delayed = 0
        self.flip: Random | None = None
        self.min_flipped = 0
        self.flipped: list[Flip] = []


@final
class Network:
    """Listens at each of ``outer`` and connects to the same of ``inner``. A context manager."""

    def __init__(self, outer: Sequence[str], inner: Sequence[str]) -> None:
        self._pairs = list(zip(outer, inner, strict=True))
        self._ways = [_Way() for _ in self._pairs]
        self._loop = asyncio.new_event_loop()
        self._listens, self._stop = threading.Event(), asyncio.Event()
        self._copies: set[asyncio.Task[None]] = set()
        self._thread = threading.Thread(target=self._loop.run_until_complete, args=(self._serve(),))

    def __enter__(self) -> Network:
        self._thread.start()
        assert self._listens.wait(60.0)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join()
        self._loop.close()

    def delay(self, task: int, seconds: float) -> int:
        """Hold each piece to and from the task back for that long; 0 ends it. The number of pieces that were
        held back since the last call.
        """
        way = self._ways[task]
        delayed, way.delayed, way.delay_s = way.delayed, 0, seconds
        return delayed

    def flip(self, task: int, random: Random | None) -> list[Flip]:
        """Flip one bit in the next large piece to or from the task or, without ``random``, none any more.
        The flips since the last call.
        """
        way = self._ways[task]
        if random is not None:
            way.min_flipped = random.choice(MIN_FLIPPED)
        way.flip, flipped = random, way.flipped
        way.flipped = []
        return flipped

    def flips(self, task: int) -> int:
        """How many flips there were since the last call of `flip`."""
        return len(self._ways[task].flipped)

    async def _serve(self) -> None:
        servers = []
        for number, (outer, _) in enumerate(self._pairs):
            at = parse_address(outer)
            join = self._joiner(number)
            servers.append(await asyncio.start_server(join, at.host, at.port))
        self._listens.set()
        await self._stop.wait()
        for server in servers:
            server.close()
        for copy in self._copies:
            copy.cancel()
        await asyncio.gather(*self._copies, return_exceptions=True)

    def _joiner(self, number: int):
        target, way = parse_address(self._pairs[number][1]), self._ways[number]

        async def join(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            try:
                there, back = await asyncio.open_connection(target.host, target.port)
            except OSError:  # the task does not listen
                writer.close()
                return
            for source, sink in ((reader, back), (there, writer)):
                copy = asyncio.create_task(_copy(source, sink, way))
                self._copies.add(copy)
                copy.add_done_callback(self._copies.discard)

        return join


async def _copy(source: asyncio.StreamReader, sink: asyncio.StreamWriter, way: _Way) -> None:
    try:
        while piece := await source.read(READ_BYTES):
            if way.delay_s:
                way.delayed += 1
                await asyncio.sleep(way.delay_s)
            if way.flip is not None and len(piece) >= way.min_flipped:
                piece = _flipped(piece, way)
            sink.write(piece)
            await sink.drain()
    except OSError:
        pass  # the other end is gone
    finally:
        sink.close()


def _flipped(piece: bytes, way: _Way) -> bytes:
    assert way.flip is not None
    at, mask = way.flip.randrange(len(piece)), 1 << way.flip.randrange(8)
    changed = bytearray(piece)
    changed[at] ^= mask
    way.flipped.append(Flip(len(piece), at, piece[at], changed[at]))
    way.flip = None
    return bytes(changed)
