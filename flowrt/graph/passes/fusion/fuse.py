"""Fusion: replaces groups of operations that one loop over elements can compute by one node each.

A group has a *domain*, the shape of most of its tensors. Its members are

  elementwise   of the domain's shape, or of a row value's: the domain without its last dimension, or with 1
  along rows    softmax and similar ops, which themselves reduce along the last dimension
  gathers       of rows from a matrix into the domain, with indices that are row values
  reductions    along the last dimension to a row value, which members may read; or over all other or all
                dimensions, or over all row values, with a result that leaves the group
  reshapes      of a row value to another shape of row values (expand_dims)

Groups are found by scheduling: the nodes are put into a new topological order in which the members of a group
are adjacent. Among the ready nodes, one that fits the open group comes next; if none does, the group is
closed and the first of the others opens a new one. The graph of groups is therefore always acyclic. Nodes
without cost (constants, feeds, variables and other views) are scheduled as early as possible.

The properties ``loop`` and ``reduction`` of an `OpDef` determine which operations can be members.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, final

from flowrt import dtypes
from flowrt.graph.node import Node, Ref, Subgraph, static_shape
from flowrt.graph.op_def import Effect
from flowrt.graph.op_facets import LoopPattern
from flowrt.graph.partial_value import as_host_value
from flowrt.graph.passes.fusion.group import Group, Level, Support, fused_op, fused_rows_op
from flowrt.graph.passes.fusion.loop_budget import within_budget
from flowrt.graph.shapes import is_static

MAX_MEMBERS = 64
"""A longer chain is split into groups; equal groups are compiled once."""

MAX_TENSORS = 24
"""Maximum number of a group's inputs: the loop keeps the address of each in a register, or nearly so."""

MAX_CLIMB = 3
"""Maximum distance of the upward search for the missing inputs of a candidate member."""

MIN_ALONE = 1 << 18
"""Minimum number of elements for which a single operation gets its own multithreaded loop. LeNet's step then
takes 0.97 of TensorFlow's time, and 1.10 with NumPy's relus and relu gradients.
"""

SUMS = frozenset({"sum", "mean"})
"""Reductions with partial results per thread: NumPy takes three times as long for 4 million floats."""

FUSED_DTYPES = frozenset({dtypes.bool_, dtypes.int32, dtypes.int64, dtypes.float32, dtypes.float64})


def fuse(subgraph: Subgraph, supports: Callable[[Group], Support], each: bool = False) -> Subgraph:
    """``subgraph`` with one node for each group of two or more operations, or of one that is worth a separate
    loop (with ``each``, all are). ``supports(group)`` returns the loop support for a node, given as a group
    of one.
    """
    return _Fuser(subgraph, supports, each).run()


@final
class _Open:
    """A group being filled. One with a single member may not become a group."""

    def __init__(self, domain: tuple[int, ...], each: bool) -> None:
        self.domain, self._each = domain, each
        self.members: list[Node] = []
        self.levels: dict[Ref, Level] = {}
        self.inputs: dict[Ref, None] = {}
        self.is_checked = False

    def add(self, node: Node, levels: Mapping[Ref, Level], inputs: Sequence[Ref]) -> None:
        self.members.append(node)
        self.inputs.update(dict.fromkeys(ref for ref in inputs if ref not in self.levels))
        self.levels.update(levels)

    @property
    def is_worth_it(self) -> bool:
        """Whether one call replaces several passes over the same memory."""
        if len(self.members) > 1:
            return True
        if self._each or not self.levels:
            return bool(self.levels)
        op = self.members[0].op
        if op.loop is None and op.reduction not in SUMS:  # NumPy finds a maximum as fast
            return False
        is_along_rows = op.loop is not None and op.loop.pattern is LoopPattern.ALONG_ROWS
        return is_along_rows or math.prod(self.domain) >= MIN_ALONE

    def level_of(self, shape: tuple[int, ...]) -> Level | None:
        """The role in the domain of a tensor of a shape: full, or by rows."""
        domain = self.domain
        if shape == domain:
            return Level.ELEMENT
        if len(domain) < 2 or domain[-1] == 1:
            return None
        if shape == (*domain[:-1], 1):
            return Level.ROW
        return Level.DROPPED if shape == domain[:-1] else None

    def close(self, subgraph: Subgraph, read: Collection[Ref]) -> Group:
        """The group; its outputs are the tensors that others ``read``."""
        constants = {
            ref: subgraph.nodes[ref[0]].attrs["value"]
            for member in self.members
            for ref in member.inputs
            if ref not in self.levels and ref not in self.inputs
        }
        inputs = {ref: subgraph.spec(ref) for ref in self.inputs}
        outputs = tuple([ref for ref in self.levels if ref in read])
        return Group(
            self.domain, tuple(self.members), constants, inputs, outputs, self.levels, self.is_checked
        )


def _costs_nothing(node: Node) -> bool:
    return node.op.name in ("Const", "_Feed") or node.op.effect is Effect.HANDLE or node.op.alias


@final
class _Fuser:
    def __init__(self, subgraph: Subgraph, supports: Callable[[Group], Support], each: bool) -> None:
        self._subgraph, self._supports, self._each = subgraph, supports, each
        self._nodes = list(subgraph)
        self._position = {node.name: i for i, node in enumerate(self._nodes)}
        self._consumers = subgraph.consumers()
        self._missing = {
            node.name: len({*[ref[0] for ref in node.inputs], *node.controls}) for node in self._nodes
        }
        self._ready = [self._position[name] for name, count in self._missing.items() if not count]
        self._placed: set[str] = set()
        self._support: dict[str, Support] = {}
        self._data: dict[str, list[Ref]] = {}
        self._groups: list[_Open] = []
        self._fetched = {*subgraph.fetches, *[(name, 0) for name in subgraph.targets]}

    def run(self) -> Subgraph:
        for node in self._nodes:
            if _costs_nothing(node) and not self._missing[node.name]:
                self._groups.append(self._grown_from(node))
        for node in self._nodes:  # to read a list costs nothing, and what reads the element can be together
            takes_list = len(node.outputs) > 1 and node.outputs[0].dtype is dtypes.variant
            if takes_list and not self._missing[node.name] and node.name not in self._placed:
                self._groups.append(self._grown_from(node))
        while self._ready:
            node = self._nodes[heapq.heappop(self._ready)]
            if node.name not in self._placed:
                self._groups.append(self._grown_from(node))
        if not any(group.is_worth_it for group in self._groups):
            return self._subgraph
        found = list(map(self._closed, self._groups))
        return _rebuilt(self._subgraph, within_budget(found, self._single))

    def _single(self, node: Node) -> Group | Node:
        """The node as a group of one, if possible."""
        single = self._alone(node, each=True)
        single.is_checked = self._support[node.name] is Support.CHECKED
        return self._closed(single)

    def _closed(self, group: _Open) -> Group | Node:
        """The group, or its single member if fusion is not worthwhile."""
        if not group.is_worth_it:
            return group.members[0]
        names = {member.name for member in group.members}
        readers = {user for name in names for user in self._consumers[name]} - names
        read = {ref for reader in readers for ref in self._subgraph.nodes[reader].inputs}
        return group.close(self._subgraph, self._fetched | read)

    def _grown_from(self, node: Node) -> _Open:
        """The group that ``node`` opens, or a group with only it."""
        group = _Open(self._domain_of(node), self._each)
        levels = self._levels(group, node) if self._may_be_member(node) else None
        names = self._add(group, node, levels or {})
        if levels is None:
            return group
        near = list(self._near(node, names))
        heapq.heapify(near)
        while near and len(group.members) < MAX_MEMBERS and len(group.inputs) < MAX_TENSORS:
            other = self._nodes[heapq.heappop(near)]
            if other.name in self._placed or self._missing[other.name] or not self._may_be_member(other):
                continue
            levels = self._levels(group, other)
            if levels is not None:
                for position in self._near(other, self._add(group, other, levels)):
                    heapq.heappush(near, position)
        return group

    def _add(self, group: _Open, node: Node, levels: Mapping[Ref, Level]) -> set[str]:
        """Add a member. Returns the nodes with tensors that are new to the group: the member, and producers
        of inputs that it is the first to read.
        """
        inputs = self._data_inputs(node)
        names = {node.name, *[ref[0] for ref in inputs if ref not in group.inputs]}
        group.add(node, levels, inputs)
        group.is_checked |= self._support.get(node.name) is Support.CHECKED
        self._placed.add(node.name)
        for name in self._consumers[node.name]:
            self._missing[name] -= 1
            if not self._missing[name]:
                heapq.heappush(self._ready, self._position[name])
        return names

    def _near(self, member: Node, names: Collection[str]) -> Iterator[int]:
        """Candidates: consumers of ``names``, and missing inputs of consumers of ``member``, so that a * b +
        c * d is one group although its products share nothing.
        """
        for name in names:
            for user in self._consumers[name]:
                yield from self._ready_for(user, MAX_CLIMB if name == member.name else 0)

    def _ready_for(self, name: str, climb: int) -> Iterator[int]:
        """The node if it is ready, else the ready nodes among its ancestors, up to ``climb`` levels."""
        if name in self._placed:
            return
        if not self._missing[name]:
            yield self._position[name]
        elif climb and self._may_be_member(node := self._subgraph.nodes[name]):
            for producer, _ in node.inputs:
                yield from self._ready_for(producer, climb - 1)

    # --- what a node is

    def _data_inputs(self, node: Node) -> list[Ref]:
        """Inputs of the node, without constants embedded in the loop: numbers, axes, shapes."""
        found = self._data.get(node.name)
        if found is None:
            found = [ref for ref, on_host in _inputs(node) if not (on_host or self._is_number(ref))]
            self._data[node.name] = found
        return found

    def _is_number(self, ref: Ref) -> bool:
        node = self._subgraph.nodes[ref[0]]
        return node.op.name == "Const" and not node.controls and node.attrs["value"].size == 1

    def _may_be_member(self, node: Node) -> bool:
        found = self._support.get(node.name)
        if found is None:
            found = self._support[node.name] = self._support_of(node)
        return found is not Support.NONE

    def _support_of(self, node: Node) -> Support:
        op, nodes = node.op, self._subgraph.nodes
        if op.effect is not Effect.PURE or (op.loop is None and op.reduction is None):
            return Support.NONE
        for ref, on_host in _inputs(node):
            if on_host and (nodes[ref[0]].op.name != "Const" or nodes[ref[0]].controls):
                return Support.NONE
        specs = [*map(self._subgraph.spec, self._data_inputs(node)), *node.outputs]
        if not all(spec.dtype in FUSED_DTYPES and is_static(spec.shape) for spec in specs):
            return Support.NONE
        if not all(math.prod(static_shape(spec)) for spec in specs):
            return Support.NONE
        if op.loop is not None and op.loop.pattern is LoopPattern.RESHAPE:
            return Support.FULL
        alone = self._alone(node, self._each)
        return self._supports(alone.close(self._subgraph, alone.levels)) if alone.levels else Support.NONE

    def _alone(self, node: Node, each: bool) -> _Open:
        """The node in a group of one, without levels if it does not fit there."""
        alone = _Open(self._domain_of(node), each)
        alone.add(node, self._levels(alone, node) or {}, self._data_inputs(node))
        return alone

    def _domain_of(self, node: Node) -> tuple[int, ...]:
        loop = node.op.loop
        along_rows = loop is not None and loop.pattern is LoopPattern.ALONG_ROWS
        reduces = node.op.reduction is not None or along_rows
        spec = self._subgraph.spec(node.inputs[0]) if reduces else node.outputs[0] if node.outputs else None
        return () if spec is None or not is_static(spec.shape) else spec.shape

    # --- roles of a node's tensors in a group

    def _levels(self, group: _Open, node: Node) -> Mapping[Ref, Level] | None:
        """The levels of the node's outputs as a member; None if it does not fit."""
        pattern = None if node.op.loop is None else node.op.loop.pattern
        match pattern:
            case None:
                level = self._level_of_reduction(group, node)
            case LoopPattern.ALONG_ROWS:
                return self._levels_along_rows(group, node)
            case LoopPattern.RESHAPE:
                level = self._level_of_reshape(group, node)
            case LoopPattern.GATHER:
                level = self._level_of_gather(group, node)
            case LoopPattern.ELEMENTWISE:
                level = self._level_of_elements(group, node)
        return None if level is None else {(node.name, i): level for i in range(len(node.outputs))}

    def _level_of_elements(self, group: _Open, node: Node) -> Level | None:
        level = group.level_of(static_shape(node.outputs[0]))
        if level is None:
            return None
        inside = [group.levels[ref] for ref in node.inputs if ref in group.levels]
        if level is Level.ELEMENT:
            fits = all(within in (Level.ELEMENT, Level.ROW) for within in inside)
        else:  # by rows: another tensor may have a row's shape by chance
            fits = bool(inside) and all(within is level for within in inside)
        return level if fits else None

    def _level_of_reshape(self, group: _Open, node: Node) -> Level | None:
        """Row values in another shape of row values."""
        if group.levels.get(node.inputs[0]) not in (Level.ROW, Level.DROPPED):
            return None
        level = group.level_of(static_shape(node.outputs[0]))
        return level if level in (Level.ROW, Level.DROPPED) else None

    def _levels_along_rows(self, group: _Open, node: Node) -> Mapping[Ref, Level] | None:
        refs = [*self._data_inputs(node), *[(node.name, i) for i in range(len(node.outputs))]]
        specs = [*map(self._subgraph.spec, self._data_inputs(node)), *node.outputs]
        if len(group.domain) < 2 or specs[0].shape != group.domain:
            return None
        levels: dict[Ref, Level] = {}
        for ref, spec in zip(refs, specs, strict=True):
            level = Level.ELEMENT if spec.shape == group.domain else Level.DROPPED
            is_one = spec.shape in (group.domain, group.domain[:-1])
            if not is_one or group.levels.get(ref, level) is not level:
                return None
            levels[ref] = level
        return {(node.name, i): levels[node.name, i] for i in range(len(node.outputs))}

    def _level_of_gather(self, group: _Open, node: Node) -> Level | None:
        """Rows of a matrix from outside the group; its rows have the length of the domain's."""
        matrix, numbers, axis = node.inputs
        shape = static_shape(self._subgraph.spec(matrix))
        is_outside = matrix not in group.levels and not self._is_number(matrix)
        if not is_outside or len(shape) != 2 or self._host_value(axis) not in (0, -2):
            return None
        if node.outputs[0].shape != group.domain or len(group.domain) < 2:
            return None
        is_row = group.levels.get(numbers, Level.DROPPED) is Level.DROPPED
        return Level.ELEMENT if is_row else None

    def _host_value(self, ref: Ref) -> Any:
        """Value of a constant: a number or a tuple of numbers."""
        return as_host_value(self._subgraph.nodes[ref[0]].attrs["value"])

    def _level_of_reduction(self, group: _Open, node: Node) -> Level | None:
        ref = node.inputs[0]
        shape = static_shape(self._subgraph.spec(ref))
        rank, within = len(shape), group.levels.get(ref, Level.ELEMENT)
        value = self._host_value(node.inputs[1])
        axes = {axis % rank for axis in (value if isinstance(value, tuple) else (value,))} if rank else set()
        is_sum = node.op.reduction in SUMS
        if within in (Level.ROW, Level.DROPPED):
            return Level.TOTAL if is_sum and len(axes) == rank else None
        if within is not Level.ELEMENT or shape != group.domain or not rank:
            return None
        if len(axes) == rank:
            return Level.TOTAL if is_sum else None
        if axes == {rank - 1} and group.domain[-1] > 1:
            return group.level_of(static_shape(node.outputs[0]))
        return Level.COLUMN_SUM if is_sum and axes == set(range(rank - 1)) else None


# --- the new subgraph


def _inputs(node: Node) -> Iterator[tuple[Ref, bool]]:
    """Each input, and whether it is a host input (axes, shapes)."""
    refs = iter(node.inputs)
    for argument in node.op.inputs:
        for _ in range(argument.length(node.attrs)):
            yield next(refs), argument.on_host


def _rebuilt(subgraph: Subgraph, found: Iterable[Group | Node]) -> Subgraph:
    """``subgraph`` with a node for each group."""
    names: dict[str, str] = {}
    refs: dict[Ref, Ref] = {}
    nodes: list[Node] = []
    for item in found:
        if isinstance(item, Node):
            nodes.append(item)
            continue
        nodes.append(_fused_node(item))
        names.update(dict.fromkeys([member.name for member in item.members], nodes[-1].name))
        refs.update({ref: (nodes[-1].name, i) for i, ref in enumerate(item.outputs)})
    return subgraph.replace(
        nodes={node.name: _redirected(node, names, refs) for node in nodes},
        fetches=tuple([refs.get(ref, ref) for ref in subgraph.fetches]),
        targets=tuple(dict.fromkeys([names.get(name, name) for name in subgraph.targets])),
    )


def _fused_node(group: Group) -> Node:
    last, members = group.members[-1], {member.name for member in group.members}
    outputs = group.output_specs
    controls = dict.fromkeys(name for m in group.members for name in m.controls if name not in members)
    is_elementwise = all(map(_is_elementwise, group.members)) and not group.is_checked
    op = fused_op if is_elementwise else fused_rows_op
    kinds = {"Tin": [spec.dtype for spec in group.inputs.values()], "Tout": [spec.dtype for spec in outputs]}
    attrs = {"group": group, **kinds}
    return last.beside(last.name, op, tuple(group.inputs), tuple(controls), attrs, outputs)


def _is_elementwise(node: Node) -> bool:
    """Whether an element of the result depends on a single element of each input, not on its whole row."""
    return node.op.loop is not None and node.op.loop.pattern is LoopPattern.ELEMENTWISE


def _redirected(node: Node, names: Mapping[str, str], refs: Mapping[Ref, Ref]) -> Node:
    inputs = tuple([refs.get(ref, ref) for ref in node.inputs])
    controls = tuple(dict.fromkeys([names.get(name, name) for name in node.controls]))
    if inputs == node.inputs and controls == node.controls:
        return node
    return node.replace(inputs=inputs, controls=tuple(c for c in controls if c != node.name))
