"""Waits of kernels: a step's end ends them, and the bounded queue loses nothing whichever end leaves."""

from __future__ import annotations

import threading
import time
from collections import deque

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowrt.errors import (
    CancelledError,
    DeadlineExceededError,
    InvalidArgumentError,
    OutOfRangeError,
    UnavailableError,
)
from flowrt.executor.program.runner import StepControl
from flowrt.graph.resources.step_context import current_step, step_scope
from flowrt.graph.resources.transfer_queue import TransferQueue

WAIT_S = 60.0


def in_thread(function):
    """Call ``function`` on a thread; the result is a list that its outcome goes to when the thread is
    joined."""
    outcome = []

    def call():
        try:
            outcome.append(function())
        except Exception as error:  # noqa: BLE001
            outcome.append(error)

    thread = threading.Thread(target=call, daemon=True)
    thread.start()
    return thread, outcome


# --- steps


def test_a_step_belongs_to_its_thread_and_an_inner_one_takes_its_place():
    outer, inner = StepControl(), StepControl()
    with step_scope(outer):
        thread, seen = in_thread(current_step)
        thread.join(WAIT_S)
        assert seen == [None]
        with step_scope(inner):
            assert current_step() is inner
        with step_scope(None):
            assert current_step() is None
        assert current_step() is outer
    assert current_step() is None


def test_a_wait_ends_at_the_steps_deadline():
    queue = TransferQueue("q", 1)
    before = time.monotonic()
    with step_scope(StepControl(0.03)), pytest.raises(DeadlineExceededError, match="30 ms"):
        queue.get()
    assert time.monotonic() - before < WAIT_S / 2


@pytest.mark.parametrize("end", ["get", "put"])
def test_a_wait_ends_when_the_step_is_cancelled(end):
    queue, control = TransferQueue("q", 1), StepControl()
    if end == "put":
        queue.put("first")

    def wait():
        with step_scope(control):
            return queue.get() if end == "get" else queue.put("second")

    thread, outcome = in_thread(wait)
    control.cancel(UnavailableError("gone"))
    thread.join(WAIT_S)
    assert isinstance(outcome[0], UnavailableError)
    assert len(queue) == (end == "put")


# --- the queue


def test_who_is_ahead_waits():
    queue, log = TransferQueue("q", 2), []

    def produce():
        for i in range(20):
            queue.put(i, WAIT_S)
            log.append(i)

    thread, outcome = in_thread(produce)
    taken = []
    for _ in range(20):
        taken.append(queue.get(WAIT_S))
        assert len(log) <= len(taken) + 3  # two in the queue, one just put
    thread.join(WAIT_S)
    assert taken == list(range(20))
    assert outcome == [None]


def test_closing_wakes_both_ends_and_what_is_there_can_be_taken():
    full, empty = TransferQueue("full", 1), TransferQueue("empty", 1)
    full.put("item")
    putting, put = in_thread(lambda: full.put("late"))
    getting, got = in_thread(empty.get)
    full.close()
    empty.close()
    putting.join(WAIT_S)
    getting.join(WAIT_S)
    assert isinstance(put[0], CancelledError)
    assert isinstance(got[0], OutOfRangeError)
    assert full.get() == "item"
    with pytest.raises(OutOfRangeError, match="'full' is closed and empty"):
        full.get()


def test_closing_with_an_error_drops_the_items_and_the_first_close_counts():
    queue = TransferQueue("q", 2)
    queue.put("item")
    queue.close(UnavailableError("worker 3 is gone"))
    queue.close()
    for end in (queue.get, lambda: queue.put("x")):
        with pytest.raises(UnavailableError, match="worker 3"):
            end()


def test_a_capacity_is_positive():
    with pytest.raises(InvalidArgumentError, match="at least 1; got 0"):
        TransferQueue("q", 0)


@given(st.integers(1, 3), st.lists(st.sampled_from(["put", "get", "close", "fail"]), max_size=30))
def test_any_sequence_is_that_of_a_bounded_list(capacity, actions):
    queue, model, is_closed, has_failed = TransferQueue("q", capacity), deque(), False, False
    for number, action in enumerate(actions):
        if action in ("close", "fail"):
            queue.close(UnavailableError("x") if action == "fail" else None)
            if action == "fail" and not is_closed:
                has_failed = True
                model.clear()
            is_closed = True
        elif action == "put":
            blocks = len(model) == capacity and not is_closed
            error = UnavailableError if has_failed else CancelledError if is_closed else DeadlineExceededError
            if blocks or is_closed:
                with pytest.raises(error):
                    queue.put(number, timeout_s=0)
            else:
                queue.put(number, timeout_s=0)
                model.append(number)
        elif model:
            assert queue.get(timeout_s=0) == model.popleft()
        else:
            error = (
                UnavailableError if has_failed else OutOfRangeError if is_closed else DeadlineExceededError
            )
            with pytest.raises(error):
                queue.get(timeout_s=0)
        assert len(queue) == len(model)
