"""The digits network on a cluster: ``flowrt-run --standalone --nproc 2 examples/digits_cluster.py``.

Trains three times from the same initial values, and compares the weights:

    one process     a session without a cluster
    in-graph        one program, on the first task: convolutions there, dense layers on the last task
    between-graph   one program per task, with the variables on the first task; the tasks take turns

The weights are equal to the last bit, because initial values and batches come from seeds, a matrix product
uses one thread and therefore one order of summation, no kernel is replaced by a compiled one during training
(FLOWRT_JIT=off), and steps do not overlap. Tasks that do not take turns learn as well, but their results are
not reproducible.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable

import numpy as np
from digits import Digits, load
from digits_cnn import BATCH, Network

import flowrt as tf
from flowrt.distribute.resolvers import ResolvedCluster, resolve

CHIEF = "/job:worker/task:0"
WAIT_S = 120
ONE_THREAD = tf.ConfigProto(device_count={"CPU": 1}, intra_op_parallelism_threads=1)

Weights = list[np.ndarray]


def main(steps: int) -> None:
    cluster = resolve(os.environ)
    digits = load()
    server = tf.train.Server(cluster.spec, cluster.job, cluster.task, config=ONE_THREAD)
    if cluster.task == 0:
        alone = report("one process", lambda: train_alone(digits, steps))
        for how, weights in [
            ("in-graph", report("in-graph", lambda: train_in_graph(server, cluster, digits, steps))),
            ("between-graph", report("between-graph", lambda: train_in_turn(server, cluster, digits, steps))),
        ]:
            differ = sum(not np.array_equal(a, b) for a, b in zip(alone, weights, strict=True))
            print(f"{how}: {differ} of {len(alone)} variables differ from one process", flush=True)
            assert not differ
    else:
        train_in_turn(server, cluster, digits, steps)
    server.drain(5.0)


def report(how: str, train: Callable[[], Weights]) -> Weights:
    start = time.perf_counter()
    weights = train()
    print(f"{how}: trained in {time.perf_counter() - start:.1f} s", flush=True)
    return weights


def feed(network: Network, digits: Digits, step: int) -> dict[tf.Tensor, np.ndarray]:
    """The batch of a step, the same whichever task runs it."""
    chosen = np.random.default_rng([3, step]).integers(len(digits.labels), size=BATCH)
    return {network.images: digits.images[chosen], network.labels: digits.labels[chosen]}


def train_alone(digits: Digits, steps: int) -> Weights:
    with tf.Graph():
        tf.set_random_seed(3)
        network = Network("/cpu:0", "/cpu:0")
        with tf.Session(config=ONE_THREAD) as session:
            session.run(tf.global_variables_initializer())
            for step in range(steps):
                session.run(network.train, feed(network, digits, step))
            test = {network.images: digits.test_images, network.labels: digits.test_labels}
            print(f"test accuracy {session.run(network.accuracy, test):.4f}", flush=True)
            return list(session.run(tf.global_variables()))


def train_in_graph(server: tf.train.Server, cluster: ResolvedCluster, digits: Digits, steps: int) -> Weights:
    """One program with the graph of all tasks and variables of its own."""
    with tf.Graph():
        tf.set_random_seed(3)
        network = Network(CHIEF, f"/job:worker/task:{len(cluster.spec) - 1}")
        with tf.Session(server.target, config=tf.ConfigProto(isolate_session_state=True)) as session:
            session.run(tf.global_variables_initializer())
            for step in range(steps):
                session.run(network.train, feed(network, digits, step))
            return list(session.run(tf.global_variables()))


def train_in_turn(server: tf.train.Server, cluster: ResolvedCluster, digits: Digits, steps: int) -> Weights:
    """One program per task, which computes there with the variables of the first task. Tasks take turns.
    The first task runs the last step and returns the weights; it may have exited when the others end.
    """
    task, tasks = cluster.task, len(cluster.spec)
    here = f"/job:worker/task:{task}"
    with tf.Graph():
        tf.set_random_seed(3)
        setter = tf.train.replica_device_setter(1, ps_device=CHIEF, worker_device=here)
        with tf.device(setter):
            network = Network("", "")
        config = tf.ConfigProto(device_filters=[CHIEF, here])
        weights: Weights = []
        with tf.train.MonitoredTrainingSession(
            server.target, is_chief=task == 0, config=config, max_wait_secs=WAIT_S
        ) as session:
            for step in range((steps - 1 - task) % tasks, steps, tasks):
                while session.run(network.step) != step:
                    time.sleep(0.001)
                session.run(network.train, feed(network, digits, step))
            if task == 0:
                weights = list(session.run(tf.global_variables()))
        return weights


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=100)
    os.environ.setdefault("FLOWRT_JIT", "off")
    main(parser.parse_args().steps)
