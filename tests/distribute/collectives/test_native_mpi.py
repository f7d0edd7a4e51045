"""The communicator over MPI, under Open MPI's ``mpirun``; skipped, with the reason, where it is missing."""

from __future__ import annotations

from tests.rendezvous.mpirun import mpirun


def test_the_contract_under_mpirun() -> None:
    contract = (
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "tests/distribute/collectives/mpi_contract.py",
    )
    ended = mpirun(contract, contract, contract)
    said = ended.stdout + ended.stderr
    assert ended.returncode == 0, said
    assert said.count("13 passed") == 3, said
