"""`ConnectionManager`: the peers of one task, dialled by it or by them.

Requests to a task use one link, whichever end dialled: the first that is up. Tasks that dial each other at
the same time have two for a while, and each answers on the link of the request.
"""

from __future__ import annotations

import errno
import hashlib
import itertools
import logging
import os
import resource
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, final

import flowrt.version
from flowrt.distribute.cluster import timeouts
from flowrt.distribute.cluster.certificates import check_claim
from flowrt.distribute.cluster.cluster_spec import ClusterSpec
from flowrt.distribute.cluster.standstill import Standstill
from flowrt.distribute.cluster.threads import Threads
from flowrt.distribute.cluster.timeouts import liveness
from flowrt.distribute.collectives.mesh_forming import GroupAcceptor, is_joining
from flowrt.distribute.wire.messages import PROTOCOL, Message
from flowrt.distribute.wire.peer import Done, Owner, Peer, dial
from flowrt.distribute.wire.wait_log import WaitLog
from flowrt.errors import (
    AlreadyExistsError,
    DeadlineExceededError,
    FailedPreconditionError,
    OpError,
    Origin,
    UnavailableError,
)
from flowrt.protos import cluster_pb2 as pb
from flowrt.rendezvous.channel.channel import Bytes, Connection, Receiver, Transport
from flowrt.rendezvous.channel.rare_log import RareLog

LOGGER = logging.getLogger(__name__)

RETRY_S = 0.2
TICK_S = 0.25
"""Interval between two calls of `ConnectionManager.beat`."""
HELLO_S = 10.0
"""Time that an accepted connection has until its first frame."""


class Handler(Protocol):
    """Callbacks of the connections, called in reader threads."""

    def came(self, name: str) -> None:
        """Once for each connection of a task, before it can be `lost`: under the connections' lock."""

    def asked(self, token: str, request_id: int, message: Message) -> None: ...

    def lost(self, token: str, name: str, error: OpError) -> None: ...


class Closed(Protocol):
    """The end of all waits, as `threading.Event` is one."""

    def wait(self, timeout: float) -> bool: ...


@final
class ConnectionManager:
    """Any thread may call anything. ``addresses`` are those of all tasks, this one's too."""

    def __init__(
        self,
        task: str,
        incarnation: int,
        cluster: ClusterSpec,
        addresses: Mapping[str, str],
        transport: Transport,
        threads: Threads,
        handler: Handler,
    ) -> None:
        self._task, self._addresses, self._transport = task, addresses, transport
        self._threads, self._handler = threads, handler
        self._hello = pb.Hello(
            protocol=PROTOCOL,
            version=flowrt.version.VERSION,
            task=task,
            incarnation=incarnation,
            cluster=fingerprint(cluster),
            addresses=address_fingerprint(cluster),
        )
        self.groups = GroupAcceptor()
        """Accepts ranks that dial this task for a group."""
        self._lock = threading.Lock()
        self._serial = itertools.count(1)
        self._peers: dict[str, Peer] = {}
        """Peers by the tokens assigned to them."""
        self._silent: dict[Connection, float] = {}
        """Accepted connections without a frame, with the time at which they came."""
        self._strangers, self._exhausted = RareLog(LOGGER), RareLog(LOGGER)
        self._connections: dict[str, Peer] = {}
        """The peer used for requests to each task."""
        self._losses: dict[str, OpError] = {}
        """Errors of the tasks that were peers and are none now."""
        self._dialing = {name: threading.Lock() for name in addresses}
        self.num_lost = 0
        """Peers that are gone, since the start."""
        self._closed = threading.Event()
        self._liveness, self._next_beat = liveness(), 0.0
        self._standstill = Standstill(TICK_S, self._liveness.lost_s)

    # --- asking

    def ask(self, task: str, message: Message, dones: Sequence[Done], wait_s: float = 0.0) -> None:
        """Send ``task`` a request with one answer, or several. If there is no link yet, one is created on
        another thread; ``wait_s``: for how long, if the task may not be up yet. Then a link that is lost
        before the answer is replaced too: the task may be restarting, and its loss is noticed late.
        """
        link = self._live(task)
        if link is not None:
            again = [self._or_again(link, task, message, done, wait_s) for done in dones] if wait_s else dones
            _ask(link, message, again)
        elif task not in self._addresses:
            _fail(dones, UnavailableError(f"{task} is not a task of this cluster"))
        else:
            self._threads.submit(lambda: self._connect_and_ask(task, message, dones, wait_s))

    def _or_again(self, link: Peer, task: str, message: Message, done: Done, wait_s: float) -> Done:
        """``done``, unless ``link`` is lost by then: the request is sent over a new one."""

        def settle(answer: Message | None, error: OpError | None) -> None:
            if error is None or not link.is_lost or self._closed.is_set():
                done(answer, error)
            else:
                self._threads.submit(lambda: self._connect_and_ask(task, message, (done,), wait_s))

        return settle

    def _live(self, task: str) -> Peer | None:
        """The peer for requests to ``task``, unless a request to it has just failed."""
        link = self._connections.get(task)
        return None if link is None or link.is_lost else link

    def greet(self, task: str, wait_s: float) -> None:
        """Be a peer of ``task``, on another thread, as soon as it is up."""
        self._threads.submit(lambda: self._meet(task, time.monotonic() + wait_s))

    def _meet(self, task: str, end: float) -> None:
        """Connect by single attempts: concurrent requests to the task have their own deadlines."""
        while time.monotonic() < end and not self._closed.is_set():
            try:
                self._connect(task, 0.0)
                return
            except UnavailableError:  # it is not up yet
                self._closed.wait(RETRY_S)
            except OpError:  # waiting does not help; later requests raise the error
                return

    def tell(self, task: str, message: Message) -> None:
        """Send ``task`` a message without an answer; ignored if the task is gone."""
        link = self._connections.get(task)
        if link is not None:
            _ask(link, message, (ignore,))

    def find(self, token: str) -> Peer | None:
        return self._peers.get(token)

    @property
    def num_peers(self) -> int:
        return len(self._peers)

    def _connect_and_ask(self, task: str, message: Message, dones: Sequence[Done], wait_s: float) -> None:
        try:
            link = self._connect(task, wait_s)
        except OpError as error:
            error.origin = error.origin or Origin(task, False)
            _fail(dones, error)
        else:
            _ask(link, message, dones)

    def _connect(self, task: str, wait_s: float) -> Peer:
        with self._dialing[task]:
            dialled = self._live(task) or self._dial(task, wait_s)
            return self._live(task) or dialled  # the task may have dialled this one meanwhile

    def _dial(self, task: str, wait_s: float) -> Peer:
        address = self._addresses[task]
        whom = f"{task} at {address}"

        def connect(left_s: float) -> Peer:
            return dial(self._transport, address, self, left_s)

        try:
            if wait_s:
                peer = keep_dialling(connect, whom, wait_s, self._closed)
            else:
                peer = dial_once(connect, whom, timeouts.DIAL_S)
        except UnavailableError as error:
            earlier = self._losses.get(task)
            if earlier is None:
                raise
            waited = f". It is not back after {wait_s:g} s" if wait_s else ""
            raise UnavailableError(f"{earlier.message}{waited}") from error
        if peer.name != task:
            peer.close("it is another task")
            raise FailedPreconditionError(f"expected {task} at {address}; got {peer.name}")
        return peer

    # --- peers

    def accept(self, connection: Connection) -> None:
        """Accept a connection of a listener."""
        if self._closed.is_set():
            connection.close()
            return
        with self._lock:
            self._silent[connection] = time.monotonic()
        connection.start(FirstFrame(self, self.groups, self._speaks))

    def _speaks(self, connection: Connection) -> None:
        """The first frame of an accepted connection came, or it is lost."""
        with self._lock:
            self._silent.pop(connection, None)

    def hello(self) -> Any:
        """See `flowrt.distribute.wire.peer.Owner`."""
        return self._hello

    def greeted(self, peer: Peer, hello: Any) -> None:
        """See `flowrt.distribute.wire.peer.Owner`."""
        if hello.task and hello.cluster != self._hello.cluster:
            raise FailedPreconditionError(
                f"{self._task} and {hello.task} have different cluster specs. Start all tasks with the same "
                "spec"
            )
        if hello.task == self._task:
            raise AlreadyExistsError(f"two tasks have the name {self._task}: expected one of each")
        check_claim(peer.connection.certificate_names, hello.task)
        with self._lock:
            if peer.token:  # its hello was repeated
                return
            if self._closed.is_set() or peer.is_lost:  # too late for `close`, or for `lost`, to find it
                raise UnavailableError(
                    f"{self._task} was stopped, or the connection lost, during the handshake"
                )
            peer.token = f"{hello.task or 'client'}#{next(self._serial)}"
            self._peers[peer.token] = peer
            if hello.task in self._addresses:
                self._losses.pop(hello.task, None)
                self._connections[hello.task] = self._live(hello.task) or peer
                self._handler.came(hello.task)

    def asked(self, peer: Peer, request_id: int, message: Message) -> None:
        """See `flowrt.distribute.wire.peer.Owner`."""
        self._handler.asked(peer.token, request_id, message)

    def lost(self, peer: Peer, error: OpError) -> None:
        """See `flowrt.distribute.wire.peer.Owner`."""
        with self._lock:
            was_known = self._peers.pop(peer.token, None) is not None
            self.num_lost += was_known
            if self._connections.get(peer.name) is peer:
                del self._connections[peer.name]
                self._losses[peer.name] = error
        if was_known:
            self._handler.lost(peer.token, peer.name, error)
        peer.connection.close()

    # --- time

    def beat(self, now: float) -> None:
        """Give up peers that are silent, and from time to time send all heartbeats, which have answers. To be
        called each `TICK_S` seconds.
        """
        stood_s = self._standstill.before(now)
        for peer in list(self._peers.values()):
            if stood_s:
                peer.heard_at = min(now, peer.heard_at + stood_s)
            if now - peer.heard_at > self._liveness.lost_s:
                peer.fail(f"no sign of life for {self._liveness.lost_s:g} s")
        if now < self._next_beat:
            return
        self._next_beat = now + self._liveness.heartbeat_s
        self._close_silent(now)
        self._check_descriptors()
        self.repeat()
        for peer in list(self._peers.values()):
            peer.ask(Message(pb.Heartbeat()), ignore)

    def _close_silent(self, now: float) -> None:
        with self._lock:
            late = [each for each, since in self._silent.items() if now - since > HELLO_S]
        for connection in late:
            self._strangers.warn("closed %s: it said nothing for %g s", connection.peer, HELLO_S)
            self._speaks(connection)
            connection.abort()

    def _check_descriptors(self) -> None:
        """Say it where this process has no file descriptor left: gRPC then accepts nobody, without a word."""
        try:
            os.close(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC))
        except OSError as error:
            if error.errno not in (errno.EMFILE, errno.ENFILE):
                raise
            limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
            self._exhausted.warn(
                "%s has no file descriptor left (limit %d): new connections wait. Raise `ulimit -n`",
                self._task, limit,
            )  # fmt: skip

    def repeat(self) -> None:
        """Resend requests that have been unanswered for a while."""
        for peer in list(self._peers.values()):
            peer.repeat()

    def announce(self, message: Message) -> None:
        """Tell all peers, of which some may be gone."""
        for peer in list(self._peers.values()):
            _ask(peer, message, (ignore,))

    def close(self, reason: str) -> None:
        """End all connections."""
        with self._lock:  # a peer is added before it is greeted, or refused
            self._closed.set()
            peers = list(self._peers.values())
        for peer in peers:
            peer.close(reason)


def dial_once(connect: Callable[[float], Peer], whom: str, timeout_s: float) -> Peer:
    """The result of ``connect(timeout_s)``. Raises its errors, and `UnavailableError`, naming the peer."""
    try:
        return connect(timeout_s)
    except (UnavailableError, DeadlineExceededError) as error:
        raise UnavailableError(f"{whom} did not answer: {error.message}") from error


def keep_dialling(
    connect: Callable[[float], Peer],
    whom: str,
    timeout_s: float,
    closed: Closed,
    clock: Callable[[], float] = time.monotonic,
) -> Peer:
    """The result of ``connect(seconds for one attempt)``, retried until it succeeds: a peer that is not up
    yet is waited for, and reported (`WaitLog`). Raises `UnavailableError` after ``timeout_s`` seconds by
    ``clock``, or when ``closed`` is set, and other errors of ``connect``.
    """
    end, log = clock() + timeout_s, WaitLog(LOGGER, clock)
    while True:
        try:
            return dial_once(connect, whom, min(max(0.1, end - clock()), timeouts.DIAL_S))
        except UnavailableError as error:
            if clock() + RETRY_S > end or closed.wait(RETRY_S):
                raise
            log.waits_for(error.message)


def fingerprint(cluster: ClusterSpec) -> str:
    """Equal for equal jobs and numbers of tasks. Addresses are not a part of it: a task may be reached at
    different ones.
    """
    tasks = sorted(f"{job}:{index}" for job, index, _ in cluster.tasks())
    return hashlib.sha256(" ".join(tasks).encode()).hexdigest()[:16]


def address_fingerprint(cluster: ClusterSpec) -> str:
    """Equal for equal cluster specs, with their addresses."""
    tasks = sorted(f"{job}:{index}={address}" for job, index, address in cluster.tasks())
    return hashlib.sha256(" ".join(tasks).encode()).hexdigest()[:16]


def task_of(token: str) -> str:
    """The name that the peer with ``token`` gave itself; ``client`` for a session's process."""
    return token.partition("#")[0]


def ignore(message: Message | None, error: OpError | None) -> None:
    """Ignore the answer."""


def _ask(link: Peer, message: Message, dones: Sequence[Done]) -> None:
    try:
        link.ask_all(message, dones)
    except OpError as error:  # not serializable
        _fail(dones, error)


def _fail(dones: Sequence[Done], error: OpError) -> None:
    for done in dones:
        done(None, error)


@final
class FirstFrame:
    """The `Receiver` of a connection that was accepted, until it has one: a `Peer` of ``owner``, or that of
    the ``groups``. ``speaks`` is called when it does, or is lost.
    """

    def __init__(self, owner: Owner, groups: GroupAcceptor, speaks: Callable[[Connection], None]) -> None:
        self._owner, self._groups, self._speaks = owner, groups, speaks
        self._receiver: Receiver | None = None

    def on_frame(self, connection: Connection, header: bytes, payload: list[Bytes]) -> None:
        """See `flowrt.rendezvous.channel.channel.Receiver`."""
        if self._receiver is None:
            self._speaks(connection)
            joins = is_joining(header)
            self._receiver = self._groups.receiver(connection) if joins else Peer(connection, self._owner)
        self._receiver.on_frame(connection, header, payload)

    def on_lost(self, connection: Connection, error: UnavailableError) -> None:
        """See `flowrt.rendezvous.channel.channel.Receiver`."""
        if self._receiver is None:
            self._speaks(connection)
            connection.close()
        else:
            self._receiver.on_lost(connection, error)
