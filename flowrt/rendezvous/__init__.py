"""Rendezvous knows names: where the two ends of an edge between devices meet, within one step.

The partition pass cuts each edge between devices into a Send and a Recv that know the same key. At run time
the producer's program sends, the consumer's receives, and neither knows the other:

    Send on CPU:0 --send(key, value)--> LocalRendezvous <--recv(key)-- Recv on CPU:1
                                          | under the lock: decide
                                        RendezvousTable --> [Deliver(waiter, value)]
                                          | after the lock: act
                                        waiter(value, None)

Modules, from pure to thread-safe. Within a task:

    key      `create_key`, `parse_key`, `ParsedKey`: a tensor on an edge, in one iteration of one frame
    table    `RendezvousTable`: matches sends and receives; returns actions (`Deliver`, `Fail`); no lock
    inline   `InlineRendezvous`: a dict, for programs that take turns on one thread
    local    `LocalRendezvous`: the table behind a lock, for programs on several threads

Between tasks, where a receive asks the task that sends:

    remote             `RemoteTable`, pure, and `RemoteRendezvous`: a step's rendezvous in one of its tasks
    channel            `Transport`, `Listener`, `Connection`, `Receiver`: the seam, which carries frames
    framing            frames as bytes and back; pure
    security           tokens and certificates; `tls`, `host_identity` what follows from them and from a host
    lifeline           whether a connection is open, lost or closed
    receive_memory     where large arrays arrive

    frame_stream       frames over messages: who sends writes them, who reads handles them
    grpc_call          gRPC, the one door to it: a call that carries a `frame_stream`
    grpc_channel       listens, dials, lets in; `grpc_errors` is what goes wrong, as typed errors
    stream_connection  a connection by that stream alone
    byte_stream        a socket, plain or TLS; `frame_writer` writes frames to it from any thread
    socket_channel     a connection by a socket, Unix or TCP
    shared_memory      arrays between processes of a host; `shared_frames` are frames that have some
    mpi_channel        MPI, the one door to it: ranks and messages; `progress` asks whether one has come
    mpi_link           frames between two ranks, which `mpi_place` makes sure are of one world
    mpi_connection     a connection by those

    upgrade            the handshake over gRPC; `doors` are what the listening end offers in it
    transport          `new_transport`: all of this by one name
    faulty             `FaultyTransport`, for tests: loses, repeats and reorders

What always holds (inline, which knows neither waiting nor abort, keeps the first and the last):

 - It is recv-driven: `send` never blocks, needs no receiver, and its value stays until asked for.
 - Per key, values come out as they were sent, each to one receive, and receives are served in order.
 - A key holds values or waiters, never both; whoever comes late does the matching.
 - `abort` wakes all who wait with the first error and sticks: nothing can be sent or received after it.
 - Nobody is called back while the lock is held.
 - A step that succeeds leaves nothing behind: `check_empty` says so.
"""

from flowrt.rendezvous.inline import InlineRendezvous
from flowrt.rendezvous.key import ParsedKey, create_key, parse_key
from flowrt.rendezvous.local import LocalRendezvous
from flowrt.rendezvous.table import Action, Deliver, Fail, Pending, RendezvousTable

__all__ = [
    "InlineRendezvous", "LocalRendezvous",
    "ParsedKey", "create_key", "parse_key",
    "Action", "Deliver", "Fail", "Pending", "RendezvousTable",
]  # fmt: skip
