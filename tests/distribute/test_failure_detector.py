"""Which tasks are missed: those that came and did not end well."""

from __future__ import annotations

from flowrt.distribute.cluster.timeouts import CONNECT_S
from flowrt.distribute.server import Server
from flowrt.distribute.wire.failure_detector import FailureDetector
from flowrt.errors import UnavailableError

TASK, ERROR = "/job:worker/replica:0/task:1", UnavailableError("no goodbye")


def lose(detector, in_midst=False):
    return detector.lose(TASK, ERROR, in_midst)


def test_who_never_had_a_session_is_missed_until_it_is_back():
    detector = FailureDetector()
    detector.come(TASK)
    assert lose(detector)
    assert detector.missing() == {TASK: ERROR}
    detector.come(TASK)
    assert detector.missing() == {}


def test_nobody_is_missed_for_ever():
    now = [100.0]
    detector = FailureDetector(lambda: now[0])
    detector.come(TASK)
    assert lose(detector)
    now[0] += CONNECT_S
    assert detector.missing() == {TASK: ERROR}
    now[0] += 1.0
    assert detector.missing() == {}


def test_who_closed_its_sessions_is_not_missed():
    detector = FailureDetector()
    detector.come(TASK)
    detector.serve(TASK)
    assert not lose(detector)
    assert detector.missing() == {}


def test_who_was_cut_off_in_a_session_is_missed():
    detector = FailureDetector()
    detector.come(TASK)
    detector.serve(TASK)
    assert lose(detector, in_midst=True)


def test_of_two_connections_the_last_counts_and_both_are_remembered():
    detector = FailureDetector()
    detector.come(TASK)
    detector.come(TASK)
    detector.serve(TASK)
    assert not lose(detector, in_midst=True)
    assert lose(detector)


def test_a_life_that_ended_well_says_nothing_of_the_next():
    detector = FailureDetector()
    detector.come(TASK)
    detector.serve(TASK)
    assert not lose(detector)
    detector.come(TASK)
    assert lose(detector)


def test_a_task_that_ended_well_and_whose_two_connections_are_lost_at_once_is_not_missed():
    """Neither is among the links any more when the server is told of the first."""
    server = Server({"worker": ["127.0.0.1:21000", "127.0.0.1:21001"]}, "worker", 0, start=False)
    for _ in range(2):
        server.came(TASK)
    server._failure_detector.serve(TASK)
    for number in range(2):
        server.lost(f"{TASK}#{number}", TASK, ERROR)
    server.stop()
    assert server._failure_detector.missing() == {}
