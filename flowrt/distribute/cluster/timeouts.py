"""How long the tasks of a cluster wait for each other: what the environment says, in seconds.

| variable | default | |
|---|---|---|
| FLOWRT_CONNECT_TIMEOUT | 60 | a new session waits for tasks that are not up yet |
| FLOWRT_HEARTBEAT | 2 | between two questions whether a task is alive |
| FLOWRT_LOST_AFTER | 10 | a peer that has said nothing for so long is gone |
| FLOWRT_JOB_GRACE | 10 | a worker waits for the next session of a program that is no task |
| FLOWRT_DRAIN | 5 | running steps may go on in a worker that is told to end |

All are read when a server or a session is made. Raises `InvalidArgumentError` for what is no time.
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
"""For one attempt. A task that was there before is dialled once: what it knew of a session has gone with it,
and to wait for its next life would only make the error late.
"""

MIN_S = 0.01

_within_s = ContextVar("within", default=math.inf)
"""See `connecting_within`."""


class Liveness(NamedTuple):
    """How a peer that is gone without a word is noticed."""

    heartbeat_s: float
    lost_s: float


def liveness() -> Liveness:
    """Raises `InvalidArgumentError` where a peer would be given up before it was asked twice."""
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
    """``FLOWRT_CONNECT_TIMEOUT``, or less where `connecting_within` says so."""
    return max(0.1, min(_seconds("FLOWRT_CONNECT_TIMEOUT", CONNECT_S), _within_s.get()))


@contextmanager
def connecting_within(seconds: float) -> Iterator[None]:
    """A context in which new sessions of this thread wait no longer than ``seconds`` for their tasks, or than
    one attempt to reach them takes.
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
