"""Transport negotiation: the links that a listening end offers to a peer that dialled by gRPC.

Each has an offer, which is sent to the peer over the gRPC stream, and accepts a peer that proves to have
received it.
"""

from __future__ import annotations

import hmac
import secrets
import socket
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, TypeAlias, final

from flowrt.rendezvous.channel.byte_stream import ByteStream, as_stream
from flowrt.rendezvous.channel.channel import Connection
from flowrt.rendezvous.channel.frame_stream import FrameStream
from flowrt.rendezvous.channel.framing import Allocate
from flowrt.rendezvous.channel.host_identity import is_same_user
from flowrt.rendezvous.channel.security import Security
from flowrt.rendezvous.channel.stream_connection import StreamConnection
from flowrt.rendezvous.channel.tls import server_context
from flowrt.rendezvous.local_links.socket_channel import SocketConnection
from flowrt.rendezvous.messages.message_connection import MessageConnection
from flowrt.rendezvous.messages.message_link import MessageLink
from flowrt.rendezvous.messages.message_path import MessagePath, MessagePlace, hears

CHECKSUMS = ("auto", "on", "off")
"""Whether arrays have checksums: "auto", between hosts and without TLS, which has its own."""
UPGRADE_S = 1.0
"""Seconds that a peer has to connect to an endpoint; then the next kind is tried."""


@dataclass(frozen=True)
class Terms:
    """One end's parameters of the handshake. ``host`` is the dialled or listening one; ``new_place`` is set
    if one of the ``kinds`` passes messages: "mpi" or "ucx"; ``checksums`` is one of `CHECKSUMS`.
    """

    host: str
    kinds: tuple[str, ...]
    security: Security
    allocate: Allocate
    new_place: Callable[[], MessagePlace] | None
    checksums: str


@final
class StreamEndpoint:
    """The stream itself, which is open."""

    offer: Mapping[str, Any] = {"kind": "grpc"}

    def accept(self, stream: FrameStream, terms: Terms, is_checked: bool) -> Connection | None:
        return StreamConnection(stream, is_checked)

    def close(self) -> None:
        """Nothing to do."""


@final
class SocketEndpoint:
    """A listening socket for one connection."""

    def __init__(self, kind: str, listening: socket.socket, address: str | int) -> None:
        self._kind = kind
        self._listening = listening
        self._secret = secrets.token_hex()
        self.offer: Mapping[str, Any] = {"kind": kind, "address": address, "secret": self._secret}

    def accept(self, stream: FrameStream, terms: Terms, is_checked: bool) -> Connection | None:
        """Accept the peer that shows the secret within `UPGRADE_S`; reject others."""
        end = time.monotonic() + UPGRADE_S
        while (left := end - time.monotonic()) > 0:
            try:
                self._listening.settimeout(left)
                knocking, _ = self._listening.accept()
            except OSError:
                return None
            if (sock := self._admit(knocking, terms.security, left)) is not None:
                is_tcp = self._kind == "tcp"
                return SocketConnection(self._kind, sock, stream, terms.allocate, is_checked and is_tcp)
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
        return as_stream(knocking)


@final
class MessageEndpoint:
    """A place among those that pass messages, and the ``path`` from it, for one connection."""

    def __init__(self, kind: str, place: MessagePlace, path: MessagePath) -> None:
        self._kind = kind
        self._path: MessagePath | None = path
        self._secret = secrets.token_hex()
        self.offer: Mapping[str, Any] = {"kind": kind, "place": place.address, "secret": self._secret}

    def accept(self, stream: FrameStream, terms: Terms, is_checked: bool) -> Connection | None:
        """Accept the peer if the secret arrives within `UPGRADE_S`."""
        path = self._path
        try:
            if path is None or not hears(path, self._secret.encode(), UPGRADE_S):
                return None
        except OSError:
            return None
        self._path = None
        return MessageConnection(self._kind, MessageLink(path, terms.allocate), stream)

    def close(self) -> None:
        if self._path is not None:
            self._path.close()


Endpoint: TypeAlias = StreamEndpoint | SocketEndpoint | MessageEndpoint


def open_endpoint(kind: str, terms: Terms, is_near: bool, place: object) -> Endpoint | None:
    """The endpoint; None if it cannot be opened or the peer could not use it. ``is_near``: the peer seems to
    be on this host; ``place``: the address of the peer's place, if it has one.
    """
    try:
        match kind:
            case "unix":
                return _open_unix() if is_near else None
            case "tcp":
                return _open_tcp(terms.host)
            case "mpi" | "ucx":
                return None if terms.new_place is None else _open_place(kind, terms.new_place(), place)
            case _:
                return StreamEndpoint()
    except OSError:
        return None


def _open_place(kind: str, own: MessagePlace, said: object) -> MessageEndpoint:
    return MessageEndpoint(kind, own, own.path_to(said))


def _open_unix() -> SocketEndpoint:
    name = f"flowrt-{secrets.token_hex(16)}"
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listening.bind("\0" + name)
    listening.listen()
    return SocketEndpoint("unix", listening, name)


def _open_tcp(host: str) -> SocketEndpoint:
    family = socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0][0]
    listening = socket.create_server((host, 0), family=family)
    return SocketEndpoint("tcp", listening, listening.getsockname()[1])
