"""A cluster of real processes: the first tasks are servers of the test's, the others `flowrt-worker`s.

Processes are forks of one that has imported flowrt, waited for with a deadline, and reaped whatever happens.
How the command starts is in `test_worker_cli`.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import flowrt as tf
from flowrt.cli.worker import main
from flowrt.distribute.connection_manager import keep_dialling
from flowrt.distribute.launch.local_cluster import ReservedPorts
from flowrt.distribute.resolvers import VARIABLES
from flowrt.distribute.wire.messages import PROTOCOL, Message
from flowrt.distribute.wire.peer import Peer, dial
from flowrt.errors import OpError
from flowrt.protos import cluster_pb2 as pb
from flowrt.rendezvous.transport import new_transport
from tests.contracts.check_transport import wait_until
from tests.distribute.tcp_proxy import TcpProxy
from tests.forks import ForkedMain

ROOT = Path(__file__).resolve().parents[2]
SOON_S = 60.0
"""What should happen at once has happened after this, also on a loaded machine."""

READ_AT_START = ("LD_PRELOAD", "FLOWRT_TRACE")
"""Variables that a fork comes too late for."""


class Ended(NamedTuple):
    """``status`` is negative for a signal; ``errors`` are what all lives so far wrote to stderr."""

    status: int
    errors: str


class Worker:
    """Task ``index`` of a cluster of workers. After `end`, `start` begins its next life at the same port."""

    def __init__(
        self,
        addresses: Sequence[str],
        index: int,
        options: Sequence[str] = (),
        environ: Mapping[str, str] | None = None,
    ) -> None:
        self.address, self.task = addresses[index], f"/job:worker/replica:0/task:{index}"
        cluster = json.dumps({"worker": list(addresses)})
        self._arguments = ["--cluster", cluster, "--task", str(index), *options]
        inherited = {name: value for name, value in os.environ.items() if name not in VARIABLES}
        self._environ = inherited | dict(environ or {})
        self._errors = tempfile.NamedTemporaryFile("w+")  # noqa: SIM115 (`reap` closes it)

    _process: ForkedMain | subprocess.Popen[bytes]

    def start(self) -> None:
        if self._environ.keys().isdisjoint(READ_AT_START):
            self._process = ForkedMain(main, self._arguments, self._environ, self._errors.name)
            return
        self._process = subprocess.Popen(
            [sys.executable, "-m", "flowrt.cli.worker", *self._arguments],
            cwd=ROOT, env=self._environ, stdout=subprocess.DEVNULL, stderr=self._errors,
        )  # fmt: skip

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def has_ended(self) -> bool:
        return self._process.poll() is not None

    def send_signal(self, number: signal.Signals) -> None:
        self._process.send_signal(number)

    def freeze(self) -> None:
        """SIGSTOP, and wait until all its threads have stopped: a running one may still answer a request."""
        self.send_signal(signal.SIGSTOP)
        threads = Path(f"/proc/{self.pid}/task")
        wait_until(lambda: all(_is_stopped(thread) for thread in threads.iterdir()), "it stops", SOON_S)

    def end(self, number: signal.Signals | None = None, timeout_s: float = SOON_S) -> Ended:
        """Wait until it has ended, which ``number`` has it do if that is given."""
        if number is not None:
            self.send_signal(number)
        try:
            status = self._process.wait(timeout_s)
        finally:
            self._process.kill()
            self._process.wait(SOON_S)
        self._errors.seek(0)
        return Ended(status, self._errors.read())

    def reap(self) -> None:
        """End it, and print what it wrote: the test may be failing."""
        print(self._arguments, self.end(None if self.has_ended else signal.SIGKILL))
        self._errors.close()

    def status(self) -> Any:
        """What it says of itself: a `pb.TaskStatus`."""
        return status_of(self.address)

    def wait_for_steps(self, number: int) -> None:
        """Wait until that many steps run in it."""
        wait_until(lambda: self.status().running_steps == number, f"{number} steps in {self.task}", SOON_S)


def _is_stopped(thread: Path) -> bool:
    """Whether it has stopped, or ended."""
    try:
        return (thread / "stat").read_text().rpartition(") ")[2][0] == "T"
    except (FileNotFoundError, ProcessLookupError):
        return True


def wait_until_idle(server: tf.train.Server) -> None:
    """Until ``server`` holds nothing of any step: it tells a step's end first, and then forgets the step."""
    tables = server._worker._steps, server._steps._controls
    wait_until(lambda: not any(tables), f"no step in {server.task}", SOON_S)


class Cluster(NamedTuple):
    servers: list[tf.train.Server]
    workers: list[Worker]

    @property
    def target(self) -> str:
        """The master of task 0."""
        return self.servers[0].target if self.servers else f"grpc://{self.workers[0].address}"


@contextmanager
def cluster(
    servers: int, workers: int, *options: str, environ: Mapping[str, str] | None = None
) -> Iterator[Cluster]:
    """``servers`` tasks here, then ``workers`` processes with these ``options`` and ``environ``."""
    with ReservedPorts(servers + workers) as reserved, ExitStack() as stack:
        addresses = [f"127.0.0.1:{port}" for port in reserved.ports]
        processes = [Worker(addresses, servers + i, options, environ) for i in range(workers)]
        for process in processes:
            process.start()
            stack.callback(process.reap)
        here = []
        for index in range(servers):
            here.append(tf.train.Server({"worker": addresses}, "worker", index))
            stack.callback(here[-1].stop)
        yield Cluster(here, processes)


@contextmanager
def cluster_with_proxy(*options: str, **network: float) -> Iterator[tuple[tf.train.Server, Worker, TcpProxy]]:
    """Task 0 is here; task 1 is a process, with these ``options``, that is reached through the proxy."""
    with ReservedPorts(3) as reserved, ExitStack() as stack:
        here, there, listens = (f"127.0.0.1:{port}" for port in reserved.ports)
        worker = Worker([here, there], 1, ["--bind", listens, *options])
        worker.start()
        stack.callback(worker.reap)
        proxy = stack.enter_context(TcpProxy(there, listens, **network))
        server = tf.train.Server({"worker": [here, there]}, "worker", 0)
        stack.callback(server.stop)
        yield server, worker, proxy


class _Client:
    """An `flowrt.distribute.wire.peer.Owner` that belongs to no task."""

    def hello(self) -> Any:
        return pb.Hello(protocol=PROTOCOL, version=tf.__version__)

    def greeted(self, peer: Peer, hello: Any) -> None: ...

    def asked(self, peer: Peer, request_id: int, message: Message) -> None: ...

    def lost(self, peer: Peer, error: OpError) -> None: ...


def dial_as_client(address: str) -> Peer:
    """A connection to a task, which may not be up yet."""

    def connect(left_s: float) -> Peer:
        return dial(new_transport(), address, _Client(), left_s)

    return keep_dialling(connect, address, SOON_S, threading.Event())


def status_of(address: str) -> Any:
    """What the task at ``address`` says of itself: a `pb.TaskStatus`."""
    peer = dial_as_client(address)
    try:
        return peer.wait_for(Message(pb.GetStatus()), SOON_S).body
    finally:
        peer.close("it was only asked for its status")
