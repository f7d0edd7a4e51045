"""The coordinator: threads stop together, and the first error comes out of `join`."""

import sys
import threading

import pytest

from flowrt.errors import FailedPreconditionError, InvalidArgumentError, OutOfRangeError
from flowrt.executor.session.session import Session
from flowrt.graph.construction.graph import Graph
from flowrt.train.coordination.coordinator import Coordinator
from flowrt.train.coordination.queue_runner import start_queue_runners


def start(work, count=1):
    threads = [threading.Thread(target=work) for _ in range(count)]
    for thread in threads:
        thread.start()
    return threads


def test_one_thread_stops_all():
    coordinator, turns = Coordinator(), []

    def work():
        while not coordinator.should_stop():
            turns.append(1)
            if len(turns) > 1000:
                coordinator.request_stop()

    coordinator.join(start(work, 3))
    assert coordinator.joined
    assert len(turns) > 1000


def test_the_first_error_is_raised_by_join():
    coordinator = Coordinator()

    def work():
        with coordinator.stop_on_exception():
            raise KeyError("first")

    threads = start(work)
    threads[0].join()
    coordinator.request_stop(ValueError("second"))
    with pytest.raises(KeyError, match="first"):
        coordinator.join(threads)
    with pytest.raises(KeyError):
        coordinator.raise_requested_exception()


def test_the_end_of_the_data_is_a_clean_stop():
    coordinator = Coordinator()

    def work():
        with coordinator.stop_on_exception():
            raise OutOfRangeError("end of sequence")

    coordinator.join(start(work))
    assert coordinator.should_stop()


def test_exception_info_is_taken_as_an_exception():
    coordinator = Coordinator()
    try:
        raise ValueError("told")
    except ValueError:
        coordinator.request_stop(sys.exc_info())
    with pytest.raises(ValueError, match="told"):
        coordinator.join()


def test_registered_threads_are_waited_for():
    coordinator, done = Coordinator(), []

    def work():
        coordinator.wait_for_stop()
        done.append(1)

    for thread in start(work, 2):
        coordinator.register_thread(thread)
    coordinator.request_stop()
    coordinator.join()
    assert done == [1, 1]


def test_a_thread_that_does_not_stop_is_named():
    coordinator, go = Coordinator(), threading.Event()
    thread = threading.Thread(target=go.wait, name="stubborn")
    thread.start()
    coordinator.request_stop()
    try:
        with pytest.raises(FailedPreconditionError, match="still running: stubborn"):
            coordinator.join([thread], stop_grace_period_secs=0.01)
        coordinator.join([thread], stop_grace_period_secs=0.01, ignore_live_threads=True)
    finally:
        go.set()
        thread.join()


def test_an_error_after_join_is_raised_at_once():
    coordinator = Coordinator()
    coordinator.request_stop()
    coordinator.join()
    with pytest.raises(ValueError, match="late"):
        coordinator.request_stop(ValueError("late"))


def test_clear_stop_begins_again():
    coordinator = Coordinator()
    coordinator.request_stop(ValueError("old"))
    coordinator.clear_stop()
    assert not coordinator.should_stop()
    assert not coordinator.wait_for_stop(0.001)
    coordinator.join()


def test_a_thread_cannot_join_itself():
    with pytest.raises(InvalidArgumentError, match="other than the calling one"):
        Coordinator().join([threading.current_thread()])


def test_there_are_no_queue_runners_to_start():
    with Graph(), Session() as session:
        assert start_queue_runners(coord=Coordinator()) == []
        assert start_queue_runners(session) == []
    with pytest.raises(FailedPreconditionError, match="expected a session"):
        start_queue_runners()


def test_a_scripts_own_runner_is_started():
    class Runner:
        def create_threads(self, sess, coord, daemon, start):
            return [(sess, coord, daemon, start)]

    with Graph() as graph, Session() as session:
        graph.add_to_collection("queue_runners", Runner())
        assert start_queue_runners(daemon=False) == [(session, None, False, True)]
