"""The handshake of a connection: both ends agree, over the gRPC stream, on the link for frames.

    client                                        server
    {kinds, boot_id, place: {rank, tag, ...},
     checksums} ->
                                             <-   {offers: [{kind, address, secret}, ...], is_checked}
    opens the socket of an offer, {use: kind} ->  accepts it, if it shows the secret
                                             <-   {opened: true}, or {opened: false}: the next offer
                                                  "grpc" is an offer without a socket

Each handshake has a new secret, sent over the stream, where token and TLS were checked: so a socket is as
trusted as the stream. A Unix socket has a random abstract name, not a file that could be left behind. For
MPI and UCX, the offer is a place among those that pass messages, to which the secret is sent.
"""

from __future__ import annotations

import json
import socket
from collections.abc import Callable, Mapping
from contextlib import ExitStack, closing
from typing import Any, TypeVar, cast

from flowrt.errors import DataLossError, UnavailableError
from flowrt.rendezvous.channel.byte_stream import ByteStream, as_stream
from flowrt.rendezvous.channel.channel import Connection
from flowrt.rendezvous.channel.frame_stream import FrameStream
from flowrt.rendezvous.channel.framing import Kind
from flowrt.rendezvous.channel.host_identity import boot_id, is_same_user
from flowrt.rendezvous.channel.stream_connection import StreamConnection
from flowrt.rendezvous.channel.tls import client_context
from flowrt.rendezvous.grpc.offers import UPGRADE_S, Terms, open_endpoint
from flowrt.rendezvous.local_links.socket_channel import SocketConnection
from flowrt.rendezvous.messages.message_connection import MessageConnection
from flowrt.rendezvous.messages.message_link import MessageLink
from flowrt.rendezvous.messages.message_path import MessagePlace, knock

T = TypeVar("T")

KINDS: Mapping[str, tuple[str, ...]] = {
    "auto": ("unix", "tcp", "grpc"),
    "grpc": ("grpc",),
    "unix": ("unix",),
    "tcp": ("tcp",),
    "mpi": ("mpi", "grpc"),  # gRPC for peers outside the world
    "ucx": ("ucx", "grpc"),  # gRPC for peers without it
}
"""Links for frames, best first, by the names that a user may choose."""

MAX_MESSAGE = 64 << 10
"""Bytes of a message of the handshake; a real one has some hundred."""


# --- client


def request_handshake(stream: FrameStream, terms: Terms) -> Connection:
    """The connection, at the client.

    Raises `UnavailableError` if no kind works, with the reason of each, and the errors of
    `FrameStream.receive`.
    """
    place = None if terms.new_place is None else terms.new_place()
    address = None if place is None else place.address
    _say(stream, kinds=terms.kinds, boot_id=boot_id(), place=address, checksums=terms.checksums)
    reasons = []
    answer = _hear_all(stream)
    is_checked = _field(answer, "is_checked", bool)
    for offer in _field(answer, "offers", list):
        kind = _field(offer, "kind", str)
        try:
            if kind == "grpc":
                _use(stream, kind, lambda: None)
                return StreamConnection(stream, is_checked)
            if place is not None and kind in ("mpi", "ucx"):
                return MessageConnection(kind, _knock_at_place(stream, terms, kind, place, offer), stream)
            sock = _knock(stream, terms, kind, offer)
            return SocketConnection(kind, sock, stream, terms.allocate, is_checked and kind == "tcp")
        except OSError as error:
            reasons.append(f"{kind}: {error}")
    why = "; ".join(reasons) or "the listener offers none of them to this process"
    raise UnavailableError(f"connection to {stream.peer}: expected {' or '.join(terms.kinds)}; {why}")


def _use(stream: FrameStream, kind: str, show: Callable[[], T]) -> T:
    """Request ``kind``, call ``show`` for it, and wait for the acceptance. Raises `OSError`."""
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
        return as_stream(_use(stream, kind, show))
    except BaseException:
        connected.close()
        raise


def _dial_unix(name: str) -> socket.socket:
    connected = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        connected.settimeout(UPGRADE_S)
        connected.connect("\0" + name)
        if not is_same_user(connected):
            raise OSError("its name belongs to another user")
    except OSError:
        connected.close()
        raise
    return connected


def _dial_tcp(host: str, port: int) -> socket.socket:
    return socket.create_connection((host, port), UPGRADE_S)


def _knock_at_place(
    stream: FrameStream, terms: Terms, kind: str, place: MessagePlace, offer: Any
) -> MessageLink:
    """Raises `OSError` where there is no path to the offered place, or its system fails."""
    path = place.path_to(offer.get("place"))
    secret = _field(offer, "secret", str).encode()
    try:
        _use(stream, kind, lambda: knock(path, secret, UPGRADE_S))
    except BaseException:
        path.close()
        raise
    return MessageLink(path, terms.allocate)


# --- server


def answer_handshake(stream: FrameStream, terms: Terms) -> Connection:
    """The connection, at the end that listens. Raises as `request_handshake`."""
    hello = _hear_all(stream)
    kinds = [kind for kind in terms.kinds if kind in _field(hello, "kinds", list)]
    own = boot_id()
    is_near = own is not None and own == hello.get("boot_id")
    is_checked = _wants_checksums(terms, _field(hello, "checksums", str), is_near)
    with ExitStack() as opened:
        offers_by_kind = {
            kind: opened.enter_context(closing(offered))
            for kind in kinds
            if (offered := open_endpoint(kind, terms, is_near, hello.get("place"))) is not None
        }
        offers = [offered.offer for offered in offers_by_kind.values()]
        _say(stream, offers=offers, is_checked=is_checked)
        while True:
            offered = offers_by_kind.get(_hear(stream, "use", str))
            connection = None if offered is None else offered.accept(stream, terms, is_checked)
            _say(stream, opened=connection is not None)
            if connection is not None:
                return connection


def _wants_checksums(terms: Terms, asked: str, is_near: bool) -> bool:
    """Whether arrays get checksums: where one end has them on, else where none has them off, between hosts
    and without TLS.
    """
    both = (terms.checksums, asked)
    return "on" in both or ("off" not in both and not is_near and not terms.security.uses_tls)


# --- both


def _say(stream: FrameStream, **fields: Any) -> None:
    stream.send(Kind.HANDSHAKE, json.dumps(fields).encode())


def _hear(stream: FrameStream, name: str, kind: type[T]) -> T:
    return _field(_hear_all(stream), name, kind)


def _hear_all(stream: FrameStream) -> Any:
    frame = stream.receive()
    if frame is None:
        raise UnavailableError(f"connection to {stream.peer}: closed during the handshake")
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
