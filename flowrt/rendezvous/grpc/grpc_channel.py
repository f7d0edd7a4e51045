"""gRPC between two tasks: listening, dialling, and access control.

A stream is the method ``/flowrt.Transport/Channel``; its messages are plain bytes, and both ends are a
`FrameStream` on a call of `flowrt.rendezvous.grpc.grpc_call`.
"""

from __future__ import annotations

import errno
import functools
import hmac
import itertools
import logging
import re
import socket
import threading
from collections.abc import Callable
from typing import Any, final
from urllib.parse import unquote

from flowrt.errors import AlreadyExistsError, OpError, UnauthenticatedError, UnavailableError
from flowrt.rendezvous.channel.channel import Listener
from flowrt.rendezvous.channel.frame_stream import MESSAGE_BYTES, FrameStream
from flowrt.rendezvous.channel.framing import Allocate
from flowrt.rendezvous.channel.lifeline import CLOSE_S, join
from flowrt.rendezvous.channel.rare_log import RareLog
from flowrt.rendezvous.channel.security import Security
from flowrt.rendezvous.channel.tls import server_context, speaks_tls
from flowrt.rendezvous.grpc.grpc_call import AcceptedCall, DialledCall, Status, load_core
from flowrt.rendezvous.grpc.grpc_errors import as_op_error, hangs_up
from flowrt.rendezvous.grpc.health import CHECK, MAX_CALLS, WATCH, HealthCall, IsServing

LOGGER = logging.getLogger(__name__)

METHOD = "/flowrt.Transport/Channel"
MAX_STREAMS = 4096
"""Maximum number of streams of a listener; further ones are refused."""
TOLD_S = 1.0
"""Time for a refusal to reach the dialling end, before the closing listener ends every call."""
PROBE_S = 1.0
"""Timeout for probing whether an end that hung up speaks TLS."""

_OPTIONS = (
    ("grpc.max_send_message_length", 2 * MESSAGE_BYTES),
    ("grpc.max_receive_message_length", 2 * MESSAGE_BYTES),
    ("grpc.http2.max_frame_size", MESSAGE_BYTES),  # 16 KiB by default: 64 headers to parse for a message
    ("grpc.http2.bdp_probe", 0),
    ("grpc.http2.lookahead_bytes", 4 * MESSAGE_BYTES),  # that are on the way
    # A peer that answers no ping for 5 s is lost: at most 15 s after its host or network died. A killed peer
    # is detected at once, since the kernel closes its sockets.
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 5_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
)
_SERVER_OPTIONS = (
    *_OPTIONS,
    ("grpc.so_reuseport", 0),  # a taken port is an error, not two servers that share its connections
    ("grpc.server_handshake_timeout_ms", 10_000),  # a connection that says nothing; by default 2 min
    ("grpc.max_connection_idle_ms", 30_000),  # one without a stream; by default for ever
    ("grpc.http2.min_ping_interval_without_data_ms", 5_000),  # else pings each 10 s count as an attack
)
_CLIENT_OPTIONS = (
    *_OPTIONS,
    ("grpc.use_local_subchannel_pool", 1),  # do not wait for the back-off of a connection that failed before
    ("grpc.enable_http_proxy", 0),
    ("grpc.enable_retries", 0),
)

_CALL, _SHUTDOWN = "call", "shutdown"


# --- the end that connects


def dial(address: str, security: Security, allocate: Allocate) -> FrameStream:
    """A stream to the listener at ``address``. Whether there is one shows at the first `receive`."""
    credentials = None
    if security.uses_tls:
        credentials = load_core().SSLChannelCredentials(security.ca, security.key, security.cert)
    metadata = (("authorization", f"Bearer {security.token}"),) if security.token else ()
    stream = FrameStream(address, allocate)
    explain = functools.partial(_explain, address, security)
    DialledCall(stream, address, _CLIENT_OPTIONS, credentials, METHOD, metadata, explain)
    return stream


def _explain(address: str, security: Security, status: Status) -> OpError:
    """`UnauthenticatedError`, `FailedPreconditionError`, else `UnavailableError` with the reason."""
    where = f"connection to {address}"
    if hangs_up(status) and not security.uses_tls and speaks_tls(address, PROBE_S):
        return UnauthenticatedError(
            f"{where}: auth refused: it requires TLS, and this end has none. Set FLOWRT_TLS_CA, _CERT, _KEY"
        )
    return as_op_error(status, where)


# --- the end that listens


@final
class GrpcListener(Listener):
    """Accepts streams. ``accept`` is called with each, in a separate thread; its errors are sent to the peer.
    With ``is_serving``, calls for its health are answered too.

    Raises `AlreadyExistsError` if the port is taken, `UnavailableError` if the address cannot be bound,
    `InvalidArgumentError` for invalid certificates.
    """

    def __init__(
        self,
        address: str,
        security: Security,
        allocate: Allocate,
        accept: Callable[[FrameStream], None],
        is_serving: IsServing | None = None,
    ) -> None:
        if not re.fullmatch(r".+:\d+", address):
            raise UnavailableError(f"listen {address}: expected host:port; port 0 selects a free one")
        self._core = load_core()
        self._token, self._allocate, self._accept = security.token, allocate, accept
        self._refusals = itertools.count(1)
        self._broken = RareLog(LOGGER)
        self._places = threading.BoundedSemaphore(MAX_STREAMS)
        self._is_serving, self._health_places = is_serving, threading.BoundedSemaphore(MAX_CALLS)
        self._server = self._core.Server(_SERVER_OPTIONS, False)
        self._asked = self._core.CompletionQueue()
        self._server.register_completion_queue(self._asked)
        port = self._bind(address, security)
        self.address = f"{address.rpartition(':')[0]}:{port}"
        self._server.start()
        self._lock = threading.Lock()
        self._is_closed = self._is_destroyed = False
        self._accepting: set[threading.Thread] = set()
        self._thread = threading.Thread(target=self._serve, name=f"listen {self.address}", daemon=True)
        self._thread.start()

    def _bind(self, address: str, security: Security) -> int:
        asked = address
        if address.startswith("localhost:"):  # gRPC is content with ::1 where 127.0.0.1 is taken
            asked = address.replace("localhost:", "127.0.0.1:", 1)
        if not security.uses_tls:
            port = self._server.add_http2_port(asked.encode())
        else:
            server_context(security)  # explains an invalid certificate, where gRPC only fails
            pairs = (self._core.SslPemKeyCertPair(security.key, security.cert),)
            credentials = self._core.server_credentials_ssl(security.ca, pairs, security.ca is not None)
            port = self._server.add_http2_port(asked.encode(), credentials)
        if not port:
            raise _why_not_bound(address)
        return int(port)

    def close(self) -> None:
        with self._lock:
            was_closed, self._is_closed = self._is_closed, True
            if not was_closed:
                self._server.shutdown(self._asked, _SHUTDOWN)
            accepting = list(self._accepting)
        for thread in accepting:
            join(thread, TOLD_S)
        with self._lock:
            if not self._is_destroyed:
                self._server.cancel_all_calls()
        join(self._thread, CLOSE_S)

    # --- its thread

    def _serve(self) -> None:
        events = self._next_call()
        while (event := self._asked.poll()).tag is not _SHUTDOWN:
            if event.tag is _CALL and event.success:
                self._take(event, events)
                events = self._next_call()
        self._asked.shutdown()
        with self._lock:  # `close` has done with it
            self._server.destroy()
            self._is_destroyed = True

    def _next_call(self) -> Any:
        """Ask for one; the completion queue that it will have."""
        events = self._core.CompletionQueue()
        with self._lock:
            if not self._is_closed:
                self._server.request_call(events, self._asked, _CALL)
        return events

    def _take(self, event: Any, events: Any) -> None:
        peer = unquote(event.call.peer().decode()).partition(":")[2]  # without "ipv4:"
        method = event.call_details.method.decode("utf-8", "replace")
        refusal = self._refusal(event, method, peer)
        if refusal is None and self._is_serving is not None and method != METHOD:
            HealthCall(method, event, events, self._is_serving, self._health_places.release)
            return
        stream = FrameStream(peer, self._allocate)
        names = (self._core.auth_context(event.call) or {}).get(b"x509_subject_alternative_name", ())
        stream.certificate_names = tuple(name.decode("utf-8", "replace") for name in names)
        call = AcceptedCall(stream, event, events)
        if refusal is not None:
            call.refuse(refusal)
            return
        stream.on_end(self._places.release)
        name = f"accept {peer}"
        thread = threading.Thread(target=self._handle, args=(stream, call), name=name, daemon=True)
        with self._lock:
            self._accepting.add(thread)
            thread.start()

    def _refusal(self, event: Any, method: str, peer: str) -> Status | None:
        """Reason to refuse the call. Without one it has a place, to be released at its end."""
        is_health = self._is_serving is not None and method in (CHECK, WATCH)
        if method != METHOD and not is_health:
            return Status("UNIMPLEMENTED", "expected a method that flowrt has")
        if not self._admits(dict(event.invocation_metadata)):
            count = next(self._refusals)
            if not count & (count - 1):  # the 1st, 2nd, 4th, 8th: guessing attempts do not fill the log
                LOGGER.warning("rejected %s: missing or wrong token (attempt %d)", peer, count)
            return Status("UNAUTHENTICATED", "expected the cluster's token; got none or a wrong one")
        places, most = (self._health_places, MAX_CALLS) if is_health else (self._places, MAX_STREAMS)
        if not places.acquire(blocking=False):
            return Status("RESOURCE_EXHAUSTED", f"expected at most {most} streams at once")
        return None

    def _admits(self, metadata: dict[str, Any]) -> bool:
        if self._token is None:
            return True
        given = str(metadata.get("authorization", ""))
        return hmac.compare_digest(given.encode(), f"Bearer {self._token}".encode())

    def _handle(self, stream: FrameStream, call: AcceptedCall) -> None:
        try:
            self._accept(stream)
        except Exception as error:  # noqa: BLE001 (raised in the dialling thread)
            self._broken.warn("refused %s: %s", stream.peer, error)
            call.refuse(Status("FAILED_PRECONDITION", str(error)))
            call.join(TOLD_S)
        finally:
            with self._lock:
                self._accepting.discard(threading.current_thread())


def _why_not_bound(address: str) -> OpError:
    """The reason, found by another attempt to bind: gRPC reports only a failure."""
    host, _, port = address.rpartition(":")
    try:
        family, kind, protocol, _, place = socket.getaddrinfo(
            host.strip("[]"), int(port), type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.bind(place)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            return AlreadyExistsError(
                f"listen {address}: expected a free port; it is in use. Is this task already running?"
            )
        return UnavailableError(f"listen {address}: expected an address of this host; {error}")
    return UnavailableError(f"listen {address}: gRPC could not bind it, without a reason")
