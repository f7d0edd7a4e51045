"""`ClusterWatch`: a watcher of all tasks of a cluster, for ``flowrt top`` and ``flowrt profile``.

    the task at an address --GetMetrics--> the addresses of all tasks --a connection each--> their answers

It opens no session, and asks each task itself: a task that does not answer delays no other.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import TypeAlias, final

from flowrt.base.closing import Closing
from flowrt.distribute.cluster.bind_policy import check_dial
from flowrt.distribute.launch.drain import Operator
from flowrt.distribute.wire.messages import Message
from flowrt.distribute.wire.peer import Peer, dial
from flowrt.errors import FailedPreconditionError, OpError
from flowrt.protos import cluster_pb2 as pb
from flowrt.rendezvous.channel.channel import Transport
from flowrt.rendezvous.channel.security import Security

DIAL_S = 5.0
MAX_THREADS = 64
"""Tasks that are asked at the same time."""

Answers: TypeAlias = Mapping[str, Message | OpError]
"""Each task with its answer, or the reason why there is none."""


@final
class ClusterWatch(Closing):
    """Dials the task at ``address``, a ``host:port``. A context manager.

    Raises `UnavailableError` with the reason if it does not answer, `UnauthenticatedError`,
    `PermissionDeniedError` if the token would travel in clear text, `FailedPreconditionError` for another
    protocol.
    """

    def __init__(self, transport: Transport, security: Security, address: str) -> None:
        self._transport, self._security = transport, security
        self._peers: dict[str, Peer] = {}
        check_dial(address, security)
        peer = dial(transport, address, Operator(), DIAL_S)
        self._peers[peer.name] = peer
        try:
            metrics = peer.wait_for(Message(pb.GetMetrics()), DIAL_S).body
        except BaseException:
            self.close()
            raise
        self._addresses: dict[str, str] = {**metrics.addresses, peer.name: address}

    @property
    def tasks(self) -> list[str]:
        return list(self._addresses)

    def ask(self, message: Message, timeout_s: float) -> Answers:
        """Ask every task; their answers come within about ``timeout_s`` seconds."""
        end = time.monotonic() + timeout_s

        def ask_one(task: str) -> Message | OpError:
            try:
                return self._peer(task, end).wait_for(message, max(0.1, end - time.monotonic()))
            except OpError as error:
                return error

        with ThreadPoolExecutor(min(MAX_THREADS, len(self._addresses))) as pool:
            return dict(zip(self._addresses, pool.map(ask_one, self._addresses), strict=True))

    def _peer(self, task: str, end: float) -> Peer:
        """The connection to ``task``, a new one if there is none. One thread a task."""
        peer = self._peers.get(task)
        if peer is None or peer.is_lost:
            address = self._addresses[task]
            check_dial(address, self._security)
            peer = dial(self._transport, address, Operator(), max(0.1, min(DIAL_S, end - time.monotonic())))
            if peer.name != task:
                peer.close("it is another task")
                raise FailedPreconditionError(f"expected {task} at {address}; got {peer.name}")
            self._peers[task] = peer
        return peer

    def close(self) -> None:
        """End the connections. Idempotent."""
        peers, self._peers = [*self._peers.values()], {}
        for peer in peers:
            peer.close("it was only watched")
