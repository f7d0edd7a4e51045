"""UCX: the contract, between two ends of one process and, for the death of a peer, two processes."""

from __future__ import annotations

import importlib.util
import sys

import pytest

from flowrt.errors import FailedPreconditionError, InvalidArgumentError
from flowrt.rendezvous.channel.security import Security
from flowrt.rendezvous.transport import Transport, new_transport
from flowrt.rendezvous.ucx import ucx_worker
from flowrt.rendezvous.ucx.ucx_worker import UcxPlace, open_worker
from tests.contracts.check_transport import CONNECT_S, Pair, TransportContract

needs_ucx = pytest.mark.skipif(
    importlib.util.find_spec("ucxx") is None, reason="ucxx is not installed (the extra `ucx`)"
)


@needs_ucx
class TestUcx(TransportContract):
    @pytest.fixture
    def transport(self) -> Transport:
        return new_transport(kind="ucx")

    def test_it_is_ucx(self, pair: Pair) -> None:
        assert [end.kind for end in pair] == ["ucx", "ucx"]


@needs_ucx
@pytest.mark.parametrize("kinds", [("ucx", "auto"), ("auto", "ucx")], ids="-".join)
def test_who_does_not_use_it_is_served_by_grpc(kinds: tuple[str, str]) -> None:
    listens, dials = (new_transport(kind=kind) for kind in kinds)
    listener = listens.listen("127.0.0.1:0", lambda connection: None)
    connection = dials.connect(listener.address, CONNECT_S)
    assert connection.kind == "grpc"
    connection.abort()
    listener.close()


@needs_ucx
@pytest.mark.parametrize(
    "wrong",
    [None, [], {"worker": "no hexadecimal"}, {"worker": 5}, {"tag": -1}, {"tag": 1 << 64}, {"tag": "0"}],
    ids=repr,
)
def test_an_address_that_is_none(wrong: object) -> None:
    place = UcxPlace(open_worker())
    with pytest.raises(OSError, match="expected an address of UCX"):
        place.path_to(dict(place.address) | wrong if isinstance(wrong, dict) else wrong)


def test_certificates_would_promise_what_ucx_does_not_do() -> None:
    with pytest.raises(InvalidArgumentError, match="UCX does not encrypt"):
        new_transport(Security(cert=b"cert", key=b"key"), "ucx")


def test_without_ucxx(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ucx_worker, "_workers", [])
    monkeypatch.setitem(sys.modules, "ucxx._lib", None)
    with pytest.raises(FailedPreconditionError, match=r"pip install flowrt\[ucx\]"):
        open_worker()
