"""TLS for a socket, with the same certificates as gRPC's."""

from __future__ import annotations

import socket
import ssl

from flowrt.errors import InvalidArgumentError
from flowrt.rendezvous.channel.security import Security, load_certificate


def server_context(security: Security) -> ssl.SSLContext:
    """A context that presents the certificate of ``security``, and with a CA requests one from the other end.

    Raises `InvalidArgumentError` for invalid PEM texts, and without a certificate to present.
    """
    if security.cert is None:
        raise InvalidArgumentError("TLS: expected a certificate and its key to listen with; got only a CA")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.num_tickets = 0  # no session is taken up again
    _load(context, security)
    if security.ca is not None:
        context.verify_mode = ssl.CERT_REQUIRED
    return context


def client_context(security: Security) -> ssl.SSLContext:
    """A context that checks the listener's certificate and that it names the dialled host.

    Raises `InvalidArgumentError` for invalid PEM texts.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    _load(context, security)
    return context


def speaks_tls(address: str, timeout_s: float) -> bool:
    """Whether the listener at ``address``, a ``host:port``, answers a TLS greeting, even by an alert. Its
    identity is not checked.
    """
    host, _, port = address.rpartition(":")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    try:
        with socket.create_connection((host.strip("[]"), int(port)), timeout_s) as plain:
            context.wrap_socket(plain).close()
    except ssl.SSLError as error:
        return "ALERT" in (error.reason or "")
    except OSError:
        return False
    return True


def _load(context: ssl.SSLContext, security: Security) -> None:
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        if security.ca is not None:
            context.load_verify_locations(cadata=security.ca.decode("ascii"))
        if security.cert is not None:
            load_certificate(context, security.cert, security.key or b"")
    except (ssl.SSLError, ValueError) as error:
        raise InvalidArgumentError(
            f"TLS: expected PEM of a CA, a certificate and its key; {error}"
        ) from error
