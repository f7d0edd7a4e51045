"""`FirstFrame`: tells from its first frame whether a connection is of a task, a client, or a rank."""

from __future__ import annotations

from typing import final

from flowrt.distribute.collectives.mesh_forming import GroupDoor, is_joining
from flowrt.distribute.wire.peer import Owner, Peer
from flowrt.errors import UnavailableError
from flowrt.rendezvous.channel.channel import Bytes, Connection, Receiver


@final
class FirstFrame:
    """The `Receiver` of a connection that was accepted, until it has one: a `Peer` of ``owner``, or that of
    the ``groups``.
    """

    def __init__(self, owner: Owner, groups: GroupDoor) -> None:
        self._owner, self._groups = owner, groups
        self._receiver: Receiver | None = None

    def on_frame(self, connection: Connection, header: bytes, payload: list[Bytes]) -> None:
        """See `flowrt.rendezvous.channel.channel.Receiver`."""
        if self._receiver is None:
            joins = is_joining(header)
            self._receiver = self._groups.receiver(connection) if joins else Peer(connection, self._owner)
        self._receiver.on_frame(connection, header, payload)

    def on_lost(self, connection: Connection, error: UnavailableError) -> None:
        """See `flowrt.rendezvous.channel.channel.Receiver`."""
        if self._receiver is None:
            connection.close()
        else:
            self._receiver.on_lost(connection, error)
