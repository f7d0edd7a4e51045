"""Greedy schedules and the choice among all: valid, within the memory, never slower than a published one."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flowrt.errors import InvalidArgumentError
from flowrt.graph.pipeline.actions import Schedule
from flowrt.graph.pipeline.greedy import greedy_schedule
from flowrt.graph.pipeline.replay import peaks, replay
from flowrt.graph.pipeline.schedules import TABLE, order
from flowrt.graph.pipeline.search import best_schedule
from flowrt.graph.pipeline.times import Times, in_ticks
from flowrt.graph.pipeline.validate import validate
from tests.graph.pipeline.strategies import fractions, times


@given(
    st.integers(1, 4), st.integers(1, 7), st.integers(1, 3), st.booleans(), st.booleans(), times, st.data()
)
def test_greedy_schedules_are_complete_and_within_the_memory(
    p: int, m: int, chunks: int, vee: bool, split: bool, each: Times, data: st.DataObject
) -> None:
    most_held = data.draw(st.integers(chunks, 2 * p * chunks))
    outline = Schedule("greedy", m, chunks, vee, split, actions=((),) * p)
    hop = data.draw(fractions)
    found = greedy_schedule(outline, in_ticks(each, p * chunks, chunks, hop), most_held)
    validate(found)
    assert max(peaks(found)) <= Fraction(most_held, chunks)


@settings(max_examples=40)
@given(
    st.integers(1, 4), st.integers(1, 9), times, st.sampled_from([0, Fraction(1, 4), 1]),
    st.sampled_from([1, Fraction(3, 2), 2, 4, 7, math.inf]),
)  # fmt: skip
def test_no_published_schedule_that_fits_is_faster(
    p: int, m: int, each: Times, hop: Fraction, most_held: Any
) -> None:
    best = best_schedule(p, m, each, hop=hop, most_held=most_held)
    validate(best)
    assert max(peaks(best)) <= most_held
    makespan = replay(best, each, hop).makespan
    for name in TABLE:
        row = order(name, p, m)
        assert max(peaks(row)) > most_held or makespan <= replay(row, each, hop).makespan


def test_stages_of_different_times_have_a_schedule_of_their_own() -> None:
    """A slow last stage: what a device of the table's order waits for is known only from the times."""
    uneven = [Times(1, 1, 1), Times(1, 1, 1), Times(1, 1, 1), Times(3, 4, 1)]
    best = best_schedule(4, 8, uneven, most_held=4)
    rows = [order(name, 4, 8) for name, row in TABLE.items() if 1 in row.chunks]
    fitting = [replay(row, uneven).makespan for row in rows if max(peaks(row)) <= 4]
    assert replay(best, uneven).makespan <= min(fitting)
    assert best.chunks == 1


@pytest.mark.parametrize("chunks", [1, 2, 3])
def test_stages_that_are_given_stay(chunks: int) -> None:
    assert best_schedule(3, 4, chunks=chunks).chunks == chunks
    assert best_schedule(3, 4, [Times()] * 3 * chunks).chunks == chunks


def test_equally_fast_schedules_are_chosen_by_their_memory() -> None:
    assert best_schedule(4, 16).name == "zbv"


@pytest.mark.parametrize(
    "arguments, message",
    [
        (dict(devices=0, micro_batches=1), "schedule 'auto': devices: expected an integer >= 1; got 0"),
        (dict(devices=2, micro_batches=4, most_held=0.5), "most_held: expected a number >= 1, .*; got 0.5"),
        (
            dict(devices=2, micro_batches=4, most_held=math.nan),
            "most_held: expected a number >= 1, .*; got nan",
        ),
        (
            dict(devices=2, micro_batches=4, times=[Times()] * 3),
            "times: expected one Times, or 2, one per stage; got 3",
        ),
    ],
)
def test_nothing_to_search(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidArgumentError, match=message):
        best_schedule(**arguments)
