"""What the workers of `test_multi_worker` run: ``multi_worker_script.py WHAT TASK ADDRESSES...``.

Prints what came of it as JSON. With ``stand`` for WHAT it reads lines of a WHAT and environment variables
from its input, and prints a line for each.
"""

import json
import os
import signal
import sys
import tempfile
import time

import numpy as np

import flowrt as tf
from flowrt.distribute.strategies.kinds import multi_worker
from tests.distribute.strategies.standing_workers import questions, reply

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
    initializer = tf.global_variables_initializer()
    with tf.train.MonitoredTrainingSession() if WHAT == "killed_monitored" else tf.Session() as session:
        session.run(initializer)
        begin = session.run(w).tolist()
        for number in range(10):
            if TASK == 1 and number == 5:
                hurt()
            last = session.run(loss)
        return begin, session.run(w).tolist(), float(last)


def hurt():
    if WHAT in ("killed", "killed_monitored"):
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


def counts_on_read(strategy):
    """Variables that replica r of all has made 3 + 10 r, of each aggregation and of two dtypes."""
    found = {}
    with strategy.scope():
        for aggregation in ("SUM", "MEAN", "ONLY_FIRST_REPLICA"):
            for dtype in (tf.float32, tf.int64):
                found[f"{aggregation}_{dtype.name}"] = tf.get_variable(
                    f"{aggregation}_{dtype.name}",
                    initializer=tf.constant(3, dtype),
                    trainable=False,
                    synchronization=tf.VariableSynchronization.ON_READ,
                    aggregation=tf.VariableAggregation[aggregation],
                )

    def fn():
        replica = tf.distribute.get_replica_context().replica_id_in_sync_group
        return [v.assign_add(tf.cast(10 * replica, v.dtype)).op for v in found.values()]

    return found, strategy.group(strategy.run(fn))


def own_values(session, found):
    return {name: session.run(list(v.copies))[0].item() for name, v in found.items()}


def saves(strategy):
    """What is in the checkpoint of each worker, and what each worker's copies are when it is restored."""
    found, count = counts_on_read(strategy)
    saver = tf.train.Saver(found)
    with tempfile.TemporaryDirectory() as directory, tf.Session() as session:
        session.run(tf.global_variables_initializer())
        session.run(count)
        before = own_values(session, found)
        prefix = saver.save(session, f"{directory}/model")
        reader = tf.train.NewCheckpointReader(prefix)
        saved = {name: reader.get_tensor(name).item() for name in found}
        session.run(tf.global_variables_initializer())
        saver.restore(session, prefix)
        return before, saved, own_values(session, found)


def monitors(strategy):
    """A loop to the step LAST_STEP with checkpoints in the directory CHECKPOINTS, which all workers name: the
    step that it began at, and for the one that saves a sum over all replicas and a weight in each checkpoint.
    """
    _, count = counts_on_read(strategy)
    with strategy.scope():
        step = tf.train.get_or_create_global_step()
        weight = tf.get_variable("weight", [], initializer=tf.zeros_initializer())
        optimizer = tf.train.GradientDescentOptimizer(1.0)
    train = strategy.group(strategy.run(lambda: optimizer.minimize(-weight, global_step=step)))
    directory, last_step = os.environ["CHECKPOINTS"], int(os.environ["LAST_STEP"])
    hooks = [tf.train.StopAtStepHook(last_step=last_step)]
    with tf.train.MonitoredTrainingSession(
        checkpoint_dir=directory, hooks=hooks, save_summaries_steps=0, **json.loads(os.environ["INTERVAL"])
    ) as session:
        begun = session.run_step_fn(lambda step_context: int(step_context.session.run(step)))
        while not session.should_stop():
            session.run([train, count])
    saved = {}
    if not strategy.extended.should_checkpoint:
        return begun, saved
    for prefix in tf.train.get_checkpoint_state(directory).all_model_checkpoint_paths:
        reader = tf.train.NewCheckpointReader(prefix)
        saved[prefix.rpartition("-")[2]] = [reader.get_tensor(n).item() for n in ("SUM_int64", "weight")]
    return begun, saved


def summarizes(strategy):
    """Seven steps of a loop that writes a summary of a sum over all replicas to CHECKPOINTS, where only the
    first worker's clock, as INTERVAL has it, says when. The last sum.
    """
    with strategy.scope():
        step = tf.train.get_or_create_global_step()
        weight = tf.get_variable("weight", [], initializer=tf.zeros_initializer())
        optimizer = tf.train.GradientDescentOptimizer(1.0)

    def fn():
        with tf.control_dependencies([optimizer.minimize(-weight, global_step=step)]):
            return weight.read_value()

    total = strategy.reduce("SUM", strategy.run(fn))
    tf.summary.scalar("total", total)
    hooks = [tf.train.StopAtStepHook(last_step=7)]
    interval = json.loads(os.environ["INTERVAL"]) if TASK == 0 else {"save_summaries_steps": 1000}
    with tf.train.MonitoredTrainingSession(
        checkpoint_dir=os.environ["CHECKPOINTS"], hooks=hooks, log_step_count_steps=0, **interval
    ) as session:
        while not session.should_stop():
            last = session.run(total)
    return float(last)


DOES = {
    "assigned": assigns_a_sum,
    "uneven": reads_unevenly,
    "sparse": looks_up,
    "saves": saves,
    "monitors": monitors,
    "summarizes": summarizes,
}


def answer():
    if WHAT == "absent" and TASK == 1:
        time.sleep(600)
    if WHAT == "version" and TASK == 1:
        multi_worker.VERSION = "0.0.0"
    try:
        return DOES.get(WHAT, trains)(strategy())
    except tf.errors.OpError as error:
        return [type(error).__name__, str(error)]


for WHAT in questions(sys.argv[1]):  # noqa: B007 (the functions above read it)
    reply(answer())
