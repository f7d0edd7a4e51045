"""The benchmark that holds predictions against this host: what it computes, not what it measures."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from benchmarks.predicted import CASES, HostLinks, played_s, spearman, table_lines
from flowrt.plan.replay.played import ClassProgram, Meeting, Message, Work

LINKS = HostLinks({"AllReduce": (1.0, 0.5), "message": (2.0, 0.25)})


def _program(position: int, works: Sequence[Work]) -> ClassProgram:
    return ClassProgram(position, tuple(works))


def test_a_meeting_runs_beside_what_does_not_wait_for_it() -> None:
    works = [
        Work("backward", 10.0),
        Work("gradient", after=(0,), meets=Meeting("all_reduce", ("dp",), 4)),
        Work("more", 2.0),
        Work("update", 1.0, after=(1,)),
    ]
    assert played_s([_program(0, works)], LINKS) == 10 + (1 + 0.5 * 4) + 1
    works[2] = Work("more", 20.0)
    assert played_s([_program(0, works)], LINKS) == 10 + 20 + 1


def test_a_message_arrives_when_it_was_sent() -> None:
    first = [Work("a", 5.0), Work("s", after=(0,), meets=Message(1, "t", 8, True)), Work("b", 1.0)]
    second = [Work("c", 1.0), Work("r", after=(0,), meets=Message(0, "t", 8, False)), Work("d", 3.0, (1,))]
    assert played_s([_program(0, first), _program(1, second)], LINKS) == 5 + (2 + 0.25 * 8) + 3


def test_a_message_that_nobody_sends_is_an_error() -> None:
    with pytest.raises(RuntimeError, match="positions \\[0\\] wait"):
        played_s([_program(0, [Work("r", meets=Message(1, "t", 8, False))])], LINKS)


def test_the_order_of_predictions_counts_for_spearman() -> None:
    assert spearman([1.0, 2.0, 30.0], [10.0, 11.0, 12.0]) == pytest.approx(1)
    assert spearman([3.0, 2.0, 1.0], [10.0, 11.0, 12.0]) == pytest.approx(-1)


def test_the_table_tells_the_median_and_the_worst_error() -> None:
    rows = {
        name: {"predicted": predicted, "measured": 1.0, "median": 1.2, "first": 0.9, "cpu": 0.9}
        for name, predicted in zip(CASES, (1.1, 0.8, 1.0), strict=False)
    }
    text = "\n".join(table_lines(rows))
    assert "median error 10.0%" in text
    assert "worst error 20.0%" in text


def test_there_are_twelve_cases_of_two_and_four_processes() -> None:
    assert len(CASES) == 12
    assert {case.processes for case in CASES.values()} == {2, 4}
