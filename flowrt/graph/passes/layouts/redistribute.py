"""Redistribution: the operations that bring a tensor from the layout that it has to one that a reader needs.

The steps are those of `flowrt.graph.layouts.redistribution.plan`. Between devices a step is a collective with
all ranks of its group, or for an all-to-all the pieces themselves; on an axis of time it is a sum, a
concatenation or a slice. A step is emitted once per distinct group of inputs, and all readers of a tensor in
one layout share the result.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias, final

import numpy as np

from flowrt.dtypes import DType, as_dtype, int32
from flowrt.errors import UnimplementedError
from flowrt.graph.collectives.cost import Link
from flowrt.graph.construction.constant import const
from flowrt.graph.evaluate import located
from flowrt.graph.layouts.layout import Layout, Partial, Shard
from flowrt.graph.layouts.mesh import Coordinate, Mesh
from flowrt.graph.layouts.redistribution import SEND, Step, plan, received_bytes
from flowrt.graph.node import Node, Ref, TensorSpec
from flowrt.graph.op_def import OpDef
from flowrt.graph.ops.array.concat_and_split import concat_op
from flowrt.graph.ops.array.slicing import slice_op
from flowrt.graph.ops.base.identities import identity
from flowrt.graph.ops.collective.collectives import (
    COLLECTIVES,
    all_gather_op,
    all_reduce_op,
    reduce_scatter_op,
)
from flowrt.graph.ops.collective.transfer import recv_op
from flowrt.graph.ops.elementwise.arithmetic import add_v2, maximum, minimum, multiply

Refs: TypeAlias = Mapping[Coordinate, Ref]
"""A tensor's part on each coordinate."""

FOLDS: Mapping[str, OpDef] = {"sum": add_v2, "max": maximum, "min": minimum, "prod": multiply}

_COLLECTIVES: Mapping[str, OpDef] = {op.name: op for op in (all_gather_op, all_reduce_op, reduce_scatter_op)}


def device_of(ref: Ref, nodes: Mapping[str, Node]) -> str:
    """The device of ``ref``: a collective's result is where the input of its rank is."""
    node = nodes[ref[0]]
    return device_of(node.inputs[ref[1]], nodes) if node.op in COLLECTIVES else node.device


@final
class Emitter:
    """Adds nodes of a lowered step, with names that neither it nor ``taken`` has."""

    def __init__(self, mesh: Mesh, taken: Collection[str] = ()) -> None:
        self.mesh, self._taken = mesh, taken
        self.nodes: dict[str, Node] = {}
        self.count_of: dict[str, int] = {}
        """The number of elements over which each mean is taken."""
        self._counts: dict[str, itertools.count[int]] = {}

    def add(
        self,
        stem: str,
        op: OpDef,
        inputs: Iterable[Ref],
        attrs: Mapping[str, Any],
        device: str,
        outputs: Sequence[TensorSpec],
        origin: Node,
        controls: tuple[str, ...] = (),
    ) -> str:
        """Add a node with a new name that begins with ``stem``; ``origin`` is the global node it is for."""
        counts = self._counts.setdefault(stem, itertools.count())
        names = (f"{stem}_{count}" if count else stem for count in counts)
        name = next(name for name in names if name not in self.nodes and name not in self._taken)
        made = Node(name, op, tuple(inputs), controls, attrs, device, origin.source, tuple(outputs))
        self.nodes[name] = made
        return name

    def constant(
        self, stem: str, value: Any, device: str, origin: Node, controls: tuple[str, ...] = ()
    ) -> Ref:
        array = np.asarray(value)
        dtype = as_dtype(array.dtype)
        attrs = {"value": array, "dtype": dtype}
        return self.add(stem, const, (), attrs, device, [TensorSpec(dtype, array.shape)], origin, controls), 0

    def slice(self, ref: Ref, part: Sequence[slice], origin: Node) -> Ref:
        """The block ``part`` of ``ref``, on its device; of a constant, another one that waits alike."""
        node = self.nodes[ref[0]]
        spec, device = node.outputs[ref[1]], device_of(ref, self.nodes)
        if node.op is const:
            block = node.attrs["value"][tuple(part)]
            return self.constant(f"{ref[0]}/part", block, device, origin, node.controls)
        begin = np.array([each.start for each in part], np.int32)
        size = np.array([each.stop - each.start for each in part], np.int32)
        inputs = [
            ref,
            self.constant(f"{ref[0]}/begin", begin, device, origin),
            self.constant(f"{ref[0]}/size", size, device, origin),
        ]
        made = TensorSpec(spec.dtype, tuple(int(n) for n in size))
        attrs = {"T": spec.dtype, "Index": int32}
        return self.add(f"{ref[0]}/part", slice_op, inputs, attrs, device, [made], origin), 0

    def concat(self, refs: Sequence[Ref], dim: int, device: str, origin: Node) -> Ref:
        """The parts ``refs`` joined along ``dim``."""
        specs = [self.nodes[name].outputs[index] for name, index in refs]
        if len(refs) == 1:
            return refs[0]
        shape = list(specs[0].shape or ())
        shape[dim] = sum((spec.shape or ())[dim] or 0 for spec in specs)
        axis = self.constant(f"{refs[0][0]}/axis", np.array(dim, np.int32), device, origin)
        attrs = {"N": len(refs), "T": specs[0].dtype, "Tidx": int32}
        made = TensorSpec(specs[0].dtype, tuple(shape))
        stem = f"{refs[0][0]}/joined"
        return self.add(stem, concat_op, (*refs, axis), attrs, device, [made], origin), 0

    def fold(self, refs: Sequence[Ref], reduction: str, device: str, origin: Node) -> Ref:
        """The reduction of ``refs``, in their order, two at a time: a running sum needs memory for two."""
        spec = self.nodes[refs[0][0]].outputs[refs[0][1]]
        stem, op, attrs = f"{refs[0][0]}/{reduction}", FOLDS[reduction], {"T": spec.dtype}
        return functools.reduce(
            lambda a, b: (self.add(stem, op, (a, b), attrs, device, [spec], origin), 0), refs
        )


Path: TypeAlias = tuple[tuple[str, int], ...]
"""A function of a step: the loop or branch that owns it, and its number there, from the outside in."""


class Move(NamedTuple):
    """A step of the redistribution of ``source``, of the global ``spec``; ``nbytes`` are what all devices
    receive in it. It leads from position ``start`` to ``end``, which differ if tensors are sent on to another
    stage. ``path`` names the function, in which the name of ``source`` is its own.
    """

    source: Ref
    spec: TensorSpec
    step: Step
    before: Layout
    nbytes: int
    start: int
    end: int
    path: Path = ()


class Computed(NamedTuple):
    """A tensor of the global ``shape``, computed in ``layout``, at ``position``, for the global node
    ``origin``.
    """

    layout: Layout
    shape: tuple[int, ...]
    position: int
    origin: Node


class _Cut(NamedTuple):
    """The parts that the coordinates of a group have of a tensor, also as text."""

    parts: tuple[tuple[slice, ...], ...]
    text: str


@final
class Redistribution:
    """Parts of tensors, on ``coordinates``, in all the layouts in which they are needed."""

    def __init__(self, emitter: Emitter, link: Link, coordinates: Sequence[Coordinate]) -> None:
        self._emit, self._link, self._mesh = emitter, link, emitter.mesh
        self._coordinates = coordinates
        self._groups: dict[tuple[int, ...], list[list[Coordinate]]] = {}
        self._known: dict[tuple[Ref, Layout, int], Refs] = {}
        self._own: dict[Ref, Computed] = {}
        self.moves: list[Move] = []
        self._known_cuts: dict[tuple[tuple[int, ...], bool, Layout, tuple[int, ...]], list[_Cut]] = {}
        self._absent: dict[tuple[str, TensorSpec], str] = {}
        """The node in place of all tensors of a type on a device without operations."""
        self._elsewhere: dict[tuple[Layout, int, tuple[int, ...], DType], dict[Coordinate, Ref]] = {}
        """Parts of coordinates without operations: the same for each layer of a model."""
        self.read_elsewhere: list[str] = []
        """Readers on other coordinates, of which there are no operations otherwise."""

    def put(self, ref: Ref, computed: Computed, refs: Refs) -> None:
        """Note the parts of ``ref`` where it is computed."""
        self._own[ref] = computed
        self._known[ref, computed.layout, computed.position] = refs

    def get(self, ref: Ref, wanted: Layout, position: int, shape: tuple[int, ...] | None = None) -> Refs:
        """The parts of ``ref`` in the layout ``wanted`` at ``position``. ``shape``: the global one, if it is
        known better.
        """
        found = self._known.get((ref, wanted, position))
        if found is None:
            layout, own, here, origin = self._own[ref]
            found = self._known[ref, layout, here]
            shape = own if shape is None else shape
            spec = self._spec(next(iter(found.values())))
            itemsize = spec.dtype.np.itemsize
            for step in plan(layout, wanted, shape, itemsize, self._link, here != position):
                after, there = step.apply(layout), position if step is SEND else here
                if (ref, after, there) not in self._known:
                    self._known[ref, after, there] = self._apply(step, layout, there, shape, found, origin)
                    nbytes = received_bytes(step, layout, shape, itemsize)
                    whole = TensorSpec(spec.dtype, shape)
                    self.moves.append(Move(ref, whole, step, layout, nbytes, here, there))
                found, layout, here = self._known[ref, after, there], after, there
        return found

    def assembled(self, ref: Ref) -> Ref:
        """The whole of ``ref``, on the device of the first coordinate: for a fetch."""
        layout, _, position, origin = self._own[ref]
        parts = dict(self._known[ref, layout, position])
        for axis in reversed(range(len(self._mesh.axes))):
            placement = layout.placements[axis]
            for group in self._mesh.groups(axis):
                if group[0] not in parts:
                    continue
                refs = [parts[c] for c in group]
                device = self._mesh.device(group[0], position)
                parts[group[0]] = self._joined(refs, placement, device, origin)
                for other in group[1:]:
                    del parts[other]
        return parts[self._mesh.coordinates[0]]

    def _joined(self, refs: Sequence[Ref], placement: Any, device: str, origin: Node) -> Ref:
        if isinstance(placement, Shard):
            return self._emit.concat(refs, placement.dim, device, origin)
        if isinstance(placement, Partial):
            return self._emit.fold(refs, placement.reduction, device, origin)
        return refs[0]

    def _spec(self, ref: Ref) -> TensorSpec:
        return self._emit.nodes[ref[0]].outputs[ref[1]]

    # --- steps

    def _apply(
        self, step: Step, before: Layout, position: int, shape: tuple[int, ...], refs: Refs, origin: Node
    ) -> dict[Coordinate, Ref]:
        """The parts after ``step``, which ends at ``position``."""
        if step is SEND:
            return self._sent(position, refs, origin)
        after = step.apply(before)
        made: dict[tuple[Any, ...], list[Ref]] = {}
        result: dict[Coordinate, Ref] = {}
        groups = self._groups_along(step)
        cuts = zip(self._cuts(step, before, shape), self._cuts(step, after, shape), strict=True)
        like = next(iter(refs.values()))
        absent = self._elsewhere.setdefault((before, position, shape, self._spec(like).dtype), {})
        for group, ((starts, _), (ends, text)) in zip(groups, cuts, strict=True):
            for at in group:
                if at not in refs and at not in absent:
                    absent[at] = self._absent_part(at, before, position, shape, like)
            inputs = tuple([refs.get(at) or absent[at] for at in group])
            key = (inputs, text)
            if key not in made:
                devices = [self._mesh.device(c, position) for c in group]
                is_here = [c in refs for c in group]
                made[key] = self._step(step, devices, inputs, starts, ends, origin, is_here)
            result.update({c: ref for c, ref in zip(group, made[key], strict=True) if c in refs})
        return result

    def _groups_along(self, step: Step) -> list[list[Coordinate]]:
        """The groups of ``step``; of one that exchanges nothing, only what has operations, as turns of a
        device do.
        """
        if step.axes not in self._groups:
            self._groups[step.axes] = _groups(self._mesh, step.axes, self._coordinates)
        groups, is_inside = self._groups[step.axes], step.collective == "Slice" or self._is_in_time(step)
        if not is_inside or len(self._coordinates) == self._mesh.size:
            return groups
        return [[at for at in group if at in self._coordinates] for group in groups]

    def _is_in_time(self, step: Step) -> bool:
        return self._mesh.axes[step.axes[0]].is_time

    def _check_turns(self, step: Step, refs: Sequence[Ref], origin: Node) -> None:
        """Raise `UnimplementedError` if the parts of turns are joined, and some turns have no operations."""
        if isinstance(step.source, Shard) and len(refs) < math.prod(self._mesh.shape[i] for i in step.axes):
            what = f"expected a step of which no part is joined over its turns; got {origin.name!r}"
            raise located(origin, UnimplementedError(what))

    def _cuts(self, step: Step, layout: Layout, shape: tuple[int, ...]) -> list[_Cut]:
        """The parts of a tensor of ``shape`` in ``layout``, of each of the groups of ``step``: the same for
        each layer of a model.
        """
        key = step.axes, step.collective == "Slice", layout, shape
        if key not in self._known_cuts:
            parts = [tuple(layout.slices(shape, at) for at in group) for group in self._groups_along(step)]
            self._known_cuts[key] = [_Cut(each, str(each)) for each in parts]
        return self._known_cuts[key]

    def _absent_part(
        self, at: Coordinate, layout: Layout, position: int, shape: tuple[int, ...], like: Ref
    ) -> Ref:
        """The part of a coordinate without operations, of which only place and size are known."""
        cut = any(isinstance(placement, Shard) for placement in layout.placements)
        spec = TensorSpec(self._spec(like).dtype, layout.local_shape(shape, at) if cut else shape)
        device = self._mesh.device(at, position)
        if (device, spec) not in self._absent:
            origin = self._emit.nodes[like[0]]
            attrs = {"tensor_type": spec.dtype, "shape": spec.shape}
            self._absent[device, spec] = self._emit.add(
                "elsewhere", recv_op, [], attrs, device, [spec], origin
            )
        return self._absent[device, spec], 0

    def _sent(self, position: int, refs: Refs, origin: Node) -> dict[Coordinate, Ref]:
        """The parts ``refs`` on the devices at ``position``; a constant is made there again."""
        made: dict[tuple[Ref, str], Ref] = {}
        result: dict[Coordinate, Ref] = {}
        for coordinate, ref in refs.items():
            device = self._mesh.device(coordinate, position)
            if (ref, device) not in made:
                made[ref, device] = self._at_device(ref, device, origin)
            result[coordinate] = made[ref, device]
        return result

    def _at_device(self, ref: Ref, device: str, origin: Node) -> Ref:
        node, stem = self._emit.nodes[ref[0]], f"{ref[0]}/sent"
        if node.op is const:
            return self._emit.constant(stem, node.attrs["value"], device, origin, node.controls)
        spec = self._spec(ref)
        return self._emit.add(stem, identity, [ref], {"T": spec.dtype}, device, [spec], origin), 0

    def _step(
        self,
        step: Step,
        devices: Sequence[str],
        refs: Sequence[Ref],
        before: Sequence[tuple[slice, ...]],
        after: Sequence[tuple[slice, ...]],
        origin: Node,
        is_here: Sequence[bool],
    ) -> list[Ref]:
        emit = self._emit
        if step.collective == "Slice":
            return [
                emit.slice(ref, _inside(inner, outer), origin)
                for ref, outer, inner in zip(refs, before, after, strict=True)
            ]
        if self._is_in_time(step):
            self._check_turns(step, refs, origin)
            whole = self._joined(refs, step.source, devices[0], origin)
            if not isinstance(step.target, Shard):
                return [whole] * len(devices)
            union = _union(before)
            return [emit.slice(whole, _inside(inner, union), origin) for inner in after]
        if step.collective == "AllToAll":
            return self._exchange(step, devices, refs, before, after, origin, is_here)
        return self._collective(step, refs, after, origin)

    def _exchange(
        self,
        step: Step,
        devices: Sequence[str],
        refs: Sequence[Ref],
        before: Sequence[tuple[slice, ...]],
        after: Sequence[tuple[slice, ...]],
        origin: Node,
        is_here: Sequence[bool],
    ) -> list[Ref]:
        """An all-to-all that cuts along one dimension and joins along another: each pair's piece itself, if
        one of the two has operations.
        """
        assert isinstance(step.source, Shard)
        assert isinstance(step.target, Shard)
        results = []
        for device, wanted, reads in zip(devices, after, is_here, strict=True):
            pieces = []
            for ref, have, sends in zip(refs, before, is_here, strict=True):
                if reads or sends:
                    piece = list(have)
                    piece[step.target.dim] = wanted[step.target.dim]
                    pieces.append(self._emit.slice(ref, _inside(piece, have), origin))
            if not reads:
                pieces = [self._at_device(piece, device, origin) for piece in pieces]
                self.read_elsewhere += [name for name, _ in pieces]
            results.append(self._emit.concat(pieces, step.source.dim, device, origin))
        return results

    def _collective(
        self, step: Step, refs: Sequence[Ref], after: Sequence[tuple[slice, ...]], origin: Node
    ) -> list[Ref]:
        dtype: DType = self._spec(refs[0]).dtype
        attrs: dict[str, Any] = {
            "group_key": "", "group_size": len(refs), "ranks": tuple(range(len(refs))),
            "instance_key": refs[0][0], "lowering": "auto", "tasks": (), "N": len(refs), "T": dtype,
        }  # fmt: skip
        if isinstance(step.source, Partial):
            attrs["reduction"] = step.source.reduction
        if isinstance(step.source, Shard) or isinstance(step.target, Shard):
            sharded = step.source if isinstance(step.source, Shard) else step.target
            assert isinstance(sharded, Shard)
            attrs["axis"] = sharded.dim
        outputs = [TensorSpec(dtype, tuple(each.stop - each.start for each in part)) for part in after]
        stem = f"{refs[0][0]}/{step.collective}"
        name = self._emit.add(stem, _COLLECTIVES[step.collective], refs, attrs, "", outputs, origin)
        return [(name, i) for i in range(len(refs))]


def _groups(mesh: Mesh, axes: Sequence[int], coordinates: Sequence[Coordinate]) -> list[list[Coordinate]]:
    """The coordinates that differ from one of ``coordinates`` in ``axes`` only, in row-major order."""
    sizes = [mesh.axes[axis].size for axis in axes]
    firsts = dict.fromkeys(_moved(at, axes, [0] * len(axes)) for at in coordinates)
    return [[_moved(at, axes, indices) for indices in np.ndindex(*sizes)] for at in firsts]


def _moved(at: Coordinate, axes: Sequence[int], indices: Sequence[int]) -> Coordinate:
    """The coordinate with ``indices`` on ``axes``, and otherwise those of ``at``."""
    moved = list(at)
    for axis, index in zip(axes, indices, strict=True):
        moved[axis] = index
    return tuple(moved)


def _inside(inner: Sequence[slice], outer: Sequence[slice]) -> list[slice]:
    """``inner`` relative to the beginning of ``outer``."""
    return [slice(i.start - o.start, i.stop - o.start) for i, o in zip(inner, outer, strict=True)]


def _union(parts: Sequence[Sequence[slice]]) -> list[slice]:
    return [
        slice(min(each.start for each in dims), max(each.stop for each in dims))
        for dims in zip(*parts, strict=True)
    ]
