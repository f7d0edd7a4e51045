"""`LocalRendezvous`: the table and a lock, for the programs of one process.

Decide under the lock, act outside it: a waiter is called in the thread that sent, aborted or cancelled, after
the lock is released, so it may call the rendezvous itself. The lock is not reentrant: a signal handler must
not call in here, since the thread that it interrupts may hold the lock.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Any, TypeAlias, final

from flowrt.device.interruptible import acquire
from flowrt.errors import DeadlineExceededError, InternalError, InvalidArgumentError, OpError, copy_to_raise
from flowrt.rendezvous.matching.table import Action, Deliver, Fail, Pending, RendezvousTable

Done: TypeAlias = Callable[[Any, OpError | None], object]
"""``done(value, None)`` or ``done(None, error)``, called once, in the thread that settles the receive."""

MAX_LISTED = 10
"""Channels that an error message lists; a large step may have thousands."""


class LocalRendezvous:
    """One step's rendezvous. Thread-safe; `send` never blocks, only `recv` does.

    After `abort`, `send`, `recv` and `try_recv` raise a copy of the first abort's error, and `recv_async`
    passes the error to ``done``. Keys are any hashables; the executor makes them with `create_key`.
    """

    # Python 3.11, 2 shared cores: a `send` with no waiter takes 0.30 us, a `try_recv` 0.30, or 0.25 without a
    # value; 0.1 of it is the table, the rest the lock and the calls. A `recv_async` and its matching `send`
    # take 2.5 us together.

    __slots__ = ("_lock", "_table")

    def __init__(self, table: Any = None) -> None:
        """``table``: an alternative to `RendezvousTable`, with actions that `_perform` supports."""
        self._lock = threading.Lock()
        self._table: Any = RendezvousTable[Done]() if table is None else table

    def send(self, key: Hashable, value: Any) -> None:
        """Hand ``value`` to the oldest receive of ``key``, or keep it for the next one."""
        with self._lock:
            actions = self._table.send(key, value)
        if actions:
            self._perform(actions)

    def recv_async(self, key: Hashable, done: Done) -> None:
        """Call ``done`` with the oldest value of ``key``, now or when it is sent."""
        with self._lock:
            actions = self._table.recv(key, done)
        self._perform(actions)

    def recv(self, key: Hashable, timeout_s: float | None = None) -> Any:
        """The oldest value of ``key``; blocks until it is sent.

        Raises `DeadlineExceededError` after ``timeout_s`` seconds. The receive is withdrawn then, as it is on
        Ctrl-C: a value that is sent later stays for the next receive.
        """
        if timeout_s is not None and not timeout_s >= 0:
            raise InvalidArgumentError(f"recv {key}: expected timeout_s >= 0 or None; got {timeout_s}")
        mailbox = _Mailbox()
        try:
            self.recv_async(key, mailbox)
            arrived = mailbox.wait(timeout_s)
        except BaseException:
            self.cancel(key, mailbox)
            raise
        if not arrived:
            if self.cancel(key, mailbox):
                raise DeadlineExceededError(
                    f"recv {key}: expected the value within {timeout_s} s; got none. "
                    f"Also pending: {_listed(self.pending()) or 'nothing'}"
                )
            mailbox.wait(None)  # a sender met this receive in its last moment and is about to deliver
        return mailbox.open()

    def try_recv(self, key: Hashable, default: Any = None) -> Any:
        """The oldest value of ``key``, or ``default`` if none is there; never blocks."""
        with self._lock:
            return self._table.take(key, default)

    def take_or_wait(self, key: Hashable, done: Done) -> Any:
        """The oldest value of ``key``; or None, and ``done`` is called when it is sent: before this returns,
        with the error, if the step was aborted.
        """
        with self._lock:
            actions = self._table.recv(key, done)
        if actions and type(actions[0]) is Deliver:
            return actions[0].value
        if actions:
            self._perform(actions)
        return None

    def cancel(self, key: Hashable, done: Done) -> bool:
        """Withdraw one receive, the oldest of ``key`` with this ``done``, which gets a `CancelledError`.

        Returns False, and does nothing, if there is none: it was settled before, or was not made yet. (To end
        receives that others may still make, abort.)
        """
        with self._lock:
            actions = self._table.cancel(key, done)
        self._perform(actions)
        return bool(actions)

    def abort(self, error: OpError) -> None:
        """End the step: wake all waiters, drop all values, fail all later calls, with ``error``."""
        with self._lock:
            actions = self._table.abort(error)
        self._perform(actions)

    def pending(self) -> list[Pending]:
        """Values sent and not received, and keys waited for."""
        with self._lock:
            pending: list[Pending] = self._table.pending()
        return pending

    def _perform(self, actions: Sequence[Any]) -> None:
        """Execute the table's actions; the lock is not held."""
        perform(actions)

    def check_empty(self) -> None:
        """Raise `InternalError`, which lists leftovers: there must be none at the end of a step."""
        with self._lock:
            self._table.check()
            left = self._table.pending()
        if left:
            raise InternalError(f"rendezvous: expected nothing left at the step's end; got {_listed(left)}")


@final
class _Mailbox:
    """Wait of one blocked `recv`: a lock that is held until the value arrives."""

    __slots__ = ("_error", "_locked", "_value")

    def __init__(self) -> None:
        self._locked = threading.Lock()
        self._locked.acquire()
        self._value: Any = None
        self._error: OpError | None = None

    def __call__(self, value: Any, error: OpError | None) -> None:
        self._value, self._error = value, error
        self._locked.release()

    def wait(self, timeout_s: float | None) -> bool:
        """Whether the value arrived in time."""
        return acquire(self._locked, timeout_s)

    def open(self) -> Any:
        if self._error is not None:
            raise copy_to_raise(self._error)
        return self._value


def perform(actions: Iterable[Action[Done]]) -> None:
    """Call every waiter, then raise the first error of one: it must not leave the others blocked."""
    raised: list[BaseException] = []
    for action in actions:
        try:
            if type(action) is Deliver:
                action.waiter(action.value, None)
            else:
                assert type(action) is Fail
                action.waiter(None, action.error)
        except BaseException as failure:  # noqa: BLE001 (raised below)
            raised.append(failure)
    if raised:
        raise raised[0]


def _listed(pending: Sequence[Pending]) -> str:
    more = len(pending) - MAX_LISTED
    return ", ".join([*map(str, pending[:MAX_LISTED]), *([f"and {more} more"] if more > 0 else [])])
