"""Damage on the wire: bits that flip in any part of a frame give the right values, or a typed error.

Most tests have real sockets between the ends, with a proxy that changes a bit.
"""

from __future__ import annotations

import itertools
from collections import Counter, deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from random import Random

import numpy as np
import pytest

from flowrt.errors import DataLossError, FailedPreconditionError, InvalidArgumentError, UnavailableError
from flowrt.rendezvous.channel.channel import Connection, Transport
from flowrt.rendezvous.channel.checked_frames import MAX_RESENDS, MAX_UNACKNOWLEDGED, CheckedFrames
from flowrt.rendezvous.channel.framing import HEAD_BYTES, JOINED, Buffer, Frame, FrameDecoder, Kind
from flowrt.rendezvous.channel.security import Security
from flowrt.rendezvous.grpc import upgrade
from flowrt.rendezvous.transport import new_transport
from tests.contracts.check_transport import CONNECT_S, Inbox, random_bytes, wait_until
from tests.distribute.tcp_proxy import TcpProxy, between_hosts
from tests.each import nightly


class Ends:
    """Two ends without a network: `run` delivers what each puts, as ``damage`` changes it (None: lost)."""

    def __init__(self, damage: Callable[[Frame], Frame | None] = lambda frame: frame) -> None:
        self._damage = damage
        self.wire: deque[tuple[int, Frame]] = deque()
        self.ends = [CheckedFrames(f"end {at}", self._putter(1 - at)) for at in (0, 1)]
        self.came: list[bytes] = []

    def _putter(self, target: int) -> Callable[[list[Buffer], Iterator[Buffer]], None]:
        decoder = FrameDecoder()

        def put(buffers: list[Buffer], rest: Iterator[Buffer]) -> None:
            for piece in (*buffers, *rest):
                self.wire.extend((target, frame) for frame in decoder.feed(piece))

        return put

    def run(self) -> None:
        while self.wire:
            target, frame = self.wire.popleft()
            came = self._damage(frame)
            taken = came and self.ends[target].take(came)
            if taken and target == 1:
                self.came.append(taken.header)

    def settle(self) -> None:
        """Run until the first end hears no more."""
        while self.ends[0]._kept:
            self.run()
            self.ends[0].probe()


@pytest.mark.parametrize("loss", [0.0, 0.1])
@pytest.mark.parametrize("seed", nightly(range(20), 8))
def test_frames_keep_their_order_whatever_is_damaged_or_lost(seed: int, loss: float) -> None:
    """Each at most as often as it is requested again."""
    random, damages = Random(seed), Counter[bytes]()

    def damage(frame: Frame) -> Frame | None:
        chance, key = random.random(), frame.header[:8]
        if damages[key] == MAX_RESENDS or frame.kind != Kind.CHECKED or chance > 0.2:
            return frame
        damages[key] += 1
        return None if chance < loss else frame._replace(is_intact=not frame.payload)

    ends = Ends(damage)
    sent: list[int] = []
    for number in range(300):
        payload = [
            random_bytes(size) for size in random.choices((10, JOINED + 1), (4, 1), k=random.randrange(3))
        ]
        ends.ends[0].send(b"%d" % number, payload, lambda number=number: sent.append(number))
        if random.random() < 0.2:
            ends.run()
    ends.settle()
    assert damages
    assert ends.came == [b"%d" % number for number in range(300)]
    assert sorted(sent) == list(range(300))


def test_what_is_damaged_again_and_again_is_an_error_that_names_it(caplog: pytest.LogCaptureFixture) -> None:
    ends = Ends(lambda frame: frame._replace(is_intact=not frame.header.endswith(b"1")))
    for number in range(3):
        ends.ends[0].send(b"%d" % number, [random_bytes(100)], None)
    with pytest.raises(
        DataLossError, match=rf"end 1: .*frame 1.*; 1 arrays of 100 bytes.*{1 + MAX_RESENDS} att"
    ):
        ends.run()
    assert ends.came == [b"0"]
    assert any("came damaged" in record.message for record in caplog.records)


def test_what_is_kept_is_bounded() -> None:
    ends = Ends()
    for _ in range(10 * MAX_UNACKNOWLEDGED):
        ends.ends[0].send(b"", [], None)
        ends.run()
    assert len(ends.ends[0]._kept) < MAX_UNACKNOWLEDGED
    ends.ends[0].send(b"", [random_bytes(JOINED + 1)], None)
    ends.run()
    assert not ends.ends[0]._kept


def test_a_goodbye_before_a_damaged_frame_came_again_is_a_loss() -> None:
    end = CheckedFrames("end", lambda buffers, rest: None)
    end.check_end()
    end.take(Frame(Kind.CHECKED, bytes(8), [random_bytes(1)], is_intact=False))
    with pytest.raises(DataLossError, match="frame 0 was damaged, and its sender has closed"):
        end.check_end()


@pytest.mark.parametrize("kind", [Kind.ACKNOWLEDGE, Kind.RESEND])
@pytest.mark.parametrize("header", [b"", b"\7" * 8, b"\7" * 9])
def test_control_frames_that_do_not_fit_are_an_error(kind: Kind, header: bytes) -> None:
    with pytest.raises(DataLossError, match="expected"):
        CheckedFrames("end", lambda buffers, rest: None).take(Frame(kind, header, []))


# --- who has them


@pytest.mark.parametrize(
    ("is_near", "ends", "expected"),
    [
        (False, ("auto", "auto"), True),
        (True, ("auto", "auto"), False),
        (True, ("on", "auto"), True),
        (True, ("auto", "on"), True),
        (False, ("off", "auto"), False),
        (False, ("auto", "off"), False),
    ],
)
@pytest.mark.parametrize("kind", ["tcp", "grpc"])
def test_checksums_are_for_links_between_hosts(
    kind: str, is_near: bool, ends: tuple[str, str], expected: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    boot_ids = itertools.count()
    if not is_near:
        monkeypatch.setattr(upgrade, "boot_id", lambda: f"host {next(boot_ids)}")
    monkeypatch.setenv("FLOWRT_CHECKSUMS", ends[0])
    listening = new_transport(kind=kind)
    monkeypatch.setenv("FLOWRT_CHECKSUMS", ends[1])
    with Linked(listening, new_transport(kind=kind)) as linked:
        checked = [each._checked is not None for each in (linked.dialled, linked.accepted)]  # type: ignore[attr-defined]
    assert checked == [expected, expected]


def test_another_value_of_the_variable_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLOWRT_CHECKSUMS", "yes")
    with pytest.raises(InvalidArgumentError, match="auto, on, off as FLOWRT_CHECKSUMS; got 'yes'"):
        new_transport()


class Linked:
    """Two ends of a connection, in this process."""

    def __init__(self, listening: Transport, dialling: Transport, reach: Callable[[str], str] = str) -> None:
        """``reach(address)``: what is dialled to get there."""
        accepted: list[Connection] = []
        self._listener = listening.listen("127.0.0.1:0", accepted.append)
        self.dialled = dialling.connect(reach(self._listener.address), CONNECT_S)
        wait_until(lambda: accepted, "accept is called")
        self.accepted = accepted[0]

    def __enter__(self) -> Linked:
        return self

    def __exit__(self, *_: object) -> None:
        self.dialled.abort()
        self.accepted.abort()
        self._listener.close()


# --- bits that flip


PAYLOAD = JOINED + 1
HEADER = b"the header of a frame"
TCP_END = HEAD_BYTES + 8 + 8 + len(HEADER)
TCP_SIZE = TCP_END + PAYLOAD + 4
GRPC_PREFIX = 40
"""Bytes of HTTP/2 and gRPC before a frame, at most."""


@contextmanager
def damaged_link(kind: str, direction: str, bit: int) -> Iterator[tuple[Linked, TcpProxy]]:
    """A link on which bit number ``bit`` flips, of those that go in ``direction``."""
    with between_hosts(kind) as hosts:
        ends = new_transport(kind=kind), new_transport(kind=kind)
        with Linked(*ends, hosts.reach if kind == "grpc" else str) as linked:
            hosts.proxies[0].flip(direction, bit)
            yield linked, hosts.proxies[0]


def exchange(kind: str, direction: str, bit: int) -> tuple[Inbox, TcpProxy]:
    """Three frames there over a `damaged_link`: what comes is right, and in order; else there is an error."""
    with damaged_link(kind, direction, bit) as (linked, proxy):
        inbox, outbox, sent = Inbox(), Inbox(), list[None]()
        linked.accepted.start(inbox)
        linked.dialled.start(outbox)
        values = [random_bytes(PAYLOAD, seed) for seed in range(3)]
        for value in values:
            with suppress(UnavailableError):
                linked.dialled.send(HEADER, [value], lambda: sent.append(None))
        wait_until(
            lambda: len(inbox.frames) == len(sent) == 3 or (inbox.errors and outbox.errors),
            f"the frames and acknowledgements, or errors: {direction} {bit}",
        )
        for (header, payload), value in zip(inbox.frames, values, strict=False):
            assert header == HEADER
            assert np.array_equal(payload[0], value)
    return inbox, proxy


@pytest.mark.parametrize(
    "byte", [*range(TCP_END), *Random(0).sample(range(TCP_END, TCP_SIZE), 20), TCP_SIZE - 4, TCP_SIZE - 1]
)
def test_a_flipped_bit_on_tcp_gives_the_right_value_or_an_error(byte: int) -> None:
    inbox, proxy = exchange("tcp", "there", 8 * byte + byte % 8)
    assert proxy.has_flipped
    if byte >= TCP_END:
        assert len(inbox.frames) == 3
    else:
        assert isinstance(inbox.errors[0].__cause__, DataLossError | FailedPreconditionError)


@pytest.mark.parametrize("bit", nightly((8 * byte + byte % 8 for byte in range(GRPC_PREFIX)), 12))
def test_a_flipped_bit_on_grpc_gives_the_right_value_or_an_error(bit: int) -> None:
    """In HTTP/2's heads, too, by which a message may be lost, or wait for more."""
    assert exchange("grpc", "there", bit)[1].has_flipped


@pytest.mark.slow
@pytest.mark.parametrize("direction", ["there", "back"])
@pytest.mark.parametrize("bit", range(8 * GRPC_PREFIX))
def test_each_flipped_bit_on_grpc_gives_the_right_value_or_an_error(bit: int, direction: str) -> None:
    exchange("grpc", direction, bit)


@pytest.mark.parametrize("bit", nightly(range(0, 8 * (GRPC_PREFIX + HEAD_BYTES + 8), 13), 12))
def test_a_flipped_bit_in_an_acknowledgement_on_grpc_keeps_nothing_for_ever(bit: int) -> None:
    exchange("grpc", "back", bit)


def test_tls_has_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    boot_ids = itertools.count()
    monkeypatch.setattr(upgrade, "boot_id", lambda: f"host {next(boot_ids)}")
    terms = new_transport()._terms("127.0.0.1:1")  # type: ignore[attr-defined]
    assert upgrade._wants_checksums(terms, "auto", is_near=False)
    secured = terms.__class__(**{**vars(terms), "security": Security(ca=b"an authority")})
    assert not upgrade._wants_checksums(secured, "auto", is_near=False)
