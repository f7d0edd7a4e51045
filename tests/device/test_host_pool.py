"""`HostPool`: every element once, on several threads, and nobody at it afterwards."""

from __future__ import annotations

import math
import os
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import hypothesis.strategies as st
import pytest
from hypothesis import HealthCheck, given, settings

from flowrt.device import host_pool
from flowrt.device.host_pool import PIECES_EACH, HostPool

SOON_S = 30.0  # for what takes microseconds, on a machine that is busy
same_pool = settings(suppress_health_check=[HealthCheck.function_scoped_fixture])


@pytest.fixture(params=[2, 3, 8])
def pool(request: pytest.FixtureRequest) -> Iterator[HostPool]:
    pool = HostPool(request.param)
    yield pool
    pool.resize(1)  # ends its workers


def workers() -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if thread.name == "flowrt loops"}


# --- the pieces


@same_pool
@given(begin=st.integers(0, 50), count=st.integers(0, 3000), grain=st.integers(1, 400))
def test_every_element_is_done_once(pool: HostPool, begin: int, count: int, grain: int) -> None:
    pieces: list[tuple[int, int]] = []

    def call(table: int, first: int, last: int) -> None:
        assert table == 7
        pieces.append((first, last))

    pool.run(call, 7, begin, begin + count, grain)
    done = Counter(number for piece in pieces for number in range(*piece))
    assert done == Counter(range(begin, begin + count))
    for first, last in sorted(pieces)[:-1]:
        assert (first - begin) % grain == 0
        assert (last - first) % grain == 0


def test_a_loop_of_one_grain_is_one_call(pool: HostPool) -> None:
    calls: list[tuple[int, int, int]] = []
    pool.run(lambda *arguments: calls.append(arguments), 0, 3, 22, 10)
    assert calls == [(0, 3, 22)]
    assert not pool._workers


def test_the_threads_are_at_it_at_once(pool: HostPool) -> None:
    meeting = threading.Barrier(pool.n_threads)
    seen: set[int] = set()

    def call(table: int, first: int, last: int) -> None:
        if threading.get_ident() not in seen:  # each thread's first piece waits for all the others'
            seen.add(threading.get_ident())
            meeting.wait(SOON_S)

    for _ in range(3):
        seen.clear()
        pool.run(call, 0, 0, 64, 1)
        assert len(seen) == pool.n_threads


def test_the_caller_takes_what_late_workers_leave(pool: HostPool) -> None:
    caller, may_go = threading.get_ident(), threading.Event()
    done: list[int] = []
    in_hand = (pool.n_threads - 1) * math.ceil(64 / (pool.n_threads * PIECES_EACH))

    def call(table: int, first: int, last: int) -> None:
        if threading.get_ident() != caller:
            assert may_go.wait(SOON_S)  # else the caller waits for the worker's share
        done.extend(range(first, last))
        if len(done) >= 64 - in_hand:
            may_go.set()

    pool.run(call, 0, 0, 64, 1)
    assert sorted(done) == list(range(64))


# --- one loop at a time


def test_a_caller_that_finds_the_pool_busy_works_alone(pool: HostPool) -> None:
    inner: list[tuple[int, int, int]] = []

    def call(table: int, first: int, last: int) -> None:
        pool.run(lambda *arguments: inner.append(arguments), 1, first, first + 100, 1)

    pool.run(call, 0, 0, 64, 1)
    assert inner
    assert all(last - first == 100 for _, first, last in inner)


def test_callers_from_many_threads_all_get_their_loops_done(pool: HostPool) -> None:
    totals: list[int] = []

    def work(number: int) -> None:
        for _ in range(50):
            lengths: list[int] = []
            pool.run(lambda table, first, last: lengths.append(last - first), number, 0, 1000, 10)
            totals.append(sum(lengths))

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(SOON_S)
    assert totals == [1000] * 200


# --- the workers


def test_idle_workers_use_no_time(pool: HostPool) -> None:
    pool.run(lambda *arguments: None, 0, 0, 64, 1)
    begun = time.process_time()
    time.sleep(0.2)
    assert time.process_time() - begun < 0.1  # seconds of all threads; one that spins uses 0.2


def test_resizing_ends_workers_and_allows_more() -> None:
    others = workers()
    pool = HostPool(4)
    pool.run(lambda *arguments: None, 0, 0, 64, 1)
    assert len(workers() - others) == 3
    pool.resize(2)
    wait_until(lambda: len(workers() - others) == 1)
    pool.resize(3)
    pool.run(lambda *arguments: None, 0, 0, 64, 1)
    assert len(workers() - others) == 2
    pool.resize(1)
    wait_until(lambda: not workers() - others)


def test_where_the_system_has_no_more_threads_the_caller_does_it_all(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    lengths: list[int] = []
    HostPool(3).run(lambda table, first, last: lengths.append(last - first), 0, 0, 64, 1)
    assert sum(lengths) == 64


def test_a_worker_keeps_nothing_of_a_loop_that_is_done(pool: HostPool) -> None:
    class Call:
        def __call__(self, table: int, first: int, last: int) -> None:
            ended.append(first)

        def __del__(self) -> None:
            is_gone.set()

    ended: list[int] = []
    is_gone = threading.Event()
    pool.run(Call(), 0, 0, 64, 1)
    assert is_gone.wait(SOON_S)


def test_when_a_signals_handler_raises_in_the_caller_nobody_is_at_the_memory_afterwards(
    pool: HostPool,
) -> None:
    caller = threading.get_ident()
    has_begun, may_end, has_ended = threading.Semaphore(0), threading.Event(), threading.Semaphore(0)

    def call(table: int, first: int, last: int) -> None:
        if threading.get_ident() == caller:
            for _ in range(pool.n_threads - 1):
                assert has_begun.acquire(timeout=SOON_S)
            signal.pthread_kill(caller, signal.SIGUSR1)
        else:
            has_begun.release()
            assert may_end.wait(SOON_S)
            time.sleep(0.05)  # a caller that did not wait would be out by then
            has_ended.release()

    def interrupt(*arguments: object) -> None:
        may_end.set()
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGUSR1, interrupt)
    try:
        with pytest.raises(KeyboardInterrupt):
            pool.run(call, 0, 0, 64, 1)
    finally:
        signal.signal(signal.SIGUSR1, before)
    for _ in range(pool.n_threads - 1):
        assert has_ended.acquire(blocking=False)
    lengths: list[int] = []
    pool.run(lambda table, first, last: lengths.append(last - first), 0, 0, 64, 1)
    assert sum(lengths) == 64


def test_a_forks_child_starts_its_own_workers() -> None:
    host_pool.set_num_threads(2)
    try:
        host_pool.run_in_parallel(lambda *arguments: None, 0, 0, 64, 1)
        child = os.fork()
        if child == 0:
            signal.alarm(20)  # a child that hangs is killed then
            meeting = threading.Barrier(2)
            try:
                n_waited = [0]

                def call(table: int, first: int, last: int) -> None:
                    if n_waited[0] < 2:
                        n_waited[0] += 1
                        meeting.wait(SOON_S)

                host_pool.run_in_parallel(call, 0, 0, 64, 1)
            except BaseException:  # noqa: BLE001 (a child must end here)
                os._exit(1)
            os._exit(0)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    finally:
        host_pool.set_num_threads(0)


def wait_until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + SOON_S
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.001)


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
