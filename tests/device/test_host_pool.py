"""`HostPool`, `WorkStealingPool`: every element once, on several threads, and nobody at it afterwards."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings

from flowrt.device.llvm import host_jit, host_pool, work_stealing
from flowrt.device.llvm.host_call import LoopCall
from flowrt.device.llvm.host_jit import compile_loop
from flowrt.device.llvm.host_pool import HostPool
from flowrt.device.llvm.work_stealing import MAX_MEMBERS
from tests.each import nightly

ROOT = Path(__file__).resolve().parent.parent.parent
SOON_S = 30.0  # for what takes microseconds, on a machine that is busy
same_pool = settings(suppress_health_check=[HealthCheck.function_scoped_fixture])

pytestmark = pytest.mark.skipif(
    not host_jit.is_available(), reason=host_jit.why_unavailable() or "there is no reason"
)

COUNTING = """
; For each element adds 1 in the table's first array, puts the thread into the second, begin into the third.
define void @flowrt_loop(ptr %table, i64 %begin, i64 %end) {
entry:
  %counts = load ptr, ptr %table
  %owners_place = getelementptr ptr, ptr %table, i64 1
  %owners = load ptr, ptr %owners_place
  %begins_place = getelementptr ptr, ptr %table, i64 2
  %begins = load ptr, ptr %begins_place
  %thread = call i64 @pthread_self()
  %any = icmp slt i64 %begin, %end
  br i1 %any, label %loop, label %exit
loop:
  %i = phi i64 [ %begin, %entry ], [ %next, %loop ]
  %count = getelementptr i64, ptr %counts, i64 %i
  %old = atomicrmw add ptr %count, i64 1 seq_cst
  %owner = getelementptr i64, ptr %owners, i64 %i
  store i64 %thread, ptr %owner
  %begin_of = getelementptr i64, ptr %begins, i64 %i
  store i64 %begin, ptr %begin_of
  %next = add i64 %i, 1
  %more = icmp slt i64 %next, %end
  br i1 %more, label %loop, label %exit
exit:
  ret void
}
declare i64 @pthread_self()
"""

MEETING = """
; A piece that ends when table[0] threads have been at a piece at once, or 2^25 yields later: table[1] is how
; many are, table[2] whether they all were.
define void @flowrt_loop(ptr %table, i64 %begin, i64 %end) {
  %expected = load i64, ptr %table
  %here = getelementptr i64, ptr %table, i64 1
  %met = getelementptr i64, ptr %table, i64 2
  %before = atomicrmw add ptr %here, i64 1 seq_cst
  %after = add i64 %before, 1
  %are_all = icmp eq i64 %after, %expected
  br i1 %are_all, label %meet, label %wait
meet:
  store atomic i64 1, ptr %met seq_cst, align 8
  br label %leave
wait:
  %i = phi i64 [ 0, %0 ], [ %next, %yield ]
  %have_met = load atomic i64, ptr %met seq_cst, align 8
  %is_over = icmp ne i64 %have_met, 0
  %is_late = icmp eq i64 %i, 33554432
  %stop = or i1 %is_over, %is_late
  br i1 %stop, label %leave, label %yield
yield:
  %yielded = call i32 @sched_yield()
  %next = add i64 %i, 1
  br label %wait
leave:
  %left = atomicrmw sub ptr %here, i64 1 seq_cst
  ret void
}
declare i32 @sched_yield()
"""

LATE = """
; A piece that any thread but table[1] begins only when table[0] elements are done, or 2^25 yields later.
; table[2] elements are done; table[3] is 1 if a thread gave up.
define void @flowrt_loop(ptr %table, i64 %begin, i64 %end) {
  %enough = load i64, ptr %table
  %caller_place = getelementptr i64, ptr %table, i64 1
  %caller = load i64, ptr %caller_place
  %done = getelementptr i64, ptr %table, i64 2
  %thread = call i64 @pthread_self()
  %is_caller = icmp eq i64 %thread, %caller
  br i1 %is_caller, label %do, label %wait
wait:
  %i = phi i64 [ 0, %0 ], [ %next, %yield ]
  %so_far = load atomic i64, ptr %done seq_cst, align 8
  %is_enough = icmp sge i64 %so_far, %enough
  %is_late = icmp eq i64 %i, 33554432
  br i1 %is_enough, label %do, label %ask
ask:
  br i1 %is_late, label %give_up, label %yield
yield:
  %yielded = call i32 @sched_yield()
  %next = add i64 %i, 1
  br label %wait
give_up:
  %gave_up = getelementptr i64, ptr %table, i64 3
  store i64 1, ptr %gave_up
  br label %do
do:
  %count = sub i64 %end, %begin
  %old = atomicrmw add ptr %done, i64 %count seq_cst
  ret void
}
declare i64 @pthread_self()
declare i32 @sched_yield()
"""


@pytest.fixture(params=[2, 3, 8])
def pool(request: pytest.FixtureRequest) -> Iterator[HostPool]:
    pool = HostPool(request.param)
    yield pool
    pool.resize(1)  # ends its workers


def compiled(text: str) -> LoopCall:
    return compile_loop(text).call


class Counted:
    """A run of `COUNTING`: for each element how often it was done, by whom, and where its piece began."""

    def __init__(self, pool: HostPool, begin: int, end: int, grain: int) -> None:
        self.counts, self.owners, self.begins = (np.zeros(end, np.int64) for _ in range(3))
        table = np.array([array.ctypes.data for array in (self.counts, self.owners, self.begins)])
        pool.run(compiled(COUNTING), table.ctypes.data, begin, end, grain)


def have_met(pool: HostPool) -> bool:
    table = np.array([pool.n_threads, 0, 0])
    pool.run(compiled(MEETING), table.ctypes.data, 0, 64, 1)
    return bool(table[2])


def workers() -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if thread.name == "flowrt loops"}


# --- the pieces


@same_pool
@given(begin=st.integers(0, 50), count=st.integers(0, 3000), grain=st.integers(1, 400))
def test_every_element_is_done_once(pool: HostPool, begin: int, count: int, grain: int) -> None:
    counted = Counted(pool, begin, begin + count, grain)
    assert not counted.counts[:begin].any()
    assert (counted.counts[begin:] == 1).all()
    assert ((counted.begins[begin:] - begin) % grain == 0).all()


@pytest.mark.parametrize("times", nightly([1000, 10_000], 1))
def test_again_and_again(pool: HostPool, times: int) -> None:
    """Workers still on their way to one loop meet the next, of another length and table."""
    for number in range(times):
        assert (Counted(pool, 0, 40 + number % 90, 1).counts == 1).all()


def test_between_loops_there_is_no_piece_for_who_comes_late(pool: HostPool) -> None:
    Counted(pool, 0, 1000, 1)
    nexts = [
        pool._team._words[work_stealing._word(member, work_stealing.NEXT)] for member in range(MAX_MEMBERS)
    ]
    assert min(nexts) >= work_stealing.NOTHING  # who looked in vain added 1


def test_a_loop_of_less_than_two_grains_is_one_call(pool: HostPool) -> None:
    counted = Counted(pool, 3, 22, 10)
    assert set(counted.owners[3:]) == {threading.get_ident()}
    assert set(counted.begins[3:]) == {3}
    assert not pool._workers


def test_the_threads_are_at_it_at_once(pool: HostPool) -> None:
    assert all(have_met(pool) for _ in range(3))


def test_the_caller_takes_what_late_workers_leave(pool: HostPool) -> None:
    """They wait, each at a piece of at most 8 elements, until all others are done."""
    table = np.array([64 - 8 * (pool.n_threads - 1), threading.get_ident(), 0, 0])
    pool.run(compiled(LATE), table.ctypes.data, 0, 64, 1)
    assert table[2:].tolist() == [64, 0]


# --- one loop at a time


def test_a_caller_that_finds_the_pool_busy_works_alone(pool: HostPool) -> None:
    with pool._is_free:
        assert set(Counted(pool, 0, 1000, 1).owners) == {threading.get_ident()}


def test_callers_from_many_threads_all_get_their_loops_done(pool: HostPool) -> None:
    done: list[bool] = []

    def work() -> None:
        done.extend((Counted(pool, 0, 1000, 10).counts == 1).all() for _ in range(50))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(SOON_S)
    assert done == [True] * 200


# --- the workers


def test_idle_workers_use_no_time(pool: HostPool) -> None:
    assert have_met(pool)
    begun = time.process_time()
    time.sleep(0.2)
    assert time.process_time() - begun < 0.1  # seconds of all threads; one that spins uses 0.2


def test_resizing_ends_workers_and_allows_more() -> None:
    others = workers()
    pool = HostPool(4)
    for n_threads in (4, 2, 3, 1):
        pool.resize(n_threads)
        assert n_threads == 1 or have_met(pool)
        assert len(workers() - others) == n_threads - 1


def test_where_the_system_has_no_more_threads_the_caller_does_it_all(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    assert set(Counted(HostPool(3), 0, 64, 1).owners) == {threading.get_ident()}


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="there is one CPU")
def test_workers_keep_off_the_callers_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    cpus = os.sched_getaffinity(0)
    pool = HostPool(2)
    for cpu in sorted(cpus)[:2]:
        monkeypatch.setattr(host_pool._libc, "sched_getcpu", lambda cpu=cpu: cpu)
        assert have_met(pool)
        (worker,) = pool._workers
        assert os.sched_getaffinity(worker._thread.native_id or 0) == cpus - {cpu}
    pool.resize(1)


def test_a_process_ends_while_workers_sleep() -> None:
    code = """
from flowrt.device.llvm import host_pool
from flowrt.device.llvm.host_jit import compile_loop
host_pool.set_num_threads(4)
nothing = "define void @flowrt_loop(ptr %table, i64 %begin, i64 %end) { ret void }"
host_pool.run_in_parallel(compile_loop(nothing).call, 0, 0, 64, 1)
"""
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True, timeout=SOON_S)


def test_a_forks_child_starts_its_own_workers() -> None:
    host_pool.set_num_threads(2)
    try:
        assert have_met(host_pool._pool)
        child = os.fork()
        if child == 0:
            signal.alarm(20)  # a child that hangs is killed then
            os._exit(0 if have_met(host_pool._pool) else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    finally:
        host_pool.set_num_threads(0)


# --- how many


@pytest.mark.parametrize(
    ("own", "quotas", "expected"),
    [
        ("0::/a/b\n", {"a/b": "max 100000", "a": "150000 100000"}, 2),
        ("0::/a/b\n", {"a/b": "50000 100000"}, 1),
        ("0::/\n", {".": "300000 100000"}, 3),
        ("0::/a\n", {}, 8),
        ("4:cpu:/a\n", {}, 8),
    ],
)
def test_a_control_groups_quota_limits_the_cpus(
    own: str, quotas: dict[str, str], expected: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for folder, quota in quotas.items():
        (tmp_path / folder).mkdir(parents=True, exist_ok=True)
        (tmp_path / folder / "cpu.max").write_text(f"{quota}\n")
    (tmp_path / "own").write_text(own)
    monkeypatch.setattr(host_pool, "CGROUPS", tmp_path)
    monkeypatch.setattr(host_pool, "OWN_CGROUP", tmp_path / "own")
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(8)))
    assert host_pool.usable_cpus() == expected


def test_the_number_of_threads_can_be_set() -> None:
    try:
        host_pool.set_num_threads(3)
        assert host_pool.num_threads() == 3
    finally:
        host_pool.set_num_threads(0)
    assert host_pool.num_threads() == host_pool.usable_cpus()
