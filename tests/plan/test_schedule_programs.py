"""Schedules played as class programs give the same times as the exact replay of schedules."""

from __future__ import annotations

from fractions import Fraction

from hypothesis import given
from hypothesis import strategies as st

from flowrt.graph.pipeline.actions import Schedule
from flowrt.graph.pipeline.replay import replay
from flowrt.graph.pipeline.schedules import TABLE, order
from flowrt.graph.pipeline.times import Times
from flowrt.plan.replay.replay import play
from flowrt.plan.replay.schedule_programs import programs_of_schedule
from tests.plan.programs import ConstantLinks


@st.composite
def schedules(draw: st.DrawFn) -> Schedule:
    name = draw(st.sampled_from(list(TABLE)))
    chunks = draw(st.sampled_from([2, 3, 4])) if name == "interleaved" else None
    return order(name, draw(st.integers(1, 6)), draw(st.integers(1, 12)), chunks)


ticks = st.integers(1, 40)


@given(schedules(), st.builds(Times, ticks, ticks, ticks), st.integers(0, 40), st.sampled_from([1, 3]))
def test_equal_to_the_replay_of_schedules(schedule: Schedule, times: Times, hop: int, lanes: int) -> None:
    times = Times(*(schedule.chunks * each for each in times))  # whole seconds: sums of floats are exact
    hop = min(hop, *(int(each) // schedule.chunks for each in times))
    exact = replay(schedule, times, hop)
    played = play(
        programs_of_schedule(schedule, times), {"dp": lanes}, ConstantLinks(message=hop), is_detailed=True
    )
    for each, program in zip(played.classes, programs_of_schedule(schedule, times), strict=True):
        assert each.start is not None
        assert each.end is not None
        for number, work in enumerate(program.works):
            if work.action is not None:
                assert (each.start[number] == exact.start[work.action]).all()
                assert (each.end[number] == exact.end[work.action]).all()
        assert (each.busy == exact.busy[each.position]).all()
    assert played.makespan == exact.makespan
    if hop == 0:
        assert played.bubble == exact.bubble
        assert not any(played.exposed.values())


@given(schedules(), st.lists(st.builds(Times, ticks, ticks, ticks), min_size=24, max_size=24))
def test_equal_where_each_stage_has_its_own_times(schedule: Schedule, each: list[Times]) -> None:
    times = each[: schedule.stages]
    played = play(programs_of_schedule(schedule, times), {}, ConstantLinks())
    assert Fraction(played.makespan) == replay(schedule, times).makespan


def test_messages_carry_their_bytes() -> None:
    played = play(programs_of_schedule(order("gpipe", 3, 4), nbytes=10), {"dp": 2}, ConstantLinks())
    assert played.nbytes == {"message": 2 * 10 * 4 * (2 + 2)}
