"""Digits with parameter servers: ``flowrt-run --standalone --nproc 3 examples/digits_ps.py --mode sync``.

Every task is a worker and stores its share of the variables; in a cluster with a job "ps", whose tasks are
``flowrt-worker --job ps --task N``, those tasks store them. Each worker takes its rows of each batch.
With ``--replicas 2``, each server's variables are also on the next server, which takes over if the first one
is lost. ``--mode`` sets the staleness bound:

    sync          an update is the mean of all workers' gradients: the weights of one process, up to rounding
    async         each gradient is an update
    ssp=2         the same, but no worker is more than 2 steps ahead of the slowest
    backup=1      an update is the mean of all gradients but the last one

The first worker prints the accuracy, the number of steps of each worker, how stale gradients were when they
were applied (0 updates, 1, ...), and in sync mode how far the weights are from those of one process.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import time

import numpy as np
from digits import Digits, load

import flowrt as tf
from flowrt.distribute.resolvers import resolve

ROWS = 16  # per worker and step
WAIT_S = 120.0
QUIET_S = 10.0
"""At the end, a worker that makes no progress for this long is not waited for."""


class Network:
    """Two dense layers that start with the same weights in every run."""

    def __init__(self) -> None:
        self.images = tf.placeholder(tf.float64, [None, 64])
        self.labels = tf.placeholder(tf.int64, [None])
        self.layers = [self._dense(64, tf.nn.relu), self._dense(10, None)]

    @staticmethod
    def _dense(units: int, activation: object) -> tf.layers.Dense:
        initializer = tf.glorot_uniform_initializer(seed=units)
        return tf.layers.Dense(units, activation, kernel_initializer=initializer)

    def logits(self) -> tf.Tensor:
        hidden, last = self.layers
        return last(hidden(self.images))

    def loss(self) -> tf.Tensor:
        """The mean over this worker's rows."""
        losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=self.labels, logits=self.logits())
        return tf.reduce_mean(losses)


def rows_of(digits: Digits, step: int, workers: int) -> np.ndarray:
    """The indices of the images of one step, for all workers."""
    return np.random.default_rng([5, step]).integers(len(digits.labels), size=workers * ROWS)


def feed(network: Network, digits: Digits, rows: np.ndarray) -> dict[tf.Tensor, np.ndarray]:
    return {network.images: digits.images[rows].reshape(-1, 64), network.labels: digits.labels[rows]}


def train_alone(digits: Digits, steps: int, workers: int) -> list[np.ndarray]:
    """The weights of one process that takes all workers' rows together."""
    with tf.Graph().as_default(), tf.Session() as session:
        network = Network()
        train = tf.train.AdamOptimizer(2e-3).minimize(network.loss())
        session.run(tf.global_variables_initializer())
        for step in range(steps):
            session.run(train, feed(network, digits, rows_of(digits, step, workers)))
        return list(session.run(tf.trainable_variables()))


def main(mode: str, steps: int, replicas: int) -> None:
    cluster, digits = resolve(os.environ), load()
    server = tf.train.Server(cluster.spec, cluster.job, cluster.task)
    name, _, number = mode.partition("=")
    strategy = tf.distribute.experimental.ParameterServerStrategy(
        mode=(name, int(number)) if number else name, replicas=replicas
    )
    worker, workers = cluster.task, cluster.spec.num_tasks(cluster.job)
    with strategy.scope():
        network = Network()
        global_step = tf.train.get_or_create_global_step()
        optimizer = tf.train.AdamOptimizer(2e-3)
        train = strategy.run(lambda: optimizer.minimize(network.loss(), global_step=global_step))
    ages = tf.add_n([first(8, counts) for counts in strategy.staleness_histogram()])
    correct = tf.equal(tf.argmax(network.logits(), 1), network.labels)
    accuracy, weights = tf.reduce_mean(tf.to_float(correct)), tf.trainable_variables()
    statuses = strategy.shard_status()
    trained: list[np.ndarray] = []
    with strategy.training_session(server.target, worker == 0, max_wait_secs=WAIT_S) as session:
        for step in range(steps):
            rows = rows_of(digits, step, workers)[worker * ROWS : (worker + 1) * ROWS]
            session.run(train, feed(network, digits, rows))
        if worker == 0:
            made = steps_of_all(session, statuses, steps)
            test = {network.images: digits.test_images.reshape(-1, 64), network.labels: digits.test_labels}
            reached, updates, histogram, trained = session.run([accuracy, global_step, ages, weights], test)
            print(f"{mode}: {updates} updates, test accuracy {reached:.4f}", flush=True)
            print(f"steps per worker: {made}", flush=True)
            print(f"gradients by staleness (0, 1, ... updates): {histogram.tolist()}", flush=True)
    if worker == 0 and mode == "sync":
        alone = train_alone(digits, steps, workers)
        apart = max(float(np.abs(a - b).max()) for a, b in zip(trained, alone, strict=True))
        print(f"weights differ from those of one process by {apart:.1e}", flush=True)
    if worker > 0 and "ps" not in cluster.spec.jobs:
        stay_until_the_first_ends(server, f"/job:{cluster.job}/task:0")  # it reads variables that are here


def stay_until_the_first_ends(server: tf.train.Server, first_task: str) -> None:
    """Wait for a queue element of that task, which never comes, until the task is gone."""
    with tf.Graph().as_default(), tf.device(first_task):
        never = tf.FIFOQueue(1, tf.int32).dequeue()
        with contextlib.suppress(tf.errors.UnavailableError), tf.Session(server.target) as session:
            session.run(never, options=tf.RunOptions(timeout_in_ms=int(1000 * WAIT_S)))


def steps_of_all(session: tf.train.MonitoredSession, statuses: list[tf.Tensor], steps: int) -> list[int]:
    """The number of steps of each worker: ``steps``, unless there was no progress for `QUIET_S`."""
    made, changed = [0], time.monotonic()
    while min(made) < steps and time.monotonic() < changed + QUIET_S:
        before, made = made, np.min([status[6:] for status in session.run(statuses)], axis=0).tolist()
        changed = changed if made == before else time.monotonic()
        time.sleep(0.05)
    return made


def first(count: int, numbers: tf.Tensor) -> tf.Tensor:
    """The first ``count`` numbers, padded with zeros."""
    return tf.pad(numbers[:count], [[0, tf.maximum(count - tf.size(numbers), 0)]])


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mode", default="sync")
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--replicas", type=int, default=1)
    arguments = parser.parse_args()
    main(arguments.mode, arguments.steps, arguments.replicas)
