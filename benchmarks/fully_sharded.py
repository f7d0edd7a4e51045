"""A training step with Adam in two processes, of an MLP and of a GPT: data parallel, or fully sharded.

As a program, ``python fully_sharded.py SIDE NET.KIND RANK ADDRESSES...``, it is one process. flowrt's kinds
are those of `FullyShardedStrategy`: stage 0 and stage 3; PyTorch's are DistributedDataParallel and FSDP2,
with a unit for each layer of the MLP and each block of the GPT.
"""

from __future__ import annotations

import itertools
import json
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from typing import Any

if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).resolve().parent.parent)

import numpy as np

from benchmarks import data_parallel, layouts
from benchmarks.inputs import Gpt
from benchmarks.ranks import outcome_of_first
from benchmarks.timing import CHECKED_CALL, Outcome

RANKS = 2
STAGES = {"dp": 0, "stage3": 3}
WARM_STEPS, STEPS = 20, 30
"""All processes have to make the same steps; flowrt's loops are compiled within the first 2 s."""


# --- flowrt


def flowrt_step(net: str, kind: str, rank: int, addresses: Sequence[str]) -> Callable[[], Any]:
    import flowrt as tf

    spec = tf.train.ClusterSpec({"worker": list(addresses)})
    resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(spec, task_type="worker", task_id=rank)
    strategy = tf.distribute.FullyShardedStrategy(
        tf.distribute.Mesh([("dp", RANKS)]), stage=STAGES[kind], units=r"\d", cluster_resolver=resolver
    )
    with strategy.scope():
        loss, feed = _flowrt_mlp(tf) if net == "mlp" else _flowrt_gpt(tf)
        train = tf.train.AdamOptimizer(1e-3).minimize(loss)
    session = tf.Session(config=tf.ConfigProto(intra_op_parallelism_threads=1))
    session.run(tf.global_variables_initializer())
    return lambda: session.run([train, loss], feed)[1]


def _flowrt_mlp(tf: Any) -> tuple[Any, dict[Any, Any]]:
    rows, labels, initial = data_parallel.data()
    x, y = tf.placeholder(tf.float32, rows.shape), tf.placeholder(tf.int64, labels.shape)
    weights = [tf.Variable(value, name=f"{layer}/w") for layer, value in enumerate(initial)]
    biases = [
        tf.Variable(tf.zeros([size]), name=f"{layer}/b") for layer, size in enumerate(data_parallel.SIZES[1:])
    ]
    return data_parallel.losses_of(tf, x, y, weights, biases), {x: rows, y: labels}


def _flowrt_gpt(tf: Any) -> tuple[Any, dict[Any, Any]]:
    given = tf.placeholder(tf.int64, [Gpt.batch, Gpt.length + 1])
    weights = {name: tf.Variable(value, name=name) for name, value in layouts.parameters().items()}
    return layouts.flowrt_loss(tf, weights, given), {given: layouts.tokens()}


# --- PyTorch


def torch_step(net: str, kind: str, rank: int, addresses: Sequence[str]) -> Callable[[], Any]:
    import torch
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"tcp://{addresses[0]}", rank=rank, world_size=RANKS)
    model, units, loss_of = _torch_mlp(rank) if net == "mlp" else _torch_gpt(rank)
    if kind == "dp":
        model = torch.nn.parallel.DistributedDataParallel(model)
    else:
        mesh = init_device_mesh("cpu", (RANKS,))
        for unit in units:
            fully_shard(unit, mesh=mesh, reshard_after_forward=True)
        fully_shard(model, mesh=mesh, reshard_after_forward=True)
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)

    def step() -> float:
        optimizer.zero_grad()
        loss = loss_of(model)
        loss.backward()
        optimizer.step()
        total = loss.detach()
        dist.all_reduce(total)
        return float(total) / RANKS

    return step


def _torch_mlp(rank: int) -> tuple[Any, Any, Callable[[Any], Any]]:
    import torch
    import torch.nn.functional as F

    rows, labels, initial = data_parallel.data()
    linears = [torch.nn.Linear(*sizes) for sizes in itertools.pairwise(data_parallel.SIZES)]
    for linear, value in zip(linears, initial, strict=True):
        linear.weight.data = torch.tensor(value.T.copy())
        linear.bias.data.zero_()
    layers = [each for linear in linears for each in (linear, torch.nn.ReLU())][:-1]
    x, y = torch.tensor(rows).chunk(RANKS)[rank], torch.tensor(labels).chunk(RANKS)[rank]
    return torch.nn.Sequential(*layers), linears, lambda model: F.cross_entropy(model(x), y)


def _torch_gpt(rank: int) -> tuple[Any, Any, Callable[[Any], Any]]:
    import torch
    import torch.nn.functional as F

    model = layouts.torch_model()
    given = torch.tensor(layouts.tokens()).chunk(RANKS)[rank]

    def loss_of(model: Any) -> Any:
        return F.cross_entropy(model(given[:, :-1]).reshape(-1, Gpt.symbols), given[:, 1:].reshape(-1))

    return model, model.layers, loss_of


# --- processes

STEP_OF = {"flowrt": flowrt_step, "torch": torch_step}


def run_process(side: str, name: str, rank: int, addresses: Sequence[str]) -> Outcome:
    """The seconds of the first step, the median of the later ones, the CPU time that a step takes this rank,
    and the loss of the third.
    """
    step = STEP_OF[side](*name.split("."), rank, addresses)
    losses, times, used = [], [], 0.0
    for number in range(WARM_STEPS + STEPS):
        if number == WARM_STEPS:
            used = time.process_time()
        start = time.perf_counter()
        losses.append(step())
        times.append(time.perf_counter() - start)
    used = (time.process_time() - used) / STEPS
    seconds = {"first_step": times[0], "step": median(times[WARM_STEPS:]), "cpu": used}
    return Outcome(seconds, float(np.asarray(losses[CHECKED_CALL - 1])))


def sharded_mlp_dp(side: str) -> Outcome:
    """An MLP, whole in both processes, which share the batch."""
    return outcome_of_first(__file__, side, "mlp.dp", RANKS)


def sharded_mlp_stage3(side: str) -> Outcome:
    """The same in parts, gathered layer by layer."""
    return outcome_of_first(__file__, side, "mlp.stage3", RANKS)


def sharded_gpt_dp(side: str) -> Outcome:
    """A GPT, whole in both processes, which share the batch."""
    return outcome_of_first(__file__, side, "gpt.dp", RANKS)


def sharded_gpt_stage3(side: str) -> Outcome:
    """The same in parts, gathered block by block."""
    return outcome_of_first(__file__, side, "gpt.stage3", RANKS)


_ALL = (sharded_mlp_dp, sharded_mlp_stage3, sharded_gpt_dp, sharded_gpt_stage3)
CASES: dict[str, Callable[[str], Outcome]] = {case.__name__: case for case in _ALL}

if __name__ == "__main__":
    print(json.dumps(run_process(sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4:])), flush=True)
