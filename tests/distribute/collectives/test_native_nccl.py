"""The communicator over NCCL, without a GPU: the calls that it makes, over a stand-in for NCCL."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from flowrt.distribute.collectives import nccl
from flowrt.distribute.collectives.communicator import Communicator
from flowrt.distribute.collectives.communicator_registry import open_communicator
from flowrt.distribute.collectives.membership import Membership
from flowrt.errors import DeadlineExceededError, FailedPreconditionError, InvalidArgumentError, OpError
from flowrt.rendezvous.transport import new_transport
from tests.contracts.check_collectives import CheckCommunicators, CollectiveCall, Meet, Perform
from tests.distribute.collectives.pretend_nccl import Cupy, Nccl
from tests.distribute.collectives.ranks import as_rank, by_call, come_and_leave, run_threads, thread_group


@pytest.fixture(autouse=True)
def pretended(monkeypatch: pytest.MonkeyPatch) -> None:
    cupy = Cupy()
    library = Nccl(cupy)
    monkeypatch.setattr(nccl, "load_cupy", lambda: cupy)
    monkeypatch.setattr(nccl, "load_nccl", lambda: library)


def perform_on_gpus(size: int, calls: Sequence[CollectiveCall]) -> list[list[Any]]:
    def make_all(communicator: Communicator) -> list[Any]:
        return [make(communicator, call) for call in calls]

    with thread_group("nccl", size) as communicators:
        return by_call(run_threads(communicators, make_all))


def make(communicator: Communicator, call: CollectiveCall) -> Any:
    mine = as_rank(call, communicator.rank, communicator.size)
    on_device = communicator.xp.asarray
    arguments = [on_device(a) if isinstance(a, np.ndarray) else a for a in mine.arguments]
    options = {k: on_device(v) if isinstance(v, np.ndarray) else v for k, v in mine.options.items()}
    result = mine._replace(arguments=arguments, options=options).make(communicator)
    return None if result is None else np.asarray(result)


class TestNccl(CheckCommunicators):
    @pytest.fixture
    def perform(self) -> Perform:
        return perform_on_gpus

    @pytest.fixture
    def meet(self) -> Meet:
        def meet(size: int) -> list[tuple[float, float]]:
            with thread_group("nccl", size) as communicators:
                return run_threads(communicators, come_and_leave)

        return meet


def test_ranks_that_disagree_are_shown_both_sides() -> None:
    with thread_group("nccl", 2) as communicators:
        errors = run_threads(communicators, lambda c: c.all_reduce(np.ones(4 + c.rank)))
    assert all(isinstance(error, OpError) for error in errors), errors
    assert any(isinstance(error, InvalidArgumentError) for error in errors), errors


def test_a_rank_that_does_not_come_is_named() -> None:
    with thread_group("nccl", 2) as communicators:
        object.__setattr__(communicators[0].membership, "timeout_s", 0.3)
        with pytest.raises(DeadlineExceededError, match=r"rank 1 .* did not come"):
            communicators[0].all_reduce(np.ones(4))


def test_without_a_gpu_it_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    with pytest.raises(FailedPreconditionError, match="GPU: expected a CUDA device"):
        open_communicator("nccl", Membership("g", 0, 1), new_transport())
