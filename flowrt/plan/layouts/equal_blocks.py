"""Equal blocks of a step, such as the layers of a transformer: they choose their layouts once.

Two parts are alike if they have the same operations, choices and costs. From a part that is alike to a later
one, the map "to the next block" grows along edges, forward and backward, as long as neighbours are alike. The
parts that it visits one after the other are of one class. A class has three parts at least, and blocks with
less than two matrices are not joined: of layers one by one every second might want another layout.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Mapping, Sequence
from typing import final

from flowrt.graph.node import Subgraph
from flowrt.plan.layouts.cost_network import Table
from flowrt.plan.layouts.layout_choices import Part

LEAST_BLOCKS = 3
MOST_STARTS = 8
"""Kinds of parts that are tried as the first of the map, the rarest first."""


def classes_of(step: Subgraph, parts: Sequence[Part], costs: Sequence[Table]) -> list[int]:
    """The number of the first part of its class, for each of ``parts``, with the ``costs`` of its choices."""
    found = list(range(len(parts)))
    kinds = [_kind(step, part, table) for part, table in zip(parts, costs, strict=True)]
    chains = chains_of(step, [part.members for part in parts], kinds, [len(p.choices) > 1 for p in parts])
    matrices = sum(_has_matrix(step, parts[chain[0]]) for chain in chains)
    for chain in chains if matrices > 1 else ():
        for i in chain:
            found[i] = chain[0]
    return found


def _kind(step: Subgraph, part: Part, costs: Table) -> Hashable:
    nodes = [step.nodes[name] for name in part.members]
    specs = tuple(spec for node in nodes for spec in node.outputs)
    return tuple(node.op.name for node in nodes), specs, part.choices, costs.tobytes()


def _has_matrix(step: Subgraph, part: Part) -> bool:
    return any(len(step.nodes[name].attrs["shape"]) > 1 for name in part.handles)


def chains_of(
    step: Subgraph, parts: Sequence[Sequence[str]], kinds: Sequence[Hashable], can_start: Sequence[bool]
) -> list[list[int]]:
    """The numbers of ``parts``, which are names of nodes, that are one after the other in equal blocks. Parts
    are alike if they have one of the ``kinds``; the first to be looked at are those that ``can_start``.
    """
    return _Blocks(step, parts, kinds).chains(can_start)


@final
class _Blocks:
    def __init__(self, step: Subgraph, parts: Sequence[Sequence[str]], kinds: Sequence[Hashable]) -> None:
        self._step, self._parts, self._kinds = step, parts, _numbered(kinds)
        self._number = {name: i for i, members in enumerate(parts) for name in members}
        self._edges = self._edges_of_parts()

    def _edges_of_parts(self) -> list[list[tuple[Hashable, int]]]:
        """The neighbours of each part, with what the edge is: its direction, members and indices."""
        found: list[list[tuple[Hashable, int]]] = [[] for _ in self._parts]
        for i, members in enumerate(self._parts):
            for k, name in enumerate(members):
                for at, (source, index) in enumerate(self._step.nodes[name].inputs):
                    j = self._number[source]
                    found[i].append((("from", k, at, index, self._kinds[j]), j))
                    found[j].append((("to", k, at, index, self._kinds[i]), i))
        return found

    def chains(self, can_start: Sequence[bool]) -> list[list[int]]:
        best: Mapping[int, int] = {}
        for first, second in self._starts(can_start):
            following = self._grown(first, second)
            if len(following) > len(best):
                best = following
        return _chains(best)

    def _starts(self, can_start: Sequence[bool]) -> list[tuple[int, int]]:
        by_kind: dict[int, list[int]] = defaultdict(list)
        for i, kind in enumerate(self._kinds):
            if can_start[i]:
                by_kind[kind].append(i)
        often = sorted((len(of), of[0], of[1]) for of in by_kind.values() if len(of) >= LEAST_BLOCKS)
        return [(first, second) for _, first, second in often[:MOST_STARTS]]

    def _grown(self, first: int, second: int) -> dict[int, int]:
        """The map to the next block that has ``second`` for ``first``."""
        following, taken = {first: second}, {second}
        queue = [first]
        while queue:
            i = queue.pop()
            for a, b in self._pairs(i, following[i]):
                if a != b and a not in following and b not in taken and self._kinds[a] == self._kinds[b]:
                    following[a] = b
                    taken.add(b)
                    queue.append(a)
        return following

    def _pairs(self, i: int, j: int) -> list[tuple[int, int]]:
        """Neighbours of i and j by edges that are alike, in order; only where both have as many."""
        mine, other = _by_edge(self._edges[i]), _by_edge(self._edges[j])
        return [
            pair
            for edge, ends in mine.items()
            if len(ends) == len(other.get(edge, ()))
            for pair in zip(ends, other[edge], strict=True)
        ]


def _by_edge(edges: Sequence[tuple[Hashable, int]]) -> dict[Hashable, list[int]]:
    found: dict[Hashable, list[int]] = {}
    for edge, end in edges:
        found.setdefault(edge, []).append(end)
    return found


def _numbered(kinds: Sequence[Hashable]) -> list[int]:
    numbers: dict[Hashable, int] = {}
    return [numbers.setdefault(kind, len(numbers)) for kind in kinds]


def _chains(following: Mapping[int, int]) -> list[list[int]]:
    """The parts that ``following`` visits one after the other, where they are enough."""
    chains = []
    for start in following.keys() - set(following.values()):
        chain = [start]
        while chain[-1] in following:
            chain.append(following[chain[-1]])
        if len(chain) >= LEAST_BLOCKS:
            chains.append(chain)
    return chains
