"""What the workers of `test_emitted` run, with the arguments ``stand TASK ADDRESSES...``: see `questions`.

A question is the name of one of `tests.plan.cases.CASES`. The answer is what this process really runs and
keeps: its operations in order, its arena, the bytes of its variables, and the peak of its device's pool.
"""

import os
import sys

os.environ["FLOWRT_JIT"] = "eager"  # with compiled loops from the first step

import flowrt as tf
from flowrt.device.device import MIN_POOLED
from flowrt.graph.resources.variables import VariableResource
from tests.distribute.strategies.standing_workers import questions, reply
from tests.plan.cases import built

TASK, ADDRESSES = int(sys.argv[2]), sys.argv[3:]


def workers():
    spec = tf.train.ClusterSpec({"worker": ADDRESSES})
    resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(spec, task_type="worker", task_id=TASK)
    return {"cluster_resolver": resolver}


def answer(case):
    with tf.Graph().as_default() as graph:
        fetches, feeds = built(case, **workers())
        with tf.Session(graph=graph) as session:
            session.run(tf.global_variables_initializer())
            session.run(fetches, feeds)
            (device,) = session._runtime.devices
            plans = [plan for request in session._requests.values() for plan in request.plans.values()]
            (part,) = plans.pop().partitions.values()
            for plan in plans:
                plan.let_go()
            device.pool.clear_stats()
            session.run(fetches, feeds)
            arrays = [
                r.array for r in session._runtime._resources.values() if isinstance(r, VariableResource)
            ]
            return {
                "operations": [f"{node.op.name} {node.name} {node.outputs}" for node in part.schedule.order],
                "arena": part.buffers.memory.nbytes,
                "variables": sum(array.nbytes for array in arrays),
                "pooled": sum(array.nbytes for array in arrays if array.nbytes >= MIN_POOLED),
                "peak": device.pool.stats().peak_bytes_in_use,
            }


for what in questions(sys.argv[1]):
    reply(answer(what))
