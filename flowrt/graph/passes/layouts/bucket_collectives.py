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
    for kind in dict.fromkeys(kinds.values()):
        members = {name for name, found in kinds.items() if found == kind}
        most_bytes = _most_bytes(kind, links)
        small = {name for name in members if _nbytes(subgraph.nodes[name]) <= most_bytes}
        if len(small) > 1:
            subgraph = _joined(subgraph, members, small, mesh)
    return subgraph


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


def _joined(subgraph: Subgraph, members: set[str], small: set[str], mesh: Mesh) -> Subgraph:
    """``subgraph`` with the ``small`` ones of the collectives ``members`` in buckets."""
    by_level: dict[int, list[Node]] = defaultdict(list)
    for name, level in _levels(subgraph, members).items():
        if name in small:
            by_level[level].append(subgraph.nodes[name])
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

    def emit_all(self) -> Joined:
        results = Joined()
        vectors = [self._vector(rank) for rank in range(len(self._devices))]
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
            parts = self._parts((name, rank), device)
            results |= {(node.name, rank): part for node, part in zip(self._members, parts, strict=True)}
        return results

    def _vector(self, rank: int) -> Ref:
        """All that ``rank`` gives, in a row."""
        device = self._devices[rank]
        pieces = [node.inputs[rank] for node in self._members]
        if self._op is reduce_scatter_op:
            pieces = [
                self._emit.slice(node.inputs[rank], self._slices(node, to), node)
                for to in self._ranks
                for node in self._members
            ]
        flat = [self._reshaped(ref, (-1,), device) for ref in pieces]
        return self._emit.concat(flat, 0, device, self._first)

    def _slices(self, node: Node, rank: int) -> list[slice]:
        """The part of ``rank`` in an input of ``node``."""
        sizes, axis = _shape(node.outputs[0]), node.attrs["axis"]
        return [
            slice(rank * size, (rank + 1) * size) if dim == axis else slice(0, size)
            for dim, size in enumerate(sizes)
        ]

    def _parts(self, vector: Ref, device: str) -> list[Ref]:
        """The members' results, in the ``vector`` of all."""
        shapes = [_shape(node.outputs[0]) for node in self._members]
        if self._op is not all_gather_op:
            return self._cut(vector, shapes, device)
        shapes = [
            _shape(self._emit.nodes[name].outputs[i]) for name, i in (n.inputs[0] for n in self._members)
        ]
        pieces = self._cut(vector, shapes * len(self._ranks), device)
        count = len(self._members)
        return [
            self._emit.concat(pieces[number::count], node.attrs["axis"], device, self._first)
            for number, node in enumerate(self._members)
        ]

    def _cut(self, vector: Ref, shapes: Sequence[tuple[int, ...]], device: str) -> list[Ref]:
        """The tensors of ``shapes`` that are in ``vector``, one behind the other."""
        emit, origin, dtype = self._emit, self._first, self._first.outputs[0].dtype
        sizes = [math.prod(shape) for shape in shapes]
        inputs = (
            vector,
            emit.constant(f"{vector[0]}/sizes", np.array(sizes, np.int32), device, origin),
            emit.constant(f"{vector[0]}/axis", np.array(0, np.int32), device, origin),
        )
        attrs = {"num_split": len(sizes), "T": dtype, "Tlen": int32}
        specs = [TensorSpec(dtype, (size,)) for size in sizes]
        name = emit.add(f"{vector[0]}/parts", split_v, inputs, attrs, device, specs, origin)
        return [self._reshaped((name, i), shape, device) for i, shape in enumerate(shapes)]

    def _reshaped(self, ref: Ref, shape: tuple[int, ...], device: str) -> Ref:
        emit, spec = self._emit, self._emit.nodes[ref[0]].outputs[ref[1]]
        dims = emit.constant(f"{ref[0]}/shape", np.array(shape, np.int32), device, self._first)
        made = TensorSpec(spec.dtype, (math.prod(_shape(spec)),) if shape == (-1,) else shape)
        attrs = {"T": spec.dtype, "Tshape": int32}
        return emit.add(f"{ref[0]}/reshaped", reshape, (ref, dims), attrs, device, [made], self._first), 0
