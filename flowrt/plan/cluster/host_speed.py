"""`measure_host`: what exchanges between processes of this host take.

As many processes as will train are started. They form a group, and measure together, per kind and size of a
group: the time of collectives and messages, and a core's part of it. What processes cost each other while
they compute is a part of what their programs take (`flowrt.plan.step.measure`).

As a program, ``python -m flowrt.plan.cluster.host_speed RANK ADDRESS...``, it is one of them.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Any

import numpy as np
from threadpoolctl import threadpool_limits

from flowrt.device.llvm.host_pool import usable_cpus
from flowrt.distribute.collectives.group import Group, join
from flowrt.distribute.collectives.probe import fit_line
from flowrt.distribute.launch.local_cluster import LOOPBACK, ReservedPorts
from flowrt.errors import UnavailableError
from flowrt.plan.replay.host import Exchange, HostSpeed
from flowrt.plan.replay.step_times import MESSAGE

KINDS = {
    "all_reduce": "AllReduce",
    "all_gather": "AllGather",
    "reduce_scatter": "ReduceScatter",
    "broadcast": "Broadcast",
    "all_to_all": "AllToAll",
}
SIZES = (64, 64 << 10, 1 << 20, 8 << 20)
"""Bytes of the whole of an exchange."""
ROUNDS = 10
LOW = 0.25
"""The quantile of times that counts: others on the machine make the rest longer."""
TIMEOUT_S = 120.0


def measure_host(processes: int) -> HostSpeed:
    """Measure this host with ``processes``, which takes some seconds; one shares nothing.

    Raises `UnavailableError` if they do not end in time, or with an error.
    """
    if processes == 1:
        return HostSpeed(float(usable_cpus()))
    with ExitStack() as stack:
        ports = stack.enter_context(ReservedPorts(processes)).ports
        addresses = [f"{LOOPBACK}:{port}" for port in ports]
        ranks = []
        for rank in range(processes):
            command = [sys.executable, "-m", __name__, str(rank), *addresses]
            ranks.append(stack.enter_context(subprocess.Popen(command, stdout=subprocess.PIPE, text=True)))
            stack.callback(ranks[rank].kill)
        try:
            printed, _ = ranks[0].communicate(timeout=TIMEOUT_S)
        except subprocess.TimeoutExpired:
            raise UnavailableError(f"{processes} processes: not measured within {TIMEOUT_S:.0f} s") from None
        if ranks[0].returncode != 0:
            raise UnavailableError(f"{processes} processes: the first ended with {ranks[0].returncode}")
    found = json.loads(printed.splitlines()[-1])
    return HostSpeed(found["cores"], {key: Exchange(*row) for key, row in found["exchanges"].items()})


def measured_by(rank: int, addresses: Sequence[str]) -> HostSpeed:
    """The part of process ``rank``; all of them find about the same."""
    count = len(addresses)
    with threadpool_limits(1, "blas"), join(Group("host", count, (rank,)), addresses) as joined:
        (member,) = joined.members
        together = _Together(member, rank, count)
        exchanges = {
            f"{kind} {size}": together.collective(name, size)
            for size in range(2, count + 1)
            if count % size == 0
            for kind, name in KINDS.items()
        }
        exchanges[MESSAGE] = together.message()
        together.meet()
    return HostSpeed(float(min(count, usable_cpus())), exchanges)


class _Together:
    """The measuring of one of ``count`` processes, with the others."""

    def __init__(self, member: Any, rank: int, count: int) -> None:
        self._member, self._rank, self._count = member, rank, count
        self._number = 0

    def meet(self) -> None:
        """Wait for all others."""
        self._collective(self._member, "AllReduce", [np.ones(1, np.float32)], (1,))

    def collective(self, kind: str, size: int) -> Exchange:
        """Collectives of groups of ``size`` processes that follow each other, all at once."""
        first = self._rank // size * size
        ranks = tuple(range(first, first + size))
        member = self._member if size == self._count else self._member.split("part", ranks)
        is_root = self._rank == first

        def call(nbytes: int) -> Callable[[], object]:
            whole, part = nbytes // 4, max(1, nbytes // 4 // size)
            shapes = {"AllGather": (part, part * size), "ReduceScatter": (part * size, part)}
            sent, got = shapes.get(kind, (whole, whole))
            shape: tuple[int, ...] = (got,)
            given = np.ones(sent, np.float32)
            if kind == "AllToAll":
                shape = (size, max(1, part // size))
                given = np.ones(shape, np.float32)
            arrays = [] if kind == "Broadcast" and not is_root else [given]
            return lambda: self._collective(member, kind, arrays, shape)

        return _exchange(call, 1, self._count)

    def _collective(self, member: Any, kind: str, arrays: Sequence[Any], shape: tuple[int, ...]) -> None:
        self._number += 1
        edge = f"{kind} {self._number}"
        dtype = np.dtype(np.float32)
        attrs = {
            "reduction": "sum", "root": 0, "axes": (0,), "dtype": dtype, "shapes": (shape,), "plan": "",
            "is_even": True,
        }  # fmt: skip
        member.start(edge, kind, arrays, attrs)
        member.wait(edge)

    def message(self) -> Exchange:
        """Messages from rank 0 to rank 1 and back, while the others wait."""

        def call(nbytes: int) -> Callable[[], object]:
            array = np.ones(nbytes, np.uint8)
            return lambda: self._round_trip(array)

        return _exchange(call, 2, 2)

    def _round_trip(self, array: Any) -> None:
        self._number += 1
        for sender in (0, 1):
            tag = f"{self._number} {sender}"
            if self._rank == sender:
                self._member.send_tagged(1 - sender, tag, array)
            elif self._rank == 1 - sender:
                self._member.receive_tagged(sender, tag)


def _exchange(call_of: Callable[[int], Callable[[], object]], exchanges: int, busy: int) -> Exchange:
    """The line through the times of calls with arrays of so many bytes. Each makes ``exchanges``, with which
    ``busy`` processes are busy.
    """
    core, whole = dict[int, float](), dict[int, float]()
    for nbytes in SIZES:
        call, times = call_of(nbytes), list[tuple[float, float]]()
        for _ in range(ROUNDS):
            start, used = time.perf_counter(), time.process_time()
            call()
            times.append((time.perf_counter() - start, time.process_time() - used))
        whole[nbytes], core[nbytes] = (_low(each) / exchanges for each in zip(*times, strict=True))
    core_s, per_byte = fit_line(core).link
    least, shared = SIZES[0], max(1.0, busy / usable_cpus())
    return Exchange(max(0.0, whole[least] - shared * core[least]), core_s, per_byte)


def _low(times: Sequence[float]) -> float:
    return sorted(times)[int(len(times) * LOW)]


if __name__ == "__main__":
    sys.stdout.write(json.dumps(measured_by(int(sys.argv[1]), sys.argv[2:]).__dict__) + "\n")
