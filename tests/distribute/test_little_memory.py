"""(13) A task that has little memory: it is the operating system that says so, to a real process."""

from __future__ import annotations

import resource

import pytest

import flowrt as tf
from tests.distribute.processes import SOON_S, cluster

LEFT = 256 << 20
"""Bytes that the task may still map."""


def mapped_bytes(pid: int) -> int:
    with open(f"/proc/{pid}/statm") as file:
        return int(file.read().split()[0]) * resource.getpagesize()


def test_a_task_without_memory_for_a_step_says_so_and_makes_the_next_one() -> None:
    with cluster(1, 1) as tasks, tf.Graph():
        size = tf.placeholder(tf.int32, [])
        with tf.device("/job:worker/task:1"):
            count = tf.get_variable("count", initializer=0.0)
            large = tf.fill([size], 1.0, name="large")
            total = count.assign_add(tf.reduce_sum(tf.sqrt(large + 1.0) * 0.0) + 1.0)
        options = tf.RunOptions(timeout_in_ms=int(SOON_S * 1000))
        with tf.Session(tasks.target) as session:
            session.run(count.initializer)
            assert session.run(total, {size: 1000}, options) == 1.0
            pid = tasks.workers[0].pid
            limit = mapped_bytes(pid) + LEFT
            resource.prlimit(pid, resource.RLIMIT_AS, (limit, limit))
            for number in range(2):
                with pytest.raises(tf.errors.ResourceExhaustedError) as caught:
                    session.run(total, {size: 4 * LEFT}, options)
                assert "task:1" in str(caught.value)
                assert "test_little_memory.py" in str(caught.value)
                assert session.run(total, {size: 1000}, options) == number + 2.0
        assert not tasks.workers[0].has_ended
