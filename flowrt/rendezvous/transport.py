"""`new_transport`: how the tasks of a cluster reach each other."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from typing import final

from flowrt.errors import InvalidArgumentError
from flowrt.rendezvous.channel.channel import Bytes, Connection, Listener, Receiver, Transport
from flowrt.rendezvous.channel.frame_stream import FrameStream
from flowrt.rendezvous.channel.framing import Allocate
from flowrt.rendezvous.channel.receive_memory import ReceiveMemory
from flowrt.rendezvous.channel.security import Security
from flowrt.rendezvous.grpc.grpc_channel import GrpcListener, dial
from flowrt.rendezvous.grpc.offers import CHECKSUMS, Terms
from flowrt.rendezvous.grpc.upgrade import KINDS, answer_handshake, request_handshake
from flowrt.rendezvous.messages.message_path import MessagePlace
from flowrt.rendezvous.mpi.mpi_channel import open_world
from flowrt.rendezvous.mpi.mpi_place import MpiPlace
from flowrt.rendezvous.ucx.ucx_worker import UcxPlace, open_worker

__all__ = ["Bytes", "Connection", "Listener", "Receiver", "Transport", "new_transport"]

HANDSHAKE_S = 10.0
"""Seconds that a listener allows for a handshake."""


def new_transport(
    security: Security | None = None, kind: str | None = None, allocate: Allocate | None = None
) -> Transport:
    """The transport that ``kind``, else the variable ``FLOWRT_TRANSPORT``, else "auto" names.

    Every kind listens and dials by gRPC. Then, before the first frame, both ends agree on a link for frames:

     - "grpc": gRPC itself;
     - "unix": a Unix socket, and shared memory for arrays of 64 KiB and more, between processes of one user
       on one host;
     - "tcp": a TCP socket, with TLS if ``security`` has it;
     - "mpi": MPI between ranks of one world, gRPC with others; needs the extra ``mpi``;
     - "ucx": UCX, gRPC with peers that do not use it; needs the extra ``ucx``;
     - "auto": the first of unix, tcp, grpc that succeeds within a second each.

    ``allocate(nbytes)`` allocates arrays that do not arrive in shared memory, aligned to 64 bytes; it is
    called in reader threads. `ReceiveMemory` is the default.

    Without TLS, arrays that travel between hosts over "tcp" or "grpc" have checksums, and come again if they
    arrive damaged (`flowrt.rendezvous.channel.checked_frames`). The variable ``FLOWRT_CHECKSUMS`` sets that
    "on" or "off" for all links of these kinds; "auto" is the default.

    Raises `InvalidArgumentError` for another kind or value of the variable, and for "mpi" and "ucx" with
    certificates: they do not encrypt. For these also the errors of `open_world` and `open_worker`.
    """
    chosen = kind or os.environ.get("FLOWRT_TRANSPORT") or "auto"
    if chosen not in KINDS:
        raise InvalidArgumentError(
            f"transport: expected {', '.join(KINDS)} as kind or FLOWRT_TRANSPORT; got {chosen!r}"
        )
    checksums = os.environ.get("FLOWRT_CHECKSUMS") or "auto"
    if checksums not in CHECKSUMS:
        raise InvalidArgumentError(
            f"transport: expected {', '.join(CHECKSUMS)} as FLOWRT_CHECKSUMS; got {checksums!r}"
        )
    kinds, security = KINDS[chosen], security or Security()
    if chosen in ("mpi", "ucx") and security.uses_tls:
        raise InvalidArgumentError(
            f"transport {chosen}: expected no certificates, since {chosen.upper()} does not encrypt; got "
            "some. Choose another FLOWRT_TRANSPORT, or remove them if the network is trusted"
        )
    new_place = _new_place(chosen)
    return _GrpcTransport(security, kinds, allocate or ReceiveMemory().allocate, new_place, checksums)


def _new_place(kind: str) -> Callable[[], MessagePlace] | None:
    """Makes places in the system of messages that ``kind`` names, if it names one."""
    match kind:
        case "mpi":
            return partial(MpiPlace, open_world())
        case "ucx":
            return partial(UcxPlace, open_worker())
        case _:
            return None


@final
class _GrpcTransport(Transport):
    def __init__(
        self,
        security: Security,
        kinds: tuple[str, ...],
        allocate: Allocate,
        new_place: Callable[[], MessagePlace] | None,
        checksums: str,
    ) -> None:
        self._security = security
        self._kinds = kinds
        self._allocate = allocate
        self._new_place = new_place
        self._checksums = checksums

    def listen(
        self, address: str, accept: Callable[[Connection], None], is_serving: Callable[[], bool] | None = None
    ) -> Listener:
        terms = self._terms(address)

        def accept_stream(stream: FrameStream) -> None:
            with stream.deadline(HANDSHAKE_S):
                connection = answer_handshake(stream, terms)
            connection.certificate_names = stream.certificate_names
            try:
                accept(connection)
            except BaseException:
                connection.abort()
                raise

        return GrpcListener(address, self._security, self._allocate, accept_stream, is_serving)

    def connect(self, address: str, timeout_s: float) -> Connection:
        terms = self._terms(address)
        stream = dial(address, self._security, self._allocate)
        try:
            with stream.deadline(timeout_s):
                return request_handshake(stream, terms)
        except BaseException:
            stream.cancel()
            raise

    def listens_like(self, other: Transport) -> bool:
        if not isinstance(other, _GrpcTransport):
            return False
        return (self._security, self._kinds) == (other._security, other._kinds)

    def _terms(self, address: str) -> Terms:
        host = address.rpartition(":")[0].strip("[]")
        return Terms(host, self._kinds, self._security, self._allocate, self._new_place, self._checksums)
