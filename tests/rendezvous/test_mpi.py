"""MPI: the contract over a world that is pretended, and, where there is one, over Open MPI's."""

from __future__ import annotations

import importlib.util
import re
import sys
import threading
from types import SimpleNamespace

import pytest

from flowrt.device.workspace import new_bytes
from flowrt.errors import FailedPreconditionError, InvalidArgumentError, UnavailableError
from flowrt.rendezvous import transport as transport_module
from flowrt.rendezvous.channel.framing import Kind, encode
from flowrt.rendezvous.channel.security import Security
from flowrt.rendezvous.grpc import offers
from flowrt.rendezvous.messages import message_link
from flowrt.rendezvous.messages.message_link import MessageLink
from flowrt.rendezvous.messages.message_path import hears, knock
from flowrt.rendezvous.mpi import mpi_channel
from flowrt.rendezvous.mpi.mpi_channel import MpiWorld, open_world
from flowrt.rendezvous.mpi.mpi_place import MpiPath, MpiPlace
from flowrt.rendezvous.transport import Connection, Transport, new_transport
from tests.contracts.check_transport import (
    CONNECT_S,
    Inbox,
    TransportContract,
    assert_same,
    random_bytes,
    wait_until,
)
from tests.rendezvous.mpirun import mpirun
from tests.rendezvous.pretend_mpi import PretendMpi


@pytest.fixture
def mpi(monkeypatch: pytest.MonkeyPatch) -> PretendMpi:
    """A world of one rank, which is this process."""
    mpi = PretendMpi()
    world = MpiWorld(mpi)
    monkeypatch.setattr(transport_module, "open_world", lambda: world)
    return mpi


class TestPretended(TransportContract):
    @pytest.fixture
    def transport(self, mpi: PretendMpi) -> Transport:
        return new_transport(kind="mpi")


def progress_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "flowrt messages"]


class Ends:
    """Both ends of a connection, and what they are told."""

    def __init__(self, listens: Transport, dials: Transport) -> None:
        accepted: list[Connection] = []
        self._listener = listens.listen("127.0.0.1:0", accepted.append)
        self.dialled = dials.connect(self._listener.address, CONNECT_S)
        wait_until(lambda: accepted, "accept is called")
        self.accepted, self.inbox = accepted[0], Inbox()

    def end(self) -> None:
        self.dialled.abort()
        self.accepted.abort()
        self._listener.close()


def test_arrays_travel_in_pieces(mpi: PretendMpi, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(message_link, "PIECE_BYTES", 1000)
    transport = new_transport(kind="mpi")
    ends = Ends(transport, transport)
    ends.accepted.start(ends.inbox)
    arrays = [random_bytes(size) for size in (70_001, 0, 2000, 999)]
    ends.dialled.send(b"h" * 3001, arrays)
    ends.dialled.send(b"last")
    (header, payload), (last, _) = ends.inbox.wait(2)
    assert (header, last) == (b"h" * 3001, b"last")
    assert_same(payload, arrays)
    ends.end()


def test_who_is_in_no_world_or_another_is_served_by_grpc(mpi: PretendMpi) -> None:
    transport = new_transport(kind="mpi")
    for listens, dials in ((transport, new_transport()), (new_transport(), transport)):
        ends = Ends(listens, dials)
        assert ends.dialled.kind == ends.accepted.kind == "grpc"
        ends.end()


def test_a_world_of_the_same_name_is_found_out(mpi: PretendMpi, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(offers, "UPGRADE_S", 0.1)
    transport = new_transport(kind="mpi")
    other = MpiWorld(PretendMpi())
    monkeypatch.setattr(transport_module, "open_world", lambda: other)
    ends = Ends(transport, new_transport(kind="mpi"))
    ends.accepted.start(ends.inbox)
    ends.dialled.send(b"x")
    assert ends.inbox.wait(1) == [(b"x", [])]
    assert ends.dialled.kind == ends.accepted.kind == "grpc"
    ends.end()


def test_where_mpi_fails_the_connection_is_lost(mpi: PretendMpi, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(message_link, "QUIET_S", 100.0)
    transport = new_transport(kind="mpi")
    ends = Ends(transport, transport)
    ends.accepted.start(ends.inbox)
    mpi.COMM_WORLD.failure = PretendMpi.Exception("MPI_ERR_INTERN")
    assert "MPI: MPI_ERR_INTERN" in ends.inbox.wait_lost().message
    wait_until(lambda: not progress_threads(), "it is asked no more")
    with pytest.raises(UnavailableError, match="mpi"):
        ends.accepted.send(b"x")
    ends.end()


def test_certificates_would_promise_what_mpi_does_not_do() -> None:
    with pytest.raises(InvalidArgumentError, match="MPI does not encrypt"):
        new_transport(Security(cert=b"cert", key=b"key"), "mpi")


@pytest.mark.skipif(importlib.util.find_spec("mpi4py") is not None, reason="mpi4py is installed")
def test_without_mpi4py() -> None:
    with pytest.raises(FailedPreconditionError, match=r"pip install flowrt\[mpi\]"):
        open_world()


@pytest.mark.parametrize(
    "wrong",
    [
        None,
        [],
        {"world": "another"},
        {"rank": 1},
        {"rank": -1},
        {"rank": "0"},
        {"tag": 1 << 40},
        {"tag": None},
    ],
)
def test_a_place_that_is_not_in_this_world(wrong: object) -> None:
    place = MpiPlace(MpiWorld(PretendMpi()))
    right = dict(place.address)
    place.path_to(right)
    with pytest.raises(OSError, match="not in this MPI world"):
        place.path_to(right | wrong if isinstance(wrong, dict) else wrong)


def test_who_has_not_heard_the_secret_is_not_the_peer() -> None:
    place = MpiPlace(MpiWorld(PretendMpi()))
    path = place.path_to(place.address)
    for shown, is_peer in ((b"another", False), (b"", False), (b"secret", True)):
        knock(path, shown, CONNECT_S)
        assert hears(path, b"secret", CONNECT_S) == is_peer


# --- links


def link_pair() -> tuple[MessageLink, MessageLink]:
    world = MpiWorld(PretendMpi())
    ends = MpiPath(world, 0, 2, 1), MpiPath(world, 0, 1, 2)
    return MessageLink(ends[0], new_bytes), MessageLink(ends[1], new_bytes)


@pytest.mark.parametrize("is_taken", [True, False])
def test_bytes_are_given_back_when_the_peer_has_them_or_throws_them_away(
    is_taken: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not when an end ends: what it began to send it cannot take back."""
    monkeypatch.setattr(message_link, "QUIET_S", 100.0)
    near, far = link_pair()
    array = random_bytes(3 * message_link.PIECE_BYTES)
    expected, calls = array.copy(), list[int]()
    near.send(encode(Kind.DATA, b"", [array]), lambda: (calls.append(1), array.fill(0)))
    near.end()
    assert not calls
    if is_taken:
        far.start()
        frame = far.receive()
        assert frame is not None
        assert_same(frame.payload, [expected])
    else:
        far.end()
    assert far.receive() is None
    wait_until(lambda: near.is_over and far.is_over, "both ends are over")
    assert calls == [1]


def test_frames_wait_with_their_sender_while_nobody_takes_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(message_link, "MAX_AHEAD", 100_000)
    (near, far), (before, after) = link_pair(), link_pair()
    far.start()
    after.start()
    calls: list[int] = []
    for number in range(10):
        frame = encode(Kind.DATA, b"", [random_bytes(90_000)])
        near.send(frame, lambda number=number: calls.append(number))
    for _ in range(50):  # the same thread asks all links in turn: time for all ten
        before.send(encode(Kind.DATA, b""), None)
        after.receive()
    assert calls == [0, 1]
    for _ in range(10):
        far.receive()
    wait_until(lambda: calls == list(range(10)), "all are sent")
    for link in (near, far, before, after):
        link.end()


def test_an_end_whose_peer_is_dead_is_over_when_nothing_moves(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(message_link, "QUIET_S", 0.05)
    link = MessageLink(MpiPath(MpiWorld(PretendMpi()), 0, 1, 2), new_bytes)
    calls: list[int] = []
    link.send(encode(Kind.DATA, b"", [random_bytes(1 << 20)]), lambda: calls.append(1))
    link.end()
    wait_until(lambda: link.is_over, "it is over")
    assert calls == [1]
    assert not link.send([b"x"], None)


# --- the initialisation


def test_a_rank_that_never_initialises_mpi_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mpi_channel, "INIT_S", 0.05)
    come = threading.Event()
    mpi = SimpleNamespace(THREAD_MULTIPLE=3, Init_thread=lambda level: come.wait(), Exception=RuntimeError)
    with pytest.raises(UnavailableError, match=r"all ranks to initialise MPI within 0.05 s"):
        mpi_channel._initialise(mpi)
    come.set()


def test_an_mpi_for_one_thread_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    mpi = SimpleNamespace(THREAD_MULTIPLE=3, Query_thread=lambda: 1, Is_initialized=lambda: True)
    monkeypatch.setitem(sys.modules, "mpi4py", SimpleNamespace(rc=SimpleNamespace(), MPI=mpi))
    with pytest.raises(FailedPreconditionError, match=r"MPI_THREAD_MULTIPLE.*level 1 of 3"):
        mpi_channel._load_mpi()


# --- Open MPI


def test_the_contract_holds_over_open_mpi() -> None:
    ended = mpirun(
        ("-m", "pytest", "-q", "-p", "no:cacheprovider", "--color=no", "tests/rendezvous/mpi_contract.py")
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert re.search(r"\d\d passed", ended.stdout)
    assert "skipped" not in ended.stdout


def test_a_killed_rank_is_noticed() -> None:
    """By the other end, which goes on: without recovery mpirun would end it too."""
    ended = mpirun(*2 * [("tests/rendezvous/mpi_death.py",)], options=("--enable-recovery",))
    assert "kind mpi" in ended.stdout, ended.stdout + ended.stderr
    (seconds,) = re.findall(r"lost after ([\d.]+) s: connection to .*", ended.stdout)
    assert float(seconds) <= 2
    assert "closed" in ended.stdout
