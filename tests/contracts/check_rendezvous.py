"""What every rendezvous must do: a class of tests, which the test file of an implementation subclasses.

The two ends may be one object, or live in two tasks with a wire between them. So nothing here looks inside,
keys are real keys, and what one end does may take a moment to show at the other: tests wait for that.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable
from concurrent.futures import ThreadPoolExecutor
from random import Random
from typing import Any, NamedTuple, Protocol

import pytest

from flowrt.errors import (
    AbortedError,
    CancelledError,
    DeadlineExceededError,
    InternalError,
    InvalidArgumentError,
    OpError,
)
from flowrt.rendezvous import create_key

SOON_S = 60.0  # what should happen at once has happened after this, also on a loaded machine
SRC = "/job:worker/replica:0/task:1/device:CPU:0"
DST = "/job:worker/replica:0/task:0/device:CPU:0"


class Rendezvous(Protocol):
    def send(self, key: Hashable, value: Any) -> None: ...
    def recv_async(self, key: Hashable, done: Callable[[Any, OpError | None], object]) -> None: ...
    def take_or_wait(self, key: Hashable, done: Callable[[Any, OpError | None], object]) -> Any: ...
    def recv(self, key: Hashable, timeout_s: float | None = None) -> Any: ...
    def try_recv(self, key: Hashable, default: Any = None) -> Any: ...
    def cancel(self, key: Hashable, done: Callable[[Any, OpError | None], object]) -> bool: ...
    def abort(self, error: OpError) -> None: ...
    def check_empty(self) -> None: ...


class Ends(NamedTuple):
    """Where values go in and where they come out."""

    producer: Rendezvous
    consumer: Rendezvous


class Mail:
    """A ``done`` that keeps what it is given, and knows if it is called twice."""

    def __init__(self) -> None:
        self.calls: list[tuple[Any, OpError | None]] = []
        self._settled = threading.Event()

    def __call__(self, value: Any, error: OpError | None) -> None:
        self.calls.append((value, error))
        self._settled.set()

    @property
    def is_settled(self) -> bool:
        return self._settled.is_set()

    def settled(self) -> tuple[Any, OpError | None]:
        """The one call, when it has come."""
        assert self._settled.wait(SOON_S), "the receive was not settled"
        (call,) = self.calls
        return call

    def value(self) -> Any:
        value, error = self.settled()
        assert error is None
        return value

    def error(self) -> OpError:
        value, error = self.settled()
        assert value is None
        assert error is not None
        return error


def key_of(edge: int | str, iteration: int = 0) -> str:
    return create_key(SRC, 0xFEED, DST, f"edge_{edge}:0", 0, iteration)


class RendezvousContract:
    """Subclass it as ``Test...``, with a fixture ``ends`` in reach that makes an `Ends` for each test."""

    # --- one value

    def test_a_value_sent_first_waits_for_its_receive(self, ends: Ends) -> None:
        ends.producer.send(key_of(1), "hello")
        assert ends.consumer.recv(key_of(1), SOON_S) == "hello"

    def test_a_receive_made_first_waits_for_its_value(self, ends: Ends) -> None:
        mail = Mail()
        ends.consumer.recv_async(key_of(1), mail)
        assert not mail.is_settled
        ends.producer.send(key_of(1), "hello")
        assert mail.value() == "hello"

    def test_a_blocked_receive_is_woken_by_the_send(self, ends: Ends) -> None:
        with ThreadPoolExecutor(1) as pool:
            blocked = pool.submit(ends.consumer.recv, key_of(1), SOON_S)
            ends.producer.send(key_of(1), "hello")
            assert blocked.result(SOON_S) == "hello"

    def test_a_value_that_is_there_is_taken_and_nobody_is_told(self, ends: Ends) -> None:
        before, mail = Mail(), Mail()
        ends.producer.send(key_of(0), "first")
        ends.producer.send(key_of(1), "hello")
        ends.consumer.recv_async(key_of(0), before)
        assert before.value() == "first"  # so the other is there as well
        assert ends.consumer.take_or_wait(key_of(1), mail) == "hello"
        assert not mail.is_settled
        ends.consumer.check_empty()

    def test_a_value_that_is_not_there_is_told_when_it_comes(self, ends: Ends) -> None:
        mail = Mail()
        assert ends.consumer.take_or_wait(key_of(1), mail) is None
        ends.producer.send(key_of(1), "hello")
        assert mail.value() == "hello"

    def test_who_would_wait_after_an_abort_is_told_its_error(self, ends: Ends) -> None:
        mail = Mail()
        ends.consumer.abort(AbortedError("enough"))
        assert ends.consumer.take_or_wait(key_of(1), mail) is None
        assert isinstance(mail.error(), AbortedError)

    def test_none_is_a_value_like_any_other(self, ends: Ends) -> None:
        ends.producer.send(key_of(1), None)
        assert ends.consumer.recv(key_of(1), SOON_S) is None

    def test_a_value_is_not_for_another_iteration_of_its_edge(self, ends: Ends) -> None:
        mails = [Mail(), Mail()]
        for iteration, mail in enumerate(mails):
            ends.consumer.recv_async(key_of(1, iteration), mail)
        ends.producer.send(key_of(1, 1), "second")
        assert mails[1].value() == "second"
        assert not mails[0].is_settled
        ends.producer.send(key_of(1, 0), "first")
        assert mails[0].value() == "first"

    # --- many values

    def test_values_of_one_key_come_out_in_the_order_they_were_sent(self, ends: Ends) -> None:
        for i in range(100):
            ends.producer.send(key_of(1), i)
        assert [ends.consumer.recv(key_of(1), SOON_S) for _ in range(100)] == list(range(100))

    def test_receives_of_one_key_are_served_in_the_order_they_were_made(self, ends: Ends) -> None:
        mails = [Mail() for _ in range(100)]
        for mail in mails:
            ends.consumer.recv_async(key_of(1), mail)
        for i in range(100):
            ends.producer.send(key_of(1), i)
        assert [mail.value() for mail in mails] == list(range(100))

    def test_sends_and_receives_of_many_keys_meet_in_any_order(self, ends: Ends) -> None:
        rng = Random(20)
        sends, recvs = ([*range(200)] for _ in range(2))
        rng.shuffle(sends)
        rng.shuffle(recvs)
        mails = {i: Mail() for i in recvs}
        for sent, received in zip(sends, recvs, strict=True):
            ends.producer.send(key_of(sent), sent)
            ends.consumer.recv_async(key_of(received), mails[received])
        assert [mail.value() for mail in mails.values()] == recvs

    def test_two_threads_pass_a_value_to_and_fro(self, ends: Ends) -> None:
        rounds = 200

        def pong() -> None:
            for i in range(rounds):
                ends.producer.send(key_of("pong", i), ends.consumer.recv(key_of("ping", i), SOON_S) + 1)

        with ThreadPoolExecutor(1) as pool:
            other = pool.submit(pong)
            value = 0
            for i in range(rounds):
                ends.producer.send(key_of("ping", i), value)
                value = ends.consumer.recv(key_of("pong", i), SOON_S)
            other.result(SOON_S)
        assert value == rounds

    # --- receives that do not block

    def test_try_recv_returns_its_default_when_nothing_is_there(self, ends: Ends) -> None:
        nothing = object()
        assert ends.consumer.try_recv(key_of(1)) is None
        assert ends.consumer.try_recv(key_of(1), nothing) is nothing
        ends.producer.send(key_of(1), "hello")
        assert ends.consumer.recv(key_of(1), SOON_S) == "hello"
        assert ends.consumer.try_recv(key_of(1), nothing) is nothing

    def test_a_receive_may_send_and_receive_from_within_its_callback(self, ends: Ends) -> None:
        last = Mail()

        def forward(value: Any, error: OpError | None) -> None:
            assert error is None
            ends.producer.send(key_of("second"), value + 1)
            ends.consumer.recv_async(key_of("second"), last)

        ends.consumer.recv_async(key_of("first"), forward)
        ends.producer.send(key_of("first"), 1)
        assert last.value() == 2

    # --- deadlines

    def test_a_receive_whose_time_is_over_names_its_key_and_what_else_is_pending(self, ends: Ends) -> None:
        mail = Mail()
        ends.consumer.recv_async(key_of("other"), mail)
        with pytest.raises(DeadlineExceededError) as caught:
            ends.consumer.recv(key_of("late"), 0.01)
        assert key_of("late") in str(caught.value)
        assert key_of("other") in str(caught.value)
        ends.producer.send(key_of("other"), 1)
        assert mail.value() == 1

    def test_a_value_that_comes_after_the_deadline_is_for_the_next_receive(self, ends: Ends) -> None:
        with pytest.raises(DeadlineExceededError):
            ends.consumer.recv(key_of(1), 0)
        ends.producer.send(key_of(1), "hello")
        assert ends.consumer.recv(key_of(1), SOON_S) == "hello"

    @pytest.mark.parametrize("timeout_s", [-1, float("nan")])
    def test_a_deadline_that_is_none_is_refused(self, ends: Ends, timeout_s: float) -> None:
        with pytest.raises(InvalidArgumentError, match="timeout_s"):
            ends.consumer.recv(key_of(1), timeout_s)

    def test_a_deadline_may_be_further_than_the_clock_reaches(self, ends: Ends) -> None:
        ends.producer.send(key_of(1), "hello")
        assert ends.consumer.recv(key_of(1), 1e300) == "hello"

    # --- cancel

    def test_a_cancelled_receive_gets_an_error_and_no_value(self, ends: Ends) -> None:
        mail = Mail()
        ends.consumer.recv_async(key_of(1), mail)
        assert ends.consumer.cancel(key_of(1), mail)
        assert isinstance(mail.error(), CancelledError)
        assert key_of(1) in str(mail.error())
        ends.producer.send(key_of(1), "for the next")
        assert ends.consumer.recv(key_of(1), SOON_S) == "for the next"

    def test_cancel_of_a_receive_that_has_its_value_does_nothing(self, ends: Ends) -> None:
        mail = Mail()
        ends.consumer.recv_async(key_of(1), mail)
        ends.producer.send(key_of(1), "hello")
        assert mail.value() == "hello"
        assert not ends.consumer.cancel(key_of(1), mail)
        assert mail.value() == "hello"

    def test_cancel_before_the_receive_does_nothing(self, ends: Ends) -> None:
        mail = Mail()
        assert not ends.consumer.cancel(key_of(1), mail)
        ends.consumer.recv_async(key_of(1), mail)
        ends.producer.send(key_of(1), "hello")
        assert mail.value() == "hello"

    def test_cancel_removes_only_its_own_receive_and_keeps_the_order_of_the_others(self, ends: Ends) -> None:
        mails = [Mail() for _ in range(3)]
        for mail in mails:
            ends.consumer.recv_async(key_of(1), mail)
        assert ends.consumer.cancel(key_of(1), mails[1])
        ends.producer.send(key_of(1), "a")
        ends.producer.send(key_of(1), "b")
        assert mails[0].value() == "a"
        assert isinstance(mails[1].error(), CancelledError)
        assert mails[2].value() == "b"

    def test_cancel_removes_one_of_several_receives_with_the_same_callback(self, ends: Ends) -> None:
        calls: list[Any] = []
        again = Mail()

        def done(value: Any, error: OpError | None) -> None:
            calls.append(value if error is None else type(error))

        for _ in range(3):
            ends.consumer.recv_async(key_of(1), done)
        ends.consumer.recv_async(key_of(1), again)
        assert ends.consumer.cancel(key_of(1), done)
        assert ends.consumer.cancel(key_of(1), done)
        for value in ("a", "b"):
            ends.producer.send(key_of(1), value)
        assert again.value() == "b"
        assert calls == [CancelledError, CancelledError, "a"]
        assert not ends.consumer.cancel(key_of(1), done)

    # --- abort

    def test_abort_wakes_all_who_wait_with_its_error(self, ends: Ends) -> None:
        mails = [Mail() for _ in range(6)]
        for i, mail in enumerate(mails):
            ends.consumer.recv_async(key_of(i // 2), mail)
        with ThreadPoolExecutor(2) as pool:
            blocked = [pool.submit(ends.consumer.recv, key_of(i), SOON_S) for i in range(2)]
            ends.producer.abort(AbortedError("the sum failed"))
            for future in blocked:
                with pytest.raises(AbortedError, match="the sum failed"):
                    future.result(SOON_S)
        assert {str(mail.error()) for mail in mails} == {"the sum failed"}

    def test_after_an_abort_every_call_fails_with_the_first_error(self, ends: Ends) -> None:
        ends.producer.send(key_of(1), "lost")
        ends.producer.abort(AbortedError("first"))
        ends.producer.abort(InternalError("second"))
        mail = Mail()
        ends.consumer.recv_async(key_of(1), mail)
        assert isinstance(mail.error(), AbortedError)
        for call in (
            lambda: ends.consumer.recv(key_of(1), SOON_S),
            lambda: ends.consumer.try_recv(key_of(1)),
            lambda: ends.producer.send(key_of(1), 0),
        ):
            with pytest.raises(AbortedError, match="first"):
                call()
        assert not ends.consumer.cancel(key_of(1), mail)

    def test_an_aborted_rendezvous_raises_a_new_error_each_time(self, ends: Ends) -> None:
        """The first one's traceback would otherwise grow with every call, and keep every caller's arrays."""
        error = AbortedError("stop", op="Sum", source="train.py:3")
        error.__cause__ = ZeroDivisionError()
        ends.producer.abort(error)
        raised = []
        for _ in range(2):
            with pytest.raises(AbortedError) as caught:
                ends.consumer.recv(key_of(1), SOON_S)
            raised.append(caught.value)
        assert raised[0] is not raised[1]
        for again in raised:
            assert (again.message, again.op, again.source) == (error.message, error.op, error.source)
            assert isinstance(again.__cause__, ZeroDivisionError)

    def test_an_aborted_rendezvous_is_empty(self, ends: Ends) -> None:
        ends.producer.send(key_of(1), "lost")
        ends.producer.send(key_of(1), "lost too")
        ends.producer.abort(AbortedError("stop"))
        ends.producer.check_empty()
        ends.consumer.check_empty()

    def test_abort_tells_everybody_also_when_a_callback_raises(self, ends: Ends) -> None:
        def bad(value: Any, error: OpError | None) -> None:
            raise ZeroDivisionError("in a callback")

        mail = Mail()
        ends.consumer.recv_async(key_of(1), bad)
        ends.consumer.recv_async(key_of(2), mail)
        with pytest.raises(ZeroDivisionError, match="in a callback"):
            ends.consumer.abort(AbortedError("stop"))
        assert isinstance(mail.error(), AbortedError)

    def test_abort_may_be_called_from_within_a_callback_of_abort(self, ends: Ends) -> None:
        later = Mail()

        def done(value: Any, error: OpError | None) -> None:
            ends.consumer.abort(InternalError("second"))
            ends.consumer.recv_async(key_of(2), later)

        ends.consumer.recv_async(key_of(1), done)
        ends.consumer.abort(AbortedError("first"))
        assert str(later.error()) == "first"

    # --- the end of a step

    def test_what_is_left_is_listed(self, ends: Ends) -> None:
        ends.producer.check_empty()
        ends.producer.send(key_of("twice"), 1)
        ends.producer.send(key_of("twice"), 2)
        with pytest.raises(InternalError, match=r"edge_twice:0;0:0 \(2 sent, not received\)"):
            ends.producer.check_empty()
        mail = Mail()
        ends.consumer.recv_async(key_of("never"), mail)
        with pytest.raises(InternalError, match=r"edge_never:0;0:0 \(1 waiting, not sent\)"):
            ends.consumer.check_empty()
        ends.producer.abort(AbortedError("cleaned up"))
        assert isinstance(mail.error(), AbortedError)

    def test_a_long_list_of_what_is_left_is_cut(self, ends: Ends) -> None:
        for i in range(1000):
            ends.producer.send(key_of(i), i)
        with pytest.raises(InternalError, match=r"and 990 more$"):
            ends.producer.check_empty()
        ends.producer.abort(AbortedError("cleaned up"))

    # --- threads

    def test_threads_lose_nothing_and_keep_the_order_of_each_key(self, ends: Ends) -> None:
        """Four producers and four consumers, each with a key of its own and a way of receiving of its own."""
        count = 300

        def produce(edge: int) -> None:
            rng = Random(edge)
            sent = 0
            while sent < count:
                for _ in range(rng.randint(1, 5)):
                    if sent < count:
                        ends.producer.send(key_of(edge), sent)
                        sent += 1

        def consume(edge: int) -> list[int]:
            return [receive[edge](key_of(edge)) for _ in range(count)]

        receive: list[Callable[[str], Any]] = [
            lambda key: ends.consumer.recv(key, SOON_S),
            ends.consumer.recv,
            lambda key: _by_callback(ends.consumer, key),
            lambda key: _by_short_deadlines(ends.consumer, key),
        ]
        with ThreadPoolExecutor(8) as pool:
            consumers = [pool.submit(consume, edge) for edge in range(4)]
            producers = [pool.submit(produce, edge) for edge in range(4)]
            for producer in producers:
                producer.result(SOON_S)
            for consumer in consumers:
                assert consumer.result(SOON_S) == list(range(count))

    def test_threads_that_share_a_key_receive_each_value_once(self, ends: Ends) -> None:
        count, threads = 300, 4

        def produce(start: int) -> None:
            for i in range(start, start + count):
                ends.producer.send(key_of(1), i)

        def consume() -> list[int]:
            return [ends.consumer.recv(key_of(1), SOON_S) for _ in range(count)]

        with ThreadPoolExecutor(2 * threads) as pool:
            consumers = [pool.submit(consume) for _ in range(threads)]
            for producer in [pool.submit(produce, i * count) for i in range(threads)]:
                producer.result(SOON_S)
            received = [value for consumer in consumers for value in consumer.result(SOON_S)]
        assert sorted(received) == list(range(threads * count))

    def test_an_abort_ends_every_thread_whatever_it_is_doing(self, ends: Ends) -> None:
        running = threading.Barrier(7)

        def until_aborted(step: Callable[[int], object]) -> str:
            running.wait(SOON_S)
            for i in range(10**9):
                try:
                    step(i)
                except AbortedError as error:
                    return str(error)
            raise AssertionError("not reached")

        steps: list[Callable[[int], object]] = [
            lambda i: ends.producer.send(key_of("sent", i), i),
            lambda i: ends.producer.send(key_of("shared"), i),
            lambda i: ends.consumer.recv(key_of("shared"), SOON_S),
            lambda i: ends.consumer.recv(key_of("never"), SOON_S),
            lambda i: _by_callback(ends.consumer, key_of("shared")),
            lambda i: ends.consumer.try_recv(key_of("shared")),
        ]
        with ThreadPoolExecutor(len(steps)) as pool:
            futures = [pool.submit(until_aborted, step) for step in steps]
            running.wait(SOON_S)
            ends.producer.abort(AbortedError("stop"))
            assert [future.result(SOON_S) for future in futures] == ["stop"] * len(steps)

    def test_of_racing_aborts_one_wins_and_everybody_gets_it(self, ends: Ends) -> None:
        running = threading.Barrier(8)

        def abort(i: int) -> None:
            running.wait(SOON_S)
            ends.producer.abort(AbortedError(f"error {i}"))

        def wait(i: int) -> str:
            running.wait(SOON_S)
            with pytest.raises(AbortedError) as caught:
                ends.consumer.recv(key_of(i), SOON_S)
            return str(caught.value)

        with ThreadPoolExecutor(8) as pool:
            waiting = [pool.submit(wait, i) for i in range(4)]
            for future in [pool.submit(abort, i) for i in range(4)]:
                future.result(SOON_S)
            assert len({future.result(SOON_S) for future in waiting}) == 1


def _by_callback(consumer: Rendezvous, key: str) -> Any:
    mail = Mail()
    consumer.recv_async(key, mail)
    value, error = mail.settled()
    if error is not None:
        raise error
    return value


def _by_short_deadlines(consumer: Rendezvous, key: str) -> Any:
    """Receive with deadlines so short that many end just as the value comes."""
    while True:
        try:
            return consumer.recv(key, 1e-6)
        except DeadlineExceededError:
            continue
