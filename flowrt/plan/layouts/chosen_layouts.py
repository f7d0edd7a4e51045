"""Choices of layouts as facts of a step, and as what a script can say.

A script gives layouts to variables and to its batch, and `propagate` finds the others from these. `seeds_of`
are the seeds that lead closest to chosen layouts: a variable is used as most of its readers want it, and the
batch is cut as most readers of inputs want them.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from flowrt import dtypes
from flowrt.distribute.strategies.layouts.layout_strategy import INPUTS
from flowrt.graph.effects import is_stateful
from flowrt.graph.layouts.attributes import ATTRIBUTES, attributes_of
from flowrt.graph.layouts.layout import REPLICATED, Entry, Layout, Partial, layout_of
from flowrt.graph.layouts.mesh import Mesh
from flowrt.graph.node import Node, Subgraph
from flowrt.graph.op_def import Effect
from flowrt.graph.ops.base.identities import cast_op
from flowrt.graph.ops.state.variable_ops import read_variable_op, resource_gather, var_handle_op
from flowrt.graph.passes.layouts.propagate_layouts import is_zero, propagate
from flowrt.graph.passes.layouts.step_layouts import Handle, Layouts
from flowrt.graph.passes.layouts.wanted_layouts import can_be_made_in_parts
from flowrt.plan.layouts.layout_choices import Choice, Part

Entries = Sequence[Entry]


class Seeds(NamedTuple):
    """Layouts as a script gives them, with an entry per dimension: ``variables`` by name, as
    `LayoutStrategy.variable_layouts` has them; ``stored``, of those that are kept in another layout; and the
    axes of the batch. Optimizer states are as their variables are kept.
    """

    variables: Mapping[str, Entries]
    stored: Mapping[str, Entries]
    batch: Entry


def layouts_of(step: Subgraph, mesh: Mesh, parts: Sequence[Part], chosen: Sequence[int]) -> Layouts:
    """The layouts of ``step`` with choice ``chosen[i]`` of ``parts[i]``."""
    found, none = Layouts(mesh, step), Layout.replicated(mesh)
    for part, number in zip(parts, chosen, strict=True):
        for name, (inputs, outputs) in zip(part.members, part.choices[number], strict=True):
            node = step.nodes[name]
            found.inputs[name] = inputs
            found.outputs |= {(name, i): layout for i, layout in enumerate(outputs)}
            if name in part.handles:
                stored = part.stored[number]
                found.handles[name, 0] = Handle(stored, stored, tuple(node.attrs["shape"]), False)
            elif part.handles and node.op in (read_variable_op, cast_op):
                stored = part.stored[number]
                found.values[name, 0] = Handle(stored, stored, tuple(node.outputs[0].shape or ()), False)
            elif not part.handles and _runs_once(node, outputs, none):
                found.single.add(name)
            if is_zero(node):
                found.free.add((name, 0))
    return found


def _runs_once(node: Node, outputs: Sequence[Layout], none: Layout) -> bool:
    """Whether ``node``, which does not access a variable, runs on one device only."""
    if can_be_made_in_parts(node):
        return node.op.effect is Effect.RANDOM and all(layout is none for layout in outputs)
    if node.op.effect in (Effect.READ, Effect.WRITE):
        return node.op is not resource_gather
    is_effect = node.op.effect is not Effect.PURE and (
        node.op.effect is not Effect.NESTED or is_stateful(node)
    )
    once = (dtypes.string, dtypes.resource)
    return is_effect or node.op.state is not None or any(spec.dtype in once for spec in node.outputs)


def numbers_of(layouts: Layouts, parts: Sequence[Part]) -> list[int]:
    """The choices of ``parts`` in which they have the layouts ``layouts``; the first, all whole, of parts
    that do not have these.
    """
    none, found = Layout.replicated(layouts.mesh), list[int]()
    for part in parts:
        nodes = [layouts.subgraph.nodes.get(name) for name in part.members]
        have = tuple(
            Choice(tuple(layouts.inputs[node.name]), tuple(_made(layouts, node, none)))
            for node in nodes
            if node is not None
        )
        found.append(part.choices.index(have) if have in part.choices else 0)
    return found


# --- as a script


def seeds_of(layouts: Layouts) -> Seeds:
    """The seeds that lead closest to ``layouts``."""
    step, mesh = layouts.subgraph, layouts.mesh
    variables, stored = dict[str, Entries](), dict[str, Entries]()
    uses = _uses(layouts)
    for name, handle in _named(layouts).items():
        used, rank = uses.get(name, handle.stored), len(handle.shape)
        variables[name] = entries_of(used, rank)
        if handle.stored is not used:
            stored[name] = entries_of(handle.stored, rank)
    axes = Counter[tuple[int, ...]]()
    for node in step:
        for ref, wanted in zip(node.inputs, layouts.inputs[node.name], strict=True):
            shape = step.spec(ref).shape
            if _is_input(step.nodes[ref[0]]) and shape:
                axes[wanted.axes_of(0)] += math.prod(size or 1 for size in shape)
    batch = max(axes, key=axes.__getitem__, default=())
    return Seeds(variables, stored, _entry([mesh.axes[axis].name for axis in batch]))


def _named(layouts: Layouts) -> dict[str, Handle]:
    """The variables that the step reads: others are states of these."""
    step = layouts.subgraph
    reads = {node.inputs[0] for node in step if node.op.effect is Effect.READ and node.inputs}
    return {ref[0]: handle for ref, handle in layouts.handles.items() if ref in reads}


def _uses(layouts: Layouts) -> dict[str, Layout]:
    """The layout in which most readers want each variable that is read."""
    step = layouts.subgraph
    handle_of = {ref: ref[0] for ref in layouts.handles}
    """The variable of which a tensor is the handle or the value."""
    wanted: dict[str, Counter[Layout]] = defaultdict(Counter)
    for node in step:
        for ref, layout in zip(node.inputs, layouts.inputs[node.name], strict=True):
            if ref in handle_of and (node.name, 0) in layouts.values:
                handle_of[node.name, 0] = handle_of[ref]
            elif ref in handle_of and ref not in layouts.handles:
                whole = [REPLICATED if isinstance(p, Partial) else p for p in layout.placements]
                wanted[handle_of[ref]][Layout(layouts.mesh, whole)] += 1
    return {name: max(counts, key=counts.__getitem__) for name, counts in wanted.items()}


def entries_of(layout: Layout, rank: int) -> Entries:
    """``layout`` with an entry for each of ``rank`` dimensions, as a script writes it.

    >>> mesh = Mesh([("dp", 2), ("tp", 2)])
    >>> entries_of(Layout(mesh, [Shard(1), Shard(1)]), 2)
    [None, ('dp', 'tp')]
    """
    names = [[layout.mesh.axes[axis].name for axis in layout.axes_of(dim)] for dim in range(rank)]
    return [_entry(axes) for axes in names]


def _entry(axes: Sequence[str]) -> Entry:
    return tuple(axes) if len(axes) > 1 else axes[0] if axes else None


def _is_input(node: Node) -> bool:
    """Whether a `LayoutStrategy` gives ``node`` the layout of the batch."""
    return node.op.name == "_Feed" or node.op.name in INPUTS


def propagated(step: Subgraph, mesh: Mesh, seeds: Seeds) -> Layouts:
    """The layouts that a session finds for ``step`` if a script gives ``seeds``."""
    return propagate(seeded(step, mesh, seeds), mesh)


def seeded(step: Subgraph, mesh: Mesh, seeds: Seeds) -> Subgraph:
    """``step`` with the attributes of ``seeds`` in place of those that it has."""
    none, kept = Layout.replicated(mesh), _kept(step, mesh, seeds)

    def with_seed(node: Node) -> Node:
        attrs = {key: value for key, value in node.attrs.items() if key not in ATTRIBUTES}
        if node.op is var_handle_op:
            stored = kept.get(node.name, none)
            given = seeds.variables.get(node.name)
            used = stored if given is None else layout_of(mesh, given)
            attrs |= attributes_of(used, stored)
        elif _is_input(node) and node.outputs[0].shape != ():
            attrs |= attributes_of(layout_of(mesh, [seeds.batch]))
        return node.replace(attrs=attrs)

    return step.mapped(with_seed)


def _kept(step: Subgraph, mesh: Mesh, seeds: Seeds) -> dict[str, Layout]:
    """The layouts in which variables are kept; states are as what is updated with them."""
    found = {
        name: layout_of(mesh, seeds.stored.get(name, entries)) for name, entries in seeds.variables.items()
    }
    for node in step:
        if node.op.effect is Effect.WRITE:
            handles = [name for name, _ in node.inputs if step.nodes[name].op is var_handle_op]
            known = [found[name] for name in handles if name in found]
            if known:
                found |= {name: known[0] for name in handles if name not in found}
    return found


def differences(chosen: Layouts, other: Layouts) -> tuple[str, ...]:
    """The nodes that do not have their tensors in the same layouts; those without a device's work do not
    count.
    """
    none = Layout.replicated(chosen.mesh)
    return tuple(
        node.name
        for node in chosen.subgraph
        if node.name not in chosen.single
        and node.op is not var_handle_op
        and node.inputs
        and (
            chosen.inputs[node.name] != other.inputs.get(node.name, ())
            or _made(chosen, node, none) != _made(other, node, none)
        )
    )


def _made(layouts: Layouts, node: Node, none: Layout) -> list[Layout]:
    value = layouts.values.get((node.name, 0))
    if value is not None:
        return [value.stored]
    return [layouts.outputs.get((node.name, i), none) for i in range(len(node.outputs))]
