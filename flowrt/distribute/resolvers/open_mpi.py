"""The variables that Open MPI's ``mpirun`` sets. They count processes and do not name hosts."""

from __future__ import annotations

from flowrt.distribute.resolvers.source import Environ, Launch, first_port, has, number, workers

VARIABLES = ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE")

_RUN_NAMES = ("PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid", "OMPI_MCA_orte_ess_jobid")
"""Variables shared by all processes of one ``mpirun``, by its version."""


def from_open_mpi(environ: Environ) -> Launch | None:
    """None outside of ``mpirun``. Raises `InvalidArgumentError`."""
    if not has(environ, *VARIABLES):
        return None
    size, rank = number(environ, "OMPI_COMM_WORLD_SIZE"), number(environ, "OMPI_COMM_WORLD_RANK")
    local = number(environ, "OMPI_COMM_WORLD_LOCAL_SIZE") if has(environ, "OMPI_COMM_WORLD_LOCAL_SIZE") else 0
    if local != size:
        why = f"mpirun does not name hosts, and only {local} of the {size} processes are on this host"
        return Launch("Open MPI", size, rank, why_no_spec=why)
    first = first_port(environ, next((environ[name] for name in _RUN_NAMES if has(environ, name)), ""))
    return Launch("Open MPI", size, rank, workers(("127.0.0.1", first + index) for index in range(size)))
