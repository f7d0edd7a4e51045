"""How far the clock of another task is ahead, by ping-pong.

F. Cristian, "Probabilistic clock synchronization" (Distributed Computing 3, 1989): who asks notes when; the
answer was read in the middle between asking and hearing, give or take half of the way there and back. So of
several readings the one that took the least time is the best. Clocks here count nanoseconds since the epoch.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable
from typing import NamedTuple

from flowrt.distribute.wire.messages import Message
from flowrt.distribute.wire.peer import Peer
from flowrt.errors import OpError
from flowrt.protos import cluster_pb2 as pb

LOGGER = logging.getLogger(__name__)

NUM_PINGS = 8
"""Of 8 over loopback the best takes 0.15 ms there and back, where a single one may take 1: its thread had to
wait for a core.
"""
PING_S = 1.0


class Reading(NamedTuple):
    """``told`` by the other task, between ``asked`` and ``heard`` of this task's clock."""

    asked: int
    told: int
    heard: int

    @property
    def offset(self) -> int:
        """How far the other clock is ahead."""
        return self.told - (self.asked + self.heard) // 2

    @property
    def error(self) -> int:
        """How wrong `offset` may be, either way."""
        return (self.heard - self.asked + 1) // 2


def best(readings: Iterable[Reading]) -> Reading:
    """The reading of the smallest error. Raises ValueError if there are none."""
    return min(readings, key=lambda reading: reading.error)


def offset_of(peer: Peer) -> int:
    """How far the clock of ``peer`` is ahead, in nanoseconds; 0, and a line in the log, where it does not say
    within `PING_S` seconds. Not to be called by its reader thread.
    """
    readings = []
    try:
        for _ in range(NUM_PINGS):
            asked = time.time_ns()
            answer = peer.wait_for(Message(pb.ReadClock()), PING_S)
            readings.append(Reading(asked, answer.body.nanos, time.time_ns()))
    except OpError as error:
        LOGGER.warning("the clock of %s was read %d times: %s", peer.name, len(readings), error.message)
    return best(readings).offset if readings else 0
