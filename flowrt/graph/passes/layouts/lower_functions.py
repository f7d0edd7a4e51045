"""Lowering of loops and branches: their functions are lowered like a step, for all coordinates at once.

Coordinates that exchange nothing with others get loops of their own. Those that do, in a collective or a node
that runs once, share one, in which they are on several devices: `split` cuts it after placement.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence, Sized
from typing import NamedTuple, TypeAlias, TypeVar

from flowrt.graph.layouts.mesh import Coordinate
from flowrt.graph.node import Node, Ref, Subgraph, TensorSpec
from flowrt.graph.passes.layouts.redistribute import Move, Refs

K = TypeVar("K", bound=Hashable)

LocalSpec: TypeAlias = Callable[[int, Coordinate], TensorSpec]
"""The spec of an output of the node, by index, on a coordinate."""


class LoweredFunction(NamedTuple):
    """A function of all coordinates. ``feeds`` has the names of each parameter, ``fetches`` the tensors of
    each result; where a parameter or result is the same on several coordinates, it is one.
    """

    nodes: Mapping[str, Node]
    feeds: Sequence[Mapping[Coordinate, str]]
    fetches: Sequence[Refs]
    targets: Sequence[str]
    moves: Sequence[Move]


class Group(NamedTuple):
    """Coordinates that share a loop or branch, and the names of their nodes in each of its functions."""

    members: Sequence[Coordinate]
    names: Sequence[set[str]]


class Owner(NamedTuple):
    """The loop or branch ``node`` of some coordinates, and each output on each of them."""

    node: Node
    outputs: Sequence[Refs]


def owner_of(
    node: Node, functions: Sequence[LoweredFunction], inputs: Sequence[Refs], group: Group, local: LocalSpec
) -> Owner:
    """The loop or branch ``node``, with its ``functions`` and ``inputs``, on the coordinates of ``group``."""
    of_kind = _loop_of if node.op.name == "_Loop" else _branches_of
    return of_kind(node, functions, inputs, group, local)


def _loop_of(
    node: Node, functions: Sequence[LoweredFunction], inputs: Sequence[Refs], group: Group, local: LocalSpec
) -> Owner:
    (body,) = functions
    members, (names,) = group
    first, count = members[0], len(node.attrs["T"])
    feeds = [_distinct(parameter, members) for parameter in body.feeds]
    fetches = [body.fetches[1 + k][at] for k in range(count) for at in feeds[k].values()]
    attrs = {
        **node.attrs,
        "body": _function(body, feeds, [body.fetches[0][first], *fetches], names),
        "T": _repeated(node.attrs["T"], feeds[:count]),
        "C": _repeated(node.attrs["C"], feeds[count:]),
    }
    arguments = (inputs[0][first], *_arguments(inputs[1:], feeds))
    return _owner(node, attrs, arguments, body.feeds[:count], members, local)


def _branches_of(
    node: Node, functions: Sequence[LoweredFunction], inputs: Sequence[Refs], group: Group, local: LocalSpec
) -> Owner:
    members = group.members
    feeds = [_distinct(parameter, members) for parameter in functions[0].feeds]
    results = [
        {at: tuple(function.fetches[k][at] for function in functions) for at in members}
        for k in range(len(node.outputs))
    ]
    distinct = [_distinct(of_result, members) for of_result in results]
    firsts = [at for found in distinct for at in found.values()]
    numbers = [k for k, found in enumerate(distinct) for _ in found]
    attrs = {
        **node.attrs,
        "branches": tuple(
            _function(
                function,
                [_distinct(parameter, members) for parameter in function.feeds],
                [function.fetches[k][at] for k, at in zip(numbers, firsts, strict=True)],
                names,
            )
            for function, names in zip(functions, group.names, strict=True)
        ),
        "Tin": _repeated(node.attrs["Tin"], feeds),
        "Tout": _repeated(node.attrs["Tout"], distinct),
    }
    arguments = (inputs[0][members[0]], *_arguments(inputs[1:], feeds))
    return _owner(node, attrs, arguments, results, members, local)


def _owner(
    node: Node,
    attrs: Mapping[str, object],
    arguments: tuple[Ref, ...],
    keys: Sequence[Mapping[Coordinate, Hashable]],
    members: Sequence[Coordinate],
    local: LocalSpec,
) -> Owner:
    """``keys``: of each output, what tells by coordinate which are the same."""
    specs: list[TensorSpec] = []
    outputs: list[Refs] = []
    for k, of_output in enumerate(keys):
        index: dict[Hashable, int] = {}
        for key, at in _distinct(of_output, members).items():
            index[key] = len(specs)
            specs.append(local(k, at))
        outputs.append({at: (node.name, index[of_output[at]]) for at in members})
    return Owner(node.replace(attrs=attrs, inputs=arguments, outputs=tuple(specs)), outputs)


def _distinct(values: Mapping[Coordinate, K], members: Sequence[Coordinate]) -> dict[K, Coordinate]:
    """The values at ``members``, each with the first of them that has it."""
    found: dict[K, Coordinate] = {}
    for at in members:
        found.setdefault(values[at], at)
    return found


def _repeated(types: Sequence[object], parts: Sequence[Sized]) -> tuple[object, ...]:
    return tuple(each for each, part in zip(types, parts, strict=True) for _ in range(len(part)))


def _arguments(inputs: Sequence[Refs], feeds: Sequence[Mapping[str, Coordinate]]) -> list[Ref]:
    return [refs[at] for refs, found in zip(inputs, feeds, strict=True) for at in found.values()]


def _function(
    whole: LoweredFunction, feeds: Sequence[Mapping[str, Coordinate]], fetches: Sequence[Ref], owned: set[str]
) -> Subgraph:
    """The part of ``whole`` that has the nodes ``owned``."""
    names = tuple(name for found in feeds for name in found)
    nodes = {name: node for name, node in whole.nodes.items() if name in owned}
    return Subgraph(nodes, names, tuple(fetches), tuple(t for t in whole.targets if t in owned))


# --- coordinates that exchange something


def groups_of(functions: Sequence[LoweredFunction], coordinates: Sequence[Coordinate]) -> list[Group]:
    """``coordinates`` in groups between which no node has an edge. What belongs to no coordinate, an effect
    that runs once, is of the first group.
    """
    labels = [_labels(function.nodes) for function in functions]
    groups: list[tuple[list[Coordinate], set[tuple[int, int]]]] = []
    for at in coordinates:
        own = {(i, labels[i][name]) for i, function in enumerate(functions) for name in _roots(function, at)}
        touching = [group for group in groups if not own.isdisjoint(group[1])]
        groups = [group for group in groups if own.isdisjoint(group[1])]
        members = [c for group in touching for c in group[0]]
        groups.append(([*members, at], own.union(*[group[1] for group in touching])))
    groups.sort(key=lambda group: coordinates.index(group[0][0]))
    reached = set[tuple[int, int]]().union(*[group[1] for group in groups])
    groups[0][1].update(
        (i, label) for i, found in enumerate(labels) for label in found.values() if (i, label) not in reached
    )
    return [
        Group(
            members,
            [{name for name, label in found.items() if (i, label) in own} for i, found in enumerate(labels)],
        )
        for members, own in groups
    ]


def _roots(function: LoweredFunction, at: Coordinate) -> list[str]:
    return [*[names[at] for names in function.feeds], *[refs[at][0] for refs in function.fetches]]


def _labels(nodes: Mapping[str, Node]) -> dict[str, int]:
    """A number for each node: equal for two that edges, in either direction, connect."""
    neighbours: dict[str, list[str]] = {name: list(node.predecessors) for name, node in nodes.items()}
    for node in nodes.values():
        for name in node.predecessors:
            neighbours[name].append(node.name)
    labels: dict[str, int] = {}
    for number, root in enumerate(nodes):
        stack = [root]
        while stack:
            name = stack.pop()
            if name not in labels:
                labels[name] = number
                stack += neighbours[name]
    return labels
