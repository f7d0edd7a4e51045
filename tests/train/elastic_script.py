"""A worker of an elastic job whose result is known exactly: ``elastic_script.py STEPS [CHECKPOINT_DIR]``.

Least squares by momentum over batches of 12 of 60 records, in an order that a seed decides. ``seen`` counts
in how many steps each record was, as a part of the state: so it tells what has had an effect, not what was
read. ``EVENTS`` has what this worker does, as JSON: {"kill": step, "raise": step, "lose": step (a peer, it
seems), "stop": step, "terminate": step, "pause_s": seconds after each step}, by the name of the worker.
``HOLD``, "NAME STEP", makes that worker wait before that step until the file ``UNTIL`` is there; meanwhile
there is a file "held" beside it. ``TOGETHER`` is the number of workers that wait for one another, by files in
that directory, before they ask for a place: so the first group has all of them. Prints a line of JSON for
each epoch, and one with the result.
"""

import json
import os
import signal
import sys
import time
from pathlib import Path

import numpy as np

import flowrt as tf
from flowrt.distribute.elastic.coordinator_client import read_place

RECORDS, BATCH, RATE, MOMENTUM = 60, 12, 0.02, 0.9
STEPS, CHECKPOINT_DIR = int(sys.argv[1]), sys.argv[2] if len(sys.argv) > 2 else None
PLACE = read_place(os.environ)
NAME = PLACE.name if PLACE is not None else f"rank {os.environ.get('RANK', '0')}"
EVENTS = json.loads(os.environ.get("EVENTS", "{}")).get(NAME, {})


def wait_for_the_others():
    """However long each of them takes to start. Those that come again find the files of the first time."""
    folder = Path(os.environ["UNTIL"]).parent
    (folder / f"{NAME} has started").touch()
    while len(list(folder.glob("* has started"))) < int(os.environ["TOGETHER"]):
        time.sleep(0.05)


def data():
    random = np.random.default_rng(7)
    x = random.normal(size=(RECORDS, 5))
    return x, x @ np.arange(1.0, 6.0)[:, None]


def happens(what, step):
    """Whether that is to happen now; in epochs that begin later it does not again."""
    if EVENTS.get(what) != step:
        return False
    del EVENTS[what]
    return True


def act(step):
    if happens("kill", step):
        os.kill(os.getpid(), signal.SIGKILL)
    if happens("terminate", step):
        os.kill(os.getpid(), signal.SIGTERM)
    if happens("stop", step):
        os.kill(os.getpid(), signal.SIGSTOP)
    if happens("lose", step):
        raise tf.errors.UnavailableError("a link broke")
    if happens("raise", step):
        raise ValueError("a mistake of the script")
    while os.environ.get("HOLD") == f"{NAME} {step}" and not Path(os.environ["UNTIL"]).exists():
        Path(os.environ["UNTIL"]).with_name("held").touch()
        time.sleep(0.05)
    time.sleep(EVENTS.get("pause_s", 0.0))


def train(job):
    x, y = data()
    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    records = tf.data.Dataset.from_tensor_slices((x, y, np.arange(RECORDS)))
    batches = records.shuffle(RECORDS, seed=3).repeat().batch(BATCH, drop_remainder=True)
    with strategy.scope():
        step = tf.train.get_or_create_global_step()
        w = tf.get_variable("w", [5, 1], tf.float64, tf.zeros_initializer())
        kept = {"dtype": tf.float64, "initializer": tf.zeros_initializer(), "trainable": False}
        seen = tf.get_variable("seen", [RECORDS], aggregation=tf.VariableAggregation.SUM, **kept)
        own = tf.get_variable(
            "own", [], aggregation=tf.VariableAggregation.SUM,
            synchronization=tf.VariableSynchronization.ON_READ, **kept,
        )  # fmt: skip
        optimizer = tf.train.MomentumOptimizer(RATE, MOMENTUM)
    iterator = job.distribute(strategy, batches).make_initializable_iterator()

    def one_step(batch):
        rows, targets, numbers = batch
        loss = tf.reduce_sum((tf.matmul(rows, w) - targets) ** 2) / BATCH
        counts = tf.reduce_sum(tf.one_hot(numbers, RECORDS, dtype=tf.float64), 0)
        count = tf.cast(tf.shape(numbers)[0], tf.float64)
        updates = [optimizer.minimize(loss, global_step=step), seen.assign_add(counts), own.assign_add(count)]
        with tf.control_dependencies(updates):
            return tf.identity(loss)

    loss = strategy.reduce("SUM", strategy.run(one_step, args=(iterator.get_next(),)), axis=None)
    own_total = own.read_value()
    local = tf.train.Scaffold.default_local_init_op()
    scaffold = tf.train.Scaffold(local_init_op=tf.group(local, iterator.initializer))
    hooks = [tf.train.StopAtStepHook(last_step=STEPS)]
    options = {"save_checkpoint_steps": 5} if CHECKPOINT_DIR else {}
    print(json.dumps([NAME, job.epoch, job.rank, job.size, job.step]), flush=True)
    with job.session(hooks, int(os.environ.get("EVERY", "1")), scaffold, **options) as session:
        at = job.step
        while not session.should_stop():
            act(at)
            session.run(loss)
            at += 1
        final = session.run_step_fn(lambda step_context: step_context.session.run([w, seen, own_total]))
    return [np.asarray(value).ravel().tolist() for value in final]


def train_in_parts(job):
    """The rows of ``w`` are shared out over the workers, each of which has a part that the others do not."""
    mesh = tf.distribute.Mesh([("dp", job.size)])
    strategy = tf.distribute.MultiWorkerLayoutStrategy(mesh, "dp", {r"w(/.*)?": ["dp"]})
    target = np.arange(24.0).reshape(12, 2)
    with strategy.scope():
        step = tf.train.get_or_create_global_step()
        w = tf.get_variable("w", [12, 2], tf.float64, tf.zeros_initializer())
        optimizer = tf.train.MomentumOptimizer(0.1, 0.5)
    loss = tf.reduce_sum((w - target) ** 2)
    updates = optimizer.minimize(loss, global_step=step)
    hooks = [tf.train.StopAtStepHook(last_step=STEPS)]
    print(json.dumps([NAME, job.epoch, job.rank, job.size, job.step]), flush=True)
    with job.session(hooks, int(os.environ["EVERY"]), save_checkpoint_steps=4) as session:
        at = job.step
        while not session.should_stop():
            act(at)
            session.run(updates)
            at += 1
        final = session.run_step_fn(lambda step_context: step_context.session.run(w))
    return final.ravel().tolist()


if __name__ == "__main__":
    if "TOGETHER" in os.environ:
        wait_for_the_others()
    training = train_in_parts if os.environ.get("KIND") == "parts" else train
    try:
        print(json.dumps(tf.train.run_elastic(training, CHECKPOINT_DIR)), flush=True)
    except tf.errors.UnimplementedError as error:
        print(json.dumps([error.message]))
