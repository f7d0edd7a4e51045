"""Other layouts of a tensor of 16 MiB: two processes, of one thread each, exchange what each lacks.

As a program, ``python redistribution.py SIDE NAME RANK ADDRESSES...``, it is one rank, in an interpreter that
has done nothing else. PyTorch's side is DTensor's `redistribute` over Gloo.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).resolve().parent.parent)

import numpy as np

from benchmarks.ranks import outcome_of_first
from benchmarks.timing import Outcome

SIZE, RANKS = 2048, 2
PAIRS = {
    "rows_to_whole": ("rows", "whole"),
    "rows_to_columns": ("rows", "columns"),
    "sum_to_whole": ("sum", "whole"),
    "sum_to_rows": ("sum", "rows"),
    "whole_to_rows": ("whole", "rows"),
}
"""The layouts before and after. A sum is of one matrix of each rank. The last needs no message, and in flowrt
no copy: rows of a whole matrix are read where they are.
"""
WARM_CALLS, CALLS = 40, 40


def matrix() -> Any:
    return np.random.default_rng(0).standard_normal((SIZE, SIZE), np.float32)


def flowrt_calls(rank: int, addresses: Sequence[str]) -> Mapping[str, Callable[[], Any]]:
    import flowrt as tf

    entries = {"rows": ["dp", None], "columns": [None, "dp"], "whole": [None, None]}
    spec = tf.train.ClusterSpec({"worker": list(addresses)})
    resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(spec, task_type="worker", task_id=rank)
    mesh = tf.distribute.Mesh([("dp", RANKS)])
    with tf.distribute.MultiWorkerLayoutStrategy(mesh, cluster_resolver=resolver).scope():
        before = {
            name: tf.get_variable(name, initializer=matrix(), layout=entries[name])
            for name in ("rows", "whole")
        }
        of_ranks = np.stack([matrix()] * RANKS)
        before["sum"] = tf.reduce_sum(
            tf.get_variable("sum", initializer=of_ranks, layout=["dp", None, None]), 0
        )
        made = {name: tf.distribute.relayout(before[a], entries[b]) for name, (a, b) in PAIRS.items()}
    session = tf.Session(config=tf.ConfigProto(intra_op_parallelism_threads=1))
    session.run(tf.global_variables_initializer())
    checked = {name: tf.reduce_sum(tf.square(tensor)) for name, tensor in made.items()}
    return {
        "check": lambda: sum(float(value) for value in session.run(checked).values()),
        **{name: session.make_callable(tensor.op) for name, tensor in made.items()},
    }


def torch_calls(rank: int, addresses: Sequence[str]) -> Mapping[str, Callable[[], Any]]:
    import torch
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import DTensor, Partial, Replicate, Shard

    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"tcp://{addresses[0]}", rank=rank, world_size=RANKS)
    mesh = init_device_mesh("cpu", (RANKS,))
    placements = {"rows": Shard(0), "columns": Shard(1), "whole": Replicate(), "sum": Partial()}
    whole = torch.tensor(matrix())

    def redistribution(before: str, after: str) -> Callable[[], Any]:
        local = whole.chunk(RANKS)[rank].clone() if before == "rows" else whole
        x = DTensor.from_local(local, mesh, [placements[before]], run_check=False)
        return lambda: x.redistribute(mesh, [placements[after]]).to_local()

    calls = {name: redistribution(*pair) for name, pair in PAIRS.items()}

    def check() -> float:
        total = 0.0
        for name, call in calls.items():
            squares = call().double().square().sum()
            if PAIRS[name][1] != "whole":
                dist.all_reduce(squares)
            total += float(squares)
        return total

    return {"check": check, **calls}


def run_rank(side: str, rank: int, addresses: Sequence[str]) -> Outcome:
    """The median seconds of each pair; all ranks make the same calls."""
    calls = dict({"flowrt": flowrt_calls, "torch": torch_calls}[side](rank, addresses))
    value = calls.pop("check")()
    seconds = {name: _median_s(call) for name, call in calls.items()}
    return Outcome(seconds, value)


def _median_s(call: Callable[[], Any]) -> float:
    times = []
    for _ in range(WARM_CALLS + CALLS):
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return median(times[WARM_CALLS:])


def redistribute_16_mib(side: str) -> Outcome:
    """Each pair of layouts."""
    return outcome_of_first(__file__, side, "all", RANKS)


CASES = {redistribute_16_mib.__name__: redistribute_16_mib}

if __name__ == "__main__":
    print(json.dumps(run_rank(sys.argv[1], int(sys.argv[3]), sys.argv[4:])), flush=True)
