"""Digits with parameter servers: ``flowrt-run --standalone --nproc 3 examples/digits_ps.py --mode sync``.

Every task is a worker, and keeps its share of the variables for all; a cluster with a job "ps" keeps them
there. Of each batch every worker has its rows. ``--mode`` says how far the workers may be apart:

    sync          an update is the mean of all workers' gradients: the weights of one process, to rounding
    async         each gradient is an update
    ssp=2         the same, but nobody is more than 2 steps ahead of the slowest
    backup=1      an update is the mean of all gradients but the last one

The first worker prints the accuracy, how old the gradients were, and in sync mode what one process gives.
"""

from __future__ import annotations

import argparse
import os

import numpy as np
from digits import Digits, load

import flowrt as tf
from flowrt.distribute.resolvers import resolve

ROWS = 16  # of each worker in a step
WAIT_S = 120.0


class Network:
    """Two dense layers that begin with the same weights in every run."""

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
    """The numbers of the images of a step, of all workers."""
    return np.random.default_rng([5, step]).integers(len(digits.labels), size=workers * ROWS)


def feed(network: Network, digits: Digits, rows: np.ndarray) -> dict[tf.Tensor, np.ndarray]:
    return {network.images: digits.images[rows].reshape(-1, 64), network.labels: digits.labels[rows]}


def train_alone(digits: Digits, steps: int, workers: int) -> list[np.ndarray]:
    """The weights of one process that takes the workers' rows together."""
    with tf.Graph().as_default(), tf.Session() as session:
        network = Network()
        train = tf.train.AdamOptimizer(2e-3).minimize(network.loss())
        session.run(tf.global_variables_initializer())
        for step in range(steps):
            session.run(train, feed(network, digits, rows_of(digits, step, workers)))
        return list(session.run(tf.trainable_variables()))


def main(mode: str, steps: int) -> None:
    cluster, digits = resolve(os.environ), load()
    server = tf.train.Server(cluster.spec, cluster.job, cluster.task)
    name, _, number = mode.partition("=")
    strategy = tf.distribute.experimental.ParameterServerStrategy(
        mode=(name, int(number)) if number else name
    )
    worker, workers = cluster.task, len(cluster.spec)
    with strategy.scope():
        network = Network()
        global_step = tf.train.get_or_create_global_step()
        optimizer = tf.train.AdamOptimizer(2e-3)
        train = strategy.run(lambda: optimizer.minimize(network.loss(), global_step=global_step))
    ages = tf.add_n([first(8, counts) for counts in strategy.staleness_histogram()])
    correct = tf.equal(tf.argmax(network.logits(), 1), network.labels)
    accuracy, weights = tf.reduce_mean(tf.to_float(correct)), tf.trainable_variables()
    barrier = Barrier(f"/job:{cluster.job}/task:0", workers, worker == 0)
    with strategy.training_session(server.target, worker == 0, max_wait_secs=WAIT_S) as session:
        for step in range(steps):
            rows = rows_of(digits, step, workers)[worker * ROWS : (worker + 1) * ROWS]
            session.run(train, feed(network, digits, rows))
    with tf.Session(server.target, config=strategy.update_config_proto(tf.ConfigProto())) as session:
        barrier.wait(session)
        if worker == 0:
            test = {network.images: digits.test_images.reshape(-1, 64), network.labels: digits.test_labels}
            reached, updates, histogram, trained = session.run([accuracy, global_step, ages, weights], test)
            print(f"{mode}: {updates} updates, test accuracy {reached:.4f}", flush=True)
            print(f"gradients that were 0, 1, ... updates old: {histogram.tolist()}", flush=True)
            if mode == "sync":
                alone = train_alone(digits, steps, workers)
                apart = max(float(np.abs(a - b).max()) for a, b in zip(trained, alone, strict=True))
                print(f"weights differ from one process's by {apart:.1e}", flush=True)
        barrier.wait(session)
    server.drain(5.0)


def first(count: int, numbers: tf.Tensor) -> tf.Tensor:
    """The first of some numbers, with zeros behind them where there are fewer."""
    return tf.pad(numbers[:count], [[0, tf.maximum(count - tf.size(numbers), 0)]])


class Barrier:
    """All workers wait for all, at the first task: it takes a token of each, and gives one back.

    Who waits is in a step of the first task until then, which that one ends before it ends itself.
    """

    def __init__(self, first_task: str, workers: int, is_first: bool) -> None:
        with tf.device(first_task):
            arrived = tf.FIFOQueue(workers, tf.int32, shapes=[[]], shared_name="arrived")
            released = tf.FIFOQueue(workers, tf.int32, shapes=[[]], shared_name="released")
        arrive = arrived.enqueue(0)
        with tf.control_dependencies([arrive]):
            if is_first:
                all_here = arrived.dequeue_many(workers)
                self._wait = released.enqueue_many(all_here[1:])
            else:
                self._wait = released.dequeue()

    def wait(self, session: tf.Session) -> None:
        session.run(self._wait)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mode", default="sync")
    parser.add_argument("--steps", type=int, default=60)
    arguments = parser.parse_args()
    main(arguments.mode, arguments.steps)
