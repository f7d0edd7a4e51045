"""Ranks that die, do not come, disagree or give up: one typed error on all of them, nothing left behind."""

from __future__ import annotations

import re
import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from flowrt.distribute.collectives import mesh
from flowrt.distribute.collectives.communicator import Communicator
from flowrt.distribute.collectives.communicator_registry import open_communicator
from flowrt.distribute.collectives.membership import Membership
from flowrt.distribute.collectives.mesh import Mesh
from flowrt.distribute.collectives.mesh_forming import GroupAcceptor
from flowrt.distribute.launch.local_cluster import ReservedPorts
from flowrt.errors import (
    AbortedError,
    AlreadyExistsError,
    CancelledError,
    DeadlineExceededError,
    FailedPreconditionError,
    InvalidArgumentError,
    UnavailableError,
)
from flowrt.rendezvous.transport import new_transport
from tests.contracts.check_transport import wait_until
from tests.distribute.collectives.ranks import Held, Ranks, held, run_threads, thread_group

EVERY = ("local", "shared_memory", "grpc")
LARGE = 1 << 20
"""Elements: an all-reduce of it is some chunks and pieces in every medium."""


@pytest.fixture(params=EVERY)
def group(request: pytest.FixtureRequest) -> Iterator[list[Communicator]]:
    """Three ranks that wait long for each other."""
    with thread_group(request.param, 3) as communicators:
        yield communicators


@pytest.fixture(params=EVERY)
def impatient(request: pytest.FixtureRequest) -> Iterator[list[Communicator]]:
    """Two ranks that wait 0.5 s for each other, now that they have met."""
    with thread_group(request.param, 2) as communicators:
        for communicator in communicators:
            object.__setattr__(communicator.membership, "timeout_s", 0.5)
        yield communicators


# --- ranks that die


@pytest.mark.parametrize(
    ("kind", "transport"), [("shared_memory", "auto"), ("grpc", "auto"), ("grpc", "grpc")]
)
def test_a_rank_is_killed_in_the_midst_of_an_all_reduce(
    kind: str, transport: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FLOWRT_TRANSPORT", transport)
    with Ranks(3) as ranks:
        before = ranks.all(3, "held")[0]
        assert ranks.form(kind, 3) == [None] * 3
        assert ranks.all(3, "repeat", 8 * LARGE) == ["began"] * 3
        ranks.kill(2)
        for rank in (0, 1):
            error = ranks.hear(rank)
            assert isinstance(error, UnavailableError), error
            assert "rank 2 (127.0.0.1:" in str(error)
            assert "was lost" in str(error)
            assert "did it run fewer steps?" not in str(error)  # it did not end of itself
        ranks.all(2, "close")

        def holds_no_more() -> bool:
            after: Held = ranks.all(2, "held")[0]
            few = after.descriptors <= before.descriptors + 8  # gRPC keeps some of its own
            return few and (after.threads, after.segments) == (before.threads, before.segments)

        assert before.segments == 0
        wait_until(holds_no_more, "the ranks that are left hold what they did before")


@pytest.mark.parametrize("kind", EVERY)
def test_groups_that_end_leave_nothing(kind: str) -> None:
    """Whatever other tests of this process have left."""
    segments, threads = held().segments, set(threading.enumerate())

    def reduce_some(communicator: Communicator) -> None:
        for length in (1, LARGE):
            communicator.all_reduce(np.ones(length, np.float32))

    def links() -> list[threading.Thread]:
        return [t for t in threading.enumerate() if t not in threads and "127.0.0.1" in t.name]

    with thread_group(kind, 3) as group:
        run_threads(group, reduce_some)
        for communicator in group:
            communicator.close()
            communicator.close()
    wait_until(lambda: not links(), "the links' threads end")
    wait_until(lambda: held().segments <= segments, "the segments are given back")


@pytest.mark.parametrize("kind", ("shared_memory", "grpc"))
def test_a_rank_that_ended_of_itself_is_asked_for_its_steps(kind: str) -> None:
    with thread_group(kind, 2) as group:
        run_threads(group, lambda communicator: communicator.all_reduce(np.ones(4, np.float32)))
        group[1].close()
        with pytest.raises(UnavailableError, match=r"it has ended; did it run fewer steps\?"):
            group[0].all_reduce(np.ones(4, np.float32))


# --- ranks that do not come


def test_a_rank_that_does_not_come_is_named(impatient: list[Communicator]) -> None:
    with pytest.raises(DeadlineExceededError) as caught:
        impatient[0].all_reduce(np.ones(4, np.float32), name="loss")
    said = str(caught.value)
    assert "in all_reduce 'loss' sum float32[4]: expected all 2 ranks within 0.5 s; rank 1" in said


@pytest.mark.parametrize("kind", ("shared_memory", "grpc"))
def test_a_rank_that_does_not_join_is_named(kind: str) -> None:
    with ReservedPorts(2) as reserved:
        addresses = tuple(f"127.0.0.1:{port}" for port in reserved.ports)
        for rank in (0, 1):
            membership = Membership("alone", rank, 2, addresses, timeout_s=0.3)
            with pytest.raises(DeadlineExceededError, match=rf"in joining: .* rank {1 - rank} .* did not"):
                open_communicator(kind, membership, new_transport())


# --- ranks that disagree

F32, ONES = np.float32, np.ones(4, np.float32)
DIFFERENT: dict[str, tuple[Callable[[Communicator], Any], Callable[[Communicator], Any]]] = {
    "shape": (lambda c: c.all_reduce(ONES), lambda c: c.all_reduce(np.ones(5, F32))),
    "dtype": (lambda c: c.all_reduce(ONES), lambda c: c.all_reduce(np.ones(4, np.int32))),
    "reduction": (lambda c: c.all_reduce(ONES, "min"), lambda c: c.all_reduce(ONES, "max")),
    "op": (lambda c: c.all_reduce(ONES), lambda c: c.all_gather(ONES)),
    "name": (lambda c: c.all_reduce(ONES, name="w"), lambda c: c.all_reduce(ONES, name="b")),
    "root": (lambda c: c.all_reduce(ONES), lambda c: c.reduce(ONES, 0)),
    "size": (lambda c: c.all_reduce(np.ones(LARGE, F32)), lambda c: c.all_reduce(ONES)),
}


@pytest.mark.parametrize("what", DIFFERENT)
def test_ranks_that_disagree_are_shown_both_sides(group: list[Communicator], what: str) -> None:
    usual, other = DIFFERENT[what]
    before = run_threads(group, lambda c: c.all_reduce(ONES))
    assert [result[0] for result in before] == [3.0] * 3

    def call(communicator: Communicator) -> None:
        (other if communicator.rank == 1 else usual)(communicator)
        communicator.barrier()  # who has only sent hears of it here

    errors = run_threads(group, call)

    for error in errors:
        assert isinstance(error, InvalidArgumentError), error
        assert "the same calls in the same order" in str(error)
        assert "rank 1" in str(error)
        assert len(re.findall(r"rank \d [^;]*\d: ", str(error))) == 2  # what two ranks call


def test_ranks_that_change_the_order_are_shown_both_sides(group: list[Communicator]) -> None:
    def in_order(communicator: Communicator) -> None:
        names = ["a", "b"] if communicator.rank else ["b", "a"]
        for name in names:
            communicator.all_reduce(ONES, name=name)

    errors = run_threads(group, in_order)
    assert all(isinstance(error, InvalidArgumentError) for error in errors), errors
    assert "1: all_reduce 'a'" in str(errors[0])
    assert "1: all_reduce 'b'" in str(errors[0])


def test_groups_of_two_sizes_do_not_form() -> None:
    with ReservedPorts(3) as reserved:
        addresses = tuple(f"127.0.0.1:{port}" for port in reserved.ports)
        errors: list[Any] = [None, None]

        def form(rank: int) -> None:
            membership = Membership("g", rank, 2 + rank, addresses[: 2 + rank])
            try:
                open_communicator("grpc", membership, new_transport())
            except InvalidArgumentError as error:
                errors[rank] = error

        threads = [threading.Thread(target=form, args=(rank,)) for rank in (0, 1)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        for error in errors:
            assert "rank 0 has 2 ranks; got rank 1 of 3" in str(error)


def test_who_comes_after_a_rank_was_refused_is_told_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mesh, "LINGER_S", 60.0)
    with ReservedPorts(4) as reserved, ThreadPoolExecutor(2) as pool:
        addresses = tuple(f"127.0.0.1:{port}" for port in reserved.ports)

        def form(rank: int, size: int) -> str:
            membership = Membership("g", rank, size, addresses[:size])
            with pytest.raises(InvalidArgumentError) as told:
                open_communicator("grpc", membership, new_transport())
            return str(told.value)

        first, misfit = pool.submit(form, 0, 3), pool.submit(form, 2, 4)
        messages = [misfit.result(60), form(1, 3), first.result(60)]
    for message in messages:
        assert "rank 0 has 3 ranks; got rank 2 of 4" in message


@pytest.mark.parametrize("how", ["refused", "killed"])
def test_who_waits_for_a_rank_hears_that_another_one_will_not_come(how: str) -> None:
    """Rank 2, which rank 0 has admitted, dials rank 1."""
    with ReservedPorts(4) as reserved, ThreadPoolExecutor(2) as pool:
        addresses = tuple(f"127.0.0.1:{port}" for port in reserved.ports)
        first, waiting = Mesh(Membership("g", 0, 3, addresses[:3])), Membership("g", 2, 3, addresses[:3])
        listener = new_transport().listen(addresses[0], (acceptor := GroupAcceptor()).accept)
        with acceptor.admitting(first):
            last = pool.submit(open_communicator, "grpc", waiting, new_transport())
            wait_until(lambda: bool(first.kinds()), "rank 2 has come")
            if how == "refused":
                with pytest.raises(InvalidArgumentError):
                    open_communicator("grpc", Membership("g", 1, 4, addresses), new_transport())
                first.abort(InvalidArgumentError("rank 1 is of 4"))
            first.close()
        expected, said = UnavailableError, "rank 0 .* was lost"
        if how == "refused":  # by rank 0, or by rank 1 itself while that listens
            expected, said = InvalidArgumentError, "rank 1 is of 4|rank 1 has 4 ranks"
        with pytest.raises(expected, match=said):
            last.result(60)
        listener.close()


def test_a_rank_of_another_group_disturbs_nobody_and_is_told() -> None:
    with ReservedPorts(2) as reserved, ThreadPoolExecutor(1) as pool:
        addresses = tuple(f"127.0.0.1:{port}" for port in reserved.ports)

        def form(key: str, rank: int, timeout_s: float = 60.0) -> Communicator:
            membership = Membership(key, rank, 2, addresses, timeout_s)
            return open_communicator("grpc", membership, new_transport())

        def listens() -> bool:
            with socket.socket() as probe:
                return probe.connect_ex(("127.0.0.1", reserved.ports[0])) == 0

        first = pool.submit(form, "a", 0)
        wait_until(listens, "rank 0 of group 'a' listens")
        told = r"rank 0 .* did not come: .*expected rank 0 to be joining; got rank 0 of group 'a'"
        with pytest.raises(DeadlineExceededError, match=told):
            form("b", 1, 3.0)
        with form("a", 1), first.result(60):
            pass


def test_a_rank_joins_a_local_group_once() -> None:
    with open_communicator("local", Membership("twice", 0, 2)):
        with pytest.raises(AlreadyExistsError, match="each rank once; got 0 again"):
            open_communicator("local", Membership("twice", 0, 2))
        open_communicator("local", Membership("twice", 1, 2))


# --- ranks that give up


def test_an_abort_reaches_a_rank_that_waits(group: list[Communicator]) -> None:
    def wait_or_abort(communicator: Communicator) -> Any:
        if communicator.rank == 1:
            communicator.abort(AbortedError("the loss is not a number"))
            return communicator.barrier()
        return communicator.all_reduce(ONES)

    errors = run_threads(group, wait_or_abort)
    assert all(isinstance(error, AbortedError) for error in errors), errors
    assert all("the loss is not a number" in str(error) for error in errors)


def test_a_rank_that_closes_is_named_by_who_needs_it(group: list[Communicator]) -> None:
    run_threads(group, lambda c: c.barrier())
    group[0].close()
    errors = run_threads(group[1:], lambda c: c.all_reduce(ONES))
    assert all(isinstance(error, UnavailableError) for error in errors), errors
    assert all("rank 0" in str(error) for error in errors)
    with pytest.raises(CancelledError, match="was closed"):
        group[0].barrier()


# --- arguments: nothing is begun


@pytest.mark.parametrize(
    ("call", "expected"),
    [
        (lambda c: c.all_reduce(ONES, "median"), "expected sum, mean, prod, min, max; got 'median'"),
        (lambda c: c.all_reduce(np.array(["a"])), "expected an array of numbers; got <U1"),
        (lambda c: c.all_reduce(np.ones(2, bool)), "expected a dtype that it supports; got bool"),
        (lambda c: c.all_reduce(ONES, out=ONES[:3]), r"expected an out of float32\[4\]; got float32\[3\]"),
        (lambda c: c.all_reduce(ONES, out=np.ones(8, F32)[::2]), "expected a contiguous, writable out"),
        (lambda c: c.all_reduce(ONES, out=[1.0]), r"expected an out of float32\[4\]; got list"),
        (lambda c: c.reduce(ONES, 3), "expected a root of 0 to 2; got 3"),
        (lambda c: c.gather(np.float32(1)), r"expected an array \[n, ...\]; got a scalar"),
        (lambda c: c.reduce_scatter(ONES), r"expected an array \[3 \* n, ...\]; got \[4\]"),
        (lambda c: c.scatter(None if c.rank else ONES, out=None), "scatter: expected|expected an array"),
        (lambda c: c.reduce(ONES, (c.rank + 1) % 3, out=ONES.copy()), "expected an out only on the root"),
    ],
)  # fmt: skip
def test_wrong_arguments_begin_nothing(call: Callable[[Communicator], Any], expected: str) -> None:
    with thread_group("local", 3) as communicators:
        for communicator in communicators:
            with pytest.raises(InvalidArgumentError, match=expected):
                call(communicator)
        results = run_threads(communicators, lambda c: c.all_reduce(ONES))
        assert [result[0] for result in results] == [3.0] * 3


def test_one_call_at_a_time(group: list[Communicator]) -> None:
    """Of two threads that wait for the other ranks one is refused, and the other waits on."""

    def call(communicator: Communicator) -> None:
        try:
            communicator.barrier()
        except FailedPreconditionError:
            communicator.abort(AbortedError("it was refused"))
            raise

    errors = run_threads(group[:1] * 2, call)
    assert {type(error) for error in errors} == {FailedPreconditionError, AbortedError}
    assert any("expected one call at a time" in str(error) for error in errors)


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("g", 2, 2), "expected a rank of 0 to 1; got 2"),
        (("g", 0, 2, ("a:1",)), "expected an address for each of 2 ranks; got 1"),
        (("g", 0, 1, (), 0.0), "expected timeout_s > 0; got 0"),
    ],
)
def test_memberships_check_themselves(arguments: Any, expected: str) -> None:
    with pytest.raises(InvalidArgumentError, match=expected):
        Membership(*arguments)


@pytest.mark.parametrize("name", ("hccl", "gloo", "oneccl"))
def test_what_flowrt_does_not_have_is_refused_by_name(name: str) -> None:
    with pytest.raises(UnavailableError, match=f"communicator {name}: unavailable; flowrt has local, "):
        open_communicator(name, Membership("g", 0, 1))


def test_a_name_that_is_none_is_refused() -> None:
    with pytest.raises(InvalidArgumentError, match=r"expected local, .* got 'smoke'"):
        open_communicator("smoke", Membership("g", 0, 1))
