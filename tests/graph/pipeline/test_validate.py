"""Schedules with one mistake: the error names the cell, the action, and what was expected."""

from __future__ import annotations

import dataclasses
import random
import re
from graphlib import CycleError, TopologicalSorter
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowrt.errors import InvalidArgumentError
from flowrt.graph.pipeline.actions import Action, Schedule, dependencies
from flowrt.graph.pipeline.schedules import order
from flowrt.graph.pipeline.validate import Fault, find_fault, validate
from tests.graph.pipeline.strategies import schedules


def changed(schedule: Schedule, device: int, line: list[Action]) -> Schedule:
    lines = [*schedule.actions]
    lines[device] = tuple(line)
    return dataclasses.replace(schedule, actions=tuple(lines))


def cells(schedule: Schedule) -> st.SearchStrategy[tuple[int, int]]:
    return st.sampled_from(
        [(device, i) for device, line in enumerate(schedule.actions) for i in range(len(line))]
    )


@given(schedules(), st.data())
def test_a_removed_action(schedule: Schedule, data: st.DataObject) -> None:
    device, position = data.draw(cells(schedule))
    line = list(schedule.actions[device])
    removed = line.pop(position)
    message = f"{removed}: expected once on this device; it is absent"
    assert find_fault(changed(schedule, device, line)) == Fault(device, len(line), message)


@given(schedules(), st.data())
def test_a_duplicated_action(schedule: Schedule, data: st.DataObject) -> None:
    device, position = data.draw(cells(schedule))
    line = list(schedule.actions[device])
    first, second = sorted((position, data.draw(st.integers(0, len(line)))))
    again = line[position]
    line.insert(second if second > position else first, again)
    places = [i for i, action in enumerate(line) if action == again]
    message = f"{again}: expected once; got it again, after action {places[0]}"
    assert find_fault(changed(schedule, device, line)) == Fault(device, places[1], message)


@given(schedules(least_devices=2), st.data())
def test_an_action_on_another_device(schedule: Schedule, data: st.DataObject) -> None:
    device, position = data.draw(cells(schedule))
    line = list(schedule.actions[device])
    moved = line.pop(position)
    other = data.draw(st.sampled_from([i for i in range(schedule.devices) if i != device]))
    target = list(schedule.actions[other])
    at = data.draw(st.integers(0, len(target)))
    target.insert(at, moved)
    wrong = changed(changed(schedule, device, line), other, target)
    message = f"{moved}: expected on device {device}, which has stage {moved.stage}"
    assert find_fault(wrong) == Fault(other, at, message)


def is_acyclic(schedule: Schedule) -> bool:
    waits = {
        action: list(dependencies(action, schedule.stages)) for line in schedule.actions for action in line
    }
    for line in schedule.actions:
        for before, after in pairwise(line):
            waits[after].append(before)
    try:
        TopologicalSorter(waits).prepare()
    except CycleError:
        return False
    return True


@given(schedules(), st.integers(0, 3), st.randoms(use_true_random=False))
def test_a_shuffled_line_is_valid_or_has_a_cycle_that_is_named(
    schedule: Schedule, swaps: int, draws: random.Random
) -> None:
    device = draws.randrange(schedule.devices)
    line = list(schedule.actions[device])
    for _ in range(swaps):
        i, j = draws.randrange(len(line)), draws.randrange(len(line))
        line[i], line[j] = line[j], line[i]
    shuffled = changed(schedule, device, line)
    fault = find_fault(shuffled)
    assert (fault is None) == is_acyclic(shuffled)
    if fault:
        check_cycle(shuffled, fault)


def check_cycle(schedule: Schedule, fault: Fault) -> None:
    """Each action of the cycle waits for the next: for its result, or for its turn on the device."""
    found = re.findall(r"([FBIW])\((\d+),(\d+)\)", fault.message)[1:]
    cycle = [Action(kind, int(stage), int(k)) for kind, stage, k in found]
    assert len(cycle) > 1
    assert cycle[0] == cycle[-1] == schedule.actions[fault.device][fault.position]
    assert len(set(cycle)) == len(cycle) - 1
    for after, before in pairwise(cycle):
        line = schedule.actions[schedule.device_of(after.stage)]
        its_turn = before in line and line.index(before) < line.index(after)
        assert its_turn or before in dependencies(after, schedule.stages)


def test_the_message_of_a_cycle() -> None:
    schedule = order("1f1b", 2, 2)
    f0, b0, f1, b1 = schedule.actions[1]
    wrong = changed(schedule, 1, [f1, b1, f0, b0])
    wrong = changed(
        wrong, 0, [*wrong.actions[0][:1], *wrong.actions[0][2:3], wrong.actions[0][1], wrong.actions[0][3]]
    )
    with pytest.raises(InvalidArgumentError) as caught:
        validate(wrong)
    assert str(caught.value) == (
        "schedule '1f1b': device 0, action 1, B(0,0): expected no cycle;"
        " got B(0,0) after B(1,0) after F(1,1) after F(0,1) after B(0,0)"
    )


@pytest.mark.parametrize(
    "action, message",
    [
        (Action("I", 0, 0), "I(0,0): expected F or B: others are not split"),
        (Action("F", 2, 0), "F(2,0): expected a stage below 2"),
        (Action("F", 0, 2), "F(0,2): expected a micro-batch below 2"),
    ],
)
def test_an_action_of_no_such_schedule(action: Action, message: str) -> None:
    schedule = order("1f1b", 2, 2)
    assert find_fault(changed(schedule, 0, [action, *schedule.actions[0]])) == Fault(0, 0, message)


def test_a_schedule_without_devices() -> None:
    with pytest.raises(
        InvalidArgumentError, match="schedule 'mine': devices: expected an integer >= 1; got 0"
    ):
        Schedule("mine", 1, 1, vee=False, split=False, actions=())
