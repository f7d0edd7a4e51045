"""The matching of sends and receives, without locks, threads or clocks.

A call decides and changes the table; it returns actions for the caller to perform. An action contains its
full address, so two threads may perform theirs in any order.

Rules:
 - only this file changes a channel; a channel (the entries of one key) holds values or waiters, never both;
 - the later party does the matching: a send takes the oldest waiter, a receive the oldest value;
 - the first abort is permanent: it fails all waiters, key by key, drops all values, and later calls fail with
   it;
 - an empty channel is removed, so a loop with keys per iteration leaves nothing behind.

The producer may be another task: then the consumer's table requests the tensor by one more action, the reply
arrives as `send`, and the producer's table queues the request like any other waiter.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Sequence
from typing import Any, Generic, NamedTuple, TypeAlias, TypeVar, final

from flowrt.errors import CancelledError, InternalError, OpError, copy_to_raise

W = TypeVar("W")


class Deliver(NamedTuple, Generic[W]):
    """Give ``value`` to ``waiter``."""

    waiter: W
    value: Any


class Fail(NamedTuple, Generic[W]):
    """Notify ``waiter`` that its value will not arrive."""

    waiter: W
    error: OpError


Action: TypeAlias = Deliver[W] | Fail[W]


class Pending(NamedTuple):
    """A channel that is not empty: how many values were sent and not received, or how many receives wait."""

    key: Hashable
    values: int
    waiters: int

    def __str__(self) -> str:
        if self.values:
            return f"{self.key} ({self.values} sent, not received)"
        return f"{self.key} ({self.waiters} waiting, not sent)"


@final
class RendezvousTable(Generic[W]):
    """All channels of one step. Keys are any hashables; a waiter is any object, stored and returned."""

    __slots__ = ("_error", "_further", "_values", "_waiters")

    def __init__(self) -> None:
        # Nearly every key carries one value, so the oldest sits in `_values` itself. Only further ones need
        # a deque, which costs 250 ns to make, more than the rest of a send.
        self._values: dict[Hashable, Any] = {}
        self._further: dict[Hashable, deque[Any]] = {}
        self._waiters: dict[Hashable, deque[W]] = {}
        self._error: OpError | None = None

    def send(self, key: Hashable, value: Any) -> Sequence[Action[W]]:
        """Put ``value`` in. Raises the abort's error, a copy of it."""
        if self._error is not None:
            raise copy_to_raise(self._error)
        if key in self._waiters:
            return (Deliver(_pop_oldest(self._waiters, key), value),)
        if key in self._values:
            self._further.setdefault(key, deque()).append(value)
        else:
            self._values[key] = value
        return ()

    def recv(self, key: Hashable, waiter: W) -> Sequence[Action[W]]:
        """Give ``waiter`` the oldest value, now or as soon as there is one."""
        if self._error is not None:
            return (Fail(waiter, self._error),)
        if key in self._values:
            return (Deliver(waiter, self._pop_value(key)),)
        self._waiters.setdefault(key, deque()).append(waiter)
        return ()

    def take(self, key: Hashable, default: Any) -> Any:
        """Take out the oldest value, or return ``default``. Raises the abort's error, a copy of it."""
        if self._error is not None:
            raise copy_to_raise(self._error)
        if key not in self._values:
            return default
        return self._pop_value(key)

    def cancel(self, key: Hashable, waiter: W) -> Sequence[Action[W]]:
        """Remove ``waiter`` once, where it is oldest. Nothing happens if it does not wait."""
        waiters = self._waiters.get(key)
        if waiters is None or waiter not in waiters:
            return ()
        waiters.remove(waiter)
        if not waiters:
            del self._waiters[key]
        return (Fail(waiter, CancelledError(f"recv {key}: was cancelled before the value was sent")),)

    def abort(self, error: OpError) -> Sequence[Action[W]]:
        """Fail everything, now and from now on, with ``error``; after the first abort nothing happens."""
        if self._error is not None:
            return ()
        waiters, self._waiters = self._waiters, {}
        self._values, self._further = {}, {}
        self._error = error
        return [Fail(waiter, error) for channel in waiters.values() for waiter in channel]

    @property
    def is_empty(self) -> bool:
        return not self._values and not self._waiters

    @property
    def is_aborted(self) -> bool:
        return self._error is not None

    def pending(self) -> list[Pending]:
        """The channels that are not empty, those with values first."""
        sent = [Pending(key, 1 + len(self._further.get(key, ())), 0) for key in self._values]
        return sent + [Pending(key, 0, len(waiters)) for key, waiters in self._waiters.items()]

    def check(self) -> None:
        """Raises `InternalError` when a rule of this file is broken."""
        for rule, broken in (
            ("values or waiters, never both", [k for k in self._values if k in self._waiters]),
            ("an oldest value before further ones", [k for k in self._further if k not in self._values]),
            ("no empty channel of values", [k for k, values in self._further.items() if not values]),
            ("no empty channel of waiters", [k for k, waiters in self._waiters.items() if not waiters]),
            ("nothing after an abort", self.pending() if self._error is not None else []),
        ):
            if broken:
                raise InternalError(f"rendezvous table: expected {rule}; got {', '.join(map(str, broken))}")

    def _pop_value(self, key: Hashable) -> Any:
        value = self._values.pop(key)
        if key in self._further:
            self._values[key] = _pop_oldest(self._further, key)
        return value


T = TypeVar("T")


def _pop_oldest(channels: dict[Hashable, deque[T]], key: Hashable) -> T:
    channel = channels[key]
    oldest = channel.popleft()
    if not channel:
        del channels[key]
    return oldest
