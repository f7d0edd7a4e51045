"""A process that answers every frame with the same frame: ``transport_peer.py KIND [ADDRESS]``.

It listens and prints its address, or dials ``ADDRESS`` and says "here". It ends when its standard input does.
"""

from __future__ import annotations

import sys

from flowrt.errors import UnavailableError
from flowrt.rendezvous.transport import Bytes, Connection, new_transport


class Echo:
    def on_frame(self, connection: Connection, header: bytes, payload: list[Bytes]) -> None:
        connection.send(header, payload)

    def on_lost(self, connection: Connection, error: UnavailableError) -> None:
        print(error.message, flush=True)


def listen(kind: str) -> None:
    listener = new_transport(kind=kind).listen("127.0.0.1:0", lambda connection: connection.start(Echo()))
    print(listener.address, flush=True)
    sys.stdin.read()
    listener.close()


def dial(kind: str, address: str) -> None:
    connection = new_transport(kind=kind).connect(address, 30.0)
    connection.start(Echo())
    connection.send(b"here")
    sys.stdin.read()
    connection.close()


if __name__ == "__main__":
    (dial if sys.argv[2:] else listen)(*sys.argv[1:])
