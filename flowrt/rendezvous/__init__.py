"""Rendezvous: exchange of tensors between devices by name, within one step.

Partitioning cuts each edge between devices into a Send and a Recv that share a key. At run time the
producer's program sends, the consumer's receives, and neither depends on the other:

    Send on CPU:0 --send(key, value)--> LocalRendezvous <--recv(key)-- Recv on CPU:1
                                          | under the lock: decide
                                        RendezvousTable --> [Deliver(waiter, value)]
                                          | after the lock: act
                                        waiter(value, None)

    matching      within a task: keys and the table
    remote        between tasks: `RemoteTable` (pure), `RemoteRendezvous`: a receive requests from the sender
    channel       connections that transport frames
    grpc          gRPC, and negotiation of a faster link
    local_links   shared memory and sockets
    messages      links over systems that pass messages: mpi, ucx
    transport     `new_transport`: all of these under one name
    faulty        `FaultyTransport`, for tests: loses, repeats and reorders

Invariants (inline, which neither waits nor aborts, satisfies the first and the last):

 - It is recv-driven: `send` never blocks and needs no receiver; its value stays until requested.
 - Per key, values are received in the order in which they were sent, each by one receive, and receives are
   served in order.
 - A key holds values or waiters, never both; the later party does the matching.
 - `abort` wakes all waiters with the first error and is permanent: nothing can be sent or received after it.
 - No callback runs while the lock is held.
 - A step that succeeds leaves nothing behind: `check_empty` verifies it.
"""

from flowrt.rendezvous.matching.inline import InlineRendezvous
from flowrt.rendezvous.matching.key import ParsedKey, create_key, parse_key
from flowrt.rendezvous.matching.local import LocalRendezvous
from flowrt.rendezvous.matching.table import Action, Deliver, Fail, Pending, RendezvousTable

__all__ = [
    "InlineRendezvous", "LocalRendezvous",
    "ParsedKey", "create_key", "parse_key",
    "Action", "Deliver", "Fail", "Pending", "RendezvousTable",
]  # fmt: skip
