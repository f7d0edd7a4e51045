"""Lowering of layouts: one global subgraph becomes the operations of every coordinate of its mesh.

All coordinates are emitted into one subgraph, with collectives that have all ranks: placement, lowering of
collectives, splitting and partitioning then run as for any graph, in one process or at a cluster's master.
A coordinate's node is on its device; colocation, which is a matter of the global graph, ends here.

The names of variables' shards, ``w@dp0tp1``, depend on mesh and layout only, so every step of a session finds
them again.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple, final

from flowrt import dtypes
from flowrt.device.spec import DeviceSpec
from flowrt.errors import UnimplementedError
from flowrt.graph.collectives.cost import DEFAULT_LINKS, Links
from flowrt.graph.effects import touches
from flowrt.graph.evaluate import located
from flowrt.graph.layouts.attributes import ATTRIBUTES, MESH, mesh_of
from flowrt.graph.layouts.layout import Layout, Replicate
from flowrt.graph.layouts.mesh import Coordinate
from flowrt.graph.node import COLOCATION, Node, Ref, Subgraph, TensorSpec
from flowrt.graph.op_def import Effect
from flowrt.graph.ops.base.identities import identity, relayout_op
from flowrt.graph.ops.state.variable_ops import read_variable_op, resource_gather
from flowrt.graph.passes.layouts.local_forms import (
    Local,
    emit_local,
    emit_sparse_read,
    emit_sparse_update,
    is_partial_mean,
    own_rows,
)
from flowrt.graph.passes.layouts.propagate_layouts import Gather, Layouts, propagate
from flowrt.graph.passes.layouts.redistribute import Emitter, Move, Redistribution
from flowrt.graph.passes.prepare.prune import prune
from flowrt.graph.topology import sort_topologically

_log = logging.getLogger("flowrt")


class Lowered(NamedTuple):
    """A step in its layouts, with the facts by which it was lowered."""

    subgraph: Subgraph
    layouts: Layouts
    moves: tuple[Move, ...]


def lower_layouts(
    subgraph: Subgraph, devices: Sequence[DeviceSpec], links: Links = DEFAULT_LINKS
) -> Subgraph:
    """``subgraph``, with static shapes inferred, as the operations of all coordinates of its mesh, on
    ``devices`` unless the mesh names its own; the same object if no node names a mesh. Raises as `lowered`.
    """
    found = lowered(subgraph, devices, links)
    if found is None:
        return subgraph
    for gather in found.layouts.gathers:
        _log.info("%s", describe_gather(gather, subgraph, found.layouts))
    return found.subgraph


def lowered(
    subgraph: Subgraph, devices: Sequence[DeviceSpec], links: Links = DEFAULT_LINKS
) -> Lowered | None:
    """`lower_layouts` with its facts; None if no node names a mesh.

    Raises `InvalidArgumentError` for a mesh larger than the devices, and for what `propagate` refuses;
    `UnimplementedError` for two meshes in one step, and for a loop that writes variables with layouts.
    """
    mesh = mesh_of(subgraph)
    if mesh is None:
        return None
    mesh = mesh if mesh.devices is not None else mesh.with_devices(_names(devices))
    return _Lowering(subgraph, propagate(subgraph, mesh), links).run()


def _names(devices: Sequence[DeviceSpec]) -> list[str]:
    """The names of ``devices``, GPUs if there are any."""
    gpus = [device.to_string() for device in devices if device.device_type == "GPU"]
    return gpus or [device.to_string() for device in devices if device.device_type == "CPU"]


def describe_gather(gather: Gather, subgraph: Subgraph, layouts: Layouts) -> str:
    """A sentence for the log: which operation gathers an input, and how much."""
    ref = subgraph.nodes[gather.node].inputs[gather.input]
    spec = subgraph.spec(ref)
    size = math.prod(d or 1 for d in spec.shape or ()) * spec.dtype.np.itemsize
    where = f" ({gather.source})" if gather.source else ""
    return (
        f"layouts: {gather.op} {gather.node!r}{where} has no rule for {ref[0]!r} in {layouts.outputs[ref]}; "
        f"gathers {size:,} bytes a step"
    )


@final
class _Lowering:
    def __init__(self, subgraph: Subgraph, layouts: Layouts, links: Links) -> None:
        self._subgraph, self._layouts, self._mesh = subgraph, layouts, layouts.mesh
        self._emit = Emitter(layouts.mesh)
        self._tensors = Redistribution(self._emit, links.inside)
        self._first = layouts.mesh.coordinates[0]
        self._once: dict[str, frozenset[int]] = {}
        """The axes of time on which a node is the same for all turns."""
        self._known_suffixes: dict[frozenset[int], dict[Coordinate, str]] = {}

    def run(self) -> Lowered:
        for node in self._subgraph:
            try:
                self._lower(node)
            except UnimplementedError as error:
                raise located(node, error) from None
        fetches = [self._tensors.assembled(ref) for ref in self._subgraph.fetches]
        targets = [name for target in self._targets() for name in self._names_of(target)]
        nodes = sort_topologically(self._emit.nodes)
        step = prune(Subgraph(dict(nodes), self._subgraph.feeds, tuple(fetches), tuple(targets)))
        return Lowered(step, self._layouts, tuple(self._tensors.moves))

    def _targets(self) -> list[str]:
        """The nodes that must run on all coordinates: a fetch of an updated variable needs one copy of it,
        and the others must not become stale.
        """
        writes = [node.name for node in self._subgraph if node.op.effect is Effect.WRITE]
        return list(dict.fromkeys([*self._subgraph.targets, *writes]))

    # --- names

    def _name(self, name: str, coordinate: Coordinate, node: str | None = None) -> str:
        """``name``, by default that of ``node``, for ``coordinate``."""
        node = name if node is None else node
        if node in self._layouts.single:
            return name
        return name + self._suffixes(self._once[node])[coordinate]

    def _suffixes(self, once: frozenset[int]) -> dict[Coordinate, str]:
        """The end of a name for each coordinate, without the axes ``once``: ``@dp0tp1``."""
        found = self._known_suffixes.get(once)
        if found is None:
            axes = [(i, axis.name) for i, axis in enumerate(self._mesh.axes) if i not in once]
            found = {
                c: "@" + ("".join(f"{axis}{c[i]}" for i, axis in axes) or "0") for c in self._mesh.coordinates
            }
            self._known_suffixes[once] = found
        return found

    def _names_of(self, name: str) -> list[str]:
        return list(dict.fromkeys(self._name(name, c) for c in self._mesh.coordinates))

    def _controls(self, node: Node, coordinates: Sequence[Coordinate]) -> tuple[str, ...]:
        """The names that the node of ``coordinates``, which share it, waits for."""
        return tuple(dict.fromkeys(self._name(c, at) for c in node.controls for at in coordinates))

    # --- nodes

    def _lower(self, node: Node) -> None:
        if node.name in self._layouts.single:
            self._lower_single(node)
            return
        inputs = self._layouts.inputs[node.name]
        outputs = [self._layouts.outputs[node.name, i] for i in range(len(node.outputs))]
        self._once[node.name] = self._same_turns([*inputs, *outputs])
        refs = [
            self._tensors.get(ref, layout, self._known_shape(node, ref, layout))
            for ref, layout in zip(node.inputs, inputs, strict=True)
        ]
        computed = self._computed(node, outputs)
        lower = partial(self._emit_at, node, inputs, computed)
        for name, coordinates in self._by_name(node.name).items():
            at = coordinates[0]
            local = Local(
                name,
                tuple(each[at] for each in refs),
                self._controls(node, coordinates),
                self._mesh.device(at),
                tuple(
                    self._local(spec, layout, at) for spec, layout in zip(node.outputs, computed, strict=True)
                ),
            )
            lower(local, at)
        for index, (layout, spec) in enumerate(zip(computed, node.outputs, strict=True)):
            parts = {c: (self._name(node.name, c), index) for c in self._mesh.coordinates}
            self._tensors.put(
                (node.name, index), layout, tuple(d or 0 for d in spec.shape or ()), parts, node
            )

    def _by_name(self, name: str) -> dict[str, list[Coordinate]]:
        found: dict[str, list[Coordinate]] = {}
        for coordinate in self._mesh.coordinates:
            found.setdefault(self._name(name, coordinate), []).append(coordinate)
        return found

    def _same_turns(self, layouts: Sequence[Layout]) -> frozenset[int]:
        return frozenset(
            number
            for number, axis in enumerate(self._mesh.axes)
            if axis.is_time and all(isinstance(layout.placements[number], Replicate) for layout in layouts)
        )

    def _computed(self, node: Node, outputs: Sequence[Layout]) -> Sequence[Layout]:
        """The layouts in which ``node`` itself gives ``outputs``: a read of a variable, as it is stored."""
        if node.op is read_variable_op:
            return [self._layouts.outputs[node.inputs[0]]]
        if node.op is relayout_op:
            return self._layouts.inputs[node.name]
        return outputs

    def _known_shape(self, node: Node, ref: Ref, layout: Layout) -> tuple[int, ...] | None:
        """The shape of an assigned value, which is the variable's, where its own is unknown."""
        shape = self._subgraph.spec(ref).shape
        if shape is None or None in shape:
            handle = self._subgraph.nodes[node.inputs[0][0]]
            known = handle.attrs.get("shape") if MESH in handle.attrs else None
            return None if layout.is_replicated or known is None else tuple(known)
        return None

    def _local(self, spec: TensorSpec, layout: Layout, coordinate: Coordinate) -> TensorSpec:
        if layout.is_replicated or not spec.shape or spec.dtype is dtypes.resource:
            return spec
        return TensorSpec(spec.dtype, layout.local_shape([d or 0 for d in spec.shape], coordinate))

    def _emit_at(
        self, node: Node, inputs: Sequence[Layout], outputs: Sequence[Layout], local: Local, at: Coordinate
    ) -> None:
        node = node.replace(attrs=self._local_attrs(node, at))
        if node.op.effect in (Effect.READ, Effect.WRITE):
            handle = self._subgraph.nodes[node.inputs[0][0]]
            rows = own_rows(inputs[0], handle.attrs["shape"], at)
            if rows is not None and node.op is resource_gather:
                emit_sparse_read(self._emit, node, local, rows)
                return
            if rows is not None and any(argument.name == "indices" for argument in node.op.inputs):
                emit_sparse_update(self._emit, node, local, rows)
                return
        if is_partial_mean(node, inputs, outputs):
            counted = self._subgraph.spec(node.inputs[0]).shape or ()
            self._emit.count_of[node.name] = math.prod(d or 0 for d in counted)
            emit_local(self._emit, node, local, True)
        elif node.op is relayout_op:
            emit_local(self._emit, node.replace(op=identity, attrs=_only_t(node)), local, False)
        else:
            emit_local(self._emit, node, local, False)

    def _local_attrs(self, node: Node, at: Coordinate) -> dict[str, Any]:
        attrs = {key: value for key, value in node.attrs.items() if key not in (COLOCATION, *ATTRIBUTES)}
        if node.op.effect is Effect.HANDLE:
            stored = self._layouts.outputs[node.name, 0]
            shape = attrs["shape"]
            attrs["shape"] = shape if stored.is_replicated else stored.local_shape(shape, at)
            attrs["shared_name"] = self._name(attrs.get("shared_name") or node.name, at, node.name)
        return attrs

    # --- nodes that run once

    def _lower_single(self, node: Node) -> None:
        self._check_handles(node)
        none = Layout.replicated(self._mesh)
        inputs = tuple(self._tensors.get(ref, none)[self._first] for ref in node.inputs)
        attrs = {key: value for key, value in node.attrs.items() if key not in (COLOCATION, *ATTRIBUTES)}
        device = node.device or self._mesh.device(self._first)
        self._emit.nodes[node.name] = node.replace(
            inputs=inputs, controls=self._controls(node, self._mesh.coordinates), attrs=attrs, device=device
        )
        for index, spec in enumerate(node.outputs):
            shape = tuple(d or 0 for d in spec.shape or ())
            parts = dict.fromkeys(self._mesh.coordinates, (node.name, index))
            self._tensors.put((node.name, index), none, shape, parts, node)

    def _check_handles(self, node: Node) -> None:
        """A node that runs once may read a variable of which the first coordinate has all."""
        if node.op.effect is not Effect.NESTED:
            return
        for handle, writes in touches(node):
            producer = self._subgraph.nodes[handle[0]]
            if MESH in producer.attrs and (writes or not self._layouts.outputs[handle].is_replicated):
                raise UnimplementedError(
                    f"expected a loop or branch that only reads variables without a layout; got "
                    f"{producer.name!r} in {self._layouts.outputs[handle]}"
                )


def _only_t(node: Node) -> dict[str, Any]:
    return {"T": node.outputs[0].dtype}
