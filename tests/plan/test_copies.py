"""Copies of a process that compute while it measures."""

from __future__ import annotations

import mmap
import os
import time

import pytest

from flowrt.plan.step.copies import beside

LIMIT_S = 60.0


def test_copies_run_at_the_same_time_and_end() -> None:
    """Each writes its number to memory that all have."""
    numbers = memoryview(mmap.mmap(-1, 4 * 8)).cast("q")

    def note(at: int) -> None:
        numbers[at] = os.getpid()

    end = time.monotonic() + LIMIT_S
    with beside([lambda: note(0), lambda: note(1), lambda: note(2)], 3):
        while not all(numbers[:3]) and time.monotonic() < end:
            os.sched_yield()
    found = list(numbers[:3])
    assert len({*found, os.getpid()}) == 4
    for number in found:
        with pytest.raises(ProcessLookupError):
            os.kill(number, 0)


def test_a_copy_that_fails_is_alone_with_it(capfd: pytest.CaptureFixture[str]) -> None:
    def fail() -> None:
        raise ValueError("in a copy")

    with beside([fail], 1):
        pass
    assert "in a copy" not in capfd.readouterr().err


def test_without_copies_nothing_is_called() -> None:
    with beside([], 0):
        pass
