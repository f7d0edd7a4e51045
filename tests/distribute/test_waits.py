"""How long tasks wait for each other: what the environment says."""

from __future__ import annotations

import pytest

from flowrt.distribute.cluster import timeouts
from flowrt.distribute.cluster.timeouts import (
    Liveness,
    connect_timeout_s,
    connecting_within,
    drain_s,
    job_grace_s,
    liveness,
)
from flowrt.errors import InvalidArgumentError


@pytest.fixture(autouse=True)
def nothing_is_set(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("CONNECT_TIMEOUT", "HEARTBEAT", "LOST_AFTER", "JOB_GRACE", "DRAIN"):
        monkeypatch.delenv(f"FLOWRT_{name}", raising=False)


def test_nobody_need_say_anything() -> None:
    assert (liveness(), connect_timeout_s()) == (Liveness(2.0, 10.0), 60.0)
    assert (job_grace_s(), drain_s()) == (10.0, 5.0)


def test_the_environment_says(monkeypatch: pytest.MonkeyPatch) -> None:
    values = {"HEARTBEAT": "0.5", "LOST_AFTER": "3", "CONNECT_TIMEOUT": "120", "JOB_GRACE": "1"}
    for name, value in values.items():
        monkeypatch.setenv(f"FLOWRT_{name}", value)
    assert (liveness(), connect_timeout_s(), job_grace_s()) == (Liveness(0.5, 3.0), 120.0, 1.0)


@pytest.mark.parametrize("text", ["soon", "-1", "0", "inf", "nan"])
def test_what_is_no_time_is_refused(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setenv("FLOWRT_HEARTBEAT", text)
    with pytest.raises(InvalidArgumentError, match="FLOWRT_HEARTBEAT: expected seconds"):
        liveness()


def test_a_peer_is_asked_twice_before_it_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLOWRT_HEARTBEAT", "6")
    with pytest.raises(InvalidArgumentError, match="expected at least two heartbeats of 6 s"):
        liveness()


def test_who_has_less_time_says_so() -> None:
    with connecting_within(20.0):
        with connecting_within(30.0):
            assert connect_timeout_s() == 20.0
        with connecting_within(-1.0):  # an attempt is made all the same
            assert connect_timeout_s() == timeouts.DIAL_S
    assert connect_timeout_s() == 60.0
