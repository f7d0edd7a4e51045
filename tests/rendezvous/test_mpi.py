"""MPI: the contract over a world that is pretended, and, where there is one, over Open MPI's."""

from __future__ import annotations

import importlib.util
import re

import pytest

from flowrt.errors import FailedPreconditionError, InvalidArgumentError, UnavailableError
from flowrt.rendezvous import doors, mpi_link
from flowrt.rendezvous import transport as transport_module
from flowrt.rendezvous.mpi_channel import MpiWorld, open_world
from flowrt.rendezvous.security import Security
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
    monkeypatch.setattr(mpi_link, "PIECE_BYTES", 1000)
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


def test_frames_wait_with_their_sender_while_the_receiver_is_busy(
    mpi: PretendMpi, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mpi_link, "MAX_AHEAD", 100_000)
    transport = new_transport(kind="mpi")
    ends = Ends(transport, transport)
    go_on, calls = [False], list[int]()
    busy = Inbox(lambda *_: wait_until(lambda: go_on[0], "the test lets it go on"))
    ends.accepted.start(busy)
    for number in range(10):
        ends.dialled.send(b"", [random_bytes(90_000)], lambda number=number: calls.append(number))
    wait_until(lambda: len(calls) >= 2 and busy.frames, "some are read ahead")
    ends.dialled.send(b"small")
    assert len(calls) < 5
    go_on[0] = True
    busy.wait(11)
    assert calls == list(range(10))
    ends.end()


def test_who_is_in_no_world_or_another_is_served_by_grpc(mpi: PretendMpi) -> None:
    transport = new_transport(kind="mpi")
    for listens, dials in ((transport, new_transport()), (new_transport(), transport)):
        ends = Ends(listens, dials)
        assert ends.dialled.kind == ends.accepted.kind == "grpc"
        ends.end()


def test_a_world_of_the_same_name_is_found_out(mpi: PretendMpi, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doors, "UPGRADE_S", 0.1)
    transport = new_transport(kind="mpi")
    other = MpiWorld(PretendMpi())
    monkeypatch.setattr(transport_module, "open_world", lambda: other)
    ends = Ends(transport, new_transport(kind="mpi"))
    ends.accepted.start(ends.inbox)
    ends.dialled.send(b"x")
    assert ends.inbox.wait(1) == [(b"x", [])]
    assert ends.dialled.kind == ends.accepted.kind == "grpc"
    ends.end()


def test_where_mpi_fails_the_connection_is_lost(mpi: PretendMpi) -> None:
    transport = new_transport(kind="mpi")
    ends = Ends(transport, transport)
    ends.accepted.start(ends.inbox)
    mpi.COMM_WORLD.failure = PretendMpi.Exception("MPI_ERR_INTERN")
    assert "MPI: MPI_ERR_INTERN" in ends.inbox.wait_lost().message
    mpi.COMM_WORLD.failure = None
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
