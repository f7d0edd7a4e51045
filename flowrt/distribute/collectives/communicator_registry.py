"""`open_communicator`: communicators by name.

    local           threads of one process                          in_process
    shared_memory   processes of one host                           shared_memory
    grpc            any processes, over the clusters' transports    over_peers
    mpi             the ranks of an MPI world                       mpi
    nccl            GPUs, one per rank                                nccl
    auto            shared_memory if all ranks are on one host, else grpc

Names used elsewhere that flowrt does not support raise an error, and are never replaced silently.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from flowrt.distribute.collectives.communicator import Communicator
from flowrt.distribute.collectives.in_process import join_in_process
from flowrt.distribute.collectives.membership import Membership
from flowrt.distribute.collectives.mesh import Mesh
from flowrt.distribute.collectives.mesh_forming import form_mesh
from flowrt.distribute.collectives.mpi import MpiCommunicator
from flowrt.distribute.collectives.nccl import NcclCommunicator
from flowrt.distribute.collectives.over_peers import PeersCommunicator
from flowrt.distribute.collectives.shared_memory import SharedMemoryCommunicator
from flowrt.errors import InvalidArgumentError, OpError, UnavailableError
from flowrt.rendezvous.channel.channel import Transport

ELSEWHERE = ("gloo", "hccl", "oneccl", "rccl", "ucc")
"""Communicators of other systems and of devices that flowrt does not drive."""


def open_communicator(kind: str, membership: Membership, transport: Transport | None = None) -> Communicator:
    """This rank's communicator of the group, once all ranks have arrived; all must use the same ``kind``.
    ``transport``: for kinds that connect ranks by their addresses (all but local and mpi).

    Raises `UnavailableError` for a kind that is not supported here, `InvalidArgumentError` for an unknown
    name, and errors of forming the group: `form_mesh`, `share_segment`.
    """
    if kind == "local":
        return join_in_process(membership)
    if kind == "mpi":
        return MpiCommunicator(membership)
    check_kind(kind)
    if transport is None:
        raise InvalidArgumentError(f"communicator {kind}: expected a transport to reach the ranks; got none")
    return communicator_over(form_mesh(membership, transport), kind)


def check_kind(kind: str) -> None:
    """Check the kind. Raises `UnavailableError` for one of `ELSEWHERE`, else `InvalidArgumentError`."""
    if kind in ELSEWHERE:
        raise UnavailableError(f"communicator {kind}: unavailable; flowrt has {', '.join(KINDS)}")
    if kind not in KINDS:
        raise InvalidArgumentError(f"communicator: expected {', '.join(KINDS)}; got {kind!r}")


def communicator_over(mesh: Mesh, kind: str) -> Communicator:
    """This rank's communicator of a group with existing links, which are closed with it, and on an error."""
    try:
        return _BY_MESH[_agreed(mesh) if kind == "auto" else kind](mesh)
    except BaseException as error:
        if isinstance(error, OpError):
            mesh.abort(error)
        mesh.close()
        raise


def _agreed(mesh: Mesh) -> str:
    """Rank 0's choice: links over Unix sockets prove that all ranks are on one host, of one user."""
    if mesh.membership.rank:
        payload = mesh.receive(0, "choosing a communicator").payload
        return "" if payload is None else payload.tobytes().decode()
    chosen = "shared_memory" if mesh.kinds() <= {"unix"} else "grpc"
    for rank in mesh.membership.others:
        mesh.send(rank, b"communicator", np.frombuffer(chosen.encode(), np.uint8))
    return chosen


_BY_MESH: Mapping[str, Callable[[Mesh], Communicator]] = {
    "shared_memory": SharedMemoryCommunicator,
    "grpc": PeersCommunicator,
    "nccl": NcclCommunicator,
}

KINDS = ("local", *_BY_MESH, "mpi", "auto")
