"""Damage on the wire: bits that flip in any part of a frame give the right values, or a typed error."""

from __future__ import annotations

import itertools
from collections import Counter, deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from random import Random

import numpy as np
import pytest

from flowrt.errors import DataLossError, InvalidArgumentError
from flowrt.rendezvous.channel.channel import Connection
from flowrt.rendezvous.channel.checked_frames import MAX_RESENDS, MAX_UNACKNOWLEDGED, CheckedFrames
from flowrt.rendezvous.channel.framing import HEAD_BYTES, JOINED, Buffer, Frame, FrameDecoder, Kind
from flowrt.rendezvous.channel.security import Security
from flowrt.rendezvous.grpc import upgrade
from flowrt.rendezvous.transport import new_transport
from tests.contracts.check_transport import CONNECT_S, Inbox, random_bytes, wait_until


class Ends:
    """Two ends without a network: what each puts is delivered by `run`, changed by ``damage``."""

    def __init__(self, damage: Callable[[Frame], Frame] = lambda frame: frame) -> None:
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
            if self.ends[target].take(self._damage(frame)) and target == 1:
                self.came.append(frame.header)


@pytest.mark.parametrize("seed", range(20))
def test_frames_keep_their_order_whatever_is_damaged(seed: int) -> None:
    """Each at most as often as it is requested again."""
    random, damages = Random(seed), Counter[bytes]()

    def damage(frame: Frame) -> Frame:
        is_hit = frame.payload and random.random() < 0.2 and damages[frame.header] < MAX_RESENDS
        damages[frame.header] += bool(is_hit)
        return frame._replace(is_intact=not is_hit)

    ends = Ends(damage)
    sent: list[int] = []
    for number in range(300):
        payload = [random_bytes(size) for size in random.choices((10, JOINED + 1), k=random.randrange(3))]
        ends.ends[0].send(b"%d" % number, payload, lambda number=number: sent.append(number))
        if random.random() < 0.2:
            ends.run()
    ends.run()
    assert damages
    assert ends.came == [b"%d" % number for number in range(300)]
    ends.ends[0].end()
    assert sorted(sent) == list(range(300))


def test_what_is_damaged_again_and_again_is_an_error_that_names_it(caplog: pytest.LogCaptureFixture) -> None:
    ends = Ends(lambda frame: frame._replace(is_intact=frame.header != b"1"))
    for number in range(3):
        ends.ends[0].send(b"%d" % number, [random_bytes(100)], None)
    with pytest.raises(
        DataLossError, match=rf"end 1: .*frame 1, 1 arrays of 100 bytes.*{1 + MAX_RESENDS} att"
    ):
        ends.run()
    assert ends.came == [b"0"]
    assert any("was damaged on its way" in record.message for record in caplog.records)


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
    end.take(Frame(Kind.CHECKED, b"", [random_bytes(1)], is_intact=False))
    with pytest.raises(DataLossError, match="frame 0 was damaged, and its sender has closed"):
        end.check_end()


@pytest.mark.parametrize("kind", [Kind.ACKNOWLEDGE, Kind.RESEND, Kind.REWIND])
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

    def __init__(self, listening: object, dialling: object) -> None:
        accepted: list[Connection] = []
        self._listener = listening.listen("127.0.0.1:0", accepted.append)  # type: ignore[attr-defined]
        self.dialled: Connection = dialling.connect(self._listener.address, CONNECT_S)  # type: ignore[attr-defined]
        wait_until(lambda: accepted, "accept is called")
        self.accepted = accepted[0]

    def __enter__(self) -> Linked:
        return self

    def __exit__(self, *_: object) -> None:
        self.dialled.abort()
        self.accepted.abort()
        self._listener.close()


# --- bits that flip


PAYLOAD = 200_000
HEADER = b"the header of a frame"


@pytest.fixture
def linked(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Linked]:
    monkeypatch.setenv("FLOWRT_CHECKSUMS", "on")
    with Linked(new_transport(kind="tcp"), new_transport(kind="tcp")) as linked:
        yield linked


def flip_once(linked: Linked, bit: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Flip bit number ``bit`` of the bytes that the accepted end reads from now on."""
    stream = linked.accepted._socket  # type: ignore[attr-defined]
    read, left = stream._read, [bit]

    def damaged(room: Buffer | bytearray, *, wait: bool) -> int | None:
        count = read(room, wait=wait)
        if count and 0 <= left[0] < 8 * count:
            memoryview(room)[left[0] // 8] ^= 1 << left[0] % 8
        left[0] -= 8 * (count or 0)
        return count

    monkeypatch.setattr(stream, "_read", damaged)


HEAD_END = HEAD_BYTES + 8 + len(HEADER)
SIZE = HEAD_END + PAYLOAD + 4


@pytest.mark.parametrize(
    "byte", [*range(HEAD_END), *Random(0).sample(range(HEAD_END, SIZE), 40), SIZE - 4, SIZE - 1]
)
def test_a_flipped_bit_gives_the_right_value_or_an_error(
    linked: Linked, byte: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    inbox = Inbox()
    flip_once(linked, 8 * byte + byte % 8, monkeypatch)
    linked.accepted.start(inbox)
    linked.dialled.start(Inbox())
    values = [random_bytes(PAYLOAD, seed) for seed in range(3)]
    for value in values:
        with suppress(Exception):
            linked.dialled.send(HEADER, [value])
    wait_until(lambda: len(inbox.frames) == 3 or inbox.errors, "the frames or an error")
    for (header, payload), value in zip(inbox.frames, values, strict=False):
        assert header == HEADER
        assert np.array_equal(payload[0], value)
    if byte >= HEAD_END:
        assert len(inbox.frames) == 3
    else:
        assert inbox.errors


def test_tls_has_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    boot_ids = itertools.count()
    monkeypatch.setattr(upgrade, "boot_id", lambda: f"host {next(boot_ids)}")
    terms = new_transport()._terms("127.0.0.1:1")  # type: ignore[attr-defined]
    assert upgrade._wants_checksums(terms, "auto", is_near=False)
    secured = terms.__class__(**{**vars(terms), "security": Security(ca=b"an authority")})
    assert not upgrade._wants_checksums(secured, "auto", is_near=False)
