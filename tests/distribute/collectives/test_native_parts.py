"""What is underneath the communicators: parts, the line of a probe, futexes, segments, threads, traffic."""

from __future__ import annotations

import itertools
import json
import shlex
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flowrt.distribute.collectives.communicator import Communicator
from flowrt.distribute.collectives.communicator_registry import open_communicator
from flowrt.distribute.collectives.communicator_thread import CommunicatorThread
from flowrt.distribute.collectives.futex import wait_while, wake
from flowrt.distribute.collectives.membership import MAX_TEXT, Call, Membership
from flowrt.distribute.collectives.mesh_forming import form_mesh
from flowrt.distribute.collectives.over_peers import PeersCommunicator
from flowrt.distribute.collectives.parts import part, pieces
from flowrt.distribute.collectives.probe import fit_line
from flowrt.distribute.collectives.shared_memory_segment import LINE_BYTES, Layout
from flowrt.distribute.launch.local_cluster import ReservedPorts
from flowrt.errors import CancelledError, DeadlineExceededError, InternalError, InvalidArgumentError
from flowrt.graph.collectives.algorithms import Group
from flowrt.graph.collectives.cost import (
    DEFAULT_LINKS,
    LINKS_VARIABLE,
    Link,
    Links,
    parse_links,
    schedule_of,
    traffic,
)
from flowrt.rendezvous.transport import new_transport
from tests.contracts.check_collectives import REDUCTIONS, CollectiveCall, arrays, expected, uneven
from tests.distribute.collectives.ranks import SOON_S, as_rank, by_call, run_threads, thread_group

LARGE = 1_500_017
"""Bytes and elements: some chunks and pieces, and a rest, in every medium."""


# --- parts, calls, layouts


@given(st.integers(0, 1000), st.integers(1, 20))
def test_parts_are_those_of_array_split(length: int, size: int) -> None:
    numbers = np.arange(length)
    parts = [numbers[part(length, size, rank)] for rank in range(size)]
    for found, right in zip(parts, np.array_split(numbers, size), strict=True):
        np.testing.assert_array_equal(found, right)


@given(st.integers(0, 100), st.integers(0, 100), st.integers(1, 30))
def test_pieces_lie_end_to_end(start: int, count: int, length: int) -> None:
    found = list(pieces(slice(start, start + count), length))
    assert (found[0].start, found[-1].stop) == (start, start + count)
    assert all(before.stop == after.start for before, after in itertools.pairwise(found))
    assert all(piece.stop - piece.start == length for piece in found[:-1])


@given(st.text(), st.text(max_size=400), st.integers(0, 2**62))
def test_the_text_of_a_call_has_a_place(op: str, name: str, number: int) -> None:
    call, other = Call(op, name=name), Call(op, name=f"{name}'")
    assert len(call.text(number)) <= MAX_TEXT
    assert call.text(number) != call.text(number + 1)
    assert call.text(number) != other.text(number)


@given(st.integers(1, 70), st.sampled_from([4096, 2 << 20]))
def test_nothing_lies_upon_another_thing(size: int, chunk: int) -> None:
    layout = Layout(size, chunk)
    places = [(layout.line(rank), LINE_BYTES) for rank in range(size)]
    places += [(layout.slot(rank, parity), chunk) for rank in range(size) for parity in (0, 1)]
    places += [(layout.result(parity), chunk) for parity in (0, 1)]
    places.sort()
    assert all(start + length <= after for (start, length), (after, _) in itertools.pairwise(places))
    assert places[-1][0] + chunk == layout.nbytes


# --- collectives of many chunks, in any order


@pytest.mark.parametrize("kind", ("local", "shared_memory", "grpc"))
@pytest.mark.parametrize("size", (2, 3))
def test_large_arrays(kind: str, size: int) -> None:
    rng = np.random.default_rng(size)
    values = [rng.integers(-2, 3, LARGE // size * size).astype(np.int32) for _ in range(size)]
    calls = [
        CollectiveCall("AllReduce", values, {"reduction": "max"}),
        CollectiveCall("Reduce", values, {"root": 1}),
        CollectiveCall("Broadcast", values[:1], {"root": 1}),
        CollectiveCall("AllGather", values),
        CollectiveCall("Gather", values, {"root": size - 1}),
        CollectiveCall("Scatter", values[:1], {"root": 1}),
        CollectiveCall("ReduceScatter", values, {"reduction": "mean"}),
        CollectiveCall("AllToAll", values),
    ]
    check(kind, size, calls)


@st.composite
def exchanges(draw: st.DrawFn) -> tuple[int, list[CollectiveCall]]:
    """A number of ranks, and exchanges of any numbers of rows, even ones between them."""
    size = draw(st.integers(1, 4))
    rng = np.random.default_rng(draw(st.integers(0, 99)))
    calls = []
    for most in draw(st.lists(st.sampled_from([0, 1, 3, 40_000]), min_size=1, max_size=4)):
        calls.append(uneven(rng, size, most, draw(st.sampled_from([np.int8, np.float64, bool])), 3))
        calls.append(CollectiveCall("AllToAll", arrays(size, np.int32, most * size)))
    return size, calls


@pytest.mark.parametrize("kind", ("local", "shared_memory", "grpc"))
@settings(max_examples=15)
@given(program=exchanges())
def test_any_uneven_exchange_gives_what_numpy_does(
    kind: str, program: tuple[int, list[CollectiveCall]]
) -> None:
    check(kind, *program)


@pytest.mark.parametrize("kind", ("local", "shared_memory", "grpc"))
def test_ranks_whose_rows_differ_are_shown_both_sides(kind: str) -> None:
    for shapes in ([(4, 2), (4, 3)], [(2, 2), (2,)]):

        def exchange(communicator: Communicator) -> Any:
            rows = np.ones(shapes[communicator.rank], np.float32)  # noqa: B023
            return communicator.all_to_all_uneven(rows, [len(rows), 0])

        with thread_group(kind, 2) as communicators:
            errors = run_threads(communicators, exchange)
        assert all(isinstance(error, InvalidArgumentError) for error in errors), errors
        assert any("expected all ranks to make the same calls" in str(error) for error in errors), errors


@pytest.mark.parametrize("counts", ([1, 2], [4, -1, 0], [1, 1], [1.0, 2.0, 0.0], [[1, 1, 1]], [1, 1, 2], 3))
def test_counts_that_are_not_of_the_rows_are_refused(counts: Any) -> None:
    with thread_group("local", 3) as communicators:
        with pytest.raises(
            InvalidArgumentError, match=r"expected (a number of rows for each|counts of all 3)"
        ):
            communicators[0].all_to_all_uneven(np.ones((3, 2)), counts)
        assert not communicators[0].has_ended


KINDS = ("AllReduce", "Reduce", "Broadcast", "AllGather", "Gather", "Scatter", "ReduceScatter", "AllToAll")


@st.composite
def programs(draw: st.DrawFn) -> tuple[int, list[CollectiveCall]]:
    """A number of ranks, and calls of every kind, with arrays of every size, in any order."""
    size = draw(st.integers(1, 4))
    calls = []
    for kind in draw(st.lists(st.sampled_from(KINDS), min_size=1, max_size=6)):
        rows = draw(st.sampled_from([0, 1, 5, 2_500, 40_000])) * size
        rng = np.random.default_rng(draw(st.integers(0, 99)))
        values = [rng.integers(-2, 3, rows).astype(np.float64) for _ in range(size)]
        attrs: dict[str, Any] = {}
        if kind in ("Reduce", "Broadcast", "Gather", "Scatter"):
            attrs["root"] = draw(st.integers(0, size - 1))
        if "Reduce" in kind:
            attrs["reduction"] = draw(st.sampled_from(REDUCTIONS))
        calls.append(CollectiveCall(kind, values[:1] if kind in ("Broadcast", "Scatter") else values, attrs))
    return size, calls


@pytest.mark.parametrize("kind", ("local", "shared_memory", "grpc"))
@settings(max_examples=10)
@given(program=programs())
def test_any_program_gives_what_numpy_does(kind: str, program: tuple[int, list[CollectiveCall]]) -> None:
    check(kind, *program)


def check(kind: str, size: int, calls: list[CollectiveCall]) -> None:
    def make_all(communicator: Communicator) -> list[Any]:
        return [as_rank(call, communicator.rank, size).make(communicator) for call in calls]

    with thread_group(kind, size) as communicators:
        results = run_threads(communicators, make_all)
    for call, found in zip(calls, by_call(results), strict=True):
        for result, right in zip(found, expected(size, call), strict=True):
            np.testing.assert_array_equal(result, right)


@pytest.mark.parametrize("kind", ("local", "shared_memory", "grpc"))
def test_in_place(kind: str) -> None:
    def reduce(communicator: Communicator) -> Any:
        array = np.full(LARGE, communicator.rank + 1, np.int32)
        assert communicator.all_reduce(array, out=array) is array
        return array

    with thread_group(kind, 4) as communicators:
        for array in run_threads(communicators, reduce):
            np.testing.assert_array_equal(array, np.full(LARGE, 10, np.int32))


# --- what is sent


@pytest.mark.parametrize("size", (2, 3, 4, 5))
def test_a_ring_sends_two_times_p_minus_one_pth_of_the_payload(size: int) -> None:
    elements = 120_000 * size
    with thread_group("grpc", size) as communicators:
        run_threads(communicators, lambda c: c.all_reduce(np.ones(elements, np.float32)))
        for communicator in communicators:
            if size & (size - 1):  # otherwise halving and doubling costs less, with as many bytes
                assert communicator.traffic.messages_sent == 2 * (size - 1)
            assert communicator.traffic.bytes_sent == 2 * (size - 1) * elements * 4 // size


@pytest.mark.parametrize("kind", ("local", "shared_memory"))
def test_memory_that_is_shared_is_written_once_for_each_part(kind: str) -> None:
    """In shared memory what is posted, and the own part of the result; between threads the result only."""
    elements = 400_000
    with thread_group(kind, 4) as communicators:
        run_threads(communicators, lambda c: c.all_reduce(np.ones(elements, np.float32)))
        for communicator in communicators:
            times = 3 / 4 + 1 / 4 if kind == "shared_memory" else 3 / 4
            assert communicator.traffic.bytes_sent == elements * 4 * times


# --- futexes


def test_a_sleeper_is_woken_by_who_changes_the_word() -> None:
    word = np.zeros(1, np.int64)
    address, seen = word.ctypes.data, []

    def sleep() -> None:
        while not word[0]:
            wait_while(address, 0, 30.0)
        seen.append(int(word[0]))

    sleeper = threading.Thread(target=sleep)
    sleeper.start()
    word[0] = 7
    wake(address)
    sleeper.join(SOON_S)
    assert seen == [7]


def test_nobody_sleeps_on_a_word_that_has_changed() -> None:
    word = np.ones(1, np.int64)
    wait_while(word.ctypes.data, 0, 3600.0)


# --- the communicator's own thread


def test_calls_are_made_in_order_and_hold_nobody_up() -> None:
    with thread_group("shared_memory", 2) as communicators:
        threads = [CommunicatorThread(communicator) for communicator in communicators]
        answers: list[tuple[int, Any, Any]] = []

        def submit(rank: int, number: int) -> None:
            array = np.full(2, float(number))
            threads[rank].submit(
                lambda c: c.all_reduce(array), lambda value, error: answers.append((rank, value, error))
            )

        for number in range(5):
            submit(0, number)  # returns, though rank 1 has called nothing
        assert not threads[0].wait_until_idle(0.0)
        for number in range(5):
            submit(1, number)
        assert all(thread.wait_until_idle(SOON_S) for thread in threads)
        for rank in (0, 1):
            got = [value.tolist() for r, value, _ in answers if r == rank]
            assert got == [[2.0 * n, 2.0 * n] for n in range(5)]
        for thread in threads:
            thread.close()


def test_what_waits_when_the_thread_is_closed_is_cancelled() -> None:
    with thread_group("grpc", 2) as communicators:
        thread, errors = CommunicatorThread(communicators[0]), list[Any]()
        for _ in range(3):
            thread.submit(lambda c: c.barrier(), lambda value, error: errors.append(error))
        thread.close(SOON_S)
        thread.submit(lambda c: c.barrier(), lambda value, error: errors.append(error))
        assert len(errors) == 4
        assert all(isinstance(error, CancelledError) for error in errors), errors


def test_a_call_that_is_wrong_ends_the_group() -> None:
    with thread_group("local", 2) as communicators:
        thread, errors = CommunicatorThread(communicators[0]), list[Any]()
        thread.submit(lambda c: 1 // 0, lambda value, error: errors.append(error))
        assert thread.wait_until_idle(SOON_S)
        assert isinstance(errors[0], InternalError)
        assert isinstance(errors[0].__cause__, ZeroDivisionError)
        with pytest.raises(InternalError):
            communicators[1].barrier()
        thread.close()


# --- the probe


@given(st.floats(1e-6, 1e-3), st.floats(1e-11, 1e-8))
def test_a_line_is_found_again(a: float, b: float) -> None:
    fit = fit_line({nbytes: a + b * nbytes for nbytes in (64, 4096, 1 << 16, 1 << 20)})
    assert fit.link.latency_s == pytest.approx(a, rel=1e-6)
    assert fit.link.seconds_per_byte == pytest.approx(b, rel=1e-6)
    assert fit.r_squared == pytest.approx(1.0)


def test_what_is_no_line_fits_badly() -> None:
    assert fit_line({1: 1.0, 2: 9.0, 3: 1.0, 4: 9.0, 5: 1.0}).r_squared < 0.5


def test_one_size_makes_no_line() -> None:
    with pytest.raises(InvalidArgumentError, match="two sizes or more; got 1"):
        fit_line({64: 1.0})


def test_workers_probe_each_other() -> None:
    with ReservedPorts(2) as reserved, ExitStack() as stack:
        cluster = json.dumps({"worker": [f"127.0.0.1:{port}" for port in reserved.ports]})
        command = [sys.executable, "-m", "flowrt.cli.worker", "--cluster", cluster, "--probe", "--task"]
        workers, found = [], []
        for task in (0, 1):
            worker = subprocess.Popen([*command, str(task)], stdout=subprocess.PIPE, text=True)
            workers.append(stack.enter_context(worker))
            stack.callback(worker.kill)
        for task, worker in enumerate(workers):
            said, _ = worker.communicate(timeout=200)
            assert worker.returncode == 0
            *_, line, last = said.splitlines()
            assert line.startswith(f"worker {1 - task} at 127.0.0.1:")
            assert all(part in line for part in (": a ", " us, b ", " ns per byte (", "R^2 ", "by unix"))
            variable, _, links = last.partition("=")
            assert variable == LINKS_VARIABLE
            found.append(parse_links(shlex.split(links)[0]).between)
        assert found[0] == found[1] != DEFAULT_LINKS.between


@pytest.mark.parametrize(
    ("link", "lowering"), [(Link(1e-4, 1e-12), "halving_doubling"), (Link(1e-9, 1e-9), "ring")]
)
def test_all_ranks_choose_by_the_links_of_the_first(link: Link, lowering: str) -> None:
    """The others would have chosen the other one."""
    size, values = 5, arrays(5, np.float32, 1 << 16)

    def open_one(rank: int) -> PeersCommunicator:
        mesh = form_mesh(Membership("links", rank, size, addresses), new_transport())
        return PeersCommunicator(mesh, Links(Link(0, 0), link if rank == 0 else Link(link[1], link[0])))

    with ReservedPorts(size) as reserved, ThreadPoolExecutor(size) as pool:
        addresses = tuple(f"127.0.0.1:{port}" for port in reserved.ports)
        ranks = list(pool.map(open_one, range(size), timeout=SOON_S))
        try:
            sums = run_threads(ranks, lambda own: own.all_reduce(values[own.rank], "max"))
            sent = [rank.traffic.messages_sent for rank in ranks]
        finally:
            for rank in ranks:
                rank.close()
    for each in sums:
        np.testing.assert_array_equal(each, np.max(values, axis=0))
    schedule = schedule_of("AllReduce", lowering, Group(tuple(range(size))))
    assert sent == [traffic(schedule, values[0].nbytes, rank).messages for rank in range(size)]


# --- names


def test_a_group_of_one_needs_nobody() -> None:
    for kind in ("local", "shared_memory", "grpc", "auto"):
        with open_communicator(kind, Membership("one", 0, 1), new_transport()) as communicator:
            assert communicator.all_reduce(np.ones(LARGE))[-1] == 1.0
            assert communicator.traffic.bytes_sent in (0, LARGE * 8)


def test_a_rank_that_is_late_is_waited_for() -> None:
    with thread_group("shared_memory", 2) as communicators:
        late = threading.Event()

        def wait_for_it(communicator: Communicator) -> Any:
            if communicator.rank:
                assert late.wait(SOON_S)
            else:
                threading.Timer(0.2, late.set).start()
            return communicator.all_reduce(np.ones(1))[0]

        assert run_threads(communicators, wait_for_it) == [2.0, 2.0]


def test_a_deadline_is_not_an_abort_of_a_group_that_has_met() -> None:
    """The error names the call under way, not one before it."""
    with thread_group("shared_memory", 2) as communicators:
        run_threads(communicators, lambda c: c.all_reduce(np.ones(1), name="first"))
        object.__setattr__(communicators[0].membership, "timeout_s", 0.2)
        with pytest.raises(DeadlineExceededError, match="all_reduce 'second'"):
            communicators[0].all_reduce(np.ones(1), name="second")
