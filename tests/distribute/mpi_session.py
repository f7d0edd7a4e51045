"""A rank that runs steps over its own task and rank 1's, a ``flowrt-worker``. Prints what it saw."""

from __future__ import annotations

import os

import numpy as np

import flowrt as tf
from flowrt.distribute.launch.check import probe
from flowrt.distribute.resolvers import resolve
from flowrt.rendezvous.transport import new_transport

STEPS = 20
SIZE = 1 << 20
"""Of float32: 4 MiB there and 4 MiB back in each step."""

if __name__ == "__main__":
    cluster = resolve(os.environ)
    server = tf.train.Server(cluster.spec, cluster.job, cluster.task)
    with tf.device("/job:worker/task:0"):
        x = tf.placeholder(tf.float32, [SIZE])
        here = x + 1.0
    with tf.device("/job:worker/task:1"):
        there = here * 2.0
    with tf.device("/job:worker/task:0"):
        back = there - 3.0
    with tf.Session(server.target) as session:
        for step in range(STEPS):
            values = np.full(SIZE, step, np.float32)
            assert (session.run(back, {x: values}) == 2 * values - 1).all()
        print("steps:", STEPS)
        print("by", probe(new_transport(), cluster.spec.task_address("worker", 1), 10).kind, flush=True)
    server.stop()
