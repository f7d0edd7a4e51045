"""`CoordinatorServer`: listens for the members of an elastic job, and performs what `Coordinator` decides.

Frames arrive in threads of connections, time passes in a thread of its own; all of them decide and send under
one lock, so that members get messages in the order of the decisions.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import final

from flowrt.base.closing import Closing
from flowrt.distribute.cluster.cluster_spec import counted
from flowrt.distribute.cluster.standstill import Standstill
from flowrt.distribute.cluster.timeouts import connect_timeout_s, liveness
from flowrt.distribute.elastic import coordinator as c
from flowrt.distribute.elastic.elastic_messages import (
    Beat,
    Change,
    Done,
    Epoch,
    HasLeft,
    Join,
    Message,
    Over,
    ReadyForNext,
    decode_message,
    encode_message,
)
from flowrt.errors import DataLossError, UnavailableError
from flowrt.rendezvous.channel.channel import Bytes, Connection, Transport
from flowrt.version import VERSION

TICK_S = 0.1
LAST_CALL_S = 5.0
"""Time that a first group which is large enough waits for more members, since the last one came."""
ENDED = "the flowrt-run of the first host has ended. Start the job again, from its last checkpoint"


@dataclass
class _Connected:
    """A connection, and the member that has joined over it."""

    connection: Connection
    heard: float
    joined: Join | None = None


@final
class CoordinatorServer(Closing):
    """Coordinates a job of ``least`` to ``most`` workers at ``address``, over ``transport``. ``note(text)``
    is called with a line for each change; ``clock()``: seconds of a monotonic clock. Raises as
    `Transport.listen`.
    """

    def __init__(
        self,
        address: str,
        transport: Transport,
        least: int,
        most: int,
        note: Callable[[str], object],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._beats, self._clock, self._next_beat = liveness(), clock, clock()
        self._standstill = Standstill(TICK_S, self._beats.lost_s, clock)
        self._note = note
        self._machine = c.Coordinator(least, most, LAST_CALL_S, connect_timeout_s())
        self._lock = threading.RLock()
        self._numbers = itertools.count(1)
        self._connected: dict[int, _Connected] = {}
        self._closed = threading.Event()
        self._over = threading.Event()
        self.why_failed: str | None = None
        """The reason, once the job is over and has failed."""
        self._decide(c.Ticked(clock()))
        self._listener = transport.listen(address, self._accept)
        self.address = self._listener.address
        self._ticker = threading.Thread(target=self._tick, name="flowrt elastic ticks", daemon=True)
        self._ticker.start()

    @property
    def is_over(self) -> bool:
        return self._over.is_set()

    def wait_until_over(self, timeout_s: float) -> bool:
        """Whether the job is over, ``timeout_s`` seconds from now at the latest."""
        return self._over.wait(timeout_s)

    def own_ended(self) -> None:
        """The workers of this host have ended. If none has ever come, the job fails unless others do so
        within ``FLOWRT_CONNECT_TIMEOUT``.
        """
        with self._lock:
            self._decide(c.OwnEnded())

    def close(self) -> None:
        """End the job: members that are still in it are told so. Idempotent."""
        if self._closed.is_set():
            return
        self._closed.set()
        self._ticker.join()
        with self._lock:
            for number in () if self.is_over else self._connected:
                self._send(number, Over(ENDED))
            connections = [each.connection for each in self._connected.values()]
        for connection in connections:
            connection.close()
        self._listener.close()

    # --- connections

    def _accept(self, connection: Connection) -> None:
        with self._lock:
            number = next(self._numbers)
            self._connected[number] = _Connected(connection, self._clock())
        connection.start(_MemberReceiver(self, number))

    def take(self, number: int, message: Message) -> None:
        """A message of a member. Raises `DataLossError`, which ends the connection, for one out of place."""
        with self._lock:
            found = self._connected.get(number)
            if found is None:
                return
            found.heard = self._clock()
            if isinstance(message, Join):
                self._join(number, found, message)
            elif found.joined is None:
                raise DataLossError(f"elastic job: expected Join first; got {message}")
            else:
                event = _event(number, message)
                if event is not None:
                    self._decide(event)

    def _join(self, number: int, found: _Connected, join: Join) -> None:
        if found.joined is not None:
            raise DataLossError(f"elastic job: expected one Join of {join.name}; got two")
        first = self._at(join.address)
        found.joined = join
        if join.version != VERSION:
            why = f"expected flowrt {VERSION}, which the coordinator has; got {join.version}"
            self._send(number, Over(why))
        elif self.is_over:
            self._send(number, Over(self.why_failed or ""))
        elif first is not None and self._clock() - self._connected[first].heard < self._beats.lost_s / 2:
            twice = "was flowrt-run started twice with one FLOWRT_TASK?"
            self._refuse((number,), f"{join.name} is in this job already, at {join.address}: {twice}")
        else:
            if first is not None:  # its host was lost without a goodbye, and has come again
                self._refuse((first,), why := "another has come at its address")
                self._decide(c.Lost(first, why))
            self._decide(c.Joined(number, join.name, join.host))

    def _at(self, address: str) -> int | None:
        """The member that is reached at ``address``: no two of a group may be."""
        joined = ((number, each.joined) for number, each in self._connected.items())
        return next((number for number, join in joined if join and join.address == address), None)

    def lose(self, number: int, why: str) -> None:
        """A connection has ended."""
        with self._lock:
            if self._connected.pop(number, None) is not None:
                self._decide(c.Lost(number, why))

    def _send(self, number: int, message: Message) -> None:
        found = self._connected.get(number)
        if found is not None:
            with suppress(UnavailableError):  # its loss is reported to the receiver
                found.connection.send(encode_message(message))

    # --- decisions

    def _decide(self, event: c.Event) -> None:
        for action in self._machine.handle(event):
            match action:
                case c.Form():
                    self._form(action)
                case c.Announce(members, why, at_once):
                    self._note(
                        f"{why}; {'the group ends' if at_once else 'a new group after the next commit'}"
                    )
                    for number in members:
                        self._send(number, Change(why, at_once))
                case c.Refuse(members, why):
                    self._refuse(members, why)
                case c.End(members, why):
                    for number in members:
                        self._send(number, Over(why or ""))
                    self.why_failed = why
                    self._over.set()

    def _form(self, form: c.Form) -> None:
        joined = [found.joined for number in form.members if (found := self._connected.get(number))]
        names = [each.name for each in joined if each is not None]
        addresses = [each.address for each in joined if each is not None]
        begin = "without a commit" if form.commit == c.NO_COMMIT else f"from commit {form.commit}"
        workers = counted(len(form.members), "worker")
        self._note(f"epoch {form.epoch}: {workers}, {begin}: {', '.join(names)}")
        for rank, number in enumerate(form.members):
            self._send(number, Epoch(form.epoch, rank, names, addresses, form.commit))

    def _refuse(self, members: tuple[int, ...], why: str) -> None:
        self._note(f"refused: {why}")
        for number in members:
            self._send(number, Over(why))
            found = self._connected.pop(number, None)
            if found is not None:
                found.connection.close()

    # --- time

    def _tick(self) -> None:
        while not self._closed.wait(TICK_S):
            self.tick()

    def tick(self) -> None:
        """Send heartbeats, give up silent members, and let deadlines pass. To be called each `TICK_S` s."""
        now, lost_s = self._clock(), self._beats.lost_s
        stood_s, is_beat = self._standstill.before(now), now >= self._next_beat
        with self._lock:
            for found in self._connected.values():
                found.heard = min(now, found.heard + stood_s)
            silent = [number for number, found in self._connected.items() if now - found.heard > lost_s]
            if is_beat:
                self._next_beat = now + self._beats.heartbeat_s
                for number in [*self._connected]:
                    self._send(number, Beat())
            self._decide(c.Ticked(now - self._standstill.total_s))
        for number in silent:
            with self._lock:
                gone = self._connected.get(number)
            if gone is not None:
                self.lose(number, f"it was silent for {lost_s:g} s")
                gone.connection.abort()


@final
class _MemberReceiver:
    """Receives the frames of a member."""

    def __init__(self, server: CoordinatorServer, number: int) -> None:
        self._server, self._number = server, number

    def on_frame(self, connection: Connection, header: bytes, payload: list[Bytes]) -> None:
        """See `flowrt.rendezvous.channel.channel.Receiver`."""
        self._server.take(self._number, decode_message(header))

    def on_lost(self, connection: Connection, error: UnavailableError) -> None:
        """See `flowrt.rendezvous.channel.channel.Receiver`."""
        self._server.lose(self._number, error.message)


def _event(number: int, message: Message) -> c.Event | None:
    match message:
        case ReadyForNext(epoch, commit, reason):
            return c.Ready(number, epoch, commit, reason)
        case Done(epoch, commit):
            return c.Finished(number, epoch, commit)
        case HasLeft():
            return c.Left(number)
        case Beat():
            return None
    raise DataLossError(f"elastic job: expected a message of a member; got {message}")
