"""TensorFlow 1 branches (Switch and Merge) to If: see `flowrt.tf1.graph_import.import_control_flow`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple, TypeAlias, final

import numpy as np

from flowrt import dtypes
from flowrt.errors import InvalidArgumentError
from flowrt.graph.construction.constant import const, feed_op
from flowrt.graph.evaluate import located
from flowrt.graph.functions.control_flow import if_op
from flowrt.graph.messages.graph_def import OUTPUT_SHAPES
from flowrt.graph.node import Node, Ref, Subgraph
from flowrt.graph.ops.base.identities import identity, identity_n
from flowrt.graph.topology import reachable, sort_topologically
from flowrt.tf1.graph_import import v1_ops

Condition: TypeAlias = tuple[Ref, int]
"""A predicate and the side on which a node runs: 1 if it is true, else 0."""

Conditions: TypeAlias = frozenset[Condition]


def raise_branches(nodes: Mapping[str, Node], taken: set[str]) -> Mapping[str, Node]:
    """``nodes``, which have no frames, with If in place of Switch and Merge. ``taken`` are the names used in
    the whole graph. Raises `InvalidArgumentError`, with the node's name, for a Merge that does not join the
    two sides of one predicate.
    """
    if not any(node.op in (v1_ops.SWITCH, v1_ops.MERGE) for node in nodes.values()):
        return nodes
    return _Raiser(nodes, taken).run()


def extracted(nodes: Mapping[str, Node], feeds: Sequence[str], fetches: Sequence[Ref]) -> Subgraph:
    """The function with parameters ``feeds`` that computes ``fetches`` from the ``nodes`` that it needs."""
    roots = [name for name, _ in fetches]
    found = reachable(roots, lambda name: nodes[name].predecessors if name in nodes else [])
    parameters = {name: Node(name, feed_op, (), (), {}, "", None, ()) for name in feeds}
    inside = {name: node for name, node in nodes.items() if name in found}
    return Subgraph({**parameters, **inside}, tuple(feeds), tuple(fetches))


def unused_name(name: str, taken: set[str]) -> str:
    """``name``, with a number appended if it is ``taken``; it is then marked as taken."""
    unused, count = name, 0
    while unused in taken:
        count += 1
        unused = f"{name}_{count}"
    taken.add(unused)
    return unused


class _Merged(NamedTuple):
    """A Merge of the two sides of ``predicate``: the tensors from sides 0 and 1, and the position of each
    among the inputs.
    """

    name: str
    predicate: Ref
    sides: tuple[Ref, Ref]
    positions: tuple[int, int]


@final
class _Raiser:
    def __init__(self, nodes: Mapping[str, Node], taken: set[str]) -> None:
        self._nodes = dict(sort_topologically(_closed(nodes)))
        self._nodes = {name: nodes[name] for name in self._nodes}
        self._taken = taken
        self._read = {ref for node in nodes.values() for ref in node.inputs}
        self._conditions: dict[str, Conditions] = {}

    def run(self) -> dict[str, Node]:
        merges = [found for node in self._nodes.values() if (found := self._visit(node)) is not None]
        groups = _grouped(self._nodes, merges, self._conditions)
        for group in sorted(groups, key=lambda g: -len(self._conditions[g[0].name])):
            self._raise_group(group)
        return {
            name: node
            for name, node in self._nodes.items()
            if node.op is not v1_ops.SWITCH and not self._conditions[name]
        }

    # --- conditions

    def _visit(self, node: Node) -> _Merged | None:
        """Find the conditions of ``node``; those of its predecessors are known."""
        if node.op is v1_ops.MERGE:
            merged = self._merged(node)
            self._conditions[node.name] = self._of(merged.sides[0]) - {(merged.predicate, 0)}
            return merged
        refs = [*node.inputs, *[(name, -1) for name in node.controls]]
        self._conditions[node.name] = frozenset[Condition]().union(*map(self._of, refs))
        return None

    def _of(self, ref: Ref) -> Conditions:
        """The conditions under which ``ref`` has a value."""
        name, index = ref
        found = self._conditions.get(name, frozenset())
        if name in self._nodes and self._nodes[name].op is v1_ops.SWITCH and index >= 0:
            return found | {(self._predicate(self._nodes[name]), index)}
        return found

    def _predicate(self, switch: Node) -> Ref:
        """The predicate of ``switch``, seen through Identity: one branch may use several."""
        if len(switch.inputs) != 2:
            message = f"expected a value and a predicate; got {len(switch.inputs)} inputs"
            raise located(switch, InvalidArgumentError(message))
        ref = switch.inputs[1]
        while ref[0] in self._nodes and self._nodes[ref[0]].op.name == "Identity":
            if not self._nodes[ref[0]].inputs:
                message = "expected one input; got none"
                raise located(self._nodes[ref[0]], InvalidArgumentError(message))
            ref = self._nodes[ref[0]].inputs[0]
        return ref

    def _merged(self, node: Node) -> _Merged:
        if len(node.inputs) == 2:
            first, second = (self._of(ref) for ref in node.inputs)
            opposite = [(p, side) for p, side in first if (p, 1 - side) in second]
            for predicate, side in opposite:
                if first - {(predicate, side)} == second - {(predicate, 1 - side)}:
                    positions = (0, 1) if side == 0 else (1, 0)
                    sides = node.inputs[positions[0]], node.inputs[positions[1]]
                    return _Merged(node.name, predicate, sides, positions)
        message = "expected a Merge of the two branches of one Switch's predicate; got other inputs"
        raise located(node, InvalidArgumentError(message))

    # --- from a group of Merges to an If

    def _raise_group(self, group: Sequence[_Merged]) -> None:
        predicate, conditions = group[0].predicate, self._conditions[group[0].name]
        name = unused_name(group[0].name.rpartition("/")[0] or group[0].name, self._taken)
        branches = [_Branch(self._nodes, self, predicate, side) for side in (0, 1)]
        indexed = [merged for merged in group if (merged.name, 1) in self._read]
        for side, branch in enumerate(branches):
            branch.add([merged.sides[side] for merged in group])
        captured = list(dict.fromkeys(ref for branch in branches for ref in branch.captured))
        feeds = [f"{name}/input_{i}" for i in range(len(captured))]
        functions = [
            branch.function(dict(zip(captured, feeds, strict=True)), [m.positions[side] for m in indexed])
            for side, branch in enumerate(branches)
        ]
        controls = tuple(dict.fromkeys(c for branch in branches for c in branch.waits))
        attrs = {"else_branch": functions[0], "then_branch": functions[1], "output_shapes": ()}
        source = self._nodes[group[0].name].source
        self._put(Node(name, if_op, (predicate, *captured), controls, attrs, "", source, ()), conditions)
        for i, merged in enumerate(group):
            outputs = [(name, i)]
            if merged in indexed:
                outputs.append((name, len(group) + indexed.index(merged)))
            self._put(_renamed(self._nodes[merged.name], outputs), conditions)

    def _put(self, node: Node, conditions: Conditions) -> None:
        self._nodes[node.name] = node
        self._conditions[node.name] = conditions

    def runs_under(self, name: str, condition: Condition) -> bool:
        return condition in self._conditions.get(name, frozenset())

    def boundary(self, ref: Ref, condition: Condition) -> Ref | None:
        """The tensor that enters the branch as ``ref``, if that is output by a Switch on its predicate."""
        node = self._nodes.get(ref[0])
        if node is None or node.op is not v1_ops.SWITCH or self._predicate(node) != condition[0]:
            return None
        return node.inputs[0]


def _renamed(merge: Node, outputs: Sequence[Ref]) -> Node:
    """Replacement of a Merge: the value, and, if it is read, the index of the side."""
    attrs = {key: value for key, value in merge.attrs.items() if key.startswith("_")}
    if OUTPUT_SHAPES in attrs:
        attrs[OUTPUT_SHAPES] = attrs[OUTPUT_SHAPES][: len(outputs)]
    op = identity if len(outputs) == 1 else identity_n
    if len(outputs) > 1:
        attrs["T"] = (merge.attrs["T"], dtypes.int32)
    return merge.replace(op=op, inputs=tuple(outputs), attrs=attrs)


@final
class _Branch:
    """One side of an If: ``captured`` are the outer tensors it reads, ``waits`` outer control inputs."""

    def __init__(self, nodes: Mapping[str, Node], raiser: _Raiser, predicate: Ref, side: int) -> None:
        self._nodes, self._raiser, self._condition = nodes, raiser, (predicate, side)
        self.captured: dict[Ref, None] = {}
        self.waits: dict[str, None] = {}
        self._inside: dict[str, Node] = {}
        self._fetches: list[Ref] = []

    def add(self, fetches: Sequence[Ref]) -> None:
        """Find the nodes that compute ``fetches`` on this side, and the outer tensors that they read."""
        self._fetches = list(fetches)
        waiting = [*fetches]
        while waiting:
            name, index = ref = waiting.pop()
            outer = self._raiser.boundary(ref, self._condition)
            if outer is not None:
                if index >= 0:
                    self.captured[outer] = None
            elif self._raiser.runs_under(name, self._condition):
                if name not in self._inside:
                    node = self._inside[name] = self._nodes[name]
                    waiting += [*node.inputs, *[(control, -1) for control in node.controls]]
            elif index >= 0:
                self.captured[ref] = None
            else:
                self.waits[name] = None

    def function(self, feeds: Mapping[Ref, str], constants: Iterable[int]) -> Subgraph:
        """The branch as a function with parameters ``feeds`` for the captured tensors; it returns
        ``constants`` after its results.
        """

        def inner(ref: Ref) -> Ref:
            outer = self._raiser.boundary(ref, self._condition) or ref
            return (feeds[outer], 0) if outer in feeds and ref[0] not in self._inside else ref

        inside = {}
        for name, node in self._nodes.items():
            if name in self._inside:
                controls = tuple(control for control in node.controls if control in self._inside)
                inside[name] = node.replace(inputs=tuple(map(inner, node.inputs)), controls=controls)
        results = [inner(ref) for ref in self._fetches]
        for i, value in enumerate(constants):
            attrs = {"value": np.array(value, np.int32), "dtype": dtypes.int32}
            name = f"value_index_{i}"
            inside[name] = Node(name, const, (), (), attrs, "", None, ())
            results.append((name, 0))
        return extracted(inside, list(feeds.values()), results)


# --- which Merges are results of one If


def _closed(nodes: Mapping[str, Node]) -> dict[str, Node]:
    """``nodes`` without edges from others."""
    return {
        name: node.replace(
            inputs=tuple(ref for ref in node.inputs if ref[0] in nodes),
            controls=tuple(c for c in node.controls if c in nodes),
        )
        for name, node in nodes.items()
    }


def _grouped(
    nodes: Mapping[str, Node], merges: Sequence[_Merged], conditions: Mapping[str, Conditions]
) -> list[list[_Merged]]:
    """``merges``, in the order of ``nodes``, grouped by predicate and conditions. A Merge joins a group only
    if it does not depend on it, directly or through other groups: an If must not depend on itself.
    """
    groups: list[list[_Merged]] = []
    member_of: dict[str, int] = {}
    by_key: dict[tuple[Ref, Conditions], list[int]] = {}
    for merged in merges:
        alike = by_key.setdefault((merged.predicate, conditions[merged.name]), [])
        needed = _needed(nodes, merged.name, groups, member_of) if alike else set[int]()
        number = next((i for i in reversed(alike) if i not in needed), len(groups))
        if number == len(groups):
            groups.append([])
            alike.append(number)
        groups[number].append(merged)
        member_of[merged.name] = number
    return groups


def _needed(
    nodes: Mapping[str, Node], name: str, groups: Sequence[Sequence[_Merged]], member_of: Mapping[str, int]
) -> set[int]:
    """The groups that must have run before the Merge ``name`` can."""
    found: set[int] = set()
    seen: set[str] = set()
    waiting = [name]
    while waiting:
        current = waiting.pop()
        if current in seen or current not in nodes:
            continue
        seen.add(current)
        waiting += nodes[current].predecessors
        if current in member_of and member_of[current] not in found:
            found.add(member_of[current])
            waiting += [merged.name for merged in groups[member_of[current]]]
    return found
