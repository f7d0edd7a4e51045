"""A few threads that share one loop's elements with the thread that calls it.

Rules of this file:

  1. An idle thread sleeps on a lock. It never spins: it would take a core from BLAS's threads.
  2. One loop at a time: a caller that finds the threads at work does its loop alone, since the cores are busy.
  3. The caller takes pieces too, and waits only for threads that are at one: who comes late finds none left.
    When the caller returns, also by an exception, nobody is at its memory.
  4. A fork's child has no threads, and starts its own when it needs them.
"""

from __future__ import annotations

import ctypes
import math
import os
import threading
import time
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from queue import SimpleQueue
from typing import final

from flowrt.device.host_call import LoopCall

PIECES_EACH = 4
"""Pieces a thread, so that one that comes late, or whose core others use, does less."""

AWAKE_S = 100e-6
"""How long a caller looks for the last pieces' end before it sleeps, since to be woken takes it 50 us."""

CGROUPS, OWN_CGROUP = Path("/sys/fs/cgroup"), Path("/proc/self/cgroup")


def run_in_parallel(call: LoopCall, table_address: int, begin: int, end: int, grain: int) -> None:
    """``call(table_address, b, e)`` for pieces ``[b, e)`` that make up ``[begin, end)``, each once, at once on
    several threads, and return when all are done.

    All pieces but the last have a multiple of ``grain`` elements, at least 1. ``call`` must give up the GIL
    and raises nothing. Measured on 2 cores: 15-25 us more than a call of half the elements, so that a loop
    is worth splitting from about 60 us on.
    """
    _pool.run(call, table_address, begin, end, grain)


def set_num_threads(n_threads: int) -> None:
    """How many threads, the caller's too, work on one loop from now on; 0 for as many as `usable_cpus`."""
    _pool.resize(n_threads or usable_cpus())


def num_threads() -> int:
    """How many threads, the caller's too, work on one loop."""
    return _pool.n_threads


def usable_cpus() -> int:
    """How many CPUs this process can keep busy: those it may run on, or fewer where its control group
    (version 2) has less time of them.
    """
    cpus = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, min(cpus, math.ceil(min(_quotas(), default=cpus))))


def _quotas() -> Iterator[float]:
    """CPUs' worth of time that this process's control group has, and each group around it."""
    try:
        lines = OWN_CGROUP.read_text("ascii").splitlines()
    except OSError:  # not Linux
        return
    group = next((CGROUPS / line.removeprefix("0::/") for line in lines if line.startswith("0::/")), CGROUPS)
    for folder in (group, *group.parents):
        try:
            quota, period = (folder / "cpu.max").read_text("ascii").split()
        except OSError:  # the root has none
            continue
        if quota != "max":
            yield int(quota) / int(period)


@final
class _Job:
    """One loop, who does which pieces first, and who is at it."""

    def __init__(self, call: LoopCall, table_address: int, shares: list[deque[tuple[int, int]]]) -> None:
        self._call, self._table_address, self._shares = call, table_address, shares
        self._at_work: set[int] = set()
        self._departures: SimpleQueue[None] = SimpleQueue()

    def take_pieces(self, member: int) -> None:
        """Do the pieces of this member's share from the front, then others' from the back, until all are
        taken. The same member has the same elements each time: they may still be in its core's cache.
        """
        for share in self._shares[member:] + self._shares[:member]:
            take = share.popleft if share is self._shares[member] else share.pop
            with suppress(IndexError):  # it is empty
                while True:
                    self._call(self._table_address, *take())

    def help(self, member: int) -> None:
        self._at_work.add(member)  # before it takes a piece: `finish` sees it or leaves it none
        try:
            self.take_pieces(member)
        finally:
            self._at_work.discard(member)
            self._departures.put(None)

    def finish(self) -> None:
        """Give out no more, and wait until nobody is at a piece: also where a signal's handler raises."""
        for share in self._shares:
            share.clear()
        try:
            awake_until = time.perf_counter() + AWAKE_S
            while self._at_work and time.perf_counter() < awake_until:
                time.sleep(0)  # only gives up the GIL
            while self._at_work:
                self._departures.get()
        finally:
            if self._at_work:
                self.finish()


@final
class _Worker:
    """A thread that helps with one job after another, always as the same member. Only who has the pool calls."""

    def __init__(self, member: int) -> None:
        self._member = member
        self._asleep = threading.Lock()
        self._asleep.acquire()
        self._job: _Job | None = None
        self._is_ended = False
        self._avoided_cpu = -1
        self._thread = threading.Thread(target=self._live, name="flowrt loops", daemon=True)
        self._thread.start()

    def wake(self, job: _Job, callers_cpu: int) -> None:
        if self._avoided_cpu != callers_cpu:
            self._avoid(callers_cpu)
        self._job = job
        self._rouse()

    def forget(self) -> None:
        """Keep no job, which keeps its loop's code."""
        self._job = None

    def end(self) -> None:
        self._is_ended = True
        self._rouse()

    def _avoid(self, cpu: int) -> None:
        self._avoided_cpu = cpu
        others = os.sched_getaffinity(0) - {cpu}
        if others and self._thread.native_id is not None:
            with suppress(OSError):
                os.sched_setaffinity(self._thread.native_id, others)

    def _rouse(self) -> None:
        if self._asleep.locked():  # else it is getting up already, and looks at the job then
            self._asleep.release()

    def _live(self) -> None:
        while not self._is_ended:
            self._asleep.acquire()
            self._look()

    def _look(self) -> None:
        """In a function of its own: its end lets go of the job."""
        job = self._job
        if job is not None:
            job.help(self._member)


@final
class HostPool:
    """``n_threads`` threads for one loop at a time: its caller's, and workers that start when they are needed."""

    def __init__(self, n_threads: int) -> None:
        self.n_threads = n_threads
        self.begin()

    def begin(self) -> None:
        """Be new, without workers."""
        self._is_free = threading.Lock()
        self._workers: list[_Worker] = []

    def run(self, call: LoopCall, table_address: int, begin: int, end: int, grain: int) -> None:
        """As `run_in_parallel`."""
        n_threads = min(self.n_threads, (end - begin) // grain)
        if n_threads < 2 or not self._is_free.acquire(blocking=False):
            call(table_address, begin, end)
            return
        try:
            self._share(_Job(call, table_address, _shares(begin, end, grain, n_threads)), n_threads - 1)
        finally:
            self._is_free.release()

    def resize(self, n_threads: int) -> None:
        """Waits for the loop that is being done, if there is one."""
        with self._is_free:
            self.n_threads = n_threads
            while len(self._workers) >= n_threads:
                self._workers.pop().end()

    def _share(self, job: _Job, n_workers: int) -> None:
        workers = self._hire(n_workers)
        try:
            cpu = _current_cpu()
            for worker in workers:
                worker.wake(job, cpu)
            job.take_pieces(0)
            job.finish()
        finally:
            job.finish()  # a signal's handler may have raised anywhere above, also as `finish` began
            for worker in workers:
                worker.forget()

    def _hire(self, n_workers: int) -> list[_Worker]:
        """As many, or fewer where the system has no more threads."""
        with suppress(RuntimeError):
            while len(self._workers) < n_workers:
                self._workers.append(_Worker(len(self._workers) + 1))
        return self._workers[:n_workers]


_current_cpu = ctypes.CDLL(None).sched_getcpu


def _shares(begin: int, end: int, grain: int, n_threads: int) -> list[deque[tuple[int, int]]]:
    """For each thread about `PIECES_EACH` pieces that lie side by side, all in order."""
    size = grain * math.ceil((end - begin) / (n_threads * PIECES_EACH * grain))
    starts = range(begin, end, size)
    each = math.ceil(len(starts) / n_threads)
    return [
        deque([(start, min(start + size, end)) for start in starts[first : first + each]])
        for first in range(0, n_threads * each, each)
    ]


_pool = HostPool(usable_cpus())
os.register_at_fork(after_in_child=_pool.begin)
