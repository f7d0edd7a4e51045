"""What checksums of arrays cost: ``python -m benchmarks.checksums [--rounds 3]``.

Two processes, in turns with checksums and without: 64 MiB from one to the other, over TCP at the rates of
some wires (the kernel paces the loopback's packets), over TCP as fast as it goes, and over gRPC. Printed, as
Markdown: the lowest time, and the lowest time of the processor at each end.

``python -m benchmarks.checksums serve ADDRESS GBIT_S`` is the sender.
"""

from __future__ import annotations

import argparse
import json
import os
import queue
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from typing import Any, NamedTuple

import numpy as np

from benchmarks.cluster import reserve_addresses
from flowrt.rendezvous.channel import byte_stream
from flowrt.rendezvous.channel.channel import Connection
from flowrt.rendezvous.transport import new_transport

NBYTES, TRANSFERS, WARM = 64 << 20, 12, 3
SO_MAX_PACING_RATE = 47
"""Of Linux, which Python does not name."""
WIRES = (("tcp", 10), ("tcp", 25), ("tcp", 0), ("grpc", 0))
"""A transport, and the wire's rate in Gbit/s; 0: as fast as it goes."""
TARGET = 1.03
"""A transfer over a wire with checksums, at most, beside one without."""


class Took(NamedTuple):
    """Seconds of one transfer, and of the processor at both ends: the lowest of some."""

    wall_s: float
    send_s: float
    receive_s: float


class _Inbox:
    """A receiver of frames, for a thread that takes them."""

    def __init__(self) -> None:
        self.frames: queue.SimpleQueue[tuple[bytes, int]] = queue.SimpleQueue()

    def on_frame(self, connection: Connection, header: bytes, payload: list[Any]) -> None:
        self.frames.put((header, sum(array.nbytes for array in payload)))

    def on_lost(self, connection: Connection, error: Exception) -> None:
        self.frames.put((b"lost", 0))


class _Sender:
    """Answers each frame with the array, or with the processor's time that this process has taken."""

    def __init__(self) -> None:
        self.lost = threading.Event()
        self._array = np.random.default_rng(0).integers(0, 255, NBYTES, np.uint8)

    def on_frame(self, connection: Connection, header: bytes, payload: list[Any]) -> None:
        if header == b"array":
            connection.send(b"array", (self._array,))
        else:
            connection.send(json.dumps(_cpu_s()).encode())

    def on_lost(self, connection: Connection, error: Exception) -> None:
        self.lost.set()


def serve(address: str, gbit_s: int) -> None:
    """Be the sender, until the receiver ends."""
    if gbit_s:
        byte_stream.PlainStream = _paced(gbit_s)  # type: ignore[misc, assignment]
    sender = _Sender()
    new_transport().listen(address, lambda connection: connection.start(sender))
    print("ready", flush=True)
    sender.lost.wait()
    os._exit(0)


def _paced(gbit_s: int) -> Any:
    def stream(connected: socket.socket) -> byte_stream.PlainStream:
        connected.setsockopt(
            socket.SOL_SOCKET, SO_MAX_PACING_RATE, (gbit_s * 10**9 // 8).to_bytes(8, "little")
        )
        return plain(connected)

    plain = byte_stream.PlainStream
    return stream


def _cpu_s() -> float:
    times = os.times()
    return times.user + times.system


def measure(kind: str, gbit_s: int, checksums: str) -> Took:
    """Fetch the array `TRANSFERS` times over one connection."""
    os.environ.update(FLOWRT_TRANSPORT=kind, FLOWRT_CHECKSUMS=checksums)
    with ExitStack() as stack:
        (address,) = reserve_addresses(1, stack)
        command = [sys.executable, "-m", "benchmarks.checksums", "serve", address, str(gbit_s)]
        sender = stack.enter_context(subprocess.Popen(command, stdout=subprocess.PIPE, text=True))
        stack.callback(sender.kill)
        assert sender.stdout is not None
        sender.stdout.readline()
        inbox, connection = _Inbox(), new_transport().connect(address, 10.0)
        stack.callback(connection.close)
        connection.start(inbox)

        def ask(what: bytes) -> tuple[bytes, int]:
            connection.send(what)
            return inbox.frames.get(timeout=60)

        walls, ends = [], []
        for number in range(WARM + TRANSFERS):
            if number >= WARM and not ends:
                ends.append((json.loads(ask(b"cpu")[0]), _cpu_s()))
            began = time.perf_counter()
            assert ask(b"array") == (b"array", NBYTES)
            walls.append(time.perf_counter() - began)
        ends.append((json.loads(ask(b"cpu")[0]), _cpu_s()))
    (sent, received), (sent_then, received_then) = ends
    return Took(min(walls[WARM:]), (sent_then - sent) / TRANSFERS, (received_then - received) / TRANSFERS)


def lines(rounds: int) -> Iterator[str]:
    """Markdown."""
    yield "| 64 MiB over | without: time, sender, receiver (ms) | with | time |"
    yield "|---|---|---|---|"
    for kind, gbit_s in WIRES:
        took: dict[str, list[Took]] = {"off": [], "on": []}
        for _ in range(rounds):
            for checksums, found in took.items():
                found.append(measure(kind, gbit_s, checksums))
        lowest = {name: Took(*map(min, zip(*found, strict=True))) for name, found in took.items()}
        cells = [", ".join(f"{1e3 * each:.1f}" for each in lowest[name]) for name in took]
        ratio = lowest["on"].wall_s / lowest["off"].wall_s
        wire = f"{kind}, {gbit_s} Gbit/s" if gbit_s else f"{kind}, loopback"
        yield f"| {wire} | {' | '.join(cells)} | x {ratio:.2f}{f' (bar {TARGET})' * bool(gbit_s)} |"


def main(arguments: Sequence[str]) -> int:
    if arguments[:1] == ["serve"]:
        serve(arguments[1], int(arguments[2]))
    parser = argparse.ArgumentParser(prog="python -m benchmarks.checksums", description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args(arguments)
    print(f"load {os.getloadavg()[0]:.1f}, {len(os.sched_getaffinity(0))} cores", flush=True)
    for line in lines(options.rounds):
        print(line, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
