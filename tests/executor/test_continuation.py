"""A relayed program is run to its end once, by whoever brings its tensors, whatever comes first."""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flowrt.errors import AbortedError, CancelledError, DeadlineExceededError, InvalidArgumentError
from flowrt.executor.program.continuation import Continuation
from flowrt.executor.program.control_flow import PAUSE
from flowrt.executor.program.runner import StepControl
from flowrt.rendezvous import LocalRendezvous

SOON_S = 60.0


class Step:
    """A program that adds up what comes under each key of ``keys``, and its end."""

    def __init__(
        self,
        keys: Sequence[str],
        work: Callable[[Any], object] = lambda value: None,
        timeout_s: float | None = None,
    ) -> None:
        self.rendezvous, self.control = LocalRendezvous(), StepControl(timeout_s)
        self.ends: list[tuple[Sequence[Any], BaseException | None]] = []
        self.threads: list[int] = []
        """Which thread took each value."""
        self.is_over = threading.Event()
        self._keys, self._work, self._sum = keys, work, 0
        self.continuation = Continuation(
            self._run(), self.control, self.rendezvous, lambda: [self._sum], self._ended
        )

    def _run(self) -> Generator[Any, Any, None]:
        for key in self._keys:
            value = self.rendezvous.try_recv(key)
            while value is None:
                value = yield key
            self._sum += value
            self.threads.append(threading.get_ident())
            self._work(value)
            yield PAUSE

    def _ended(self, values: Sequence[Any], error: BaseException | None) -> None:
        self.ends.append((values, error))
        self.is_over.set()


def keys_of(count: int) -> list[str]:
    return [f"k{i}" for i in range(count)]


def test_what_numpy_would_warn_of_is_no_error_in_it_and_stays_one_outside() -> None:
    step = Step(keys_of(2), work=lambda value: np.log(np.zeros(1)))
    with np.errstate(all="raise"):
        step.rendezvous.send("k0", 1)
        step.continuation.start()
        step.rendezvous.send("k1", 2)
        assert step.ends == [([3], None)]
        with pytest.raises(FloatingPointError):
            np.log(np.zeros(1))


@settings(deadline=None)
@given(st.permutations(range(6)), st.integers(0, 6))
def test_values_may_come_in_any_order_before_the_start_and_after_it(order: list[int], before: int) -> None:
    step = Step(keys_of(6))
    for i in order[:before]:
        step.rendezvous.send(f"k{i}", 10**i)
    step.continuation.start()
    for i in order[before:]:
        assert not step.ends
        step.rendezvous.send(f"k{i}", 10**i)
    assert step.ends == [([111111], None)]
    step.rendezvous.check_empty()


def test_a_thousand_values_that_are_there_do_not_deepen_the_stack() -> None:
    step = Step(keys_of(5000))
    for key in keys_of(5000):
        step.rendezvous.send(key, 1)
    step.continuation.start()
    assert step.ends == [([5000], None)]


def test_who_brings_a_value_goes_on_and_nobody_waits() -> None:
    step = Step(keys_of(3))
    step.continuation.start()
    idents = []
    for key in keys_of(3):
        thread = threading.Thread(target=step.rendezvous.send, args=(key, 1))
        thread.start()
        thread.join(SOON_S)
        idents.append(thread.ident)
    assert step.threads == idents
    assert step.ends == [([3], None)]


@pytest.mark.parametrize("threads", [2, 4])
def test_many_threads_bring_values_at_once(threads: int) -> None:
    step = Step(keys_of(2000))

    def bring(first: int) -> None:
        for i in range(first, 2000, threads):
            step.rendezvous.send(f"k{i}", 1)

    bringing = [threading.Thread(target=bring, args=(first,)) for first in range(threads)]
    for thread in bringing:
        thread.start()
    step.continuation.start()
    assert step.is_over.wait(SOON_S)
    for thread in bringing:
        thread.join(SOON_S)
    assert step.ends == [([2000], None)]


def test_two_relays_hand_a_value_back_and_forth() -> None:
    """Each runs in the other's send; the stack stays flat all the same."""
    there, back = Step(keys_of(3000)), Step(keys_of(3000))
    there._work = lambda _: back.rendezvous.send(f"k{len(there.threads) - 1}", 1)
    back._work = lambda _: len(back.threads) < 3000 and there.rendezvous.send(f"k{len(back.threads)}", 1)
    there.continuation.start()
    back.continuation.start()
    there.rendezvous.send("k0", 1)
    assert there.ends == back.ends == [([3000], None)]


def test_a_program_that_fails_ends_the_step_with_its_error() -> None:
    def fail(value: Any) -> None:
        raise InvalidArgumentError("no such value")

    step = Step(keys_of(2), fail)
    step.continuation.start()
    step.rendezvous.send("k0", 1)
    ((values, error),) = step.ends
    assert values == ()
    assert isinstance(error, InvalidArgumentError)


@pytest.mark.parametrize("when", ["before", "waiting"])
def test_an_abort_ends_it(when: str) -> None:
    step = Step(keys_of(2))
    if when == "waiting":
        step.continuation.start()
    step.rendezvous.abort(AbortedError("a peer is gone"))
    if when == "before":
        step.continuation.start()
    ((_, error),) = step.ends
    assert isinstance(error, AbortedError)


def test_a_cancelled_step_ends_where_it_waits_and_where_it_runs() -> None:
    waits = Step(keys_of(1))
    waits.continuation.start()
    waits.control.cancel(CancelledError("enough"))
    runs = Step(keys_of(2), lambda value: runs.control.cancel(CancelledError("enough")))
    for key in keys_of(2):
        runs.rendezvous.send(key, 1)
    runs.continuation.start()
    assert len(runs.threads) == 1
    for step in (waits, runs):
        ((_, error),) = step.ends
        assert isinstance(error, CancelledError)


def test_a_deadline_that_has_passed_ends_it_at_its_next_pause() -> None:
    step = Step(keys_of(2), timeout_s=0.0)
    for key in keys_of(2):
        step.rendezvous.send(key, 1)
    step.continuation.start()
    ((_, error),) = step.ends
    assert isinstance(error, DeadlineExceededError)
    assert len(step.threads) == 1


def test_an_interrupt_ends_the_step_and_reaches_its_thread() -> None:
    def interrupt(value: Any) -> None:
        raise KeyboardInterrupt

    step = Step(keys_of(1), interrupt)
    step.rendezvous.send("k0", 1)
    with pytest.raises(KeyboardInterrupt):
        step.continuation.start()
    ((_, error),) = step.ends
    assert isinstance(error, KeyboardInterrupt)


def test_what_finish_raises_is_the_step_s_error() -> None:
    step = Step(keys_of(0))

    def refuse() -> list[Any]:
        raise InvalidArgumentError("the fetches are too large")

    Continuation(step._run(), step.control, step.rendezvous, refuse, step._ended).start()
    ((_, error),) = step.ends
    assert isinstance(error, InvalidArgumentError)
