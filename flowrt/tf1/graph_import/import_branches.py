"""TensorFlow 1 branches (Switch and Merge) to If: see `flowrt.tf1.graph_import.import_control_flow`.

Two Ifs may need the same node: a gradient reads what the forward pass computed in its branch. Each computes
it then, unless it draws numbers or has other effects: the first If returns what it gave.

A ControlTrigger runs whether or not what it waits for does. So what it waits for in a branch becomes part of
the If: as one side of a Merge that is added, of which nothing reads the value.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple, TypeAlias, final

import numpy as np

from flowrt import dtypes
from flowrt.dtypes import DType
from flowrt.errors import InvalidArgumentError, UnimplementedError
from flowrt.graph.construction.build import output_dtypes
from flowrt.graph.construction.constant import const, feed_op
from flowrt.graph.evaluate import located
from flowrt.graph.functions.control_flow import if_op
from flowrt.graph.messages.graph_def import OUTPUT_SHAPES
from flowrt.graph.node import Node, Ref, Subgraph
from flowrt.graph.op_def import Effect
from flowrt.graph.ops.base.identities import identity, identity_n
from flowrt.graph.ops.elementwise.comparison import equal
from flowrt.graph.ops.text.python_calls import no_op
from flowrt.graph.topology import reachable, sort_topologically
from flowrt.tf1.graph_import import v1_ops

Condition: TypeAlias = tuple[Ref, int]
"""A predicate and the side on which a node runs: 1 if it is true, else 0."""

Conditions: TypeAlias = frozenset[Condition]

_OPS = (v1_ops.SWITCH, v1_ops.MERGE, v1_ops.CONTROL_TRIGGER)


def raise_branches(
    nodes: Mapping[str, Node], taken: set[str], needed: Sequence[Ref] = ()
) -> Mapping[str, Node]:
    """``nodes``, which have no frames, with If in place of Switch and Merge. ``taken`` are the names used in
    the whole graph, ``needed`` tensors that always have a value: the gradient of a loop in a branch switches
    again on the predicate of that, inside the loop. Raises `InvalidArgumentError`, with the node's name, for
    a Merge that does not join the two sides of one predicate.
    """
    if not any(node.op in _OPS for node in nodes.values()):
        return nodes
    raiser = _Raiser(nodes, taken)
    if certain := raiser.conditions_of(needed):
        return raise_branches(raiser.under(certain, needed), taken)
    return raiser.run()


def extracted(
    nodes: Mapping[str, Node], feeds: Sequence[str], fetches: Sequence[Ref], waits: Sequence[str] = ()
) -> Subgraph:
    """The function with parameters ``feeds`` that computes ``fetches`` from the ``nodes`` that it needs, and
    has what ``waits`` names too.
    """
    roots = [*[name for name, _ in fetches], *waits]
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
        self._nodes = dict(sort_topologically(without_others(nodes)))
        self._nodes = {name: _behind_switches(nodes[name], nodes) for name in self._nodes}
        self._taken = taken
        self._read = {ref for node in nodes.values() for ref in node.inputs}
        self._conditions: dict[str, Conditions] = {}
        self._joined: dict[str, _Merged] = {}  # the Merges that were visited
        self._homes: dict[str, tuple[str, int]] = {}  # the If that has a node with effects, and the side
        self._shared: dict[Ref, Ref] = {}  # what an If returns of such a node
        self._dtypes: dict[Ref, DType] = {}  # of results of Ifs
        found = [self._visit(node) for node in self._nodes.values()]
        self._merges = [each for each in found if each is not None]

    def conditions_of(self, refs: Iterable[Ref]) -> Conditions:
        return frozenset[Condition]().union(*map(self._of, refs))

    def under(self, certain: Conditions, needed: Sequence[Ref]) -> dict[str, Node]:
        """The nodes if these conditions hold: what a Switch on them forwards is what it gets."""
        given = {
            (node.name, side): node.inputs[0]
            for node in self._nodes.values() if node.op is v1_ops.SWITCH
            for side in (0, 1) if self._condition(node, side) in certain
        }  # fmt: skip
        gone = {name for name, _ in given}
        found = {}
        for name, node in self._nodes.items():
            if name in gone and not {(name, 0), (name, 1)} & {*needed}:
                continue
            inputs = tuple(_followed(ref, given) for ref in node.inputs)
            controls = tuple(c for c in node.controls if c not in gone)
            found[name] = node.replace(inputs=inputs, controls=controls)
            if name in gone:
                found[name] = _forwarding(found[name])
        return found

    def run(self) -> dict[str, Node]:
        for node in [n for n in self._nodes.values() if n.op is v1_ops.CONTROL_TRIGGER]:
            controls = [self._after_branches(name) for name in node.controls]
            self._put(node.replace(op=no_op, controls=tuple(controls)), frozenset())
        groups = _grouped(self._nodes, self._merges, self._conditions)
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
            merged = self._joined[node.name] = self._merged(node)
            self._conditions[node.name] = self._of(merged.sides[0]) - {(merged.predicate, 0)}
            return merged
        if node.op is v1_ops.CONTROL_TRIGGER:
            self._conditions[node.name] = frozenset()
            return None
        if node.op is v1_ops.SWITCH:
            given = self._of(node.inputs[0])
            if any(self._condition(node, side) in given for side in (0, 1)):  # on what it is in already
                node = self._nodes[node.name] = _forwarding(node)
        refs = [*node.inputs, *[(name, -1) for name in node.controls]]
        self._conditions[node.name] = self.conditions_of(refs)
        return None

    def _of(self, ref: Ref) -> Conditions:
        """The conditions under which ``ref`` has a value."""
        name, index = ref
        found = self._conditions.get(name, frozenset())
        if name in self._nodes and self._nodes[name].op is v1_ops.SWITCH and index >= 0:
            return found | {self._condition(self._nodes[name], index)}
        return found

    def _condition(self, switch: Node, side: int) -> Condition:
        """The condition of one side of ``switch``. The gradient of a Merge switches on the index of the input
        that it took: on the predicate of that.
        """
        predicate = self._predicate(switch)
        tested = self._nodes.get(predicate[0])
        if tested is not None and tested.op is equal and len(tested.inputs) == 2:
            (name, output), (number, _) = tested.inputs
            merged, index = self._joined.get(name), self._nodes.get(number)
            if merged is not None and output == 1 and index is not None and index.op is const:
                place = index.attrs["value"].tolist()
                if place in merged.positions:
                    taken = merged.positions.index(place)
                    return merged.predicate, taken if side == 1 else 1 - taken
        return predicate, side

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

    def _after_branches(self, name: str) -> str:
        """The name of a Merge, which is added and runs unconditionally: behind ``name``, if that runs."""
        while conditions := self._conditions.get(name):
            predicate, side = max(conditions, key=lambda each: len(self._of(each[0])))
            like = self._nodes[name]
            switch = like.beside(
                unused_name(f"{name}/switch", self._taken), v1_ops.SWITCH, (predicate, predicate)
            )
            ran = like.beside(
                unused_name(f"{name}/ran", self._taken), identity, ((switch.name, side),), (name,),
                {"T": dtypes.bool_},
            )  # fmt: skip
            sides = [(switch.name, 0), (switch.name, 1)]
            sides[side] = ran.name, 0
            merge = like.beside(
                unused_name(f"{name}/merge", self._taken), v1_ops.MERGE, tuple(sides), (), {"T": dtypes.bool_}
            )
            outer = conditions - {(predicate, side)}
            for node, under in ((switch, outer), (ran, conditions), (merge, outer)):
                self._put(node, under)
            self._merges.append(_Merged(merge.name, predicate, (sides[0], sides[1]), (0, 1)))
            name = merge.name
        return name

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
        for branch in branches:
            self._homes |= dict.fromkeys(branch.with_effects(), (name, branch.side))
        controls = tuple(dict.fromkeys(c for branch in branches for c in branch.waits))
        attrs = {"else_branch": functions[0], "then_branch": functions[1], "output_shapes": ()}
        source = self._nodes[group[0].name].source
        self._put(Node(name, if_op, (predicate, *captured), controls, attrs, "", source, ()), conditions)
        for i, merged in enumerate(group):
            outputs = [(name, i)]
            self._dtypes[name, i] = self._nodes[merged.name].attrs["T"]
            if merged in indexed:
                outputs.append((name, len(group) + indexed.index(merged)))
                self._dtypes[outputs[1]] = dtypes.int32
            self._put(_renamed(self._nodes[merged.name], outputs), conditions)

    def home(self, name: str) -> str | None:
        """The If that has the node ``name`` already, which has effects."""
        return self._homes[name][0] if name in self._homes else None

    def shared(self, ref: Ref) -> Ref:
        """The result of the If that has the node of ``ref``: a last one, which is added to it."""
        if ref not in self._shared:
            name, side = self._homes[ref[0]]
            node = self._nodes[name]
            branches = [node.attrs["else_branch"], node.attrs["then_branch"]]
            dtype = self._dtypes.get(ref) or _dtype_of(branches[side].nodes[ref[0]], ref[1])
            if dtype in (dtypes.resource, dtypes.variant):
                message = f"expected its users in one branch; got others of output {ref[1]} of {ref[0]!r}"
                raise located(node, UnimplementedError(message))
            value = np.zeros((), object if dtype is dtypes.string else dtype.np)
            nothing = node.beside(
                unused_name(f"{ref[0]}/nothing", self._taken), const, (), (),
                {"value": np.array(b"", object) if dtype is dtypes.string else value, "dtype": dtype},
            )  # fmt: skip
            place = len(branches[0].fetches)
            branches[side] = _returning(branches[side], ref)
            branches[1 - side] = _returning(branches[1 - side], (nothing.name, 0), nothing)
            attrs = {**node.attrs, "else_branch": branches[0], "then_branch": branches[1]}
            self._nodes[name] = node.replace(attrs=attrs)
            self._shared[ref] = name, place
            self._dtypes[name, place] = dtype
        return self._shared[ref]

    def _put(self, node: Node, conditions: Conditions) -> None:
        self._nodes[node.name] = node
        self._conditions[node.name] = conditions

    def runs_under(self, name: str, condition: Condition) -> bool:
        return condition in self._conditions.get(name, frozenset())

    def outside(self, ref: Ref, condition: Condition) -> Ref:
        """The tensor outside of a branch that it reads as ``ref``: that itself, if it is outside."""
        return self._shared.get(ref) or self.boundary(ref, condition) or ref

    def boundary(self, ref: Ref, condition: Condition) -> Ref | None:
        """The tensor that enters the branch as ``ref``, if that is output by a Switch on its predicate."""
        node = self._nodes.get(ref[0])
        if node is None or node.op is not v1_ops.SWITCH or self._condition(node, 1)[0] != condition[0]:
            return None
        return node.inputs[0]


def _behind_switches(node: Node, nodes: Mapping[str, Node]) -> Node:
    """``node``, which waits for what a Switch gets instead of for the Switch: that runs on both sides."""
    controls: dict[str, None] = {}
    waiting = list(reversed(node.controls))
    while waiting:
        name = waiting.pop()
        if name in nodes and nodes[name].op is v1_ops.SWITCH:
            waiting += nodes[name].predecessors
        else:
            controls[name] = None
    return node if tuple(controls) == node.controls else node.replace(controls=tuple(controls))


def _followed(ref: Ref, given: Mapping[Ref, Ref]) -> Ref:
    while ref in given:
        ref = given[ref]
    return ref


def _forwarding(switch: Node) -> Node:
    """The node that gives on both sides what ``switch`` gets."""
    attrs = {"T": (switch.attrs["T"],) * 2} if "T" in switch.attrs else {}
    return switch.replace(op=identity_n, inputs=switch.inputs[:1] * 2, attrs=attrs)


def _renamed(merge: Node, outputs: Sequence[Ref]) -> Node:
    """Replacement of a Merge: the value, and, if it is read, the index of the side."""
    attrs = {key: value for key, value in merge.attrs.items() if key.startswith("_")}
    if OUTPUT_SHAPES in attrs:
        attrs[OUTPUT_SHAPES] = attrs[OUTPUT_SHAPES][: len(outputs)]
    op = identity if len(outputs) == 1 else identity_n
    if len(outputs) > 1:
        attrs["T"] = (merge.attrs["T"], dtypes.int32)
    return merge.replace(op=op, inputs=tuple(outputs), attrs=attrs)


def _returning(function: Subgraph, ref: Ref, *added: Node) -> Subgraph:
    """``function``, which returns ``ref`` too."""
    nodes = {**function.nodes, **{node.name: node for node in added}}
    return function.replace(nodes=nodes, fetches=(*function.fetches, ref))


def _dtype_of(node: Node, index: int) -> DType:
    try:
        return output_dtypes(node.op, node.attrs)[index]
    except (KeyError, IndexError):
        message = f"expected the types of its outputs, of which a gradient reads {index}"
        raise located(node, InvalidArgumentError(message)) from None


def _has_effects(node: Node) -> bool:
    """Whether a node must not run twice."""
    if node.op.effect is Effect.NESTED:
        functions = [value for value in node.attrs.values() if isinstance(value, Subgraph)]
        return any(_has_effects(inner) for function in functions for inner in function.nodes.values())
    return node.op in v1_ops.ON_HANDLES or node.op.effect not in (Effect.PURE, Effect.HANDLE, Effect.SOURCE)


@final
class _Branch:
    """One side of an If: ``captured`` are the outer tensors it reads, ``waits`` outer control inputs."""

    def __init__(self, nodes: Mapping[str, Node], raiser: _Raiser, predicate: Ref, side: int) -> None:
        self._nodes, self._raiser, self._condition, self.side = nodes, raiser, (predicate, side), side
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
                if (home := self._raiser.home(name)) is not None:
                    if index < 0:
                        self.waits[home] = None
                    else:
                        self.captured[self._raiser.shared(ref)] = None
                elif name not in self._inside:
                    node = self._inside[name] = self._nodes[name]
                    waiting += [*node.inputs, *[(control, -1) for control in node.controls]]
            elif index >= 0:
                self.captured[ref] = None
            else:
                self.waits[name] = None

    def with_effects(self) -> list[str]:
        return [name for name, node in self._inside.items() if _has_effects(node)]

    def function(self, feeds: Mapping[Ref, str], constants: Iterable[int]) -> Subgraph:
        """The branch as a function with parameters ``feeds`` for the captured tensors; it returns
        ``constants`` after its results.
        """

        def inner(ref: Ref) -> Ref:
            outer = self._raiser.outside(ref, self._condition)
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


def without_others(nodes: Mapping[str, Node]) -> dict[str, Node]:
    """``nodes`` without edges from others, such as parameters."""
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
