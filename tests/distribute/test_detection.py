"""Who is named when a worker dies or sleeps: by the steps of all survivors, each of which has its own master.

How soon is what `benchmarks.detection` prints.
"""

from __future__ import annotations

import signal

import pytest

from benchmarks.detection import WORKERS, measure


@pytest.mark.slow  # by day: `test_failures`, with one master
@pytest.mark.parametrize(
    ("number", "reason"), [(signal.SIGKILL, ""), (signal.SIGSTOP, "no sign of life for 10 s")]
)
def test_all_survivors_name_the_worker_that_was_lost(number: signal.Signals, reason: str) -> None:
    noticed = measure(number)
    assert [each.worker for each in noticed] == [0, 1, 2]
    for each in noticed:
        assert f"/job:worker/replica:0/task:{WORKERS - 1} was lost: " in each.error
        assert reason in each.error
