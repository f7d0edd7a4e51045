"""`LocalRendezvous`: the contract, and what only the local one promises about threads, lock and memory."""

from __future__ import annotations

import gc
import signal
import sys
import threading
import time
import weakref
from collections import deque
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from flowrt.errors import AbortedError, InternalError, OpError
from flowrt.rendezvous import Action, LocalRendezvous
from flowrt.rendezvous.matching.local import Done, _Mailbox, perform
from tests.contracts.check_rendezvous import SOON_S, Ends, Mail, RendezvousContract


@pytest.fixture(autouse=True)
def threads_change_often() -> Iterator[None]:
    """A hundred times more thread switches, so that races between two statements happen."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(5e-5)
    yield
    sys.setswitchinterval(before)


class TestLocalRendezvous(RendezvousContract):
    @pytest.fixture
    def ends(self, rendezvous: LocalRendezvous) -> Ends:
        return Ends(rendezvous, rendezvous)


def test_try_recv_takes_values_in_order(rendezvous: LocalRendezvous) -> None:
    for i in range(3):
        rendezvous.send("key", i)
    assert [rendezvous.try_recv("key", "none") for _ in range(4)] == [0, 1, 2, "none"]


def test_any_hashable_is_a_key(rendezvous: LocalRendezvous) -> None:
    for key in (("edge", 0), 7, frozenset("ab")):
        rendezvous.send(key, repr(key))
    for key in (("edge", 0), 7, frozenset("ab")):
        assert rendezvous.try_recv(key) == repr(key)


def test_a_waiter_is_told_in_the_thread_that_sends_and_without_the_lock(rendezvous: LocalRendezvous) -> None:
    told_in: list[tuple[int, bool]] = []

    def done(value: Any, error: OpError | None) -> None:
        told_in.append((threading.get_ident(), rendezvous._lock.locked()))

    def sender() -> int:
        rendezvous.send("key", 1)
        return threading.get_ident()

    rendezvous.recv_async("key", done)
    with ThreadPoolExecutor(1) as pool:
        sender_thread = pool.submit(sender).result(SOON_S)
    assert told_in == [(sender_thread, False)]
    rendezvous.send("key", 1)
    rendezvous.recv_async("key", done)
    assert told_in[1] == (threading.get_ident(), False)


def test_a_value_is_the_same_object_and_not_kept(rendezvous: LocalRendezvous) -> None:
    class Value:
        pass

    value = Value()
    gone = weakref.ref(value)
    rendezvous.send("key", value)
    assert rendezvous.recv("key") is value
    rendezvous.send("key", value)
    del value
    assert gone() is not None
    rendezvous.abort(AbortedError("stop"))
    gc.collect()
    assert gone() is None


def test_a_loop_over_iterations_leaves_nothing_behind(rendezvous: LocalRendezvous) -> None:
    table = rendezvous._table
    for i in range(100):
        rendezvous.send(i, i)
        rendezvous.send(i, i)
        rendezvous.recv(i)
        rendezvous.recv(i)
        mail = Mail()
        rendezvous.recv_async(i, mail)
        rendezvous.send(i, i)
        rendezvous.recv_async(i, mail)
        rendezvous.cancel(i, mail)
    assert [table._values, table._further, table._waiters] == [{}, {}, {}]


def test_a_value_that_meets_a_receive_in_its_last_moment_is_received(
    rendezvous: LocalRendezvous, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The deadline passes, a sender decides on this receive but acts late, and the receive looks again."""
    wait = _Mailbox.wait
    actions: list[Action[Done]] = []

    def wait_with_a_slow_sender(mailbox: _Mailbox, timeout_s: float | None) -> bool:
        if timeout_s is None:
            perform(actions)
            return wait(mailbox, timeout_s)
        assert not wait(mailbox, timeout_s)
        with rendezvous._lock:
            actions.extend(rendezvous._table.send("key", "just in time"))
        return False

    monkeypatch.setattr(_Mailbox, "wait", wait_with_a_slow_sender)
    assert rendezvous.recv("key", 0) == "just in time"


def test_the_table_is_touched_under_the_lock_only(rendezvous: LocalRendezvous) -> None:
    class Key:
        def __hash__(self) -> int:
            locked.append(rendezvous._lock.locked())
            return 1

    locked: list[bool] = []
    key, mail = Key(), Mail()
    for call in (
        lambda: rendezvous.send(key, 1),
        lambda: rendezvous.try_recv(key),
        lambda: rendezvous.recv_async(key, mail),
        lambda: rendezvous.cancel(key, mail),
    ):
        call()
        assert locked, "the key was not looked up"
        assert all(locked)
        locked.clear()


def test_an_interrupted_receive_is_withdrawn(rendezvous: LocalRendezvous) -> None:
    """Ctrl-C in the main thread, in the middle of a blocking receive; another signal stands for SIGINT."""
    main = threading.get_ident()

    def interrupt_when_it_waits() -> None:
        while not rendezvous.pending():
            time.sleep(0.001)
        signal.pthread_kill(main, signal.SIGUSR1)

    before = signal.signal(signal.SIGUSR1, signal.default_int_handler)
    try:
        with ThreadPoolExecutor(1) as pool:
            pool.submit(interrupt_when_it_waits)
            with pytest.raises(KeyboardInterrupt):
                rendezvous.recv("key", SOON_S)
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert rendezvous.pending() == []


def test_an_error_of_a_callback_reaches_the_sender_whose_value_was_delivered(
    rendezvous: LocalRendezvous,
) -> None:
    def bad(value: Any, error: OpError | None) -> None:
        raise ZeroDivisionError("in a callback")

    rendezvous.recv_async("key", bad)
    with pytest.raises(ZeroDivisionError, match="in a callback"):
        rendezvous.send("key", 1)
    rendezvous.send("key", 2)
    assert rendezvous.recv("key") == 2


def test_check_empty_finds_a_table_that_is_out_of_order() -> None:
    rendezvous = LocalRendezvous()
    rendezvous.send("key", 1)
    rendezvous._table._waiters["key"] = deque([Mail()])
    with pytest.raises(
        InternalError, match="rendezvous table: expected values or waiters, never both; got key"
    ):
        rendezvous.check_empty()
