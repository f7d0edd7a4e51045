"""The contract over MPI itself: run by pytest under ``mpirun -n 1``, see `test_mpi.py`."""

from __future__ import annotations

import pytest

from flowrt.rendezvous.transport import Transport, new_transport
from tests.contracts.check_transport import Pair, TransportContract


class TestMpi(TransportContract):
    @pytest.fixture
    def transport(self) -> Transport:
        return new_transport(kind="mpi")

    def test_it_is_mpi(self, pair: Pair) -> None:
        assert [end.kind for end in pair] == ["mpi", "mpi"]
