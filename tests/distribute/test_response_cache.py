"""`ResponseCache`: whatever comes in whatever order, what is asked twice is done once and has one answer."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from flowrt.distribute.wire import response_cache
from flowrt.distribute.wire.messages import Frame
from flowrt.distribute.wire.response_cache import MAX_KEPT, MAX_NUMBERS, ResponseCache, State


def frame(text: bytes, size: int = 0) -> Frame:
    return Frame(text, [np.zeros(size, np.uint8)] if size else [])


def test_a_request_is_news_once() -> None:
    cache = ResponseCache()
    assert cache.begin(7) is None
    assert cache.begin(7) is State.RUNNING
    cache.answer([7], frame(b"its answer"))
    assert cache.begin(7) == frame(b"its answer")
    cache.settle([7])
    assert cache.begin(7) is State.SETTLED


def test_what_is_kept_does_not_change_with_the_memory_that_it_left_from() -> None:
    cache = ResponseCache()
    cache.begin(1)
    sent = frame(b"", 100)
    assert cache.answer([1], sent)
    sent.payload[0][:] = 9
    kept = cache.begin(1)
    assert isinstance(kept, Frame)
    assert not kept.payload[0].any()


def test_a_large_answer_runs_until_it_has_left_and_is_not_kept() -> None:
    cache = ResponseCache()
    cache.begin(1)
    assert not cache.answer([1], frame(b"", MAX_KEPT + 1))
    assert cache.begin(1) is State.RUNNING
    cache.sent(1)
    assert cache.begin(1) is State.DROPPED


def test_a_step_that_runs_is_known_however_many_requests_came_after_it() -> None:
    cache = ResponseCache()
    cache.begin(0)
    for number in range(1, 2 * MAX_NUMBERS):
        cache.begin(number)
        cache.answer([number], frame(b"x"))
        cache.settle([number])
    assert cache.begin(0) is State.RUNNING
    cache.check()


def test_a_frame_of_several_answers_counts_until_the_last_is_settled() -> None:
    cache, shared = ResponseCache(), frame(b"x" * 100)
    numbers = range(10)
    assert [cache.begin(number) for number in numbers] == [None] * 10
    assert cache.answer(numbers, shared)
    assert all(cache.begin(number) is shared for number in numbers)
    for number in numbers:
        assert cache._bytes == 100
        cache.check()
        cache.settle([number])
    assert cache._bytes == 0
    cache.check()


def test_shared_frames_go_whole_when_there_is_no_room() -> None:
    cache = ResponseCache()
    for number in range(0, 2400, 2):
        cache.begin(number)
        cache.begin(number + 1)
        cache.answer((number, number + 1), frame(b"x" * 1000))
        cache.settle([number])
        cache.check()
    assert cache.begin(1) is State.DROPPED


class Asked(RuleBasedStateMachine):
    """Against all that was ever said, with room for three answers."""

    numbers = st.integers(1, 12)

    def __init__(self) -> None:
        super().__init__()
        self.patch = pytest.MonkeyPatch()
        self.patch.setattr(response_cache, "MAX_BYTES", 30)
        self.patch.setattr(response_cache, "MAX_KEPT", 12)
        self.cache = ResponseCache()
        self.begun: set[int] = set()
        self.answers: dict[int, Frame] = {}
        self.settled: set[int] = set()

    def teardown(self) -> None:
        self.patch.undo()

    @rule(number=numbers)
    def ask(self, number: int) -> None:
        known = self.cache.begin(number)
        assert (known is None) == (number not in self.begun)
        self.begun.add(number)
        if isinstance(known, Frame):
            assert known == self.answers[number]
            assert number not in self.settled
        elif known is State.RUNNING:
            assert number not in self.answers
        elif known is State.SETTLED:
            assert number in self.settled
        elif known is State.DROPPED:
            assert number in self.answers

    @precondition(lambda self: self.begun - self.answers.keys())
    @rule(data=st.data(), size=st.integers(0, 14))
    def answer(self, data: st.DataObject, size: int) -> None:
        number = data.draw(st.sampled_from(sorted(self.begun - self.answers.keys())))
        self.answers[number] = frame(bytes(size))
        if not self.cache.answer([number], self.answers[number]):
            self.cache.sent(number)

    @precondition(lambda self: self.answers)
    @rule(data=st.data())
    def settle(self, data: st.DataObject) -> None:
        number = data.draw(st.sampled_from(sorted(self.answers)))
        self.settled.add(number)
        self.cache.settle([number])

    @rule(number=numbers)
    def settle_anything(self, number: int) -> None:
        """A number that nobody asked, or that has no answer."""
        if number not in self.answers:
            self.cache.settle([number])

    @invariant()
    def is_in_order(self) -> None:
        self.cache.check()


TestAsked = Asked.TestCase
