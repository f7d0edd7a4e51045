"""The job: eight tasks train on digits. Each computes the gradient of its part of a batch and counts its
steps; the weights, their momentum and the global step are on different tasks.

    python -m tests.soak.job chief CLUSTER BIND DIRECTORY      trains until DIRECTORY/stop exists
    python -m tests.soak.job reference DIRECTORY STEPS         all tasks in one process, STEPS steps

What a step reads depends on the global step only: it is the same after a restart from a checkpoint.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

import flowrt as tf
from flowrt.distribute.launch.local_cluster import ReservedPorts

TASKS = ("/job:chief/task:0", *(f"/job:worker/task:{index}" for index in range(7)))
BATCH, HIDDEN = 8, 24
"""Records of a task, and units of the network."""
SAVE_STEPS = 40
PACE_S = 0.01
"""A rest after each step: the reference, which has none, then takes a fraction of the time."""
STOP, STEPS = "stop", "steps"


def build() -> Any:
    """The operation that trains."""
    from sklearn.datasets import load_digits  # late: a second, for those that need names of this file only

    digits = load_digits()
    images, labels = (digits.data / 16.0).astype(np.float32), digits.target.astype(np.int32)
    with tf.device(TASKS[7]):
        step = tf.train.get_or_create_global_step()
    weights = []
    for task, shape in ((1, (64, HIDDEN)), (3, (HIDDEN,)), (4, (HIDDEN, 10)), (6, (10,))):
        with tf.device(TASKS[task]):
            start = np.random.default_rng(task).standard_normal(shape).astype(np.float32) * 0.1
            weights.append(tf.get_variable(f"weights{task}", initializer=start))
    gradients, counted = [], []
    for number, task in enumerate(TASKS):
        with tf.device(task):
            offsets = tf.constant(np.arange(BATCH) * 211 + number * 97, tf.int64)
            rows = tf.floormod(step * 13 + offsets, len(images))
            hidden = tf.tanh(tf.matmul(tf.gather(images, rows), weights[0]) + weights[1])
            logits = tf.matmul(hidden, weights[2]) + weights[3]
            loss = tf.losses.sparse_softmax_cross_entropy(tf.gather(labels, rows), logits)
            gradients.append(tf.gradients(loss, weights))
            count = tf.get_variable(f"count{number}", initializer=np.int64(0), trainable=False)
            counted.append(count.assign_add(1))
    sums = []
    for variable, parts in zip(weights, zip(*gradients, strict=True), strict=True):
        with tf.device(variable.device):
            sums.append((tf.add_n(list(parts)) / len(TASKS), variable))
    with tf.control_dependencies([each.op for each in counted]):
        return tf.train.MomentumOptimizer(0.05, 0.9).apply_gradients(sums, global_step=step)


class Report(tf.train.SessionRunHook):
    """Says now and then at which step the job is, and rests."""

    def __init__(self, path: Path, pace_s: float) -> None:
        self._path, self._pace_s, self._said = path, pace_s, 0.0

    def before_run(self, run_context: Any) -> Any:
        return tf.train.SessionRunArgs(tf.train.get_global_step())

    def after_run(self, run_context: Any, run_values: Any) -> None:
        time.sleep(self._pace_s)
        if time.monotonic() - self._said > 0.5:
            self._said = time.monotonic()
            self._path.write_text(str(run_values.results))


def train(target: str, directory: Path, hooks: Sequence[Any], save_steps: int | None) -> None:
    config = tf.ConfigProto(operation_timeout_in_ms=120_000)
    op = build()
    with tf.train.MonitoredTrainingSession(
        target, checkpoint_dir=str(directory), save_checkpoint_steps=save_steps, save_checkpoint_secs=None,
        save_summaries_steps=None, save_summaries_secs=None, log_step_count_steps=None, hooks=hooks,
        config=config,
    ) as session:  # fmt: skip
        while not session.should_stop() and not (directory / STOP).exists():
            session.run(op)


def chief(cluster: Mapping[str, Any], bind: str, directory: Path) -> None:
    server = tf.train.Server(cluster, "chief", 0, bind=bind)
    train(server.target, directory, [Report(directory / STEPS, PACE_S)], SAVE_STEPS)
    server.stop()


def reference(directory: Path, steps: int) -> None:
    with ReservedPorts(len(TASKS)) as reserved:
        addresses = [f"127.0.0.1:{port}" for port in reserved.ports]
        cluster = {"chief": addresses[:1], "worker": addresses[1:]}
        servers = [tf.train.Server(cluster, "chief", 0)]
        servers += [tf.train.Server(cluster, "worker", index) for index in range(len(TASKS) - 1)]
        report, stop = Report(directory / STEPS, 0.0), tf.train.StopAtStepHook(last_step=steps)
        train(servers[0].target, directory, [report, stop], 10**9)
        for server in servers:
            server.stop()


if __name__ == "__main__":
    os.environ["FLOWRT_JIT"] = "off"  # loops that are compiled beside the steps change the last bits
    if sys.argv[1] == "chief":
        chief(json.loads(sys.argv[2]), sys.argv[3], Path(sys.argv[4]))
    else:
        reference(Path(sys.argv[2]), int(sys.argv[3]))
