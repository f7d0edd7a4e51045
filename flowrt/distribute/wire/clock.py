"""Offset of another task's clock, by ping-pong.

F. Cristian, "Probabilistic clock synchronization" (Distributed Computing 3, 1989): the clock was read in the
middle between request and reply, with an error of at most half the round trip. So the reading with the
shortest round trip is the best. Clocks here count nanoseconds since the epoch.
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
"""Number of readings: the best of 8 over loopback has a round trip of 0.15 ms, while a single one may take 1,
if its thread had to wait for a core.
"""
PING_S = 1.0


class Reading(NamedTuple):
    """``told`` by the other task, between ``asked`` and ``heard`` on this task's clock."""

    asked: int
    told: int
    heard: int

    @property
    def offset(self) -> int:
        """Lead of the other clock."""
        return self.told - (self.asked + self.heard) // 2

    @property
    def error(self) -> int:
        """Maximum absolute error of `offset`."""
        return (self.heard - self.asked + 1) // 2


def best(readings: Iterable[Reading]) -> Reading:
    """The reading with the smallest error. Raises ValueError if there are none."""
    return min(readings, key=lambda reading: reading.error)


def offset_of(peer: Peer) -> int:
    """Lead of the clock of ``peer`` in nanoseconds; 0, with a log message, if it does not answer within
    `PING_S` seconds. Not to be called by its reader thread.
    """
    readings = []
    try:
        for _ in range(NUM_PINGS):
            asked = time.time_ns()
            answer = peer.wait_for(Message(pb.ReadClock()), PING_S)
            readings.append(Reading(asked, answer.body.nanos, time.time_ns()))
    except OpError as error:
        LOGGER.warning("clock of %s, from %d pings: %s", peer.name, len(readings), error.message)
    return best(readings).offset if readings else 0
