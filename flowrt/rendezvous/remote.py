"""`RemoteRendezvous`: one step's rendezvous in one task of a cluster.

It is recv-driven here too. A value stays with its producer; the consumer's task requests it from the
producer's task, and the producer's table queues the request like any other waiter:

    task 0                                              task 1
    send(key, value) -> stays in the table
                                     RequestTensors  <- recv(key), or `ask` for all keys at the step's start
    serve(key, answer) -> Deliver(answer, value)
                          the transport takes the bytes -> arrived(key, value) -> Deliver(receive, value)
    delivered(key)     -> the value's memory is free

The table is pure like the local one, and returns actions. In addition to that one's rules:

 - a value is sent only on request, and a key is requested once;
 - a step's part is over (`Drained`) when its programs have ended and all values for others are sent: until
   then the memory of its tensors is in use.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Generic, NamedTuple, TypeVar, final

from flowrt.errors import InternalError, OpError
from flowrt.rendezvous.matching.local import Done, LocalRendezvous, perform
from flowrt.rendezvous.matching.table import Action, Deliver, Pending, RendezvousTable

W = TypeVar("W")


class RequestTensors(NamedTuple):
    """Ask ``task`` for the values of ``keys``."""

    task: str
    keys: tuple[str, ...]


class Drained(NamedTuple):
    """The step's part in this task is over."""


class _Serving(NamedTuple, Generic[W]):
    """The waiter of another task."""

    waiter: W


def source_task(key: str) -> str:
    """The task that produces the value of ``key``."""
    return key[: key.index("/device:")]


@final
class RemoteTable(Generic[W]):
    """The channels of one step in ``task``, ``/job:a/replica:0/task:1``. See `RendezvousTable`; the methods
    return its actions, `RequestTensors` and `Drained`.
    """

    __slots__ = ("_asked", "_end", "_is_over", "_leaving", "_prefix", "_table")

    def __init__(self, task: str) -> None:
        self._prefix = task + "/"
        self._table: RendezvousTable[W | _Serving[W]] = RendezvousTable()
        self._asked: set[str] = set()
        """Keys requested and not received."""
        self._leaving = 0
        """Values that a transport is still reading."""
        self._is_over = self._end = False

    # --- the programs of this task

    def send(self, key: Any, value: Any) -> Sequence[Any]:
        """Raises the abort's error, a copy of it."""
        actions = self._table.send(key, value)
        return (self._count(actions[0]),) if actions else actions

    def recv(self, key: Any, waiter: W) -> Sequence[Any]:
        return self._table.recv(key, waiter) or (() if key in self._asked else self.ask((key,)))

    def ask(self, keys: Iterable[str]) -> Sequence[Any]:
        """Request those ``keys`` that other tasks produce, in one request per task, and each key once."""
        if self._table.is_aborted:
            return ()
        by_task: dict[str, list[str]] = {}
        for key in keys:
            if not key.startswith(self._prefix) and key not in self._asked:
                self._asked.add(key)
                by_task.setdefault(source_task(key), []).append(key)
        return [RequestTensors(task, tuple(wanted)) for task, wanted in by_task.items()]

    def take(self, key: Any, default: Any) -> Any:
        return self._table.take(key, default)

    def end(self) -> Sequence[Any]:
        """The programs of this task ended well. Raises `InternalError` if something waits for a value."""
        if left := [p for p in self._table.pending() if p.waiters] or self._asked:
            raise InternalError(f"rendezvous: expected no receive at the end of a step; got {left}")
        self._end = True
        return self._drained()

    # --- other tasks

    def serve(self, key: str, waiter: W) -> Sequence[Any]:
        """Handle another task's request for ``key``."""
        actions = self._table.recv(key, _Serving(waiter))
        return (self._count(actions[0]),) if actions else actions

    def delivered(self) -> Sequence[Any]:
        """Record that the bytes of a value have been sent to another task."""
        self._leaving -= 1
        return self._drained() if self._end else ()

    def arrived(self, key: str, value: Any) -> Sequence[Any]:
        """Handle another task's reply. An unrequested or repeated one changes nothing."""
        if key not in self._asked:  # after an abort nothing is
            return ()
        self._asked.remove(key)
        return self._table.send(key, value)

    # --- both

    def cancel(self, key: Any, waiter: W) -> Sequence[Any]:
        return self._table.cancel(key, waiter)

    def abort(self, error: OpError) -> Sequence[Any]:
        self._asked.clear()
        return [*map(self._count, self._table.abort(error)), *self._drained()]

    @property
    def is_empty(self) -> bool:
        return self._table.is_empty and not self._asked and not self._leaving

    def pending(self) -> list[Pending]:
        return self._table.pending()

    def awaited(self) -> list[str]:
        """Keys requested from other tasks and not received."""
        return list(self._asked)

    def check(self) -> None:
        """Raises `InternalError` when a rule of this file is broken."""
        self._table.check()
        if self._leaving < 0:
            raise InternalError(f"rendezvous: expected values to leave once; got {-self._leaving} more")

    def _count(self, action: Action[Any]) -> Action[W]:
        """``action`` with the original waiter of another task; counts values being sent to it."""
        waiter = action[0]
        if type(waiter) is not _Serving:
            return action
        kind = type(action)
        self._leaving += kind is Deliver
        return kind(waiter.waiter, action[1])

    def _drained(self) -> Sequence[Any]:
        if not self._end or self._is_over or not self.is_empty:
            return ()
        self._is_over = True
        return (Drained(),)


@final
class RemoteRendezvous(LocalRendezvous):
    """The table behind a lock. ``request(task, keys)`` requests values, which come back by `arrived`.

    Thread-safe; nothing is called while the lock is held.
    """

    __slots__ = ("_on_drained", "_request")

    def __init__(self, task: str, request: Callable[[str, Sequence[str]], object]) -> None:
        super().__init__(RemoteTable(task))
        self._request = request
        self._on_drained: Callable[[], object] | None = None

    def ask(self, keys: Iterable[str]) -> None:
        """Have the values of ``keys`` sent here, those of one task by one request."""
        self._do(self._table.ask, keys)

    def serve(self, key: str, done: Done) -> None:
        """Have ``done`` called with the value of ``key`` for another task; `delivered` when it has left."""
        self._do(self._table.serve, key, done)

    def delivered(self) -> None:
        self._do(self._table.delivered)

    def arrived(self, key: str, value: Any) -> None:
        self._do(self._table.arrived, key, value)

    def awaited(self) -> list[str]:
        """Keys requested from other tasks and not received."""
        assert isinstance(self._table, RemoteTable)
        with self._lock:
            return self._table.awaited()

    def end(self, drained: Callable[[], object]) -> None:
        """The programs have ended; ``drained`` is called when all that they made for others has left."""
        self._on_drained = drained
        self._do(self._table.end)

    def _do(self, decide: Callable[..., Sequence[Any]], *arguments: Any) -> None:
        with self._lock:
            actions = decide(*arguments)
        if actions:
            self._perform(actions)

    def _perform(self, actions: Sequence[Any]) -> None:
        if len(actions) == 1 and type(actions[0]) is Deliver:  # nearly always
            waiter, value = actions[0]
            waiter(value, None)
            return
        matched = []
        for action in actions:
            kind = type(action)
            if kind is RequestTensors:
                self._request(*action)
            elif kind is Drained:
                assert self._on_drained is not None
                self._on_drained()
            else:
                matched.append(action)
        if matched:
            perform(matched)
