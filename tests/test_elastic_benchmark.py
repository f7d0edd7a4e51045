"""The elastic benchmark: what it makes of steps and kills, and a short job of its own."""

from __future__ import annotations

import sys

import numpy as np
import pytest

from benchmarks.elastic import BATCH, RECORDS, Change, Ran, Result, Step, changes_of, lines_of, run


def ran(steps: list[Step], kills: list[float]) -> Ran:
    return Ran(steps, kills, 20.0, Result(0.5, np.ones(RECORDS)))


def test_a_change_lasts_from_the_kill_or_from_the_last_step() -> None:
    steps = [
        Step(1.0, 1, 1, 7),
        Step(1.1, 1, 1, 8),
        Step(2.0, 2, 1, 7),
        Step(3.5, 2, 2, 8),
        Step(4.0, 3, 2, 8),
    ]
    steps += [Step(5.0, 4, 4, 8), Step(5.1, 4, 4, 9)]
    assert changes_of(ran(steps, [2.5])) == [Change(2, 1.0, True), Change(4, 1.0, False)]


def test_two_kills_before_a_step_are_one_change() -> None:
    steps = [Step(1.0, 1, 1, 7), Step(9.0, 2, 3, 8)]
    assert changes_of(ran(steps, [2.0, 5.0])) == [Change(3, 7.0, True)]


def test_records_and_steps_are_counted() -> None:
    seen = np.ones(RECORDS)
    seen[3] = 2.0
    steps = [Step(1.0, 1, 1, 7), Step(1.1, 1, 1, 8), Step(3.0, 1, 2, 8)]
    calm, disturbed = ran(steps[:2], []), ran(steps, [2.0])._replace(result=Result(0.5, seen))
    killed, kills, comers, again, wrong, *_ = lines_of(disturbed, [calm], RECORDS // BATCH)
    assert (killed, kills, comers) == ("1", "1.00 s, at most 1.00", "-")
    assert (again, wrong) == ("1", f"1 of {RECORDS}")
    *_, wrong, loss, _, made, whole = lines_of(disturbed._replace(result=None), [calm], 10)
    assert (wrong, loss, made, whole) == ("-", "-", "1 of 10", "20 s, then given up")


@pytest.mark.slow
def test_a_job_that_loses_workers_has_the_loss_and_the_records_of_one_that_does_not() -> None:
    calm = run("flowrt", sys.executable, 60, 2, None, 0)
    disturbed = run("flowrt", sys.executable, 60, 2, 3.0, 0)
    assert any(change.is_kill for change in changes_of(disturbed))
    assert calm.result is not None
    assert disturbed.result is not None
    np.testing.assert_array_equal(disturbed.result.seen, np.full(RECORDS, 60 * BATCH / RECORDS))
    assert disturbed.result.loss == pytest.approx(calm.result.loss, rel=1e-9)
