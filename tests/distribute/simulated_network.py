"""The network of the simulated cluster: connections whose frames arrive when the simulation says so.

A frame is encoded by the real codec and lies in the inbox of the other end until the simulation delivers it.
Its payload is read only then, as a socket would read it late: who changes the bytes before `sent` was called
is found out. The first frame each way, the greeting, arrives at once, since who dials waits for it.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from flowrt.errors import UnavailableError
from flowrt.rendezvous.channel.channel import Connection, Listener, Receiver, Transport


class Frame(NamedTuple):
    """``sent`` is called when the bytes of the payload may change; ``copies`` are those of the send."""

    header: bytes
    payload: Sequence[Any]
    copies: Sequence[Any]
    sent: Callable[[], None]


class End(Connection):
    """One end of a connection. Whatever comes after `cut` is lost, also what is still under way."""

    kind = "simulated"

    def __init__(self, network: Network, owner: str, peer: str) -> None:
        self.network, self.owner, self.peer = network, owner, peer
        self.other: End = self
        self.receiver: Receiver | None = None
        self.inbox: deque[Frame | None] = deque()
        """What is on its way here; None, the last: the connection is lost."""
        self.is_cut = self.has_greeted = False

    def send(
        self, header: bytes, payload: Sequence[Any] = (), sent: Callable[[], None] | None = None
    ) -> None:
        if self.is_cut:
            raise UnavailableError(f"the connection to {self.peer} is closed")
        frame = Frame(header, payload, [part.copy() for part in payload], sent or (lambda: None))
        if self.has_greeted:
            self.other.inbox.append(frame)
        else:
            self.has_greeted = True
            self.other.take(frame)

    def start(self, receiver: Receiver) -> None:
        self.receiver = receiver

    def take(self, frame: Frame | None) -> None:
        """Let ``frame`` arrive."""
        assert self.receiver is not None
        if frame is None:
            self.network.ends.remove(self)
            self.is_cut = True
            self.receiver.on_lost(self, UnavailableError("the connection was cut"))
            return
        payload = []
        for part, copy in zip(frame.payload, frame.copies, strict=True):
            assert np.array_equal(part, copy), f"{self.other.owner} changed a tensor that was leaving it"
            payload.append(part.copy())
        frame.sent()
        self.receiver.on_frame(self, frame.header, payload)

    def close(self) -> None:
        """The other end hears of it when what was sent has arrived; nothing arrives here any more."""
        if self.is_cut:
            return
        self.is_cut = True
        self.network.ends.remove(self)
        self.network.forget(self)
        if self.other in self.network.ends:
            self.other.inbox.append(None)

    abort = close


class _Bound(Listener):
    def __init__(self, network: Network, address: str) -> None:
        self.network, self.address = network, address

    def close(self) -> None:
        del self.network.listening[self.address]


class Network:
    """All connections. ``ends`` are those at which something may still arrive."""

    def __init__(self) -> None:
        self.ends: list[End] = []
        self.listening: dict[str, Callable[[Connection], None]] = {}

    def transport(self, owner: str) -> Transport:
        return _From(self, owner)

    def cut(self, end: End, rng: random.Random) -> None:
        """Lose the connection: of what is under way, each way, some of the last frames never arrive."""
        for side in (end, end.other):
            while side.inbox and rng.random() < 0.5:
                self.lose(side, len(side.inbox) - 1)
            side.is_cut = True
            if side in self.ends and (not side.inbox or side.inbox[-1] is not None):
                side.inbox.append(None)

    def lose(self, end: End, position: int) -> None:
        """The frame at ``position`` never arrives; its sender does not know."""
        frame = end.inbox[position]
        del end.inbox[position]
        if frame is not None:
            frame.sent()

    def forget(self, end: End) -> None:
        while end.inbox:
            self.lose(end, 0)

    def kill(self, owner: str, rng: random.Random) -> None:
        """All connections of a task that is dead end; it hears of nothing."""
        for end in [end for end in self.ends if end.owner == owner]:
            self.cut(end, rng)
            self.forget(end)
            self.ends.remove(end)


class _From(Transport):
    """Dials for ``owner``."""

    def __init__(self, network: Network, owner: str) -> None:
        self.network, self.owner = network, owner

    def listen(
        self, address: str, accept: Callable[[Connection], None], is_serving: Callable[[], bool] | None = None
    ) -> Listener:
        self.network.listening[address] = accept
        return _Bound(self.network, address)

    def connect(self, address: str, timeout_s: float) -> Connection:
        accept = self.network.listening.get(address)
        if accept is None:
            raise UnavailableError(f"{address}: connection refused")
        here, there = End(self.network, self.owner, address), End(self.network, address, self.owner)
        here.other, there.other = there, here
        self.network.ends += [here, there]
        accept(there)
        return here
