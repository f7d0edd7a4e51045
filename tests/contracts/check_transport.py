"""What every transport must do: a class of tests, which the test file of an implementation subclasses.

Both ends are in this process, unless one has to die: what they do may take a moment to show at the other, so
tests wait for that, with a deadline.
"""

from __future__ import annotations

import gc
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from random import Random
from typing import NamedTuple

import numpy as np
import pytest

from flowrt.errors import AlreadyExistsError, FailedPreconditionError, InvalidArgumentError, UnavailableError
from flowrt.rendezvous.channel.channel import Lead
from flowrt.rendezvous.transport import Bytes, Connection, Listener, Transport

SOON_S = 60.0  # what should happen at once has happened after this, also on a loaded machine
CONNECT_S = 60.0
SIZES = (0, 1, 63, 64, 4097, (64 << 10) - 1, 64 << 10, 300_001)  # around what is joined, shared, read at once


def wait_until(condition: Callable[[], object], what: str, timeout_s: float = SOON_S) -> None:
    end = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < end, f"not within {timeout_s} s: {what}"
        time.sleep(0.001)


def random_bytes(nbytes: int, seed: int = 0) -> Bytes:
    return np.random.default_rng([seed, nbytes]).integers(0, 256, nbytes, np.uint8)


class Inbox:
    """A receiver that keeps what it is given."""

    def __init__(self, on_frame: Callable[[Connection, bytes, list[Bytes]], None] | None = None) -> None:
        self.frames: list[tuple[bytes, list[Bytes]]] = []
        self.errors: list[UnavailableError] = []
        self._then = on_frame

    def on_frame(self, connection: Connection, header: bytes, payload: list[Bytes]) -> None:
        self.frames.append((header, payload))
        if self._then is not None:
            self._then(connection, header, payload)

    def on_lost(self, connection: Connection, error: UnavailableError) -> None:
        self.errors.append(error)

    def wait(self, count: int) -> list[tuple[bytes, list[Bytes]]]:
        wait_until(
            lambda: len(self.frames) >= count or self.errors, f"{count} frames, {len(self.frames)} came"
        )
        assert len(self.frames) == count, self.errors
        return self.frames

    def wait_lost(self, timeout_s: float = SOON_S) -> UnavailableError:
        wait_until(lambda: self.errors, "the loss of the connection", timeout_s)
        return self.errors[0]


class Pair(NamedTuple):
    """A connection by its two ends."""

    dialled: Connection
    accepted: Connection


def open_files() -> int:
    gc.collect()
    return len(os.listdir("/proc/self/fd"))


def asked_to_lead(pair: Pair, inbox: Inbox) -> Lead | None:
    """The turn to read at the accepted end, which has ``inbox``; None if it has none. The first frame after
    the question makes the reader thread give way.
    """
    lead, begun = pair.accepted.lead(), len(inbox.frames)
    pair.dialled.send(b"give way")
    inbox.wait(begun + 1)
    if lead is None:
        end = time.monotonic() + 0.2
        while (lead := pair.accepted.lead()) is None and time.monotonic() < end:
            time.sleep(0.001)
    return lead


class TransportContract:
    """Needs a fixture ``transport``."""

    @pytest.fixture
    def accepted(self) -> list[Connection]:
        return []

    @pytest.fixture
    def listener(self, transport: Transport, accepted: list[Connection]) -> Iterator[Listener]:
        listener = transport.listen("127.0.0.1:0", accepted.append)
        yield listener
        listener.close()

    @pytest.fixture
    def pair(self, transport: Transport, listener: Listener, accepted: list[Connection]) -> Iterator[Pair]:
        dialled = transport.connect(listener.address, CONNECT_S)
        wait_until(lambda: accepted, "accept is called")
        yield Pair(dialled, accepted[0])
        dialled.close()
        accepted[0].close()

    def test_frames_arrive_whole_and_in_order_in_both_directions(self, pair: Pair) -> None:
        random = Random(0)
        frames = [
            (
                str(i).encode() * random.choice((0, 1, 5000)),
                [random_bytes(s, i) for s in random.choices(SIZES, k=i % 5)],
            )
            for i in range(60)
        ]
        inboxes = [Inbox(), Inbox()]
        threads = []
        for end, inbox in zip(pair, inboxes, strict=True):
            end.start(inbox)
            threads.append(threading.Thread(target=lambda end=end: [end.send(*frame) for frame in frames]))
        for thread in threads:
            thread.start()
        for inbox in inboxes:
            for (header, payload), (came_header, came) in zip(frames, inbox.wait(len(frames)), strict=True):
                assert came_header == header
                assert_same(came, payload)
        for thread in threads:
            thread.join(SOON_S)

    def test_what_arrives_is_aligned_and_the_receivers_own(self, pair: Pair) -> None:
        sent = [random_bytes(size) for size in SIZES]
        inbox = Inbox()
        pair.accepted.start(inbox)
        pair.dialled.send(b"first", sent)
        pair.dialled.send(b"second", sent)
        (_, first), (_, second) = inbox.wait(2)
        for array in first:
            assert array.dtype == np.uint8
            assert not array.nbytes or array.ctypes.data % 64 == 0
            array[:] = 0
        assert_same(second, sent)

    def test_an_array_stays_as_it_is_while_somebody_looks_at_it(self, pair: Pair) -> None:
        """Its memory may be used anew only when the last view is dead."""
        inbox = Inbox()
        pair.accepted.start(inbox)
        first = random_bytes(200_000)
        pair.dialled.send(b"", [first])
        view = inbox.wait(1)[0][1].pop()[100:].view(np.uint32)
        for seed in range(5):
            pair.dialled.send(b"", [random_bytes(200_000, seed + 1)])
            inbox.wait(seed + 2)[-1][1].clear()
        assert np.array_equal(view, first[100:].view(np.uint32))

    def test_large_payloads_in_both_directions_at_once(self, pair: Pair) -> None:
        """Each end sends from its reader thread too: if `send` waited for the peer, both would for ever."""
        large = random_bytes(12 << 20)

        def answer(connection: Connection, header: bytes, payload: list[Bytes]) -> None:
            if header == b"ask":
                connection.send(b"answer", payload)

        inboxes = [Inbox(answer), Inbox(answer)]
        for end, inbox in zip(pair, inboxes, strict=True):
            end.start(inbox)
        for _ in range(2):
            for end in pair:
                end.send(b"ask", [large])
        for inbox in inboxes:
            for _, payload in inbox.wait(4):
                assert_same(payload, [large])

    def test_send_does_not_wait_for_a_receiver(self, pair: Pair) -> None:
        arrays = [random_bytes(1 << 20, seed) for seed in range(8)]
        for array in arrays:
            pair.dialled.send(b"x", [array])
        inbox = Inbox()
        pair.accepted.start(inbox)
        assert_same([payload[0] for _, payload in inbox.wait(len(arrays))], arrays)

    def test_threads_that_wait_read_themselves(self, pair: Pair) -> None:
        """By turns, with each other and with the reader thread: each frame comes once, and in order. A frame
        that everybody leaves to others never comes.
        """
        random, count, threads = Random(1), 400, 3
        frames = [
            (b"%d" % i, [random_bytes(s, i) for s in random.choices(SIZES, k=random.choice((0, 1, 1, 3)))])
            for i in range(count)
        ]
        inbox = Inbox()
        is_over = threading.Event()
        pair.accepted.start(inbox)

        def read(pauses: Random) -> None:
            while not is_over.is_set():
                if (lead := pair.accepted.lead()) is not None:
                    for _ in range(pauses.randrange(4)):
                        lead.wait(0.01)
                    lead.release()
                time.sleep(pauses.choice((0, 0, 0.001)))

        readers = [threading.Thread(target=read, args=(Random(i),)) for i in range(threads)]
        for reader in readers:
            reader.start()
        for number, frame in enumerate(frames):
            pair.dialled.send(*frame)
            if number % 7 == 0:  # so that the end of a burst must come without another one behind it
                inbox.wait(number + 1)
        inbox.wait(count)
        is_over.set()
        for reader in readers:
            reader.join(SOON_S)
        for (header, payload), (came_header, arrays) in zip(frames, inbox.frames, strict=True):
            assert came_header == header
            assert_same(arrays, payload)

    @pytest.mark.parametrize("how", ["close", "abort"])
    def test_a_loss_while_a_thread_leads_is_told_once(self, pair: Pair, how: str) -> None:
        inbox = Inbox()
        pair.accepted.start(inbox)
        lead = asked_to_lead(pair, inbox)
        threading.Timer(0.1, getattr(pair.dialled, how)).start()
        end = time.monotonic() + SOON_S
        while not inbox.errors and time.monotonic() < end:
            if lead is not None:
                lead.wait(0.05)
        assert len(inbox.errors) == 1
        assert pair.accepted.peer in str(inbox.errors[0])

    def test_a_leader_is_woken(self, pair: Pair) -> None:
        """Now, and where that came before it waits."""
        inbox = Inbox()
        pair.accepted.start(inbox)
        lead = asked_to_lead(pair, inbox)
        if lead is not None:
            assert pair.accepted.lead() is None, "one at a time"
            for delay in (0.0, 0.1):
                waker = threading.Timer(delay, lead.wake)
                waker.start()
                lead.wait(None)
                waker.join()
            lead.release()

    @pytest.mark.parametrize("how", ["close", "abort"])
    def test_a_leader_may_end_the_connection_for_a_frame(self, pair: Pair, how: str) -> None:
        inbox = Inbox(lambda connection, header, payload: header == b"end" and getattr(connection, how)())
        pair.accepted.start(inbox)
        lead = asked_to_lead(pair, inbox)
        began = time.monotonic()
        threading.Timer(0.1, pair.dialled.send, (b"end",)).start()
        while (b"end", []) not in inbox.frames and time.monotonic() < began + SOON_S:
            if lead is not None:
                lead.wait(0.05)
        assert (b"end", []) in inbox.frames
        assert inbox.errors == []

    def test_after_sent_the_bytes_may_change(self, pair: Pair) -> None:
        inbox = Inbox()
        buffers = [random_bytes(size) for size in (*SIZES, 6 << 20)]  # the last is more than a kernel buffers
        expected = [[buffer + np.uint8(change) for buffer in buffers] for change in range(5)]
        pair.accepted.start(inbox)
        pair.dialled.start(Inbox())
        calls = []
        for _ in expected:
            sent = threading.Event()
            pair.dialled.send(b"", buffers, lambda sent=sent: (calls.append(1), sent.set()))
            assert sent.wait(SOON_S)
            for buffer in buffers:
                buffer += np.uint8(1)
        for (_, payload), arrays in zip(inbox.wait(5), expected, strict=True):
            assert_same(payload, arrays)
        assert len(calls) == 5

    def test_sent_is_called_when_the_connection_ends_instead(self, pair: Pair) -> None:
        """The peer reads nothing, so most of this can never be written."""
        calls: list[int] = []
        array = random_bytes(1 << 20)
        for i in range(40):
            pair.dialled.send(b"", [array], lambda i=i: calls.append(i))
        pair.dialled.abort()
        wait_until(lambda: len(calls) == 40, "sent is called for each frame")
        assert sorted(calls) == list(range(40))

    def test_close_writes_what_is_queued(self, pair: Pair) -> None:
        inbox, closed = Inbox(), Inbox()
        pair.accepted.start(inbox)
        pair.dialled.start(closed)
        arrays = [random_bytes(400_000, seed) for seed in range(20)]
        for array in arrays:
            pair.dialled.send(b"x", [array])
        pair.dialled.close()
        error = inbox.wait_lost()
        assert_same([payload[0] for _, payload in inbox.frames], arrays)
        assert "closed by the peer" in error.message
        assert pair.accepted.peer in error.message
        assert not closed.errors

    def test_an_end_that_was_closed_refuses(self, pair: Pair) -> None:
        inbox = Inbox()
        pair.accepted.start(inbox)
        pair.dialled.close()
        pair.dialled.close()
        with pytest.raises(UnavailableError, match="closed by this task"):
            pair.dialled.send(b"x")
        inbox.wait_lost()
        with pytest.raises(UnavailableError, match="closed by the peer"):
            pair.accepted.send(b"x")
        assert len(inbox.errors) == 1

    def test_a_receiver_may_close_in_on_frame_and_in_on_lost(self, pair: Pair) -> None:
        closing, lost = Inbox(lambda connection, header, payload: connection.close()), Inbox()
        lost.on_lost = lambda connection, error: (lost.errors.append(error), connection.close())  # type: ignore[method-assign]
        pair.accepted.start(closing)
        pair.dialled.start(lost)
        pair.dialled.send(b"x")
        lost.wait_lost()
        assert not closing.errors

    def test_an_error_of_the_receiver_loses_the_connection(self, pair: Pair) -> None:
        def fail(connection: Connection, header: bytes, payload: list[Bytes]) -> None:
            raise RuntimeError("of the receiver")

        inbox, other = Inbox(fail), Inbox()
        pair.accepted.start(inbox)
        pair.dialled.start(other)
        pair.dialled.send(b"x")
        assert "of the receiver" in inbox.wait_lost().message
        assert isinstance(inbox.errors[0].__cause__, RuntimeError)
        other.wait_lost()

    def test_a_frame_that_is_none_is_refused_and_nothing_is_lost(self, pair: Pair) -> None:
        inbox = Inbox()
        pair.accepted.start(inbox)
        for wrong in (np.zeros(3), np.zeros((100_000, 2), np.uint8)[:, 0]):
            with pytest.raises(InvalidArgumentError, match="uint8"):
                pair.dialled.send(b"x", [random_bytes(100_000), wrong])
        pair.dialled.send(b"y")
        assert inbox.wait(1) == [(b"y", [])]

    def test_start_is_called_once(self, pair: Pair) -> None:
        pair.accepted.start(Inbox())
        pair.dialled.start(Inbox())
        with pytest.raises(FailedPreconditionError, match="one call"):
            pair.dialled.start(Inbox())

    @pytest.mark.parametrize("how", ["start", "close"])
    def test_another_thread_may_close_before_the_reader_runs(
        self, pair: Pair, how: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A thread can be joined only once it has been started."""
        begin = threading.Thread.start

        def close_and_begin(thread: threading.Thread) -> None:
            if thread.name.startswith("read "):
                monkeypatch.undo()
                with ThreadPoolExecutor(1) as other:
                    other.submit(pair.dialled.close).result()
            begin(thread)

        pair.accepted.start(Inbox())
        monkeypatch.setattr(threading.Thread, "start", close_and_begin)
        if how == "start":
            pair.dialled.start(Inbox())
        pair.dialled.close()

    def test_nothing_is_left(
        self, transport: Transport, listener: Listener, accepted: list[Connection]
    ) -> None:
        def talk(finish: Callable[[Connection, Connection], None]) -> None:
            dialled = transport.connect(listener.address, CONNECT_S)
            wait_until(lambda: accepted, "accept is called")
            inboxes = Inbox(), Inbox()
            dialled.start(inboxes[0])
            accepted[0].start(inboxes[1])
            for end, inbox in ((dialled, inboxes[1]), (accepted[0], inboxes[0])):
                end.send(b"x", [random_bytes(200_000)])
                inbox.wait(1)
            finish(dialled, accepted.pop())

        def close_both(dialled: Connection, accepted: Connection) -> None:
            dialled.close()
            accepted.close()

        def close_one(dialled: Connection, accepted: Connection) -> None:
            accepted.close()  # the other end lets go of everything by itself

        threads = threading.active_count()

        def is_quiet() -> bool:
            return threading.active_count() <= threads

        for finish in (close_both, close_one):
            talk(finish)
        wait_until(is_quiet, f"threads end: {threading.enumerate()}")
        files = open_files()
        for finish in (close_both, close_one) * 3:
            talk(finish)
        wait_until(is_quiet, "threads end")
        wait_until(lambda: open_files() <= files, f"{files} open files")

    def test_nobody_listens(self, transport: Transport) -> None:
        listener = transport.listen("127.0.0.1:0", lambda connection: None)
        listener.close()
        listener.close()
        with pytest.raises(UnavailableError, match=f"{listener.address}.*refused"):
            transport.connect(listener.address, CONNECT_S)

    def test_a_port_that_is_taken(self, transport: Transport, listener: Listener) -> None:
        with pytest.raises(AlreadyExistsError, match=f"{listener.address}: .*Is this task already running"):
            transport.listen(listener.address, lambda connection: None)

    def test_closing_the_listener_ends_what_it_accepted(self, pair: Pair, listener: Listener) -> None:
        inbox = Inbox()
        pair.dialled.start(inbox)
        listener.close()
        inbox.wait_lost()


def assert_same(arrays: Sequence[Bytes], expected: Sequence[Bytes]) -> None:
    assert len(arrays) == len(expected)
    for array, other in zip(arrays, expected, strict=True):
        assert np.array_equal(array, other)
