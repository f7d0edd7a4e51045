"""A cluster under Open MPI's ``mpirun``, which is all that says what the cluster is."""

from __future__ import annotations

from tests.rendezvous.mpirun import mpirun


def test_two_ranks_run_steps() -> None:
    ended = mpirun(("tests/distribute/mpi_session.py",), ("-m", "flowrt.cli.worker"))
    said = ended.stdout + ended.stderr
    assert ended.returncode == 0, said
    assert "cluster: 2 workers from Open MPI; I am worker 1 at 127.0.0.1:" in said
    assert "steps: 20" in said
    assert "by mpi" in said
    assert "ended: the job of" in said  # the worker, when the session's process was done
