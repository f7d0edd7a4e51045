"""A message goes to one thread: the first that waits for it, else it is kept; none is lost or given twice."""

from __future__ import annotations

import threading
from collections import Counter
from random import Random

import numpy as np

from flowrt.distribute.collectives.tagged_messages import Parked, TaggedMessages, Waiter
from flowrt.rendezvous.channel.channel import Bytes

KEY, OTHER = (0, b"a"), (1, b"a")


def message(number: int) -> Bytes:
    return np.array([number], np.uint8)


def numbers(*waiters: Waiter) -> list[int | None]:
    return [None if waiter.payload is None else int(waiter.payload[0]) for waiter in waiters]


def test_one_waiter_is_woken_the_first_of_its_key() -> None:
    messages, woken = TaggedMessages(), list[str]()
    first = messages.expect(KEY, lambda: woken.append("first"))
    second = messages.expect(KEY, lambda: woken.append("second"))
    other = messages.expect(OTHER, lambda: woken.append("other"))
    messages.put(KEY, message(1))
    assert woken == ["first"]
    assert numbers(first, second, other) == [1, None, None]
    messages.put(OTHER, message(2))
    messages.put(KEY, message(3))
    messages.put(KEY, message(4))
    assert woken == ["first", "other", "second"]
    assert numbers(first, second, other) == [1, 3, 2]
    assert numbers(messages.expect(KEY, lambda: None)) == [4]


def test_messages_are_kept_in_order_until_somebody_comes() -> None:
    messages = TaggedMessages()
    for number in range(3):
        messages.put(KEY, message(number))
    assert messages.take(OTHER) is None
    assert [int(found[0]) for _ in range(3) if (found := messages.take(KEY)) is not None] == [0, 1, 2]
    assert messages.take(KEY) is None


def test_what_a_waiter_leaves_goes_to_the_next_or_back_in_front() -> None:
    messages, woken = TaggedMessages(), list[str]()
    waiters = [messages.expect(KEY, lambda i=i: woken.append(i)) for i in range(3)]
    messages.leave(KEY, waiters[1])
    messages.put(KEY, message(1))
    messages.leave(KEY, waiters[0])
    assert woken == [0, 2]
    assert numbers(waiters[2]) == [1]
    messages.put(KEY, message(2))
    messages.leave(KEY, waiters[2])
    assert numbers(messages.expect(KEY, lambda: None), messages.expect(KEY, lambda: None)) == [1, 2]


def test_all_waiters_are_woken_to_check_but_not_served() -> None:
    messages, woken = TaggedMessages(), Counter[int]()
    waiters = [messages.expect((i, b""), lambda i=i: woken.update([i])) for i in range(3)]
    messages.put((1, b""), message(1))
    messages.wake_all()
    assert woken == {0: 1, 1: 1, 2: 1}
    assert numbers(*waiters) == [None, 1, None]


def test_messages_are_forgotten_but_not_waiters() -> None:
    messages = TaggedMessages()
    waiter = messages.expect(OTHER, lambda: None)
    messages.put(KEY, message(1))
    messages.forget()
    assert messages.take(KEY) is None
    messages.put(OTHER, message(2))
    assert numbers(waiter) == [2]


def test_many_threads_get_each_message_once() -> None:
    """Some give up, and what they were given is not lost."""
    messages, threads, each = TaggedMessages(), 6, 100
    got: list[list[int]] = [[] for _ in range(threads)]

    def receive(number: int) -> None:
        random, parked = Random(number), Parked()
        while len(got[number]) < each:
            waiter = messages.expect(KEY, parked.wake)
            if random.random() < 0.3:
                messages.leave(KEY, waiter)
                continue
            while waiter.payload is None:
                parked.wait(10.0)
            got[number].append(int(waiter.payload[0]) * 256 + int(waiter.payload[1]))

    receivers = [threading.Thread(target=receive, args=(number,)) for number in range(threads)]
    for receiver in receivers:
        receiver.start()
    for number in range(threads * each):
        messages.put(KEY, np.array(divmod(number, 256), np.uint8))
    for receiver in receivers:
        receiver.join(60.0)
    assert sorted(number for numbers in got for number in numbers) == list(range(threads * each))
