"""`CoordinatorClient`: a worker's end of the connection to the coordinator of its elastic job."""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple, final

from flowrt.base.closing import Closing
from flowrt.device.interruptible import in_slices
from flowrt.distribute.cluster.bind_policy import check_dial
from flowrt.distribute.cluster.standstill import Standstill
from flowrt.distribute.cluster.timeouts import connect_timeout_s, liveness
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
from flowrt.distribute.resolvers.flowrt_variables import ELASTIC
from flowrt.errors import DataLossError, InvalidArgumentError, UnavailableError, copy_to_raise
from flowrt.rendezvous.channel.channel import Bytes, Connection, Transport
from flowrt.rendezvous.channel.security import load_security
from flowrt.rendezvous.transport import new_transport
from flowrt.version import VERSION

DIAL_S, RETRY_S = 5.0, 0.1
"""Timeout of one attempt to reach the coordinator, and the time between two."""


class CoordinatorLostError(UnavailableError):
    """The coordinator of an elastic job was lost. It may come again: flowrt-run starts this worker again."""


class ElasticPlace(NamedTuple):
    """A worker's place in an elastic job, from its launcher: the address of the coordinator, the worker's own
    name and address, and its host, as the coordinator counts failures.
    """

    coordinator: str
    name: str
    host: str
    address: str


def format_place(place: ElasticPlace) -> str:
    """The value of ``FLOWRT_ELASTIC``."""
    return json.dumps(place._asdict())


def read_place(environ: Mapping[str, str]) -> ElasticPlace | None:
    """The place in ``FLOWRT_ELASTIC``; None if it is not set. Raises `InvalidArgumentError`."""
    text = environ.get(ELASTIC)
    if not text:
        return None
    try:
        place = ElasticPlace(**json.loads(text))
        if not all(isinstance(value, str) for value in place):
            raise TypeError("it has values that are no strings")
    except (ValueError, TypeError) as error:
        raise InvalidArgumentError(
            f"{ELASTIC}: expected JSON as flowrt-run sets it; got {text!r}: {error}"
        ) from None
    return place


def connect_to_coordinator(place: ElasticPlace, interrupted: Callable[[str], object]) -> CoordinatorClient:
    """Join the job. ``interrupted(why)`` is called, in another thread, when an epoch is over at once. Raises
    `UnavailableError` if the coordinator is not there within ``FLOWRT_CONNECT_TIMEOUT``, and the errors of
    the transport's security.
    """
    security = load_security(os.environ, Path.home())
    check_dial(place.coordinator, security)
    transport = new_transport(security)
    end = time.monotonic() + connect_timeout_s()
    while True:
        try:
            connection = transport.connect(place.coordinator, DIAL_S)
        except UnavailableError:
            if time.monotonic() + RETRY_S > end:
                raise
            time.sleep(RETRY_S)
        else:
            return CoordinatorClient(place, connection, transport, interrupted)


@final
class CoordinatorClient(Closing):
    """A member. A context manager. All waits raise `UnavailableError` if the coordinator, or this member's
    place in the job, is lost. ``clock()``: seconds of a monotonic clock.
    """

    def __init__(
        self,
        place: ElasticPlace,
        connection: Connection,
        transport: Transport,
        interrupted: Callable[[str], object],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._connection, self._transport, self._interrupted = connection, transport, interrupted
        self._changed = threading.Condition()
        self._epoch: Epoch | None = None
        self._taken = 0
        """Number of the last epoch that was taken."""
        self._change: Change | None = None
        self._over: Over | None = None
        self._error: UnavailableError | None = None
        self._beats, self._clock, self._heard = liveness(), clock, clock()
        self._standstill = Standstill(*self._beats, clock)
        self._closed = threading.Event()
        connection.start(self)
        connection.send(encode_message(Join(VERSION, place.name, place.host, place.address)))
        self._beater = threading.Thread(target=self._beat, name="flowrt elastic beats", daemon=True)
        self._beater.start()

    @property
    def change(self) -> str | None:
        """The reason if the current epoch is over, or will be at the next commit; else None."""
        with self._changed:
            if self._over is None:
                self._check()
            if self._over is not None and self._over.why:
                return self._over.why
            return self._change.why if self._change is not None else None

    @property
    def is_broken(self) -> bool:
        """Whether no step of the current epoch can succeed."""
        with self._changed:
            is_out = self._error is not None or (self._over is not None and self._over.why != "")
            return is_out or (self._change is not None and self._change.at_once)

    def next_epoch(self) -> Epoch | None:
        """Wait for the next epoch; None if the job has ended instead."""

        def is_there(slice_s: float) -> bool:
            with self._changed:
                self._changed.wait_for(self._has_news, slice_s)
                return self._has_news()

        in_slices(is_there, None)
        with self._changed:
            if self._over is None:
                self._check()
            if self._over is not None and self._over.why:
                raise UnavailableError(f"elastic job: {self._over.why}")
            if self._over is not None:
                return None
            assert self._epoch is not None
            self._taken = self._epoch.number
            return self._epoch

    def is_ready(self, commit: int, reason: str) -> None:
        """This member's epoch has ended."""
        self._send(ReadyForNext(self._taken, commit, reason))

    def is_done(self, commit: int) -> None:
        """Report that nothing is left to do; `next_epoch` tells whether the others agree."""
        self._send(Done(self._taken, commit))

    def has_left(self) -> None:
        self._send(HasLeft())

    def close(self) -> None:
        """Idempotent."""
        self._closed.set()
        self._connection.close()
        self._beater.join()

    # --- the connection

    def on_frame(self, connection: Connection, header: bytes, payload: list[Bytes]) -> None:
        """See `flowrt.rendezvous.channel.channel.Receiver`."""
        message = decode_message(header)
        with self._changed:
            self._heard = self._clock()
            match message:
                case Epoch():
                    self._epoch, self._change = message, None
                case Change():
                    self._change = message
                case Over():
                    self._over = message
                case Beat():
                    return
                case _:
                    raise DataLossError(f"elastic job: expected a message of the coordinator; got {message}")
            self._changed.notify_all()
        if isinstance(message, Change) and message.at_once:
            self._interrupted(message.why)
        if isinstance(message, Over) and message.why:
            self._interrupted(message.why)

    def on_lost(self, connection: Connection, error: UnavailableError) -> None:
        """See `flowrt.rendezvous.channel.channel.Receiver`."""
        self._lose(error.message)

    def _lose(self, why: str) -> None:
        with self._changed:
            is_first, is_over = self._error is None, self._over is not None
            self._error = self._error or CoordinatorLostError(
                f"elastic job: the coordinator was lost: {why}. Its flowrt-run was killed, cannot be reached "
                "any more, or has given up this worker after a silence. If no worker is left, start the job "
                "again, from its last checkpoint"
            )
            self._changed.notify_all()
        if is_first and not is_over:
            self._interrupted("the coordinator was lost")

    def _has_news(self) -> bool:
        is_new = self._epoch is not None and self._epoch.number > self._taken
        return is_new or self._over is not None or self._error is not None

    def _check(self) -> None:
        if self._error is not None:
            raise copy_to_raise(self._error)

    def _send(self, message: Message) -> None:
        with suppress(UnavailableError):  # the next wait raises it
            self._connection.send(encode_message(message))

    def _beat(self) -> None:
        while not self._closed.wait(self._beats.heartbeat_s):
            self.beat()

    def beat(self) -> None:
        """Send a heartbeat, and give up a coordinator that is silent. To be called each
        ``FLOWRT_HEARTBEAT`` seconds.
        """
        now = self._clock()
        if stood_s := self._standstill.before(now):
            self._heard = min(now, self._heard + stood_s)
        self._send(Beat())
        if now - self._heard > self._beats.lost_s:
            self._lose(f"it was silent for {self._beats.lost_s:g} s")
