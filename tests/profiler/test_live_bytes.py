"""Bytes of tensors that are alive."""

from __future__ import annotations

from typing import Any

from hypothesis import given

from flowrt.profiler.costs import live_bytes
from flowrt.profiler.steps import read_step
from flowrt.protos.step_stats_pb2 import StepStats
from tests.profiler.made_stats import BASE, DEVICES, add, several_stats

DEVICE = DEVICES[0]


def test_a_tensor_lives_until_its_last_reader_has_ended() -> None:
    stats = StepStats()
    add(stats, DEVICE, "a = Op()", BASE, BASE + 10, nbytes=100)
    add(stats, DEVICE, "b = Op(a)", BASE + 10, BASE + 20, nbytes=10)
    add(stats, DEVICE, "c = Op(a, b)", BASE + 20, BASE + 30, nbytes=1)
    add(stats, DEVICE, "d = Op()", BASE + 30, BASE + 50)
    samples = [(at - BASE, nbytes) for at, nbytes in live_bytes(read_step(stats))[DEVICE]]
    assert samples == [(0, 100), (10, 110), (20, 111), (30, 1), (50, 0)]


def test_what_a_loop_makes_again_takes_the_place_of_what_it_was() -> None:
    stats = StepStats()
    for i in range(100):
        add(stats, DEVICE, "a = Op()", BASE + 10 * i, BASE + 10 * i + 10, nbytes=100)
    assert max(nbytes for _, nbytes in live_bytes(read_step(stats))[DEVICE]) == 100


@given(several_stats())
def test_nothing_is_left_at_the_end_and_never_less_than_nothing(steps: list[Any]) -> None:
    for stats in steps:
        step = read_step(stats)
        for samples in live_bytes(step).values():
            assert samples == sorted(samples)
            assert min(nbytes for _, nbytes in samples) >= 0
            assert samples[-1] == (samples[-1][0], 0)
            assert step.start <= samples[0][0] <= samples[-1][0] <= step.end
