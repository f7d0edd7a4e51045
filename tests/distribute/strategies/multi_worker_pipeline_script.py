"""What the workers of `test_multi_worker_pipeline` run, with the arguments WHAT TASK ADDRESSES...

WHAT is one word or several with commas: each is done in turn, in one launch. Prints what came of each, as
JSON.
"""

import functools
import json
import os
import signal
import sys

import numpy as np

import flowrt as tf
from tests.distribute.strategies.nets_in_stages import (
    CONFIG,
    GRID_NETS,
    PLAN,
    built,
    checking,
    embeddings,
    fed_by_dataset,
    gpt,
    losses_of_epochs,
    lstm,
    mlp,
    scaling,
    trained,
)
from tests.graph.passes.layouts.test_random_layouts import nets_of_two_processes
from tests.graph.passes.layouts.test_random_layouts import trained as trained_net

WHATS, TASK, ADDRESSES = sys.argv[1].split(","), int(sys.argv[2]), sys.argv[3:]

STEADY = functools.partial(gpt, blocks=2, rate=0.0)
"""Without draws, which begin again in a new process."""

SKIP = functools.partial(gpt, lengths=(5, 3))
CASES = {
    "1f1b": (SKIP, 2, [], {"schedule": "1f1b"}),
    "zbv": (gpt, 2, [], {"schedule": "zbv", "remat": "stage"}),
    "zb_h2": (gpt, 4, [], {"schedule": "zb_h2", "micro_batches": 8}),
    "interleaved": (functools.partial(gpt, blocks=8), 4, [], {"schedule": "interleaved"}),
    "dp x tp": (gpt, 2, [("dp", 2), ("tp", 2)], {"plan": PLAN, "remat": "stage", "batch": "dp"}),
    "dp": (mlp, 2, [("dp", 2)], {"batch": "dp", "schedule": "zb_h1"}),
    "tp": (gpt, 2, [("tp", 2)], {"plan": PLAN, "sequence": True}),
    "uneven": (functools.partial(mlp, batches=(12, 7, 3, 1)), 2, [], {}),
    "lstm": (lstm, 2, [], {"schedule": "gpipe"}),
    "dataset": (fed_by_dataset, 2, [], {}),
    "embeddings": (embeddings, 2, [], {"schedule": "zb_h1"}),
    "scaling": (scaling, 2, [], {}),
    "checking": (checking, 2, [], {"schedule": "zb_h1", "remat": "stage"}),
    "odd": (functools.partial(gpt, blocks=2, batches=(10, 7)), 2, [], {}),
    "lstm with dropout": (functools.partial(lstm, keep=0.8), 2, [], {}),
}
"""A net, the number of stages, other axes, and arguments of the strategy."""


def cluster_resolver():
    spec = tf.train.ClusterSpec({"worker": ADDRESSES})
    return tf.distribute.cluster_resolver.SimpleClusterResolver(spec, task_type="worker", task_id=TASK)


def strategy(p, axes, timeout_s=30.0, **options):
    options.setdefault("micro_batches", 4)
    return tf.distribute.PipelineStrategy(
        tf.distribute.Mesh([("pp", p), *axes]),
        "pp",
        cluster_resolver=cluster_resolver(),
        communication_options=tf.distribute.CommunicationOptions(timeout_seconds=timeout_s),
        **options,
    )


def trains(what):
    """The losses and variables of the case ``what``, after three steps."""
    build, p, axes, options = CASES[what]
    found = trained(build, strategy(p, axes, **options), steps=4 if what == "uneven" else 3)
    return found.losses, {name: value.tolist() for name, value in found.variables.items()}


def of_grid(net, schedule, p, m):
    """As `trains`, for a row of `GRID`."""
    found = trained(GRID_NETS[net], strategy(int(p), [], schedule=schedule, micro_batches=int(m)))
    return found.losses, {name: value.tolist() for name, value in found.variables.items()}


def dies():
    """The worker of the second stage ends in its third step: what the others raise."""
    with tf.Graph().as_default(), tf.Session() as session:
        net = built(mlp, strategy(len(ADDRESSES), [], timeout_s=10.0))
        session.run(tf.global_variables_initializer())
        for number in range(6):
            if TASK == 1 and number == 2:
                os.kill(os.getpid(), signal.SIGKILL)
            session.run([net.loss, net.train], net.feeds(number))


def saves(folder):
    """A checkpoint after each step; the second worker is killed in its fourth."""
    with tf.Graph().as_default(), tf.Session(config=CONFIG) as session:
        net = built(STEADY, strategy(2, [("dp", 2)], batch="dp", timeout_s=10.0))
        session.run(tf.global_variables_initializer())
        saver = tf.train.Saver()
        for number in range(6):
            if TASK == 1 and number == 3:
                os.kill(os.getpid(), signal.SIGKILL)
            session.run([net.loss, net.train], net.feeds(number))
            saver.save(session, f"{folder}/model")


def is_outside():
    """A variable that was made outside of the scope."""
    step = tf.Variable(0.0, name="step")
    with strategy(len(ADDRESSES), []).scope():
        x = tf.placeholder(tf.float64, [4, 4])
        with tf.distribute.stage(0):
            h = x @ tf.get_variable("w0", [4, 4], tf.float64)
        with tf.distribute.stage(1):
            loss = tf.reduce_mean(h @ tf.get_variable("w1", [4, 4], tf.float64)) + tf.cast(step, tf.float64)
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        session.run(loss, {x: np.ones((4, 4))})


def differs():
    """The workers have other schedules."""
    build, p, axes, _ = CASES["embeddings"]
    trained(build, strategy(p, axes, schedule="1f1b" if TASK else "gpipe", timeout_s=10.0))


def epochs():
    return losses_of_epochs(strategy(4, [], micro_batches=2))


def random_nets():
    """The losses and variables of each net."""
    found = [
        trained_net(net, net.strategy(cluster_resolver=cluster_resolver())) for net in nets_of_two_processes()
    ]
    return [[list(map(float, each.losses)), [v.tolist() for v in each.variables]] for each in found]


OTHERS = {
    "dies": dies,
    "outside": is_outside,
    "differs": differs,
    "epochs": epochs,
    "random nets": random_nets,
}


def answer(what):
    try:
        if what.startswith("saves "):
            return saves(what.removeprefix("saves "))
        if what.startswith("grid "):
            return of_grid(*what.removeprefix("grid ").split("/"))
        return OTHERS.get(what, lambda: trains(what))()
    except tf.errors.OpError as error:
        return type(error).__name__, str(error)


print(json.dumps([answer(what) for what in WHATS]), flush=True)
