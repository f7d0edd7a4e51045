"""A shared memory segment for the ranks of a group on one host: its distribution and layout.

    rank 0                                         the others
    a new segment, a Unix socket of a random name
    the name and a secret             -- mesh -->
                                     <- socket --  the secret
    the segment's descriptor         -- socket ->  mapped

Then the socket is closed. The segment has no name: the kernel frees it with its last mapping, however the
ranks end.
"""

from __future__ import annotations

import hmac
import json
import secrets
import socket
import time
from typing import NamedTuple

import numpy as np

from flowrt.distribute.collectives.membership import Membership, missing
from flowrt.distribute.collectives.mesh import Mesh
from flowrt.errors import DataLossError, OpError, UnavailableError
from flowrt.rendezvous.channel.host_identity import is_same_user
from flowrt.rendezvous.local_links.shared_memory import Mapping, create_segment, map_segment

LOOK_S = 0.1
"""Interval between checks for lost ranks that have not fetched the segment."""
SHOW_S = 1.0
"""Timeout for a connected rank to show the secret."""

LINE_BYTES = 1024
"""A rank's control line: its round, alone in its cache line, and from `TEXT_AT` on two texts."""
TEXT_AT, TEXT_BYTES = 64, 256
PAGE_BYTES = 4096


class Layout(NamedTuple):
    """Layout of a segment of ``size`` ranks with ``chunk`` bytes: lines, two slots per rank, two results."""

    size: int
    chunk: int

    @property
    def nbytes(self) -> int:
        return self.result(2)

    def line(self, rank: int) -> int:
        return rank * LINE_BYTES

    def text(self, rank: int, parity: int) -> int:
        return self.line(rank) + TEXT_AT + parity * TEXT_BYTES

    def slot(self, rank: int, parity: int) -> int:
        lines = -(-self.size * LINE_BYTES // PAGE_BYTES) * PAGE_BYTES
        return lines + (2 * rank + parity) * self.chunk

    def result(self, parity: int) -> int:
        return self.slot(self.size, 0) + parity * self.chunk


def share_segment(mesh: Mesh, capacity: int) -> Mapping:
    """The mapping of this rank, of a segment shared by all ranks.

    Raises `UnavailableError` if a rank is on another host or belongs to another user, and the errors of the
    mesh.
    """
    descriptor = create_segment(capacity) if mesh.membership.rank == 0 else _fetch(mesh)
    if mesh.membership.rank == 0:
        _hand_out(mesh, descriptor)
    return map_segment(descriptor, capacity)


# --- rank 0


def _hand_out(mesh: Mesh, descriptor: int) -> None:
    name, secret = f"flowrt-{secrets.token_hex(16)}", secrets.token_hex()
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listening:
        listening.bind("\0" + name)
        listening.listen(mesh.membership.size)
        offer = np.frombuffer(json.dumps({"name": name, "secret": secret}).encode(), np.uint8)
        for rank in mesh.membership.others:
            mesh.send(rank, b"segment", offer)
        end = time.monotonic() + mesh.membership.timeout_s
        left = len(mesh.membership.others)
        while left:
            left -= _serve(mesh, listening, secret, descriptor, end)


def _serve(mesh: Mesh, listening: socket.socket, secret: str, descriptor: int, end: float) -> bool:
    """Whether a rank has fetched the segment. Raises if it no longer can."""
    listening.settimeout(LOOK_S)
    try:
        knocking, _ = listening.accept()
    except TimeoutError:
        mesh.check()
        if time.monotonic() > end:
            raise missing(mesh.membership, mesh.membership.others, "sharing memory") from None
        return False
    with knocking:
        try:
            knocking.settimeout(SHOW_S)
            shown = knocking.recv(len(secret), socket.MSG_WAITALL)
            if not is_same_user(knocking) or not hmac.compare_digest(shown, secret.encode()):
                return False
            socket.send_fds(knocking, [b"s"], [descriptor])
        except OSError:
            return False
    return True


# --- the others


def _fetch(mesh: Mesh) -> int:
    payload = mesh.receive(0, "sharing memory").payload
    offer = json.loads(payload.tobytes()) if payload is not None else {}
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connected:
            connected.settimeout(mesh.membership.timeout_s)
            connected.connect("\0" + offer["name"])
            if not is_same_user(connected):
                raise OSError("its name belongs to another user")
            connected.sendall(offer["secret"].encode())
            _, descriptors, _, _ = socket.recv_fds(connected, 1, 1)
    except OSError as error:
        raise _not_shared(mesh.membership, error) from error
    if not descriptors:
        raise DataLossError(f"{mesh.membership}: expected a segment's descriptor from rank 0; got none")
    return descriptors[0]


def _not_shared(membership: Membership, error: OSError) -> OpError:
    return UnavailableError(
        f"{membership}: expected all ranks on one host, under one user; "
        f"{membership.name_of(membership.rank)} cannot share memory with {membership.name_of(0)}: {error}"
    )
