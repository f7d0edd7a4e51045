"""gRPC's failures as typed errors. gRPC has few codes: most reasons are derived from its messages."""

from __future__ import annotations

from flowrt.errors import FailedPreconditionError, OpError, UnauthenticatedError, UnavailableError
from flowrt.rendezvous.channel.lifeline import DIED
from flowrt.rendezvous.grpc.grpc_call import Status


def as_op_error(status: Status, where: str) -> OpError:
    """`UnauthenticatedError` if one of the two ends always rejects the other, `FailedPreconditionError` if
    the other end gave a reason for its refusal, else `UnavailableError`.
    """
    code, details = status
    match code:
        case "UNAUTHENTICATED":
            return UnauthenticatedError(f"{where}: auth refused: {details}")
        case "FAILED_PRECONDITION":
            return FailedPreconditionError(f"{where}: {details}")
    for words, reason in _REFUSALS.items():
        if words in details:
            return UnauthenticatedError(f"{where}: auth refused: {reason} ({details})")
    return UnavailableError(f"{where}: {_reason(details)}")


def hangs_up(status: Status) -> bool:
    """Whether the other end ended the connection before it sent anything."""
    return all(words in status.details for words in ("failed to connect", "Socket closed"))


_REFUSALS = {
    "WRONG_VERSION_NUMBER": "TLS on this end only",
    "certificate has expired": "TLS, its certificate has expired",
    "Hostname Verification": "TLS, its certificate is not for the dialled host",
    "CERTIFICATE_VERIFY_FAILED": "TLS, its certificate is not signed by FLOWRT_TLS_CA",
}
"""Patterns in messages, the first match counts: permanent reasons why an end cannot be reached."""

_REASONS = {
    "Stream removed": DIED,  # of one that was open
    "Connection refused": "refused; is it started?",
    "No route to host": "no route",
    "Network is unreachable": "no route",
    "Name or service not known": "name not found",
    "lookup failed": "name not found",
    "DNS": "name not found",
    "Socket closed": (
        "closed immediately: does the other end require a certificate? Set FLOWRT_TLS_CERT and FLOWRT_TLS_KEY"
    ),
    "handshake": "TLS",
    "CERTIFICATE": "TLS",
    "Ssl": "TLS",
    "timed out": "timeout",
    "timeout": "timeout",
}
"""Patterns in gRPC's messages, which have no codes, and their meaning. The first match counts."""


def _reason(details: str) -> str:
    for words, reason in _REASONS.items():
        if words in details:
            return f"{reason} ({details})"
    return details
