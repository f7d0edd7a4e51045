"""Lowering of copies between variables over different meshes, which `tf.distribute.copy_variables` builds.

    ReadVariableOp(source) -> Redistribute -> AssignVariableOp(target)        the global graph
      -> a read of each part of the source that is needed, where it is kept
      -> slices of it: its intersections with the parts of the target         on the source's devices
      -> Concat, AssignVariableOp of each part of the target                  on the target's devices

Only the intersections travel, each once to a device; what a device has already does not. A step that copies
does nothing else in layouts: its two meshes have no layout in common.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeAlias, final

import numpy as np

from flowrt.device.spec import DeviceSpec, parse_device
from flowrt.dtypes import DType
from flowrt.errors import UnimplementedError
from flowrt.graph.layouts.attributes import MESH, mesh_of
from flowrt.graph.layouts.mesh import Mesh
from flowrt.graph.node import COLOCATION, Node, Ref, Subgraph, TensorSpec
from flowrt.graph.ops.base.identities import cast_op, redistribute_op
from flowrt.graph.ops.text.python_calls import no_op
from flowrt.graph.passes.layouts.redistribute import Emitter
from flowrt.graph.passes.layouts.variable_shards import VariableShard, shards_of
from flowrt.graph.passes.prepare.prune import prune
from flowrt.graph.topology import sort_topologically

Block: TypeAlias = tuple[slice, ...]
"""A part of a tensor, one slice per dimension."""

Bounds: TypeAlias = tuple[tuple[int, int], ...]
"""The same, as what can be a key."""


def lower_copies(subgraph: Subgraph, devices: Sequence[DeviceSpec]) -> Subgraph:
    """``subgraph`` with copies between variables in layouts as transfers of their parts; the same object if
    it has none.

    Raises `UnimplementedError` for a step that has other operations in layouts, or a mesh with devices of
    several processes, and `InvalidArgumentError` for a mesh larger than ``devices``.
    """
    if not any(node.op is redistribute_op for node in subgraph):
        return subgraph
    if not any(MESH in node.attrs for node in subgraph):
        return subgraph
    lowered = _Copies(subgraph, devices).lowered()
    other = next((node for node in lowered if MESH in node.attrs), None)
    if other is not None:
        raise UnimplementedError(
            "copy_variables: expected a step without other operations in layouts; got one with "
            f"{other.name!r}. Run the copy in a step of its own",
            source=None if other.source is None else str(other.source),
        )
    return lowered


@final
class _Copies:
    def __init__(self, subgraph: Subgraph, devices: Sequence[DeviceSpec]) -> None:
        self._subgraph, self._devices = subgraph, devices
        self._emit = Emitter(
            mesh_of([n for n in subgraph if MESH in n.attrs][:1]) or Mesh([]), subgraph.nodes
        )
        self._parts: dict[tuple[str, str], Ref] = {}
        """The value of a variable's part, by the names of its read and of the part's handle."""
        self._slices: dict[tuple[Ref, str], Ref] = {}

    def lowered(self) -> Subgraph:
        replaced: dict[str, Node] = {}
        for node in self._subgraph:
            if any(self._subgraph.nodes[name].op is redistribute_op for name, _ in node.inputs):
                replaced[node.name] = self._copy(node)
        moved = [node for node in self._subgraph if node.op is redistribute_op]
        others = {name for n in self._subgraph if n.op is not redistribute_op for name, _ in n.inputs}
        for node in moved:
            read = self._source(node)
            ends = [name for (reader, _), (name, _) in self._parts.items() if reader == read.name]
            replaced[node.name] = _end(node, [read.name])
            replaced[read.name] = _waiting(read, ends) if read.name in others else _end(read, ends)
        kept = {node.name: replaced.get(node.name, node) for node in self._subgraph}
        nodes = sort_topologically({**kept, **self._emit.nodes})
        return prune(self._subgraph.replace(nodes=dict(nodes)))

    def _source(self, moved: Node) -> Node:
        """The read of the variable that is copied."""
        return self._subgraph.nodes[moved.inputs[0][0]]

    def _handle(self, access: Node) -> Node:
        return self._subgraph.nodes[access.inputs[0][0]]

    def _shards(self, handle: Node) -> list[VariableShard]:
        shards = shards_of(handle, self._devices)
        if any(shard.handle is None for shard in shards):
            raise UnimplementedError(
                f"copy_variables: expected variables of this process; got {handle.name!r}, over a mesh of "
                "several. Save and restore it instead"
            )
        return shards

    # --- one copy

    def _copy(self, assign: Node) -> Node:
        """Copy to the variable of ``assign``; the node that ends when all of its parts are set."""
        read = self._source(self._subgraph.nodes[assign.inputs[1][0]])
        sources = [s for s in self._shards(self._handle(read)) if not s.is_copy]
        ends = []
        for shard in self._shards(self._handle(assign)):
            handle = self._add_handle(shard)
            value = self._cast(self._assembled(read, sources, shard, handle), handle, assign)
            name = self._emit.add(
                assign.name, assign.op, [(handle.name, 0), value], _plain(assign), handle.device, (), assign
            )
            self._emit.nodes[name] = self._emit.nodes[name].replace(controls=assign.controls)
            ends.append(name)
        return _end(assign, ends)

    def _assembled(
        self, read: Node, sources: Sequence[VariableShard], target: VariableShard, handle: Node
    ) -> Ref:
        """The value of the part ``target``, on its device, from intersections with parts of ``sources``."""
        found: dict[Bounds, Ref] = {}
        for block, holders in _by_block(sources):
            piece = _intersection(block, target.slices)
            if piece is not None:
                source = self._nearest(holders, target, handle)
                found[_bounds(piece)] = self._piece(read, source, piece)
        if not found:
            sizes = [part.stop - part.start for part in target.slices]
            nothing = np.empty(sizes, read.outputs[0].dtype.np)
            return self._emit.constant(f"{read.name}/nothing", nothing, handle.device, read)
        return self._joined(found, 0, (), handle.device, read)

    def _nearest(
        self, holders: Sequence[VariableShard], target: VariableShard, handle: Node
    ) -> VariableShard:
        """One of ``holders`` of the same part: that on the target's device, or else one of them by turns."""
        here = [shard for shard in holders if _same_device(shard.handle, handle)]
        return here[0] if here else holders[target.place % len(holders)]

    def _piece(self, read: Node, source: VariableShard, piece: Block) -> Ref:
        """The block ``piece`` of the whole, which ``source`` has, on its device."""
        value = self._part(read, source)
        if piece == source.slices:
            return value
        key = value, str(piece)
        if key not in self._slices:
            own = [
                slice(each.start - part.start, each.stop - part.start)
                for each, part in zip(piece, source.slices, strict=True)
            ]
            self._slices[key] = self._emit.slice(value, own, read)
        return self._slices[key]

    def _part(self, read: Node, source: VariableShard) -> Ref:
        """The value of the part ``source``."""
        handle = self._add_handle(source)
        key = read.name, handle.name
        if key not in self._parts:
            shape = tuple(part.stop - part.start for part in source.slices)
            specs = [TensorSpec(read.outputs[0].dtype, shape)]
            name = self._emit.add(
                f"{read.name}/part", read.op, [(handle.name, 0)], _plain(read), handle.device, specs, read
            )
            self._emit.nodes[name] = self._emit.nodes[name].replace(controls=read.controls)
            self._parts[key] = name, 0
        return self._parts[key]

    def _joined(
        self, pieces: Mapping[Bounds, Ref], dim: int, prefix: Bounds, device: str, origin: Node
    ) -> Ref:
        """The ``pieces``, by their bounds, that begin with ``prefix``, joined from dimension ``dim`` on."""
        if prefix in pieces:
            return pieces[prefix]
        bounds = sorted({bounds[dim] for bounds in pieces if bounds[:dim] == prefix})
        refs = [self._joined(pieces, dim + 1, (*prefix, each), device, origin) for each in bounds]
        return self._emit.concat(refs, dim, device, origin)

    def _cast(self, value: Ref, handle: Node, origin: Node) -> Ref:
        """``value`` in the dtype of ``handle``: a copy that a device keeps besides may be narrower."""
        spec, dtype = self._emit.nodes[value[0]].outputs[value[1]], _dtype_of(handle)
        if spec.dtype is dtype:
            return value
        attrs = {"SrcT": spec.dtype, "DstT": dtype, "Truncate": False}
        made = [TensorSpec(dtype, spec.shape)]
        return self._emit.add(f"{origin.name}/cast", cast_op, [value], attrs, handle.device, made, origin), 0

    def _add_handle(self, shard: VariableShard) -> Node:
        handle = shard.handle
        assert handle is not None
        if handle.name not in self._subgraph.nodes:
            self._emit.nodes[handle.name] = handle
        return handle


def _by_block(shards: Sequence[VariableShard]) -> list[tuple[Block, list[VariableShard]]]:
    """The distinct parts, which cover the whole, each with those that have it."""
    found: dict[Bounds, list[VariableShard]] = {}
    for shard in shards:
        found.setdefault(_bounds(shard.slices), []).append(shard)
    return [(holders[0].slices, holders) for holders in found.values()]


def _intersection(a: Block, b: Block) -> Block | None:
    """None if it is empty."""
    found = tuple(slice(max(x.start, y.start), min(x.stop, y.stop)) for x, y in zip(a, b, strict=True))
    return found if all(part.start < part.stop for part in found) else None


def _bounds(block: Block) -> Bounds:
    return tuple((part.start, part.stop) for part in block)


def _same_device(a: Node | None, b: Node) -> bool:
    if a is None:
        return False
    first, second = parse_device(a.device), parse_device(b.device)
    return first.matches(second) or second.matches(first)


def _dtype_of(handle: Node) -> DType:
    dtype: DType = handle.attrs["dtype"]
    return dtype


def _plain(node: Node) -> dict[str, object]:
    return {key: value for key, value in node.attrs.items() if key != COLOCATION}


def _end(node: Node, ends: Sequence[str]) -> Node:
    """A node with the name of ``node`` that waits for ``ends``."""
    return Node(node.name, no_op, (), _waiting(node, ends).controls, {}, "", node.source, ())


def _waiting(node: Node, ends: Sequence[str]) -> Node:
    """The same node, which also waits for ``ends``."""
    return node.replace(controls=tuple(dict.fromkeys((*node.controls, *ends))))
