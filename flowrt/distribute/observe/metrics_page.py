"""`MetricsPage`: ``GET /metrics`` of one task, for Prometheus.

It admits the clients that the task admits: with certificates it speaks TLS and asks for one of the same
authority, with a token it wants ``Authorization: Bearer``. One request a connection, a few connections at
once, and a deadline for each: strangers can make it busy, but not the task.

The request is read here, since of HTTP only its first lines are needed: importing `http.server` takes 70 ms.
"""

from __future__ import annotations

import errno
import hmac
import logging
import socket
import ssl
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import final

from flowrt.distribute.observe.exposition import CONTENT_TYPE
from flowrt.errors import AlreadyExistsError, UnavailableError
from flowrt.rendezvous.channel.rare_log import RareLog
from flowrt.rendezvous.channel.security import Security
from flowrt.rendezvous.channel.tls import server_context

LOGGER = logging.getLogger(__name__)

PATH = "/metrics"
MAX_REQUEST = 8192
"""Bytes of a request's lines."""
MAX_CONNECTIONS = 8
"""Limit at any time; further ones are closed."""
REQUEST_S = 5.0
"""Time for a connection, from its acceptance to the end of the answer."""
CLOSE_S = 1.0

_PLAIN = "text/plain; charset=utf-8"


@final
class MetricsPage:
    """Serves ``read()`` at ``host:port`` until `close`; port 0 selects a free one, which `address` has.

    Raises `AlreadyExistsError` if the port is taken, `UnavailableError` if the address cannot be bound,
    `InvalidArgumentError` for invalid certificates.
    """

    def __init__(self, address: str, security: Security, read: Callable[[], str]) -> None:
        self._read = read
        self._token = security.token
        self._context = server_context(security) if security.uses_tls else None
        self._refused = RareLog(LOGGER)
        self._lock = threading.Lock()
        self._open: dict[threading.Thread, socket.socket] = {}
        self._is_closed = False
        host = address.rpartition(":")[0]
        self._listening = _listen(address)
        self.address = f"{host}:{self._listening.getsockname()[1]}"
        self._thread = threading.Thread(target=self._accept, name=f"metrics {self.address}", daemon=True)
        self._thread.start()

    @property
    def url(self) -> str:
        return f"{'https' if self._context else 'http'}://{self.address}{PATH}"

    def close(self) -> None:
        """End it, with its connections and threads. Idempotent."""
        with self._lock:
            was_closed, self._is_closed = self._is_closed, True
            connections = [*self._open.items()]
        if was_closed:
            return
        with suppress(OSError):
            self._listening.shutdown(socket.SHUT_RDWR)  # wakes `accept`
        self._listening.close()
        for _, connection in connections:
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
        for thread in (self._thread, *(thread for thread, _ in connections)):
            if thread is not threading.current_thread():
                thread.join(CLOSE_S)

    # --- its threads

    def _accept(self) -> None:
        while True:
            try:
                connection, peer = self._listening.accept()
            except OSError as error:
                if self._is_closed or error.errno not in (errno.EMFILE, errno.ENFILE, errno.ECONNABORTED):
                    return
                time.sleep(0.1)  # no file descriptor is left, for now
                continue
            end = time.monotonic() + REQUEST_S
            thread = threading.Thread(
                target=self._serve, args=(connection, str(peer[0]), end), name="metrics", daemon=True
            )
            with self._lock:
                if self._is_closed or len(self._open) >= MAX_CONNECTIONS:
                    connection.close()
                    continue
                self._open[thread] = connection
                thread.start()

    def _serve(self, connection: socket.socket, peer: str, end: float) -> None:
        try:
            with connection:
                connection.settimeout(REQUEST_S)
                if self._context is None:
                    self._answer(connection, peer, end)
                else:
                    with self._context.wrap_socket(connection, server_side=True) as secured:
                        with self._lock:
                            self._open[threading.current_thread()] = secured
                        self._answer(secured, peer, end)
        except OSError as error:  # also ssl.SSLError: no certificate, or no TLS
            if isinstance(error, ssl.SSLError):
                self._refused.warn("metrics: refused %s: %s", peer, error)
        finally:
            with self._lock:
                self._open.pop(threading.current_thread(), None)

    def _answer(self, connection: socket.socket, peer: str, end: float) -> None:
        request = _read_request(connection, end)
        status, body, extra = self._response(request, peer)
        kind = CONTENT_TYPE if status == "200 OK" else _PLAIN
        content = body.encode()
        head = [f"HTTP/1.1 {status}", f"Content-Type: {kind}", f"Content-Length: {len(content)}"]
        head += [*extra, "Connection: close"]
        if request.startswith(b"HEAD "):
            content = b""
        connection.settimeout(max(0.01, end - time.monotonic()))
        connection.sendall("\r\n".join(head).encode() + b"\r\n\r\n" + content)

    def _response(self, request: bytes, peer: str) -> tuple[str, str, list[str]]:
        """(status, body, further header lines)."""
        first, *lines = request.decode("latin-1").split("\r\n")
        words = first.split(" ")
        if len(words) != 3 or not words[2].startswith("HTTP/1."):
            return "400 Bad Request", "expected a request of HTTP/1\n", []
        if not self._admits(lines):
            self._refused.warn("metrics: refused %s: missing or wrong token", peer)
            return "401 Unauthorized", "expected the cluster's token\n", ["WWW-Authenticate: Bearer"]
        if words[0] not in ("GET", "HEAD"):
            return "405 Method Not Allowed", "expected GET\n", ["Allow: GET, HEAD"]
        if words[1].partition("?")[0] != PATH:
            return "404 Not Found", f"expected {PATH}\n", []
        return "200 OK", self._read(), []

    def _admits(self, lines: list[str]) -> bool:
        if self._token is None:
            return True
        headers = {
            name.strip().lower(): value.strip() for name, _, value in (ln.partition(":") for ln in lines)
        }
        given = headers.get("authorization", "")
        return hmac.compare_digest(given.encode(), f"Bearer {self._token}".encode())


def _read_request(connection: socket.socket, end: float) -> bytes:
    """The lines up to the empty one; what came until the end, or the limit. Raises OSError."""
    request = b""
    while b"\r\n\r\n" not in request and len(request) < MAX_REQUEST:
        connection.settimeout(max(0.01, end - time.monotonic()))
        part = connection.recv(MAX_REQUEST)
        if not part:
            break
        request += part
    return request[:MAX_REQUEST].partition(b"\r\n\r\n")[0]


def _listen(address: str) -> socket.socket:
    host, _, port = address.rpartition(":")
    if host == "localhost":  # as the task's own port has it
        host = "127.0.0.1"
    try:
        family, kind, protocol, _, place = socket.getaddrinfo(
            host.strip("[]"), int(port), type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        listening = socket.socket(family, kind, protocol)
        try:
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listening.bind(place)
            listening.listen()
        except OSError:
            listening.close()
            raise
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise AlreadyExistsError(f"metrics {address}: expected a free port; it is in use") from error
        raise UnavailableError(f"metrics {address}: expected an address of this host; {error}") from error
    return listening
