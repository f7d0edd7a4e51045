"""The event engine gives the times of the replay on vectors, and slower ones where transfers share ports."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowrt.errors import InvalidArgumentError
from flowrt.plan.replay.events import RingTransfers, TimedTransfers, play_by_events
from flowrt.plan.replay.network import Fabric, Network
from flowrt.plan.replay.played import ClassProgram, Meeting, Message, Work
from flowrt.plan.replay.replay import play
from tests.plan.programs import ConstantLinks, UnequalLinks, random_programs

meshes = st.sampled_from([{}, {"dp": 1}, {"dp": 3}, {"dp": 2, "tp": 3}, {"dp": 4, "tp": 4}])


@given(meshes, st.integers(1, 4), st.integers(1, 40), st.integers(0, 1 << 32))
def test_equal_to_the_replay_on_vectors(mesh: dict[str, int], positions: int, works: int, seed: int) -> None:
    rng = random.Random(seed)
    programs = random_programs(rng, positions, list(mesh), works)
    shape = tuple(mesh.values())
    slowness = {
        each: np.array([rng.choice([1, 2, 3]) for _ in range(int(np.prod(shape)))], float).reshape(shape)
        for each in range(positions)
    }
    links = UnequalLinks(mesh)
    vectors = play(programs, mesh, links, slowness, is_detailed=True)
    events = play_by_events(programs, mesh, TimedTransfers(mesh, links), slowness)
    assert events.makespan == vectors.makespan
    for each in vectors.classes:
        assert each.end is not None
        if each.end.size:
            assert (events.works[each.position] == each.end).all()
            assert (events.starts[each.position] == each.start).all()


class Rings:
    """Closed forms of rings over links of a latency ``a`` and ``b`` seconds a byte."""

    def __init__(self, mesh: dict[str, int], a: float, b: float) -> None:
        self._mesh, self._a, self._b = mesh, a, b

    def meeting(self, position: int, meeting: Meeting) -> float:
        size = int(np.prod([self._mesh[name] for name in meeting.axes]))
        steps = (2 if meeting.kind == "all_reduce" else 1) * (size - 1)
        return steps * (self._a + self._b * meeting.nbytes / size)

    def message(self, position: int, message: Message) -> float | npt.NDArray[Any]:
        return self._a + self._b * message.nbytes


@given(st.sampled_from([{"dp": 4}, {"dp": 2, "tp": 4}]), st.integers(0, 1 << 32))
def test_a_fabric_without_uplinks_is_the_closed_form(mesh: dict[str, int], seed: int) -> None:
    programs = random_programs(random.Random(seed), 1, list(mesh), 12)
    lanes = int(np.prod(list(mesh.values())))
    fabric = Fabric(lanes, bytes_per_second=4.0, latency_s=0.5)
    played = play_by_events(programs, mesh, RingTransfers(fabric, lanes), network=Network(fabric.capacities))
    assert played.makespan == pytest.approx(play(programs, mesh, Rings(mesh, 0.5, 0.25)).makespan)


def test_rings_over_one_uplink_share_it() -> None:
    """Two groups of two, each with one host in each rack: as if each had half of the uplink."""
    mesh = {"dp": 2, "tp": 2}
    programs = [ClassProgram(0, (Work("reduce", meets=Meeting("all_reduce", ("dp",), 20)),))]

    def seconds(uplink: float) -> float:
        fabric = Fabric(4, 10.0, rack=2, uplink_bytes_per_second=uplink)
        return play_by_events(
            programs, mesh, RingTransfers(fabric, 4), network=Network(fabric.capacities)
        ).makespan

    assert seconds(20.0) == pytest.approx(2.0)
    assert seconds(10.0) == pytest.approx(4.0)


def test_messages_to_one_host_share_its_port() -> None:
    def sender(position: int) -> ClassProgram:
        return ClassProgram(position, (Work("send", meets=Message(0, f"x{position}", 10, True)),))

    receives = tuple(Work("receive", meets=Message(p, f"x{p}", 10, False)) for p in (1, 2))
    programs = [ClassProgram(0, receives), sender(1), sender(2)]
    fabric = Fabric(3, 10.0)
    shared = play_by_events(programs, {}, RingTransfers(fabric, 1), network=Network(fabric.capacities))
    assert shared.makespan == pytest.approx(2.0)


def test_works_that_wait_for_each_other() -> None:
    def program(here: int, there: int) -> ClassProgram:
        receive = Work("wait", meets=Message(there, "x", 1, False))
        send = Work("send", after=(0,), meets=Message(there, "x", 1, True))
        return ClassProgram(here, (receive, send))

    with pytest.raises(InvalidArgumentError, match="position 0: work 'send'"):
        play_by_events([program(0, 1), program(1, 0)], {}, TimedTransfers({}, ConstantLinks()))
