"""Graphs that the tests of this directory look at."""

import numpy as np

import flowrt as tf

CPU0, CPU1 = (f"/job:localhost/replica:0/task:0/device:CPU:{i}" for i in range(2))


def network(layers=4):
    """A graph of like layers, in turn on two devices, with a large constant and a training step. Returns the
    graph, its input, loss and training step.
    """
    graph = tf.Graph()
    with graph.as_default():
        x = h = tf.placeholder("float32", [8, 16], name="x")
        for i in range(layers):
            with tf.device(f"/cpu:{i % 2}"), tf.variable_scope(f"layer_{i}"):
                h = tf.nn.relu(tf.matmul(h, tf.get_variable("w", [16, 16])), name="out")
        projected = tf.matmul(h, tf.constant(np.full([16, 32], 0.5, np.float32), name="large"))
        loss = tf.reduce_mean(tf.square(projected), name="loss")
        train = tf.train.GradientDescentOptimizer(0.1).minimize(loss, name="train")
    return graph, x, loss, train


def nested():
    """A graph with a branch in a loop. Returns the graph and the loop's result."""
    graph = tf.Graph()
    with graph.as_default():
        x = tf.placeholder("float32", [], name="x")
        result = tf.while_loop(
            lambda i, _: i < 3, lambda i, a: (i + 1, tf.cond(a > 1, lambda: tf.sin(a), lambda: a)), [0, x]
        )[1]
    return graph, result


def two_devices_session(graph):
    return tf.Session(graph=graph, config=tf.ConfigProto(device_count={"CPU": 2}))
