"""Expansion: a collective as ordinary operations on the devices of its ranks, by a `Schedule`.

    ring, step 0 of p = 2:   rank 0  StridedSlice (chunk 1)  ->  rank 1  AddV2 (chunk 1, the received one)

A transfer between two ranks of the graph is an edge; `flowrt.graph.passes.placement.partition` turns it into
a send and a receive if their devices differ. What a rank forwards, and its result, is its own copy (an
Identity on its device), so a ring stays a ring. Transfers to and from ranks in other graphs are `_GroupSend`
and `_GroupRecv`.

An expansion is a function with one parameter per value; equal calls share it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from typing import Any, NamedTuple, final

from flowrt.errors import InvalidArgumentError
from flowrt.graph.collectives.ends import Ends, ends
from flowrt.graph.collectives.schedule import Schedule, Step, Transfer, offset
from flowrt.graph.construction.constant import placeholder
from flowrt.graph.construction.graph import Graph, Operation, Tensor
from flowrt.graph.node import Subgraph, TensorSpec
from flowrt.graph.op_def import OpDef
from flowrt.graph.ops.array.concat_and_split import concat
from flowrt.graph.ops.array.slicing import getitem
from flowrt.graph.ops.base.identities import cast, identity
from flowrt.graph.ops.base.shape_manipulation import reshape, shape, size
from flowrt.graph.ops.collective.group_transfer import describes_itself, group_recv_op, group_send_op
from flowrt.graph.ops.elementwise.arithmetic import add, add_v2, maximum, minimum, multiply, subtract
from flowrt.graph.ops.elementwise.division import divide, floordiv, floormod
from flowrt.graph.passes.prepare.prune import extract
from flowrt.graph.shapes import Shape, is_static, num_elements

COMBINE: dict[str, OpDef] = {"sum": add_v2, "mean": add_v2, "prod": multiply, "min": minimum, "max": maximum}

_ELEMENTWISE = ("AllReduce", "Barrier", "Reduce", "Broadcast")
"""Kinds that are chunked over all elements in order; others are split along an axis."""


class Call(NamedTuple):
    """The properties of a collective that determine its expansion. ``ranks`` are those in this graph,
    ``devices`` theirs, ``specs`` those of their input values, and ``payload`` that of a whole value. ``edge``
    prefixes the names of transfers to other graphs; ``""`` if the group is inside this graph.
    """

    kind: str
    schedule: Schedule
    ranks: tuple[int, ...]
    devices: tuple[str, ...]
    specs: tuple[TensorSpec, ...]
    payload: TensorSpec
    reduction: str = "sum"
    root: int = 0
    axis: int = 0
    group_key: str = ""
    edge: str = ""


class Expanded(NamedTuple):
    """The ``function`` has one feed per value, one fetch per result, and as targets the sends to other
    graphs. ``first`` are the nodes without predecessors in it, ``last`` those without successors, per rank.
    """

    function: Subgraph
    first: frozenset[str]
    last: tuple[tuple[str, ...], ...]


@lru_cache(maxsize=512)
def expand(call: Call) -> Expanded:
    """The expansion of ``call``. Raises `InvalidArgumentError` if other graphs' values lack static shapes."""
    with Graph() as graph:
        expansion = _Expansion(graph, call)
        results = expansion.run()
        feeds = {value: value.spec.shape for value in expansion.values}
        sends = [op for ops in expansion.sends.values() for op in ops]
        function = extract(graph, list(results.values()), sends, feeds)
    last = {rank: [op.name for op in expansion.sends[rank]] for rank in call.ranks}
    for rank, result in results.items():
        last[rank].append(result.op.name)
    return Expanded(function, _first(function), tuple(tuple(last[rank]) for rank in call.ranks))


def _first(function: Subgraph) -> frozenset[str]:
    """Nodes without predecessors, other than feeds and constants."""
    outside = {node.name for node in function if node.name in function.feeds or node.op.name == "Const"}
    return frozenset(
        node.name
        for node in function
        if node.name not in outside and not node.controls and all(name in outside for name, _ in node.inputs)
    )


class _Piece(NamedTuple):
    """The chunks [first, end) as one tensor."""

    first: int
    end: int
    value: Tensor

    def has(self, chunk: int) -> bool:
        return self.first <= chunk < self.end


@final
class _Expansion:
    """Builds ``call`` in ``graph``. It tracks the pieces held by each rank, latest first: an earlier piece is
    valid only where no later one overlaps it.
    """

    def __init__(self, graph: Graph, call: Call) -> None:
        self._graph, self._call, self._schedule = graph, call, call.schedule
        self.values = [placeholder(s.dtype, s.shape, name=f"value_{i}") for i, s in enumerate(call.specs)]
        self.sends: dict[int, list[Operation]] = {rank: [] for rank in call.ranks}
        """Sends of each rank to other graphs."""
        self._ends: dict[int, Ends] = {r: ends(call.kind, call.schedule, r, call.root) for r in call.ranks}
        self._devices = dict(zip(call.ranks, call.devices, strict=True))
        self._is_flat = call.kind in _ELEMENTWISE and call.schedule.chunks > 1
        self._axis = 0 if self._is_flat else call.axis
        self._row = self._schedule.ranks if call.kind == "AllToAll" else self._schedule.chunks
        """Number of chunks of one value."""
        givers = [rank for rank in call.ranks if self._ends[rank].before is not None]
        self._given = dict(zip(givers, self.values, strict=True))
        self._pieces: dict[int, list[_Piece]] = {rank: [] for rank in call.ranks}
        self._received = set[tuple[int, Tensor]]()
        """Values as ranks have received them."""
        self._copies: dict[tuple[int, Tensor], Tensor] = {}
        """The ranks' own copies of those that they give on."""
        self._scope = ""
        """Prefix of names."""

    def run(self) -> dict[int, Tensor]:
        """The results, by rank; not all ranks have one."""
        for rank, value in self._given.items():
            first, end = self._ends[rank].before or (0, 0)
            flat = self._on(rank, reshape, value, [-1]) if self._is_flat else value
            self._pieces[rank] = [_Piece(first, end, flat)]
        for number, step in enumerate(self._schedule.steps):
            self._take_step(number, step)
        return {rank: self._result(rank) for rank in self._call.ranks if self._ends[rank].after}

    def _on(self, rank: int, build: Callable[..., Any], /, *arguments: Any, **attrs: Any) -> Any:
        """``build(...)``, on the rank's device."""
        scope = f"{self._scope}rank_{rank}/"
        with self._graph.device(self._devices[rank]), self._graph.name_scope(scope):
            return build(*arguments, **attrs)

    # --- steps

    def _take_step(self, number: int, step: Step) -> None:
        """Add a step; all its transfers read the pieces held before it."""
        self._scope = f"step_{number}/"
        sent = [
            (t, self._own(t.source, self._read(t.source, t.first, t.end)))
            for t in step
            if t.source in self._devices
        ]
        arrived = [(t, value) for t, value in sent if t.target in self._devices]
        for transfer, value in sent:
            if transfer.target not in self._devices:
                self._send(number, transfer, value)
        coming = [t for t in step if t.target in self._devices and t.source not in self._devices]
        arrived += [(transfer, self._receive(number, transfer)) for transfer in coming]
        for transfer, value in arrived:
            self._take(transfer, value)

    def _take(self, transfer: Transfer, value: Tensor) -> None:
        _, rank, first, end, reduces = transfer
        if reduces:
            own = self._read(rank, first, end)
            value = self._on(rank, COMBINE[self._call.reduction], own, value)
        elif self._devices.get(transfer.source) != self._devices[rank]:
            self._received.add((rank, value))
        kept = [piece for piece in self._pieces[rank] if piece.first < first or piece.end > end]
        self._pieces[rank] = [_Piece(first, end, value), *kept]

    def _send(self, number: int, transfer: Transfer, value: Tensor) -> None:
        rank = transfer.source
        attrs: dict[str, Any] = {"peer": transfer.target, **self._edge(number, transfer)}
        if describes_itself(self._call.payload):
            attrs["is_described"] = True
        self.sends[rank].append(self._on(rank, group_send_op, value, rank=rank, **attrs))

    def _receive(self, number: int, transfer: Transfer) -> Tensor:
        """Add a receive, after the rank's earlier sends: while it blocks, other ranks may wait for those."""
        spec, rank = self._call.payload, transfer.target
        dims = self._chunk_shape(transfer)
        edge = self._edge(number, transfer)
        with self._graph.control_dependencies(self.sends[rank]):
            received: Tensor = self._on(
                rank, group_recv_op, rank=rank, peer=transfer.source, dtype=spec.dtype, shape=dims, **edge
            )
        return received

    def _edge(self, number: int, transfer: Transfer) -> dict[str, str]:
        name = f"{self._call.edge};{transfer.source};{transfer.target};{number}"
        return {
            "group_key": self._call.group_key,
            "edge": name,
            "name": f"edge_{transfer.source}_{transfer.target}",
        }

    def _chunk_shape(self, transfer: Transfer) -> Shape:
        """Shape of the chunks received from a rank of another graph."""
        dims = self._call.payload.shape
        if self._call.kind == "Broadcast" and not self._is_flat:
            return dims
        if not is_static(dims):
            raise InvalidArgumentError(
                "expected values of a static shape, as other graphs contribute some ranks; got "
                f"{self._call.payload}"
            )
        count = transfer.end - transfer.first
        if self._is_flat:
            return (self._length(transfer, num_elements(dims) or 0),)
        if self._call.kind in _ELEMENTWISE:
            return dims
        along = dims[self._axis]
        if self._call.kind in ("AllGather", "Gather"):
            along *= count
        else:
            along = self._length(transfer, along)
        return (*dims[: self._axis], along, *dims[self._axis + 1 :])

    def _length(self, transfer: Transfer, total: int) -> int:
        row = transfer.first // self._row * self._row
        first = offset(transfer.first - row, total, self._row)
        return offset(transfer.end - row, total, self._row) - first

    # --- pieces

    def _own(self, rank: int, value: Tensor) -> Tensor:
        """``value`` on the rank's device, where it is given on."""
        if (rank, value) not in self._received:
            return value
        if (rank, value) not in self._copies:
            self._copies[rank, value] = self._on(rank, identity, value)
        return self._copies[rank, value]

    def _read(self, rank: int, first: int, end: int) -> Tensor:
        """The rank's chunks [first, end) as one tensor on its device."""
        parts = [self._part(rank, *part) for part in _cover(self._pieces[rank], first, end)]
        return self._joined(rank, parts)

    def _joined(self, rank: int, parts: Sequence[Tensor]) -> Tensor:
        return parts[0] if len(parts) == 1 else self._on(rank, concat, parts, self._axis)

    def _part(self, rank: int, piece: _Piece, first: int, end: int) -> Tensor:
        is_whole = (first, end) == (piece.first, piece.end)
        return piece.value if is_whole else self._on(rank, self._slice, rank, piece, first, end)

    def _slice(self, rank: int, piece: _Piece, first: int, end: int) -> Tensor:
        row, total = piece.first // self._row * self._row, self._total(rank)
        base = self._offset(piece.first - row, total)
        begin, behind = (_minus(self._offset(chunk - row, total), base) for chunk in (first, end))
        return getitem(piece.value, (slice(None),) * self._axis + (slice(begin, behind),))

    def _total(self, rank: int) -> Any:
        """Size of a whole value in elements, or in rows along the axis: a number if it is known."""
        is_own = self._call.kind == "AllToAll"
        dims = self._given[rank].spec.shape if is_own else self._call.payload.shape
        known = num_elements(dims) if self._is_flat else None if dims is None else dims[self._axis]
        if known is not None:
            return known
        value = self._given.get(rank, self.values[0])
        return size(value) if self._is_flat else getitem(shape(value), self._axis)

    def _offset(self, chunk: int, total: Any) -> Any:
        """`offset` in a value of ``total``, which may be a tensor."""
        if isinstance(total, int):
            return offset(chunk, total, self._row)
        return add(multiply(floordiv(total, self._row), chunk), minimum(floormod(total, self._row), chunk))

    # --- results

    def _result(self, rank: int) -> Tensor:
        self._scope = ""
        parts = [self._read(rank, *interval) for interval in self._ends[rank].after]
        result = self._own(rank, self._joined(rank, parts))
        if self._call.reduction == "mean":
            result = self._on(rank, _divide, result, self._schedule.ranks)
        if self._is_flat:
            dims = self._call.payload.shape
            target = dims if is_static(dims) else self._on(rank, shape, self._given.get(rank, self.values[0]))
            result = self._on(rank, reshape, result, target)
        return self._on(rank, identity, result) if result in self.values else result


def _cover(pieces: Sequence[_Piece], first: int, end: int) -> Iterator[tuple[_Piece, int, int]]:
    """``pieces``, latest first, that together form the chunks [first, end), with the part used of each."""
    while first < end:
        index = next(i for i, piece in enumerate(pieces) if piece.has(first))
        later = [piece.first for piece in pieces[:index] if first < piece.first]
        stop = min(pieces[index].end, end, *later)
        yield pieces[index], first, stop
        first = stop


def _minus(x: Any, y: Any) -> Any:
    return x - y if isinstance(x, int) else subtract(x, y)


def _divide(total: Tensor, count: int) -> Tensor:
    """The mean; integers are rounded down."""
    if total.dtype.is_integer:
        return floordiv(total, cast(count, total.dtype))
    return divide(total, cast(count, total.dtype))
