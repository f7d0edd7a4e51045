"""Section ``streams``: the promises of a `StreamExecutor` on which everything else rests."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np

from flowrt.cli.selftest.target import Result, Target
from flowrt.device.stream_executor import EventStatus, StreamExecutor
from flowrt.errors import InvalidArgumentError, OpError

NBYTES = 1 << 20
TIMEOUT_S = 30.0


def check_streams(target: Target) -> Result:
    """Check each promise. Those about bytes are skipped on a device without memory."""
    promises = [*PROMISES, *(PROMISES_OF_BYTES if target.computes else ())]
    failures = []
    for promise in promises:
        try:
            is_kept = promise(target.device.executor)
        except OpError as error:
            failures.append(f"{promise.__doc__} {type(error).__name__}: {error}")
        else:
            if not is_kept:
                failures.append(f"{promise.__doc__} Violated.")
    kept = len(promises) - len(failures)
    return Result(f"{len(promises)} promises of streams and events: {kept} kept", tuple(failures))


def event_tells_where_it_stands(executor: StreamExecutor) -> bool:
    """An event is unknown, then pending or complete, and complete when its stream is done."""
    stream, event = executor.create_stream("first"), executor.create_event()
    before = event.poll()
    executor.record(stream, event)
    executor.block_host_until_done(stream, TIMEOUT_S)
    return before is EventStatus.UNKNOWN and event.poll() is EventStatus.COMPLETE


def callbacks_come_in_order(executor: StreamExecutor) -> bool:
    """Host callbacks of a stream are called in its order."""
    stream, seen = executor.create_stream("first"), list[int]()
    for number in range(8):
        executor.host_callback(stream, partial(seen.append, number))
    executor.block_host_until_done(stream, TIMEOUT_S)
    return seen == list(range(8))


def error_sticks(executor: StreamExecutor) -> bool:
    """A failed stream rejects more work with its first error; another stream continues."""
    failed, other = executor.create_stream("failed"), executor.create_stream("other")
    executor.host_callback(failed, _fail)
    told = _is_refused(lambda: executor.block_host_until_done(failed, TIMEOUT_S))
    executor.record(other, executor.create_event())
    executor.block_host_until_done(other, TIMEOUT_S)
    return told and _is_refused(lambda: executor.record(failed, executor.create_event()))


def memory_is_given_back_once(executor: StreamExecutor) -> bool:
    """Memory is freed once, and not used afterwards."""
    memory, stream = executor.allocate(NBYTES), executor.create_stream("first")
    executor.deallocate(memory)
    again = _is_refused(lambda: executor.deallocate(memory))
    return again and _is_refused(lambda: executor.memset(stream, memory, 0))


def copies_keep_bytes(executor: StreamExecutor) -> bool:
    """Bytes are unchanged after a round trip to the device."""
    there = np.random.default_rng(0).integers(0, 256, NBYTES, np.uint8)
    back = np.empty_like(there)
    stream = executor.create_stream("first")
    first, second = executor.allocate(NBYTES), executor.allocate(NBYTES)
    executor.memcpy_to_device(stream, first, there)
    executor.memcpy(stream, second, first)
    executor.memcpy_to_host(stream, back, second)
    executor.block_host_until_done(stream, TIMEOUT_S)
    executor.deallocate(first)
    executor.deallocate(second)
    return bool(np.array_equal(there, back))


def work_of_a_stream_is_in_order(executor: StreamExecutor) -> bool:
    """The last of several fills of a stream wins."""
    stream, back = executor.create_stream("first"), np.empty(NBYTES, np.uint8)
    memory = executor.allocate(NBYTES)
    for value in range(16):
        executor.memset(stream, memory, value)
    executor.memcpy_to_host(stream, back, memory)
    executor.block_host_until_done(stream, TIMEOUT_S)
    executor.deallocate(memory)
    return bool((back == 15).all())


def streams_wait_for_events(executor: StreamExecutor) -> bool:
    """A stream that waits for another's event sees the work before it."""
    first, second = executor.create_stream("first"), executor.create_stream("second")
    source, target = executor.allocate(NBYTES), executor.allocate(NBYTES)
    back = np.empty(NBYTES, np.uint8)
    for value in range(16):
        executor.memset(first, source, value)
        executor.wait_for(second, first)
        executor.memcpy(second, target, source)
        executor.wait_for(first, second)
    executor.memcpy_to_host(second, back, target)
    executor.block_host_until_done(second, TIMEOUT_S)
    executor.deallocate(source)
    executor.deallocate(target)
    return bool((back == 15).all())


PROMISES: tuple[Callable[[StreamExecutor], bool], ...] = (
    event_tells_where_it_stands,
    callbacks_come_in_order,
    error_sticks,
    memory_is_given_back_once,
)
PROMISES_OF_BYTES: tuple[Callable[[StreamExecutor], bool], ...] = (
    copies_keep_bytes,
    work_of_a_stream_is_in_order,
    streams_wait_for_events,
)


def _is_refused(action: Callable[[], None]) -> bool:
    try:
        action()
    except InvalidArgumentError:
        return True
    return False


def _fail() -> None:
    raise InvalidArgumentError("the self-test fails this stream on purpose")
