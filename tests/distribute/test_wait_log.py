"""A start that waits for a task or a rank says so: how often by the test's clock, for what by real ranks."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from flowrt.distribute.cluster import timeouts
from flowrt.distribute.collectives.membership import Membership
from flowrt.distribute.collectives.mesh_forming import form_mesh
from flowrt.distribute.connection_manager import keep_dialling
from flowrt.distribute.launch.local_cluster import ReservedPorts
from flowrt.distribute.wire import wait_log
from flowrt.distribute.wire.peer import Peer
from flowrt.distribute.wire.wait_log import REPORT_S, WaitLog
from flowrt.errors import UnavailableError
from flowrt.rendezvous.transport import new_transport
from tests.distribute.collectives.ranks import SOON_S


class Time:
    """A clock that moves when something waits; also the end of all waits, which never comes."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now

    def wait(self, timeout: float) -> bool:
        self.now += timeout
        return False


@pytest.fixture
def said(caplog: pytest.LogCaptureFixture) -> Callable[[], list[str]]:
    caplog.set_level(logging.WARNING, "flowrt")
    return lambda: [record.getMessage() for record in caplog.records]


def test_a_wait_is_reported_every_five_seconds(said: Callable[[], list[str]]) -> None:
    time = Time()
    log, at = WaitLog(logging.getLogger("flowrt.test"), time), list[float]()
    while time.now < 117.0:
        before = len(said())
        log.waits_for("worker:1")
        at += [time.now] * (len(said()) - before)
        time.wait(0.25)
    assert at == [105.0, 110.0, 115.0]
    assert set(said()) == {"still waiting: worker:1"}


def test_after_a_long_attempt_there_is_one_report(said: Callable[[], list[str]]) -> None:
    time = Time()
    log = WaitLog(logging.getLogger("flowrt.test"), time)
    time.wait(30.0)
    log.waits_for("worker:1")
    log.waits_for("worker:1")
    assert len(said()) == 1


@pytest.mark.parametrize("attempt_s", [0.0, 60.0])
def test_who_dials_a_task_that_is_not_up_says_so(attempt_s: float, said: Callable[[], list[str]]) -> None:
    """Its host refuses at once, or is silent: then an attempt takes all the time that it has."""
    time, reports = Time(), list[float]()

    def connect(left_s: float) -> Peer:
        if len(said()) > len(reports):
            reports.append(time.now - 100.0)
        assert left_s <= timeouts.DIAL_S
        time.wait(min(attempt_s, left_s))
        raise UnavailableError("nobody listens")

    with pytest.raises(UnavailableError, match="worker:1 at h:1 did not answer: nobody listens"):
        keep_dialling(connect, "worker:1 at h:1", 60.0, time, time)
    assert 58.0 <= time.now - 100.0 <= 60.3
    steps = [after - before for before, after in zip([0.0, *reports], reports, strict=False)]
    assert len(reports) >= 10
    assert all(REPORT_S <= step <= REPORT_S + 0.5 for step in steps), reports
    assert set(said()) == {"still waiting: worker:1 at h:1 did not answer: nobody listens"}


@pytest.mark.parametrize("late", [0, 1])
def test_a_rank_says_for_whom_its_group_waits(late: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that dials, and one that is dialled."""
    monkeypatch.setattr(wait_log, "REPORT_S", 0.0)
    reported = threading.Event()
    texts: list[str] = []

    class Listener(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            texts.append(record.getMessage())
            reported.set()

    logger, listener = logging.getLogger("flowrt.distribute.collectives"), Listener()
    logger.addHandler(listener)
    try:
        with ReservedPorts(2) as reserved, ThreadPoolExecutor(2) as pool:
            addresses = tuple(f"127.0.0.1:{port}" for port in reserved.ports)
            early = Membership("g", 1 - late, 2, addresses)
            first = pool.submit(form_mesh, early, new_transport())
            assert reported.wait(SOON_S)
            second = pool.submit(form_mesh, Membership("g", late, 2, addresses), new_transport())
            for future in (first, second):
                future.result(SOON_S).close()
    finally:
        logger.removeHandler(listener)
    assert texts[0].startswith("still waiting: group 'g': "), texts
    names = [f"rank {rank} ({addresses[rank]})" for rank in (1 - late, late)]
    assert " for ".join(names) in texts[0], texts
