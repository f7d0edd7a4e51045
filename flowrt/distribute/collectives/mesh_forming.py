"""How the ranks of a group find each other: each listens at its address and dials those before it.

rank i                                    rank j > i
listens       <--- JOIN {key, size, rank} ---   dials, again and again until it answers
a member?      --- JOINED ------------------>
         or    --- REFUSED, with the error ->   raises it; so does rank i, if the groups do not fit
"""

from __future__ import annotations

import json
import queue
import time
from collections.abc import Callable
from typing import Any, TypeAlias, final

import flowrt.version
from flowrt.distribute.collectives.membership import Membership, lost_rank, missing
from flowrt.distribute.collectives.mesh import Mesh
from flowrt.distribute.messages import decode_status, encode_status
from flowrt.errors import (
    AlreadyExistsError,
    DataLossError,
    DeadlineExceededError,
    FailedPreconditionError,
    InvalidArgumentError,
    OpError,
    UnavailableError,
)
from flowrt.protos import cluster_pb2 as pb
from flowrt.rendezvous.channel import Bytes, Connection, Transport

DIAL_S = 5.0
"""Of one attempt."""
RETRY_S = 0.05
"""Between two: the other rank may not listen yet."""

JOIN, JOINED, REFUSED = b"J", b"K", b"R"
"""The first byte of a frame's header."""

First: TypeAlias = bytes | OpError
"""The header of a connection's first frame, or that it was lost before."""


def form_mesh(membership: Membership, transport: Transport) -> Mesh:
    """The links of this rank, when all ranks have come: each listens at its address of the membership.

    Raises `DeadlineExceededError`, which names who did not come within ``timeout_s``; `InvalidArgumentError`
    where another rank knows another group of this key, `FailedPreconditionError` where one has another
    version or belongs to another group; `AlreadyExistsError` where the port is taken, or two ranks are one.
    """
    if membership.size > 1 and not membership.addresses:
        raise InvalidArgumentError(f"{membership}: expected the addresses of its ranks; got none")
    mesh = Mesh(membership)
    end = time.monotonic() + membership.timeout_s
    try:
        if membership.rank < membership.size - 1:
            own = membership.addresses[membership.rank]
            mesh.listens(transport.listen(own, lambda connection: _accept(mesh, connection)))
        for rank in range(membership.rank):
            _join(mesh, rank, transport, end)
        mesh.wait_until_formed(end)
    except BaseException as error:
        if isinstance(error, OpError):
            mesh.abort(error)
        mesh.close()
        raise
    return mesh


@final
class _Link:
    """The `Receiver` of a connection: ``begin(link, first)`` finds out whose it is, and sets its ``rank``."""

    def __init__(self, mesh: Mesh, connection: Connection, begin: Callable[[_Link, First], object]) -> None:
        self.mesh, self.connection, self._begin = mesh, connection, begin
        self.rank: int | None = None

    def on_frame(self, connection: Connection, header: bytes, payload: list[Bytes]) -> None:
        """See `flowrt.rendezvous.channel.Receiver`."""
        if self.rank is None:
            self._begin(self, header)
        else:
            self.mesh.arrived(self.rank, header, payload)

    def on_lost(self, connection: Connection, error: UnavailableError) -> None:
        """See `flowrt.rendezvous.channel.Receiver`."""
        if self.rank is None:
            self._begin(self, error)
        else:
            self.mesh.lose(self.rank, error)


# --- who listens


def _accept(mesh: Mesh, connection: Connection) -> None:
    connection.start(_Link(mesh, connection, _admit))


def _admit(link: _Link, first: First) -> None:
    """Of one who has dialled."""
    if isinstance(first, OpError):
        return  # it went as it came
    if first[:1] != JOIN:
        raise DataLossError(f"{link.mesh.membership}: expected JOIN first; got kind {first[:1]!r}")
    try:
        rank = _check_joining(link.mesh.membership, first[1:], link.connection.peer)
    except InvalidArgumentError as error:  # a member, but of what?
        _refuse(link, error)
        link.mesh.refuse(error)
    except OpError as error:
        _refuse(link, error)
    else:
        link.rank = rank
        if not link.mesh.add(rank, link.connection, JOINED):
            link.rank = None
            _refuse(link, AlreadyExistsError(f"{link.mesh.membership}: two ranks call themselves {rank}"))


def _refuse(link: _Link, error: OpError) -> None:
    link.connection.send(REFUSED + encode_status(error, "").SerializeToString())


def _joining(membership: Membership) -> dict[str, Any]:
    version = flowrt.version.VERSION
    return {"key": membership.key, "size": membership.size, "rank": membership.rank, "version": version}


def _check_joining(membership: Membership, text: bytes, peer: str) -> int:
    """The rank of one that says ``text``. Raises `InvalidArgumentError` where its group does not fit this
    one, `FailedPreconditionError` where it is another.
    """
    try:
        said = json.loads(text)
        key, size, rank, version = (said[name] for name in ("key", "size", "rank", "version"))
    except (ValueError, TypeError, KeyError) as error:
        raise FailedPreconditionError(
            f"{membership}: expected a rank's JOIN from {peer}; {error!r}"
        ) from None
    own = _joining(membership)
    if key != membership.key or version != own["version"]:
        raise FailedPreconditionError(
            f"{membership.name_of(membership.rank)} is of {membership}, flowrt {own['version']}; got "
            f"{rank} of group {key!r}, flowrt {version}, from {peer}"
        )
    if size != membership.size or type(rank) is not int or not membership.rank < rank < membership.size:
        raise InvalidArgumentError(
            f"{membership}: expected all ranks to know one group; rank {membership.rank} knows "
            f"{membership.size} ranks; got rank {rank} of {size} from {peer}"
        )
    return rank


# --- who dials


def _join(mesh: Mesh, rank: int, transport: Transport, end: float) -> None:
    membership = mesh.membership
    answers: queue.SimpleQueue[First] = queue.SimpleQueue()

    def begin(link: _Link, first: First) -> None:
        link.rank = rank
        answers.put(first)

    connection = _keep_dialling(membership, rank, transport, end)
    try:
        connection.start(_Link(mesh, connection, begin))
        connection.send(JOIN + json.dumps(_joining(membership)).encode())
        answer = answers.get(timeout=max(0.0, end - time.monotonic()))
        if isinstance(answer, OpError):
            raise lost_rank(membership, rank, answer)
        if answer[:1] != JOINED:
            raise decode_status(pb.Status.FromString(answer[1:]))
    except queue.Empty:
        connection.close()
        raise missing(membership, [rank], "joining") from None
    except BaseException:
        connection.close()
        raise
    mesh.add(rank, connection)


def _keep_dialling(membership: Membership, rank: int, transport: Transport, end: float) -> Connection:
    """A connection to ``rank``, which may not listen yet."""
    while True:
        left = end - time.monotonic()
        try:
            return transport.connect(membership.addresses[rank], max(RETRY_S, min(left, DIAL_S)))
        except (UnavailableError, DeadlineExceededError) as error:
            if left <= RETRY_S:
                raise missing(membership, [rank], "joining") from error
            time.sleep(RETRY_S)
