"""A small pool of threads that share one loop's elements with the calling thread.

Rules of this file:

  1. One loop at a time: a caller that finds the threads busy runs its loop alone.
  2. When the call returns, all work is done and no thread accesses its memory.
  3. After a fork, the child has no threads, and starts its own when needed.
"""

from __future__ import annotations

import ctypes
import math
import os
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import final

from flowrt.device.llvm.host_call import LoopCall
from flowrt.device.llvm.work_stealing import MAX_MEMBERS, WorkStealingPool

PARALLEL_NS = 80e3
"""Minimum time of a loop that is shared by threads, where that was measured to pay (`run_in_parallel`)."""

CGROUPS, OWN_CGROUP = Path("/sys/fs/cgroup"), Path("/proc/self/cgroup")

_libc = ctypes.CDLL(None)


def run_in_parallel(call: LoopCall, table_address: int, begin: int, end: int, grain: int) -> None:
    """Run ``call(table_address, b, e)`` for chunks ``[b, e)`` that partition ``[begin, end)``, on several
    threads in parallel. Returns when all are done. ``call`` is a `CompiledLoop`'s.

    All chunks but the last have a multiple of ``grain`` elements, at least 1. Measured on 2 cores: 20-45 us
    more than half of the loop, most of it for waking the other core, so loops from 80 us on are worth it.
    """
    _pool.run(call, table_address, begin, end, grain)


def set_num_threads(n_threads: int) -> None:
    """Set the number of threads, including the caller's, that work on one loop; 0 for `usable_cpus`.

    Waits for the current loop, if there is one.
    """
    _pool.resize(n_threads or usable_cpus())


def num_threads() -> int:
    """Number of threads, including the caller's, that work on one loop."""
    return _pool.n_threads


def usable_cpus() -> int:
    """Number of CPUs that this process can keep busy: those it may run on, or fewer if its control group
    (version 2) has a smaller quota.
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
class _Worker:
    """A thread that is a member of a team."""

    def __init__(self, team: WorkStealingPool, member: int) -> None:
        self._team, self._member, self._avoided_cpu = team, member, -1
        team.admit(member)
        self._thread = threading.Thread(target=team.work, args=(member,), name="flowrt loops", daemon=True)
        self._thread.start()

    def keep_off(self, cpu: int) -> None:
        """Run on other CPUs from now on. If two CPUs share a cache and one is busy, Linux wakes a thread on
        the busy one as readily as on the idle one, and migrates it milliseconds later.
        """
        if cpu != self._avoided_cpu:
            self._avoided_cpu = cpu
            others = os.sched_getaffinity(0) - {cpu}
            if others and self._thread.native_id is not None:
                with suppress(OSError):  # the process may no longer use them
                    os.sched_setaffinity(self._thread.native_id, others)

    def end(self) -> None:
        self._team.dismiss(self._member)
        self._thread.join()


@final
class HostPool:
    """``n_threads`` threads for one loop at a time: its caller's, and workers that start when needed."""

    def __init__(self, n_threads: int) -> None:
        self.n_threads = min(n_threads, MAX_MEMBERS)
        self.begin()

    def begin(self) -> None:
        """Be new, without workers."""
        self._is_free = threading.Lock()
        self._workers: list[_Worker] = []
        self._team = WorkStealingPool()

    def run(self, call: LoopCall, table_address: int, begin: int, end: int, grain: int) -> None:
        """Run a loop: see `run_in_parallel`."""
        n_threads = min(self.n_threads, (end - begin) // grain)
        if n_threads < 2 or not self._is_free.acquire(blocking=False):
            call(table_address, begin, end)
            return
        try:
            n_workers = self._ready(n_threads - 1)
            if n_workers:
                self._team.share(call, table_address, begin, end, grain, 1 + n_workers)
            else:
                call(table_address, begin, end)
        finally:
            self._is_free.release()

    def resize(self, n_threads: int) -> None:
        """Waits for the loop that is being done, if there is one."""
        with self._is_free:
            self.n_threads = min(n_threads, MAX_MEMBERS)
            while len(self._workers) >= self.n_threads:
                self._workers.pop().end()

    def _ready(self, n_workers: int) -> int:
        """Start workers, not on the caller's CPU: fewer than asked if the system creates no more threads."""
        with suppress(RuntimeError):
            while len(self._workers) < n_workers:
                self._workers.append(_Worker(self._team, len(self._workers) + 1))
        workers, cpu = self._workers[:n_workers], _libc.sched_getcpu()
        for worker in workers:
            worker.keep_off(cpu)
        return len(workers)


_pool = HostPool(usable_cpus())
os.register_at_fork(after_in_child=_pool.begin)
