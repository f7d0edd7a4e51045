"""`MessagePlace`, `MessagePath`: a system that passes messages, as links use it; and proof of the peer.

Nothing in these interfaces blocks: operations return a `Transfer`, which is polled.

A place's address may be wrong, or mean another process in another world (Open MPI names a world by a host
name and a process id, which may be equal in containers). The proof is a secret, sent over the gRPC stream,
that comes back over the path.
"""

from __future__ import annotations

import hmac
import time
from collections.abc import Mapping
from typing import Any, Protocol

from flowrt.rendezvous.channel.framing import Buffer

ASK_S = 1e-3
"""Interval between two polls."""


class Transfer(Protocol):
    """A message on its way. Its memory stays alive as long as this does."""

    def is_done(self) -> bool:
        """Raises `OSError` where the system failed."""


class Arrival(Protocol):
    """A message that is there, of ``nbytes`` bytes, to be received once."""

    nbytes: int

    def receive(self, room: memoryview | bytearray) -> Transfer:
        """Receive into ``room``, which has the same size. Raises `OSError`."""


class MessagePath(Protocol):
    """Messages to and from one peer, in order. Any thread may call anything."""

    def send(self, data: Buffer) -> Transfer:
        """Begin to send a message. Raises `OSError`."""

    def probe(self) -> Arrival | None:
        """The next message, if it is there. Raises `OSError`."""

    def close(self) -> None:
        """End the path, when nothing is on its way that matters. Idempotent."""


class MessagePlace(Protocol):
    """This end of one connection."""

    address: Mapping[str, Any]
    """The address at which a peer reaches it, as JSON."""

    def path_to(self, said: object) -> MessagePath:
        """The path to the peer that says its address is ``said``. Raises `OSError` if there is none."""


def knock(path: MessagePath, secret: bytes, timeout_s: float) -> None:
    """Send ``secret``. Raises `OSError`, also where it is not on its way within ``timeout_s``."""
    _wait(path.send(secret), timeout_s)


def hears(path: MessagePath, secret: bytes, timeout_s: float) -> bool:
    """Whether the peer sends ``secret`` within ``timeout_s``. Raises `OSError`."""
    end = time.monotonic() + timeout_s
    while (arrival := path.probe()) is None:
        if time.monotonic() > end:
            return False
        time.sleep(ASK_S)
    shown = bytearray(arrival.nbytes)
    _wait(arrival.receive(shown), timeout_s)
    return hmac.compare_digest(shown, secret)


def _wait(transfer: Transfer, timeout_s: float) -> None:
    end = time.monotonic() + timeout_s
    while not transfer.is_done():
        if time.monotonic() > end:
            raise TimeoutError(f"expected a message to be on its way within {timeout_s:g} s")
        time.sleep(ASK_S)
