"""Clusters under a virtual clock, one a seed. What must hold stands at the head of `simulation`."""

from __future__ import annotations

import secrets

import pytest

from tests.distribute.simulation import Simulation
from tests.each import nightly

CHUNK = 50


def check(seed: int) -> None:
    try:
        Simulation(seed).run()
    except Exception as failure:
        replay = f"python -m tests.distribute.simulation --seed {seed}"
        raise AssertionError(f"seed {seed}: {failure!r}\nreplay: {replay}") from failure


@pytest.mark.parametrize("first", nightly(range(0, 500, CHUNK), 1))
def test_what_must_hold_holds(first: int) -> None:
    for seed in range(first, first + CHUNK):
        check(seed)


@pytest.mark.slow
@pytest.mark.parametrize("part", range(10_000 // CHUNK))
def test_what_must_hold_holds_in_schedules_that_nobody_has_seen(part: int) -> None:
    """10,000 fresh seeds a night: 10 minutes of the processor, 3 s a part."""
    first = secrets.randbits(60)
    print(f"seeds {first} to {first + CHUNK - 1}")
    for seed in range(first, first + CHUNK):
        check(seed)


@pytest.mark.parametrize("seed", [3, 14])
def test_a_seed_decides_everything(seed: int) -> None:
    first: list[str] = []
    again: list[str] = []
    Simulation(seed, first.append).run()
    Simulation(seed, again.append).run()
    assert first == again
    assert len(first) > 50
