"""The contract over every communicator: threads of one process, and processes of one host."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest

from flowrt.distribute.collectives.communicator import Communicator
from flowrt.errors import OpError
from tests.contracts.check_collectives import (
    RANKS,
    CheckCommunicators,
    CollectiveCall,
    Meet,
    Perform,
    array,
    expected,
)
from tests.distribute.collectives.ranks import (
    Ranks,
    as_rank,
    by_call,
    come_and_leave,
    run_threads,
    thread_group,
)

SHAPES = ((4, 3), (0, 5), (1,), (300_001,), (2, 7, 1), (150_000, 3))
"""A rank's parts of the tensors of a unit: small ones, none, and more than a chunk or piece of any medium."""


class CheckNative(CheckCommunicators):
    """Communicators also move several arrays in one call."""

    @pytest.mark.parametrize("dtype", [np.float32, np.int64])
    @pytest.mark.parametrize("p", [1, 2, 3, 4])
    def test_several_arrays_in_one_call(self, perform: Perform, p: int, dtype: Any) -> None:
        rng = np.random.default_rng(p)
        given = [[array(rng, dtype, *shape) for shape in SHAPES] for _ in range(p)]
        whole = [[array(rng, dtype, p * rows, *others) for rows, *others in SHAPES] for _ in range(p)]
        calls = [CollectiveCall("AllGatherCoalesced", given)]
        calls += [CollectiveCall("ReduceScatterCoalesced", whole, {"reduction": r}) for r in ("sum", "mean")]
        for call, found in zip(calls, perform(p, calls), strict=True):
            kind = call.kind.removesuffix("Coalesced")
            for number in range(len(SHAPES)):
                alone = CollectiveCall(kind, [values[number] for values in call.values], call.attrs)
                for result, wanted in zip(found, expected(p, alone), strict=True):
                    np.testing.assert_array_equal(result[number], wanted, err_msg=f"{kind} {SHAPES[number]}")
                    assert result[number].dtype == dtype

    @pytest.mark.parametrize(
        ("arrays", "error"),
        [([], "at least one array; got none"), ([np.ones(2), np.ones(2, np.float32)], "of one dtype"),
         ([np.ones(4), np.ones(())], "got a scalar")],
    )  # fmt: skip
    def test_arrays_that_do_not_go_together(self, arrays: list[Any], error: str) -> None:
        with thread_group("local", 1) as (communicator,):
            with pytest.raises(OpError, match=error):
                communicator.all_gather_coalesced(arrays)
            np.testing.assert_array_equal(communicator.all_gather(np.ones(2)), np.ones(2))

    def test_results_are_written_where_they_are_wanted(self) -> None:
        with thread_group("local", 1) as (communicator,):
            arrays, memory = [np.arange(3.0), np.ones((2, 2))], np.zeros(8)
            outs = [memory[:3], memory[4:].reshape(2, 2)]
            found = communicator.all_gather_coalesced(arrays, outs)
            assert all(one is other for one, other in zip(found, outs, strict=True))
            np.testing.assert_array_equal(memory, [0, 1, 2, 0, 1, 1, 1, 1])
            with pytest.raises(OpError, match=r"expected an out of float64\[2, 2\]; got float64\[4\]"):
                communicator.all_gather_coalesced(arrays, [memory[:3], memory[4:]])
            with pytest.raises(OpError, match="expected 2 outs; got 1"):
                communicator.all_gather_coalesced(arrays, [memory[:3]])


class TestLocal(CheckNative):
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


class CheckProcesses(CheckNative):
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
