"""Turns of gang-scheduled steps: exclusive, fair, and never lost."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from flowrt.distribute.worker.gang_turns import GangTurns, Turn
from tests.each import nightly


def turn(step: int, session: str, devices: str = "ab", peer: str = "master#1") -> Turn:
    return Turn(step, session, frozenset(devices), peer, step)


def steps(turns: list[Turn]) -> list[int]:
    return [begun.step for begun in turns]


def test_one_step_at_a_time_on_a_device() -> None:
    turns = GangTurns()
    assert steps(turns.take(turn(1, "first", "ab"))) == [1]
    assert steps(turns.take(turn(2, "second", "bc"))) == []
    assert steps(turns.take(turn(3, "third", "de"))) == [3]
    assert steps(turns.end(1)) == [2]
    assert steps(turns.end(3)) == []


def test_sessions_take_turns_however_many_steps_each_asks_for() -> None:
    turns = GangTurns()
    begun = turns.take(turn(0, "many"))
    for step in range(1, 10):
        turns.take(turn(step, "many"))
    turns.take(turn(100, "one"))
    turns.take(turn(101, "one"))
    order = []
    while begun:
        (running,) = begun
        order.append(running.step)
        begun = turns.end(running.step)
    assert order == [0, 1, 100, 2, 101, 3, 4, 5, 6, 7, 8, 9]


def test_steps_with_fewer_devices_do_not_overtake_one_that_waits() -> None:
    turns = GangTurns()
    turns.take(turn(1, "left", "a"))
    assert steps(turns.take(turn(2, "both", "ab"))) == []
    assert steps(turns.take(turn(3, "right", "b"))) == []
    assert steps(turns.end(1)) == [2]
    assert steps(turns.end(2)) == [3]


def test_a_step_that_was_withdrawn_holds_up_nobody() -> None:
    turns = GangTurns()
    turns.take(turn(1, "left", "a"))
    turns.take(turn(2, "both", "ab"))
    turns.take(turn(3, "right", "b"))
    withdrawn = turns.withdraw(2)
    assert withdrawn is not None
    assert withdrawn.step == 2
    assert turns.withdraw(2) is None
    assert steps(turns.end(2)) == [3]


def test_turns_end_with_the_master_that_asked_for_them() -> None:
    turns = GangTurns()
    turns.take(turn(1, "first", peer="master#1"))
    turns.take(turn(2, "first", peer="master#1"))
    turns.take(turn(3, "second", peer="master#2"))
    assert steps(turns.lose("master#1")) == [3]
    assert steps(turns.end(3)) == []


@pytest.mark.parametrize("seed", nightly(range(50), 15))
def test_whatever_happens_turns_are_exclusive_and_all_come(seed: int) -> None:
    """While a session's next step waits for a device, others begin at most a few steps there."""
    rng, turns = random.Random(seed), GangTurns()
    running: dict[int, Turn] = {}
    waiting: dict[int, Turn] = {}
    passed: Counter[int] = Counter()

    def begin(begun: list[Turn]) -> None:
        for each in begun:
            assert all(each.devices.isdisjoint(other.devices) for other in running.values())
            running[each.step] = waiting.pop(each.step)
            heads = {other.session: other for other in reversed(list(waiting.values()))}
            passed.update(head.step for head in heads.values() if not head.devices.isdisjoint(each.devices))

    for step in range(200):
        new = turn(step, rng.choice("uvw"), "".join(rng.sample("abcd", rng.randint(1, 3))), rng.choice("xy"))
        waiting[step] = new
        begin(turns.take(new))
        for _ in range(rng.randint(0, 2)):
            if not running:
                break
            over = rng.choice(list(running))
            del running[over]
            begin(turns.end(over))
        if rng.random() < 0.02:
            gone = rng.choice("xy")
            for table in (running, waiting):
                for dead in [number for number, each in table.items() if each.peer == gone]:
                    del table[dead]
            begin(turns.lose(gone))
    while running:
        over = rng.choice(list(running))
        del running[over]
        begin(turns.end(over))
    assert not waiting
    assert max(passed.values(), default=0) <= 6
