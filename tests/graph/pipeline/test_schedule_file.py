"""Schedules as text: what is written is read back, and a wrong text is told with line and column."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given

from flowrt.errors import InvalidArgumentError
from flowrt.graph.pipeline.actions import Schedule
from flowrt.graph.pipeline.schedule_file import format_schedule, parse_schedule
from flowrt.graph.pipeline.schedules import order
from tests.graph.pipeline.strategies import schedules


@given(schedules(least_devices=2))
def test_round_trip(schedule: Schedule) -> None:
    assert parse_schedule(format_schedule(schedule), schedule.name) == schedule


@given(schedules())
def test_round_trip_of_the_actions_on_one_device_too(schedule: Schedule) -> None:
    """On one device, a V is the same as no V."""
    found = parse_schedule(format_schedule(schedule), schedule.name)
    assert dataclasses.replace(found, vee=schedule.vee) == schedule


def test_comments_blank_lines_and_spaces() -> None:
    text = "# 1F1B\n\n  F0 F1\tB0 B1   # the first device\n   \nF0 B0 F1 B1"
    assert parse_schedule(text, "1f1b") == order("1f1b", 2, 2)


def test_stages_may_be_written_where_each_device_has_one() -> None:
    assert parse_schedule("0F0 0B0\n1F0 1B0") == parse_schedule("F0 B0\nF0 B0")


@pytest.mark.parametrize(
    "text, message",
    [
        ("", "mine: expected a line of actions per device, such as F0 B0; got none"),
        ("# F0 B0", "mine: expected a line of actions per device, such as F0 B0; got none"),
        ("F0 X0", "mine: line 1, column 4: expected an action such as F0 or 2F0; got 'X0'"),
        ("F0 B0\n\nF0,B0", "mine: line 3, column 1: expected an action such as F0 or 2F0; got 'F0,B0'"),
        ("F0 B0\nF0 B٣", "mine: line 2, column 4: expected an action such as F0 or 2F0; got 'B٣'"),
        ("F0 0B0", "mine: line 1, column 4, B(0,0): expected no stage, as in the first action"),
        (
            "0F0 B0",
            "mine: line 1, column 5, B(0,0): expected a stage before the kind, as in the first action",
        ),
        (
            "# two devices\nF0 F1 B0 B1\nF0 B0  F1 # and B1?",
            "mine: line 3, column 10 (device 1), B(1,1): expected once on this device; it is absent",
        ),
        (
            "F0 B0\nF0 F0",
            "mine: line 2, column 4 (device 1), F(1,0): expected once; got it again, after action 0",
        ),
        (
            "0F0 3F0 3B0 0B0\n1F0 2F0 2B0 0B0",
            "mine: line 2, column 13 (device 1), B(0,0): expected on device 0, which has stage 0",
        ),
        (
            "F0 I0 W0\nF0 B0 W0",
            "mine: line 2, column 4 (device 1), B(1,0): expected F, I or W: others are split",
        ),
        (
            "B0 F0",
            "mine: line 1, column 1 (device 0), B(0,0): expected no cycle; got B(0,0) after F(0,0)"
            " after B(0,0)",
        ),
        (
            "2F0 0F0 2B0 0B0\n1F0 3F0 3B0 1B0",
            "mine: line 1, column 1 (device 0), F(2,0): expected no cycle; got F(2,0) after F(1,0)"
            " after F(0,0) after F(2,0)",
        ),
        ("F0 B0\n999999F0", "mine: line 2, column 1, F(999999,0): expected no stage, as in the first action"),
    ],
)
def test_a_text_that_is_no_schedule(text: str, message: str) -> None:
    with pytest.raises(InvalidArgumentError) as caught:
        parse_schedule(text, "mine")
    assert str(caught.value) == message


def test_huge_numbers_take_no_time() -> None:
    with pytest.raises(InvalidArgumentError, match=r"F\(0,0\): expected once on this device; it is absent"):
        parse_schedule("999999F999999999")
