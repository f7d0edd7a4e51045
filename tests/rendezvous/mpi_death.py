"""Two ranks, of which one dies: run under ``mpirun -n 2``. Rank 0 prints how it learnt that."""

from __future__ import annotations

import os
import signal
import sys
import time

from flowrt.distribute.resolvers import resolve
from flowrt.errors import UnavailableError
from flowrt.rendezvous.transport import Bytes, Connection, new_transport
from tests.contracts.check_transport import Inbox, random_bytes, wait_until

LARGE = random_bytes(8 << 20)


class Dying:
    """Answers each frame with itself, but for the last word."""

    def on_frame(self, connection: Connection, header: bytes, payload: list[Bytes]) -> None:
        if header == b"die":
            os.kill(os.getpid(), signal.SIGKILL)
        connection.send(header, payload)

    def on_lost(self, connection: Connection, error: UnavailableError) -> None: ...


def connect(address: str) -> Connection:
    """When it listens."""
    found: list[Connection] = []

    def is_there() -> bool:
        try:
            found.append(new_transport().connect(address, 10))
        except UnavailableError:
            return False
        return True

    wait_until(is_there, f"{address} listens")
    return found[0]


def survive(address: str) -> None:
    connection, inbox, calls = connect(address), Inbox(), list[int]()
    connection.start(inbox)
    connection.send(b"echo", [LARGE])
    assert (inbox.wait(1)[0][1][0] == LARGE).all()
    print("kind", connection.kind)
    connection.send(b"die")
    began = time.monotonic()
    for number in range(5):
        try:
            connection.send(b"never read", [LARGE], lambda number=number: calls.append(number))
        except UnavailableError:
            calls.append(number)
    error = inbox.wait_lost()
    print(f"lost after {time.monotonic() - began:.1f} s:", error.message)
    wait_until(lambda: len(calls) == 5, "sent is called for each frame")
    connection.close()
    print("closed", flush=True)


if __name__ == "__main__":
    cluster = resolve(os.environ)
    address = cluster.spec.task_address("worker", 1)
    if cluster.task == 0:
        survive(address)
    else:
        listener = new_transport().listen(address, lambda connection: connection.start(Dying()))
        time.sleep(60)
        sys.exit("nobody said: die")
