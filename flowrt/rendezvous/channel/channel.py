"""Communication between tasks: interfaces of transports, listeners and connections.

A connection transports frames: a header of bytes and any number of arrays of bytes. It is full duplex,
ordered, and reliable until it is lost; then its receiver is notified once, with the peer and the reason.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeAlias

import numpy as np

from flowrt.errors import UnavailableError

Bytes: TypeAlias = np.ndarray[Any, np.dtype[np.uint8]]
"""A C-contiguous array of uint8."""

Payload: TypeAlias = Bytes | memoryview
"""An array that is sent, or a view of bytes that nobody changes."""

Sent: TypeAlias = Callable[[], None] | None
"""Called once when the bytes of a payload may be modified again."""


class Receiver(Protocol):
    """Callbacks of a connection's owner, called in its reader thread; `on_frame` also in a thread that
    has the `Lead`, for one frame at a time.
    """

    def on_frame(self, connection: Connection, header: bytes, payload: list[Bytes]) -> None:
        """Handle one frame; frames arrive in the order in which they were sent.

        The arrays are aligned to 64 bytes and owned by the receiver: it may keep and modify them. Those from
        a peer on this host are in shared memory, which is returned to the sender with the array. An exception
        loses the connection.
        """

    def on_lost(self, connection: Connection, error: UnavailableError) -> None:
        """Handle the loss, as the last call, made once, unless `Connection.close` came first. ``error`` names
        peer and reason.
        """


class Lead(Protocol):
    """The turn of one thread to read a connection's frames: see `Connection.lead`."""

    def wait(self, timeout_s: float | None) -> None:
        """Return after handling frames that arrived, when `wake` was called, or after ``timeout_s`` seconds;
        possibly for no reason.
        """

    def wake(self) -> None:
        """Make `wait` return, this time or the next. Any thread."""

    def release(self) -> None:
        """End the turn."""


class Connection(ABC):
    """One end of a connection between two tasks. Any thread may call anything.

    In a child that was forked from the process which opened it, every call raises
    `FailedPreconditionError`.
    """

    peer: str
    """The address of the other end, for messages."""
    kind: str
    """Link that transports the frames: "grpc", "unix", "tcp", "mpi" or "ucx"."""
    certificate_names: tuple[str, ...] = ()
    """Alternative names in the peer's certificate, for an accepted connection."""

    @abstractmethod
    def send(self, header: bytes, payload: Sequence[Payload] = (), sent: Sent = None) -> None:
        """Send one frame; never waits for the peer. A ``header`` that is sent often, each time
        with one array, may be a `flowrt.rendezvous.channel.framing.Repeated`, which is faster.

        ``sent`` is called once, in any thread, possibly before `send` returns, when the bytes of ``payload``
        may be modified again: they are written or copied, or the connection has ended. Where arrays have
        checksums, the peer has them intact, which shows only after `start`.

        Raises `UnavailableError`, and calls nothing, when the connection is lost or closed, and
        `InvalidArgumentError` for a frame over the limits of `flowrt.rendezvous.channel.framing`.
        """

    @abstractmethod
    def start(self, receiver: Receiver) -> None:
        """Begin to read, once; earlier frames are queued until then."""

    def lead(self) -> Lead | None:
        """The turn to read, for a thread that waits for a frame of this connection: the receiver is then
        called in that thread, which saves it a hand-over by the reader thread. None while another thread has
        the turn, and where the kind of the link has none: the reader thread then handles the frame, and has
        to wake the thread that waits.
        """
        return None

    @abstractmethod
    def close(self) -> None:
        """Write queued frames, for at most 1 s, and end the connection and its threads. Idempotent."""

    @abstractmethod
    def abort(self) -> None:
        """Close immediately: queued frames are dropped, including the rest of a partly written one."""


class Listener(ABC):
    """A bound address at which connections are accepted."""

    address: str
    """``host:port`` with the port that was really bound."""

    @abstractmethod
    def close(self) -> None:
        """Stop accepting, and abort the open accepted connections: close those first, if their frames matter.
        Idempotent.
        """


class Transport(ABC):
    """Makes connections."""

    @abstractmethod
    def listen(
        self, address: str, accept: Callable[[Connection], None], is_serving: Callable[[], bool] | None = None
    ) -> Listener:
        """Accept connections at ``address``, a ``host:port``; port 0 selects a free one.

        ``accept`` is called with each, in a separate thread; it must `start` it or keep it. ``is_serving``:
        whether the task takes work now, for gRPC's health checks; they are not answered without it.

        Raises `AlreadyExistsError` if the port is taken, `UnavailableError` if the address cannot be bound.
        """

    @abstractmethod
    def connect(self, address: str, timeout_s: float) -> Connection:
        """A connection to the listener at ``address``, within ``timeout_s`` seconds; tried once.

        Raises `UnavailableError` with the reason (refused, no route, name not found, TLS, timeout),
        `UnauthenticatedError` where the listener refuses the token, has another authority's certificate, or
        only one of the two has TLS, `FailedPreconditionError` where it speaks another version.
        """

    def listens_like(self, other: Transport) -> bool:
        """Whether listeners of both accept the same peers, with the same kinds of links, so that they are
        interchangeable.
        """
        return self is other
