"""`Mesh`: a connection between each two ranks of a group, over the transports of clusters.

    DATA     in order; queued at the other rank until received
    TAGGED   the same for each tag: received in any order of tags, by any thread
    ABORT    the error that has ended the group on another rank: raised at once, in any wait
    (lost)   the process or the network of the other rank died: raised in waits for that rank

The ranks are connected by `flowrt.distribute.collectives.mesh_forming`.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from flowrt.device.interruptible import in_slices
from flowrt.distribute.collectives.membership import Membership, lost_rank, missing
from flowrt.distribute.collectives.tagged_messages import Parked, TaggedMessages
from flowrt.distribute.wire.messages import decode_status, encode_status
from flowrt.distribute.wire.wait_log import WaitLog
from flowrt.errors import DataLossError, OpError, UnavailableError, copy_to_raise
from flowrt.graph.resources.step_context import check_step, wait_until
from flowrt.protos import cluster_pb2 as pb
from flowrt.rendezvous.channel.channel import Bytes, Connection, Listener
from flowrt.rendezvous.channel.framing import Repeated

COPIED_BYTES = 64 << 10
"""Arrays up to this size are copied, and may be modified at once."""

LINGER_S = 5.0
"""Time that a rank that refuses, or leaves, stays for what it still sends to the others."""

DATA, TAGGED, ABORT = b"D", b"T", b"A"
"""The first byte of a frame's header."""


class Arrived(NamedTuple):
    """A frame of another rank: the text of its call, and arrays of bytes."""

    text: bytes
    arrays: Sequence[Bytes]

    @property
    def payload(self) -> Bytes | None:
        """The first array, if there is one."""
        return self.arrays[0] if self.arrays else None


Item: TypeAlias = Arrived | OpError | None
"""Inbox item: a message; the loss of the rank; None: check the mesh's error."""


class Mesh:
    """The links of one rank. `send`, `receive` and `flush` are one thread's; any may call the others."""

    def __init__(self, membership: Membership) -> None:
        self.membership = membership
        self._on_abort: list[Callable[[OpError], object]] = []
        self._lost: dict[int, OpError] = {}
        self._listener: Listener | None = None
        self._error: OpError | None = None
        self._changed = threading.Condition()
        self._connections: dict[int, Connection] = {}
        self._refused: list[Connection] = []
        self._inboxes: dict[int, queue.SimpleQueue[Item]] = {
            rank: queue.SimpleQueue() for rank in membership.others
        }
        self._tagged = TaggedMessages()
        self._headers: dict[str, Repeated] = {}
        self._sent: queue.SimpleQueue[None] = queue.SimpleQueue()
        self._unsent = 0

    # --- frames

    def send(self, rank: int, text: bytes, *arrays: Any) -> None:
        """Send ``arrays``, contiguous and flat, which may be changed after `flush`. Raises
        `UnavailableError` where ``rank`` was lost.
        """
        payload = [array.view(np.uint8) for array in arrays]
        sent = None
        if sum(view.nbytes for view in payload) <= COPIED_BYTES:
            payload = [view.copy() for view in payload]
        else:
            sent = self._count_sent
            self._unsent += 1
        try:
            self._connections[rank].send(DATA + text, payload, sent)
        except UnavailableError as error:
            raise copy_to_raise(self._error or self.lose(rank, error)) from None

    def receive(self, rank: int, doing: str) -> Arrived:
        """The next frame of ``rank``. Raises `UnavailableError` where that was lost, the error that the mesh
        was aborted with, and `DeadlineExceededError` after the membership's ``timeout_s``.
        """
        found = self.take(rank)
        if found is None:
            raise missing(self.membership, [rank], doing)
        return found

    def take(self, rank: int) -> Arrived | None:
        """The next frame of ``rank``, see `receive`; None after ``timeout_s``."""
        inbox = self._inboxes[rank]
        found: list[Item] = []
        if not in_slices(partial(_take, inbox, found), self.membership.timeout_s):
            return None
        item = found[0]
        if self._error is None and isinstance(item, Arrived):
            return item
        inbox.put(item)  # for the next call
        error = self._error or item
        assert isinstance(error, OpError)
        raise copy_to_raise(error)

    # --- tagged messages

    def send_tagged(self, rank: int, tag: str, data: bytes) -> None:
        """Send ``data``. Any thread may call it. Raises `UnavailableError` where ``rank`` was lost."""
        try:
            header = self._headers.get(tag) or self._new_header(tag)
            self._connections[rank].send(header, (memoryview(data),))
        except UnavailableError as error:
            raise copy_to_raise(self._error or self.lose(rank, error)) from None

    def receive_tagged(self, rank: int, tag: str) -> Bytes:
        """The bytes of the next message of ``rank`` with this ``tag``. Raises as `receive`, and the error
        that ends the thread's step. Any thread may call it.
        """
        key = rank, self._headers.get(tag) or self._new_header(tag)
        check_step()
        found = self._tagged.take(key)
        if found is not None:
            return found
        lead = self._connections[rank].lead() or Parked()
        waiter = self._tagged.expect(key, lead.wake)

        def is_there() -> bool:
            if waiter.payload is not None:
                return True
            error = self._error or self._lost.get(rank)
            if error is not None:
                raise copy_to_raise(error)
            return False

        try:
            if not wait_until(is_there, lead.wait, self.membership.timeout_s):
                raise missing(self.membership, [rank], tag)
        except BaseException:
            self._tagged.leave(key, waiter)
            raise
        finally:
            lead.release()
        assert waiter.payload is not None
        return waiter.payload

    def _new_header(self, tag: str) -> Repeated:
        """The header of the messages with ``tag``, the same in all steps from now on."""
        return self._headers.setdefault(tag, Repeated(TAGGED + tag.encode()))

    def forget_tagged(self) -> None:
        """Drop all messages that have arrived and were not received."""
        self._tagged.forget()

    # --- flushing

    def flush(self, doing: str) -> None:
        """Return when all that was sent may be changed. Raises `DeadlineExceededError`."""
        while self._unsent:
            if not in_slices(partial(_take, self._sent, []), self.membership.timeout_s):
                raise missing(self.membership, self.membership.others, doing)
            self._unsent -= 1

    def check(self) -> None:
        """Raise the error that the mesh was aborted with, or the loss of a rank."""
        for error in (self._error, *self._lost.values()):
            if error is not None:
                raise copy_to_raise(error)

    @property
    def lost(self) -> Mapping[int, OpError]:
        """The ranks that were lost, and how."""
        return self._lost

    def kind_of(self, rank: int) -> str:
        """Kind of the link to ``rank``, as `Connection.kind`."""
        return self._connections[rank].kind

    def kinds(self) -> set[str]:
        """Kinds of the links."""
        return {connection.kind for connection in self._connections.values()}

    # --- the end

    def on_abort(self, tell: Callable[[OpError], object]) -> None:
        """Call ``tell`` once, in any thread, with the error that the mesh was, or will be, aborted with."""
        with self._changed:
            self._on_abort.append(tell)
            error = self._error
        if error is not None:
            tell(error)

    def abort(self, error: OpError) -> None:
        """Send the error to all ranks, and wake waits here. The first error is kept."""
        self._end(error)
        status = encode_status(error, self.membership.name_of(self.membership.rank)).SerializeToString()
        for connection in self._links():
            with suppress(UnavailableError):  # lost ranks need not be notified
                connection.send(ABORT + status)

    def close(self) -> None:
        """End all connections; sent frames still arrive. Idempotent."""
        for connection in self._links():
            connection.close()
        if self._listener is not None:
            self._listener.close()

    # --- callbacks of the links, in reader threads

    def arrived(self, rank: int, header: bytes, payload: list[Bytes]) -> None:
        """Handle a frame of ``rank``. Raises `DataLossError` for one that is not a frame of a mesh."""
        kind = header[:1]
        if kind == TAGGED:
            self._tagged.put((rank, header), payload[0])
        elif kind == DATA:
            self._inboxes[rank].put(Arrived(header[1:], payload))
        elif kind == ABORT:
            error = decode_status(pb.Status.FromString(header[1:]))
            self._end(error)
        else:
            raise DataLossError(f"{self.membership}: expected a frame of a rank; got one of kind {kind!r}")

    def lose(self, rank: int, why: OpError) -> OpError:
        """Record the loss of ``rank``, after its sent frames; returns the error for waits for it."""
        with self._changed:
            error = self._lost.setdefault(rank, lost_rank(self.membership, rank, why))
            self._changed.notify_all()
        self._tagged.wake_all()
        self._inboxes[rank].put(error)
        return error

    def _count_sent(self) -> None:
        self._sent.put(None)

    def _end(self, error: OpError) -> None:
        with self._changed:
            is_first, self._error = self._error is None, self._error or error
            self._changed.notify_all()
        self._tagged.wake_all()
        for inbox in self._inboxes.values():
            inbox.put(None)
        for tell in self._on_abort if is_first else ():
            tell(error)

    def _links(self) -> list[Connection]:
        with self._changed:
            return [*self._connections.values(), *self._refused]

    # --- forming

    def listens(self, listener: Listener) -> None:
        """Close ``listener`` with the mesh: the connections that it accepted end with it."""
        self._listener = listener

    def add(self, rank: int, connection: Connection, greeting: bytes = b"") -> bool:
        """Send ``greeting`` before anything else; False, without sending, if ``rank`` is already connected.
        Raises `UnavailableError`.
        """
        with self._changed:
            if rank in self._connections:
                return False
            if greeting:
                connection.send(greeting)
            self._connections[rank] = connection
            self._changed.notify_all()
            return True

    def refuse(self, error: OpError, connection: Connection) -> None:
        """End the forming of the mesh with ``error``, which was sent over ``connection``: it arrives before
        the listener that accepted it is closed.
        """
        with self._changed:
            self._refused.append(connection)
            self._changed.notify_all()
        self._end(error)

    def check_forming(self) -> None:
        """Raise the error that the mesh was refused or aborted with, or the loss of a connected rank: the
        mesh can no longer be completed.
        """
        with self._changed:
            lost = [error for rank, error in self._lost.items() if rank in self._connections]
            error = next((error for error in (self._error, *lost) if error is not None), None)
        if error is not None:
            raise copy_to_raise(error)

    def wait_until_formed(self, end: float, log: WaitLog) -> None:
        """Wait until all ranks are connected. Raises `DeadlineExceededError`, with the missing ranks, at
        ``end`` of ``time.monotonic``, and the error that the mesh was refused or aborted with.
        """
        with self._changed:
            while not self._changed.wait_for(self._is_formed, min(1.0, max(0.0, end - time.monotonic()))):
                if time.monotonic() >= end:
                    break
                log.waits_for(self.awaiting(self._inboxes.keys() - self._connections.keys()))
            if self._error is not None:
                if self._refused:
                    self._changed.wait_for(self._have_all_come, min(LINGER_S, end - time.monotonic()))
                raise copy_to_raise(self._error)
            absent = self._inboxes.keys() - self._connections.keys()
        if absent:
            raise missing(self.membership, absent, "joining")

    def awaiting(self, ranks: Iterable[int]) -> str:
        """This rank and those that it waits for, for the log."""
        names = ", ".join(map(self.membership.name_of, sorted(ranks)))
        return f"{self.membership}: {self.membership.name_of(self.membership.rank)} for {names}"

    def _is_formed(self) -> bool:
        return self._error is not None or len(self._connections) == len(self._inboxes)

    def _have_all_come(self) -> bool:
        return len(self._connections) + len(self._refused) >= len(self._inboxes)


def _take(source: queue.SimpleQueue[Any], found: list[Any], timeout_s: float) -> bool:
    """Whether there is an item of ``source`` within ``timeout_s`` seconds; it is put into ``found``."""
    try:
        found.append(source.get(timeout=timeout_s))
    except queue.Empty:
        return False
    return True
