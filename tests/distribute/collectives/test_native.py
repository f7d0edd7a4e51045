"""The contract over every communicator: threads of one process, and processes of one host."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from flowrt.distribute.collectives.communicator import Communicator
from tests.contracts.check_collectives import RANKS, CheckCommunicators, CollectiveCall, Meet, Perform
from tests.distribute.collectives.ranks import (
    Ranks,
    as_rank,
    by_call,
    come_and_leave,
    run_threads,
    thread_group,
)


class TestLocal(CheckCommunicators):
    @pytest.fixture
    def perform(self) -> Perform:
        return perform_on_threads

    @pytest.fixture
    def meet(self) -> Meet:
        def meet(size: int) -> list[tuple[float, float]]:
            with thread_group("local", size) as communicators:
                return run_threads(communicators, come_and_leave)

        return meet


def perform_on_threads(size: int, calls: Sequence[CollectiveCall]) -> list[list[Any]]:
    def make_all(communicator: Communicator) -> list[Any]:
        return [as_rank(call, communicator.rank, size).make(communicator) for call in calls]

    with thread_group("local", size) as communicators:
        return by_call(run_threads(communicators, make_all))


@pytest.fixture(scope="module")
def processes() -> Iterator[Ranks]:
    with Ranks(max(RANKS)) as ranks:
        yield ranks


class CheckProcesses(CheckCommunicators):
    """Groups of processes."""

    kind: str

    @pytest.fixture
    def perform(self, processes: Ranks) -> Perform:
        def perform(size: int, calls: Sequence[CollectiveCall]) -> list[list[Any]]:
            assert processes.form(self.kind, size) == [None] * size
            return processes.perform(size, calls)

        return perform

    @pytest.fixture
    def meet(self, processes: Ranks) -> Meet:
        def meet(size: int) -> list[tuple[float, float]]:
            assert processes.form(self.kind, size) == [None] * size
            return processes.all(size, "meet")

        return meet


class TestSharedMemory(CheckProcesses):
    kind = "shared_memory"


class TestOverPeers(CheckProcesses):
    kind = "grpc"
