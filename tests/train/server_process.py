"""A `train.Server` in a process of its own, which tests may kill and start again."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from flowrt.cli.worker import main
from flowrt.distribute.launch.local_cluster import ReservedPorts
from flowrt.distribute.server import Server
from tests.distribute.processes import dial_as_client
from tests.forks import ForkedMain

ROOT = Path(__file__).parent.parent.parent
START_S = 60.0


@contextmanager
def free_cluster(**tasks: int) -> Iterator[dict[str, list[str]]]:
    """A cluster with this many tasks of each job, on ports of the loopback that are kept free for it."""
    with ReservedPorts(sum(tasks.values())) as reserved:
        ports = iter(reserved.ports)
        yield {job: [f"127.0.0.1:{next(ports)}" for _ in range(number)] for job, number in tasks.items()}


@contextmanager
def servers(**tasks: int) -> Iterator[list[Server]]:
    """A cluster whose tasks are all in this process, in the order of ``tasks``."""
    with free_cluster(**tasks) as cluster, ExitStack() as stack:
        found = []
        for job, index in [(job, index) for job, number in tasks.items() for index in range(number)]:
            found.append(Server(cluster, job, index))
            stack.callback(found[-1].stop)
        yield found


class ServerProcess:
    """Task ``index`` of ``job``. `kill` is SIGKILL, after which `start` begins its next life."""

    def __init__(self, cluster: Mapping[str, Sequence[str]], job: str, index: int) -> None:
        self._arguments = ["--cluster", json.dumps(cluster), "--job", job, "--task", str(index)]
        self._address = cluster[job][index]

    def start(self) -> None:
        """Returns when it answers."""
        self._process = ForkedMain(main, self._arguments, os.environ, os.devnull)
        dial_as_client(self._address).close("it was only called")

    def kill(self) -> None:
        """Does nothing the second time."""
        self._process.kill()
        self._process.wait(START_S)


@contextmanager
def server_process(cluster: Mapping[str, Sequence[str]], job: str, index: int) -> Iterator[ServerProcess]:
    process = ServerProcess(cluster, job, index)
    process.start()
    try:
        yield process
    finally:
        process.kill()
