"""What the workers of `test_multi_worker` run: ``multi_worker_script.py WHAT TASK ADDRESSES...``.

Prints what came of it as JSON.
"""

import json
import os
import signal
import sys
import time

import numpy as np

import flowrt as tf

WHAT, TASK, ADDRESSES = sys.argv[1], int(sys.argv[2]), sys.argv[3:]
OPTIONS = {
    "absent": {"timeout_seconds": 6.0},
    "stuck": {"timeout_seconds": 6.0},
    "uneven": {"bytes_per_pack": 8},
    "compressed": {"compression": "bfloat16"},
}


def strategy():
    spec = tf.train.ClusterSpec({"worker": ADDRESSES})
    resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(spec, task_type="worker", task_id=TASK)
    options = tf.distribute.CommunicationOptions(**OPTIONS.get(WHAT, {}))
    return tf.distribute.MultiWorkerMirroredStrategy(resolver, options)


def trains(strategy):
    """Ten steps of a quadratic: what a variable begins with, and what it is then."""
    with strategy.scope():
        w = tf.get_variable("w", [3], tf.float64, tf.random_normal_initializer())
        if WHAT == "differ" and TASK == 1:
            tf.get_variable("more", [2], tf.float64)
        optimizer = tf.train.GradientDescentOptimizer(0.125)  # exact in float32 too

    def step():
        replica = tf.distribute.get_replica_context().replica_id_in_sync_group
        loss = tf.reduce_sum((w - tf.cast(replica, tf.float64)) ** 2)
        with tf.control_dependencies([optimizer.minimize(loss)]):
            return tf.identity(loss)

    loss = strategy.reduce("SUM", strategy.run(step), axis=None)
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        begin = session.run(w).tolist()
        for number in range(10):
            if TASK == 1 and number == 5:
                hurt()
            last = session.run(loss)
        return begin, session.run(w).tolist(), float(last)


def hurt():
    if WHAT == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    if WHAT == "stuck":
        time.sleep(600)


def reads_unevenly(strategy):
    """An epoch of 10 rows in batches of 4 over the workers' replicas, by record: sums, and steps made."""
    records = tf.data.Dataset.from_tensor_slices(np.arange(10.0)).batch(4)
    options = tf.distribute.InputOptions(tf.data.experimental.AutoShardPolicy.DATA)
    iterator = strategy.experimental_distribute_dataset(records, options).make_initializable_iterator()
    with strategy.scope():
        weight = tf.get_variable("weight", [2], tf.float64, tf.zeros_initializer())
        bias = tf.get_variable("bias", [], tf.float64, tf.zeros_initializer())
        optimizer = tf.train.GradientDescentOptimizer(1.0)

    def step(rows):
        loss = tf.reduce_sum(rows) * (tf.reduce_sum(weight) + bias)  # its gradient is the sum of the rows
        with tf.control_dependencies([optimizer.minimize(loss)]):
            return tf.shape(rows)[0]

    counts = strategy.run(step, args=(iterator.get_next(),))
    count, steps = strategy.reduce("SUM", counts, axis=None), 0
    with tf.Session() as session:
        session.run([tf.global_variables_initializer(), iterator.initializer])
        seen = 0
        try:
            while True:
                seen += int(session.run(count))
                steps += 1
        except tf.errors.OutOfRangeError:
            return seen, steps, session.run(bias).item(), session.run(weight).tolist()


def looks_up(strategy):
    """Sparse gradients: each worker's replica takes rows of its own, and one that all take."""
    with strategy.scope():
        table = tf.get_variable("table", [6, 2], tf.float64, tf.zeros_initializer())
        optimizer = tf.train.GradientDescentOptimizer(1.0)

    def step():
        replica = tf.distribute.get_replica_context().replica_id_in_sync_group
        rows = tf.gather(table, tf.stack([0, 1 + replica]))
        return optimizer.minimize(-tf.reduce_sum(rows))

    train = strategy.group(strategy.run(step))
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        session.run(train)
        return session.run(table)[:, 0].tolist()


def assigns_a_sum(strategy):
    """What a variable whose value is the sum of all replicas' is after an assignment of 7."""
    with strategy.scope():
        options = {"synchronization": tf.VariableSynchronization.ON_READ, "trainable": False}
        total = tf.get_variable(
            "total", [], tf.int64, tf.zeros_initializer(), aggregation=tf.VariableAggregation.SUM, **options
        )
        assigned = total.assign(7)
        with tf.control_dependencies([assigned]):
            read = total.read_value()
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        return int(session.run(read))


DOES = {"assigned": assigns_a_sum, "uneven": reads_unevenly, "sparse": looks_up}

if WHAT == "absent" and TASK == 1:
    time.sleep(600)
try:
    answer = DOES.get(WHAT, trains)(strategy())
except tf.errors.OpError as error:
    answer = [type(error).__name__, str(error)]
print(json.dumps(answer), flush=True)
