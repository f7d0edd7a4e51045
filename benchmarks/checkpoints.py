"""Checkpoints of 256 MiB: saved by two processes in rows, loaded in rows or columns, and in rows by four.

As a program, ``python checkpoints.py SIDE WHAT RANK ADDRESSES...``, it is one rank, in an interpreter that
has done nothing else; WHAT is ``save``, ``rows`` or ``columns``, and a directory. PyTorch's side is
torch.distributed.checkpoint of DTensors over Gloo. Both wait for the disk when they save.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from typing import Any

if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).resolve().parent.parent)

import numpy as np

from benchmarks.ranks import outcome_of_first
from benchmarks.timing import Outcome

TENSORS, ROWS, COLUMNS = 16, 4096, 1024
MEASURES = {
    "save": ("save", 2), "load_rows": ("rows", 2), "load_columns": ("columns", 2), "load_rows_4": ("rows", 4)
}  # fmt: skip
"""What is measured, and on how many ranks."""
CALLS = 5
"""All ranks make as many; the median counts."""


def matrix(number: int) -> Any:
    return np.random.default_rng(number).standard_normal((ROWS, COLUMNS), np.float32)


def flowrt_call(
    what: str, directory: str, rank: int, addresses: Sequence[str]
) -> tuple[Callable[[int], Any], Callable[[], float]]:
    """A function that saves or loads the checkpoint of a number, and one for the sum of all squares."""
    import flowrt as tf

    spec = tf.train.ClusterSpec({"worker": list(addresses)})
    resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(spec, task_type="worker", task_id=rank)
    mesh = tf.distribute.Mesh([("dp", len(addresses))])
    layout = [None, "dp"] if what == "columns" else ["dp", None]
    with tf.distribute.MultiWorkerLayoutStrategy(mesh, cluster_resolver=resolver).scope():
        initial = [matrix(i) if what == "save" else tf.zeros([ROWS, COLUMNS]) for i in range(TENSORS)]
        values = [tf.get_variable(f"w{i}", initializer=v, layout=layout) for i, v in enumerate(initial)]
        total = tf.add_n([tf.reduce_sum(tf.square(tf.cast(value, tf.float64))) for value in values])
    session = tf.Session(config=tf.ConfigProto(intra_op_parallelism_threads=1))
    saver = tf.train.Saver(max_to_keep=None)
    session.run(tf.global_variables_initializer())
    act = saver.save if what == "save" else saver.restore
    return lambda number: act(session, f"{directory}/{number}"), lambda: float(session.run(total))


def torch_call(
    what: str, directory: str, rank: int, addresses: Sequence[str]
) -> tuple[Callable[[int], Any], Callable[[], float]]:
    """As `flowrt_call`."""
    import torch
    import torch.distributed as dist
    import torch.distributed.checkpoint as dcp
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Shard, distribute_tensor, zeros

    torch.set_num_threads(1)
    world = len(addresses)
    dist.init_process_group("gloo", init_method=f"tcp://{addresses[0]}", rank=rank, world_size=world)
    mesh, placements = init_device_mesh("cpu", (world,)), [Shard(1 if what == "columns" else 0)]

    def tensor(number: int) -> Any:
        if what == "save":
            return distribute_tensor(torch.tensor(matrix(number)), mesh, placements)
        return zeros(ROWS, COLUMNS, device_mesh=mesh, placements=placements)

    state = {f"w{i}": tensor(i) for i in range(TENSORS)}

    def check() -> float:
        total = sum(value.to_local().double().square().sum() for value in state.values())
        dist.all_reduce(total)
        return float(total)

    act = dcp.save if what == "save" else dcp.load
    return lambda number: act(state, checkpoint_id=f"{directory}/{number}"), check


def run_rank(side: str, what: str, rank: int, addresses: Sequence[str]) -> Outcome:
    """The median seconds of a call on this rank, in which all have finished."""
    what, directory = what.split("@")
    call, check = {"flowrt": flowrt_call, "torch": torch_call}[side](what, directory, rank, addresses)
    times = []
    for number in range(CALLS):
        start = time.perf_counter()
        call(number)
        times.append(time.perf_counter() - start)
    return Outcome({what: median(times)}, check())


def read_s(directory: str) -> float:
    """The median seconds in which one process reads the first rank's file into memory that it has."""
    (path,) = Path(directory).glob("0.*-00000-of-*.safetensors")
    found, times = np.zeros(path.stat().st_size, np.uint8), []
    for _ in range(CALLS):
        start = time.perf_counter()
        with open(path, "rb", buffering=0) as file:
            file.readinto(found.data)
        times.append(time.perf_counter() - start)
    return median(times)


def checkpoint_256_mib(side: str) -> Outcome:
    """Saved on two ranks, and loaded."""
    with tempfile.TemporaryDirectory(dir=os.environ.get("TMPDIR")) as directory:
        seconds: dict[str, float] = {}
        for measure, (what, ranks) in MEASURES.items():
            found = outcome_of_first(__file__, side, f"{what}@{directory}", ranks)
            seconds[measure] = found.figures[what]
        if side == "flowrt":
            seconds["read_half"] = read_s(directory)
    return Outcome(seconds, found.value)


CASES = {checkpoint_256_mib.__name__: checkpoint_256_mib}

if __name__ == "__main__":
    print(json.dumps(run_rank(sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4:])), flush=True)
