"""gRPC: one bidirectional stream of bytes between two tasks. The one module of rendezvous that imports it.

The stream is the method ``/flowrt.Transport/Channel``; its messages are plain bytes and both ends of it are a
`FrameStream`. A stream costs the server one thread, in which gRPC asks for the next message to write, however
many receives wait on it. Threads are made for each stream: a bounded pool of them is a deadlock in waiting.
"""

from __future__ import annotations

import errno
import functools
import hmac
import itertools
import logging
import os
import re
import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future
from typing import Any, final
from urllib.parse import unquote

from flowrt.errors import (
    AlreadyExistsError,
    OpError,
    UnauthenticatedError,
    UnavailableError,
)
from flowrt.rendezvous.channel import Listener
from flowrt.rendezvous.frame_stream import MESSAGE_BYTES, FrameStream
from flowrt.rendezvous.framing import Allocate
from flowrt.rendezvous.grpc_errors import as_op_error, hangs_up
from flowrt.rendezvous.lifeline import CLOSE_S
from flowrt.rendezvous.security import Security
from flowrt.rendezvous.tls import server_context, speaks_tls

LOGGER = logging.getLogger(__name__)

METHOD = "/flowrt.Transport/Channel"
MAX_STREAMS = 4096
"""That a listener holds at once; those beyond are refused."""
PROBE_S = 1.0
"""How long an end that hung up is asked whether it speaks TLS."""

_OPTIONS = (
    ("grpc.max_send_message_length", 2 * MESSAGE_BYTES),
    ("grpc.max_receive_message_length", 2 * MESSAGE_BYTES),
    ("grpc.http2.max_frame_size", MESSAGE_BYTES),  # 16 KiB by default: 256 headers to parse for a message
    # A peer that answers no ping for 5 s is lost: at most 15 s after its host or network died. One that is
    # killed is noticed at once, since the kernel closes its sockets.
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 5_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
)
_SERVER_OPTIONS = (
    *_OPTIONS,
    ("grpc.so_reuseport", 0),  # a taken port is an error, not two servers that share its connections
    ("grpc.http2.min_ping_interval_without_data_ms", 5_000),  # else pings each 10 s count as an attack
)
_CLIENT_OPTIONS = (
    *_OPTIONS,
    ("grpc.use_local_subchannel_pool", 1),  # nobody waits out the back-off of a connection that failed before
    ("grpc.enable_http_proxy", 0),
    ("grpc.enable_retries", 0),
)


def load_grpc() -> Any:
    """The module, imported by the first who asks: it takes 0.1 s."""
    # It would write a line to stderr whenever a peer stops; what goes wrong comes as an error anyway.
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    import grpc

    return grpc


# --- the end that connects


def dial(address: str, security: Security, allocate: Allocate) -> FrameStream:
    """A stream to the listener at ``address``. Whether there is one shows at the first `receive`."""
    grpc = load_grpc()
    if security.uses_tls:
        credentials = grpc.ssl_channel_credentials(security.ca, security.key, security.cert)
        channel = grpc.secure_channel(address, credentials, _CLIENT_OPTIONS)
    else:
        channel = grpc.insecure_channel(address, _CLIENT_OPTIONS)
    stream = FrameStream(address, allocate)
    stream.on_end(lambda: _close(channel))
    call = channel.stream_stream(METHOD)(stream.messages(), metadata=_authorization(security))
    wants_tls = functools.partial(_wants_tls, address, security)
    stream.attach(_translate_errors(call, address, wants_tls), call.cancel)

    def end() -> None:
        """On a thread of its own: gRPC's, which calls, is waited for where the channel is closed."""
        threading.Thread(target=stream.end, name=f"end {address}", daemon=True).start()

    if not call.add_callback(end):
        stream.end()
    return stream


def _close(channel: Any) -> None:
    """In a thread of its own: a stream's end is told in gRPC's thread, for which `channel.close` waits."""
    threading.Thread(target=channel.close, name="flowrt grpc close", daemon=True).start()


def _authorization(security: Security) -> list[tuple[str, str]]:
    return [("authorization", f"Bearer {security.token}")] if security.token else []


def _translate_errors(
    messages: Iterator[bytes], peer: str, wants_tls: Callable[[], bool] = lambda: False
) -> Iterator[bytes]:
    """Raises `UnauthenticatedError`, `FailedPreconditionError`, else `UnavailableError` with the reason.
    ``wants_tls()``: whether an end that only hangs up wants TLS from this one, which has none.
    """
    rpc_error = load_grpc().RpcError
    try:
        yield from messages
    except rpc_error as error:
        where = f"connection to {peer}"
        if hangs_up(error) and wants_tls():
            raise UnauthenticatedError(
                f"{where}: auth refused: it wants TLS, and this end has none. Set FLOWRT_TLS_CA, _CERT, _KEY"
            ) from None
        raise as_op_error(error, where) from None


def _wants_tls(address: str, security: Security) -> bool:
    return not security.uses_tls and speaks_tls(address, PROBE_S)


# --- the end that listens


@final
class GrpcListener(Listener):
    """Streams that others dial. ``accept`` is called with each, in a thread of its own; what it raises is
    told to the other end.

    Raises `AlreadyExistsError` where the port is taken, `UnavailableError` where the address cannot be bound,
    `InvalidArgumentError` for certificates that are none.
    """

    def __init__(
        self, address: str, security: Security, allocate: Allocate, accept: Callable[[FrameStream], None]
    ) -> None:
        if not re.fullmatch(r".+:\d+", address):
            raise UnavailableError(f"listen {address}: expected host:port; port 0 takes a free one")
        grpc = load_grpc()
        self._server = grpc.server(
            _ThreadPerCall(), options=_SERVER_OPTIONS, maximum_concurrent_rpcs=MAX_STREAMS
        )
        self._server.add_generic_rpc_handlers((_Door(security.token, allocate, accept),))
        try:
            port = self._bind(grpc, address, security)
        except RuntimeError:
            raise _why_not_bound(address) from None
        self.address = f"{address.rpartition(':')[0]}:{port}"
        self._server.start()

    def _bind(self, grpc: Any, address: str, security: Security) -> int:
        if address.startswith("localhost:"):  # gRPC is content with ::1 where 127.0.0.1 is taken
            address = address.replace("localhost:", "127.0.0.1:", 1)
        if not security.uses_tls:
            return int(self._server.add_insecure_port(address))
        server_context(security)  # says what is wrong with a certificate, where gRPC only says no
        credentials = grpc.ssl_server_credentials(
            [(security.key, security.cert)], security.ca, require_client_auth=security.ca is not None
        )
        return int(self._server.add_secure_port(address, credentials))

    def close(self) -> None:
        self._server.stop(None).wait(CLOSE_S)


def _why_not_bound(address: str) -> OpError:
    """gRPC says only that it could not: try it again to know."""
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
                f"listen {address}: expected a free port; another process has it. Port 0 takes a free one"
            )
        return UnavailableError(f"listen {address}: expected an address of this host; {error}")
    return UnavailableError(f"listen {address}: gRPC could not bind it, and did not say why")


@final
class _Door:
    """What gRPC asks for the handler of a call: who has not the token gets none of flowrt's."""

    def __init__(self, token: str | None, allocate: Allocate, accept: Callable[[FrameStream], None]) -> None:
        self._token = token
        self._allocate = allocate
        self._accept = accept
        self._refusals = itertools.count(1)

    def service(self, details: Any) -> Any:
        if details.method != METHOD:
            return None
        handler = self._open if self._admits(dict(details.invocation_metadata)) else self._refuse
        return load_grpc().stream_stream_rpc_method_handler(handler)

    def _admits(self, metadata: dict[str, Any]) -> bool:
        if self._token is None:
            return True
        given = str(metadata.get("authorization", ""))
        return hmac.compare_digest(given.encode(), f"Bearer {self._token}".encode())

    def _open(self, messages: Iterator[bytes], context: Any) -> Iterator[bytes]:
        peer = unquote(context.peer()).partition(":")[2]  # without "ipv4:"
        stream = FrameStream(peer, self._allocate)
        names = context.auth_context().get("x509_subject_alternative_name", ())
        stream.certificate_names = tuple(name.decode("utf-8", "replace") for name in names)
        stream.attach(_translate_errors(messages, peer), context.cancel)
        if not context.add_callback(stream.end):
            stream.end()
        threading.Thread(
            target=self._handle, args=(stream, context), name=f"accept {peer}", daemon=True
        ).start()
        return stream.messages()

    def _handle(self, stream: FrameStream, context: Any) -> None:
        try:
            self._accept(stream)
        except Exception as error:  # noqa: BLE001 (told to who dialled)
            context.set_code(load_grpc().StatusCode.FAILED_PRECONDITION)
            context.set_details(str(error))
            stream.finish()

    def _refuse(self, _messages: Iterator[bytes], context: Any) -> None:
        count = next(self._refusals)
        if not count & (count - 1):  # the 1st, 2nd, 4th, 8th: who guesses does not fill the log
            LOGGER.warning("refused %s: no token, or another (attempt %d)", unquote(context.peer()), count)
        context.abort(
            load_grpc().StatusCode.UNAUTHENTICATED, "expected the cluster's token; got none or another"
        )


@final
class _ThreadPerCall(Executor):
    """gRPC's pool, without a bound and without threads that the interpreter waits for at its exit."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()

        def run() -> None:
            try:
                future.set_result(fn(*args, **kwargs))
            except BaseException as error:  # noqa: BLE001 (gRPC reads it from the future)
                future.set_exception(error)

        threading.Thread(target=run, name="flowrt grpc stream", daemon=True).start()
        return future
