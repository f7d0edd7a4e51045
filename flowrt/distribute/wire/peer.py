"""`Peer`: the other end of a connection, with requests in both directions.

    peer.ask(message, done) --Frame--> owner.asked(peer, request_id, message)
    done(message, error)    <--Frame-- peer.answer(request_id, message)

The first request of a connection is `Hello`, in both directions: identity, incarnation, protocol version.
When the connection is lost, all pending requests end with the same error, and the owner is notified.

The end that accepted the connection says, at random, where the numbers of the other one's requests begin. So
requests that were recorded are refused on any other connection.

An unanswered request is resent periodically under its number, to replace a lost frame. A duplicate is
executed once (`ResponseCache`).
"""

from __future__ import annotations

import functools
import itertools
import secrets
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple, Protocol, TypeAlias, final

import flowrt.version
from flowrt.distribute.wire.messages import (
    PROTOCOL,
    Frame,
    Message,
    address_of,
    decode,
    encode,
    encode_error,
    lost,
    num_answers,
)
from flowrt.distribute.wire.response_cache import ResponseCache, State
from flowrt.errors import (
    AbortedError,
    DataLossError,
    DeadlineExceededError,
    FailedPreconditionError,
    InvalidArgumentError,
    OpError,
    UnavailableError,
    copy_to_raise,
)
from flowrt.protos import cluster_pb2 as pb
from flowrt.rendezvous.channel.channel import Bytes, Connection, Transport
from flowrt.rendezvous.channel.checked_frames import RepeatedDamageError

Done: TypeAlias = Callable[[Message | None, OpError | None], object]
"""``done(message, None)`` or ``done(None, error)``, called once, in a reader thread or by the thread that
detected the loss.
"""


DRAINED = "it was told to drain, and has ended"
"""The reason for the loss of a peer that said so."""

MAX_REPEATED = 64 << 10
"""Bytes of a request that is kept to be repeated. Larger feeds, constants and graphs are sent once."""

SETTLED_AT_ONCE = 64
"""Number of received answers acknowledged by one message: acknowledging each takes 2 us."""


NUMBER_BITS = 32
"""Requests of a connection have numbers of which the upper bits are the connection's."""


class Owner(Protocol):
    """Callbacks of the peers of one task or client. Called in reader threads."""

    def hello(self) -> Any:
        """This end's introduction: a `pb.Hello`."""

    def greeted(self, peer: Peer, hello: Any) -> None:
        """Handle the other end's hello. Raises an error to refuse the connection."""

    def asked(self, peer: Peer, request_id: int, message: Message) -> None: ...

    def lost(self, peer: Peer, error: OpError) -> None: ...


@final
class Reply:
    """Pending reply to a request, for a waiting thread."""

    def __init__(self) -> None:
        self.request_id = 0
        self._locked = threading.Lock()  # until it arrives; an Event takes 10 us more
        self._locked.acquire()
        self._message: Message | None = None
        self._error: OpError | None = None

    def settle(self, message: Message | None, error: OpError | None) -> None:
        """See `Done`. Called once."""
        self._message, self._error = message, error
        self._locked.release()

    def is_there(self, timeout_s: float) -> bool:
        """Block until it arrives, at most ``timeout_s`` seconds. For one thread, until it returns True."""
        return self._locked.acquire(timeout=timeout_s)

    def open(self) -> Message:
        """The reply. Raises the error sent instead."""
        if self._message is None:
            raise copy_to_raise(self._error or UnavailableError("no answer"))
        return self._message


class TensorAnswer(NamedTuple):
    """The answer to a request for a tensor; ``sent()`` is called when ``value`` may be changed again."""

    request_id: int
    value: Any
    sent: Callable[[], None]


class _Asked:
    """A request without an answer: ``frame`` to be repeated, if it is small; ``age`` in calls of `repeat`."""

    __slots__ = ("age", "done", "header")

    def __init__(self, done: Done) -> None:
        self.done, self.age = done, 0
        self.header: bytes | None = None


@final
class Peer:
    """Thread-safe. ``name``: the other end's name after its hello, its address before."""

    def __init__(self, connection: Connection, owner: Owner) -> None:
        self.connection, self._owner = connection, owner
        self.name, self.token = connection.peer, ""
        """``token`` is the owner's: no two peers have one."""
        self.incarnation = 0
        self.heard_at = time.monotonic()
        self._ids = itertools.count(1)
        self._numbers_from = 0
        """First number of the other end's requests, if that end dialled."""
        self._lock = threading.Lock()
        self._waiting: dict[int, _Asked] = {}
        self._settled: list[int] = []
        """Received answers not acknowledged yet."""
        self._settles_now = False
        self._error: OpError | None = None
        self._farewell = ""
        """Reason for which the other end will be gone, if it has told it."""
        self.is_lost = False
        """Whether requests fail: set by the first that did, before the reader has reported the loss."""
        self._is_known = False
        self._early: list[tuple[int, Message]] | None = None
        """Requests of the other end that arrived while this end waits for its hello."""
        self._cache = ResponseCache()

    # --- asking

    def ask(self, message: Message, done: Done, request_id: int | None = None) -> None:
        """Send a request, under a number of `next_id`."""
        self._send(message, {request_id or self.next_id(): done})

    def ask_all(self, message: Message, dones: Sequence[Done]) -> None:
        """Send a request that has an answer for each of ``dones``, numbered on from the request."""
        with self._lock:
            ids = [next(self._ids) for _ in dones]
        self._send(message, dict(zip(ids, dones, strict=True)))

    def next_id(self) -> int:
        """A number for a request."""
        with self._lock:
            return next(self._ids)

    def _send(self, message: Message, dones: Mapping[int, Done]) -> None:
        asked = {number: _Asked(done) for number, done in dones.items()}
        with self._lock:
            error = self._error
            if error is None:
                self._waiting.update(asked)
                settled = self._take_settled()
        if error is not None:
            for done in dones.values():
                done(None, error)
            return
        try:
            frame = encode(next(iter(dones)), message, settled=settled)
            if not frame.payload and len(frame.header) <= MAX_REPEATED:
                for request in asked.values():
                    request.header = frame.header
            self.connection.send(*frame)
        except OpError as failure:
            if isinstance(failure, UnavailableError):  # the loss, seen before the reader has seen it
                self.is_lost = True
                failure = self._error or lost(self.name, failure.message)
            for number in dones:
                self._settle(number, None, failure)

    def repeat(self) -> None:
        """Resend requests unanswered since the last call but one, two, four, eight ...; called regularly."""
        headers: dict[bytes, None] = {}
        with self._lock:
            self._settles_now = True
            for asked in self._waiting.values():
                if asked.age & (asked.age - 1) == 0 < asked.age and asked.header is not None:
                    headers[asked.header] = None
                asked.age += 1
        for header in headers:
            with suppress(OpError):  # the reader sees the loss
                self.connection.send(header)

    def wait_for(self, message: Message, timeout_s: float) -> Message:
        """Ask, and block until the answer is there. Raises its error, `DeadlineExceededError` after
        ``timeout_s`` seconds.
        """
        reply = Reply()
        self.ask(message, reply.settle)
        if not reply.is_there(timeout_s):
            raise DeadlineExceededError(f"{self.name}: no answer within {timeout_s:.1f} s")
        return reply.open()

    def greet(self, timeout_s: float) -> None:
        """Exchange hellos. Raises `FailedPreconditionError` for another protocol."""
        self._early = []
        answer = self.wait_for(Message(self._owner.hello()), timeout_s)
        self._check_hello(answer.body)
        with self._lock:
            self._ids = itertools.count(answer.body.numbers_from + 1)
        while (early := self._next_early()) is not None:
            self._asked(*early)

    def _next_early(self) -> tuple[int, Message] | None:
        with self._lock:
            if self._early:
                return self._early.pop(0)
            self._early = None
            return None

    # --- answering

    def answer(
        self,
        request_id: int,
        message: Message | None,
        error: OpError | None,
        sent: Callable[[], None] | None = None,
    ) -> None:
        """``sent`` is called when the bytes of the message's tensors may be changed again. Nothing happens
        when the peer is lost. Raises `UnimplementedError` for a tensor that cannot travel; nothing was sent
        then.
        """
        try:
            if message is None:
                frame = encode_error(
                    request_id, error or UnavailableError("no answer"), self._owner.hello().task
                )
            else:
                frame = encode(request_id, message, is_answer=True)
        except OpError:
            if sent is not None:
                sent()
            raise
        with self._lock:
            is_kept = self._cache.answer((request_id,), frame)
        if not is_kept:
            sent = functools.partial(self._has_left, request_id, sent)
        try:
            self.connection.send(*frame, sent if frame.payload else None)
        except OpError:
            if sent is not None:
                sent()
            return
        if sent is not None and not frame.payload:
            sent()

    def answer_together(self, answers: Sequence[TensorAnswer]) -> None:
        """Answer requests for tensors, small ones, by one message. Nothing happens when the peer is lost."""
        ids, values = [each.request_id for each in answers], [each.value for each in answers]
        frame = encode(ids[0], Message(pb.Done(), values), is_answer=True, also=ids[1:])
        with self._lock:
            self._cache.answer(ids, frame)
        with suppress(OpError):  # the reader sees the loss
            self.connection.send(*frame)
        for each in answers:
            each.sent()

    def _has_left(self, request_id: int, sent: Callable[[], None] | None) -> None:
        with self._lock:
            self._cache.sent(request_id)
        if sent is not None:
            sent()

    # --- callbacks of the connection

    def on_frame(self, connection: Connection, header: bytes, payload: list[Bytes]) -> None:
        """See `flowrt.rendezvous.channel.channel.Receiver`."""
        self.heard_at = time.monotonic()
        try:
            request_id, is_answer, message, error, settled, also = decode(header, payload)
        except OpError as failure:
            self._refuse(header, failure)
            return
        if settled:
            with self._lock:
                self._cache.settle(settled)
        if also:
            assert message is not None
            for number, tensor in zip((request_id, *also), message.tensors, strict=True):
                self._settle(number, Message(message.body, (tensor,)), None)
        elif is_answer:
            self._settle(request_id, message, error)
        elif message is None:
            raise InvalidArgumentError("message: expected a request; got an error")
        elif type(message.body) is pb.Hello:
            self._answer_hello(request_id, message.body)
        elif self._numbers_from and request_id >> NUMBER_BITS != self._numbers_from >> NUMBER_BITS:
            self.answer(request_id, None, _of_another_connection(request_id))
        elif self._is_repeated(request_id, message):
            pass
        elif not self._is_early(request_id, message):
            self._asked(request_id, message)

    def _is_early(self, request_id: int, message: Message) -> bool:
        """Whether the request must wait until `greet` has received the hello."""
        if self._early is None:
            return False
        with self._lock:
            early = self._early  # `greet` may have finished
            if early is not None:
                early.append((request_id, message))
            return early is not None

    def _asked(self, request_id: int, message: Message) -> None:
        if not self._is_known:
            self.answer(request_id, None, FailedPreconditionError("expected Hello before anything else"))
        elif type(message.body) is pb.TaskStatus:  # unasked: it drains, and then it ends
            self._farewell = DRAINED
        elif type(message.body) is pb.ReadClock:
            self.answer(request_id, Message(pb.ClockReading(nanos=time.time_ns())), None)
        else:
            self._owner.asked(self, request_id, message)

    def on_lost(self, connection: Connection, error: UnavailableError) -> None:
        """See `flowrt.rendezvous.channel.channel.Receiver`."""
        is_damaged = isinstance(error.__cause__, RepeatedDamageError)
        self.fail(error.message, DataLossError if is_damaged else UnavailableError)

    def fail(self, reason: str, kind: type[OpError] = UnavailableError) -> None:
        """The peer is gone: notify the owner, then fail all pending requests. Once. In this order, since a
        failed request may be repeated: by then the owner has dropped the peer.
        """
        with self._lock:
            if self._error is not None:
                return
            self._error = error = lost(self.name, self._farewell or reason, kind)
            self.is_lost = True
            waiting, self._waiting = self._waiting, {}
        self._owner.lost(self, error)
        for asked in waiting.values():
            asked.done(None, error)

    def close(self, reason: str) -> None:
        """End the connection from this side."""
        self.connection.close()
        self.fail(reason)

    # ---

    def _take_settled(self) -> Sequence[int]:
        """Acknowledgements for the next request: usually none."""
        if not self._settles_now and len(self._settled) < SETTLED_AT_ONCE:
            return ()
        settled, self._settled, self._settles_now = self._settled, [], False
        return settled

    def _is_repeated(self, first: int, message: Message) -> bool:
        """Whether a request is a duplicate. Its answers are resent, if there are any."""
        numbers = range(first, first + num_answers(message))
        with self._lock:
            known = [self._cache.begin(number) for number in numbers]
        if known[0] is None:
            return False
        for number, what in zip(numbers, known, strict=True):
            if what is State.DROPPED:
                gone = AbortedError(f"request {number} was already answered; the answer was not kept")
                self.answer(number, None, gone)
        frames = {id(what): what for what in known if isinstance(what, Frame)}  # one may answer several
        for frame in frames.values():
            with suppress(OpError):  # the reader sees the loss
                self.connection.send(*frame)
        return True

    def _settle(self, request_id: int, message: Message | None, error: OpError | None) -> None:
        with self._lock:
            asked = self._waiting.pop(request_id, None)
            if asked is None:  # a duplicate answer
                return
            self._settled.append(request_id)
        asked.done(message, error)

    def _refuse(self, header: bytes, failure: OpError) -> None:
        """A message that cannot be taken ends its request, and not the connection of all others."""
        request_ids, is_answer = address_of(header)
        for request_id in request_ids:
            if is_answer:
                self._settle(request_id, None, failure)
            else:
                self.answer(request_id, None, failure)

    def _answer_hello(self, request_id: int, hello: Any) -> None:
        try:
            self._check_hello(hello)
        except OpError as error:
            self.answer(request_id, None, error)
            return
        own = pb.Hello()
        own.CopyFrom(self._owner.hello())
        if not self._numbers_from:  # the hello may come again
            self._numbers_from = secrets.randbits(NUMBER_BITS - 1) + 1 << NUMBER_BITS
        own.numbers_from = self._numbers_from
        self.answer(request_id, Message(own), None)

    def _check_hello(self, hello: Any) -> None:
        if hello.protocol != PROTOCOL:
            raise FailedPreconditionError(
                f"expected protocol {PROTOCOL} (flowrt {flowrt.version.VERSION}); got {hello.protocol} "
                f"(flowrt {hello.version}) from {hello.task or self.name}. Install one version everywhere"
            )
        name = hello.task or self.name
        if self._is_known and (name, hello.incarnation) != (self.name, self.incarnation):
            raise FailedPreconditionError(f"expected {self.name} to keep its identity; got a hello of {name}")
        self.name, self.incarnation = name, hello.incarnation
        self._owner.greeted(self, hello)
        self._is_known = True


def _of_another_connection(number: int) -> OpError:
    return FailedPreconditionError(
        f"expected a request of this connection; got number {number}, of another one: was it recorded there?"
    )


def dial(transport: Transport, address: str, owner: Owner, timeout_s: float) -> Peer:
    """Connect to ``address`` and exchange hellos. Raises `UnavailableError` with the reason."""
    end = time.monotonic() + timeout_s
    connection = transport.connect(address, timeout_s)
    peer = Peer(connection, owner)
    try:
        connection.start(peer)
        peer.greet(max(0.1, end - time.monotonic()))
    except BaseException:
        peer.close("rejected")
        raise
    return peer
