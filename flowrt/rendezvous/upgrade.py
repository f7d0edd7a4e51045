"""The handshake of a connection: both ends agree, over the gRPC stream, on what carries the frames.

    who dialled                                   who listens
    {kinds, boot_id}                         ->
                                             <-   {offers: [{kind, address, secret}, ...]}
    opens the socket of an offer, {use: kind} ->  accepts it, if it shows the secret
                                             <-   {opened: true}, or {opened: false}: the next offer
                                                  "grpc" is an offer without a socket

A secret is fresh for each handshake and travels over the stream, where token and TLS were checked: so a
socket is as trusted as the stream. A Unix socket has a random abstract name, not a file that could be left.
"""

from __future__ import annotations

import hmac
import json
import secrets
import socket
import ssl
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack, closing
from dataclasses import dataclass
from typing import Any, TypeVar, cast, final

from flowrt.errors import DataLossError, UnavailableError
from flowrt.rendezvous.byte_stream import ByteStream, PlainStream, TlsStream
from flowrt.rendezvous.channel import Connection
from flowrt.rendezvous.frame_stream import FrameStream
from flowrt.rendezvous.framing import Allocate, Kind
from flowrt.rendezvous.host_identity import boot_id, is_same_user
from flowrt.rendezvous.security import Security
from flowrt.rendezvous.socket_channel import SocketConnection
from flowrt.rendezvous.stream_connection import StreamConnection
from flowrt.rendezvous.tls import client_context, server_context

T = TypeVar("T")

KINDS: Mapping[str, tuple[str, ...]] = {
    "auto": ("unix", "tcp", "grpc"),
    "grpc": ("grpc",),
    "unix": ("unix",),
    "tcp": ("tcp",),
}
"""What may carry the frames, the best first, under the names that a user may choose."""

UPGRADE_S = 1.0
"""Seconds that opening a socket may take; then the next kind is tried."""
MAX_MESSAGE = 64 << 10
"""Bytes of a message of the handshake; a real one has some hundred."""


@dataclass(frozen=True)
class Terms:
    """What an end brings to the handshake. ``host`` is the one that was dialled, or is listened at."""

    host: str
    kinds: tuple[str, ...]
    security: Security
    allocate: Allocate


# --- who dialled


def request_handshake(stream: FrameStream, terms: Terms) -> Connection:
    """The connection, at the end that dialled.

    Raises `UnavailableError` when no kind works, with the reason of each, and what `FrameStream.receive`
    raises.
    """
    _say(stream, kinds=terms.kinds, boot_id=boot_id())
    reasons = []
    for offer in _hear(stream, "offers", list):
        kind = _field(offer, "kind", str)
        try:
            if kind == "grpc":
                _use(stream, kind, lambda: None)
                return StreamConnection(stream)
            return SocketConnection(kind, _knock(stream, terms, kind, offer), stream, terms.allocate)
        except OSError as error:
            reasons.append(f"{kind}: {error}")
    why = "; ".join(reasons) or "the listener offers none of them to this process"
    raise UnavailableError(f"connection to {stream.peer}: expected {' or '.join(terms.kinds)}; {why}")


def _use(stream: FrameStream, kind: str, show: Callable[[], T]) -> T:
    """Ask for ``kind``, do what ``show`` does for it, and hear whether it is accepted. Raises `OSError`."""
    _say(stream, use=kind)
    shown = failed = None
    try:
        shown = show()
    except OSError as error:
        failed = error
    if not _hear(stream, "opened", bool) or failed is not None:
        raise failed or OSError("the listener did not accept it")
    return cast(T, shown)


def _knock(stream: FrameStream, terms: Terms, kind: str, offer: Any) -> ByteStream:
    """The socket of an offer. Raises `OSError` where it cannot be had."""
    if kind == "unix":
        connected = _dial_unix(_field(offer, "address", str))
    else:
        connected = _dial_tcp(terms.host, _field(offer, "address", int))
    secret = _field(offer, "secret", str).encode()

    def show() -> socket.socket:
        secured = connected
        if kind == "tcp" and terms.security.uses_tls:
            secured = client_context(terms.security).wrap_socket(connected, server_hostname=terms.host)
        secured.sendall(secret)
        return secured

    try:
        return _as_stream(_use(stream, kind, show))
    except BaseException:
        connected.close()
        raise


def _dial_unix(name: str) -> socket.socket:
    connected = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        connected.settimeout(UPGRADE_S)
        connected.connect("\0" + name)
        if not is_same_user(connected):
            raise OSError("another user has its name")
    except OSError:
        connected.close()
        raise
    return connected


def _dial_tcp(host: str, port: int) -> socket.socket:
    return socket.create_connection((host, port), UPGRADE_S)


# --- who listens


def answer_handshake(stream: FrameStream, terms: Terms) -> Connection:
    """The connection, at the end that listens. Raises as `request_handshake`."""
    hello = _hear_all(stream)
    kinds = [kind for kind in terms.kinds if kind in _field(hello, "kinds", list)]
    with ExitStack() as opened:
        doors = {
            kind: opened.enter_context(closing(door))
            for kind in kinds
            if (door := _open_door(kind, terms, hello.get("boot_id"))) is not None
        }
        _say(stream, offers=[door.offer for door in doors.values()])
        while True:
            door = doors.get(_hear(stream, "use", str))
            connection = None if door is None else door.accept(stream, terms)
            _say(stream, opened=connection is not None)
            if connection is not None:
                return connection


@final
class _StreamDoor:
    """The stream itself, which is open."""

    offer: Mapping[str, Any] = {"kind": "grpc"}

    def accept(self, stream: FrameStream, terms: Terms) -> Connection | None:
        return StreamConnection(stream)

    def close(self) -> None:
        """Nothing to do."""


@final
class _SocketDoor:
    """A listening socket for one connection."""

    def __init__(self, kind: str, listening: socket.socket, address: str | int) -> None:
        self._kind = kind
        self._listening = listening
        self._secret = secrets.token_hex()
        self.offer: Mapping[str, Any] = {"kind": kind, "address": address, "secret": self._secret}

    def accept(self, stream: FrameStream, terms: Terms) -> Connection | None:
        """Whoever shows the secret within `UPGRADE_S`; others are turned away."""
        end = time.monotonic() + UPGRADE_S
        while (left := end - time.monotonic()) > 0:
            try:
                self._listening.settimeout(left)
                knocking, _ = self._listening.accept()
            except OSError:
                return None
            if (sock := self._admit(knocking, terms.security, left)) is not None:
                return SocketConnection(self._kind, sock, stream, terms.allocate)
        return None

    def close(self) -> None:
        self._listening.close()

    def _admit(self, knocking: socket.socket, security: Security, timeout_s: float) -> ByteStream | None:
        with ExitStack() as on_error:
            on_error.callback(knocking.close)
            try:
                knocking.settimeout(timeout_s)
                if self._kind == "tcp" and security.uses_tls:
                    knocking = server_context(security).wrap_socket(knocking, server_side=True)
                    on_error.callback(knocking.close)
                shown = knocking.recv(len(self._secret), 0 if security.uses_tls else socket.MSG_WAITALL)
                trusted = self._kind != "unix" or is_same_user(knocking)
            except OSError:
                return None
            if not trusted or not hmac.compare_digest(shown, self._secret.encode()):
                return None
            on_error.pop_all()
        return _as_stream(knocking)


def _open_door(kind: str, terms: Terms, peer_boot_id: object) -> _StreamDoor | _SocketDoor | None:
    """None where it cannot be opened, or the peer could not come in."""
    try:
        if kind == "unix":
            own = boot_id()
            return _open_unix() if own is not None and own == peer_boot_id else None
        return _open_tcp(terms.host) if kind == "tcp" else _StreamDoor()
    except OSError:
        return None


def _open_unix() -> _SocketDoor:
    name = f"flowrt-{secrets.token_hex(16)}"
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listening.bind("\0" + name)
    listening.listen()
    return _SocketDoor("unix", listening, name)


def _open_tcp(host: str) -> _SocketDoor:
    family = socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0][0]
    listening = socket.create_server((host, 0), family=family)
    return _SocketDoor("tcp", listening, listening.getsockname()[1])


# --- both


def _as_stream(connected: socket.socket) -> ByteStream:
    if connected.family != socket.AF_UNIX:
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return TlsStream(connected) if isinstance(connected, ssl.SSLSocket) else PlainStream(connected)


def _say(stream: FrameStream, **fields: Any) -> None:
    stream.send(Kind.HANDSHAKE, json.dumps(fields).encode())


def _hear(stream: FrameStream, name: str, kind: type[T]) -> T:
    return _field(_hear_all(stream), name, kind)


def _hear_all(stream: FrameStream) -> Any:
    frame = stream.receive()
    if frame is None:
        raise UnavailableError(f"connection to {stream.peer}: it ended in the handshake")
    if frame.kind != Kind.HANDSHAKE or len(frame.header) > MAX_MESSAGE:
        raise DataLossError(
            f"connection to {stream.peer}: expected a handshake; got a frame of kind {frame.kind}"
        )
    try:
        return json.loads(frame.header)
    except ValueError as error:
        raise DataLossError(
            f"connection to {stream.peer}: expected JSON in the handshake; {error}"
        ) from error


def _field(message: Any, name: str, kind: type[T]) -> T:
    value = message.get(name) if isinstance(message, dict) else None
    if not isinstance(value, kind):
        raise DataLossError(f"handshake: expected {kind.__name__} {name!r}; got {value!r:.100}")
    return value
