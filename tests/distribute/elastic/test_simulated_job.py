"""Elastic jobs under a virtual clock, one a seed. What must hold stands at the head of `simulation`."""

from __future__ import annotations

import secrets

import pytest

from tests.distribute.elastic.simulation import simulate
from tests.each import nightly

CHUNK = 50


def check(first: int, count: int) -> int:
    """The number of epochs that were formed."""
    num_epochs = 0
    for seed in range(first, first + count):
        try:
            num_epochs += simulate(seed).num_epochs
        except Exception as failure:
            replay = f"python -m tests.distribute.elastic.simulation --seed {seed}"
            raise AssertionError(f"seed {seed}: {failure!r}\nreplay: {replay}") from failure
    return num_epochs


@pytest.mark.parametrize("first", nightly(range(0, 5000, CHUNK), 1))
def test_what_must_hold_holds_when_members_come_and_go(first: int) -> None:
    assert check(first, CHUNK) > CHUNK, "groups change"


@pytest.mark.slow
@pytest.mark.parametrize("part", range(5000 // CHUNK))
def test_what_must_hold_holds_in_jobs_that_nobody_has_seen(part: int) -> None:
    """5,000 fresh seeds a night: a minute of the processor."""
    first = secrets.randbits(60)
    print(f"seeds {first} to {first + CHUNK - 1}")
    check(first, CHUNK)


def test_a_job_to_which_nobody_comes_ends() -> None:
    """The only worker is cut off before it joins."""
    job = simulate(861359159739364561)
    assert (job.num_epochs, len(job.ends)) == (0, 1)


def test_a_seed_decides_everything() -> None:
    first: list[str] = []
    again: list[str] = []
    simulate(10, first.append)
    simulate(10, again.append)
    assert first == again
    assert len(first) > 20
