"""Propagation: a layout for every tensor of a step, from those of variables, inputs and Relayout operations.

One sweep in topological order; `call_layouts` has the rules for a single operation, of which equal calls, as
in equal blocks, share the result. An operation of which a dimension is cut that must be whole gives way to
its form, if it has one.

What is sharded is not gathered to save bytes, and what is replicated is not cut unless the script says so:
costs would turn data parallelism into model parallelism, since gathering a small batch takes fewer bytes than
reducing a large gradient.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import NamedTuple, final

import numpy as np

from flowrt import dtypes
from flowrt.dtypes import INEXACT
from flowrt.errors import InvalidArgumentError, UnimplementedError
from flowrt.graph.construction.constant import const
from flowrt.graph.effects import is_stateful
from flowrt.graph.evaluate import located
from flowrt.graph.layouts.attributes import (
    HOST,
    MESH,
    SCHEDULE,
    NodeLayouts,
    attributes_of,
    layouts_of,
    mesh_of,
    summed_of,
)
from flowrt.graph.layouts.derived_rules import arguments_of, is_view, rule_of
from flowrt.graph.layouts.layout import REPLICATED, Layout, Partial, Placement, Replicate, Shard
from flowrt.graph.layouts.mesh import Mesh
from flowrt.graph.layouts.sharding_rule import Dims, ShardingRule
from flowrt.graph.node import Node, Ref, Subgraph, TensorSpec, owned_subgraphs
from flowrt.graph.op_def import Effect
from flowrt.graph.ops.base.filling import zeros_like_op
from flowrt.graph.ops.base.identities import cast_op, ensure_shape_op, local_shards_op, relayout_op
from flowrt.graph.ops.state.variable_ops import read_variable_op, resource_gather, rows_of_variable_op
from flowrt.graph.partial_value import partial_value
from flowrt.graph.passes.layouts.call_layouts import Call, CallLayouts, layouts_of_call
from flowrt.graph.passes.layouts.gather_again import with_later_gathers
from flowrt.graph.passes.layouts.propagate_functions import layouts_of_functions
from flowrt.graph.passes.layouts.sharded_forms import form_of
from flowrt.graph.passes.layouts.stages.assign_stages import assign_stages, check_order
from flowrt.graph.passes.layouts.step_layouts import (
    Gather,
    Handle,
    Layouts,
    ListsDifferError,
    Parameter,
    Unsized,
    check_list,
)
from flowrt.graph.passes.layouts.wanted_layouts import can_be_drawn, made_axes, wanted_layouts
from flowrt.graph.pipeline.actions import Schedule
from flowrt.graph.pipeline.mesh_schedule import schedule_on
from flowrt.graph.precision import SUMS_FIRST
from flowrt.graph.shapes import Shape, format_shape, is_static


def propagate(subgraph: Subgraph, mesh: Mesh) -> Layouts:
    """The layouts of ``subgraph``, with inferred and folded shapes, over ``mesh``.

    Lists of tensors are in parts as their elements are, unless two readers want one list in different
    layouts: then each coordinate has all lists whole.

    Raises `InvalidArgumentError` for a layout that does not fit its tensor, and for variables with different
    layouts in one update.
    """
    found = _of_step(subgraph, mesh)
    step = with_later_gathers(found)
    return found if step is found.subgraph else _of_step(step, mesh)


def _of_step(subgraph: Subgraph, mesh: Mesh) -> Layouts:
    schedule = _schedule_of(subgraph, mesh)
    stages: Mapping[str, int] = {}
    if schedule is not None:
        stages = assign_stages(subgraph)
        check_order(subgraph, stages)
    start = _Start(subgraph, mesh, True, {}, schedule, stages)
    try:
        return _propagated(start)
    except ListsDifferError:
        return _propagated(start._replace(are_lists_cut=False))


def _schedule_of(subgraph: Subgraph, mesh: Mesh) -> Schedule | None:
    if mesh.stages is None:
        return None
    found = {node.attrs[SCHEDULE]: node for node in subgraph if SCHEDULE in node.attrs}
    if len(found) > 1:
        (one, first), (other, second) = list(found.items())[:2]
        raise located(
            second,
            UnimplementedError(
                f"expected one schedule of a step; got {other!r} of {second.name!r} and {one!r} of "
                f"{first.name!r}"
            ),
        )
    return schedule_on(mesh, *found)


class _Start(NamedTuple):
    """The given facts of a step or a function."""

    subgraph: Subgraph
    mesh: Mesh
    are_lists_cut: bool
    parameters: Mapping[str, Parameter]
    schedule: Schedule | None
    stages: Mapping[str, int]


def _propagated(start: _Start) -> Layouts:
    """The layouts of a step or function: once more if draws are to be made in their readers' layouts."""
    found = _Propagation(start, {}).run()
    wanted = wanted_layouts(found)
    return _Propagation(start, wanted).run() if wanted else found


def _without_turns_of_one(layout: Layout, shape: Shape) -> Layout:
    """``layout`` without turns for a dimension of 1, as of a batch of one row: only one would have anything
    to do, and the gradient of what may be broadcast is the sum over such a dimension, which is of all turns.
    """
    placements = [
        REPLICATED if axis.is_time and isinstance(p, Shard) and shape and shape[p.dim] == 1 else p
        for axis, p in zip(layout.mesh.axes, layout.placements, strict=True)
    ]
    return Layout(layout.mesh, placements)


_ONCE = (dtypes.string, dtypes.resource)
"""Types of tensors: a node that gives one runs once."""


@final
class _Propagation:
    def __init__(self, start: _Start, wanted: Mapping[str, Layout]) -> None:
        subgraph, mesh, self._are_lists_cut, self._parameters, schedule, stages = start
        self._start, self._given, self._mesh, self._wanted = start, subgraph, mesh, wanted
        self._nodes: dict[str, Node] = {}
        self._subgraph = subgraph.replace(nodes=self._nodes)
        """The nodes so far, forms among them."""
        self._none = Layout.replicated(mesh)
        self._found = Layouts(mesh, subgraph, schedule=schedule, stages=dict(stages))
        self._refs: dict[Ref, Ref] = {}
        """The outputs of forms by those that they replace."""
        self._ends: dict[str, tuple[str, ...]] = {}
        """The nodes to wait for in place of a replaced one."""
        self._choices: dict[Call, CallLayouts] = {}
        self._readers = Counter(ref for node in subgraph for ref in set(node.inputs))
        self._readers.update(subgraph.fetches)
        checks = Counter(node.inputs[0] for node in subgraph if node.op is ensure_shape_op)
        self._checked = {ref for ref, count in checks.items() if count == self._readers[ref]}
        """Tensors that are read by checks of their shape alone."""

    def run(self) -> Layouts:
        for node in self._given:
            self._add(node)
        if self._ends:
            self._found.subgraph = self._subgraph.replace(
                fetches=tuple(self._refs.get(ref, ref) for ref in self._given.fetches),
                targets=tuple(end for name in self._given.targets for end in self._ends.get(name, (name,))),
            )
        return self._found

    def _add(self, node: Node) -> None:
        node = node.redirected(self._refs, self._ends)
        self._nodes[node.name] = node
        self._visit(node)
        if is_zero(node):
            self._found.free.add((node.name, 0))

    def _visit(self, node: Node) -> None:
        if node.name in self._parameters:
            self._visit_parameter(node, self._parameters[node.name])
        elif node.op.effect is Effect.HANDLE and MESH in node.attrs:
            layouts = layouts_of(node.attrs, self._mesh) or NodeLayouts(self._none, self._none)
            self._check(node, layouts.stored, node.attrs["shape"])
            self._found.handles[node.name, 0] = Handle(
                *layouts, node.attrs["shape"], HOST in node.attrs, summed_of(node.attrs, self._mesh)
            )
            self._note(node, (), [layouts.stored])
        elif self._is_of_variable(node):
            (self._visit_rows if node.op is rows_of_variable_op else self._visit_access)(node)
        elif node.op.effect is Effect.NESTED and (self._is_in_parts(node) or not self._runs_once(node)):
            self._visit_functions(node)
        elif self._has_whole_list(node):
            self._note(node, [self._none] * len(node.inputs), [self._none] * len(node.outputs))
        elif node.name in self._wanted and made_axes(node, self._wanted[node.name]):
            self._replace_maker(node, self._wanted[node.name])
        elif node.name in self._wanted:
            self._note(node, [self._none] * len(node.inputs), [self._wanted[node.name]])
        elif self._runs_once(node):
            self._found.single.add(node.name)
            self._note(node, [self._none] * len(node.inputs), self._seeds(node))
            self._note_gathers(node)
        elif self._narrows_variable(node):
            handle = self._found.values[node.name, 0] = self._found.values[node.inputs[0]]
            self._note(node, [handle.stored], [handle.used])
            self._note_summed(node, [handle.summed])
        elif node.op is relayout_op:
            self._note(node, [self._seed(node, node.outputs[0])], [self._seed(node, node.outputs[0])])
        elif node.op is local_shards_op:
            seed = self._seed(node, self._subgraph.spec(node.inputs[0]))
            self._note(node, [seed], [self._none] * len(node.outputs))
        else:
            self._choose(node)

    def _note(self, node: Node, inputs: Sequence[Layout], outputs: Sequence[Layout]) -> None:
        for ref, wanted in zip(node.inputs, inputs, strict=False):
            check_list(self._subgraph.spec(ref), self._found, ref, wanted)
        self._found.inputs[node.name] = tuple(inputs)
        for index, layout in enumerate(outputs):
            self._found.outputs[node.name, index] = layout

    def _has_whole_list(self, node: Node) -> bool:
        """Whether ``node`` begins a list, or works on one that each coordinate has whole."""
        if node.op.lists is not None and node.op.lists.begins:
            return True
        specs = [*node.outputs, *map(self._subgraph.spec, node.inputs)]
        return not self._are_lists_cut and any(spec.dtype is dtypes.variant for spec in specs)

    def _seeds(self, node: Node) -> list[Layout]:
        """The layouts of the outputs of ``node``, which runs once. Of an input with a shape that is checked,
        the result of the check is cut: of that, more sizes are known.
        """
        maker = self._nodes[node.inputs[0][0]] if node.op is ensure_shape_op else node
        seeded = maker if maker.name in self._found.single else node
        return [
            self._none if (node.name, index) in self._checked else self._seed(seeded, spec)
            for index, spec in enumerate(node.outputs)
        ]

    def _seed(self, node: Node, spec: TensorSpec) -> Layout:
        """The layout that the script gave to an output of ``node``; a scalar among inputs has none."""
        layouts = layouts_of(node.attrs, self._mesh)
        if layouts is None or spec.shape == ():
            return self._none
        is_asked_here = node.op in (relayout_op, local_shards_op)
        used = layouts.used if is_asked_here else self._sized(node, layouts.used, spec)
        self._check(node, used, spec.shape)
        return used if is_asked_here or self._mesh.stages is None else _without_turns_of_one(used, spec.shape)

    def _sized(self, node: Node, layout: Layout, spec: TensorSpec) -> Layout:
        """``layout`` without cuts of dimensions of unknown size, such as the last batch of a dataset."""

        def is_known(placement: Placement) -> bool:
            if not isinstance(placement, Shard):
                return True
            return spec.shape is not None and (
                placement.dim >= len(spec.shape) or spec.shape[placement.dim] is not None
            )

        pairs = [*zip(self._mesh.axes, layout.placements, strict=True)]
        if any(axis.size > 1 and not is_known(placement) for axis, placement in pairs):
            self._found.unsized.append(Unsized(node.name, node.op.name, str(node.source or "")))
        return Layout(self._mesh, [p if is_known(p) else REPLICATED for p in layout.placements])

    def _check(self, node: Node, layout: Layout, shape: Shape) -> None:
        if layout.is_replicated:
            return
        where = f"{node.op.name} {node.name!r}"
        layout.check_rank(0 if shape is None else len(shape), where)
        dims = [p.dim for p in layout.placements if isinstance(p, Shard)]
        if any(shape[dim] is None for dim in dims):  # type: ignore[index]
            sizes = format_shape(shape)
            raise InvalidArgumentError(
                f"{where}: expected a known size of each sharded dimension; got {sizes}",
                source=None if node.source is None else str(node.source),
            )

    # --- functions

    def _is_in_parts(self, node: Node) -> bool:
        """Whether a part of a loop or branch is computed on each coordinate: something in it has a layout."""
        found = self._found
        if any(ref in found.handles or not found.outputs[ref].is_replicated for ref in node.inputs):
            return True
        return any(mesh_of(function) is not None for function in owned_subgraphs(node.attrs))

    def _visit_functions(self, node: Node) -> None:
        functions = owned_subgraphs(node.attrs)
        parameters = zip(*[function.feeds for function in functions], strict=True)
        arguments = [
            self._argument(ref, [f.nodes[name].outputs[0] for f, name in zip(functions, names, strict=True)])
            for ref, names in zip(node.inputs[1:], parameters, strict=True)
        ]
        found = layouts_of_functions(node, arguments, functools.partial(self._of_function, node.name))
        self._found.functions[node.name] = found.functions
        self._found.gathers += [gather for function in found.functions for gather in function.gathers]
        self._found.unsized += [each for function in found.functions for each in function.unsized]
        self._note(node, [self._none, *found.parameters], found.results)

    def _argument(self, ref: Ref, specs: Sequence[TensorSpec]) -> Parameter:
        """``ref`` as the parameter that functions declare as ``specs``."""
        handle = self._found.handles.get(ref)
        may_cut = handle is None and all(self._is_cut(spec) and is_static(spec.shape) for spec in specs)
        have = self._found.outputs[ref] if may_cut or handle else self._none
        summed = [REPLICATED if isinstance(p, Partial) else p for p in have.placements]
        return Parameter(Layout(self._mesh, summed), handle, may_cut, ref in self._found.free)

    def _of_function(self, owner: str, function: Subgraph, parameters: Sequence[Parameter]) -> Layouts:
        given = dict(zip(function.feeds, parameters, strict=True))
        stage = self._found.stages.get(owner)
        stages = {} if stage is None else {node.name: stage for node in function}
        return _propagated(self._start._replace(subgraph=function, parameters=given, stages=stages))

    def _visit_parameter(self, node: Node, given: Parameter) -> None:
        if given.handle is not None:
            self._found.handles[node.name, 0] = given.handle
        elif not given.may_cut and node.outputs[0].dtype is not dtypes.variant:
            self._found.single.add(node.name)
        elif given.is_free:
            self._found.free.add((node.name, 0))
        self._note(node, (), [given.layout])

    # --- variables

    def _is_of_variable(self, node: Node) -> bool:
        """Whether ``node`` reads or writes a variable over the mesh, or names rows of it."""
        is_access = node.op.effect in (Effect.READ, Effect.WRITE) or node.op is rows_of_variable_op
        return is_access and bool(node.inputs) and node.inputs[0] in self._found.handles

    def _visit_rows(self, node: Node) -> None:
        whole, rows = self._found.handles[node.inputs[0]], layouts_of(node.attrs, self._mesh)
        assert rows is not None
        self._found.handles[node.name, 0] = whole._replace(stored=rows.stored)
        self._note(node, [whole.stored], [rows.stored])

    def _visit_access(self, node: Node) -> None:
        handle = self._found.handles[node.inputs[0]]
        used, stored, shape, _, summed = handle
        arguments = arguments_of(node.op, node.attrs)
        inputs = [
            self._of_update(node, ref, argument.name, stored, shape)
            for ref, argument in zip(node.inputs, arguments, strict=True)
        ]
        if node.op.effect is Effect.WRITE:
            self._note(node, inputs, [self._none] * len(node.outputs))
        elif node.op is resource_gather:
            self._visit_gather(node, stored, inputs)
        else:
            whole = (
                not node.outputs or node.outputs[0].dtype is dtypes.bool_ or node.outputs[0].shape != shape
            )
            self._note(node, inputs, [self._none if whole else used])
            if node.op is read_variable_op:
                self._found.values[node.name, 0] = handle
        if summed is not None and node.op in (read_variable_op, resource_gather):
            self._found.summed[node.name, 0] = summed

    def _of_update(
        self, node: Node, ref: Ref, name: str, stored: Layout, shape: Sequence[int | None]
    ) -> Layout:
        """The layout of an input of an access to a variable of ``shape``."""
        spec = self._subgraph.spec(ref)
        if spec.dtype is dtypes.resource:
            own = self._found.outputs[ref]
            if own is not stored and name != "rows":
                raise InvalidArgumentError(
                    f"{node.op.name} {node.name!r}: expected variables with one layout; got {stored} and "
                    f"{own} of {ref[0]!r}"
                )
            return own
        return layout_in_update(node, name, spec, stored, shape)

    def _visit_gather(self, node: Node, stored: Layout, inputs: list[Layout]) -> None:
        """A sparse read: of rows that are sharded each coordinate has its own, and zeros elsewhere."""
        rank = len(self._subgraph.spec(node.inputs[1]).shape or ())
        indices = self._found.outputs[node.inputs[1]]
        wanted: list[Placement] = []
        placements: list[Placement] = []
        for axis, placement in enumerate(stored.placements):
            given = indices.placements[axis]
            if isinstance(placement, Shard):
                wanted.append(REPLICATED)
                rows = placement.dim == 0
                placements.append(Partial() if rows else Shard(rank + placement.dim - 1))
            else:
                kept = given if isinstance(given, Shard) else REPLICATED
                wanted.append(kept)
                placements.append(kept)
        self._note(node, [inputs[0], Layout(self._mesh, wanted)], [Layout(self._mesh, placements)])

    def _narrows_variable(self, node: Node) -> bool:
        """Whether ``node`` casts the value of a variable so that fewer bytes have to move."""
        if node.op is not cast_op or node.inputs[0] not in self._found.values:
            return False
        before, after = self._subgraph.spec(node.inputs[0]).dtype, node.outputs[0].dtype
        return after.size < before.size

    # --- nodes that run once

    def _is_drawn_in_turns(self, node: Node) -> bool:
        """Whether ``node`` is a draw in a loop or branch of a pipeline. The turns of these do not wait for
        each other, so each makes the draw.
        """
        is_inside = bool(self._parameters) and self._start.schedule is not None
        return is_inside and can_be_drawn(node) and is_static(node.outputs[0].shape)

    def _runs_once(self, node: Node) -> bool:
        if self._is_drawn_in_turns(node):
            return False
        if node.op.effect is not Effect.PURE and (node.op.effect is not Effect.NESTED or is_stateful(node)):
            return True
        if node.op.state is not None or any(spec.dtype in _ONCE for spec in node.outputs):
            return True
        if any(spec.dtype is dtypes.variant for spec in node.outputs):
            return False
        if not node.inputs or not all(is_static(spec.shape) for spec in node.outputs):
            return bool(node.inputs)
        return self._is_fed_by_single(node) and all(
            self._found.outputs[ref].is_replicated for ref in node.inputs
        )

    def _is_cut(self, spec: TensorSpec) -> bool:
        """Whether a tensor of this dtype may be in parts."""
        if spec.dtype is dtypes.variant:
            return self._are_lists_cut
        return spec.dtype not in _ONCE

    def _is_fed_by_single(self, node: Node) -> bool:
        """Whether all inputs but constants come from nodes that run once."""
        producers = [self._subgraph.nodes[name] for name, _ in node.inputs]
        known = [p.name in self._found.single for p in producers if p.op.name != "Const"]
        return bool(known) and all(known)

    # --- pure operations

    def _choose(self, node: Node) -> None:
        have = [self._found.outputs[ref] for ref in node.inputs]
        if all(layout.is_replicated for layout in have):
            self._note(node, have, [self._none] * len(node.outputs))
            return
        specs = [self._subgraph.spec(ref) for ref in node.inputs]
        rule = rule_of(
            node.op,
            node.attrs,
            specs,
            node.outputs,
            lambda i: partial_value(self._subgraph.nodes.__getitem__, node.inputs[i]),
        )
        if rule is None:
            self._note(node, [self._none] * len(node.inputs), [self._none] * len(node.outputs))
            self._note_gathers(node)
            return
        is_only_reader = [self._readers[ref] == 1 for ref in node.inputs]
        is_free = [ref in self._found.free for ref in node.inputs]
        summed = [self._found.summed.get(ref) for ref in node.inputs]
        is_sent = [self._found.position(ref[0]) != self._found.position(node.name) for ref in node.inputs]
        inputs, outputs = self._chosen(
            Call(
                node.op,
                rule,
                tuple(specs),
                tuple(node.outputs),
                tuple(not argument.on_host for argument in arguments_of(node.op, node.attrs)),
                keeps_sums(node, specs),
                tuple(have),
                tuple(is_only_reader),
                tuple(is_free),
                tuple(summed),
                tuple(is_sent),
            )
        )
        if node.op.sharded is not None and self._lost(node, inputs) and self._replace(node, specs):
            return
        self._note(node, inputs, outputs)
        self._note_gathers(node, rule)
        self._note_summed(node, summed)

    def _chosen(self, call: Call) -> CallLayouts:
        """The layouts of the inputs and outputs of ``call``, which equal ones, as in equal blocks, share."""
        found = self._choices.get(call)
        if found is None:
            found = self._choices[call] = layouts_of_call(call, self._mesh)
        return found

    def _note_summed(self, node: Node, summed: Sequence[Layout | None]) -> None:
        """Note that the output of ``node`` is a sum that a variable asks for in parts, or its value."""
        layout = next(filter(None, summed), None)
        if layout is None or len(node.outputs) != 1:
            return
        made = self._found.outputs[node.name, 0]
        is_sum = any(made.placements[axis] == Partial() for axis in _cut_axes(layout))
        if is_sum or len(node.inputs) == 1:
            self._found.summed[node.name, 0] = layout

    def _note_gathers(self, node: Node, rule: ShardingRule | None = None) -> None:
        if node.op.effect is Effect.WRITE:
            return
        for ref in self._lost(node, self._found.inputs[node.name]):
            layout, spec = self._found.outputs[ref], self._subgraph.spec(ref)
            if is_view(node.op) and self._is_summed_in_parts(layout):
                self._found.joined.append((node.name, ref))
            else:
                dims = rule.inputs[node.inputs.index(ref)] if rule is not None else ()
                reason = _uneven_groups(rule, dims, layout) if rule is not None else ""
                self._found.gathers.append(Gather.of(node, ref, layout, spec, reason))

    def _is_summed_in_parts(self, layout: Layout) -> bool:
        """Whether ``layout`` has the cuts that a variable asks for between products."""
        return any(
            all(layout.placements[axis] == summed.placements[axis] for axis in _cut_axes(summed))
            for summed in set(self._found.summed.values())
        )

    def _lost(self, node: Node, inputs: Sequence[Layout]) -> list[Ref]:
        """The inputs that would be gathered for ``node`` to have them in the layouts ``inputs``."""
        return [
            ref
            for ref, wanted in zip(node.inputs, inputs, strict=True)
            if any(
                isinstance(p, Shard) and isinstance(w, Replicate)
                for p, w in zip(self._found.outputs[ref].placements, wanted.placements, strict=True)
            )
        ]

    def _replace_maker(self, node: Node, wanted: Layout) -> None:
        """Visit the form of ``node``, with the numbers of the dimension that it makes in parts."""
        axes = made_axes(node, wanted)
        placements = [Shard(0) if i in axes else REPLICATED for i in range(len(self._mesh.axes))]
        specs = [self._subgraph.spec(ref) for ref in node.inputs]
        self._replace(node, specs, attributes_of(Layout(self._mesh, placements)))

    def _replace(self, node: Node, specs: Sequence[TensorSpec], numbers: Mapping[str, str] = {}) -> bool:
        """Visit the form of ``node`` in its place; False if it has none. ``numbers``: the layout of those of
        a dimension that it makes.
        """
        read = [i for i in range(len(node.outputs)) if self._readers[node.name, i]]
        values = [partial_value(self._nodes.__getitem__, ref) for ref in node.inputs]
        form = form_of(node, specs, values, read or [0], numbers)
        if form is None:
            return False
        del self._nodes[node.name]
        self._readers.subtract(set(node.inputs))
        for each in form.nodes:
            self._readers.update(set(each.inputs))
        for i, ref in form.outputs.items():
            self._readers[ref] += self._readers[node.name, i]
        for each in form.nodes:
            if node.name in self._found.stages:
                self._found.stages[each.name] = self._found.stages[node.name]
            self._add(each)
        found = {(node.name, i): self._refs.get(ref, ref) for i, ref in form.outputs.items()}
        self._refs |= found
        self._ends[node.name] = tuple(dict.fromkeys(name for name, _ in found.values()))
        return True


def keeps_sums(node: Node, inputs: Sequence[TensorSpec]) -> bool:
    """Whether addends may be cast before they are added up: to a dtype that is not narrower."""
    specs = [*inputs, *node.outputs]
    is_narrower = node.op is cast_op and specs[1].dtype.size < specs[0].dtype.size
    return not is_narrower and SUMS_FIRST not in node.attrs


def layout_in_update(
    node: Node, argument: str, spec: TensorSpec, stored: Layout, shape: Sequence[int | None]
) -> Layout:
    """The layout of the input ``argument``, of ``spec``, of an access to a variable of ``shape`` that is kept
    as ``stored``.
    """
    none = Layout.replicated(stored.mesh)
    if spec.shape is not None and len(spec.shape) == 0:
        return none
    if "indices" in {each.name for each in node.op.inputs}:
        if argument == "indices" or spec.shape is None or len(spec.shape) != len(shape):
            return none
        return Layout(stored.mesh, [REPLICATED if p == Shard(0) else p for p in stored.placements])
    return stored


def _cut_axes(layout: Layout) -> list[int]:
    """The axes that shard a dimension."""
    return [axis for axis, placement in enumerate(layout.placements) if isinstance(placement, Shard)]


def _uneven_groups(rule: ShardingRule, dims: Dims, layout: Layout) -> str:
    """The reason that a dimension of several factors, such as heads, cannot be in the parts of ``layout``; or
    nothing.
    """
    for axis, placement in zip(layout.mesh.axes, layout.placements, strict=True):
        if isinstance(placement, Shard) and placement.dim < len(dims) and len(dims[placement.dim]) > 1:
            size = rule.factors[dims[placement.dim][0]].size
            if size is not None and size % axis.size:
                return f"{size} heads, or groups, on {axis.size} coordinates of {axis.name!r}"
    return ""


def is_zero(node: Node) -> bool:
    """Whether the output of ``node`` is the same in any layout: zeros, or a list without elements."""
    if node.op is const:
        return node.outputs[0].dtype in INEXACT and not np.any(node.attrs["value"])
    return node.op is zeros_like_op or (node.op.lists is not None and node.op.lists.begins)
