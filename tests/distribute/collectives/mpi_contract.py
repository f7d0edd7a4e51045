"""The contract over MPI itself: run by pytest in every rank under ``mpirun``, see `test_native_mpi.py`.

Every rank runs the same tests, makes its own part of each call, and checks what it gets itself. A group is as
large as the world, so the tests of other numbers of ranks are skipped: each number has a world of its own.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest

from flowrt.distribute.collectives.communicator import Communicator
from flowrt.distribute.collectives.communicator_registry import open_communicator
from flowrt.distribute.collectives.membership import Membership
from flowrt.errors import AbortedError, DeadlineExceededError, FailedPreconditionError, InvalidArgumentError
from flowrt.rendezvous.mpi.mpi_channel import open_world
from tests.contracts.check_collectives import CheckCommunicators, CollectiveCall, Meet, Perform, expected
from tests.distribute.collectives.ranks import as_rank, come_and_leave


def open_mpi() -> Communicator:
    world = open_world()
    return open_communicator("mpi", Membership("world", world.rank, world.size))


@pytest.fixture(scope="module")
def communicator() -> Iterator[Communicator]:
    with open_mpi() as opened:
        yield opened


class TestMpi(CheckCommunicators):
    @pytest.fixture
    def perform(self, communicator: Communicator) -> Perform:
        def perform(size: int, calls: Sequence[CollectiveCall]) -> list[list[Any]]:
            if size != communicator.size:
                pytest.skip(f"the world has {communicator.size} ranks")
            return [make(communicator, call) for call in calls]

        return perform

    @pytest.fixture
    def meet(self, communicator: Communicator) -> Meet:
        def meet(size: int) -> list[tuple[float, float]]:
            if size != communicator.size:
                pytest.skip(f"the world has {communicator.size} ranks")
            came, left = communicator.all_gather(np.array([come_and_leave(communicator)])).T
            return list(zip(came, left, strict=True))

        return meet

    def test_every_rank_gets_the_same_bits(self, communicator: Communicator) -> None:
        """Of what all have got: elsewhere NumPy's results stand for the others'."""
        own = np.random.default_rng(communicator.rank).standard_normal(1001).astype(np.float32)
        total = communicator.all_reduce(own)
        for found in communicator.all_gather(total[None]):
            np.testing.assert_array_equal(found, total)


def make(communicator: Communicator, call: CollectiveCall) -> list[Any]:
    """The own result, and in the place of the others' what NumPy says."""
    rank, size = communicator.rank, communicator.size
    results = list(expected(size, call))
    results[rank] = as_rank(call, rank, size).make(communicator)
    return results


needs_others = pytest.mark.skipif(open_world().size == 1, reason="a world of one rank")


@needs_others
def test_ranks_that_disagree_are_shown_both_sides() -> None:
    with open_mpi() as communicator:
        length = 4 + communicator.rank
        with pytest.raises(InvalidArgumentError, match=r"rank 0.* 1: all_reduce sum float64\[4\]"):
            communicator.all_reduce(np.ones(length))


@needs_others
def test_an_abort_reaches_a_rank_that_waits() -> None:
    with open_mpi() as communicator:
        if communicator.rank:
            communicator.abort(AbortedError("the loss is not a number"))
        with pytest.raises(AbortedError, match="the loss is not a number"):
            communicator.barrier()


@needs_others
def test_a_rank_that_does_not_come_is_named() -> None:
    with open_mpi() as communicator:
        communicator.barrier()
        object.__setattr__(communicator.membership, "timeout_s", 0.5)
        if not communicator.rank:
            with pytest.raises(DeadlineExceededError, match=r"within 0\.5 s"):
                communicator.barrier()


def test_the_membership_is_the_worlds() -> None:
    with pytest.raises(FailedPreconditionError, match="expected MPI's rank"):
        open_communicator("mpi", Membership("g", 0, open_world().size + 1))
