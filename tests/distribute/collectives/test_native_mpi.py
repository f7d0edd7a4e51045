"""The communicator over MPI, under Open MPI's ``mpirun``; skipped, with the reason, where it is missing."""

from __future__ import annotations

import pytest

from tests.contracts.check_collectives import RANKS
from tests.rendezvous.mpirun import mpirun

QUICK = 3
"""Of the numbers of ranks; reductions are tested among so many."""


@pytest.mark.parametrize("size", [pytest.param(p, marks=[pytest.mark.slow] * (p != QUICK)) for p in RANKS])
def test_the_contract_under_mpirun(size: int) -> None:
    contract = (
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "-m",
        "not slow" if size == QUICK else "",
        "tests/distribute/collectives/mpi_contract.py",
    )
    ended = mpirun(*[contract] * size)
    said = ended.stdout + ended.stderr
    assert ended.returncode == 0, said
    assert said.count(" passed") == size, said
