"""``python -m tests.distribute.parameter_server.endless_worker CLUSTER WORKER MODE [STEPS]``: trains until it
is killed, or makes STEPS steps and then none. With ``strategy`` for STEPS it has not even a session, with
``session`` a plain one in which it runs nothing of the strategy's.

Prints a line when it has come so far, and one a step.
"""

from __future__ import annotations

import json
import sys
from itertools import count
from threading import Event
from typing import Any

import flowrt as tf
from flowrt.distribute.resolvers.cluster_resolver import SimpleClusterResolver
from tests.distribute.parameter_server.training import batch, build


def main(cluster: str, worker: int, mode: Any, steps: str) -> None:
    spec = tf.train.ClusterSpec(json.loads(cluster))
    server = tf.train.Server(spec, "worker", worker)
    resolver = SimpleClusterResolver(spec, task_type="worker", task_id=worker)
    strategy = tf.distribute.experimental.ParameterServerStrategy(resolver, mode=mode, timeout_s=10.0)
    model = build(strategy, lambda: tf.train.AdamOptimizer(0.05))
    if steps == "strategy":
        print(steps, flush=True)
        Event().wait()
    if steps == "session":
        with tf.Session(server.target, config=strategy.update_config_proto(tf.ConfigProto())) as session:
            session.run(tf.constant(0))
            print(steps, flush=True)
            Event().wait()
    with strategy.training_session(server.target) as session:
        print("session", flush=True)
        for step in range(int(steps)) if steps else count():
            session.run(model.train, {model.inputs: batch(worker, step)})
            print(step, flush=True)
        Event().wait()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), json.loads(sys.argv[3]), "".join(sys.argv[4:]))
