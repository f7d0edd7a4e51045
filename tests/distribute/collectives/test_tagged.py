"""Messages with tags: in order for each tag, in any order of tags, from any thread; no wait is forever."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from random import Random
from typing import Any

import numpy as np
import pytest

from flowrt.distribute.collectives import JoinedGroup
from flowrt.errors import (
    CancelledError,
    DeadlineExceededError,
    InvalidArgumentError,
    OpError,
    UnavailableError,
)
from flowrt.executor.program.runner import StepControl
from flowrt.graph.resources.step_context import step_scope
from tests.distribute.collectives.group_parts import SOON_S, parts_of


def member(part: JoinedGroup) -> Any:
    return part.members[0]


def received(part: JoinedGroup, peer: int, tag: str) -> np.ndarray[Any, Any]:
    return np.array(member(part).receive_tagged(peer, tag)).view(np.float64)


def test_tags_are_received_in_any_order_and_each_in_its_own() -> None:
    with parts_of([(0,), (1,)]) as (first, second):
        values = np.arange(3.0)
        for number in range(3):
            member(first).send_tagged(1, "a", values + number)
            member(first).send_tagged(1, "b", values - number)
        values[:] = 99  # a copy was sent
        member(second).send_tagged(0, "a", np.ones(2))  # of its own: tags of ranks differ
        for tag, sign in (("b", -1), ("a", 1)):
            for number in range(3):
                np.testing.assert_array_equal(received(second, 0, tag), np.arange(3.0) + sign * number)
        np.testing.assert_array_equal(received(first, 1, "a"), np.ones(2))


def test_threads_wait_for_tags_of_their_own() -> None:
    count = 8
    with parts_of([(0,), (1,)]) as (first, second), ThreadPoolExecutor(count) as pool:
        waiting = [pool.submit(received, second, 0, f"tag {i}") for i in range(count)]
        for i in reversed(range(count)):
            member(first).send_tagged(1, f"tag {i}", np.full(1000, float(i)))
        for i, each in enumerate(waiting):
            assert each.result(SOON_S).tolist() == [float(i)] * 1000


def test_what_was_not_received_at_the_end_of_the_data_is_forgotten() -> None:
    """A step may end before it receives; the next one has the same tags."""
    with parts_of([(0,), (1,)]) as (first, second):
        for number in range(3):
            member(first).send_tagged(1, "weights", np.full(1, float(number)))
            if number % 2 == 0:
                assert received(second, 0, "weights").tolist() == [float(number)]
            for wait in [member(part).meet_at_end() for part in (first, second)]:
                wait()


def test_a_wait_ends_with_the_patience_of_the_group() -> None:
    with parts_of([(0,), (1,)], timeout_s=0.5) as (_, second):
        with pytest.raises(DeadlineExceededError, match="rank 0"):
            received(second, 0, "tag")


def test_a_wait_ends_with_its_step_and_loses_no_message() -> None:
    """Of both threads that wait: one reads the connection itself, the other is woken."""
    with parts_of([(0,), (1,)]) as (first, second), ThreadPoolExecutor(2) as pool:
        for number in range(3):  # the reader thread gives way after the first
            member(first).send_tagged(1, "before", np.full(1, float(number)))
            assert received(second, 0, "before").tolist() == [float(number)]
        control = StepControl()

        def receive(tag: str) -> Any:
            with step_scope(control):
                return received(second, 0, tag)

        waiting = [pool.submit(receive, tag) for tag in ("a", "b")]
        threading.Timer(0.2, control.cancel, (CancelledError("the step was closed"),)).start()
        for each in waiting:
            with pytest.raises(CancelledError, match="the step was closed"):
                each.result(SOON_S)
        for tag in ("a", "b"):
            member(first).send_tagged(1, tag, np.ones(1))
            assert received(second, 0, tag).tolist() == [1.0]


def test_a_step_that_must_end_receives_nothing_not_even_what_has_arrived() -> None:
    """No pause follows a receive, so that it looks itself."""
    with parts_of([(0,), (1,)]) as (first, second):
        for tag in ("tag", "behind it"):
            member(first).send_tagged(1, tag, np.ones(1))
        assert received(second, 0, "behind it").tolist() == [1]  # so both have arrived
        control = StepControl()
        control.cancel(CancelledError("enough"))
        with step_scope(control), pytest.raises(CancelledError, match="enough"):
            received(second, 0, "tag")
        assert received(second, 0, "tag").tolist() == [1]  # it is still there


def test_messages_of_one_link_go_to_all_that_wait_whoever_reads() -> None:
    """More threads than one can lead, with messages in an order of their own."""
    count, each = 5, 40
    with parts_of([(0,), (1,)]) as (first, second), ThreadPoolExecutor(count) as pool:

        def receive(number: int) -> list[float]:
            return [float(received(second, 0, f"tag {number}")[0]) for _ in range(each)]

        waiting = [pool.submit(receive, number) for number in range(count)]
        order = [number for number in range(count) for _ in range(each)]
        Random(0).shuffle(order)
        sent = [0] * count
        for number in order:
            member(first).send_tagged(1, f"tag {number}", np.full(1 + 3000 * number, float(sent[number])))
            sent[number] += 1
        for each_waiting in waiting:
            assert each_waiting.result(SOON_S) == [float(i) for i in range(each)]


@pytest.mark.parametrize("how", ["lost", "ended"])
def test_waits_end_when_a_rank_is_lost_or_the_group_ends(how: str) -> None:
    """What was sent before is there still."""
    error = InvalidArgumentError("the cause")
    with parts_of([(0,), (1,)]) as (first, second), ThreadPoolExecutor(2) as pool:
        member(first).send_tagged(1, "before", np.ones(1))
        assert received(second, 0, "before").tolist() == [1.0]
        waiting = [pool.submit(received, second, 0, tag) for tag in ("a", "b")]
        threading.Timer(0.2, first.close if how == "lost" else lambda: member(first).abort(error)).start()
        for each in waiting:
            with pytest.raises(OpError) as caught:
                each.result(SOON_S)
            expected = UnavailableError if how == "lost" else InvalidArgumentError
            assert isinstance(caught.value, expected), caught.value
