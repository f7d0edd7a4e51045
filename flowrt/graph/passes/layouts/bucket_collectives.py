"""Buckets: small all-reduces between the same devices become one, as a vector of all their elements.

A tensor is in a bucket if its copy into the vector takes less time than the messages that it saves. Only
reductions that do not wait for one another are joined: those at the same *level*, the number of reductions
between these devices on the longest path to them. A bucket then waits for nothing that is computed from one
of its members: if it did, that would be of a later level.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from typing import NamedTuple, TypeAlias

import numpy as np

from flowrt.device.spec import parse_device
from flowrt.dtypes import DType, int32
from flowrt.graph.collectives.buckets import CAP_BYTES, fill_buckets
from flowrt.graph.collectives.cost import Links
from flowrt.graph.layouts.mesh import Mesh
from flowrt.graph.node import Node, Ref, Subgraph, TensorSpec
from flowrt.graph.ops.array.concat_and_split import split_v
from flowrt.graph.ops.base.shape_manipulation import reshape
from flowrt.graph.ops.collective.collectives import all_reduce_op
from flowrt.graph.passes.layouts.redistribute import Emitter, device_of
from flowrt.graph.topology import sort_topologically

COPY_S_PER_BYTE = 2e-10
"""A tensor is read and written at 10 GB/s."""


class Kind(NamedTuple):
    """The common properties of the all-reduces of a bucket."""

    devices: tuple[str, ...]
    group: tuple[str, int, tuple[int, ...]]
    reduction: str
    dtype: DType


Joined: TypeAlias = dict[Ref, Ref]
"""The results of all-reduces, and the parts of a bucket's result that replace them."""


def bucket_collectives(subgraph: Subgraph, mesh: Mesh, links: Links) -> Subgraph:
    """``subgraph``, of operations on the devices of ``mesh``, with small all-reduces joined; the same object
    if there are none.
    """
    kinds = dict.fromkeys(_kind(node, subgraph) for node in subgraph if node.op is all_reduce_op)
    for kind in kinds:
        subgraph = _joined(subgraph, kind, mesh, _most_bytes(kind, links))
    return subgraph


def _kind(node: Node, subgraph: Subgraph) -> Kind:
    devices = tuple(device_of(ref, subgraph.nodes) for ref in node.inputs)
    group = (node.attrs["group_key"], node.attrs["group_size"], node.attrs["ranks"])
    return Kind(devices, group, node.attrs["reduction"], node.outputs[0].dtype)


def _most_bytes(kind: Kind, links: Links) -> int:
    """The size up to which a tensor is better off in a bucket: none inside a task, where a reduction sends
    nothing and is compiled into what reads it (20 layers of 32 x 32 take 0.66 ms, in a bucket 1.04).
    """
    tasks = {(spec.job, spec.replica, spec.task) for spec in map(parse_device, kind.devices)}
    size = kind.group[1]
    is_inside = len(tasks) == 1 and len(kind.devices) == size
    return 0 if is_inside else int(2 * (size - 1) * links.between.latency_s / COPY_S_PER_BYTE)


def _joined(subgraph: Subgraph, kind: Kind, mesh: Mesh, most_bytes: int) -> Subgraph:
    by_level: dict[int, list[Node]] = defaultdict(list)
    for name, level in _levels(subgraph, kind).items():
        if _nbytes(subgraph.nodes[name]) <= most_bytes:
            by_level[level].append(subgraph.nodes[name])
    buckets = [
        [members[number] for number in bucket]
        for members in by_level.values()
        for bucket in fill_buckets([(kind, _nbytes(node)) for node in members], CAP_BYTES)
        if len(bucket) > 1
    ]
    if not buckets:
        return subgraph
    emit, replaced = Emitter(mesh), Joined()
    emit.nodes = dict(subgraph.nodes)
    for members in buckets:
        replaced |= _emit_bucket(emit, members)
    ends = {node.name: (replaced[node.name, 0][0],) for members in buckets for node in members}
    nodes = {name: node.redirected(replaced, ends) for name, node in emit.nodes.items() if name not in ends}
    fetches = tuple(replaced.get(ref, ref) for ref in subgraph.fetches)
    targets = tuple(ends.get(target, (target,))[0] for target in subgraph.targets)
    return Subgraph(dict(sort_topologically(nodes)), subgraph.feeds, fetches, targets)


def _num_elements(node: Node) -> int:
    return math.prod(d or 0 for d in node.outputs[0].shape or ())


def _nbytes(node: Node) -> int:
    return _num_elements(node) * node.outputs[0].dtype.np.itemsize


def _levels(subgraph: Subgraph, kind: Kind) -> dict[str, int]:
    """The level of each all-reduce of ``kind``."""
    found: dict[str, int] = {}
    before: dict[str, int] = {}
    for node in subgraph:
        level = max([before[name] for name in node.predecessors], default=0)
        if node.op is all_reduce_op and _kind(node, subgraph) == kind:
            level += 1
            found[node.name] = level
        before[node.name] = level
    return found


def _emit_bucket(emit: Emitter, members: Sequence[Node]) -> Joined:
    """Add the all-reduce of all ``members`` in a row."""
    first, dtype = members[0], members[0].outputs[0].dtype
    sizes = [_num_elements(node) for node in members]
    devices = [device_of(ref, emit.nodes) for ref in first.inputs]
    vectors = [
        emit.concat(
            [_reshaped(emit, node.inputs[rank], (-1,), device, node) for node in members], 0, device, first
        )
        for rank, device in enumerate(devices)
    ]
    whole = [TensorSpec(dtype, (sum(sizes),))] * len(devices)
    name = emit.add(f"{first.name}/bucket", all_reduce_op, vectors, first.attrs, first.device, whole, first)
    controls = dict.fromkeys(control for node in members for control in node.controls)
    emit.nodes[name] = emit.nodes[name].replace(controls=tuple(controls))
    results = Joined()
    for rank, device in enumerate(devices):
        parts = _split(emit, (name, rank), sizes, device, first)
        for node, part in zip(members, parts, strict=True):
            results[node.name, rank] = _reshaped(emit, part, node.outputs[rank].shape or (), device, node)
    return results


def _reshaped(emit: Emitter, ref: Ref, shape: Sequence[int | None], device: str, member: Node) -> Ref:
    dims = emit.constant(f"{ref[0]}/shape", np.array(shape, np.int32), device, member)
    made = (_num_elements(member),) if shape == (-1,) else tuple(shape)
    spec = TensorSpec(member.outputs[0].dtype, made)
    attrs = {"T": spec.dtype, "Tshape": int32}
    return emit.add(f"{ref[0]}/reshaped", reshape, (ref, dims), attrs, device, [spec], member), 0


def _split(emit: Emitter, ref: Ref, sizes: Sequence[int], device: str, origin: Node) -> list[Ref]:
    """The parts of the vector ``ref``."""
    dtype = emit.nodes[ref[0]].outputs[ref[1]].dtype
    inputs = (
        ref,
        emit.constant(f"{ref[0]}/sizes", np.array(sizes, np.int32), device, origin),
        emit.constant(f"{ref[0]}/axis", np.array(0, np.int32), device, origin),
    )
    attrs = {"num_split": len(sizes), "T": dtype, "Tlen": int32}
    specs = [TensorSpec(dtype, (size,)) for size in sizes]
    name = emit.add(f"{ref[0]}/parts", split_v, inputs, attrs, device, specs, origin)
    return [(name, number) for number in range(len(sizes))]
