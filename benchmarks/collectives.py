"""All-reduce in place between processes of this host: flowrt's communicator, and PyTorch's Gloo.

As a program, ``python collectives.py SIDE RANK MEASURES ADDRESSES...``, it is one rank, and ends with the
benchmark.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).resolve().parent.parent)

import numpy as np

from benchmarks.cluster import reserve_addresses
from benchmarks.timing import Outcome

SIZES = {"4_b": 4, "1_mb": 1_000_000, "25_mb": 25_000_000, "64_mb": 64_000_000}
"""Bytes by measure."""
FEW_BYTES = 2_000_000
CALLS, FEW_CALLS, WARM_CALLS = 50, 9, 3
"""How often what is below `FEW_BYTES` is done, and what is above: all ranks have to make the same calls."""


class Ranks(NamedTuple):
    """One rank of a group. ``all_reduce`` sums up in place what ``as_array`` made of an array of NumPy."""

    as_array: Callable[[Any], Any]
    all_reduce: Callable[[Any], object]
    barrier: Callable[[], object]
    close: Callable[[], object]


def flowrt_rank(rank: int, addresses: Sequence[str]) -> Ranks:
    from flowrt.distribute.collectives.communicator_registry import open_communicator
    from flowrt.distribute.collectives.membership import Membership
    from flowrt.rendezvous.transport import new_transport

    membership = Membership("benchmark", rank, len(addresses), tuple(addresses))
    communicator = open_communicator("auto", membership, new_transport())
    return Ranks(
        np.asarray,
        lambda array: communicator.all_reduce(array, out=array),
        communicator.barrier,
        communicator.close,
    )


def gloo_rank(rank: int, addresses: Sequence[str]) -> Ranks:
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"tcp://{addresses[0]}", rank=rank, world_size=len(addresses))
    return Ranks(torch.from_numpy, dist.all_reduce, dist.barrier, dist.destroy_process_group)


OPEN = {"flowrt": flowrt_rank, "torch": gloo_rank}


def run_rank(side: str, rank: int, measures: Sequence[str], addresses: Sequence[str]) -> Outcome:
    """Rank ``rank``'s median seconds; the value is what it got for ones of the last measure, summed up."""
    ranks = OPEN[side](rank, addresses)
    seconds = {}
    for measure in measures:
        nbytes = SIZES[measure]
        source = np.ones(nbytes // 4, np.float32)
        array = ranks.as_array(source)
        ranks.all_reduce(array)
        value = float(source[-1])
        seconds[measure] = _median_s(ranks, array, CALLS if nbytes < FEW_BYTES else FEW_CALLS)
    ranks.close()
    return Outcome(seconds, value)


def _median_s(ranks: Ranks, array: Any, calls: int) -> float:
    times = []
    for _ in range(WARM_CALLS + calls):
        ranks.barrier()
        start = time.perf_counter()
        ranks.all_reduce(array)
        times.append(time.perf_counter() - start)
    return median(times[WARM_CALLS:])


def all_reduce(side: str, count: int, measures: Sequence[str] = tuple(SIZES)) -> Outcome:
    """Between ``count`` processes, of which this is the first."""
    with ExitStack() as stack:
        addresses = reserve_addresses(count, stack)
        for rank in range(1, count):
            command = [sys.executable, __file__, side, str(rank), ",".join(measures), *addresses]
            other = stack.enter_context(subprocess.Popen(command, stdout=subprocess.DEVNULL))
            stack.callback(other.kill)
        return run_rank(side, 0, measures, addresses)


def all_reduce_2_ranks(side: str) -> Outcome:
    return all_reduce(side, 2)


def all_reduce_4_ranks(side: str) -> Outcome:
    """On fewer cores than ranks they have to give way to each other."""
    return all_reduce(side, 4)


CASES = {case.__name__: case for case in (all_reduce_2_ranks, all_reduce_4_ranks)}

if __name__ == "__main__":
    run_rank(sys.argv[1], int(sys.argv[2]), sys.argv[3].split(","), sys.argv[4:])
