"""Forming a mesh: each rank of a group listens at its address and dials those with lower numbers.

    rank i                                    rank j > i
    listening     <--- JOIN {key, size, rank, to: i} ---   dials repeatedly until it answers
    a member?      --- JOINED ------------------------->
    not yet?       --- REFUSED, `UnavailableError` ---->   dials again
    does not fit?  --- REFUSED, with the error -------->   raises it; so does rank i

If a task of this process listens at the address (a `flowrt.distribute.server.Server`), the others connect to
its `GroupAcceptor`; otherwise the rank listens there itself, for all groups of this process at that address.
"""

from __future__ import annotations

import json
import logging
import queue
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import NamedTuple, TypeAlias, final

import flowrt.version
from flowrt.distribute.collectives.interruption import watch_mesh
from flowrt.distribute.collectives.membership import Membership, missing
from flowrt.distribute.collectives.mesh import Mesh
from flowrt.distribute.wire.messages import decode_status, encode_status
from flowrt.distribute.wire.wait_log import WaitLog
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
from flowrt.rendezvous.channel.channel import Bytes, Connection, Listener, Receiver, Transport

LOGGER = logging.getLogger(__name__)

DIAL_S = 5.0
"""Timeout of one attempt."""
RETRY_S = 0.05
"""Between two: the other rank may not listen yet."""

SLICE_S = 1.0
"""Part of a longer wait, after which it may be reported."""

JOIN, JOINED, REFUSED = b"\0", b"J", b"R"
"""The first byte of a frame's header."""

First: TypeAlias = bytes | OpError
"""The header of a connection's first frame, or that it was lost before."""


def form_mesh(membership: Membership, transport: Transport) -> Mesh:
    """The links of this rank, once all ranks have arrived, each at its address of the membership.

    Raises `DeadlineExceededError`, which names the ranks missing after ``timeout_s``; `InvalidArgumentError`
    if another rank has a different group with this key, `FailedPreconditionError` if one has another version,
    `AlreadyExistsError` if the port is taken, also by a group of this process with an incompatible transport,
    or if two ranks are equal.
    """
    if membership.size > 1 and not membership.addresses:
        raise InvalidArgumentError(f"{membership}: expected the addresses of its ranks; got none")
    mesh = Mesh(membership)
    end, log = time.monotonic() + membership.timeout_s, WaitLog(LOGGER)
    try:
        watch_mesh(mesh)
        with _acceptor(mesh, transport).admitting(mesh):
            for rank in range(membership.rank):
                _join(mesh, rank, transport, end, log)
            mesh.wait_until_formed(end, log)
    except BaseException as error:
        if isinstance(error, OpError):
            mesh.abort(error)
        mesh.close()
        raise
    return mesh


def _acceptor(mesh: Mesh, transport: Transport) -> GroupAcceptor:
    """Listening end for the ranks with higher numbers; the last rank is not dialled."""
    membership = mesh.membership
    if membership.rank == membership.size - 1:
        return GroupAcceptor()
    address = membership.addresses[membership.rank]
    with _lock:
        acceptor = _acceptors.get(address)
    if acceptor is None:
        shared = _SharedListener(address, transport)
        mesh.listens(shared)
        acceptor = shared.acceptor
    return acceptor


_lock = threading.Lock()
_acceptors: dict[str, GroupAcceptor] = {}
"""Listening ends of the tasks of this process, by address."""
_opening = threading.Lock()
_listening: dict[str, _Listening] = {}
"""Listeners for groups of this process at addresses without a task."""


class _Listening:
    """A listener and its acceptor, shared by ``groups`` groups."""

    def __init__(self, address: str, transport: Transport) -> None:
        self.acceptor, self.transport = GroupAcceptor(), transport
        self.listener = transport.listen(address, self.acceptor.accept)
        self.groups = 0


@final
class _SharedListener(Listener):
    """One group's share of the listener at ``address``, which closes with the last group. Raises as
    `Transport.listen`, and `AlreadyExistsError` if it accepts different peers than ``transport`` would.
    """

    def __init__(self, address: str, transport: Transport) -> None:
        self.address = address
        with _opening:
            if address not in _listening:
                _listening[address] = _Listening(address, transport)
            shared = _listening[address]
            if not transport.listens_like(shared.transport):
                raise AlreadyExistsError(
                    f"{address}: expected the security and transport of the other group of this process "
                    "that listens here; got different ones. Use the same for both groups, or separate "
                    "addresses"
                )
            shared.groups += 1
        self.acceptor, self._is_closed = shared.acceptor, False

    def close(self) -> None:
        """See `flowrt.rendezvous.channel.channel.Listener`; the other groups' connections stay."""
        with _opening:
            was_closed, self._is_closed = self._is_closed, True
            if was_closed:
                return
            shared = _listening[self.address]
            shared.groups -= 1
            if not shared.groups:
                del _listening[self.address]
                shared.listener.close()


@final
class GroupAcceptor:
    """Accepts connections to this process for its groups. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._meshes: dict[tuple[str, int], Mesh] = {}

    def register(self, addresses: Iterable[str]) -> None:
        """Accept the groups of this process at ``addresses``, where a task listens."""
        with _lock:
            _acceptors.update(dict.fromkeys(addresses, self))

    def unregister(self) -> None:
        """The task has stopped listening."""
        with _lock:
            for address in [address for address, acceptor in _acceptors.items() if acceptor is self]:
                del _acceptors[address]

    @contextmanager
    def admitting(self, mesh: Mesh) -> Iterator[None]:
        """Admit the other ranks while ``mesh`` is formed. Raises `AlreadyExistsError` if its rank is already
        being formed here.
        """
        place = mesh.membership.key, mesh.membership.rank
        with self._lock:
            if place in self._meshes:
                raise AlreadyExistsError(f"{mesh.membership}: rank {place[1]} is already being formed here")
            self._meshes[place] = mesh
        try:
            yield
        finally:
            with self._lock:
                del self._meshes[place]

    def accept(self, connection: Connection) -> None:
        """Accept a connection of a listener used only for groups."""
        connection.start(self.receiver(connection))

    def receiver(self, connection: Connection) -> Receiver:
        """The receiver for a connection with a first frame that `is_joining`."""
        return _Link(connection, self._admit)

    def _admit(self, link: _Link, first: First) -> None:
        if isinstance(first, OpError):
            return  # it disconnected again
        if not is_joining(first):
            raise DataLossError(f"group: expected JOIN first; got kind {first[:1]!r}")
        try:
            joining = _parse_joining(first[1:])
            with self._lock:
                mesh, here = self._meshes.get((joining.key, joining.to)), list(self._meshes)
            if mesh is None:
                groups = ", ".join(f"rank {rank} of group {key!r}" for key, rank in here) or "none"
                raise UnavailableError(
                    f"group {joining.key!r}: expected rank {joining.to} to be joining; got {groups}"
                )
            _admit_rank(mesh, link, joining)
        except OpError as error:
            link.connection.send(_refused(error))


def is_joining(header: bytes) -> bool:
    """Whether a rank sent a connection's first frame. No Envelope starts with 0: it is not a field number."""
    return header[:1] == JOIN


@final
class _Link:
    """The `Receiver` of a connection: ``begin(link, first)`` identifies its owner, and may `tie` it."""

    def __init__(self, connection: Connection, begin: Callable[[_Link, First], object]) -> None:
        self.connection, self._begin = connection, begin
        self._mesh: Mesh | None = None
        self._rank = 0

    def tie(self, mesh: Mesh, rank: int) -> None:
        """Deliver later frames to ``mesh``, as from ``rank``."""
        self._mesh, self._rank = mesh, rank

    def untie(self) -> None:
        self._mesh = None

    def on_frame(self, connection: Connection, header: bytes, payload: list[Bytes]) -> None:
        """See `flowrt.rendezvous.channel.channel.Receiver`."""
        if self._mesh is None:
            self._begin(self, header)
        else:
            self._mesh.arrived(self._rank, header, payload)

    def on_lost(self, connection: Connection, error: UnavailableError) -> None:
        """See `flowrt.rendezvous.channel.channel.Receiver`."""
        if self._mesh is None:
            self._begin(self, error)
        else:
            self._mesh.lose(self._rank, error)


class Joining(NamedTuple):
    """Greeting of a rank that dials rank ``to``."""

    key: str
    size: int
    rank: int
    to: int
    version: str


def _admit_rank(mesh: Mesh, link: _Link, joining: Joining) -> None:
    """Accept the rank. Raises the error of a refusal, unless it ends the forming for both."""
    misfit = _misfit(mesh.membership, joining, link.connection.peer)
    if misfit is not None:
        link.connection.send(_refused(misfit))
        mesh.refuse(misfit, link.connection)
        return
    link.tie(mesh, joining.rank)
    if not mesh.add(joining.rank, link.connection, JOINED):
        link.untie()
        raise AlreadyExistsError(f"{mesh.membership}: two ranks have the number {joining.rank}")


def _misfit(membership: Membership, joining: Joining, peer: str) -> OpError | None:
    """The mismatch between a member of this group, by its key, and the greeting; None if they match."""
    version = flowrt.version.VERSION
    if joining.version != version:
        return FailedPreconditionError(
            f"{membership}: expected all ranks to have the same version of flowrt; rank {membership.rank} "
            f"has {version}; got {joining.version} of rank {joining.rank}"
        )
    if joining.size != membership.size or not membership.rank < joining.rank < membership.size:
        return InvalidArgumentError(
            f"{membership}: expected all ranks to have the same group; rank {membership.rank} has "
            f"{membership.size} ranks; got rank {joining.rank} of {joining.size} from {peer}"
        )
    return None


def _refused(error: OpError) -> bytes:
    status: bytes = encode_status(error, "").SerializeToString()
    return REFUSED + status


def _parse_joining(text: bytes) -> Joining:
    """Raises `DataLossError`."""
    try:
        said = json.loads(text)
        found = Joining(**said)
    except (ValueError, TypeError) as error:
        raise DataLossError(f"group: expected a rank's request to join; {error}") from None
    kinds = {name: type(value) for name, value in said.items()}
    if kinds != {"key": str, "size": int, "rank": int, "to": int, "version": str}:
        raise DataLossError(f"group: expected a rank's request to join; got {said!r:.200}")
    return found


# --- dialling


def _join(mesh: Mesh, rank: int, transport: Transport, end: float, log: WaitLog) -> None:
    """Dial ``rank``, which may not be there yet, until it admits this one."""
    why = ""
    while True:
        mesh.check_forming()
        try:
            connection = _dial(mesh, rank, transport, end, log)
        except (UnavailableError, queue.Empty) as error:
            if isinstance(error, OpError) and (not why or time.monotonic() < end):
                why = f": {error.message}"  # not that the last attempt was cut short
            if time.monotonic() + RETRY_S > end:
                absent = missing(mesh.membership, [rank], "joining")
                raise DeadlineExceededError(f"{absent.message}{why}") from error
            log.waits_for(f"{mesh.awaiting([rank])}{why}")
            time.sleep(RETRY_S)
        else:
            mesh.add(rank, connection)
            return


def _dial(mesh: Mesh, rank: int, transport: Transport, end: float, log: WaitLog) -> Connection:
    """Dial ``rank``. Raises `UnavailableError` if it is not up yet, its error on a refusal, and `queue.Empty`
    if it does not answer.
    """
    membership = mesh.membership
    answers: queue.SimpleQueue[First] = queue.SimpleQueue()

    def begin(link: _Link, first: First) -> None:
        link.tie(mesh, rank)
        answers.put(first)

    def left_s() -> float:
        return max(RETRY_S, end - time.monotonic())

    connection = transport.connect(membership.addresses[rank], min(left_s(), DIAL_S))
    joining = Joining(membership.key, membership.size, membership.rank, rank, flowrt.version.VERSION)
    try:
        connection.start(_Link(connection, begin))
        connection.send(JOIN + json.dumps(joining._asdict()).encode())
        answer = _answer(
            answers, end, lambda: log.waits_for(f"{mesh.awaiting([rank])}, which does not answer")
        )
        if isinstance(answer, OpError):
            raise answer
        if answer[:1] != JOINED:
            raise decode_status(pb.Status.FromString(answer[1:]))
    except BaseException:
        connection.abort()
        raise
    return connection


def _answer(answers: queue.SimpleQueue[First], end: float, wait_goes_on: Callable[[], object]) -> First:
    """The next of ``answers``. Raises `queue.Empty` at ``end`` of ``time.monotonic``."""
    while True:
        left_s = max(RETRY_S, end - time.monotonic())
        try:
            return answers.get(timeout=min(left_s, SLICE_S))
        except queue.Empty:
            if left_s <= SLICE_S:
                raise
            wait_goes_on()
