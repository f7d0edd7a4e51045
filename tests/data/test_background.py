"""Threads of datasets: order, back-pressure, errors, and their end."""

import gc
import itertools
import subprocess
import sys
import threading
import time

import pytest

from flowrt import dtypes
from flowrt.data import background
from flowrt.data.batching import Batch
from flowrt.data.node import ElementIterator, Iteration
from flowrt.data.pipeline import AUTOTUNE, Filter, Map, Prefetch, Repeat, Shuffle, Take
from flowrt.data.sources import FromGenerator, Range
from flowrt.data.spec import TensorSpec
from flowrt.errors import CancelledError, UnknownError

INT = TensorSpec((), dtypes.int64)
DEADLINE_S = 60.0


def our_threads():
    return [t for t in threading.enumerate() if t.name.startswith("flowrt-")]


def wait_until(condition):
    """A wait for another thread's progress; only a broken program reaches the deadline."""
    end = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < end, "deadline"
        time.sleep(0.001)


@pytest.fixture(autouse=True)
def _no_thread_is_left():
    assert not our_threads()
    yield
    assert not our_threads()


def values(iterator):
    return [int(x) for (x,) in iterator]


@pytest.mark.parametrize("size", [1, 3, 100, AUTOTUNE])
def test_prefetch_keeps_the_order(size):
    assert values(ElementIterator(Prefetch(Prefetch(Range(0, 50), 2), size))) == list(range(50))


def test_the_producer_is_never_more_than_the_buffer_ahead_and_does_get_that_far():
    produced, consumed, ahead = itertools.count(1), [0], []
    latest = [0]

    def source():
        for i in range(60):
            latest[0] = next(produced)
            ahead.append(latest[0] - consumed[0])
            yield i

    iterator = ElementIterator(Prefetch(FromGenerator(source, INT), 4))
    for i in range(60):
        assert next(iterator) == (i,)
        consumed[0] += 1
        wait_until(lambda: latest[0] == min(60, consumed[0] + 4))
    assert max(ahead) <= 5  # one may be on its way to the consumer
    iterator.close()


def test_an_error_comes_after_the_elements_before_it():
    def source():
        yield from range(3)
        raise KeyError("no more")

    for node in (
        Prefetch(FromGenerator(source, INT), 10),
        Map(FromGenerator(source, INT), lambda x: (x,), INT, 4),
        Prefetch(Map(FromGenerator(source, INT), lambda x: (x,), INT, 4), 10),
    ):
        iterator = ElementIterator(node)
        assert [next(iterator) for _ in range(3)] == [(0,), (1,), (2,)]
        for _ in range(2):
            with pytest.raises(UnknownError, match="generator raised KeyError: 'no more'") as caught:
                next(iterator)
            assert isinstance(caught.value.__cause__, KeyError)


def test_parallel_map_keeps_the_order_though_later_calls_end_first():
    later_done = threading.Event()

    def fn(x):
        if x == 0:
            assert later_done.wait(DEADLINE_S)  # holds only if another call runs meanwhile
        if x == 1:
            later_done.set()
        return (x * 2,)

    assert values(ElementIterator(Map(Range(0, 20), fn, INT, 3))) == [2 * i for i in range(20)]


def test_parallel_map_raises_the_error_of_a_call_in_its_turn():
    iterator = ElementIterator(Map(Range(0, 20), lambda x: (10 // (5 - int(x)),), INT, 4))
    assert [next(iterator)[0] for _ in range(5)] == [2, 2, 3, 5, 10]
    with pytest.raises(ZeroDivisionError):
        next(iterator)


def test_parallel_map_is_never_further_ahead_than_its_threads():
    started = []
    iterator = ElementIterator(Map(Range(0, 50), lambda x: started.append(x) or (x,), INT, 3))
    for i in range(50):
        next(iterator)
        assert len(started) <= i + 1 + 3
    iterator.close()


def test_threads_do_not_change_what_a_seeded_pipeline_gives():
    def run(node):
        return [x.tolist() for (x,) in ElementIterator(Batch(Prefetch(node, 3), 4))]

    shuffled = Repeat(Shuffle(Range(0, 30), 10, (5, 6)), 3)
    expected = run(Map(shuffled, lambda x: (x + 1,), INT))
    for workers in (2, 5, AUTOTUNE):
        assert run(Map(Prefetch(shuffled, 2), lambda x: (x + 1,), INT, workers)) == expected


endless = Repeat(Map(Prefetch(Range(0, 10), 3), lambda x: (x,), INT, 2))
NODES = [Prefetch(endless, 4), endless, Batch(Prefetch(Prefetch(endless, 1), 2), 3)]


@pytest.mark.parametrize("node", NODES)
def test_close_ends_all_threads(node):
    iterator = ElementIterator(node)
    next(iterator)
    assert our_threads()
    iterator.close()
    assert not our_threads()


@pytest.mark.parametrize("node", NODES)
def test_dropping_the_iterator_ends_all_threads(node):
    iterator = ElementIterator(node)
    next(iterator)
    assert our_threads()
    del iterator
    assert not our_threads()


def test_closing_waits_for_running_calls_but_not_for_those_that_never_start(monkeypatch):
    started, ended, is_closing = [], [], threading.Event()

    class Pool(background.ThreadPoolExecutor):
        def shutdown(self, **options):
            super().shutdown(**options)
            is_closing.set()  # now, since a call that ends before it makes room for the third

    def fn(x):
        started.append(x)
        assert is_closing.wait(DEADLINE_S)
        ended.append(x)
        return (x,)

    monkeypatch.setattr(background, "ThreadPoolExecutor", Pool)
    run = Iteration(cancelled=lambda: len(started) == 2)
    stream = background.map_in_order(fn, Range(0, 20).open, 2, run)
    with pytest.raises(CancelledError):
        next(stream)
    assert sorted(ended) == [0, 1]


def test_a_stream_that_ends_early_stops_a_producer_that_finds_no_element():
    first_only = Filter(Repeat(Range(0, 5)), lambda x, seen=[]: not seen and not seen.append(x))
    assert values(ElementIterator(Take(Prefetch(first_only, 2), 1))) == [0]


def test_collecting_a_cycle_with_the_iterator_ends_all_threads():
    cycle = [ElementIterator(NODES[0])]
    cycle.append(cycle)
    next(cycle[0])
    del cycle
    gc.collect()
    assert not our_threads()


def test_an_iterator_that_was_never_read_has_no_threads():
    iterator = ElementIterator(NODES[0])
    assert not our_threads()
    iterator.close()


def test_close_stops_a_producer_that_finds_no_element():
    searching = threading.Event()
    hopeless = Filter(Repeat(Range(0, 5)), lambda x: searching.set())
    iterator = ElementIterator(Prefetch(Prefetch(hopeless, 1), 1))
    failure = []

    def consume():
        try:
            next(iterator)
        except CancelledError as error:
            failure.append(error)

    consumer = threading.Thread(target=consume)
    consumer.start()
    assert searching.wait(DEADLINE_S)
    iterator.close()
    consumer.join(DEADLINE_S)
    assert len(failure) == 1
    with pytest.raises(CancelledError):
        next(iterator)


def test_close_wakes_a_consumer_that_waits_for_a_slow_source_and_warns_of_the_thread(monkeypatch):
    monkeypatch.setattr(background, "CLOSE_S", 0.05)
    waiting, release, failure, warned = threading.Event(), threading.Event(), [], []
    monkeypatch.setattr(background.warnings, "warn", lambda text, *_, **__: warned.append(text))

    def source():
        waiting.set()
        release.wait(DEADLINE_S)
        yield 0

    iterator = ElementIterator(Prefetch(FromGenerator(source, INT), 1))

    def consume():
        try:
            next(iterator)
        except CancelledError as error:
            failure.append(error)

    consumer = threading.Thread(target=consume)
    consumer.start()
    assert waiting.wait(DEADLINE_S)
    iterator.close()
    consumer.join(DEADLINE_S)
    assert len(failure) == 1
    assert "still computes an element" in warned[0]
    release.set()
    wait_until(lambda: not our_threads())


def test_many_consumers_get_every_element_once():
    iterator = ElementIterator(Prefetch(Map(Range(0, 400), lambda x: (x,), INT, 2), 4))
    found = [[] for _ in range(4)]
    consumers = [threading.Thread(target=lambda out=out: out.extend(values(iterator))) for out in found]
    for consumer in consumers:
        consumer.start()
    for consumer in consumers:
        consumer.join(DEADLINE_S)
    assert sorted(itertools.chain(*found)) == list(range(400))
    assert all(out == sorted(out) for out in found)


def test_the_interpreter_exits_though_an_iterator_is_open():
    script = (
        "from flowrt.data.node import ElementIterator\n"
        "from flowrt.data.pipeline import Map, Prefetch, Repeat\n"
        "from flowrt.data.sources import Range\n"
        "r = Range(0, 10)\n"
        "it = ElementIterator(Prefetch(Map(Repeat(Prefetch(r, 1)), lambda x: (x,), r.spec, 2), 2))\n"
        "next(it)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=200, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
