"""`EqualBlocks`: a step with some of its equal blocks, such as the layers of a transformer, left out.

What is left reads, in place of a block that is left out, the one next to it that is not. So the step is that
of the same model with fewer layers, and what is found for a block that is left holds for all of them.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Mapping, Sequence
from typing import NamedTuple, TypeAlias, final

from flowrt.graph.node import Node, Ref, Subgraph
from flowrt.graph.topology import sort_topologically
from flowrt.plan.layouts.equal_blocks import chains_of
from flowrt.plan.step.costs import signature

MARGIN = 2
"""Blocks that stay at each end of a step: the last one is not read as the others are."""


class FewerBlocks(NamedTuple):
    """A ``step`` with so many ``blocks`` of which nodes are equal, 0 if it has none, and others ``left_out``.
    ``like`` has, for each node of these, the equal one of the last block in front of them.
    """

    step: Subgraph
    blocks: int
    left_out: int
    like: Mapping[str, str]


class _Place(NamedTuple):
    """The place of a node: that of block ``number`` in a chain of equal nodes."""

    chain: int
    number: int


_Places: TypeAlias = Mapping[str, _Place]


@final
class EqualBlocks:
    """The equal blocks of ``step``."""

    def __init__(self, step: Subgraph) -> None:
        names = list(step.nodes)
        kinds = [signature(step, node) for node in step]
        chains = chains_of(step, [(name,) for name in names], kinds, [True] * len(names))
        self._step, self._chains = step, [[names[i] for i in chain] for chain in chains]
        self._places = _places(step, self._chains)

    def fewer(self, kept: int) -> FewerBlocks:
        """The step with ``kept`` of its equal blocks, or one or two more if it needs them to be joined. It is
        the same if it has not more, if blocks do not read each other alike, or if something else reads all of
        them, such as a norm of all gradients.
        """
        step, places = self._step, self._places
        if not places:
            return FewerBlocks(step, 0, 0, {})
        firsts = [places[chain[0]].number for chain in self._chains]
        lasts = [places[chain[-1]].number for chain in self._chains]
        count = max(lasts) + 1 - min(firsts)
        high = min(lasts) + 1 - MARGIN
        low = max(high - (count - kept), max(firsts) + MARGIN)
        if high > low and _are_regular(step, places, range(low - 1, high + 1)):
            found = _without(step, places, low, high)
            if found is not None:
                return FewerBlocks(found, count - (high - low), high - low, self._like(low, high))
        return FewerBlocks(step, count, 0, {})

    def _like(self, low: int, high: int) -> dict[str, str]:
        """The equal in block ``low - 1`` of each node of the blocks from ``low`` to before ``high``."""
        by_place = {place: name for name, place in self._places.items()}
        return {
            name: by_place[place._replace(number=low - 1)]
            for name, place in self._places.items()
            if low <= place.number < high
        }


def _places(step: Subgraph, chains: Sequence[Sequence[str]]) -> dict[str, _Place]:
    """The places of the nodes of ``chains``. Chains that read each other have their nodes in one block where
    the first of them do.
    """
    at = {name: (number, i) for number, chain in enumerate(chains) for i, name in enumerate(chain)}
    near: dict[int, dict[int, int]] = defaultdict(dict)  # how much later a chain begins than its neighbour
    for name, (chain, i) in at.items():
        for source, _ in step.nodes[name].inputs:
            if source in at:
                other, j = at[source]
                near[chain].setdefault(other, i - j)
                near[other].setdefault(chain, j - i)
    firsts: dict[int, int] = {}
    for start in range(len(chains)):
        queue = deque([start] if start not in firsts else [])
        firsts.setdefault(start, 0)
        while queue:
            chain = queue.popleft()
            for other, later in near[chain].items():
                if other not in firsts:
                    firsts[other] = firsts[chain] + later
                    queue.append(other)
    return {name: _Place(chain, firsts[chain] + i) for name, (chain, i) in at.items()}


def _are_regular(step: Subgraph, places: _Places, blocks: range) -> bool:
    """Whether the nodes of a chain, in ``blocks``, read the same chains, of the same block or the one before
    or behind it.
    """
    found: dict[int, list[object]] = {}
    for name, (chain, number) in places.items():
        if number in blocks:
            reads: list[object] = []
            for source, index in step.nodes[name].inputs:
                place = places.get(source)
                away = source if place is None else (place.chain, number - place.number)
                if place is not None and abs(number - place.number) > 1:
                    return False
                reads.append((away, index))
            if found.setdefault(chain, reads) != reads:
                return False
    return True


def _without(step: Subgraph, places: _Places, low: int, high: int) -> Subgraph | None:
    """``step`` without the blocks from ``low`` to before ``high``; None if other nodes read them."""
    by_place = {place: name for name, place in places.items()}
    gone = {name for name, place in places.items() if low <= place.number < high}

    def instead(name: str, reader: str) -> str:
        place = places[name]
        later = low - high if places[reader].number >= high else high - low
        return by_place[place._replace(number=place.number + later)]

    def redirected(node: Node) -> Node:
        if gone.isdisjoint(node.predecessors):
            return node
        inputs: list[Ref] = [(instead(n, node.name), i) if n in gone else (n, i) for n, i in node.inputs]
        controls = [n for n in node.controls if n not in gone]
        if node.name in places:
            controls += [instead(n, node.name) for n in node.controls if n in gone]
        return node.replace(inputs=tuple(inputs), controls=tuple(controls))

    left = [node for node in step if node.name not in gone]
    outside = [node for node in left if node.name not in places]
    read = {name for node in outside for name, _ in node.inputs} | {name for name, _ in step.fetches}
    if not gone.isdisjoint(read):
        return None
    nodes = {node.name: redirected(node) for node in left}
    targets = tuple(name for name in step.targets if name not in gone)
    return Subgraph(dict(sort_topologically(nodes)), step.feeds, step.fetches, targets)
