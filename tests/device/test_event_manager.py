from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from itertools import islice

import pytest

from flowrt.device.event_manager import LONGEST_PAUSE_S, EventManager, pauses
from flowrt.device.stream_executor import Event, EventStatus

SOON_S = 60.0


class Flag(Event):
    """An event that a test sets."""

    def __init__(self) -> None:
        self.status = EventStatus.PENDING

    def poll(self) -> EventStatus:
        return self.status


@pytest.fixture
def manager() -> Iterator[EventManager]:
    manager = EventManager("test")
    yield manager
    manager.close()


@pytest.mark.parametrize("status", [EventStatus.COMPLETE, EventStatus.ERROR])
def test_a_function_is_called_once_its_event_is_not_pending(
    manager: EventManager, status: EventStatus
) -> None:
    first, second, called = Flag(), Flag(), threading.Event()
    manager.when_done(first, called.set)
    manager.when_done(second, lambda: None)
    second.status = status
    assert not called.wait(0.02)
    first.status = status
    assert called.wait(SOON_S)


def test_functions_are_called_in_the_order_of_their_coming(manager: EventManager) -> None:
    event, called = Flag(), list[int]()
    for i in range(50):
        manager.when_done(event, lambda i=i: called.append(i))
    event.status = EventStatus.COMPLETE
    manager.close()
    assert called == list(range(50))


def test_a_function_may_ask_for_another(manager: EventManager) -> None:
    event, called = Flag(), threading.Event()
    event.status = EventStatus.COMPLETE
    manager.when_done(event, lambda: manager.when_done(event, called.set))
    assert called.wait(SOON_S)


def test_a_function_that_fails_is_logged_and_the_next_is_called(
    manager: EventManager, caplog: pytest.LogCaptureFixture
) -> None:
    event, called = Flag(), threading.Event()
    event.status = EventStatus.COMPLETE
    with caplog.at_level(logging.ERROR):
        manager.when_done(event, lambda: 1 / 0)
        manager.when_done(event, called.set)
        assert called.wait(SOON_S)
    assert "ZeroDivisionError" in caplog.text


class Broken(Event):
    """An event that cannot be asked."""

    def poll(self) -> EventStatus:
        raise ZeroDivisionError("no such event")


def test_an_event_that_cannot_be_asked_is_logged_and_not_waited_for(
    manager: EventManager, caplog: pytest.LogCaptureFixture
) -> None:
    later, called = Flag(), [threading.Event(), threading.Event()]
    with caplog.at_level(logging.ERROR):
        manager.when_done(later, called[1].set)
        manager.when_done(Broken(), called[0].set)
        assert called[0].wait(SOON_S)
    assert "no such event" in caplog.text
    later.status = EventStatus.COMPLETE
    assert called[1].wait(SOON_S)


def test_closing_without_work_starts_no_thread() -> None:
    before = set(threading.enumerate())
    EventManager("idle").close()
    assert set(threading.enumerate()) <= before


def test_the_pauses_grow_to_their_bound() -> None:
    found = list(islice(pauses(), 40))
    assert found[0] == 0.0
    assert found == sorted(found)
    assert found[-1] == LONGEST_PAUSE_S
