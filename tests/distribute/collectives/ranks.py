"""Ranks for tests: threads of this process, or processes that do what they are told through a pipe."""

from __future__ import annotations

import gc
import itertools
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from flowrt.distribute.collectives.communicator import Communicator
from flowrt.distribute.collectives.communicator_registry import open_communicator
from flowrt.distribute.collectives.membership import Membership
from flowrt.distribute.launch.local_cluster import ReservedPorts
from flowrt.errors import OpError
from flowrt.rendezvous.transport import new_transport
from tests.contracts.check_collectives import LATE_S, CollectiveCall
from tests.forks import FORKS, inherit

SOON_S = 60.0
"""What should happen at once has happened after this, also on a loaded machine."""
_keys = itertools.count()


METHODS = {
    "AllReduce": "all_reduce", "Reduce": "reduce", "Broadcast": "broadcast", "AllGather": "all_gather",
    "Gather": "gather", "Scatter": "scatter", "ReduceScatter": "reduce_scatter", "AllToAll": "all_to_all",
    "AllGatherCoalesced": "all_gather_coalesced", "ReduceScatterCoalesced": "reduce_scatter_coalesced",
    "AllToAllUneven": "all_to_all_uneven",
}  # fmt: skip


class RankCall(NamedTuple):
    """A `CollectiveCall` as one rank makes it."""

    method: str
    arguments: Sequence[Any]
    options: Mapping[str, Any]

    def make(self, communicator: Communicator) -> Any:
        return getattr(communicator, self.method)(*self.arguments, **self.options)


def as_rank(call: CollectiveCall, rank: int, size: int) -> RankCall:
    method, options, root = METHODS[call.kind], dict(call.attrs), call.attrs.get("root", 0)
    if call.kind == "AllToAllUneven":
        options["counts"] = options["counts"][rank]
    if call.kind not in ("Broadcast", "Scatter"):
        return RankCall(method, [call.values[rank]], options)
    value = call.values[0]
    if call.kind == "Broadcast":
        return RankCall(method, [value if rank == root else np.full_like(value, 99)], options)
    if rank == root:
        return RankCall(method, [value], options)
    out = np.empty((value.shape[0] // size, *value.shape[1:]), value.dtype)
    return RankCall(method, [None], {**options, "out": out})


def by_call(results: Sequence[Sequence[Any]]) -> list[list[Any]]:
    """From rank by rank to call by call."""
    return [list(row) for row in zip(*results, strict=True)]


class Held(NamedTuple):
    """What a process holds that a group could leave behind."""

    descriptors: int
    threads: tuple[str, ...]
    segments: int


def held() -> Held:
    gc.collect()
    maps = Path("/proc/self/maps").read_text("ascii")
    names = sorted(thread.name for thread in threading.enumerate())
    return Held(len(os.listdir("/proc/self/fd")), tuple(names), maps.count("memfd:flowrt"))


def come_and_leave(communicator: Communicator) -> tuple[float, float]:
    """See `tests.contracts.check_collectives.Meet`."""
    if communicator.rank == communicator.size - 1:
        time.sleep(LATE_S)
    came = time.monotonic()
    communicator.barrier()
    return came, time.monotonic()


# --- threads


def run_threads(communicators: Sequence[Communicator], body: Callable[[Communicator], Any]) -> list[Any]:
    """What ``body`` returns, or the `OpError` that it raises, for each of ``communicators`` at once."""

    def run(communicator: Communicator) -> Any:
        try:
            return body(communicator)
        except OpError as error:
            return error

    with ThreadPoolExecutor(len(communicators)) as pool:
        return list(pool.map(run, communicators, timeout=SOON_S))


@contextmanager
def thread_group(kind: str, size: int, **options: Any) -> Iterator[list[Communicator]]:
    """A group whose ranks are of this process, each for a thread. ``options`` are the membership's."""
    with ExitStack() as stack:
        ports = stack.enter_context(ReservedPorts(size)).ports
        addresses = tuple(f"127.0.0.1:{port}" for port in ports)
        key = f"threads {next(_keys)}"
        found: list[Any] = [None] * size

        def open_one(rank: int) -> None:
            membership = Membership(key, rank, size, addresses, **options)
            found[rank] = open_communicator(kind, membership, new_transport())

        with ThreadPoolExecutor(size) as pool:
            list(pool.map(open_one, range(size), timeout=SOON_S))
        for communicator in found:
            stack.callback(communicator.close)
        yield found


# --- processes


class Ranks:
    """Processes, each a rank of one group at a time. A context manager."""

    def __init__(self, count: int) -> None:
        self._processes, self._pipes = [], []
        for _ in range(count):
            here, there = FORKS.Pipe()
            process = FORKS.Process(target=_serve, args=(there, dict(os.environ)), daemon=True)
            process.start()
            there.close()
            self._processes.append(process)
            self._pipes.append(here)

    def __enter__(self) -> Ranks:
        return self

    def __exit__(self, *_: object) -> None:
        for process, pipe in zip(self._processes, self._pipes, strict=True):
            process.kill()
            process.join(SOON_S)
            pipe.close()

    def tell(self, rank: int, command: str, *arguments: Any) -> None:
        self._pipes[rank].send((command, arguments))

    def hear(self, rank: int) -> Any:
        """The next answer of ``rank``; an `OpError` is returned, too."""
        assert self._pipes[rank].poll(SOON_S), f"rank {rank} did not answer"
        return self._pipes[rank].recv()

    def all(self, count: int, command: str, *arguments: Any) -> list[Any]:
        """Have the first ``count`` do the same; their answers."""
        for rank in range(count):
            self.tell(rank, command, *arguments)
        return [self.hear(rank) for rank in range(count)]

    def form(self, kind: str, size: int, **options: Any) -> list[Any]:
        """A group of the first ``size``, instead of the one before. None a rank, or why there is none."""
        with ReservedPorts(size) as reserved:
            addresses = tuple(f"127.0.0.1:{port}" for port in reserved.ports)
            key = f"processes {next(_keys)}"
            for rank in range(size):
                self.tell(rank, "form", kind, Membership(key, rank, size, addresses, **options))
            return [self.hear(rank) for rank in range(size)]

    def perform(self, size: int, calls: Sequence[CollectiveCall]) -> list[list[Any]]:
        """See `tests.contracts.check_collectives.Perform`; the group is there."""
        for rank in range(size):
            self.tell(rank, "make", [as_rank(call, rank, size) for call in calls])
        return by_call([self.hear(rank) for rank in range(size)])

    def kill(self, rank: int) -> None:
        """By SIGKILL."""
        pid = self._processes[rank].pid
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        self._processes[rank].join(SOON_S)


class _Rank:
    """What a process does when it is told."""

    def __init__(self, pipe: Connection) -> None:
        self._pipe = pipe
        self._communicator: Communicator | None = None

    def form(self, kind: str, membership: Membership) -> None:
        self.close()
        self._communicator = open_communicator(kind, membership, new_transport())

    def make(self, calls: Sequence[RankCall]) -> list[Any]:
        assert self._communicator is not None
        return [call.make(self._communicator) for call in calls]

    def meet(self) -> tuple[float, float]:
        assert self._communicator is not None
        return come_and_leave(self._communicator)

    def repeat(self, elements: int) -> None:
        """All-reduces without an end; after the first of them the parent is told."""
        assert self._communicator is not None
        array = np.ones(elements, np.float32)
        self._communicator.all_reduce(array, "max", out=array)
        self._pipe.send("began")
        while True:
            self._communicator.all_reduce(array, "max", out=array)

    def traffic(self) -> tuple[int, int]:
        assert self._communicator is not None
        return self._communicator.traffic.bytes_sent, self._communicator.traffic.messages_sent

    def held(self) -> Held:
        return held()

    def close(self) -> None:
        if self._communicator is not None:
            self._communicator.close()
            self._communicator = None


def _serve(pipe: Connection, environ: Mapping[str, str]) -> None:
    inherit(environ)
    rank = _Rank(pipe)
    while True:
        try:
            command, arguments = pipe.recv()
        except EOFError:  # the test is over
            return
        try:
            answer = getattr(rank, command)(*arguments)
        except OpError as error:
            answer = error.with_traceback(None)
        pipe.send(answer)
