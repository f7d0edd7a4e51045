"""Faults on purpose: what each does to a sequence of frames, and that a seed repeats it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from flowrt.errors import InvalidArgumentError
from flowrt.rendezvous.faulty import MAX_HELD, FaultyTransport, Rule, parse_faults, with_faults
from flowrt.rendezvous.transport import Bytes, Connection, Listener, Receiver, Transport


class Recorder(Connection):
    peer, kind = "a peer", "record"

    def __init__(self) -> None:
        self.headers: list[bytes] = []
        self.ends: list[str] = []

    def send(
        self, header: bytes, payload: Sequence[Bytes] = (), sent: Callable[[], None] | None = None
    ) -> None:
        self.headers.append(header)
        if sent is not None:
            sent()

    def start(self, receiver: Receiver) -> None: ...

    def close(self) -> None:
        self.ends.append("close")

    def abort(self) -> None:
        self.ends.append("abort")


class RecordingTransport(Transport):
    def __init__(self) -> None:
        self.connections: list[Recorder] = []

    def listen(
        self, address: str, accept: Callable[[Connection], None], is_serving: Callable[[], bool] | None = None
    ) -> Listener:
        raise NotImplementedError

    def connect(self, address: str, timeout_s: float) -> Connection:
        self.connections.append(Recorder())
        return self.connections[-1]


FRAMES = [b"%d" % i for i in range(200)]


def send_all(rules: Sequence[Rule], seed: int = 0, name: str = "M") -> tuple[Recorder, int]:
    """What is left of `FRAMES` on the wire, and how many were told to be sent."""
    inner = RecordingTransport()
    connection = FaultyTransport(inner, rules, seed, lambda header: name).connect("a peer", 1)
    told: list[int] = []
    for frame in FRAMES:
        connection.send(frame, (), lambda: told.append(1))
    connection.close()
    return inner.connections[0], len(told)


def test_drop() -> None:
    wire, told = send_all([Rule("M", "drop", 0.3)])
    assert 100 < len(wire.headers) < 180
    assert wire.headers == [frame for frame in FRAMES if frame in set(wire.headers)]
    assert told == len(FRAMES)


def test_duplicate() -> None:
    wire, told = send_all([Rule("M", "duplicate", 0.3)])
    assert 220 < len(wire.headers) < 300
    assert list(dict.fromkeys(wire.headers)) == FRAMES
    assert told == len(FRAMES)


@pytest.mark.parametrize(("fault", "most"), [("delay", 4 * MAX_HELD), ("reorder", 4)])
def test_order(fault: str, most: int) -> None:
    wire, told = send_all([Rule("M", fault, 0.2)])
    assert wire.headers != FRAMES
    assert sorted(wire.headers) == sorted(FRAMES)
    assert max(abs(int(header) - at) for at, header in enumerate(wire.headers)) <= most
    assert told == len(FRAMES)


def test_cut() -> None:
    wire, _ = send_all([Rule("M", "cut", 0.05)])
    assert "abort" in wire.ends


def test_a_rule_is_for_its_message() -> None:
    rules = parse_faults("RecvTensor:drop_reply=1").rules
    assert send_all(rules, name="RecvTensor")[0].headers == FRAMES
    assert send_all(rules, name="RecvTensorReply")[0].headers == []
    assert send_all(parse_faults("*:drop=1").rules, name="Any")[0].headers == []


def test_a_seed_repeats_the_faults() -> None:
    rules = parse_faults("*:drop=0.1,delay=0.1,duplicate=0.1").rules
    assert send_all(rules, 7)[0].headers == send_all(rules, 7)[0].headers
    assert send_all(rules, 7)[0].headers != send_all(rules, 8)[0].headers


def test_rules_are_read() -> None:
    assert parse_faults("RecvTensor:drop_reply=0.1,delay=0.5; *:cut=0.01, seed=7") == (
        (Rule("RecvTensorReply", "drop", 0.1), Rule("RecvTensor", "delay", 0.5), Rule("*", "cut", 0.01)),
        7,
    )


@pytest.mark.parametrize("text", ["M:lose=1", "drop=1", "M:drop=2", "M:drop", "M:drop=often", "seed=x", "M"])
def test_what_is_no_rule(text: str) -> None:
    with pytest.raises(InvalidArgumentError, match="FLOWRT_FAULTS: expected"):
        parse_faults(text)


def test_the_variable(caplog: pytest.LogCaptureFixture) -> None:
    inner = RecordingTransport()
    assert with_faults(inner, str, {}) is inner
    assert isinstance(with_faults(inner, str, {"FLOWRT_FAULTS": "*:drop=1,seed=7"}), FaultyTransport)
    assert "seed=7" in caplog.text
