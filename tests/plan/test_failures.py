"""Closed forms for stragglers and failures, against simulation and against their own optimum."""

from __future__ import annotations

import doctest
import math
import random
from statistics import mean

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowrt.distribute.parameter_server.consistency import Backup
from flowrt.errors import InvalidArgumentError
from flowrt.plan.replay import failures
from flowrt.plan.replay.failures import Failures, Stragglers, job_mean
from flowrt.plan.replay.network import Fabric
from flowrt.plan.replay.parameter_servers import Job, train
from tests.each import nightly


def test_examples() -> None:
    assert doctest.testmod(failures).attempted
    assert not doctest.testmod(failures).failed


# --- stragglers


@pytest.mark.parametrize("backups", nightly([1, 0, 3], 1))
def test_updates_take_as_long_as_with_simulated_servers(backups: int) -> None:
    stragglers = Stragglers(2.0, 0.5)
    job = Job(
        10, [0.0], [0.0], lambda rng, worker: 2.0 + rng.expovariate(2.0), Backup(backups), abandons=True
    )
    simulated = train(job, Fabric(11), updates=3000).seconds
    assert stragglers.update_seconds(10, backups) == pytest.approx(simulated, rel=0.01)


def test_late_workers_that_finish_what_they_compute_make_updates_slower() -> None:
    job = Job(10, [0.0], [0.0], lambda rng, worker: rng.expovariate(1.0), Backup(3))
    assert train(job, Fabric(11), updates=1000).seconds > 1.05 * Stragglers(0, 1).update_seconds(10, 3)


def test_backup_workers_pay_where_the_tail_is_long() -> None:
    assert Stragglers(1.0, 0.0).best_backups(50) == 0
    assert Stragglers(1.0, 0.0).share_lost(50) == 0
    best = Stragglers(1.0, 0.3).best_backups(50)
    assert 0 < best < 25
    assert Stragglers(1.0, 0.01).best_backups(50) <= best


@given(st.integers(1, 60), st.floats(0, 10), st.floats(0, 10))
def test_more_backups_are_never_slower(workers: int, least: float, tail: float) -> None:
    times = [Stragglers(least, tail).update_seconds(workers, backups) for backups in range(workers)]
    assert times == sorted(times, reverse=True)
    assert times[-1] >= least


# --- failures


def simulate(model: Failures, intervals: int, interval: float, rng: random.Random) -> tuple[float, int]:
    """Seconds and failures of one job: each attempt at an interval, and at a restart, takes its time unless
    a failure comes first.
    """
    seconds, count = 0.0, 0
    next_failure = rng.expovariate(1 / model.mean)

    def attempt(duration: float) -> bool:
        nonlocal seconds, count, next_failure
        if seconds + duration <= next_failure:
            seconds += duration
            return True
        seconds, count = next_failure, count + 1
        next_failure = seconds + rng.expovariate(1 / model.mean)
        return False

    for _ in range(intervals):
        while not attempt(interval + model.checkpoint):
            while not attempt(model.restart):
                pass
    return seconds, count


@pytest.mark.parametrize(
    ("model", "interval"),
    [
        (Failures(1000, 10, 50), 140.0),
        (Failures(100, 10, 30), 40.0),
        (Failures(100, 1, 0), 5.0),
        (Failures(20, 10, 10), 20.0),
    ],
)
def test_the_outlook_is_the_mean_of_simulated_jobs(model: Failures, interval: float) -> None:
    rng = random.Random(3)
    runs = [simulate(model, 50, interval, rng) for _ in range(800)]
    outlook = model.outlook(50 * interval, interval)
    assert outlook.seconds == pytest.approx(mean(seconds for seconds, _ in runs), rel=0.02)
    assert outlook.restarts == pytest.approx(mean(count for _, count in runs), rel=0.03)
    assert outlook.efficiency == pytest.approx(50 * interval / outlook.seconds)


def best_interval(model: Failures) -> float:
    """By bisection of the derivative of the seconds: where ``exp(-(interval + checkpoint) / mean)`` is
    ``1 - interval / mean``.
    """
    low, high = 0.0, model.mean
    for _ in range(200):
        middle = (low + high) / 2
        is_below = math.exp(-(middle + model.checkpoint) / model.mean) < 1 - middle / model.mean
        low, high = (middle, high) if is_below else (low, middle)
    return low


@given(st.floats(1e-3, 1.9))
def test_the_intervals_are_near_the_best_one(share: float) -> None:
    model = Failures(1000.0, share * 1000.0, 10.0)
    best = model.outlook(1e5, best_interval(model)).seconds
    for other in (0.99, 1.01):
        assert model.outlook(1e5, best_interval(model) * other).seconds >= best
    assert (1 - 1e-12) * best <= model.outlook(1e5).seconds <= 1.02 * best
    if share < 0.02:
        assert model.outlook(1e5, model.young_interval).seconds <= 1.001 * best
        assert model.daly_interval == pytest.approx(best_interval(model), rel=0.001)


def test_published_formulas() -> None:
    model = Failures(mean=24 * 3600, checkpoint=300)
    assert model.young_interval == math.sqrt(2 * 300 * 24 * 3600)
    assert model.young_interval == pytest.approx(7200)
    assert model.daly_interval == pytest.approx(7200 * (1 + 1 / 72 + 1 / 5184) - 300)
    assert Failures(10, 20).daly_interval == 10


def test_failures_come_as_often_as_there_are_devices() -> None:
    assert job_mean(1e8, 1000) == 1e5
    few, many = (Failures(job_mean(1e8, devices), 60, 300).outlook(1e6) for devices in (10, 10_000))
    assert few.efficiency > many.efficiency
    assert few.restarts < many.restarts
    assert few.interval > many.interval


def test_an_interval_without_an_end() -> None:
    outlook = Failures(1.0, 1.0).outlook(10.0, 1000.0)
    assert (outlook.seconds, outlook.restarts, outlook.efficiency) == (math.inf, math.inf, 0.0)


@pytest.mark.parametrize(
    ("call", "expected"),
    [
        (lambda: Failures(0, 1), "mean: expected seconds above 0"),
        (lambda: Failures(1, 0), "checkpoint: expected seconds above 0"),
        (lambda: Failures(1, 1, -1), "restart: expected a finite number >= 0; got -1"),
        (lambda: Failures(math.inf, 1), "mean: expected a finite number"),
        (lambda: Failures(1, 1).outlook(1, 0), "interval 0"),
        (lambda: Failures(1, 1).outlook(-1), "work: expected a finite number >= 0"),
        (lambda: Stragglers(-1, 1), "least: expected a finite number >= 0; got -1"),
        (lambda: Stragglers(1, 1).update_seconds(3, 3), "expected 0 to 2 of 3 workers; got 3"),
        (lambda: job_mean(1.0, 0), "devices: expected at least 1; got 0"),
    ],
)
def test_wrong_numbers(call, expected: str) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(InvalidArgumentError, match=expected):
        call()
