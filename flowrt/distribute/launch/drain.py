"""Draining a remote task: ``flowrt-worker --drain``.

Drain ----> the task refuses new work, finishes its steps, ends; its connection is lost Hello ----> no answer,
or the task has a new incarnation: the drained one has ended
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any, final

import flowrt.version
from flowrt.distribute.launch.check import probe
from flowrt.distribute.wire.messages import PROTOCOL, Message
from flowrt.distribute.wire.peer import Peer, dial
from flowrt.errors import DeadlineExceededError, OpError, UnavailableError
from flowrt.protos import cluster_pb2 as pb
from flowrt.rendezvous.channel.channel import Transport

ANSWER_S = 5.0
END_S = 20.0
"""The steps have 5 s, then the rest is cancelled, and threads and devices are released."""
RETRY_S = 0.1


@final
class Operator:
    """An `flowrt.distribute.wire.peer.Owner` that is not a task, and waits for the end of one."""

    def __init__(self) -> None:
        self.has_lost = threading.Event()

    def hello(self) -> Any:
        return pb.Hello(protocol=PROTOCOL, version=flowrt.version.VERSION)

    def greeted(self, peer: Peer, hello: Any) -> None:
        """Accept any peer."""

    def asked(self, peer: Peer, request_id: int, message: Message) -> None:
        peer.answer(request_id, Message(pb.Done()), None)  # heartbeats

    def lost(self, peer: Peer, error: OpError) -> None:
        peer.connection.close()
        self.has_lost.set()


def drain(transport: Transport, address: str, said: Callable[[str], object]) -> None:
    """Make the task at ``address`` end as on SIGTERM, and return when it has. ``said`` is called with its
    remaining work.

    Raises the reason if it does not answer: `UnavailableError`, `UnauthenticatedError`,
    `FailedPreconditionError` for another protocol; `DeadlineExceededError` if it is still up after `END_S`.
    """
    end = time.monotonic() + END_S
    operator = Operator()
    peer = dial(transport, address, operator, ANSWER_S)
    try:
        said(f"{peer.name} at {address} is draining, {_running_steps(peer)}")
        operator.has_lost.wait(END_S)
    finally:
        peer.close("it was asked to drain")
    while not _has_ended(transport, address, peer.incarnation):
        if time.monotonic() > end:
            raise DeadlineExceededError(
                f"{peer.name} at {address}: expected its end within {END_S:.0f} s; it still answers. Its "
                "log shows what it waits for"
            )
        time.sleep(RETRY_S)


def _running_steps(peer: Peer) -> str:
    try:
        number = peer.wait_for(Message(pb.Drain()), ANSWER_S).body.running_steps
    except UnavailableError:  # it had nothing to do, and was faster than its answer
        number = 0
    return f"{number} {'step is' if number == 1 else 'steps are'} running"


def _has_ended(transport: Transport, address: str, life: int) -> bool:
    try:
        return probe(transport, address, ANSWER_S).incarnation != life
    except UnavailableError:
        return True
    except DeadlineExceededError:  # it is up, but does not identify itself
        return False
