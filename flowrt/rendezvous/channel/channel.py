"""The seam between tasks: what a transport, a listener and a connection do, whatever carries the bytes.

A connection carries frames: a header of bytes and any number of arrays of bytes. It is full duplex, keeps
the order, and is reliable until it is lost; then its receiver is told once, with the peer and the reason.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeAlias

import numpy as np

from flowrt.errors import UnavailableError

Bytes: TypeAlias = np.ndarray[Any, np.dtype[np.uint8]]
"""A C-contiguous array of uint8."""


class Receiver(Protocol):
    """What the owner of a connection implements. Both are called in the connection's reader thread."""

    def on_frame(self, connection: Connection, header: bytes, payload: list[Bytes]) -> None:
        """One frame, in the order they were sent.

        The arrays are aligned to 64 bytes and the receiver's own: it may keep them and write to them. Those
        of a peer on this host lie in shared memory, which goes back to the sender when the array dies.
        An exception from here loses the connection.
        """

    def on_lost(self, connection: Connection, error: UnavailableError) -> None:
        """The last call, made once, unless `Connection.close` came first. ``error`` names peer and reason."""


class Connection(ABC):
    """One end of a connection between two tasks. Any thread may call anything.

    In a child that was forked from the process which opened it, every call raises
    `FailedPreconditionError`.
    """

    peer: str
    """The address of the other end, for messages."""
    kind: str
    """What carries the frames: "grpc", "unix", "tcp" or "mpi"."""
    certificate_names: tuple[str, ...] = ()
    """Of a connection that was accepted: the alternative names in the certificate of the other end."""

    @abstractmethod
    def send(
        self, header: bytes, payload: Sequence[Bytes] = (), sent: Callable[[], None] | None = None
    ) -> None:
        """Send one frame; never waits for the peer.

        ``sent`` is called once, in any thread, also before `send` returns, when the bytes of ``payload`` may
        be changed again: they are written or copied, or the connection has come to its end.

        Raises `UnavailableError`, and calls nothing, when the connection is lost or closed, and
        `InvalidArgumentError` for a frame beyond the limits of `flowrt.rendezvous.channel.framing`.
        """

    @abstractmethod
    def start(self, receiver: Receiver) -> None:
        """Begin to read, once; frames that came before have waited."""

    @abstractmethod
    def close(self) -> None:
        """Write what is queued, for at most 1 s, and end the connection and its threads. Idempotent."""

    @abstractmethod
    def abort(self) -> None:
        """`close` at once: what is queued is dropped, also the rest of a frame that is half written."""


class Listener(ABC):
    """A bound address at which connections are accepted."""

    address: str
    """``host:port`` with the port that was really bound."""

    @abstractmethod
    def close(self) -> None:
        """Accept no more, and cut the connections that were accepted and are still open: close those first
        whose frames matter. Idempotent.
        """


class Transport(ABC):
    """Makes connections."""

    @abstractmethod
    def listen(self, address: str, accept: Callable[[Connection], None]) -> Listener:
        """Accept connections at ``address``, a ``host:port``; port 0 takes a free one.

        ``accept`` is called with each, in a thread of its own; it has to `start` it or to keep it.

        Raises `AlreadyExistsError` where the port is taken, `UnavailableError` where the address cannot be
        bound.
        """

    @abstractmethod
    def connect(self, address: str, timeout_s: float) -> Connection:
        """A connection to the listener at ``address``, within ``timeout_s`` seconds; tried once.

        Raises `UnavailableError` with the reason (refused, no route, name not found, TLS, timeout),
        `UnauthenticatedError` where the listener refuses the token, has another authority's certificate, or
        only one of the two has TLS, `FailedPreconditionError` where it speaks another version.
        """

    def listens_like(self, other: Transport) -> bool:
        """Whether listeners of both let in the same peers, and carry their frames by the same kinds: then
        one can stand for the other.
        """
        return self is other
