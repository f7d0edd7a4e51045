"""A process that answers every frame with the same frame: ``transport_peer.py KIND``.

It prints its address, and ends when its standard input does.
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


if __name__ == "__main__":
    listener = new_transport(kind=sys.argv[1]).listen(
        "127.0.0.1:0", lambda connection: connection.start(Echo())
    )
    print(listener.address, flush=True)
    sys.stdin.read()
    listener.close()
