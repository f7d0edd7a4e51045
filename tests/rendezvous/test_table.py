"""`RendezvousTable` in any order of calls, against a model that only compares histories.

The model knows neither queues nor matching. For each key it writes down all values sent and all receives that
were not cancelled while they waited; then the n-th receive gets the n-th value, and what is over is left.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from flowrt.errors import AbortedError, CancelledError, InternalError, OpError
from flowrt.rendezvous import Action, Deliver, Fail, Pending, RendezvousTable

KEYS = ["a", "b", "c"]
keys = st.sampled_from(KEYS)


class History:
    """What happened to one key."""

    def __init__(self) -> None:
        self.sent: list[int] = []
        self.receives: list[int] = []

    def matched(self) -> list[tuple[int, int]]:
        return list(zip(self.receives, self.sent, strict=False))

    def values_left(self) -> list[int]:
        return self.sent[len(self.receives) :]

    def receives_left(self) -> list[int]:
        return self.receives[len(self.sent) :]


class TableAgainstHistories(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.table: RendezvousTable[int] = RendezvousTable()
        self.histories = {key: History() for key in KEYS}
        self.delivered: dict[str, list[tuple[int, int]]] = {key: [] for key in KEYS}
        self.failed: list[tuple[int, OpError]] = []
        self.error: OpError | None = None
        self.ticket = 1000  # values and receives are numbered apart, so that one taken for the other shows
        self.value = 0

    def perform(self, key: str, actions: Sequence[Action[int]]) -> None:
        for action in actions:
            match action:
                case Deliver(waiter, value):
                    self.delivered[key].append((waiter, value))
                case Fail(waiter, error):
                    self.failed.append((waiter, error))

    def waiting(self) -> list[int]:
        return [waiter for history in self.histories.values() for waiter in history.receives_left()]

    @rule(key=keys)
    def send(self, key: str) -> None:
        self.value += 1
        if self.error is not None:
            with pytest.raises(type(self.error), match=str(self.error)):
                self.table.send(key, self.value)
            return
        self.histories[key].sent.append(self.value)
        self.perform(key, self.table.send(key, self.value))

    @rule(key=keys)
    def recv(self, key: str) -> None:
        self.ticket += 1
        actions = self.table.recv(key, self.ticket)
        if self.error is not None:
            assert list(actions) == [Fail(self.ticket, self.error)]
            return
        self.histories[key].receives.append(self.ticket)
        self.perform(key, actions)

    @rule(key=keys)
    def take(self, key: str) -> None:
        if self.error is not None:
            with pytest.raises(type(self.error), match=str(self.error)):
                self.table.take(key, None)
            return
        self.ticket += 1
        value = self.table.take(key, None)
        if not self.histories[key].values_left():
            assert value is None
            return
        self.histories[key].receives.append(self.ticket)
        self.delivered[key].append((self.ticket, value))

    @rule(key=keys, data=st.data())
    def cancel(self, key: str, data: st.DataObject) -> None:
        history = self.histories[key]
        waiter = data.draw(st.sampled_from([*history.receives, self.ticket + 1]))
        actions = self.table.cancel(key, waiter)
        if self.error is not None or waiter not in history.receives_left():
            assert list(actions) == []
            return
        ((failed, error),) = actions
        assert failed == waiter
        assert isinstance(error, CancelledError)
        history.receives.remove(waiter)

    @precondition(lambda self: self.value > 4)  # or most runs would end before they began
    @rule(error=st.sampled_from([AbortedError("first"), InternalError("other")]))
    def abort(self, error: OpError) -> None:
        actions = self.table.abort(error)
        if self.error is not None:
            assert list(actions) == []
            return
        assert sorted(actions) == [Fail(waiter, error) for waiter in sorted(self.waiting())]
        self.error = error

    @invariant()
    def the_nth_receive_got_the_nth_value(self) -> None:
        for key, history in self.histories.items():
            assert self.delivered[key] == history.matched()

    @invariant()
    def the_rest_is_pending_unless_aborted(self) -> None:
        expected = {
            Pending(key, len(history.values_left()), len(history.receives_left()))
            for key, history in self.histories.items()
            if history.values_left() or history.receives_left()
        }
        assert set(self.table.pending()) == (expected if self.error is None else set())
        assert self.table.is_empty == (not self.table.pending())

    @invariant()
    def the_rules_hold(self) -> None:
        self.table.check()


TestTableAgainstHistories = TableAgainstHistories.TestCase
TestTableAgainstHistories.settings = settings(stateful_step_count=40)


def test_a_send_that_nobody_waits_for_is_no_action() -> None:
    table: RendezvousTable[Any] = RendezvousTable()
    assert list(table.send("key", 1)) == []
    assert list(table.recv("key", "me")) == [Deliver("me", 1)]


def test_a_send_that_is_waited_for_is_delivered_to_the_oldest() -> None:
    table: RendezvousTable[Any] = RendezvousTable()
    for waiter in ("old", "young"):
        assert list(table.recv("key", waiter)) == []
    assert list(table.send("key", 1)) == [Deliver("old", 1)]
    assert table.pending() == [Pending("key", 0, 1)]


def test_abort_fails_waiters_key_by_key_and_oldest_first() -> None:
    table: RendezvousTable[Any] = RendezvousTable()
    for key, waiter in (("b", 1), ("a", 2), ("b", 3)):
        table.recv(key, waiter)
    error = AbortedError("stop")
    assert list(table.abort(error)) == [Fail(1, error), Fail(3, error), Fail(2, error)]


def test_a_channel_of_many_values_costs_the_same_for_each() -> None:
    """100,000 values under one key: seconds and more if taking one moved all the others."""
    table: RendezvousTable[Any] = RendezvousTable()
    for i in range(100_000):
        table.send("key", i)
    assert all(table.take("key", None) == i for i in range(100_000))
    assert table.is_empty
