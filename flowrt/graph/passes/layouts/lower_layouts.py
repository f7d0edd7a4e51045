"""Lowering of layouts: one global subgraph becomes the operations of every coordinate of its mesh.

All coordinates are emitted into one subgraph, with collectives that have all ranks: placement, lowering of
collectives, splitting and partitioning then run as for any graph, in one process or at a cluster's master.
A coordinate's node is on its device; colocation, which is a matter of the global graph, ends here.

The names of variables' shards, ``w@dp0tp1``, depend on mesh and layout only, so every step of a session finds
them again.
"""

from __future__ import annotations

import functools
import logging
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple, final

import numpy as np

from flowrt import dtypes
from flowrt.device.spec import DeviceSpec, parse_device
from flowrt.errors import UnimplementedError
from flowrt.graph.collectives.cost import DEFAULT_LINKS, Links
from flowrt.graph.construction.constant import KNOWN
from flowrt.graph.construction.graph import Tensor
from flowrt.graph.effects import is_stateful
from flowrt.graph.evaluate import located
from flowrt.graph.layouts.attributes import AGAIN, UNIT, layouts_of, mesh_of
from flowrt.graph.layouts.layout import Layout, Replicate, Shard
from flowrt.graph.layouts.mesh import Coordinate, Mesh
from flowrt.graph.node import Node, Ref, Subgraph, TensorSpec
from flowrt.graph.op_def import Effect, OpDef, op_def
from flowrt.graph.ops.base.identities import deep_copy_op, identity, local_shards_op, relayout_op
from flowrt.graph.ops.random.random_ops import random_position
from flowrt.graph.ops.state.variable_ops import resource_gather, rows_of_variable_op
from flowrt.graph.passes.layouts.bucket_collectives import bucket_collectives
from flowrt.graph.passes.layouts.host_nodes import host_nodes
from flowrt.graph.passes.layouts.join_units import join_units
from flowrt.graph.passes.layouts.keep_copies import keep_copies
from flowrt.graph.passes.layouts.local_forms import (
    Local,
    emit_local,
    emit_sparse_read,
    emit_sparse_update,
    is_partial_mean,
    own_rows,
    with_local_shapes,
)
from flowrt.graph.passes.layouts.lower_copies import lower_copies
from flowrt.graph.passes.layouts.lower_functions import LoweredFunction, groups_of, owner_of
from flowrt.graph.passes.layouts.own_part import check_state, own_part
from flowrt.graph.passes.layouts.processes import Own, own_of
from flowrt.graph.passes.layouts.propagate_layouts import propagate
from flowrt.graph.passes.layouts.redistribute import Computed, Emitter, Move, Redistribution, Refs
from flowrt.graph.passes.layouts.schedule_gathers import schedule_gathers
from flowrt.graph.passes.layouts.schedule_scatters import schedule_scatters
from flowrt.graph.passes.layouts.stages.assign_stages import backward_nodes, nodes_of_batch
from flowrt.graph.passes.layouts.stages.order_actions import (
    Part,
    actions_of,
    has_turns,
    order_actions,
    turns_in_order,
    with_helpers,
)
from flowrt.graph.passes.layouts.stages.recompute_stages import recompute_stages
from flowrt.graph.passes.layouts.stages.sizes_of_lists import with_sizes_of_lists
from flowrt.graph.passes.layouts.stages.sizes_of_nothing import with_sizes_of_nothing
from flowrt.graph.passes.layouts.stages.split_branches import split_branches
from flowrt.graph.passes.layouts.stages.wait_for_effects import wait_for_effects
from flowrt.graph.passes.layouts.step_layouts import Layouts
from flowrt.graph.passes.layouts.step_text import step_text
from flowrt.graph.passes.layouts.variable_shards import attributes_at, mesh_on, suffix_at, without_layout
from flowrt.graph.passes.prepare.prune import prune
from flowrt.graph.pipeline.actions import Action, Kind, Schedule
from flowrt.graph.pipeline.mesh_schedule import turns_of
from flowrt.graph.topology import sort_topologically

_log = logging.getLogger("flowrt")


UNCUT = (
    "pipeline: the batch of this step is whole, so stages work one after the other. That of a placeholder, "
    "an iterator or dequeue_many made in the strategy's scope is cut into micro-batches; cut another one by "
    "tf.distribute.relayout(batch, ['micro', None]), with an entry per dimension"
)


class Lowered(NamedTuple):
    """A step in its layouts, with the facts by which it was lowered."""

    subgraph: Subgraph
    layouts: Layouts
    moves: tuple[Move, ...]
    actions: Mapping[str, Action | None]
    """The action of each node if devices take turns; None of one that runs once."""
    passes: Mapping[str, Kind]
    """The pass of each node of the global graph that a stage of a pipeline computes once per micro-batch."""


def lower_layouts(
    subgraph: Subgraph,
    devices: Sequence[DeviceSpec],
    links: Links = DEFAULT_LINKS,
    memory: Mapping[str, int] = {},
) -> Subgraph:
    """``subgraph``, with static shapes inferred, as the operations of all coordinates of its mesh, on
    ``devices`` unless the mesh names its own; the same object if no node names a mesh. Raises as `lowered`.
    """
    subgraph = lower_copies(subgraph, devices)
    found = lowered(subgraph, devices, links, None, memory)
    if found is None:
        return subgraph
    for gather in found.layouts.gathers:
        _log.info("%s", gather)
    for unsized in found.layouts.unsized:
        _log.warning("%s", unsized)
    if found.layouts.schedule and not found.layouts.unsized and _is_training_in_one_turn(found):
        _log.warning("%s", UNCUT)
    step, own = in_order(found, links), own_of(found.layouts.mesh)
    if own is None:
        return step
    check_state(subgraph)
    return own_part(step, own, devices, step_text(found.layouts, found.moves))


def _is_training_in_one_turn(found: Lowered) -> bool:
    """Whether a step of a pipeline with micro-batches has a backward pass, but computes the batch at once,
    and not because it has a single row.
    """
    subgraph, mesh = found.layouts.subgraph, found.layouts.mesh
    if turns_of(mesh) == 1 or found.passes or any(_is_of_turns(node, mesh) for node in subgraph):
        return False
    return bool(backward_nodes(subgraph) & nodes_of_batch(subgraph))


def _is_of_turns(node: Node, mesh: Mesh) -> bool:
    """Whether the attributes of ``node`` shard it by an axis of time."""
    layouts = layouts_of(node.attrs, mesh)
    if layouts is None:
        return False
    placements = zip(mesh.axes, layouts.used.placements, strict=True)
    return any(axis.is_time and isinstance(placement, Shard) for axis, placement in placements)


def in_order(found: Lowered, links: Links) -> Subgraph:
    """The step with small collectives joined, in the order of its schedule if devices take turns."""
    mesh, actions = found.layouts.mesh, found.actions
    step = bucket_collectives(found.subgraph, mesh, links, actions)
    return order_actions(step, actions, _positions(mesh), _schedule_of(found.layouts)) if actions else step


def _schedule_of(layouts: Layouts) -> Schedule:
    return layouts.schedule or turns_in_order(layouts.mesh)


def _positions(mesh: Mesh) -> dict[str, int]:
    """The position of each device of ``mesh``, and of its host."""
    places = mesh.places().values()
    return {name(*at): at[1] for name in (mesh.host, mesh.device) for at in places}


def lowered(
    subgraph: Subgraph,
    devices: Sequence[DeviceSpec],
    links: Links = DEFAULT_LINKS,
    own: Own | None = None,
    memory: Mapping[str, int] = {},
) -> Lowered | None:
    """`lower_layouts` with its facts; None if no node names a mesh. ``own``: the part of a process, if not
    that of this one. ``memory``: the bytes of devices, where they are known.

    Raises `InvalidArgumentError` for a mesh larger than the devices, and for what `propagate` refuses;
    `UnimplementedError` for two meshes in one step; `ResourceExhaustedError` for a unit of variables that a
    device cannot hold.
    """
    mesh = mesh_of(subgraph)
    if mesh is None:
        return None
    subgraph = with_sizes_of_lists(with_sizes_of_nothing(subgraph))
    if mesh.stages is not None:
        subgraph = recompute_stages(wait_for_effects(split_branches(subgraph)))
    bare, mesh = mesh, mesh_on(mesh, devices)
    gathered = schedule_gathers(keep_copies(join_units(subgraph)), bare, _least_memory(mesh, memory))
    scheduled = schedule_scatters(gathered)
    return lowered_by(propagate(scheduled, mesh), links, own or own_of(mesh))


def _least_memory(mesh: Mesh, memory: Mapping[str, int]) -> int | None:
    """The bytes of the smallest of the devices of ``mesh`` that are in this process; None if unknown."""
    here = {_number(name): nbytes for name, nbytes in memory.items()}
    return min([here[each] for each in map(_number, mesh.devices or ()) if each in here], default=None)


def _number(device: str) -> tuple[str | None, int | None]:
    """The type and the number of a device in its process."""
    spec = parse_device(device)
    return spec.device_type, spec.device_index


def lowered_by(layouts: Layouts, links: Links = DEFAULT_LINKS, own: Own | None = None) -> Lowered:
    """The step of ``layouts``, over a mesh with devices, lowered in these layouts; with ``own``, its
    coordinates only.
    """
    return _Lowering(layouts, links, own).of_step()


@final
class _Lowering:
    """Lowers one subgraph, a step or one of the ``functions`` of a loop or branch: the parameters of a
    function are in parts, feeds are not.
    """

    def __init__(
        self, layouts: Layouts, links: Links, own: Own | None, functions: Sequence[Layouts] = ()
    ) -> None:
        self._subgraph, self._layouts, self._mesh = layouts.subgraph, layouts, layouts.mesh
        self._own, self._coordinates = own, layouts.mesh.coordinates if own is None else own.coordinates
        self._devices = [
            {at: layouts.mesh.device(at, position) for at in self._coordinates}
            for position in layouts.mesh.positions
        ]
        self._links, self._parameters = links, frozenset(self._subgraph.feeds if functions else ())
        self._shared = self._same_turns(layout for each in functions for layout in each.outputs.values())
        """The axes of time on which turns may share a node. In functions that is all or nothing: turns that
        share one node of a loop are in one loop, and could not run one after the other.
        """
        self._emit = Emitter(layouts.mesh, self._subgraph.nodes.keys())
        self._tensors = Redistribution(self._emit, links.inside, self._coordinates)
        self._first = self._coordinates[0]
        self._on_host = host_nodes(layouts)
        self._names: dict[str, Mapping[Coordinate, str]] = {}
        """The names of each node of the subgraph on all coordinates."""
        self._lists: dict[tuple[Ref, Layout], str] = {}
        """The names of lists without elements, of which there is one for each layout."""
        self._known_suffixes: dict[frozenset[int], dict[Coordinate, str]] = {}
        self._moves_in_functions: list[Move] = []
        self._once: set[str] = set()
        """The nodes that all turns share."""

    def of_step(self) -> Lowered:
        """The subgraph as a step; fetches are assembled on the device of the first coordinate, or, if each
        process runs its own session, whole in each process.
        """
        self._lower_all()
        none, fetches = Layout.replicated(self._mesh), self._subgraph.fetches
        if self._own is None:
            found = [self._tensors.assembled(ref) for ref in fetches]
        else:
            found = [
                self._tensors.get(ref, none, position)[at]
                for at, position in self._own.readers()
                for ref in fetches
            ]
        step = self._pruned(self._subgraph.feeds, found)
        if not has_turns(self._mesh):
            return Lowered(step, self._layouts, self._moves, {}, {})
        parts = self._parts
        actions = actions_of(self._layouts, parts)
        passes = {parts[name].node: action.kind for name, action in actions.items() if action}
        actions = with_helpers(step, actions, _positions(self._mesh), _schedule_of(self._layouts))
        return Lowered(step, self._layouts, self._moves, actions, passes if self._layouts.schedule else {})

    @property
    def _parts(self) -> dict[str, Part]:
        """The nodes of the subgraph by their names on the coordinates."""
        times = [i for i, axis in enumerate(self._mesh.axes) if axis.is_time]
        sizes = [self._mesh.axes[i].size for i in times]
        turns = {at: int(np.ravel_multi_index([at[i] for i in times], sizes)) for at in self._coordinates}
        found: dict[str, Part] = {}
        for node, names in self._names.items():
            is_once = node in self._layouts.single or node in self._once
            for at, name in names.items():
                part = Part(node, None if is_once else turns[at])
                if found.setdefault(name, part) != part:
                    found[name] = Part(node, None)
        return found

    def of_function(self, results: Sequence[Layout]) -> LoweredFunction:
        """The subgraph as a function, with results in the layouts ``results``."""
        self._lower_all()
        fetches = [
            self._get(ref, layout, self._layouts.position(ref[0]))
            for ref, layout in zip(self._subgraph.fetches, results, strict=True)
        ]
        feeds = [self._names[name] for name in self._subgraph.feeds]
        made = self._pruned(
            tuple(dict.fromkeys(name for names in feeds for name in names.values())),
            [ref for refs in fetches for ref in refs.values()],
        )
        return LoweredFunction(made.nodes, feeds, fetches, made.targets, self._moves)

    def _lower_all(self) -> None:
        drawn_again = {node.attrs[AGAIN] for node in self._subgraph if AGAIN in node.attrs}
        for node in self._subgraph:
            if node.name in drawn_again or AGAIN in node.attrs:  # both at one position, also if they run once
                self._lower_draw(node)
            elif node.name in self._layouts.single:
                self._lower_single(node)
            elif node.name in self._parameters:
                self._lower_parameter(node)
            elif node.name in self._layouts.functions:
                self._lower_owner(node)
            elif node.op.effect is Effect.RANDOM:
                self._lower_draw(node)
            elif node.op is local_shards_op:
                self._lower_shards(node)
            else:
                self._lower(node)

    def _pruned(self, feeds: Sequence[str], fetches: Sequence[Ref]) -> Subgraph:
        targets = [name for target in self._targets() for name in dict.fromkeys(self._names[target].values())]
        targets += self._tensors.read_elsewhere
        nodes = sort_topologically(self._emit.nodes)
        return prune(Subgraph(dict(nodes), tuple(feeds), tuple(fetches), tuple(targets)))

    def _targets(self) -> list[str]:
        """The nodes that must run on all coordinates: a fetch of an updated variable needs one copy of it,
        and the others must not become stale.
        """
        writes = [
            node.name
            for node in self._subgraph
            if node.op.effect is Effect.WRITE or (node.name in self._layouts.functions and is_stateful(node))
        ]
        return list(dict.fromkeys([*self._subgraph.targets, *writes]))

    @property
    def _moves(self) -> tuple[Move, ...]:
        return (*self._tensors.moves, *self._moves_in_functions)

    # --- names

    def _name_parts(self, node: Node, layouts: Iterable[Layout]) -> dict[str, list[Coordinate]]:
        """Name ``node``, with tensors in ``layouts``, on all coordinates. By name, those that share it."""
        same = self._same_turns(layouts)
        if not is_stateful(node):
            same &= self._shared
        if node.op.effect is Effect.PURE and not _is_reduction(node):
            same &= self._shared_by(node.controls)  # it waits for those of its turn: for what was folded
        if same == self._same_turns(()):
            self._once.add(node.name)
        suffixes = self._suffixes(same)
        names = {at: node.name + suffixes[at] for at in self._coordinates}
        self._names[node.name] = names
        found: dict[str, list[Coordinate]] = {}
        for at, name in names.items():
            found.setdefault(name, []).append(at)
        return found

    def _suffixes(self, once: frozenset[int]) -> dict[Coordinate, str]:
        """The end of a name for each coordinate, without the axes ``once``: ``@dp0tp1``."""
        found = self._known_suffixes.get(once)
        if found is None:
            found = {at: suffix_at(self._mesh, at, once) for at in self._coordinates}
            self._known_suffixes[once] = found
        return found

    def _same_turns(self, layouts: Iterable[Layout]) -> frozenset[int]:
        """The axes of time on which all of ``layouts`` are replicated: a node is the same for all turns."""
        found = list(layouts)
        return frozenset(
            number
            for number, axis in enumerate(self._mesh.axes)
            if axis.is_time and all(isinstance(layout.placements[number], Replicate) for layout in found)
        )

    def _shared_by(self, names: Iterable[str]) -> frozenset[int]:
        """The axes of time on which turns share the nodes ``names``."""
        found = [self._names[name] for name in names]
        return frozenset(
            number
            for number, axis in enumerate(self._mesh.axes)
            if axis.is_time
            and all(of[at] == of[*at[:number], 0, *at[number + 1 :]] for of in found for at in of)
        )

    def _controls(self, node: Node, coordinates: Sequence[Coordinate]) -> tuple[str, ...]:
        """The names that the node of ``coordinates``, which share it, waits for."""
        found: dict[str, None] = {}
        for control in node.controls:
            waiting = self._waiting(node, control, coordinates)
            found |= dict.fromkeys(self._names[control][at] for at in waiting)
        return tuple(found)

    def _waiting(self, node: Node, control: str, coordinates: Sequence[Coordinate]) -> Sequence[Coordinate]:
        """The coordinates that wait for ``control``, of ``coordinates``, which share ``node``.

        Reads and reductions of a unit wait for others, and are waited for, so that few units are whole at a
        time. Turns are one after the other: of those that share a read, it waits for the first, and only the
        last waits for the reduction of what all of them have made.
        """
        before = self._subgraph.nodes[control]
        is_read = UNIT in node.attrs and not _is_reduction(node) and before.op.effect is Effect.PURE
        if _is_reduction(before) and control in self._once and node.name not in self._once:
            turn = self._turn(self._coordinates[-1])
        elif is_read and node.name in self._once and control not in self._once:
            turn = self._turn(self._first)
        else:
            return coordinates
        return [at for at in coordinates if self._turn(at) == turn]

    def _turn(self, at: Coordinate) -> Coordinate:
        """The place of ``at`` in time."""
        return tuple(i for i, axis in zip(at, self._mesh.axes, strict=True) if axis.is_time)

    # --- tensors

    def _get(self, ref: Ref, wanted: Layout, position: int, shape: tuple[int, ...] | None = None) -> Refs:
        """The parts of ``ref`` in the layout ``wanted`` at ``position``. ``shape``: the global one, if it is
        known better.
        """
        is_list = self._subgraph.spec(ref).dtype is dtypes.variant
        if is_list and ref in self._layouts.free and self._layouts.outputs[ref] is not wanted:
            return self._begin_list(ref, wanted)
        return self._tensors.get(ref, self._layouts.given(ref, wanted), position, shape)

    def _begin_list(self, ref: Ref, wanted: Layout) -> Refs:
        """The parts of a list without elements: another one for each layout."""
        name = self._lists.setdefault((ref, wanted), f"{ref[0]}/list{len(self._lists)}")
        if name not in self._names:
            node = self._subgraph.nodes[ref[0]].replace(name=name)
            if ref[0] in self._layouts.stages:
                self._layouts.stages[name] = self._layouts.stages[ref[0]]
            self._lower_parts(node, self._layouts.inputs[ref[0]], [wanted])
        return {at: (name, 0) for at, name in self._names[name].items()}

    # --- nodes

    def _lower(self, node: Node) -> None:
        inputs = self._layouts.inputs[node.name]
        outputs = [self._layouts.outputs[node.name, i] for i in range(len(node.outputs))]
        self._lower_parts(node, inputs, outputs)

    def _lower_parts(self, node: Node, inputs: Sequence[Layout], outputs: Sequence[Layout]) -> None:
        value = self._layouts.values.get((node.name, 0))
        position = self._layouts.position(node.name)
        refs = [
            self._get(ref, layout, position, self._known_shape(node, ref, layout))
            if value is None or ref not in self._layouts.values
            else self._parts_of(ref)
            for ref, layout in zip(node.inputs, inputs, strict=True)
        ]
        computed = self._computed(node, outputs)
        plain = node.replace(attrs=_local_attributes(node))
        are_whole = all(layout.is_replicated for layout in computed)
        devices = self._devices_of(node)
        is_mean = is_partial_mean(node, inputs, computed)
        for name, coordinates in self._name_parts(node, [*inputs, *outputs]).items():
            at = coordinates[0]
            specs = node.outputs if are_whole else _locals(node.outputs, computed, at)
            given = tuple([each[at] for each in refs])
            controls = self._controls(node, coordinates) if node.controls else ()
            local = Local(name, given, controls, devices[at], specs)
            self._emit_at(plain, inputs, computed, local, at, is_mean)
        if value is not None and value.is_on_host:
            self._put_output(node, 0, computed[0], self._brought(node))
        else:
            self._put(node, computed)

    def _parts_of(self, ref: Ref) -> Refs:
        """The parts of ``ref`` where they are computed."""
        return {at: (name, ref[1]) for at, name in self._names[ref[0]].items()}

    def _devices_of(self, node: Node) -> Mapping[Coordinate, str]:
        """The device on which ``node`` runs for each coordinate."""
        position = self._layouts.position(node.name)
        devices = self._devices[position]
        if node.name not in self._on_host:
            return devices
        return {at: self._mesh.host(at, position) for at in devices}

    def _device(self, node: Node, at: Coordinate) -> str:
        """The device on which ``node`` runs for the coordinate ``at``."""
        return self._devices_of(node)[at]

    def _home(self, node: Node, at: Coordinate) -> str:
        """The device of ``at`` at the position of ``node``."""
        return self._devices[self._layouts.position(node.name)][at]

    def _brought(self, node: Node) -> Refs:
        """The parts of the value ``node`` of a variable in host memory, brought to the devices."""
        parts: dict[Coordinate, Ref] = {}
        made: dict[str, Ref] = {}
        for at, ref in self._parts_of((node.name, 0)).items():
            device, spec = self._home(node, at), self._emit.nodes[ref[0]].outputs[0]
            if device == self._mesh.host(at, self._layouts.position(node.name)):
                made[ref[0]] = ref
            elif ref[0] not in made:
                op, attrs = _transfer(device), {"T": spec.dtype, **_unit_of(node)}
                made[ref[0]] = self._emit.add(f"{ref[0]}/here", op, [ref], attrs, device, [spec], node), 0
            parts[at] = made[ref[0]]
        return parts

    def _put(self, node: Node, layouts: Sequence[Layout]) -> None:
        """Note the parts of the outputs of ``node``, which are in ``layouts``."""
        for index, layout in enumerate(layouts):
            parts = {at: (name, index) for at, name in self._names[node.name].items()}
            self._put_output(node, index, layout, parts)

    def _put_output(self, node: Node, index: int, layout: Layout, parts: Refs) -> None:
        shape = tuple(d or 0 for d in node.outputs[index].shape or ())
        computed = Computed(layout, shape, self._layouts.position(node.name), node)
        self._tensors.put((node.name, index), computed, parts)

    def _lower_parameter(self, node: Node) -> None:
        (spec,), layout = node.outputs, self._layouts.outputs[node.name, 0]
        for name, (at, *_) in self._name_parts(node, [layout]).items():
            local = _local(spec, layout, at)
            attrs = {**node.attrs, "shape": local.shape}
            if local != spec:
                attrs.pop(KNOWN, None)
            device = self._home(node, at)
            self._emit.nodes[name] = node.replace(name=name, attrs=attrs, device=device, outputs=(local,))
        self._put(node, [layout])

    def _lower_draw(self, node: Node) -> None:
        """Lower a draw: its position in the stream is taken once; each coordinate draws its part there."""
        (spec,), layout = node.outputs, self._layouts.outputs[node.name, 0]
        whole = [d or 0 for d in spec.shape or ()]
        first = node.attrs.get(AGAIN, node.name)
        positions = {at: first + end for at, end in self._ends_of_positions().items()}
        for at in self._coordinates if first == node.name else ():
            if positions[at] not in self._emit.nodes:
                self._emit.nodes[positions[at]] = node.replace(
                    name=positions[at],
                    op=random_position,
                    inputs=(),
                    controls=self._controls(
                        node, [c for c in self._coordinates if positions[c] == positions[at]]
                    ),
                    attrs={key: node.attrs[key] for key in random_position.attrs},
                    device=self._home(node, at),
                    outputs=(TensorSpec(dtypes.uint64, (3,)),),
                )
        there = op_def(f"{node.op.name}At")
        kept = {key: value for key, value in node.attrs.items() if key not in random_position.attrs}
        none, position = Layout.replicated(self._mesh), self._layouts.position(node.name)
        refs = [self._get(ref, none, position) for ref in node.inputs]
        for name, (at, *_) in self._name_parts(node, [layout]).items():
            begin = [part.start for part in layout.slices(whole, at)]
            local = Local(
                name,
                tuple(each[at] for each in refs),
                (),
                self._device(node, at),
                (_local(spec, layout, at),),
            )
            inputs = (*with_local_shapes(self._emit, node, local), (positions[at], 0))
            attrs = {**_local_attributes(node.replace(attrs=kept)), "of": whole, "begin": begin}
            self._emit.nodes[name] = node.replace(
                name=name, op=there, inputs=inputs, controls=(), attrs=attrs, device=local.device,
                outputs=local.outputs,
            )  # fmt: skip
        self._put(node, [layout])

    def _ends_of_positions(self) -> Mapping[Coordinate, str]:
        """The end of the name of a draw's position for each coordinate: it is taken once. In a loop or branch
        of a pipeline each turn takes it for itself, since turns do not wait for each other there: their
        streams are equal, and all take as many.
        """
        times = frozenset(i for i, axis in enumerate(self._mesh.axes) if axis.is_time)
        if not self._parameters or self._layouts.schedule is None or times <= self._shared:
            return dict.fromkeys(self._coordinates, "")
        suffixes = self._suffixes(frozenset(range(len(self._mesh.axes))) - times)
        return {at: f"/position{suffix}" for at, suffix in suffixes.items()}

    def _lower_shards(self, node: Node) -> None:
        """Lower the parts of a tensor, as outputs: each is read from the first device that has it."""
        if self._coordinates != self._mesh.coordinates:
            what = "expected a step without local_shards, of which all devices' operations are needed"
            raise located(node, UnimplementedError(f"{what}; got {node.name!r}"))
        (layout,) = self._layouts.inputs[node.name]
        position, none = self._layouts.position(node.name), Layout.replicated(self._mesh)
        refs = self._get(node.inputs[0], layout, position)
        shape = self._subgraph.spec(node.inputs[0]).shape or ()
        firsts: dict[str, Coordinate] = {}
        for at in self._mesh.coordinates:
            firsts.setdefault(str(layout.slices([d or 0 for d in shape], at)), at)
        self._names[node.name] = {}
        for index, (spec, at) in enumerate(zip(node.outputs, firsts.values(), strict=True)):
            attrs, device = {"T": spec.dtype}, self._home(node, at)
            name = self._emit.add(f"{node.name}/part", identity, [refs[at]], attrs, device, [spec], node)
            self._put_output(node, index, none, dict.fromkeys(self._mesh.coordinates, (name, 0)))
            self._names[node.name] = dict.fromkeys(self._mesh.coordinates, name)

    def _lower_owner(self, node: Node) -> None:
        """Lower a loop or branch: one for each group of coordinates that exchange something in it."""
        given, position = self._layouts.inputs[node.name], self._layouts.position(node.name)
        inputs = [self._get(ref, layout, position) for ref, layout in zip(node.inputs, given, strict=True)]
        outputs = [self._layouts.outputs[node.name, i] for i in range(len(node.outputs))]
        results = [given[0], *outputs] if node.op.name == "_Loop" else outputs
        owned = self._layouts.functions[node.name]
        functions = [
            _Lowering(layouts, self._links, self._own, owned).of_function(results) for layouts in owned
        ]
        self._moves_in_functions += [
            move._replace(path=((node.name, i), *move.path))
            for i, function in enumerate(functions)
            for move in function.moves
        ]
        suffixes = self._suffixes(frozenset())
        parts: list[dict[Coordinate, Ref]] = [{} for _ in outputs]
        names: dict[Coordinate, str] = {}
        for group in groups_of(functions, self._coordinates):
            at = group.members[0]
            named = node.replace(
                name=node.name + suffixes[at],
                controls=self._controls(node, group.members),
                device=self._home(node, at),
                attrs=_local_attributes(node),
            )
            owner = owner_of(
                named, functions, inputs, group, lambda k, at: _local(node.outputs[k], outputs[k], at)
            )
            self._emit.nodes[named.name] = owner.node
            names |= dict.fromkeys(group.members, named.name)
            for found, refs in zip(parts, owner.outputs, strict=True):
                found |= {at: self._at_home(ref, self._home(node, at), named) for at, ref in refs.items()}
        self._names[node.name] = names
        for index, layout in enumerate(outputs):
            self._put_output(node, index, layout, parts[index])

    def _at_home(self, ref: Ref, device: str, owner: Node) -> Ref:
        """The output ``ref`` of a loop or branch on ``device``, to which `split` moves it."""
        spec = self._emit.nodes[owner.name].outputs[ref[1]]
        if device == owner.device:
            return ref
        name = self._emit.add(
            f"{owner.name}/{ref[1]}", identity, [ref], {"T": spec.dtype}, device, [spec], owner
        )
        return name, 0

    def _computed(self, node: Node, outputs: Sequence[Layout]) -> Sequence[Layout]:
        """The layouts in which ``node`` itself gives ``outputs``: a variable's value, as it is stored."""
        value = self._layouts.values.get((node.name, 0))
        if value is not None:
            return [value.stored]
        if node.op is relayout_op:
            return self._layouts.inputs[node.name]
        return outputs

    def _known_shape(self, node: Node, ref: Ref, layout: Layout) -> tuple[int, ...] | None:
        """The shape of an assigned value, which is the variable's, where its own is unknown."""
        shape = self._subgraph.spec(ref).shape
        if shape is None or None in shape:
            handle = self._layouts.handles.get(node.inputs[0])
            return None if layout.is_replicated or handle is None else tuple(d or 0 for d in handle.shape)
        return None

    def _emit_at(
        self,
        node: Node,
        inputs: Sequence[Layout],
        outputs: Sequence[Layout],
        local: Local,
        at: Coordinate,
        is_mean: bool,
    ) -> None:
        if node.op.effect is Effect.HANDLE:
            node = node.replace(attrs=attributes_at(node, outputs[0], at))
        elif node.op is rows_of_variable_op:
            shape = [d or 0 for d in self._layouts.handles[node.name, 0].shape]
            part = outputs[0].slices(shape, at)[0]
            node = node.replace(attrs={"begin": part.start, "end": part.stop})
        if node.op.effect in (Effect.READ, Effect.WRITE):
            rows = own_rows(inputs[0], self._layouts.handles[node.inputs[0]].shape, at)
            if rows is not None and node.op is resource_gather:
                emit_sparse_read(self._emit, node, local, rows)
                return
            if rows is not None and any(argument.name == "indices" for argument in node.op.inputs):
                emit_sparse_update(self._emit, node, local, rows)
                return
        if is_mean:
            counted = self._subgraph.spec(node.inputs[0]).shape or ()
            self._emit.count_of[node.name] = math.prod(d or 0 for d in counted)
            emit_local(self._emit, node, local, True)
        elif node.op is relayout_op:
            home = self._home(node, at)
            op = identity if local.device == home else _transfer(home)
            emit_local(self._emit, node.replace(op=op, attrs=_of_identity(node)), local, False)
        else:
            emit_local(self._emit, node, local, False)

    # --- nodes that run once

    def _lower_single(self, node: Node) -> None:
        none = Layout.replicated(self._mesh)
        position = self._layouts.position(node.name)
        inputs = tuple(self._get(ref, none, position)[self._first] for ref in node.inputs)
        device = node.device or self._device(node, self._first)
        self._emit.nodes[node.name] = node.replace(
            inputs=inputs,
            controls=self._controls(node, self._coordinates),
            attrs=_local_attributes(node),
            device=device,
        )
        self._names[node.name] = dict.fromkeys(self._coordinates, node.name)
        self._put(node, [none] * len(node.outputs))


def _transfer(device: str) -> OpDef[Tensor]:
    """The operation that brings a tensor from host to ``device`` or back. What a CPU receives of another is
    the sender's memory, so it is copied.
    """
    return deep_copy_op if parse_device(device).device_type == "CPU" else identity


def _locals(
    specs: Sequence[TensorSpec], layouts: Sequence[Layout], coordinate: Coordinate
) -> tuple[TensorSpec, ...]:
    """The part of each tensor, in its layout, that ``coordinate`` has."""
    return tuple([_local(spec, layout, coordinate) for spec, layout in zip(specs, layouts, strict=True)])


@functools.lru_cache(8192)
def _local(spec: TensorSpec, layout: Layout, coordinate: Coordinate) -> TensorSpec:
    """The part of a tensor that ``coordinate`` has."""
    if layout.is_replicated or not spec.shape or spec.dtype is dtypes.resource:
        return spec
    sizes = layout.local_shape([d or 0 for d in spec.shape], coordinate)
    known = [None if d is None else n for d, n in zip(spec.shape, sizes, strict=True)]
    return TensorSpec(spec.dtype, tuple(known))


def _is_reduction(node: Node) -> bool:
    """Whether ``node`` brings a gradient to the parts of its variable."""
    return node.op is relayout_op and UNIT in node.attrs


def _local_attributes(node: Node) -> dict[str, Any]:
    """The attrs of ``node`` but for those of the global graph only; by units, collectives are joined."""
    return {**without_layout(node), **_unit_of(node)}


def _of_identity(node: Node) -> dict[str, Any]:
    return {"T": node.outputs[0].dtype, **_unit_of(node)}


def _unit_of(node: Node) -> dict[str, Any]:
    return {UNIT: node.attrs[UNIT]} if UNIT in node.attrs else {}
