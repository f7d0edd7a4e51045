"""``python -m tests.distribute.parameter_server.endless_worker CLUSTER WORKER MODE``: trains until it is
killed.

Prints a line a step.
"""

from __future__ import annotations

import json
import sys
from itertools import count
from typing import Any

import flowrt as tf
from flowrt.distribute.cluster_resolver import SimpleClusterResolver
from tests.distribute.parameter_server.training import batch, build


def main(cluster: str, worker: int, mode: Any) -> None:
    spec = tf.train.ClusterSpec(json.loads(cluster))
    server = tf.train.Server(spec, "worker", worker)
    resolver = SimpleClusterResolver(spec, task_type="worker", task_id=worker)
    strategy = tf.distribute.experimental.ParameterServerStrategy(resolver, mode=mode, timeout_s=10.0)
    model = build(strategy, lambda: tf.train.AdamOptimizer(0.05))
    with strategy.training_session(server.target) as session:
        for step in count():
            session.run(model.train, {model.inputs: batch(worker, step)})
            print(step, flush=True)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), json.loads(sys.argv[3]))
