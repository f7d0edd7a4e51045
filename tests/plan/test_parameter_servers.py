"""Training with parameter servers under a virtual clock: by hand where it can be, and its order of modes."""

from __future__ import annotations

import random

import pytest

from flowrt.distribute.parameter_server.consistency import Async, Backup, Mode, StaleSynchronous, Sync
from flowrt.errors import InvalidArgumentError
from flowrt.plan.replay.network import Fabric
from flowrt.plan.replay.parameter_servers import Job, Trained, train


def exponential(rng: random.Random, worker: int) -> float:
    return rng.expovariate(1.0)


def run(mode: Mode, workers: int = 8, updates: int = 400, **more: bool) -> Trained:
    return train(Job(workers, [0.0], [0.0], exponential, mode, **more), Fabric(1 + workers), updates)


def test_a_synchronous_step_is_latency_pull_compute_push() -> None:
    """Three workers pull 30 bytes from each of two servers of 10 bytes a second, then push 10."""
    job = Job(3, [30.0, 30.0], [10.0, 10.0], lambda rng, worker: 1.0 + worker, Sync())
    trained = train(job, Fabric(5, 10.0, latency_s=0.25), updates=4)
    step = 0.5 + (0.25 + 9.0) + 3.0 + (0.25 + 2.0) + 0.25
    first = step - 0.25  # a worker's own port is full when it pushes; those of the servers are not
    assert trained.updates[0] == pytest.approx([first + number * step for number in range(4)])
    assert trained.dropped == 0
    assert trained.used == 3 * 4 * 2


def test_the_slowest_worker_decides_unless_there_is_a_backup() -> None:
    def seconds(mode: Mode) -> float:
        job = Job(5, [0.0], [0.0], lambda rng, worker: 10.0 if worker == 4 else 1.0, mode)
        return train(job, Fabric(6), updates=50).seconds

    assert seconds(Sync()) == pytest.approx(10.0)
    assert seconds(Backup(1)) == pytest.approx(1.0)


def test_asynchronous_updates_come_at_the_sum_of_the_workers_rates() -> None:
    trained = run(Async(), updates=8000)
    assert trained.seconds == pytest.approx(1 / 8, rel=0.05)
    ages = sum(age * count for age, count in trained.staleness.items()) / trained.used
    assert ages == pytest.approx(7, rel=0.05)  # all others have made a step in the meantime


def test_less_waiting_with_more_staleness() -> None:
    seconds = [run(StaleSynchronous(each)).seconds for each in (0, 1, 4, 16)]
    # a synchronous update is one of 8 gradients; the others are of one each
    rates = [8 / seconds[0], *(1 / each for each in seconds[1:])]
    assert rates == sorted(rates)


def test_late_gradients_are_dropped_and_abandoning_them_is_faster() -> None:
    finished, abandoned = run(Backup(3)), run(Backup(3), abandons=True)
    assert finished.dropped > 0
    assert abandoned.dropped == 0
    assert abandoned.seconds < finished.seconds


def test_a_seed_decides_everything() -> None:
    job = Job(4, [5.0, 7.0], [5.0, 7.0], exponential, Async())
    one, again, other = (train(job, Fabric(6, 10.0, 0.1), 50, seed) for seed in (1, 1, 2))
    assert one == again != other


@pytest.mark.parametrize(
    ("job", "hosts", "expected"),
    [
        (Job(1, [], [], exponential, Sync()), 9, "got 0 and 0 sizes"),
        (Job(1, [1.0], [], exponential, Sync()), 9, "got 1 and 0 sizes"),
        (Job(0, [1.0], [1.0], exponential, Sync()), 9, "0 workers"),
        (Job(4, [1.0], [1.0], exponential, Sync()), 4, "at least 5 hosts"),
        (Job(2, [1.0], [1.0], exponential, Backup(2)), 4, "expected 0 to 1 of 2 workers"),
    ],
)
def test_a_wrong_job(job: Job, hosts: int, expected: str) -> None:
    with pytest.raises(InvalidArgumentError, match=expected):
        train(job, Fabric(hosts), updates=1)
