"""Timeouts between the tasks of a cluster, in seconds, from the environment.

| variable | default | | |---|---|---| | FLOWRT_CONNECT_TIMEOUT | 60 | a new session waits for tasks that are
not up yet | | FLOWRT_HEARTBEAT | 2 | interval between heartbeats | | FLOWRT_LOST_AFTER | 10 | a peer that was
silent for so long is lost | | FLOWRT_JOB_GRACE | 10 | a worker waits for the next session of a program that
is not a task | | FLOWRT_DRAIN | 5 | running steps may continue in a draining worker |

All are read when a server or a session is created. Raises `InvalidArgumentError` for invalid times.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import NamedTuple

from flowrt.errors import InvalidArgumentError

CONNECT_S, HEARTBEAT_S, LOST_S, JOB_GRACE_S, DRAIN_S = 60.0, 2.0, 10.0, 10.0, 5.0

DIAL_S = 5.0
"""Timeout of one attempt. A task that was up before is dialled once: its session state is lost with it, and
waiting for its restart would only delay the error.
"""

MIN_S = 0.01

_within_s = ContextVar("within", default=math.inf)
"""See `connecting_within`."""


class Liveness(NamedTuple):
    """Heartbeat settings, for detecting silently lost peers."""

    heartbeat_s: float
    lost_s: float


def liveness() -> Liveness:
    """The heartbeat settings. Raises `InvalidArgumentError` if a peer is given up before two heartbeats."""
    found = Liveness(_seconds("FLOWRT_HEARTBEAT", HEARTBEAT_S), _seconds("FLOWRT_LOST_AFTER", LOST_S))
    if found.lost_s < 2 * found.heartbeat_s:
        raise InvalidArgumentError(
            f"FLOWRT_LOST_AFTER: expected at least two heartbeats of {found.heartbeat_s:g} s; "
            f"got {found.lost_s:g}"
        )
    return found


def job_grace_s() -> float:
    return _seconds("FLOWRT_JOB_GRACE", JOB_GRACE_S)


def drain_s() -> float:
    return _seconds("FLOWRT_DRAIN", DRAIN_S)


def connect_timeout_s() -> float:
    """``FLOWRT_CONNECT_TIMEOUT``, or less within `connecting_within`."""
    return max(0.1, min(_seconds("FLOWRT_CONNECT_TIMEOUT", CONNECT_S), _within_s.get()))


@contextmanager
def connecting_within(seconds: float) -> Iterator[None]:
    """A context in which new sessions of this thread wait no longer than ``seconds`` for their tasks, or than
    a single connection attempt.
    """
    outer = _within_s.set(min(max(seconds, DIAL_S), _within_s.get()))
    try:
        yield
    finally:
        _within_s.reset(outer)


def _seconds(variable: str, default: float) -> float:
    text = os.environ.get(variable) or str(default)
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not MIN_S <= seconds < math.inf:
        raise InvalidArgumentError(f"{variable}: expected seconds, {MIN_S:g} or more; got {text!r}")
    return seconds
