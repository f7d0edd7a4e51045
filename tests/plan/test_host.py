"""Steps of processes that share the cores of one host."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowrt.graph.pipeline.schedules import order
from flowrt.graph.pipeline.times import Times
from flowrt.plan.cluster.host_speed import measure_host
from flowrt.plan.replay.host import Exchange, HostSpeed, play_on_host
from flowrt.plan.replay.played import ClassProgram, Meeting, Message, Work
from flowrt.plan.replay.replay import play
from flowrt.plan.replay.schedule_programs import programs_of_schedule
from tests.plan.programs import KINDS, ConstantLinks, random_programs

meshes = st.sampled_from([{}, {"dp": 2}, {"dp": 3, "tp": 2}])
FREE = Exchange(0.0, 0.0, 0.0)


def _speed(cores: float, exchange: Exchange = FREE) -> HostSpeed:
    return HostSpeed(cores, {"all_reduce 2": exchange, "all_reduce 4": exchange, "message": exchange})


def _program(position: int, works: Sequence[Work]) -> ClassProgram:
    return ClassProgram(position, tuple(works))


def test_processes_share_the_cores() -> None:
    computing = [_program(0, [Work("a", 6.0)])]
    assert play_on_host(computing, {"dp": 2}, _speed(2.0)).makespan == pytest.approx(6)
    assert play_on_host(computing, {"dp": 4}, _speed(2.0)).makespan == pytest.approx(12)
    assert play_on_host(computing, {"dp": 2}, _speed(1.5)).makespan == pytest.approx(8)
    assert play_on_host(computing, {"dp": 1}, _speed(1.5)).makespan == pytest.approx(6)


def test_a_stage_that_waits_leaves_its_core_to_others() -> None:
    """Position 1 computes alone while position 0 waits, at full speed; both at once are slower."""
    first = [Work("a", 3.0), Work("s", after=(0,), meets=Message(1, "t", 0, True)), Work("b", 3.0)]
    second = [Work("r", meets=Message(0, "t", 0, False)), Work("c", 6.0, after=(0,))]
    played = play_on_host([_program(0, first), _program(1, second)], {}, _speed(1.5))
    both = 3.0 / 0.75  # until b has ended
    assert played.makespan == pytest.approx(3 + both + (6 - 0.75 * both))


def test_an_exchange_takes_a_core_of_each_process_after_its_latency() -> None:
    works = [Work("a", 1.0), Work("m", after=(0,), meets=Meeting("all_reduce", ("dp",), 10)), Work("b", 4.0)]
    speed = _speed(2.0, Exchange(0.5, 1.0, 0.1))
    assert play_on_host([_program(0, works[:2])], {"dp": 2}, speed).makespan == pytest.approx(1 + 0.5 + 2)
    # beside computing: four threads on two cores
    played = play_on_host([_program(0, works)], {"dp": 2}, speed)
    assert played.makespan == pytest.approx(1 + 0.5 + 2 * 2 + (4 - 0.5 - 2))
    on_four = play_on_host([_program(0, works)], {"dp": 2}, _speed(4.0, speed.exchanges["message"]))
    assert on_four.makespan == pytest.approx(1 + 4)


@pytest.mark.parametrize(("slice_s", "error"), [(1e-4, 0.001), (1e-3, 0.01), (3e-3, 0.02), (10e-3, 0.04)])
@pytest.mark.parametrize(("positions", "cores"), [(2, 1), (4, 2), (4, 3), (6, 2)])
@pytest.mark.parametrize("name", ["gpipe", "1f1b", "zb_h1"])
def test_even_shares_stand_for_slices(
    name: str, positions: int, cores: int, slice_s: float, error: float
) -> None:
    """Processes that wait for each other's messages, with more of them than cores, and 4 to 8 ms of computing
    between two messages.
    """
    programs = programs_of_schedule(order(name, positions, 8), Times(f=4e-3, i=4e-3, w=4e-3))
    played = play_on_host(programs, {}, _speed(float(cores))).makespan
    assert played == pytest.approx(in_slices(programs, cores, slice_s), rel=error)


def in_slices(programs: Sequence[ClassProgram], cores: int, slice_s: float) -> float:
    """The seconds of ``programs`` of processes that have a core for ``slice_s`` at a time, in turns."""
    count = len(programs)
    place, left, now = [0] * count, [0.0] * count, 0.0
    sent, waiting, ready = set[str](), set(range(count)), deque[int]()
    running: dict[int, float] = {}
    """What is left of the slices of the processes that have a core."""

    def computes(process: int) -> bool:
        """Whether the process computes once it has sent and received what it can."""
        works = programs[process].works
        while place[process] < len(works):
            work = works[place[process]]
            if work.meets is None:
                left[process] = left[process] or work.seconds
                return True
            assert isinstance(work.meets, Message)
            if not work.meets.is_sent and work.meets.tag not in sent:
                return False
            if work.meets.is_sent:
                sent.add(work.meets.tag)
            place[process] += 1
        return False

    while True:
        for _ in range(count):  # as one may wait for another
            woken = [process for process in sorted(waiting) if computes(process)]
            waiting.difference_update(woken)
            ready.extend(woken)
        while ready and len(running) < cores:
            running[ready.popleft()] = slice_s
        if not running:
            return now
        passed = min(min(left[process], rest) for process, rest in running.items())
        now += passed
        for process in list(running):
            left[process] = left[process] - passed if left[process] - passed > 1e-12 else 0.0
            running[process] -= passed
            place[process] += not left[process]
            goes_on = computes(process)
            if not goes_on or running[process] <= 1e-12:
                del running[process]
                ready.extend([process] if goes_on else [])
                waiting |= set() if goes_on else {process}


@given(meshes, st.integers(1, 3), st.integers(1, 25), st.integers(0, 1 << 32))
def test_seconds_have_the_causes_that_the_replay_finds(
    mesh: dict[str, int], positions: int, works: int, seed: int
) -> None:
    """With a core for each thread, and exchanges that take none, both play the same."""
    programs = random_programs(random.Random(seed), positions, list(mesh), works)
    sizes = range(1, 7)
    meetings = {f"{kind} {size}": Exchange(2.0, 0.0, 0.0) for kind in KINDS for size in sizes}
    speed = HostSpeed(99.0, meetings | {"message": Exchange(3.0, 0.0, 0.0)})
    found, wanted = play_on_host(programs, mesh, speed), play(programs, mesh, ConstantLinks(2.0, 3.0))
    assert found.makespan == pytest.approx(wanted.makespan)
    assert found.nbytes == wanted.nbytes
    for one, other in zip(found.classes, wanted.classes, strict=True):
        assert one.planned == pytest.approx(other.planned)
        assert one.busy == pytest.approx(other.busy)
        assert one.skew == pytest.approx(other.skew)
        assert one.exposed == {kind: pytest.approx(seconds) for kind, seconds in other.exposed.items()}


@pytest.mark.slow
def test_processes_of_this_host_can_be_measured() -> None:
    speed = measure_host(2)
    assert 0 < speed.cores <= 2
    assert {"all_reduce 2", "all_to_all 2", "message"} <= set(speed.exchanges)
    assert all(each.seconds(1 << 20) > 0 for each in speed.exchanges.values())
