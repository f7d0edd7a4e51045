"""`RemoteTable` in any order of calls against a plain model, and `RemoteRendezvous` between two tasks."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from flowrt.errors import AbortedError, InternalError, OpError
from flowrt.rendezvous.matching.table import Deliver, Fail
from flowrt.rendezvous.remote import Drained, RemoteRendezvous, RemoteTable, RequestTensors, source_task

HERE, NEAR, FAR = (f"/job:a/replica:0/task:{i}" for i in (1, 2, 11))
OWN = [f"{HERE}/device:CPU:0;1;{task}/device:CPU:0;x:0;0:0" for task in (HERE, NEAR, FAR)]
OTHERS = [f"{task}/device:CPU:0;2;{HERE}/device:CPU:0;{edge}:0;0:0" for task in (NEAR, FAR) for edge in "yz"]

own, others, keys = st.sampled_from(OWN), st.sampled_from(OTHERS), st.sampled_from(OWN + OTHERS)


class TableAgainstModel(RuleBasedStateMachine):
    """A waiter is a number; those of other tasks are even."""

    def __init__(self) -> None:
        super().__init__()
        self.table: RemoteTable[int] = RemoteTable(HERE)
        self.values: dict[str, deque[int]] = {key: deque() for key in OWN + OTHERS}
        self.waiters: dict[str, deque[int]] = {key: deque() for key in OWN + OTHERS}
        self.asked: set[str] = set()
        self.leaving = 0
        self.error: OpError | None = None
        self.has_ended = self.is_over = False
        self.number = 0

    def next(self, is_other: bool = False) -> int:
        self.number += 2
        return self.number + (not is_other)

    # --- what is expected

    def meets(self, key: str, value: int) -> list[Any]:
        """A value comes."""
        if not self.waiters[key]:
            self.values[key].append(value)
            return []
        return [self.given(self.waiters[key].popleft(), value)]

    def given(self, waiter: int, value: int) -> Any:
        self.leaving += waiter % 2 == 0
        return Deliver(waiter, value)

    def wanted(self, key: str, waiter: int) -> list[Any]:
        """A waiter comes."""
        if self.error is not None:
            return [Fail(waiter, self.error)]
        if self.values[key]:
            return [self.given(waiter, self.values[key].popleft())]
        self.waiters[key].append(waiter)
        return []

    def requested(self, wanted: Sequence[str]) -> list[Any]:
        by_task: dict[str, list[str]] = {}
        for key in wanted:
            if key in OTHERS and key not in self.asked:
                self.asked.add(key)
                by_task.setdefault(source_task(key), []).append(key)
        return [RequestTensors(task, tuple(some)) for task, some in by_task.items()]

    def drained(self) -> list[Any]:
        if self.has_ended and not self.is_over and self.is_empty:
            self.is_over = True
            return [Drained()]
        return []

    @property
    def is_empty(self) -> bool:
        return not (self.pending or self.asked or self.leaving)

    @property
    def pending(self) -> bool:
        return any(self.values.values()) or any(self.waiters.values())

    # --- what happens

    @precondition(lambda self: not self.has_ended)
    @rule(key=own)
    def send(self, key: str) -> None:
        value = self.next()
        if self.error is not None:
            with pytest.raises(type(self.error), match=str(self.error)):
                self.table.send(key, value)
            return
        assert list(self.table.send(key, value)) == self.meets(key, value)

    @precondition(lambda self: not self.has_ended)
    @rule(key=keys)
    def recv(self, key: str) -> None:
        waiter = self.next()
        actions = list(self.table.recv(key, waiter))
        expected = self.wanted(key, waiter)
        assert actions == (expected or self.requested([key]))

    @precondition(lambda self: not self.has_ended)
    @rule(some=st.lists(keys, max_size=5))
    def ask(self, some: list[str]) -> None:
        expected = [] if self.error is not None else self.requested(some)
        assert list(self.table.ask(some)) == expected

    @precondition(lambda self: not self.has_ended)
    @rule(key=keys)
    def take(self, key: str) -> None:
        if self.error is not None:
            with pytest.raises(type(self.error), match=str(self.error)):
                self.table.take(key, None)
            return
        expected = self.values[key].popleft() if self.values[key] else None
        assert self.table.take(key, None) == expected

    @precondition(lambda self: not self.has_ended)
    @rule(key=keys, data=st.data())
    def cancel(self, key: str, data: st.DataObject) -> None:
        own_waiters = [waiter for waiter in self.waiters[key] if waiter % 2]
        waiter = data.draw(st.sampled_from([*own_waiters, 1]))
        actions = list(self.table.cancel(key, waiter))
        assert [action.waiter for action in actions] == ([waiter] if waiter in own_waiters else [])
        if waiter in own_waiters:
            self.waiters[key].remove(waiter)

    @rule(key=others)
    def arrived(self, key: str) -> None:
        value = self.next()
        actions = list(self.table.arrived(key, value))
        if key not in self.asked or self.error is not None:
            assert actions == []
            return
        self.asked.remove(key)
        assert actions == self.meets(key, value)

    @precondition(lambda self: not self.is_over)
    @rule(key=own)
    def serve(self, key: str) -> None:
        waiter = self.next(is_other=True)
        actions = list(self.table.serve(key, waiter))
        assert actions == self.wanted(key, waiter)

    @precondition(lambda self: self.leaving)
    @rule()
    def delivered(self) -> None:
        self.leaving -= 1
        actions = list(self.table.delivered())
        assert actions == self.drained()

    @precondition(lambda self: not self.has_ended)
    @rule()
    def end(self) -> None:
        if any(self.waiters.values()) or self.asked:
            with pytest.raises(InternalError, match="expected no receive at the end"):
                self.table.end()
            return
        self.has_ended = True
        actions = list(self.table.end())
        assert actions == self.drained()

    @precondition(lambda self: self.number > 8)  # or most runs would end before they began
    @rule(error=st.sampled_from([AbortedError("first"), InternalError("other")]))
    def abort(self, error: OpError) -> None:
        actions = list(self.table.abort(error))
        expected = []
        if self.error is None:
            self.error = error
            expected = [Fail(waiter, error) for channel in self.waiters.values() for waiter in channel]
        for channel in (*self.values.values(), *self.waiters.values()):
            channel.clear()
        self.asked.clear()
        expected += self.drained()
        assert sorted(map(repr, actions)) == sorted(map(repr, expected))

    # --- what holds

    @invariant()
    def it_is_as_full_as_the_model(self) -> None:
        assert self.table.is_empty == self.is_empty
        assert bool(self.table.pending()) == self.pending

    @invariant()
    def the_rules_hold(self) -> None:
        self.table.check()


TestTableAgainstModel = TableAgainstModel.TestCase
TestTableAgainstModel.settings = settings(stateful_step_count=40)


def test_tasks_whose_names_begin_alike_are_told_apart() -> None:
    table: RemoteTable[int] = RemoteTable(HERE)
    far = OTHERS[2]
    assert far.startswith(HERE)
    assert list(table.ask([far])) == [RequestTensors(FAR, (far,))]


def test_a_value_that_left_more_often_than_it_was_asked_for_is_noticed() -> None:
    table: RemoteTable[int] = RemoteTable(HERE)
    table.delivered()
    with pytest.raises(InternalError, match="expected values to leave once"):
        table.check()


# --- two tasks


class Pair:
    """A producer here and a consumer near; what the consumer asks for lies in `requests`."""

    def __init__(self) -> None:
        self.requests: list[tuple[str, list[str]]] = []
        self.producer = RemoteRendezvous(HERE, self._nobody)
        self.consumer = RemoteRendezvous(NEAR, lambda task, keys: self.requests.append((task, list(keys))))

    def _nobody(self, task: str, keys: Sequence[str]) -> None:
        raise AssertionError("the producer asks for nothing")

    def carry(self) -> None:
        """Bring the requests to the producer, and its values back, at once."""
        for task, wanted in self.requests:
            assert task == HERE
            for key in wanted:
                self.producer.serve(key, lambda value, error, key=key: self._bring(key, value, error))
        self.requests.clear()

    def _bring(self, key: str, value: Any, error: OpError | None) -> None:
        if error is not None:
            self.consumer.abort(error)
        else:
            self.consumer.arrived(key, value)
            self.producer.delivered()


KEY = OWN[1]


def outcome(rendezvous: RemoteRendezvous) -> list[Any]:
    """What a receive of `KEY` gets: one entry, when it is settled."""
    settled: list[Any] = []
    rendezvous.recv_async(KEY, lambda value, error: settled.append(value if error is None else error))
    return settled


@pytest.mark.parametrize("is_sent_first", [True, False])
def test_a_value_crosses_when_it_was_asked_for(is_sent_first: bool) -> None:
    pair = Pair()
    if is_sent_first:
        pair.producer.send(KEY, 5)
    settled = outcome(pair.consumer)
    pair.carry()
    if not is_sent_first:
        assert settled == []
        pair.producer.send(KEY, 5)
    assert settled == [5]
    for end in (pair.producer, pair.consumer):
        end.check_empty()


def test_a_key_that_was_asked_for_at_the_start_is_not_asked_for_again() -> None:
    pair = Pair()
    pair.consumer.ask([KEY])
    settled = outcome(pair.consumer)
    assert pair.requests == [(HERE, [KEY])]
    pair.producer.send(KEY, 5)
    pair.carry()
    assert settled == [5]


def test_a_part_is_over_when_what_it_made_has_left() -> None:
    pair, over = Pair(), []
    pair.producer.send(KEY, 5)
    pair.producer.end(lambda: over.append("producer"))
    assert over == []
    outcome(pair.consumer)
    pair.carry()
    assert over == ["producer"]


def test_a_part_that_waits_for_others_to_ask_is_over_when_it_is_aborted() -> None:
    pair, over = Pair(), []
    pair.producer.send(KEY, 5)
    pair.producer.end(lambda: over.append("producer"))
    pair.producer.abort(AbortedError("the consumer is gone"))
    pair.producer.abort(AbortedError("again"))
    assert over == ["producer"]


def test_a_part_that_is_aborted_while_a_value_leaves_is_over_when_it_has_left() -> None:
    producer, over, taken = RemoteRendezvous(HERE, lambda task, keys: None), [], []
    producer.send(KEY, 5)
    producer.end(lambda: over.append("producer"))
    producer.serve(KEY, lambda value, error: taken.append(value))
    producer.abort(AbortedError("the step failed"))
    assert (taken, over) == ([5], [])  # the transport still reads it
    producer.delivered()
    assert over == ["producer"]


def test_an_abort_reaches_who_waits_in_another_task() -> None:
    pair, error = Pair(), AbortedError("planted")
    settled = outcome(pair.consumer)
    pair.carry()
    pair.producer.abort(error)
    assert settled == [error]


def test_nothing_is_asked_for_after_an_abort() -> None:
    pair = Pair()
    pair.consumer.abort(AbortedError("planted"))
    pair.consumer.ask([KEY])
    assert [type(one) for one in outcome(pair.consumer)] == [AbortedError]
    assert pair.requests == []
