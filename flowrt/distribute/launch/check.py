"""Pre-flight check of a cluster: ``flowrt-worker --check``.

The task listens at its address and dials every other, which may be a worker or another check. Early checks
retry until the others are up, and finished ones stay a little longer than one retry: so checks that start
within `CHECK_S` find each other.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, final

import flowrt.version
from flowrt.distribute.connection_manager import address_fingerprint, fingerprint
from flowrt.distribute.resolvers import ResolvedCluster
from flowrt.distribute.server import task_name
from flowrt.distribute.wire.messages import PROTOCOL
from flowrt.distribute.wire.peer import Peer, dial
from flowrt.errors import DeadlineExceededError, FailedPreconditionError, OpError, UnavailableError
from flowrt.protos import cluster_pb2 as pb
from flowrt.rendezvous.channel.channel import Connection, Transport

CHECK_S = 3.0
"""Time for all peers together. With Python's start and the linger, a check takes less than 5 s."""
RETRY_S, LINGER_S = 0.1, 0.5


@final
@dataclass(frozen=True, slots=True)
class PeerStatus:
    """Status reported by a task; ``kind`` is that of the link, as `Connection.kind`."""

    task: str
    incarnation: int
    version: str
    cluster: str
    addresses: str
    kind: str


@final
@dataclass(frozen=True, slots=True)
class PeerCheck:
    """Result of dialling one task: successful without an ``error``."""

    job: str
    index: int
    address: str
    status: PeerStatus | None
    error: OpError | None

    def __str__(self) -> str:
        where = f"{self.job} {self.index} at {self.address}"
        if self.error is not None:
            return f"{where}: {self.error}"
        assert self.status is not None
        return f"{where}: ok, flowrt {self.status.version}, by {self.status.kind}"


@final
class Greeter:
    """An `Owner` of peers that only exchange hellos."""

    def __init__(self, hello: Any) -> None:
        self._hello = hello
        self.heard: Any = None

    def hello(self) -> Any:
        return self._hello

    def greeted(self, peer: Peer, hello: Any) -> None:
        self.heard = hello

    def asked(self, peer: Peer, request_id: int, message: Any) -> None:
        peer.answer(request_id, None, UnavailableError("this task is only checking the cluster"))

    def lost(self, peer: Peer, error: OpError) -> None:
        peer.connection.close()


def probe(transport: Transport, address: str, timeout_s: float) -> PeerStatus:
    """Ask the task at ``address`` for its identity. Raises the reason of a failure: `UnavailableError`
    (refused, no route, name not found), `UnauthenticatedError`, `FailedPreconditionError` for another
    protocol.
    """
    greeter = Greeter(pb.Hello(protocol=PROTOCOL, version=flowrt.version.VERSION))
    peer = dial(transport, address, greeter, timeout_s)
    kind = peer.connection.kind
    peer.close("the check is done")
    heard = greeter.heard
    return PeerStatus(heard.task, heard.incarnation, heard.version, heard.cluster, heard.addresses, kind)


def check_cluster(
    cluster: ResolvedCluster, transport: Transport, bind: str | None, seen: Callable[[PeerCheck], object]
) -> None:
    """Listen as this process's task of ``cluster``, and dial the others, for at most `CHECK_S` and
    `LINGER_S`.

    ``seen`` is called for each of them, in the order of the results, on this thread. Raises
    `AlreadyExistsError` or `UnavailableError` if the task cannot listen.
    """
    own = task_name(cluster.job, cluster.task)
    hello = pb.Hello(
        protocol=PROTOCOL,
        version=flowrt.version.VERSION,
        task=own,
        cluster=fingerprint(cluster.spec),
        addresses=address_fingerprint(cluster.spec),
    )

    def accept(connection: Connection) -> None:
        connection.start(Peer(connection, Greeter(hello)))

    listener = transport.listen(bind or cluster.address, accept)
    try:
        if _dial_all(cluster, transport, seen):
            time.sleep(LINGER_S)
    finally:
        listener.close()


def _dial_all(cluster: ResolvedCluster, transport: Transport, seen: Callable[[PeerCheck], object]) -> bool:
    """Whether there were peers, and all of them answered."""
    end = time.monotonic() + CHECK_S
    peers = [each for each in cluster.spec.tasks() if each[:2] != (cluster.job, cluster.task)]
    answers: queue.SimpleQueue[PeerCheck] = queue.SimpleQueue()
    for job, index, address in peers:

        def dial_one(job: str = job, index: int = index, address: str = address) -> None:
            answers.put(_dial(cluster, transport, job, index, address, end))

        # A daemon: looking up a name may take longer than the whole check.
        threading.Thread(target=dial_one, name=f"check {job} {index}", daemon=True).start()
    missing = {each[:2]: each for each in peers}
    all_well = bool(peers)
    while missing:
        try:
            check = answers.get(timeout=max(0.0, end + RETRY_S - time.monotonic()))
        except queue.Empty:
            late = next(iter(missing.values()))
            check = PeerCheck(*late, None, DeadlineExceededError(f"no answer within {CHECK_S:.0f} s"))
        if missing.pop((check.job, check.index), None):
            all_well &= check.error is None
            seen(check)
    return all_well


def _dial(
    cluster: ResolvedCluster, transport: Transport, job: str, index: int, address: str, end: float
) -> PeerCheck:
    """Dial one task until it answers or ``end`` is reached."""
    while True:
        left = end - time.monotonic()
        try:
            status = probe(transport, address, max(RETRY_S, left))
            return PeerCheck(job, index, address, status, _misfit(cluster, task_name(job, index), status))
        except UnavailableError as error:  # it may not have been started yet
            if left <= RETRY_S:
                return PeerCheck(job, index, address, None, error)
            time.sleep(RETRY_S)
        except OpError as error:
            return PeerCheck(job, index, address, None, error)


def _misfit(cluster: ResolvedCluster, task: str, status: PeerStatus) -> OpError | None:
    """The mismatch of a task that answers; None if it matches."""
    if status.task != task:
        return FailedPreconditionError(f"expected {task}; got {status.task or 'a program that is no task'}")
    if status.cluster != fingerprint(cluster.spec):
        return FailedPreconditionError("it has another cluster spec. Start all tasks with the same one")
    if status.addresses != address_fingerprint(cluster.spec):
        return FailedPreconditionError(
            "its cluster spec has the same tasks at other addresses. Start all tasks with the same one"
        )
    return None
