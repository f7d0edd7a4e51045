"""Buckets: small collectives between the same devices become one, of a vector of all their elements.

    all-reduces              of all gradients, or other sums
    all-gathers              of the variables of a unit, for one stretch of a step
    reduce-scatters          of the gradients of a unit's variables

A tensor is in a bucket if its copy into the vector takes less time than the messages that it saves: with all
of a unit in one, a step of an MLP of 1,024 x 1,024 layers in two processes takes 10 % longer. Only
collectives that do not wait for one another are joined: those at the same *level*, the number of collectives
of their kind on the longest path to them. A bucket then waits for nothing that is computed from one of its
members: if it did, that would be of a later level.

The vector of a gather or a scatter has the parts of rank 0 of all members, then those of rank 1, and so on,
so members are joined only if all ranks have parts of one size.

Why a unit has not one allocation, of which its variables are views: only what is given to a gather would
then need no copy. What comes is by rank, then by variable, and a variable needs its own parts together,
unless each message were spread over the variables that it has parts of. A collective of several tensors,
each rank's parts sent and received where they are, would need neither copy. In a step of two processes it
could save at most

    benchmarks' MLP, 23 MB    5 small messages that travel beside a large one, of 11
    benchmarks' GPT, 13 MB    57 MB of copies, 11 ms, in 16 messages that are one a unit already
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
from flowrt.graph.ops.collective.collectives import all_gather_op, all_reduce_op, reduce_scatter_op
from flowrt.graph.ops.collective.transfer import recv_op
from flowrt.graph.passes.layouts.redistribute import Emitter, device_of
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
        if len(small) > 1:
            chosen[kind] = small
    if not chosen:
        return subgraph
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


def _most_bytes(kind: Kind, links: Links) -> int:
    """The size up to which a tensor is better off in a bucket: none inside a task, where a reduction sends
    nothing and is compiled into what reads it (20 layers of 32 x 32 take 0.66 ms, in a bucket 1.04).
    """
    tasks = {(spec.job, spec.replica, spec.task) for spec in map(parse_device, kind.devices)}
    size = kind.group[1]
    is_inside = len(tasks) == 1 and len(kind.devices) == size
    messages = (size - 1) * (2 if kind.op is all_reduce_op else 1)
    return 0 if is_inside else int(messages * links.between.latency_s / COPY_S_PER_BYTE)


def _joined(subgraph: Subgraph, levels: Mapping[str, tuple[Kind, int]], mesh: Mesh) -> Subgraph:
    """``subgraph`` with collectives in buckets: those of one kind and level in ``levels``, by name."""
    by_level: dict[tuple[Kind, int], list[Node]] = defaultdict(list)
    for node in subgraph:
        if node.name in levels:
            by_level[levels[node.name]].append(node)
    buckets = [
        [nodes[number] for number in bucket]
        for nodes in by_level.values()
        for bucket in fill_buckets([("", _nbytes(node)) for node in nodes], CAP_BYTES)
        if len(bucket) > 1
    ]
    if not buckets:
        return subgraph
    last = {bucket[-1].name: bucket for bucket in buckets}
    emit, replaced = Emitter(mesh, subgraph.nodes.keys()), Joined()
    for node in subgraph:
        emit.nodes[node.name] = node
        if node.name in last:
            replaced |= _Bucket(emit, last[node.name]).emit_all()
    ends = {node.name: (replaced[node.name, 0][0],) for bucket in buckets for node in bucket}
    nodes = {name: node.redirected(replaced, ends) for name, node in emit.nodes.items() if name not in ends}
    fetches = tuple(replaced.get(ref, ref) for ref in subgraph.fetches)
    targets = tuple(ends.get(target, (target,))[0] for target in subgraph.targets)
    return Subgraph(dict(sort_topologically(nodes)), subgraph.feeds, fetches, targets)


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
    """The bytes of the largest of the tensors of ``node``."""
    parts = node.attrs["group_size"] if node.op is reduce_scatter_op else 1
    return parts * math.prod(_shape(node.outputs[0])) * node.outputs[0].dtype.np.itemsize


class _Bucket:
    """Emits the collective of all ``members`` in a row."""

    def __init__(self, emit: Emitter, members: Sequence[Node]) -> None:
        self._emit, self._members, self._first = emit, members, members[0]
        self._op, self._ranks = self._first.op, range(self._first.attrs["group_size"])
        self._devices = [device_of(ref, emit.nodes) for ref in self._first.inputs]
        self._here = [
            rank for rank, (name, _) in enumerate(self._first.inputs) if emit.nodes[name].op is not recv_op
        ]
        """The ranks that have operations (`flowrt.graph.passes.layouts.processes.Own`)."""

    def emit_all(self) -> Joined:
        results = Joined()
        own = {rank: self._vector(rank) for rank in self._here}
        like = self._emit.nodes[own[self._here[0]][0]]
        vectors = [
            own[rank] if rank in own else self._elsewhere(like, device)
            for rank, device in enumerate(self._devices)
        ]
        first, (given,) = self._first, {self._emit.nodes[name].outputs[index] for name, index in vectors}
        size = math.prod(_shape(given))
        made = {all_gather_op: size * len(self._ranks), reduce_scatter_op: size // len(self._ranks)}
        whole = TensorSpec(given.dtype, (made.get(self._op, size),))
        attrs = {**first.attrs, "axis": 0} if "axis" in first.attrs else first.attrs
        name = self._emit.add(
            f"{first.name}/bucket", self._op, vectors, attrs, first.device, [whole] * len(vectors), first
        )
        controls = dict.fromkeys(control for node in self._members for control in node.controls)
        self._emit.nodes[name] = self._emit.nodes[name].replace(controls=tuple(controls))
        for rank, device in enumerate(self._devices):
            parts = self._parts((name, rank), device) if rank in own else [(name, rank)] * len(self._members)
            results |= {(node.name, rank): part for node, part in zip(self._members, parts, strict=True)}
        return results

    def _elsewhere(self, like: Node, device: str) -> Ref:
        """The vector of a rank without operations."""
        (spec,) = like.outputs
        attrs = {"tensor_type": spec.dtype, "shape": spec.shape}
        return self._emit.add(f"{like.name}/elsewhere", recv_op, [], attrs, device, [spec], self._first), 0

    def _vector(self, rank: int) -> Ref:
        """All that ``rank`` gives, in a row; of what is scattered, first all parts of rank 0."""
        device = self._devices[rank]
        if self._op is not reduce_scatter_op:
            flat = [self._reshaped(node.inputs[rank], (-1,), device) for node in self._members]
            return self._emit.concat(flat, 0, device, self._first)
        by_rank = [self._rows(node, node.inputs[rank], device) for node in self._members]
        return self._reshaped(self._emit.concat(by_rank, 1, device, self._first), (-1,), device)

    def _rows(self, node: Node, ref: Ref, device: str) -> Ref:
        """The input ``ref`` of ``node`` as a matrix, with a row for the part of each rank."""
        count, size = len(self._ranks), math.prod(_shape(node.outputs[0]))
        if node.attrs["axis"] == 0:
            return self._reshaped(ref, (count, size), device)
        slices = [self._emit.slice(ref, self._slices(node, to), node) for to in self._ranks]
        rows = [self._reshaped(each, (1, size), device) for each in slices]
        return self._emit.concat(rows, 0, device, self._first)

    def _slices(self, node: Node, rank: int) -> list[slice]:
        """The part of ``rank`` in an input of ``node``."""
        sizes, axis = _shape(node.outputs[0]), node.attrs["axis"]
        return [
            slice(rank * size, (rank + 1) * size) if dim == axis else slice(0, size)
            for dim, size in enumerate(sizes)
        ]

    def _parts(self, vector: Ref, device: str) -> list[Ref]:
        """The members' results, in the ``vector`` of all."""
        if self._op is not all_gather_op:
            shapes = [_shape(node.outputs[0]) for node in self._members]
            flat = self._split(vector, [math.prod(shape) for shape in shapes], 0, device)
            return [self._reshaped(ref, shape, device) for ref, shape in zip(flat, shapes, strict=True)]
        given = [
            _shape(self._emit.nodes[name].outputs[i]) for name, i in (n.inputs[0] for n in self._members)
        ]
        sizes = [math.prod(shape) for shape in given]
        rows = self._reshaped(vector, (len(self._ranks), sum(sizes)), device)
        found = zip(self._members, self._split(rows, sizes, 1, device), given, strict=True)
        return [self._gathered(node, ref, shape, device) for node, ref, shape in found]

    def _gathered(self, node: Node, rows: Ref, shape: tuple[int, ...], device: str) -> Ref:
        """The result of ``node`` from a matrix with a row for each rank's part, of ``shape``."""
        if node.attrs["axis"] == 0:
            return self._reshaped(rows, (len(self._ranks) * shape[0], *shape[1:]), device)
        size = math.prod(shape)
        parts = [self._emit.slice(rows, [slice(r, r + 1), slice(0, size)], node) for r in self._ranks]
        pieces = [self._reshaped(part, shape, device) for part in parts]
        return self._emit.concat(pieces, node.attrs["axis"], device, self._first)

    def _split(self, ref: Ref, sizes: Sequence[int], axis: int, device: str) -> list[Ref]:
        """Parts of these ``sizes`` along ``axis``."""
        emit, origin = self._emit, self._first
        spec = emit.nodes[ref[0]].outputs[ref[1]]
        inputs = (
            ref,
            emit.constant(f"{ref[0]}/sizes", np.array(sizes, np.int32), device, origin),
            emit.constant(f"{ref[0]}/axis", np.array(axis, np.int32), device, origin),
        )
        attrs = {"num_split": len(sizes), "T": spec.dtype, "Tlen": int32}
        rows = _shape(spec)[:axis]
        specs = [TensorSpec(spec.dtype, (*rows, size)) for size in sizes]
        name = emit.add(f"{ref[0]}/parts", split_v, inputs, attrs, device, specs, origin)
        return [(name, i) for i in range(len(sizes))]

    def _reshaped(self, ref: Ref, shape: tuple[int, ...], device: str) -> Ref:
        emit, spec = self._emit, self._emit.nodes[ref[0]].outputs[ref[1]]
        dims = emit.constant(f"{ref[0]}/shape", np.array(shape, np.int32), device, self._first)
        made = TensorSpec(spec.dtype, (math.prod(_shape(spec)),) if shape == (-1,) else shape)
        attrs = {"T": spec.dtype, "Tshape": int32}
        return emit.add(f"{ref[0]}/reshaped", reshape, (ref, dims), attrs, device, [made], self._first), 0
