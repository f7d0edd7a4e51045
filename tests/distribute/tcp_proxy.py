"""`TcpProxy`: a network between two tasks that can be slow, break what is sent into pieces, go silent, and
damage a bit; `between_hosts`: connections as between two hosts.

A thread has an event loop that copies bytes; the test changes the network while it does.
"""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from types import TracebackType
from typing import final

import pytest

from flowrt.distribute.cluster.cluster_spec import parse_address
from flowrt.distribute.launch.local_cluster import ReservedPorts
from flowrt.rendezvous.channel import frame_probes
from flowrt.rendezvous.grpc import upgrade

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
        self._flips: dict[str, int] = {}
        self._listens = threading.Event()
        self._stop = asyncio.Event()
        self.connections = 0
        self._thread = threading.Thread(target=self._loop.run_until_complete, args=(self._serve(),))

    def __enter__(self) -> TcpProxy:
        self.heal()
        self._thread.start()
        assert self._listens.wait(60.0)
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

    def flip(self, direction: str, bit: int) -> None:
        """Change bit number ``bit`` of those that come in ``direction`` from now on."""
        self._flips[direction] = bit

    @property
    def has_flipped(self) -> bool:
        """Whether each bit that was to change has come and was changed."""
        return not self._flips

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
            task = asyncio.create_task(self._copy(source, sink, direction))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _copy(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter, direction: str) -> None:
        try:
            while piece := await source.read(self._piece_bytes):
                wait_s = self._delay_s + len(piece) / self._bytes_per_s
                if wait_s:
                    await asyncio.sleep(wait_s)
                await self._flows[direction].wait()
                sink.write(self._damaged(piece, direction))
                await sink.drain()
        except ConnectionError:
            pass  # the other end is gone
        finally:
            sink.close()

    def _damaged(self, piece: bytes, direction: str) -> bytes:
        """``piece``, with the bit changed that `flip` asks for, if it is in there."""
        bit = self._flips.pop(direction, None)
        if bit is None:
            return piece
        if bit >= 8 * len(piece):
            self._flips[direction] = bit - 8 * len(piece)
            return piece
        changed = bytearray(piece)
        changed[bit // 8] ^= 1 << bit % 8
        return bytes(changed)


class Hosts:
    """Whoever dials an address that `reach` returned goes through a proxy, the next of ``proxies``."""

    def __init__(self, stack: ExitStack) -> None:
        self._stack = stack
        self.proxies: list[TcpProxy] = []

    def reach(self, address: str) -> str:
        port = self._stack.enter_context(ReservedPorts(1)).ports[0]
        near = f"127.0.0.1:{port}"
        self.proxies.append(self._stack.enter_context(TcpProxy(near, address)))
        return near

    def dial_tcp(self, host: str, port: int) -> socket.socket:
        """What `flowrt.rendezvous.grpc.upgrade` does, through a proxy."""
        near = parse_address(self.reach(f"{host}:{port}"))
        return socket.create_connection((near.host, near.port), 10.0)


@contextmanager
def between_hosts(kind: str) -> Iterator[Hosts]:
    """Connections of ``kind``, "tcp" or "grpc", have checksums, and ask soon whether frames have come. Those
    by sockets go through a proxy each.
    """
    with ExitStack() as stack:
        hosts = Hosts(stack)
        patch = stack.enter_context(pytest.MonkeyPatch.context())
        patch.setenv("FLOWRT_TRANSPORT", kind)
        patch.setenv("FLOWRT_CHECKSUMS", "on")
        patch.setattr(frame_probes, "PROBE_S", 0.2)
        if kind == "tcp":
            patch.setattr(upgrade, "_dial_tcp", hosts.dial_tcp)
        yield hosts
