"""A task's metrics: families as Prometheus has them, and the counters behind those of its steps.

    Counts, the process, devices, sessions  -->  Sample...  -->  text for Prometheus (`exposition`)
                                                            -->  a message, for ``flowrt top``

A counter only grows, from 0 at the start of the task; readers take differences. A family's name has its
unit.
"""

from __future__ import annotations

import threading
import time
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping
from enum import StrEnum
from itertools import accumulate
from typing import NamedTuple, final

STEP_BOUNDS = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0)
"""Upper bounds of the buckets of steps' times, in seconds."""


class Kind(StrEnum):
    """Type of a family, under Prometheus' names."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


class Family(NamedTuple):
    kind: Kind
    help: str


FAMILIES: Mapping[str, Family] = {
    "flowrt_info": Family(Kind.GAUGE, "1, with the version of flowrt as a label"),
    "flowrt_steps_total": Family(Kind.COUNTER, "Steps that ended in this task, by outcome: ok or failed"),
    "flowrt_step_seconds": Family(Kind.HISTOGRAM, "Time of the task's part of a step"),
    "flowrt_running_steps": Family(Kind.GAUGE, "Steps that run in this task"),
    "flowrt_oldest_step_seconds": Family(
        Kind.GAUGE, "For how long the oldest of them has run; 0 without one"
    ),
    "flowrt_wait_seconds_total": Family(
        Kind.COUNTER, "Time in which this task waited for at least one tensor of the peer"
    ),
    "flowrt_received_bytes_total": Family(Kind.COUNTER, "Bytes of tensors that came from the peer"),
    "flowrt_sent_bytes_total": Family(Kind.COUNTER, "Bytes of tensors that went to the peer"),
    "flowrt_collectives_total": Family(Kind.COUNTER, "Calls of native collectives in this process"),
    "flowrt_collective_seconds_total": Family(
        Kind.COUNTER, "Time in these calls, including the wait for the other ranks: least in a straggler"
    ),
    "flowrt_collective_bytes_total": Family(Kind.COUNTER, "Bytes of the arrays that were passed to them"),
    "flowrt_sessions": Family(Kind.GAUGE, "Open sessions with a part in this task"),
    "flowrt_peers": Family(Kind.GAUGE, "Connected tasks and clients"),
    "flowrt_lost_peers_total": Family(Kind.COUNTER, "Connections of tasks and clients that have ended"),
    "flowrt_draining": Family(Kind.GAUGE, "1 if the task accepts no new work, else 0"),
    "flowrt_device_memory_bytes": Family(Kind.GAUGE, "Bytes in use of the device's pool"),
    "flowrt_device_memory_peak_bytes": Family(Kind.GAUGE, "The most that were in use at once"),
    "flowrt_device_memory_limit_bytes": Family(Kind.GAUGE, "The most that the pool may take; 0: no limit"),
    "process_cpu_seconds_total": Family(Kind.COUNTER, "Processor time of the process, user and system"),
    "process_resident_memory_bytes": Family(Kind.GAUGE, "Resident memory of the process"),
    "process_open_fds": Family(Kind.GAUGE, "Open file descriptors of the process"),
    "process_max_fds": Family(Kind.GAUGE, "The most that it may have"),
    "process_threads": Family(Kind.GAUGE, "Threads of the process"),
    "process_start_time_seconds": Family(Kind.GAUGE, "Start of the process, since the epoch"),
}


class Sample(NamedTuple):
    """One value. ``name`` is a family's, or with the suffix of a histogram's part."""

    name: str
    value: float
    labels: tuple[tuple[str, str], ...] = ()


@final
class _Link:
    """Traffic with one peer. ``waiting``: tensors asked for that have not come; ``since``: the time from
    which on there is one.
    """

    __slots__ = ("received", "sent", "since", "waited", "waiting")

    def __init__(self) -> None:
        self.received = self.sent = self.waiting = 0
        self.since = self.waited = 0.0


@final
class Counts:
    """Totals of the steps of one task. Thread-safe; a call takes about 0.5 us."""

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._running: dict[int, float] = {}
        self._failing: set[int] = set()
        """Running steps that were ended from outside."""
        self._buckets = [0] * (len(STEP_BOUNDS) + 1)
        self._seconds = 0.0
        self._failed = 0
        self._links: dict[str, _Link] = {}

    # --- steps

    def step_began(self, step: int) -> None:
        with self._lock:
            self._running[step] = self._clock()

    def step_failing(self, step: int) -> None:
        """The step has been ended from outside, by an error; `step_ended` follows if it runs here."""
        with self._lock:
            if step in self._running:
                self._failing.add(step)

    def step_ended(self, step: int, is_ok: bool) -> None:
        """Count the end of a step that began; nothing the second time."""
        with self._lock:
            began = self._running.pop(step, None)
            if began is None:
                return
            seconds = self._clock() - began
            self._buckets[bisect_left(STEP_BOUNDS, seconds)] += 1
            self._seconds += seconds
            self._failed += not is_ok or step in self._failing
            self._failing.discard(step)

    # --- tensors of other tasks

    def asked(self, peer: str, tensors: int) -> None:
        """Count tensors that are requested from ``peer``."""
        with self._lock:
            link = self._link(peer)
            if not link.waiting:
                link.since = self._clock()
            link.waiting += tensors

    def answered(self, peer: str, nbytes: int) -> None:
        """One of them has come, or will not, and then ``nbytes`` is 0."""
        with self._lock:
            link = self._link(peer)
            link.received += nbytes
            link.waiting -= 1
            if not link.waiting:
                link.waited += self._clock() - link.since

    def sent(self, peer: str, nbytes: int) -> None:
        with self._lock:
            self._link(peer).sent += nbytes

    def _link(self, peer: str) -> _Link:
        link = self._links.get(peer)
        if link is None:
            link = self._links[peer] = _Link()
        return link

    # --- reading

    def read(self) -> Iterator[Sample]:
        """The samples of now."""
        with self._lock:
            now = self._clock()
            began, failed, seconds = min(self._running.values(), default=now), self._failed, self._seconds
            num_running, totals = len(self._running), [*accumulate(self._buckets)]
            links = [
                (peer, each.received, each.sent, each.waited + (now - each.since if each.waiting else 0.0))
                for peer, each in sorted(self._links.items())
            ]
        yield Sample("flowrt_steps_total", totals[-1] - failed, (("outcome", "ok"),))
        yield Sample("flowrt_steps_total", failed, (("outcome", "failed"),))
        for bound, total in zip((*STEP_BOUNDS, float("inf")), totals, strict=True):
            yield Sample("flowrt_step_seconds_bucket", total, (("le", number_text(bound)),))
        yield Sample("flowrt_step_seconds_sum", seconds)
        yield Sample("flowrt_step_seconds_count", totals[-1])
        yield Sample("flowrt_running_steps", num_running)
        yield Sample("flowrt_oldest_step_seconds", now - began)
        for peer, received, sent, waited in links:
            label = (("peer", short_task(peer)),)
            yield Sample("flowrt_wait_seconds_total", waited, label)
            yield Sample("flowrt_received_bytes_total", received, label)
            yield Sample("flowrt_sent_bytes_total", sent, label)


def short_task(task: str) -> str:
    """``worker:1`` for ``/job:worker/replica:0/task:1``, as `FLOWRT_TASK` has it."""
    return task.removeprefix("/job:").replace("/replica:0", "").replace("/task:", ":")


def number_text(value: float) -> str:
    """The shortest text that Prometheus reads as ``value``: ``3``, ``0.001``, ``+Inf``."""
    if value in (float("inf"), float("-inf")):
        return "+Inf" if value > 0 else "-Inf"
    return str(int(value)) if value == int(value) and abs(value) < 1e15 else repr(float(value))
