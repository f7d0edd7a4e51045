"""What every stream executor must do: classes of tests, which the test file of an implementation subclasses.

A test sees an executor through its public methods, and data only through copies. A device that only pretends
(``executor.computes`` is false) is held to everything but its data and the calling of launched functions.
"""

from __future__ import annotations

import logging
import threading
import time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowrt.device.stream_executor import DeviceMemory, Event, EventStatus, Stream, StreamExecutor
from flowrt.errors import (
    DeadlineExceededError,
    FailedPreconditionError,
    InternalError,
    InvalidArgumentError,
    ResourceExhaustedError,
    UnimplementedError,
)
from tests.contracts.check_device_memory import DeviceMemoryContract
from tests.contracts.stream_executor_case import NOT_YET_S, SOON_S, Recorder, bang, boom, fail, fill, read

THREE = st.integers(0, 2)


class StreamExecutorContract(DeviceMemoryContract):
    """Subclass it as ``Test...`` and say what ``case`` it is."""

    # --- one stream

    def test_work_of_a_stream_is_done_in_order(self, executor: StreamExecutor, stream: Stream) -> None:
        recorder = self.case.recorder(executor)
        for label in range(200):
            recorder.put(stream, label)
        executor.block_host_until_done(stream, SOON_S)
        spans = recorder.spans()
        assert sorted(spans) == list(range(200))
        for label in range(199):
            assert spans[label][1] <= spans[label + 1][0]

    def test_callbacks_are_called_in_order(self, executor: StreamExecutor, stream: Stream) -> None:
        called: list[int] = []
        for i in range(100):
            executor.host_callback(stream, lambda i=i: called.append(i))
        executor.block_host_until_done(stream, SOON_S)
        assert called == list(range(100))

    def test_launch_calls_with_the_arguments_and_the_stream(
        self, executor: StreamExecutor, stream: Stream, memory: DeviceMemory
    ) -> None:
        array = executor.array(memory, (4,), np.float32)
        executor.memset(stream, memory, 0)
        executor.launch(stream, lambda x, value: executor.xp.add(x, value, out=x), array, 2.5)
        target = np.zeros(4, np.float32)
        executor.memcpy_to_host(stream, target, memory.slice(0, 16))
        executor.block_host_until_done(stream, SOON_S)
        if executor.computes:
            np.testing.assert_array_equal(target, np.full(4, 2.5, np.float32))

    def test_a_stream_of_another_device_is_refused(self, executor: StreamExecutor, stream: Stream) -> None:
        stranger = self.case.make()
        foreign = self.case.create_stream(stranger, "foreign")
        for use in (
            lambda: executor.host_callback(foreign, boom),
            lambda: executor.record(foreign, executor.create_event()),
            lambda: executor.block_host_until_done(foreign),
        ):
            with pytest.raises(InvalidArgumentError, match="a stream of this device"):
                use()
        stranger.close()

    def test_a_kernel_runs_inside_activate(
        self, executor: StreamExecutor, stream: Stream, other: Stream, memory: DeviceMemory
    ) -> None:
        array = executor.array(memory, (4,), np.float32)
        kernel = executor.kernel("square", executor.xp.square, 1e-6)
        with executor.activate(stream):
            assert kernel(array, out=array) is array
            executor.use(other)
            assert kernel(array, out=array) is array

    # --- events

    def test_an_event_is_complete_when_the_stream_has_passed_it(
        self, executor: StreamExecutor, stream: Stream
    ) -> None:
        event = executor.create_event()
        assert event.poll() is EventStatus.UNKNOWN
        executor.record(stream, event)
        executor.block_host_until_done(stream, SOON_S)
        assert event.poll() is EventStatus.COMPLETE

    def test_an_event_is_recorded_before_it_is_waited_for(
        self, executor: StreamExecutor, stream: Stream
    ) -> None:
        with pytest.raises(FailedPreconditionError, match="was recorded"):
            executor.wait_for(stream, executor.create_event())
        executor.block_host_until_done(stream, SOON_S)

    def test_timed_events_tell_what_was_between_them(self, executor: StreamExecutor, stream: Stream) -> None:
        memory, events = executor.allocate(1 << 20), [executor.create_timed_event() for _ in range(3)]
        if events[0] is None:
            with pytest.raises(UnimplementedError, match="no timed events"):
                executor.elapsed_ns(executor.create_event(), executor.create_event())
            return
        for event in events:
            executor.record(stream, event)
            fill(executor, stream, memory, 1)
        executor.block_host_until_done(stream, SOON_S)
        first, second, last = events
        parts = executor.elapsed_ns(first, second), executor.elapsed_ns(second, last)
        assert min(parts) >= 0
        assert executor.elapsed_ns(first, last) == pytest.approx(sum(parts), abs=2000)

    def test_all_who_wait_for_an_event_are_called_whatever_one_of_them_raises(
        self, executor: StreamExecutor, stream: Stream, caplog: pytest.LogCaptureFixture
    ) -> None:
        event, called = executor.create_event(), threading.Semaphore(0)

        def bad_value() -> None:
            raise ValueError("of a callback")

        executor.record(stream, event)
        with caplog.at_level(logging.ERROR):
            for function in (bang, called.release, bad_value, called.release):
                executor.when_done(event, function)
            assert called.acquire(timeout=SOON_S)
            assert called.acquire(timeout=SOON_S)
            end = time.monotonic() + SOON_S  # of a stream that is done already, others are called here
            while not ("bang" in caplog.text and "of a callback" in caplog.text):
                assert time.monotonic() < end
                time.sleep(0.001)
        executor.block_host_until_done(stream, SOON_S)

    def test_a_stream_may_wait_for_itself(self, executor: StreamExecutor, stream: Stream) -> None:
        executor.wait_for(stream, stream)
        executor.block_host_until_done(stream, SOON_S)

    # --- failure

    def test_the_first_error_sticks(self, executor: StreamExecutor, stream: Stream) -> None:
        error = fail(executor, stream)
        assert isinstance(error, ResourceExhaustedError)
        assert str(stream.error) == str(error)
        for _ in range(2):
            with pytest.raises(ResourceExhaustedError, match="boom"):
                executor.block_host_until_done(stream, SOON_S)
            with pytest.raises(ResourceExhaustedError, match="boom"):
                executor.host_callback(stream, bang)
        stream.fail(ZeroDivisionError("later"))
        assert str(stream.error) == str(error)

    def test_a_launch_that_raises_fails_the_stream(self, executor: StreamExecutor, stream: Stream) -> None:
        executor.launch(stream, boom)
        if executor.computes:
            with pytest.raises(ResourceExhaustedError, match="boom"):
                executor.block_host_until_done(stream, SOON_S)

    def test_a_foreign_error_is_wrapped(self, executor: StreamExecutor, stream: Stream) -> None:
        error = fail(executor, stream, bang)
        assert isinstance(error, InternalError)
        assert isinstance(error.__cause__, ZeroDivisionError)

    def test_all_work_is_refused_after_a_failure(
        self, executor: StreamExecutor, stream: Stream, other: Stream, memory: DeviceMemory
    ) -> None:
        event, host = executor.create_event(), np.zeros(memory.nbytes, np.uint8)
        executor.record(other, event)
        fail(executor, stream)
        for use in (
            lambda: executor.memcpy_to_device(stream, memory, host),
            lambda: executor.memcpy_to_host(stream, host, memory),
            lambda: executor.memcpy(stream, memory, memory),
            lambda: executor.memset(stream, memory, 0),
            lambda: executor.launch(stream, boom),
            lambda: executor.record(stream, event),
            lambda: executor.wait_for(stream, event),
            lambda: executor.wait_for(other, stream),
            lambda: executor.host_callback(stream, boom),
        ):
            with pytest.raises(ResourceExhaustedError, match="boom"):
                use()
        assert other.error is None

    def test_other_streams_and_the_device_go_on_after_a_failure(
        self, executor: StreamExecutor, stream: Stream, other: Stream, memory: DeviceMemory
    ) -> None:
        fail(executor, stream)
        fill(executor, other, memory, 5)
        assert read(executor, other, memory.slice(0, 2)) == [5 if executor.computes else 0] * 2
        executor.deallocate(executor.allocate(64))
        again = self.case.create_stream(executor, "again")
        executor.block_host_until_done(again, SOON_S)

    # --- the end

    def test_close_does_what_was_issued(self, executor: StreamExecutor, stream: Stream) -> None:
        recorder = self.case.recorder(executor)
        for label in range(50):
            recorder.put(stream, label)
        executor.close()
        assert sorted(recorder.spans()) == list(range(50))

    def test_close_ends_its_threads(self) -> None:
        before = set(threading.enumerate())
        executor = self.case.make()
        for name in "abc":
            executor.host_callback(self.case.create_stream(executor, name), lambda: None)
        executor.close()
        assert set(threading.enumerate()) <= before

    def test_a_closed_device_takes_memory_back_and_nothing_else(
        self, executor: StreamExecutor, stream: Stream, memory: DeviceMemory
    ) -> None:
        executor.close()
        executor.close()
        for use in (
            lambda: executor.allocate(64),
            executor.create_stream,
            lambda: executor.memset(stream, memory, 0),
            lambda: executor.host_callback(stream, boom),
            lambda: executor.block_host_until_done(stream),
        ):
            with pytest.raises(FailedPreconditionError, match="closed"):
                use()
        executor.deallocate(memory)

    # --- any program

    def test_what_happens_before_ends_before(self) -> None:
        """Random work, records and waits on three streams: work starts after all that it has to wait for."""

        @given(st.lists(st.tuples(st.sampled_from(_History.KINDS), THREE, THREE), max_size=40))
        def check(program: list[tuple[str, int, int]]) -> None:
            executor, history = self.case.make(), _History()
            recorder = self.case.recorder(executor)
            self._run(program, executor, recorder, history)
            executor.close()
            spans = recorder.spans()
            assert sorted(spans) == list(range(len(history.before)))
            for later, before in enumerate(history.before):
                for earlier in before:
                    assert spans[earlier][1] <= spans[later][0], (earlier, later)

        check()

    def _run(
        self,
        program: list[tuple[str, int, int]],
        executor: StreamExecutor,
        recorder: Recorder,
        history: _History,
    ) -> None:
        streams = [self.case.create_stream(executor, name) for name in "abc"]
        events = [executor.create_event() for _ in range(3)]
        for kind, i, j in program:
            if kind == "work":
                recorder.put(streams[i], history.work(i))
            elif kind == "record":
                history.record(i, j)
                executor.record(streams[i], events[j])
            elif kind == "wait stream":
                history.wait_for_stream(i, j)
                executor.wait_for(streams[i], streams[j])
            elif history.wait_for_event(i, j):
                executor.wait_for(streams[i], events[j])
        for stream in streams:
            executor.block_host_until_done(stream, SOON_S)


class _History:
    """The model: which work is before which."""

    KINDS = ("work", "work", "record", "wait event", "wait stream")

    def __init__(self) -> None:
        self.before: list[frozenset[int]] = []
        """Of each work, all that has to be done before it starts."""
        self._done: list[frozenset[int]] = [frozenset()] * 3
        """Of each stream, what is done when it has done all that is on it."""
        self._passed: dict[int, frozenset[int]] = {}

    def work(self, stream: int) -> int:
        label = len(self.before)
        self.before.append(self._done[stream])
        self._done[stream] |= {label}
        return label

    def record(self, stream: int, event: int) -> None:
        self._passed[event] = self._done[stream]

    def wait_for_stream(self, stream: int, other: int) -> None:
        self._done[stream] |= self._done[other]

    def wait_for_event(self, stream: int, event: int) -> bool:
        """Whether it was recorded."""
        self._done[stream] |= self._passed.get(event, frozenset())
        return event in self._passed


class QueuedStreamsContract(StreamExecutorContract):
    """For streams that take work before they have done the work before it."""

    def recorded(self, executor: StreamExecutor, stream: Stream) -> Event:
        event = executor.create_event()
        executor.record(stream, event)
        return event

    def test_an_event_is_pending_until_the_stream_passes_it(
        self, executor: StreamExecutor, stream: Stream
    ) -> None:
        held = self.case.hold(executor, stream)
        event = self.recorded(executor, stream)
        assert event.poll() is EventStatus.PENDING
        held.release()
        executor.block_host_until_done(stream, SOON_S)
        assert event.poll() is EventStatus.COMPLETE

    def test_work_that_takes_too_long_is_not_waited_for_but_goes_on(
        self, executor: StreamExecutor, stream: Stream
    ) -> None:
        held = self.case.hold(executor, stream)
        for timeout_s in (0.0, NOT_YET_S):
            with pytest.raises(DeadlineExceededError, match=f"within {timeout_s} s"):
                executor.block_host_until_done(stream, timeout_s)
        assert stream.error is None
        held.release()
        executor.block_host_until_done(stream, SOON_S)

    @pytest.mark.parametrize("what", ["event", "stream"])
    def test_a_stream_waits_for_another_and_the_host_does_not(
        self, executor: StreamExecutor, stream: Stream, other: Stream, what: str
    ) -> None:
        recorder, held = self.case.recorder(executor), self.case.hold(executor, stream)
        recorder.put(stream, 0)
        executor.wait_for(other, self.recorded(executor, stream) if what == "event" else stream)
        recorder.put(other, 1)
        with pytest.raises(DeadlineExceededError):
            executor.block_host_until_done(other, NOT_YET_S)
        held.release()
        executor.block_host_until_done(other, SOON_S)
        assert recorder.spans()[0][1] <= recorder.spans()[1][0]

    def test_a_stream_does_not_wait_for_what_comes_after_the_event(
        self, executor: StreamExecutor, stream: Stream, other: Stream
    ) -> None:
        event = self.recorded(executor, stream)
        held = self.case.hold(executor, stream)
        executor.wait_for(other, event)
        executor.block_host_until_done(other, SOON_S)
        assert self.recorded(executor, stream).poll() is EventStatus.PENDING
        held.release()

    def test_recording_again_moves_the_event_but_not_who_waits(
        self, executor: StreamExecutor, stream: Stream, other: Stream
    ) -> None:
        held = self.case.hold(executor, stream)
        event = self.recorded(executor, stream)
        executor.wait_for(other, event)
        idle = self.case.create_stream(executor, "idle")
        executor.record(idle, event)
        executor.block_host_until_done(idle, 0.0 if not executor.computes else SOON_S)
        assert event.poll() is EventStatus.COMPLETE
        with pytest.raises(DeadlineExceededError):
            executor.block_host_until_done(other, NOT_YET_S)
        held.release()
        executor.block_host_until_done(other, SOON_S)

    def test_two_streams_wait_for_each_other_in_turn(
        self, executor: StreamExecutor, stream: Stream, other: Stream
    ) -> None:
        recorder = self.case.recorder(executor)
        pair = (stream, other)
        for i in range(100):
            recorder.put(pair[i % 2], i)
            executor.wait_for(pair[(i + 1) % 2], pair[i % 2])
        executor.block_host_until_done(stream, SOON_S)
        executor.block_host_until_done(other, SOON_S)
        spans = recorder.spans()
        assert all(spans[i][1] <= spans[i + 1][0] for i in range(99))

    def test_what_waits_for_an_event_goes_on_whatever_a_callback_raises(
        self, executor: StreamExecutor, stream: Stream, other: Stream
    ) -> None:
        held, called = self.case.hold(executor, stream), threading.Semaphore(0)
        event = self.recorded(executor, stream)
        executor.when_done(event, called.release)
        executor.wait_for(other, event)
        executor.when_done(event, bang)
        executor.when_done(event, called.release)
        held.release()
        for waiting in (stream, other):
            executor.block_host_until_done(waiting, SOON_S)
        assert called.acquire(timeout=SOON_S)
        assert called.acquire(timeout=SOON_S)

    def test_work_behind_a_failure_is_dropped(self, executor: StreamExecutor, stream: Stream) -> None:
        called: list[int] = []
        held = self.case.hold(executor, stream)
        executor.host_callback(stream, lambda: called.append(1))
        executor.host_callback(stream, boom)
        for function in (lambda: called.append(2), bang):
            try:
                executor.host_callback(stream, function)
            except ResourceExhaustedError:  # the device has noticed already
                break
        held.release()
        with pytest.raises(ResourceExhaustedError, match="boom"):
            executor.block_host_until_done(stream, SOON_S)
        assert called == [1]

    def test_an_event_behind_a_failure_fails_and_so_do_those_who_wait_for_it(
        self, executor: StreamExecutor, stream: Stream, other: Stream
    ) -> None:
        held = self.case.hold(executor, stream)
        before = self.recorded(executor, stream)
        executor.host_callback(stream, boom)
        try:
            behind = self.recorded(executor, stream)
            executor.wait_for(other, behind)
        except ResourceExhaustedError:  # the device has noticed already: no event is behind the failure
            assert not executor.computes
            held.release()
            return
        held.release()
        with pytest.raises(ResourceExhaustedError, match="boom"):
            executor.block_host_until_done(other, SOON_S)
        assert stream.error is not None
        assert (before.poll(), behind.poll()) == (EventStatus.COMPLETE, EventStatus.ERROR)

    def test_streams_that_wait_for_one_event_all_go_on(
        self, executor: StreamExecutor, stream: Stream
    ) -> None:
        held = self.case.hold(executor, stream)
        event = self.recorded(executor, stream)
        waiting = [self.case.create_stream(executor, name) for name in "abc"]
        for other in waiting:
            executor.wait_for(other, event)
            with pytest.raises(DeadlineExceededError):
                executor.block_host_until_done(other, NOT_YET_S / 5)
        held.release()
        for other in waiting:
            executor.block_host_until_done(other, SOON_S)

    def test_threads_that_block_on_one_stream_are_all_woken(
        self, executor: StreamExecutor, stream: Stream
    ) -> None:
        held = self.case.hold(executor, stream)
        blocked = [
            threading.Thread(target=executor.block_host_until_done, args=(stream, SOON_S), daemon=True)
            for _ in range(5)
        ]
        for thread in blocked:
            thread.start()
        held.release()
        for thread in blocked:
            thread.join(SOON_S)
        assert not any(thread.is_alive() for thread in blocked)
