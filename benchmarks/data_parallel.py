"""A data-parallel training step: a 784-2048-2048-10 network, 256 rows, SGD, alone and on two replicas.

As a program, ``python data_parallel.py SIDE KIND RANK ADDRESSES...``, it is one rank, in an interpreter that
has done nothing else: TensorFlow's devices and threads are fixed when they are first used.
"""

from __future__ import annotations

import itertools
import json
import os
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).resolve().parent.parent)

import numpy as np

from benchmarks.ranks import outcome_of_first
from benchmarks.timing import CHECKED_CALL, Outcome

SIZES = (784, 2048, 2048, 10)
BATCH, RATE = 256, 0.01
WARM_STEPS, STEPS = 40, 30
"""All ranks have to make the same steps; flowrt's loops are compiled within the first 2 s."""
RANKS = {"one": 1, "mirrored": 1, "central_storage": 1, "multi_worker": 2, "layouts": 2}
"""Processes by kind of strategy."""

Step = Callable[[], float]


def data() -> tuple[Any, Any, list[Any]]:
    """Rows, labels, and the weights before the first step."""
    rng = np.random.default_rng(0)
    rows, labels = rng.standard_normal((BATCH, SIZES[0]), np.float32), rng.integers(0, SIZES[-1], BATCH)
    shapes = itertools.pairwise(SIZES)
    return rows, labels, [0.02 * rng.standard_normal(shape, np.float32) for shape in shapes]


def losses_of(tf: Any, rows: Any, labels: Any, weights: Sequence[Any], biases: Sequence[Any]) -> Any:
    """This replica's part of the mean over the whole batch."""
    hidden = rows
    for layer, (weight, bias) in enumerate(zip(weights, biases, strict=True)):
        hidden = tf.matmul(hidden, weight) + bias
        if layer < len(weights) - 1:
            hidden = tf.nn.relu(hidden)
    losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=hidden)
    return tf.reduce_sum(losses) / BATCH


def flowrt_step(kind: str, rank: int, addresses: Sequence[str]) -> Step:
    import flowrt as tf

    threads = 1 if RANKS[kind] > 1 else 0
    config = tf.ConfigProto(device_count={"CPU": 2}, intra_op_parallelism_threads=threads)
    rows, labels, initial = data()
    strategy = _flowrt_strategy(tf, kind, rank, addresses)
    with strategy.scope():
        weights = [tf.Variable(value) for value in initial]
        biases = [tf.Variable(tf.zeros([size])) for size in SIZES[1:]]
        optimizer = tf.train.GradientDescentOptimizer(RATE)
    batch = strategy.experimental_distribute_values_from_function(
        lambda context: _share(context.replica_id_in_sync_group, context.num_replicas_in_sync, rows, labels)
    )

    def train(share: Any) -> Any:
        own = [tf.constant(part) for part in share]
        if kind == "layouts":
            own = [tf.distribute.relayout(part, ["dp", *[None] * (part.shape.ndims - 1)]) for part in own]
        loss = losses_of(tf, *own, weights, biases)
        with tf.control_dependencies([optimizer.minimize(loss)]):
            return tf.identity(loss)

    with strategy.scope():
        loss = strategy.reduce("SUM", strategy.run(train, args=(batch,)), axis=None)
    session = tf.Session(config=config)
    session.run(tf.global_variables_initializer())
    step: Step = session.make_callable(loss)
    return step


def _share(replica: int, replicas: int, rows: Any, labels: Any) -> tuple[Any, Any]:
    return np.array_split(rows, replicas)[replica], np.array_split(labels, replicas)[replica]


def _flowrt_strategy(tf: Any, kind: str, rank: int, addresses: Sequence[str]) -> Any:
    devices = ["/cpu:0", "/cpu:1"]
    match kind:
        case "mirrored":
            return tf.distribute.MirroredStrategy(devices)
        case "central_storage":
            return tf.distribute.experimental.CentralStorageStrategy(devices, "/cpu:0")
        case "multi_worker" | "layouts":
            spec = tf.train.ClusterSpec({"worker": list(addresses)})
            resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(
                spec, task_type="worker", task_id=rank
            )
            if kind == "multi_worker":
                return tf.distribute.MultiWorkerMirroredStrategy(resolver)
            mesh = tf.distribute.Mesh([("dp", len(addresses))])
            return tf.distribute.MultiWorkerLayoutStrategy(mesh, cluster_resolver=resolver)
    return tf.distribute.get_strategy()


def tensorflow_step(kind: str, rank: int, addresses: Sequence[str]) -> Step:
    if kind == "multi_worker":
        task = {"type": "worker", "index": rank}
        os.environ["TF_CONFIG"] = json.dumps({"cluster": {"worker": list(addresses)}, "task": task})
    import tensorflow as tf

    rows, labels, initial = data()
    strategy = _tensorflow_strategy(tf, kind)
    replicas = strategy.num_replicas_in_sync
    with strategy.scope():
        weights = [tf.Variable(value) for value in initial]
        biases = [tf.Variable(tf.zeros([size])) for size in SIZES[1:]]
        optimizer = tf.keras.optimizers.SGD(RATE)
        optimizer.build(weights + biases)
    shares = [
        [tf.constant(part) for part in _share(replica, replicas, rows, labels)] for replica in range(replicas)
    ]

    def train(share: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = losses_of(tf, *share, weights, biases)
        gradients = tape.gradient(loss, weights + biases)
        optimizer.apply_gradients(zip(gradients, weights + biases, strict=True))
        return loss

    batch = strategy.experimental_distribute_values_from_function(
        lambda context: shares[context.replica_id_in_sync_group]
    )

    @tf.function
    def step() -> Any:
        return strategy.reduce("SUM", strategy.run(train, args=(batch,)), axis=None)

    return lambda: float(step())


def _tensorflow_strategy(tf: Any, kind: str) -> Any:
    if kind == "multi_worker":
        tf.config.threading.set_intra_op_parallelism_threads(1)
        return tf.distribute.MultiWorkerMirroredStrategy()
    if kind == "one":
        return tf.distribute.get_strategy()
    two = [tf.config.LogicalDeviceConfiguration()] * 2
    tf.config.set_logical_device_configuration(tf.config.list_physical_devices("CPU")[0], two)
    if kind == "mirrored":
        return tf.distribute.MirroredStrategy(["/cpu:0", "/cpu:1"])
    return tf.distribute.experimental.CentralStorageStrategy(["/cpu:0", "/cpu:1"], "/cpu:0")


def torch_step(kind: str, rank: int, addresses: Sequence[str]) -> Step:
    import torch
    import torch.distributed as dist

    rows, labels, initial = data()
    layers: list[Any] = []
    for value in initial:
        linear = torch.nn.Linear(*value.shape)
        linear.weight.data, linear.bias.data = torch.tensor(value.T.copy()), torch.zeros(value.shape[1])
        layers += [linear, torch.nn.ReLU()]
    model = torch.nn.Sequential(*layers[:-1])
    if kind == "multi_worker":
        torch.set_num_threads(1)
        dist.init_process_group(
            "gloo", init_method=f"tcp://{addresses[0]}", rank=rank, world_size=len(addresses)
        )
        model = torch.nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), RATE)
    own = [torch.tensor(part) for part in _share(rank, RANKS[kind], rows, labels)]

    def step() -> float:
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(own[0]), own[1])  # DDP takes the mean of the replicas
        loss.backward()
        optimizer.step()
        total = loss.detach()
        if kind == "multi_worker":
            dist.all_reduce(total)
        return float(total) / RANKS[kind]

    return step


STEPS_OF = {"flowrt": flowrt_step, "tensorflow": tensorflow_step, "torch": torch_step}


def run_rank(side: str, kind: str, rank: int, addresses: Sequence[str]) -> Outcome:
    """The median seconds of this rank's steps, and the loss of the third."""
    step = STEPS_OF[side](kind, rank, addresses)
    losses, times = [], []
    for _ in range(WARM_STEPS + STEPS):
        start = time.perf_counter()
        losses.append(step())
        times.append(time.perf_counter() - start)
    return Outcome({"step": median(times[WARM_STEPS:])}, float(losses[CHECKED_CALL - 1]))


def train(kind: str, side: str) -> Outcome:
    """With a process a rank; the outcome is the first's."""
    return outcome_of_first(__file__, side, kind, RANKS[kind])


def data_parallel_one(side: str) -> Outcome:
    """Without a strategy."""
    return train("one", side)


def data_parallel_mirrored(side: str) -> Outcome:
    """On two CPU devices of one process."""
    return train("mirrored", side)


def data_parallel_central_storage(side: str) -> Outcome:
    """On two CPU devices, with the variables on the first."""
    return train("central_storage", side)


def data_parallel_multi_worker(side: str) -> Outcome:
    """On two processes, of one thread each."""
    return train("multi_worker", side)


def data_parallel_layouts(side: str) -> Outcome:
    """On two processes, of one thread each: one global graph, of which each computes its part. PyTorch has
    its DDP for it.
    """
    return train("layouts" if side == "flowrt" else "multi_worker", side)


_IN_ONE_PROCESS = (data_parallel_mirrored, data_parallel_central_storage)
CASES = {
    case.__name__: case
    for case in (data_parallel_one, *_IN_ONE_PROCESS, data_parallel_multi_worker, data_parallel_layouts)
}
TORCH_CASES = {name: case for name, case in CASES.items() if case not in _IN_ONE_PROCESS}

if __name__ == "__main__":
    print(json.dumps(run_rank(sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4:])), flush=True)
