"""Class programs of a step of a script: what each class of devices computes, sends and waits for, in order.

    StepRequest -> `device_parts` -> for each position a `ClassProgram`

The device of a class runs its part in order, on one thread, so an entry starts behind all that comes before
it in the order of the plan:

    operations         those between two entries that travel, and of one action, are one `Work`
    _GroupStart        begins a `Meeting`; the thread goes on
    _GroupWait         makes what follows wait for the end of the meeting
    _TaggedSend        begins a `Message`; the thread goes on
    _TaggedRecv        a received `Message`, for which what follows waits
    expanded collective    one `Meeting`, begun with its first message

Messages between devices of one position are the pieces of an all-to-all, or a value of one device that others
need: a `Meeting`, too.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple, TypeAlias, final

from flowrt.dtypes import as_dtype
from flowrt.errors import UnimplementedError
from flowrt.executor.buffers.buffer_assignment import Storage, nbytes_of
from flowrt.graph.collectives.cost import DEFAULT_LINKS, Links
from flowrt.graph.evaluate import located
from flowrt.graph.layouts.mesh import Mesh
from flowrt.graph.node import Node, Ref, Subgraph, owned_subgraphs
from flowrt.graph.op_def import Effect
from flowrt.graph.ops.array.slicing import slice_op
from flowrt.graph.ops.collective.group_transfer import (
    group_agree_op,
    group_recv_op,
    group_send_op,
    group_start_op,
    group_wait_op,
    tagged_recv_op,
    tagged_send_op,
)
from flowrt.graph.passes.prepare.prune import StepRequest
from flowrt.graph.pipeline.actions import Action
from flowrt.graph.resources.groups import ranks_of
from flowrt.graph.shapes import is_static
from flowrt.plan.replay.played import ClassProgram, Meeting, Message
from flowrt.plan.step.device_parts import DevicePart, device_parts, variable_bytes
from flowrt.plan.step.entries import Awaited, Begun, Computed, Entry, works_of

NodeSeconds: TypeAlias = Callable[[Subgraph, Node], float]
"""The seconds for which a node, of a subgraph, occupies its device."""

TRAVELS = frozenset(
    (group_start_op, group_wait_op, group_send_op, group_recv_op, tagged_send_op, tagged_recv_op)
)

THERE = (Storage.CONSTANT, Storage.RESOURCE, Storage.VIEW)
"""The storage of what is made once: it takes no time in a step."""

MEETINGS = {
    "AllReduce": "all_reduce",
    "AllGather": "all_gather",
    "ReduceScatter": "reduce_scatter",
    "AllToAll": "all_to_all",
    "Broadcast": "broadcast",
}
"""The kinds of meetings by the names of collectives."""

_FROM_EACH = ("AllGather", "AllToAll")
"""Collectives of which each rank gives another part of the whole."""


def emitted(
    request: StepRequest, seconds: NodeSeconds, links: Links = DEFAULT_LINKS
) -> tuple[ClassProgram, ...]:
    """The class program of each position, in order. ``links`` decide what is joined, as in a session.

    Raises as `device_parts`, and `UnimplementedError` for a loop or branch that exchanges something.
    """
    trainable = frozenset(v.op.name for v in request.graph.get_collection("trainable_variables"))
    return tuple(class_program(part, seconds, trainable) for part in device_parts(request, links))


def class_program(part: DevicePart, seconds: NodeSeconds, trainable: frozenset[str]) -> ClassProgram:
    """The program of the class of ``part``. ``trainable``: the names of variables that are weights."""
    held = {
        **variable_bytes(part, trainable),
        "activations": part.partition.buffers.memory.nbytes,
        "received": received_bytes(part),
    }
    works = works_of(Entries(part, seconds).of(part.partition.schedule.order))
    return ClassProgram(part.position, works, sum(held.values()), held)


def received_bytes(part: DevicePart) -> int:
    """The most bytes of tensors that are new memory in each step, such as what is received, at a time."""
    lowered = part.partition
    subgraph, schedule, lifetimes, places = (
        lowered.subgraph,
        lowered.schedule,
        lowered.buffers.lifetimes,
        lowered.buffers,
    )
    live = most = 0
    sizes: dict[Ref, int] = {}
    for position, node in enumerate(schedule.order):
        for index, spec in enumerate(node.outputs):
            ref = (node.name, index)
            is_own = lifetimes.root(ref) == ref and places.storage_of(ref) is Storage.REGISTER
            if is_own and is_static(spec.shape) and node.name not in subgraph.feeds:
                sizes[ref] = nbytes_of(spec)
                live += sizes[ref]
        most = max(most, live)
        live -= sum([sizes.pop(ref, 0) for ref in lifetimes.read_last_at(position)])
    return most


class _Exchange(NamedTuple):
    """Messages between devices of one position that are one meeting."""

    key: str
    kind: str
    peers: tuple[int, ...]
    nbytes: int
    """Bytes of the whole."""


@final
class Entries:
    """Makes the entries of one part, from its nodes in order."""

    def __init__(self, part: DevicePart, seconds: NodeSeconds) -> None:
        self._part, self._seconds, self._mesh = part, seconds, part.mesh
        self._subgraph = part.partition.subgraph
        self._exchanges = _exchanges(part)
        self._entries: list[Entry] = []
        self._segment: list[Node] = []
        self._action: Action | None = None
        self._begun: set[str] = set()
        """The names of what has begun."""

    def of(self, nodes: Iterable[Node]) -> list[Entry]:
        """The entries of ``nodes``, which follow those before."""
        self._entries = []
        for node in nodes:
            if node.op in TRAVELS:
                self._close()
                self._travel(node)
            elif node.op is not group_agree_op:
                self._compute(node)
        self._close()
        return self._entries

    # --- computing

    def _compute(self, node: Node) -> None:
        if node.op.effect is Effect.NESTED and any(map(_exchanges_inside, owned_subgraphs(node.attrs))):
            what = f"expected loops and branches that exchange nothing between devices; got {node.name!r}"
            raise located(node, UnimplementedError(f"plan: {what}"))
        if self._part.partition.buffers.storage.get(node.name) in THERE:
            return
        action = self._part.actions.get(node.name, self._action)
        if action != self._action:
            self._close()
            self._action = action
        self._segment.append(node)

    def _close(self) -> None:
        """End the segment: an entry, if it takes time."""
        seconds = math.fsum(self._seconds(self._subgraph, node) for node in self._segment)
        if seconds:
            name = max(self._segment, key=lambda node: self._seconds(self._subgraph, node)).name
            self._entries.append(Computed(name, seconds, self._action))
        self._segment = []

    # --- what travels

    def _travel(self, node: Node) -> None:
        if node.op is group_start_op:
            self._begin(node.name, node.name, _meeting(node, self._mesh))
        elif node.op is group_wait_op:
            self._await(next(name for name in node.controls if name in self._begun))
        elif node.op in (group_send_op, group_recv_op):
            key = str(node.attrs["edge"]).rsplit(";", 3)[0]
            self._begin(key, node.name, _expanded_meeting(node, self._mesh))
            if node.op is group_recv_op:
                self._await(key)
        elif node.name in self._exchanges:
            exchange = self._exchanges[node.name]
            axes = _axes((self._part.rank, *exchange.peers), self._mesh)
            self._begin(exchange.key, node.name, Meeting(exchange.kind, axes, exchange.nbytes))
            if node.op is tagged_recv_op:
                self._await(exchange.key)
        else:
            message = self._message(node)
            self._begin(node.name, node.name, message)
            if not message.is_sent:
                self._await(node.name)

    def _begin(self, key: str, name: str, meets: Meeting | Message) -> None:
        self._begun.add(key)
        self._entries.append(Begun(key, name, meets))

    def _await(self, key: str) -> None:
        self._entries.append(Awaited(key))

    def _message(self, node: Node) -> Message:
        peer = _position(node.attrs["peer"], self._mesh)
        nbytes = _nbytes_of(node, self._subgraph)
        return Message(peer, str(node.attrs["edge"]), nbytes, node.op is tagged_send_op)


def _exchanges_inside(function: Subgraph) -> bool:
    return any(
        node.op in TRAVELS
        or (node.op.effect is Effect.NESTED and any(map(_exchanges_inside, owned_subgraphs(node.attrs))))
        for node in function
    )


# --- meetings


def _meeting(node: Node, mesh: Mesh) -> Meeting:
    """The meeting of a native collective."""
    kind, ranks = node.attrs["kind"].removeprefix("Coalesced"), _ranks(node.attrs["group_key"], mesh)
    nbytes = sum(map(math.prod, node.attrs["shapes"])) * as_dtype(node.attrs["dtype"]).np.itemsize
    whole = nbytes * len(ranks) if kind in ("ReduceScatter", "AllToAll") else nbytes  # of the result
    return Meeting(_kind(node, kind), _axes(ranks, mesh), whole)


_EDGE = re.compile(r";(?P<kind>\w+) '[^']*' (?P<dtype>\w+)\[(?P<shape>[\d, ]*)\]")


def _expanded_meeting(node: Node, mesh: Mesh) -> Meeting:
    """The meeting of a collective of which ``node`` is a message: its edge has the kind, and what a rank
    gives.
    """
    found = _EDGE.search(str(node.attrs["edge"]))
    if found is None:
        raise located(node, UnimplementedError(f"plan: expected messages of collectives; got {node.name!r}"))
    sizes = [int(size) for size in found["shape"].split(",") if size.strip()]
    ranks, nbytes = _ranks(node.attrs["group_key"], mesh), math.prod(sizes) * as_dtype(found["dtype"]).size
    whole = nbytes * len(ranks) if found["kind"] in _FROM_EACH else nbytes
    return Meeting(_kind(node, found["kind"]), _axes(ranks, mesh), whole)


def _kind(node: Node, name: str) -> str:
    if name not in MEETINGS:
        known = ", ".join(MEETINGS)
        raise located(node, UnimplementedError(f"plan: expected one of {known}; got {name} {node.name!r}"))
    return MEETINGS[name]


def _ranks(group_key: str, mesh: Mesh) -> Sequence[int]:
    found = ranks_of(group_key)
    return range(mesh.num_devices) if found is None else found


def _axes(ranks: Sequence[int], mesh: Mesh) -> tuple[str, ...]:
    """The axes on which ``ranks`` differ."""
    sizes = [axis.size for axis in mesh.device_axes]
    differ = [False] * len(sizes)
    for rank in ranks:
        left, first = rank, ranks[0]
        for number in reversed(range(len(sizes))):
            left, index = divmod(left, sizes[number])
            first, own = divmod(first, sizes[number])
            differ[number] |= index != own
    return tuple(axis.name for axis, is_on in zip(mesh.device_axes, differ, strict=True) if is_on)


def _position(rank: int, mesh: Mesh) -> int:
    return rank // (mesh.num_devices // len(mesh.positions))


def _nbytes_of(node: Node, subgraph: Subgraph) -> int:
    """The bytes of a message."""
    return nbytes_of(subgraph.spec(node.inputs[0]) if node.op is tagged_send_op else node.outputs[0])


# --- messages between devices of one position


def _exchanges(part: DevicePart) -> dict[str, _Exchange]:
    """The exchange of each message between devices of one position, by the name of its operation.

    An all-to-all cuts a tensor of each device: the pieces sent are slices of one tensor, and those received
    are joined with a slice of it. Others are one device's value, which several get.
    """
    whole, mesh = part.whole, part.mesh
    messages = [
        node
        for node in whole
        if node.op in (tagged_send_op, tagged_recv_op)
        and _position(node.attrs["peer"], mesh) == part.position
    ]
    consumers = whole.consumers()
    members: dict[str, list[Node]] = {}
    for node in messages:
        readers = [whole.nodes[name] for name in consumers[node.name]]
        near = [node] if node.op is tagged_send_op else readers
        sources = [_cut_tensor(ref, whole) for each in near for ref in each.inputs]
        source = next((found for found in sources if found is not None), None)
        key = f"{node.inputs or node.name}" if source is None else f"{source[0]}:{source[1]}"
        members.setdefault(key, []).append(node)
    found: dict[str, _Exchange] = {}
    for key, nodes in members.items():
        received = [_nbytes_of(node, whole) for node in nodes if node.op is tagged_recv_op]
        peers = tuple(sorted({int(node.attrs["peer"]) for node in nodes}))
        is_exchange = bool(received) and any(node.op is tagged_send_op for node in nodes)
        count = len(peers) + 1
        nbytes = sum(received) * count * count // len(peers) if is_exchange else _nbytes_of(nodes[0], whole)
        exchange = _Exchange(key, "all_to_all" if is_exchange else "broadcast", peers, nbytes)
        found |= {node.name: exchange for node in nodes}
    return found


def _cut_tensor(ref: Ref, subgraph: Subgraph) -> Ref | None:
    """The tensor of which ``ref`` is a slice."""
    node = subgraph.nodes[ref[0]]
    return node.inputs[0] if node.op is slice_op else None
