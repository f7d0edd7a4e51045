"""`TcpProxy`: a network between two tasks that can be slow, break what is sent into pieces, and go silent.

A thread has an event loop that copies bytes; the test changes the network while it does.
"""

from __future__ import annotations

import asyncio
import threading
from types import TracebackType
from typing import final

from flowrt.distribute.cluster.cluster_spec import parse_address

READ_BYTES = 64 << 10


@final
class TcpProxy:
    """Listens at ``address`` and connects to ``target``, both ``host:port``. A context manager.

    ``delay_s`` is added to every piece of at most ``piece_bytes`` bytes, and ``bytes_per_s`` is the most that
    a direction carries. `silence` stops a direction: bytes are held back until `heal`.
    """

    def __init__(
        self,
        address: str,
        target: str,
        delay_s: float = 0.0,
        bytes_per_s: float = float("inf"),
        piece_bytes: int = READ_BYTES,
    ) -> None:
        self._address, self._target = parse_address(address), parse_address(target)
        self._delay_s, self._bytes_per_s, self._piece_bytes = delay_s, bytes_per_s, piece_bytes
        self._loop = asyncio.new_event_loop()
        self._flows = {"there": asyncio.Event(), "back": asyncio.Event()}
        self._listens = threading.Event()
        self._stop = asyncio.Event()
        self.connections = 0
        self._thread = threading.Thread(target=self._loop.run_until_complete, args=(self._serve(),))

    def __enter__(self) -> TcpProxy:
        self.heal()
        self._thread.start()
        assert self._listens.wait(10.0)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join()
        self._loop.close()

    def silence(self, *directions: str) -> None:
        """Of "there" and "back"."""
        for direction in directions:
            self._loop.call_soon_threadsafe(self._flows[direction].clear)

    def heal(self) -> None:
        for flows in self._flows.values():
            self._loop.call_soon_threadsafe(flows.set)

    async def _serve(self) -> None:
        self._tasks: set[asyncio.Task[None]] = set()
        server = await asyncio.start_server(self._join, self._address.host, self._address.port)
        self._listens.set()
        await self._stop.wait()
        server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _join(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            there, back = await asyncio.open_connection(self._target.host, self._target.port)
        except ConnectionRefusedError:  # the worker does not listen yet
            writer.close()
            return
        for direction, source, sink in (("there", reader, back), ("back", there, writer)):
            task = asyncio.create_task(self._copy(source, sink, self._flows[direction]))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _copy(
        self, source: asyncio.StreamReader, sink: asyncio.StreamWriter, flows: asyncio.Event
    ) -> None:
        try:
            while piece := await source.read(self._piece_bytes):
                wait_s = self._delay_s + len(piece) / self._bytes_per_s
                if wait_s:
                    await asyncio.sleep(wait_s)
                await flows.wait()
                sink.write(piece)
                await sink.drain()
        except ConnectionError:
            pass  # the other end is gone
        finally:
            sink.close()
