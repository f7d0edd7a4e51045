"""The transports: the contract for each kind, and what is the business of one."""

from __future__ import annotations

import pytest

from flowrt.rendezvous.transport import Transport, new_transport
from tests.contracts.check_transport import TransportContract


class TestGrpc(TransportContract):
    @pytest.fixture
    def transport(self) -> Transport:
        return new_transport(kind="grpc")


class TestUnix(TransportContract):
    @pytest.fixture
    def transport(self) -> Transport:
        return new_transport(kind="unix")


class TestTcp(TransportContract):
    @pytest.fixture
    def transport(self) -> Transport:
        return new_transport(kind="tcp")
