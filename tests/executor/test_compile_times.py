"""The line that says how long a compile took."""

from __future__ import annotations

import itertools
import logging
import os
import subprocess
import sys

import pytest

from flowrt.executor.observe.compile_times import CompileTimes

SCRIPT = """
import flowrt as tf
x = tf.placeholder(tf.float32, [3])
with tf.Session() as session:
    session.run(tf.sin(x) + 1.0, {x: [1, 2, 3]})
"""


def test_phases_add_up_and_short_ones_are_left_out(caplog: pytest.LogCaptureFixture) -> None:
    ticks = itertools.count()
    times = CompileTimes(lambda: next(ticks) * 0.5)
    with times.phase("place"):
        pass
    for _ in range(2):
        with times.phase("fuse"):
            pass
    times.seconds["bind"] = 0.001
    with caplog.at_level(logging.INFO, "flowrt.executor.observe.compile_times"):
        times.log(3)
    assert caplog.messages == ["compiled 3 partitions in 3.50 s (place 0.50, fuse 1.00)"]


def test_a_phase_that_raises_counts_too() -> None:
    ticks = itertools.count()
    times = CompileTimes(lambda: float(next(ticks)))
    with pytest.raises(ValueError, match="gone"), times.phase("place"):
        raise ValueError("gone")
    assert times.seconds == {"place": 1.0}


def run_with(level: str) -> str:
    environment = {**os.environ, "FLOWRT_LOG": level}
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT], env=environment, capture_output=True, text=True, check=True
    )
    return done.stderr


def test_the_environment_asks_for_the_line() -> None:
    assert "compiled 1 partition in" in run_with("info")
    assert "compiled" not in run_with("error")


def test_an_unknown_level_is_refused() -> None:
    with pytest.raises(subprocess.CalledProcessError) as failed:
        run_with("loud")
    said = failed.value.stderr
    expected = "FLOWRT_LOG: expected one of debug, info, warn, warning, error, fatal; got 'loud'"
    assert said.endswith(f"InvalidArgumentError: {expected}\n")
