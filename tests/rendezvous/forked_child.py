"""Forks while connections are open: ``forked_child.py KIND``. Prints what the child and the parent see."""

from __future__ import annotations

import os
import sys
import threading

from flowrt.errors import FailedPreconditionError, UnavailableError
from flowrt.rendezvous.transport import Bytes, Connection, new_transport


class Inbox:
    def __init__(self) -> None:
        self.came = threading.Semaphore(0)

    def on_frame(self, connection: Connection, header: bytes, payload: list[Bytes]) -> None:
        self.came.release()

    def on_lost(self, connection: Connection, error: UnavailableError) -> None:
        print("lost", error)


def try_all(connection: Connection) -> None:
    for name, call in (
        ("send", lambda: connection.send(b"x")),
        ("start", lambda: connection.start(Inbox())),
        ("close", connection.close),
        ("abort", connection.abort),
    ):
        try:
            call()
        except FailedPreconditionError as error:
            print(name, "in the forked child" if "forked child" in str(error) else error)


if __name__ == "__main__":
    accepted: list[Connection] = []
    is_there = threading.Event()
    transport = new_transport(kind=sys.argv[1])
    listener = transport.listen(
        "127.0.0.1:0", lambda connection: (accepted.append(connection), is_there.set())
    )
    dialled = transport.connect(listener.address, 10)
    assert is_there.wait(60)
    inbox = Inbox()
    accepted[0].start(inbox)
    sys.stdout.flush()
    if (child := os.fork()) == 0:
        try_all(dialled)
        if sys.argv[1] == "unix":
            print("its copy of the socket is", dialled._socket._socket)
        sys.stdout.flush()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    dialled.send(b"x")
    print("parent", inbox.came.acquire(timeout=200), flush=True)
    dialled.close()
    accepted[0].close()
    listener.close()
