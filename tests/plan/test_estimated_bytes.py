"""The bytes of a device by which choices are searched are about those of the memory plans that are played."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import pytest

from benchmarks.planned import cluster, gpt, task_of
from flowrt.plan.choice import Choice
from flowrt.plan.stage_search import describe, estimate
from flowrt.plan.task import Task

pytestmark = pytest.mark.slow

CHOICES = [
    Choice(dp=8),
    Choice(dp=8, sharding=1),
    Choice(dp=8, sharding=3, micro_batches=2),
    Choice(dp=2, pp=4, micro_batches=8),
    Choice(dp=2, pp=4, micro_batches=8, schedule="interleaved", chunks=2),
    Choice(dp=4, pp=2, micro_batches=4, schedule="zb_h1"),
    Choice(dp=2, tp=2, pp=2, micro_batches=8),
]


@cache
def task() -> Task:
    """A GPT of 8 blocks on a host of 8 devices."""
    return task_of(gpt(8, 64, 128, 128, 4, 1000), cluster(1, 1))


def bytes_of(choice: Choice) -> tuple[int, int]:
    """The bytes by the estimate, and those that are played."""
    shared = task().shared()[choice.tp]
    choice = replace(choice, layouts=shared.layouts)
    programs, _ = task()._player(choice)
    found = estimate(choice, task().model(choice.stages), shared, task().machine, task().recorded.batch)
    return found.nbytes, max(program.peak_bytes for program in programs)


@pytest.mark.parametrize("choice", CHOICES, ids=describe)
def test_estimated_bytes_are_those_of_the_play(choice: Choice) -> None:
    estimated, played = bytes_of(choice)
    assert estimated == pytest.approx(played, rel=0.08)


@pytest.mark.parametrize("schedule", ["1f1b", "zb_h1"])
def test_what_is_computed_again_is_not_left_out(schedule: str) -> None:
    """Of a split backward pass it stays until the gradients of weights, which are put off."""
    estimated, played = bytes_of(Choice(dp=4, pp=2, micro_batches=4, schedule=schedule, remat=True))
    assert 0.85 * played < estimated < 1.3 * played
