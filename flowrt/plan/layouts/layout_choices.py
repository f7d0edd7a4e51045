"""The layouts that the nodes of a step can have over a mesh: what a search chooses from.

A node that has a sharding rule chooses, for each axis of the mesh: a factor that is cut; nothing, so that its
tensors are whole; or, if it is linear, sums that pass through it before they are added up. Variables choose
how they are stored; all that one update changes, such as a variable and its optimizer states, are stored
alike, and form one `Part` with the nodes that read and write them. A draw and a fill can be made in parts.
All other nodes are whole: loops, lists, strings, and what runs once.

These are all the choices that propagation has, for each node alone, but for the forms in place of an
operation of which a whole dimension is cut: see `flowrt.graph.passes.layouts.sharded_forms`.
"""

from __future__ import annotations

import functools
import itertools
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple, TypeAlias, final

from flowrt import dtypes
from flowrt.dtypes import INEXACT
from flowrt.graph.layouts.derived_rules import arguments_of, rule_of
from flowrt.graph.layouts.layout import REPLICATED, Layout, Partial, Placement, Shard
from flowrt.graph.layouts.mesh import Mesh
from flowrt.graph.layouts.sharding_rule import ShardingRule
from flowrt.graph.node import Node, Subgraph, TensorSpec
from flowrt.graph.op_def import LINEAR, Effect
from flowrt.graph.ops.base.identities import cast_op
from flowrt.graph.ops.state.variable_ops import read_variable_op, resource_gather, var_handle_op
from flowrt.graph.partial_value import partial_value
from flowrt.graph.passes.layouts.propagate_layouts import keeps_sums, layout_in_update
from flowrt.graph.passes.layouts.wanted_layouts import can_be_made_in_parts
from flowrt.graph.shapes import is_static


class Choice(NamedTuple):
    """The layouts in which a node needs its inputs, and those in which it computes its outputs."""

    inputs: tuple[Layout, ...]
    outputs: tuple[Layout, ...]


class Part(NamedTuple):
    """Nodes that choose together: each of ``choices`` has one `Choice` per member. ``handles`` are the
    variables among them, ``stored`` their layouts by choice.
    """

    members: tuple[str, ...]
    choices: tuple[tuple[Choice, ...], ...]
    handles: tuple[str, ...] = ()
    stored: tuple[Layout, ...] = ()


def parts_of(step: Subgraph, mesh: Mesh) -> list[Part]:
    """The parts of ``step``, which has static shapes, over ``mesh``, of axes of space; in the order of their
    first members. Every node is in one.
    """
    return _Parts(step, mesh).found()


Together: TypeAlias = Mapping[str, Sequence[str]]
"""The names of nodes that choose together, by the first of them."""


@final
class _Parts:
    def __init__(self, step: Subgraph, mesh: Mesh) -> None:
        self._step, self._mesh = step, mesh
        self._none = Layout.replicated(mesh)
        self._variables, self._consumers = _variables(step), step.consumers()

    def found(self) -> list[Part]:
        together = _accesses(self._step, self._variables)
        taken = {name for names in together.values() for name in names}
        parts: list[Part] = []
        for node in self._step:
            if node.name in together:
                parts.append(self._of_variables([self._step.nodes[n] for n in together[node.name]]))
            elif node.name not in taken:
                choices = dict.fromkeys(self._choices(node))
                parts.append(Part((node.name,), tuple((choice,) for choice in choices)))
        return parts

    # --- variables

    def _of_variables(self, members: Sequence[Node]) -> Part:
        shapes = {self._variables[node.name] for node in members if node.name in self._variables}
        can_cut = len(shapes) == 1 and all(map(self._can_be_of_parts, members))
        stored = list(_cuts(self._mesh, next(iter(shapes)))) if can_cut else [self._none]
        choices = tuple(tuple(self._access(node, layout) for node in members) for layout in stored)
        names = tuple(node.name for node in members)
        handles = tuple(name for name in names if name in self._variables)
        return Part(names, choices, handles, tuple(stored))

    def _can_be_of_parts(self, node: Node) -> bool:
        """Whether the variables that ``node``, or a reader of it, uses may be in parts."""
        if node.op is not var_handle_op:
            return node.op.effect is Effect.WRITE or node.op in (read_variable_op, cast_op)
        readers = [self._step.nodes[name] for name in self._consumers[node.name]]
        return all(
            each.op in (read_variable_op, resource_gather) or each.op.effect is Effect.WRITE
            for each in readers
        )

    def _access(self, node: Node, stored: Layout) -> Choice:
        """The layouts of ``node``, which is, reads or writes a variable that is kept as ``stored``."""
        if node.op is cast_op or not node.inputs:
            return Choice((stored,) * len(node.inputs), (stored,))
        shape = self._variables[node.inputs[0][0]]
        inputs = [
            stored
            if self._step.spec(ref).dtype is dtypes.resource
            else layout_in_update(node, argument.name, self._step.spec(ref), stored, shape)
            for ref, argument in zip(node.inputs, arguments_of(node.op, node.attrs), strict=True)
        ]
        made = stored if node.op is read_variable_op else self._none
        return Choice(tuple(inputs), (made,) * len(node.outputs))

    def _look_ups(self, node: Node) -> Iterator[Choice]:
        """Choices of a sparse read: of rows in parts each coordinate has its own, and zeros for others."""
        handle, indices = node.inputs[:2]
        rank = len(self._step.spec(indices).shape or ())
        for stored in _cuts(self._mesh, self._variables[handle[0]]):
            for given in _cuts(self._mesh, self._step.spec(indices).shape or ()):
                pairs = list(zip(stored.placements, given.placements, strict=True))
                if any(isinstance(kept, Shard) and isinstance(i, Shard) for kept, i in pairs):
                    continue
                made = [_looked_up(kept, i, rank) for kept, i in pairs]
                yield Choice((stored, given), (Layout(self._mesh, made),))

    # --- other nodes

    def _choices(self, node: Node) -> Iterable[Choice]:
        whole = Choice((self._none,) * len(node.inputs), (self._none,) * len(node.outputs))
        if node.op is resource_gather and node.inputs[0][0] in self._variables:
            return self._look_ups(node)
        specs = [self._step.spec(ref) for ref in node.inputs]
        if not _has_parts(node, specs):
            return [whole]
        if can_be_made_in_parts(node):
            made = _cuts(self._mesh, node.outputs[0].shape or ())
            return [Choice(whole.inputs, (layout,)) for layout in made]
        if node.op.effect is not Effect.PURE or node.op.state is not None or not node.inputs:
            return [whole]
        value = functools.partial(self._value, node)
        rule = rule_of(node.op, node.attrs, specs, node.outputs, value)
        return [whole] if rule is None else _by_rule(node, rule, specs, self._mesh)

    def _value(self, node: Node, index: int) -> object:
        return partial_value(self._step.nodes.__getitem__, node.inputs[index])


def _variables(step: Subgraph) -> dict[str, tuple[int, ...]]:
    """The shapes of the variables of ``step`` by the names of their handles."""
    shapes = {node.name: node.attrs["shape"] for node in step if node.op is var_handle_op}
    return {name: tuple(shape) for name, shape in shapes.items() if is_static(shape)}


def _accesses(step: Subgraph, variables: Mapping[str, object]) -> Together:
    """The variables that are stored alike, with the nodes that read and write them, by the first of them."""
    first = {name: name for name in variables}

    def found(name: str) -> str:
        while first[name] != name:
            name = first[name]
        return name

    reads: dict[str, str] = {}
    for node in step:
        handles = [found(name) for name, _ in node.inputs if name in variables]
        if node.op.effect is Effect.WRITE or node.op is read_variable_op:
            for other in handles:
                first[other] = handles[0]
            if handles and node.op is read_variable_op:
                reads[node.name] = handles[0]
    together: dict[str, list[str]] = defaultdict(list)
    for node in step:
        owner = node.name if node.name in variables else reads.get(node.name)
        if node.op.effect is Effect.WRITE and node.inputs and node.inputs[0][0] in variables:
            owner = node.inputs[0][0]
        elif _narrows(node, step, reads):
            owner = reads[node.inputs[0][0]]
        if owner is not None:
            together[found(owner)].append(node.name)
    return {names[0]: names for names in together.values()}


def _narrows(node: Node, step: Subgraph, reads: Mapping[str, str]) -> bool:
    """Whether ``node`` casts the value of a variable so that fewer bytes have to move."""
    if node.op is not cast_op or node.inputs[0][0] not in reads:
        return False
    return node.outputs[0].dtype.size < step.spec(node.inputs[0]).dtype.size


def _looked_up(stored: Placement, indices: Placement, rank: int) -> Placement:
    if isinstance(stored, Shard):
        return Partial() if stored.dim == 0 else Shard(rank + stored.dim - 1)
    return indices


def _cuts(mesh: Mesh, shape: Sequence[int | None]) -> Iterator[Layout]:
    """The layouts in which a tensor of ``shape`` is whole or in parts, none of them empty."""
    options: list[Placement] = [REPLICATED, *map(Shard, range(len(shape)))]
    for placements in itertools.product(options, repeat=len(mesh.axes)):
        layout = Layout(mesh, placements)
        sizes = layout.local_shape([size or 0 for size in shape], _last(mesh))
        if all(local or not whole for local, whole in zip(sizes, shape, strict=True)):
            yield layout


def _last(mesh: Mesh) -> tuple[int, ...]:
    """The coordinate with the smallest parts."""
    return mesh.coordinates[-1]


def _has_parts(node: Node, inputs: Sequence[TensorSpec]) -> bool:
    """Whether tensors of these types can be in parts."""
    every = [*inputs, *node.outputs]
    if any(spec.dtype in (dtypes.string, dtypes.resource, dtypes.variant) for spec in every):
        return False
    return all(is_static(spec.shape) for spec in every)


# --- the choices of a rule


class _Option(NamedTuple):
    """A choice on one axis: the placements of the inputs and outputs, and the factor that is cut."""

    inputs: Sequence[Placement]
    outputs: Sequence[Placement]
    factor: int | None = None


def _by_rule(node: Node, rule: ShardingRule, specs: Sequence[TensorSpec], mesh: Mesh) -> Iterator[Choice]:
    options = _options(node, rule, specs)
    for chosen in itertools.product(options, repeat=len(mesh.axes)):
        if _is_possible(rule, chosen, mesh):
            inputs = [
                Layout(mesh, placements) for placements in zip(*[o.inputs for o in chosen], strict=True)
            ]
            outputs = [
                Layout(mesh, placements) for placements in zip(*[o.outputs for o in chosen], strict=True)
            ]
            yield Choice(tuple(inputs), tuple(outputs))


def _options(node: Node, rule: ShardingRule, specs: Sequence[TensorSpec]) -> list[_Option]:
    whole = _Option([REPLICATED] * len(specs), [REPLICATED] * len(node.outputs))
    sums = [
        _Option(
            [Partial() if i in passing else REPLICATED for i in range(len(specs))],
            [Partial()] * len(node.outputs),
        )
        for passing in _passing_sums(node, specs)
    ]
    taken = {factor for dims in rule.inputs for dim in dims for factor in dim}
    return [whole, *[_Option(*rule.cut(factor), factor) for factor in sorted(taken)], *sums]


def _is_possible(rule: ShardingRule, chosen: Sequence[_Option], mesh: Mesh) -> bool:
    """Whether the operation can be done on the parts that ``chosen`` cut, none of them empty."""
    parts: dict[int, int] = defaultdict(lambda: 1)
    for option, axis in zip(chosen, mesh.axes, strict=True):
        if option.factor is not None:
            parts[option.factor] *= axis.size
            size = rule.factors[option.factor].size
            if not rule.may_cut(option.factor, parts[option.factor]) or (size or 0) < parts[option.factor]:
                return False
    return True


def _passing_sums(node: Node, specs: Sequence[TensorSpec]) -> list[frozenset[int]]:
    """The sets of inputs that may be addends, and make the outputs addends: all inputs of a linear operation,
    or one that it is linear in.
    """
    arguments = arguments_of(node.op, node.attrs)
    inputs = [i for i, argument in enumerate(arguments) if not argument.on_host]
    exact = {i for i in inputs if specs[i].dtype not in INEXACT}
    if any(spec.dtype not in INEXACT for spec in node.outputs) or not inputs:
        return []
    found = [frozenset(inputs)] if node.op.jvp is LINEAR and not exact else []
    if keeps_sums(node, specs):
        found += [frozenset([i]) for i in node.op.linear_in if i in inputs and i not in exact]
    return list(dict.fromkeys(found))
