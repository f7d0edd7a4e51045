"""Exit statuses of the processes of a cluster."""

from __future__ import annotations

from flowrt.errors import (
    AbortedError,
    DataLossError,
    InvalidArgumentError,
    NotFoundError,
    OpError,
    PermissionDeniedError,
    UnauthenticatedError,
    UnavailableError,
)

OK, FAILURE, USAGE, NOT_FORMED, PEER_LOST, STEP_ABORTED, AUTH_REFUSED, CHECKPOINT_INVALID = range(8)

INTERRUPTED = 130
"""128 + SIGINT, as shells have it."""

_BY_ERROR: tuple[tuple[type[OpError], int], ...] = (
    (InvalidArgumentError, USAGE),
    (NotFoundError, USAGE),
    (UnauthenticatedError, AUTH_REFUSED),
    (PermissionDeniedError, AUTH_REFUSED),
    (DataLossError, CHECKPOINT_INVALID),
    (UnavailableError, PEER_LOST),
    (AbortedError, STEP_ABORTED),
)


def exit_code(error: OpError) -> int:
    """The status of a process that ``error`` ended."""
    return next((status for kind, status in _BY_ERROR if isinstance(error, kind)), FAILURE)
