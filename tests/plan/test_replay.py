"""The replay on vectors: against times worked out by hand, and what must hold of every step."""

from __future__ import annotations

import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowrt.errors import InvalidArgumentError
from flowrt.plan.replay.played import ClassProgram, Meeting, Message, Work
from flowrt.plan.replay.replay import Jitter, play
from flowrt.plan.replay.step_times import Played
from tests.plan.programs import ConstantLinks, UnequalLinks, random_programs

REDUCE = Meeting("all_reduce", ("dp",), 8)


def data_parallel(*computed: float) -> ClassProgram:
    """Work and an all-reduce for each number, all at the same time as the work after it; then an update."""
    works: list[Work] = []
    for number, seconds in enumerate(computed):
        works.append(Work(f"backward {number}", seconds))
        works.append(Work(f"reduce {number}", after=(2 * number,), meets=REDUCE))
    meetings = tuple(range(1, len(works), 2))
    return ClassProgram(0, (*works, Work("update", 1.0, meetings)))


def only(played: Played, what: str) -> list[float]:
    (each,) = played.classes
    return list(getattr(each, what))


def test_communication_is_hidden_behind_later_work_and_exposed_after_it() -> None:
    played = play([data_parallel(3, 4, 2)], {"dp": 2}, ConstantLinks(meeting=3))
    # compute 0-3-7-9, then the update at 13; links 3-6, 7-10, 10-13
    assert played.makespan == 14
    assert played.exposed == {"all_reduce": 4}
    assert only(played, "skew") == [0, 0]
    assert played.bubble == 0
    assert played.nbytes == {"all_reduce": 24}


def test_links_are_busy_for_a_device_that_waits_for_the_last_of_a_queue() -> None:
    gather = Meeting("all_gather", ("dp",), 8)
    works = (
        Work("f", 3.0),
        Work("r", after=(0,), meets=REDUCE),
        Work("g", meets=gather),
        Work("u", 1.0, (2,)),
    )
    played = play([ClassProgram(0, works)], {"dp": 2}, ConstantLinks(meeting=2))
    assert played.makespan == 8
    assert played.exposed == {"all_gather": 4}  # from 3 to 7, of which the links reduce until 5
    assert only(played, "skew") == [0, 0]


def test_a_meeting_waits_for_the_slowest_along_its_axes_only() -> None:
    slow = {0: [[1, 1], [2, 1]]}
    programs = [ClassProgram(0, (Work("f", 3.0), Work("r", after=(0,), meets=REDUCE), Work("u", 1.0, (1,))))]
    played = play(programs, {"dp": 2, "tp": 2}, ConstantLinks(meeting=1), slow, is_detailed=True)
    (each,) = played.classes
    assert each.start is not None
    assert each.end is not None
    assert each.start[1].tolist() == [6, 3, 6, 3]
    assert each.end[2].tolist() == [8, 5, 9, 5]
    assert each.skew.tolist() == [3, 0, 0, 0]
    assert each.exposed["all_reduce"].tolist() == [1, 1, 1, 1]
    assert each.busy.tolist() == [4, 4, 8, 4]
    assert played.makespan == 9
    assert played.nbytes == {"all_reduce": 16}  # two groups


def pair(seconds: float) -> list[ClassProgram]:
    first = (
        Work("f", 2.0),
        Work("send", after=(0,), meets=Message(1, "x", 5, True)),
        Work("receive", meets=Message(1, "y", 7, False)),
        Work("b", 3.0, (2,)),
    )
    second = (
        Work("receive", meets=Message(0, "x", 5, False)),
        Work("g", seconds, (0,)),
        Work("send", after=(1,), meets=Message(0, "y", 7, True)),
    )
    return [ClassProgram(0, first), ClassProgram(1, second)]


def test_waiting_for_another_position_is_bubble_and_for_the_message_itself_is_exposed() -> None:
    played = play(pair(4.0), {"dp": 3}, ConstantLinks(message=1))
    assert played.makespan == 2 + 1 + 4 + 1 + 3
    first, second = played.classes
    assert first.exposed["message"].tolist() == [1, 1, 1]  # of five seconds of waiting, on the way back
    assert second.exposed["message"].tolist() == [2, 2, 2]  # there, and its own at the end
    assert played.bubble == 5
    assert played.nbytes == {"message": 36}
    assert not any(each.skew.any() for each in played.classes)


def test_the_order_of_programs_does_not_matter() -> None:
    one, two = (
        play(pair(4.0), {}, ConstantLinks(message=1)),
        play(pair(4.0)[::-1], {}, ConstantLinks(message=1)),
    )
    assert one.makespan == two.makespan == 11


def test_two_positions_may_send_before_they_receive() -> None:
    def program(here: int, there: int) -> ClassProgram:
        return ClassProgram(
            here,
            (
                Work("receive", meets=Message(there, "x", 1, False)),
                Work("send", meets=Message(there, "x", 1, True)),
                Work("use", 1.0, (0,)),
            ),
        )

    assert play([program(0, 1), program(1, 0)], {}, ConstantLinks(message=2)).makespan == 3


sizes = st.sampled_from([{}, {"dp": 1}, {"dp": 3}, {"dp": 2, "tp": 3}, {"dp": 2, "tp": 2, "ep": 2}])


@st.composite
def steps(draw: st.DrawFn) -> tuple[list[ClassProgram], dict[str, int], dict[int, object]]:
    mesh, positions = draw(sizes), draw(st.integers(1, 4))
    rng = random.Random(draw(st.integers(0, 1 << 32)))
    shape = tuple(mesh.values())
    slowness = {
        each: np.array([rng.choice([1, 1, 2, 3]) for _ in range(int(np.prod(shape)))], float).reshape(shape)
        for each in range(positions)
    }
    return random_programs(rng, positions, list(mesh), draw(st.integers(1, 25))), mesh, slowness


@given(steps(), st.booleans())
def test_all_seconds_are_accounted_for(step, has_jitter: bool) -> None:  # type: ignore[no-untyped-def]
    programs, mesh, slowness = step
    jitter = Jitter(0.3, 5) if has_jitter else None
    played = play(programs, mesh, UnequalLinks(mesh), slowness, jitter)
    for each in played.classes:
        exposed = sum(each.exposed.values(), np.zeros_like(each.busy))
        assert (each.skew >= 0).all()
        assert (exposed >= 0).all()
        assert (each.busy + each.skew + exposed <= played.makespan + 1e-9).all()
    assert played.bubble >= -1e-9
    if any(each.planned for each in played.classes):
        product = played.product(samples=64, useful=0.75)
        assert product.samples_per_second == pytest.approx(64 / played.makespan, rel=1e-12)
        assert -1e-12 <= product.bubble <= 1
        assert -1e-12 <= product.exposed <= 1


@given(steps())
def test_details_are_the_same_step(step) -> None:  # type: ignore[no-untyped-def]
    programs, mesh, slowness = step
    links = UnequalLinks(mesh)
    plain, detailed = (play(programs, mesh, links, slowness, is_detailed=each) for each in (False, True))
    assert plain.makespan == detailed.makespan
    for program, each in zip(programs, detailed.classes, strict=True):
        assert each.start is not None
        assert each.end is not None
        for number, work in enumerate(program.works):
            for before in work.after:
                assert (each.end[before] <= each.end[number]).all()
                assert (each.end[before] <= each.start[number]).all()
    ends = [each.end.max(initial=0) for each in detailed.classes if each.end is not None]
    assert max(ends, default=0) == plain.makespan


def test_the_product_has_each_cause_in_its_factor() -> None:
    works = (Work("f", 3.0), Work("r", after=(0,), meets=REDUCE))
    equal = play([ClassProgram(0, works)], {"dp": 4}, ConstantLinks(meeting=1)).product(8)
    assert equal == (8 / 12, 4, 1.0, 0.0, 0.25, 0.0)
    slow = play([ClassProgram(0, works)], {"dp": 4}, ConstantLinks(), {0: [1, 1, 1, 3]}).product(8)
    assert slow[2:] == pytest.approx((1, 0, 0, 2 / 3))
    waits = play(pair(2.0), {}, ConstantLinks()).product(1)
    assert waits.bubble == pytest.approx(2 / 7)
    assert waits.imbalance == pytest.approx(1 - 3.5 / 5)


def test_jitter_is_the_same_for_a_seed_and_has_a_mean_of_one() -> None:
    programs = [ClassProgram(0, (Work("f", 1.0),) * 50)]
    one, again, other = (
        play(programs, {"dp": 400}, ConstantLinks(), jitter=Jitter(0.5, seed)) for seed in (1, 1, 2)
    )
    assert one.makespan == again.makespan != other.makespan
    assert one.classes[0].busy.mean() == pytest.approx(50, rel=0.02)


def test_ten_thousand_devices_keep_only_what_is_still_read() -> None:
    works = [Work("first", 1.0)]
    for number in range(200):
        works.append(Work(f"m{number}", after=(len(works) - 1,), meets=REDUCE))
        works.append(Work(f"f{number}", 1.0, (len(works) - 1,)))
    played = play([ClassProgram(0, tuple(works))], {"dp": 10_000}, ConstantLinks(meeting=0.5))
    assert played.makespan == 301
    assert played.devices == 10_000


# --- wrong programs


def fails(*programs: ClassProgram, mesh: dict[str, int] | None = None) -> str:
    with pytest.raises(InvalidArgumentError) as error:
        play(programs, mesh or {}, ConstantLinks())
    return str(error.value)


RECEIVE = Work("wait", meets=Message(1, "x", 1, False))


def test_a_message_that_nobody_sends() -> None:
    text = fails(ClassProgram(0, (RECEIVE, Work("f", 1.0, (0,)))))
    assert "position 0: work 'wait' waits for the message 'x' from position 1" in text


def test_works_that_wait_for_each_other() -> None:
    def program(here: int, there: int) -> ClassProgram:
        receive = Work("wait", meets=Message(there, "x", 1, False))
        return ClassProgram(
            here,
            (receive, Work("f", 1.0, (0,)), Work("send", after=(1,), meets=Message(there, "x", 1, True))),
        )

    text = fails(program(0, 1), program(1, 0))
    assert "position 0: work 'f' waits for the message 'x' from position 1" in text


@pytest.mark.parametrize(
    ("programs", "expected"),
    [
        ([], "at least one"),
        ([ClassProgram(0, ()), ClassProgram(0, ())], "two of position 0"),
        ([ClassProgram(0, (Work("f", 1.0, (0,)),))], "'f': expected earlier works in `after`; got number 0"),
        ([ClassProgram(0, (Work("f", -1.0),))], "work 'f': expected finite seconds >= 0; got -1.0"),
        ([ClassProgram(0, (Work("f", float("nan")),))], "got nan"),
        ([ClassProgram(0, (Work("r", meets=Meeting("all_reduce", ("dp0",), 1)),))], "got 'dp0'. Nearest: dp"),
        ([ClassProgram(0, (Work("s", meets=Message(1, "x", 1, True)),) * 2)], "'x' again"),
    ],
)  # fmt: skip
def test_a_program_that_is_wrong_in_itself(programs: list[ClassProgram], expected: str) -> None:
    assert expected in fails(*programs, mesh={"dp": 2})


def test_without_communication_nothing_is_exposed() -> None:
    played = play([ClassProgram(0, (Work("alone", 2.0),))], {"dp": 2}, ConstantLinks())
    assert (played.makespan, played.exposed) == (2.0, {})


def test_nothing_to_compute_has_no_rate() -> None:
    with pytest.raises(InvalidArgumentError, match="seconds of computing"):
        play([ClassProgram(0, ())], {}, ConstantLinks()).product(1)
