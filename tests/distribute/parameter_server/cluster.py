"""A cluster of parameter servers and workers: all in this process, or the servers as processes that can be
killed.

Each worker is a thread that runs the same function, with a graph, a strategy and a server of its own.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import flowrt as tf
from flowrt.cli.worker import main
from flowrt.distribute.launch.local_cluster import ReservedPorts
from flowrt.distribute.resolvers import VARIABLES
from flowrt.distribute.resolvers.cluster_resolver import SimpleClusterResolver
from flowrt.distribute.strategies.parameter_server.parameter_server_strategy import ParameterServerStrategy
from tests.distribute.processes import SOON_S, dial_as_client
from tests.forks import ForkedMain

LONG_S = 120.0


@dataclass
class Cluster:
    """``masters`` are the targets of the workers' sessions, ``processes`` the servers that are processes,
    ``servers`` those that are not.
    """

    spec: tf.train.ClusterSpec
    masters: list[str]
    processes: list[ForkedMain] = field(default_factory=list)
    servers: list[tf.train.Server] = field(default_factory=list)

    def strategy(self, worker: int, **how: Any) -> ParameterServerStrategy:
        resolver = SimpleClusterResolver(self.spec, task_type="worker", task_id=worker)
        return ParameterServerStrategy(resolver, **{"timeout_s": LONG_S, **how})

    def kill(self, server: int) -> None:
        self.processes[server].send_signal(signal.SIGKILL)
        self.processes[server].wait(SOON_S)

    def start(self, server: int) -> None:
        """Its process, for the first time or again."""
        arguments = ["--cluster", json.dumps(self.spec.as_dict()), "--job", "ps", "--task", str(server)]
        environ = {name: value for name, value in os.environ.items() if name not in VARIABLES}
        process = ForkedMain(main, [*arguments, "--no-exit-with-job"], environ, os.devnull)
        self.processes[server : server + 1] = [process]

    def wait_for(self, server: int) -> None:
        """Until it answers."""
        dial_as_client(self.spec.task_address("ps", server)).close("it was only called")


@contextlib.contextmanager
def cluster(
    servers: int, workers: int, *, are_processes: bool = False, own_workers: int | None = None
) -> Iterator[Cluster]:
    """``servers`` and ``workers``, of which the first ``own_workers`` (None: all) are in this process."""
    with ReservedPorts(servers + workers) as reserved, contextlib.ExitStack() as stack:
        addresses = [f"127.0.0.1:{port}" for port in reserved.ports]
        spec = tf.train.ClusterSpec({"ps": addresses[:servers], "worker": addresses[servers:]})
        made = Cluster(spec, [])
        for number in range(servers):
            if are_processes:
                made.start(number)
            else:
                made.servers.append(tf.train.Server(spec, "ps", number))
                stack.callback(made.servers[-1].stop)
        stack.callback(_reap, made)
        for number in range(workers if own_workers is None else own_workers):
            server = tf.train.Server(spec, "worker", number)
            stack.callback(server.stop)
            made.masters.append(server.target)
        yield made


def _reap(made: Cluster) -> None:
    for process in made.processes:
        process.kill()
        process.wait(SOON_S)


class Together:
    """Where the workers of a test meet; a worker that fails frees the others."""

    def __init__(self, workers: int) -> None:
        self._barrier = threading.Barrier(workers)

    def meet(self) -> None:
        self._barrier.wait(LONG_S)

    def abort(self) -> None:
        self._barrier.abort()


def run_workers(workers: int, work: Callable[[int, Together], Any]) -> list[Any]:
    """What ``work(worker, together)`` returns on each worker's thread, in a graph of its own. Raises the
    first error that is not a consequence.
    """
    together, results, errors = Together(workers), [None] * workers, list[BaseException]()

    def run(worker: int) -> None:
        try:
            with tf.Graph().as_default():
                results[worker] = work(worker, together)
        except BaseException as error:  # noqa: BLE001 (raised in the test's thread)
            errors.append(error)
            together.abort()

    threads = [threading.Thread(target=run, args=(worker,), daemon=True) for worker in range(workers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LONG_S)
    assert not any(thread.is_alive() for thread in threads), "a worker hangs"
    if errors:
        raise next((e for e in errors if not isinstance(e, threading.BrokenBarrierError)), errors[0])
    return results
