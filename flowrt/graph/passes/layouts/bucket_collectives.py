"""Buckets: collectives between the same devices become one.

    all-reduces              of all gradients, or other sums: of a vector of all their elements
    all-gathers              of the variables of a unit, for one stretch of a step
    reduce-scatters          of the gradients of a unit's variables

Gathers and scatters of a unit become a coalesced one, of several tensors of each rank: in one call each is
sent from where it is. What is gathered is in one memory (`flowrt.graph.passes.collective.gather_together`).
An all-reduced tensor is in the vector if its copy takes less time than the messages that it saves.

Readers of a result move behind the collective that it becomes part of, so reads and writes of variables are
ordered by control edges first. Only collectives that do not wait for one another are joined: those at the
same *level*, the number of collectives of their kind on the longest path to them. A bucket then waits for
nothing that is computed from one of its members: if it did, that would be of a later level.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from flowrt.device.spec import parse_device
from flowrt.dtypes import DType, int32
from flowrt.graph.collectives.buckets import CAP_BYTES, fill_buckets
from flowrt.graph.collectives.cost import Links
from flowrt.graph.layouts.attributes import UNIT
from flowrt.graph.layouts.mesh import Mesh
from flowrt.graph.node import Node, Ref, Subgraph, TensorSpec
from flowrt.graph.op_def import OpDef
from flowrt.graph.ops.array.concat_and_split import split_v
from flowrt.graph.ops.base.shape_manipulation import reshape
from flowrt.graph.ops.collective.collectives import COALESCED, all_gather_op, all_reduce_op, reduce_scatter_op
from flowrt.graph.ops.collective.transfer import recv_op
from flowrt.graph.passes.layouts.redistribute import Emitter, device_of
from flowrt.graph.passes.prepare.order_effects import order_accesses
from flowrt.graph.pipeline.actions import Action
from flowrt.graph.topology import sort_topologically

COPY_S_PER_BYTE = 2e-10
"""A tensor is read and written at 10 GB/s."""


class Kind(NamedTuple):
    """The common properties of the collectives of a bucket."""

    op: OpDef[Any]
    unit: str
    devices: tuple[str, ...]
    group: tuple[str, int, tuple[int, ...]]
    reduction: str
    dtype: DType
    action: Action | None
    """The work of one stage on one micro-batch: others run at another time."""


Kinds: TypeAlias = Mapping[str, Kind]
"""The kind of each collective that may be joined, by name."""

Joined: TypeAlias = dict[Ref, Ref]
"""The results of collectives, and the parts of a bucket's result that replace them."""


def bucket_collectives(
    subgraph: Subgraph, mesh: Mesh, links: Links, actions: Mapping[str, Action | None]
) -> Subgraph:
    """``subgraph``, of operations on the devices of ``mesh``, with small collectives joined; the same object
    if there are none. ``actions`` are those of nodes that have a time in a schedule.
    """
    kinds = _kinds(subgraph, actions)
    members: dict[Kind, list[str]] = defaultdict(list)
    for name, kind in kinds.items():
        members[kind].append(name)
    chosen: dict[Kind, set[str]] = {}
    for kind, names in members.items():
        most_bytes = _most_bytes(kind, links)
        small = {name for name in names if _nbytes(subgraph.nodes[name]) <= most_bytes}
        if len(small) >= _fewest(kind):
            chosen[kind] = small
    if not chosen:
        return subgraph
    subgraph = order_accesses(subgraph)  # until here by places alone, which change
    alone = _on_cycles(subgraph, {name: kind for name, kind in kinds.items() if kind in chosen})
    together = {name: (kind, 1) for kind, small in chosen.items() if kind not in alone for name in small}
    subgraph = _joined(subgraph, together, mesh)
    for kind in alone:
        levels = _levels(subgraph, set(members[kind]))
        subgraph = _joined(subgraph, {name: (kind, levels[name]) for name in chosen[kind]}, mesh)
    return subgraph


def _on_cycles(subgraph: Subgraph, kinds: Kinds) -> list[Kind]:
    """The kinds of which collectives wait for others of their kind, or would once those of other kinds are
    joined, and kinds between these. Whatever is joined, all collectives of any other kind are at one level.
    """
    left = _waits(subgraph, kinds)
    while True:
        awaited = set[Kind]().union(*left.values())
        inner = {kind: found & left.keys() for kind, found in left.items() if found and kind in awaited}
        if inner == left:
            return list(left)
        left = inner


def _waits(subgraph: Subgraph, kinds: Kinds) -> dict[Kind, set[Kind]]:
    """The kinds that each kind waits for: a collective of it for one of theirs."""
    every = list(dict.fromkeys(kinds.values()))
    bits = {kind: 1 << number for number, kind in enumerate(every)}
    found, waits = dict.fromkeys(every, 0), dict[str, int]()
    for node in subgraph:
        before = 0
        for name in node.predecessors:
            before |= waits[name]
        kind = kinds.get(node.name)
        if kind is not None:
            found[kind] |= before
            before |= bits[kind]
        waits[node.name] = before
    return {kind: {other for other in every if mask & bits[other]} for kind, mask in found.items()}


def _kinds(subgraph: Subgraph, actions: Mapping[str, Action | None]) -> Kinds:
    units_of_results = {
        node.inputs[0]: node.attrs[UNIT] for node in subgraph if UNIT in node.attrs and node.inputs
    }
    found: dict[str, Kind] = {}
    for node in subgraph:
        if node.op is all_reduce_op:
            unit: str | None = ""
        elif node.op is all_gather_op and len({subgraph.spec(ref).shape for ref in node.inputs}) == 1:
            unit = subgraph.nodes[node.inputs[0][0]].attrs.get(UNIT)
        elif node.op is reduce_scatter_op and len({spec.shape for spec in node.outputs}) == 1:
            unit = units_of_results.get((node.name, 0))
        else:
            continue
        if unit is not None:
            devices = tuple(device_of(ref, subgraph.nodes) for ref in node.inputs)
            group = (node.attrs["group_key"], node.attrs["group_size"], node.attrs["ranks"])
            reduction, dtype = node.attrs.get("reduction", ""), node.outputs[0].dtype
            action = actions.get(node.name)
            found[node.name] = Kind(node.op, unit, devices, group, reduction, dtype, action)
    return found


def _most_bytes(kind: Kind, links: Links) -> float:
    """The size up to which a tensor is better off in a bucket: no reduction inside a task, where it sends
    nothing and is compiled into what reads it (20 layers of 32 x 32 take 0.66 ms, in a bucket 1.04).
    """
    if kind.op is all_gather_op:
        return math.inf
    tasks = {(spec.job, spec.replica, spec.task) for spec in map(parse_device, kind.devices)}
    size = kind.group[1]
    if len(tasks) == 1 and len(kind.devices) == size:
        return 0
    if kind.op is not all_reduce_op:  # nothing is copied
        return math.inf
    return 2 * (size - 1) * links.between.latency_s / COPY_S_PER_BYTE


def _fewest(kind: Kind) -> int:
    """The fewest tensors that become one collective: what is gathered is in one memory, even if it is one."""
    return 1 if kind.op is all_gather_op else 2


def _joined(subgraph: Subgraph, levels: Mapping[str, tuple[Kind, int]], mesh: Mesh) -> Subgraph:
    """``subgraph`` with collectives in buckets: those of one kind and level in ``levels``, by name."""
    by_level: dict[tuple[Kind, int], list[Node]] = defaultdict(list)
    for node in subgraph:
        if node.name in levels:
            by_level[levels[node.name]].append(node)
    buckets = [
        [nodes[number] for number in bucket]
        for (kind, _), nodes in by_level.items()
        for bucket in _buckets(nodes)
        if len(bucket) >= _fewest(kind)
    ]
    if not buckets:
        return subgraph
    last = {bucket[-1].name: bucket for bucket in buckets}
    emit, replaced = Emitter(mesh, subgraph.nodes.keys()), Joined()
    for node in subgraph:
        emit.nodes[node.name] = node
        if node.name in last:
            replaced |= _emit_bucket(emit, last[node.name])
    ends = {node.name: (replaced[node.name, 0][0],) for bucket in buckets for node in bucket}
    nodes = {name: node.redirected(replaced, ends) for name, node in emit.nodes.items() if name not in ends}
    fetches = tuple(replaced.get(ref, ref) for ref in subgraph.fetches)
    targets = tuple(ends.get(target, (target,))[0] for target in subgraph.targets)
    return Subgraph(dict(sort_topologically(nodes)), subgraph.feeds, fetches, targets)


def _buckets(nodes: Sequence[Node]) -> Sequence[Sequence[int]]:
    """The numbers of the ``nodes`` of one kind and level that become one: all of a unit."""
    if nodes[0].op is not all_reduce_op:
        return [range(len(nodes))]
    return fill_buckets([("", _nbytes(node)) for node in nodes], CAP_BYTES)


def _levels(subgraph: Subgraph, names: set[str]) -> dict[str, int]:
    """The level of each of the collectives ``names``."""
    found: dict[str, int] = {}
    before: dict[str, int] = {}
    for node in subgraph:
        level = max([before[name] for name in node.predecessors], default=0)
        if node.name in names:
            level += 1
            found[node.name] = level
        before[node.name] = level
    return found


def _shape(spec: TensorSpec) -> tuple[int, ...]:
    return tuple(d or 0 for d in spec.shape or ())


def _nbytes(node: Node) -> int:
    """The bytes of what each rank gets."""
    return math.prod(_shape(node.outputs[0])) * node.outputs[0].dtype.np.itemsize


def _emit_bucket(emit: Emitter, members: Sequence[Node]) -> Joined:
    is_sum = members[0].op is all_reduce_op
    return _Vector(emit, members).emit_all() if is_sum else _coalesced(emit, members)


def _coalesced(emit: Emitter, members: Sequence[Node]) -> Joined:
    """Emits the gathers or scatters ``members`` as one of several tensors of each rank."""
    first, ranks = members[0], range(members[0].attrs["group_size"])
    op = next(op for op, single in COALESCED.items() if single is first.op)
    attrs = {key: value for key, value in first.attrs.items() if key in op.attrs}
    attrs["axes"] = tuple(node.attrs["axis"] for node in members)
    refs = [node.inputs[rank] for rank in ranks for node in members]
    specs = [node.outputs[rank] for rank in ranks for node in members]
    name = _emitted(emit, members, op, refs, attrs, specs)
    places = [(node.name, rank) for rank in ranks for node in members]
    return {place: (name, index) for index, place in enumerate(places)}


def _emitted(
    emit: Emitter,
    members: Sequence[Node],
    op: OpDef[Any],
    refs: Sequence[Ref],
    attrs: Mapping[str, Any],
    specs: Sequence[TensorSpec],
) -> str:
    """Emits the collective of all ``members``, which waits for what they wait for."""
    first = members[0]
    name = emit.add(f"{first.name}/bucket", op, refs, attrs, first.device, specs, first)
    controls = dict.fromkeys(control for node in members for control in node.controls)
    emit.nodes[name] = emit.nodes[name].replace(controls=tuple(controls))
    return name


class _Vector:
    """Emits the all-reduce of a vector with the elements of all ``members``."""

    def __init__(self, emit: Emitter, members: Sequence[Node]) -> None:
        self._emit, self._members, self._first = emit, members, members[0]
        self._devices = [device_of(ref, emit.nodes) for ref in self._first.inputs]
        self._here = [
            rank for rank, (name, _) in enumerate(self._first.inputs) if emit.nodes[name].op is not recv_op
        ]
        """The ranks that have operations (`flowrt.graph.passes.layouts.processes.Own`)."""

    def emit_all(self) -> Joined:
        own = {rank: self._given(rank) for rank in self._here}
        like = self._emit.nodes[own[self._here[0]][0]]
        vectors = [
            own[rank] if rank in own else self._elsewhere(like, device)
            for rank, device in enumerate(self._devices)
        ]
        attrs, (spec,) = self._first.attrs, like.outputs
        name = _emitted(self._emit, self._members, all_reduce_op, vectors, attrs, [spec] * len(vectors))
        results = Joined()
        for rank, device in enumerate(self._devices):
            parts = self._parts((name, rank), device) if rank in own else [(name, rank)] * len(self._members)
            results |= {(node.name, rank): part for node, part in zip(self._members, parts, strict=True)}
        return results

    def _elsewhere(self, like: Node, device: str) -> Ref:
        """The vector of a rank without operations."""
        (spec,) = like.outputs
        attrs = {"tensor_type": spec.dtype, "shape": spec.shape}
        return self._emit.add(f"{like.name}/elsewhere", recv_op, [], attrs, device, [spec], self._first), 0

    def _given(self, rank: int) -> Ref:
        """All that ``rank`` gives, in a row."""
        device = self._devices[rank]
        flat = [self._reshaped(node.inputs[rank], (-1,), device) for node in self._members]
        return self._emit.concat(flat, 0, device, self._first)

    def _parts(self, vector: Ref, device: str) -> list[Ref]:
        """The members' results, in the ``vector`` of all."""
        shapes = [_shape(node.outputs[0]) for node in self._members]
        flat = self._split(vector, [math.prod(shape) for shape in shapes], device)
        return [self._reshaped(ref, shape, device) for ref, shape in zip(flat, shapes, strict=True)]

    def _split(self, ref: Ref, sizes: Sequence[int], device: str) -> list[Ref]:
        """Parts of these ``sizes``."""
        emit, origin = self._emit, self._first
        spec = emit.nodes[ref[0]].outputs[ref[1]]
        inputs = (
            ref,
            emit.constant(f"{ref[0]}/sizes", np.array(sizes, np.int32), device, origin),
            emit.constant(f"{ref[0]}/axis", np.array(0, np.int32), device, origin),
        )
        attrs = {"num_split": len(sizes), "T": spec.dtype, "Tlen": int32}
        specs = [TensorSpec(spec.dtype, (size,)) for size in sizes]
        name = emit.add(f"{ref[0]}/parts", split_v, inputs, attrs, device, specs, origin)
        return [(name, i) for i in range(len(sizes))]

    def _reshaped(self, ref: Ref, shape: tuple[int, ...], device: str) -> Ref:
        emit, spec = self._emit, self._emit.nodes[ref[0]].outputs[ref[1]]
        dims = emit.constant(f"{ref[0]}/shape", np.array(shape, np.int32), device, self._first)
        made = TensorSpec(spec.dtype, (math.prod(_shape(spec)),) if shape == (-1,) else shape)
        attrs = {"T": spec.dtype, "Tshape": int32}
        return emit.add(f"{ref[0]}/reshaped", reshape, (ref, dims), attrs, device, [made], self._first), 0
