"""The replay against another way to compute it, and against times worked out by hand."""

from __future__ import annotations

import dataclasses
import math
from fractions import Fraction
from graphlib import TopologicalSorter
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowrt.errors import InvalidArgumentError
from flowrt.graph.pipeline.actions import Action, Schedule, dependencies
from flowrt.graph.pipeline.replay import replay
from flowrt.graph.pipeline.schedule_file import parse_schedule
from flowrt.graph.pipeline.schedules import order
from flowrt.graph.pipeline.times import Number, Times
from tests.graph.pipeline.strategies import fractions, schedules, times


def longest_paths(schedule: Schedule, each: Times, hop: Number) -> dict[Action, Number]:
    """The end of each action, as the longest path to it in the graph of all waits."""
    waits: dict[Action, list[tuple[Action, Number]]] = {}
    for line in schedule.actions:
        for action in line:
            waits[action] = [
                (needed, 0 if schedule.device_of(needed.stage) == schedule.device_of(action.stage) else hop)
                for needed in dependencies(action, schedule.stages)
            ]
        for before, after in pairwise(line):
            waits[after].append((before, 0))
    takes = {"F": each.f, "I": each.i, "W": each.w, "B": each.i + each.w}
    ends: dict[Action, Number] = {}
    for action in TopologicalSorter(
        {action: [needed for needed, _ in all_needed] for action, all_needed in waits.items()}
    ).static_order():
        start = max((ends[needed] + extra for needed, extra in waits[action]), default=0)
        ends[action] = start + Fraction(takes[action.kind]) / schedule.chunks
    return ends


@given(schedules(), times, fractions)
def test_ends_are_the_longest_paths(schedule: Schedule, each: Times, hop: Fraction) -> None:
    played = replay(schedule, each, hop)
    assert played.end == longest_paths(schedule, each, hop)
    assert all(played.end[action] - played.start[action] >= 0 for line in schedule.actions for action in line)


@given(schedules(), times)
def test_equal_stages_may_be_given_one_by_one(schedule: Schedule, each: Times) -> None:
    per_stage = Times(*(Fraction(time) / schedule.chunks for time in each))
    assert replay(schedule, [per_stage] * schedule.stages).end == replay(schedule, each).end


def test_sends_take_their_time_between_devices_only() -> None:
    played = replay(parse_schedule("0F0 3F0 3B0 0B0\n1F0 2F0 2B0 1B0"), [Times(1, 1, 1)] * 4, hop=2)
    ends = [int(end) for _, end in sorted(played.end.items(), key=lambda pair: pair[1])]
    #       F0 F1 F2 F3 B3 B2  B1  B0
    assert ends == [1, 4, 5, 8, 10, 14, 16, 20]


def test_stages_of_different_times() -> None:
    played = replay(parse_schedule("F0 B0\nF0 B0"), [Times(3, 1, 1), Times(1, 0.5, 0.25)])
    assert played.end[Action("B", 1, 0)] == Fraction("4.75")
    assert played.makespan == Fraction("6.75")
    assert played.busy == (5, Fraction("1.75"))
    assert played.bubble == Fraction("1.75")
    assert played.spans == (Fraction("6.75"), Fraction("1.75"))


def test_floats_are_not_rounded() -> None:
    each = Times(0.1, 0.2, 0.3)
    exact = Times(*map(Fraction, each))
    assert replay(order("zb_h1", 4, 8), each).makespan == replay(order("zb_h1", 4, 8), exact).makespan


def test_activations_over_time() -> None:
    """1F1B on device 0 of 2, with 3 micro-batches: from F's start until B's end."""
    played = replay(order("1f1b", 2, 3), Times(1, 1, 1))
    assert [[int(x) for x in pair] for pair in played.activations(0)] == [
        [0, 1], [1, 2], [6, 1], [6, 2], [9, 1], [12, 0],
    ]  # fmt: skip
    assert played.peaks == (2, 1)


def test_activations_of_split_passes_are_held_until_w() -> None:
    played = replay(parse_schedule("F0 I0 F1 I1 W0 W1"))
    assert [[int(x) for x in pair] for pair in played.activations(0)] == [[0, 1], [2, 2], [5, 1], [6, 0]]


@given(schedules(), times)
def test_peaks_are_the_maxima_over_time(schedule: Schedule, each: Times) -> None:
    played = replay(schedule, each)
    for device, peak in enumerate(played.peaks):
        held = played.activations(device)
        assert held[-1][1] == 0
        assert max(number for _, number in held) == peak


@pytest.mark.parametrize(
    "given_times, message",
    [
        (Times(-1, 1, 1), "times: expected finite numbers >= 0; got -1"),
        (Times(1, math.nan, 1), "times: expected finite numbers >= 0; got nan"),
        (Times(1, 1, "1"), "times: expected finite numbers >= 0; got '1'"),  # type: ignore[arg-type]
        ([Times()] * 3, "times: expected one Times, or 4, one per stage; got 3"),
        (
            [Times(), Times(), Times(), Times(w=math.inf)],
            "times of stage 3: expected finite numbers >= 0; got inf",
        ),
    ],
)
def test_times_that_are_none(given_times: Any, message: str) -> None:
    with pytest.raises(InvalidArgumentError, match=message):
        replay(order("1f1b", 4, 8), given_times)


def test_a_negative_hop() -> None:
    with pytest.raises(InvalidArgumentError, match="hop: expected finite numbers >= 0; got -1"):
        replay(order("1f1b", 4, 8), hop=-1)


@given(st.integers(2, 4))
def test_a_cycle_is_not_played(devices: int) -> None:
    schedule = order("gpipe", devices, 2)
    backwards_first = dataclasses.replace(schedule, actions=tuple(line[::-1] for line in schedule.actions))
    with pytest.raises(
        InvalidArgumentError, match=r"schedule 'gpipe': expected no cycle; got B\(0,1\) after "
    ):
        replay(backwards_first)
