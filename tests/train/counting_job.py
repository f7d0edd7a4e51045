"""A job of between-graph replication whose steps can be counted, and its worker as a program:

    python -m tests.train.counting_job CLUSTER_AS_JSON TASK

prints "counted" after each step, until it is killed.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import flowrt as tf


def counting() -> tuple[Any, Any]:
    """An operation that counts the global step and a variable of its own in one step, and that variable."""
    step = tf.train.get_or_create_global_step()
    total = tf.get_variable("total", [], tf.float64, tf.zeros_initializer())
    with tf.control_dependencies([tf.assign_add(step, 1)]):
        return tf.assign_add(total, 1.0), total


def between_graph(cluster: Any, task: int) -> tuple[Any, Any]:
    """What a worker builds: variables on the parameter server, the rest at home."""
    device = f"/job:worker/task:{task}"
    with tf.device(tf.train.replica_device_setter(cluster=cluster, worker_device=device)):
        return counting()


def filters(task: int) -> tf.ConfigProto:
    """A worker sees the parameter servers and itself, so that others may come and go."""
    return tf.ConfigProto(device_filters=["/job:ps", f"/job:worker/task:{task}"])


def main() -> None:
    cluster, task = json.loads(sys.argv[1]), int(sys.argv[2])
    server = tf.train.Server(cluster, job_name="worker", task_index=task)
    op, _ = between_graph(cluster, task)
    with tf.train.MonitoredTrainingSession(server.target, task == 0, config=filters(task)) as session:
        while True:
            session.run(op)
            print("counted", flush=True)


if __name__ == "__main__":
    main()
