"""The network of costs of a step: its parts, and what its tensors are brought to.

A tensor with one reader costs, for each pair of their choices, its redistribution. One with several is a
variable: a state is the layout in which it is computed and a set of steps from there, which holds what each
reader needs. So a step that two readers need costs once, as it is emitted once.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple, TypeAlias, final

import numpy as np

from flowrt import dtypes
from flowrt.graph.layouts.layout import Layout
from flowrt.graph.layouts.mesh import Mesh
from flowrt.graph.node import Node, Ref, Subgraph, TensorSpec
from flowrt.graph.ops.base.identities import cast_op
from flowrt.graph.passes.layouts.propagate_layouts import is_zero
from flowrt.plan.layouts.cost_network import IMPOSSIBLE, CostNetwork, Table, TooWideError
from flowrt.plan.layouts.equal_blocks import classes_of
from flowrt.plan.layouts.layout_choices import Choice, Part
from flowrt.plan.layouts.layout_costs import Moved, Prices, Tariff, given

MOST_STATES = 1024
"""The largest number of states of a tensor: more are too many to be searched."""

Wants: TypeAlias = Sequence[frozenset[Layout]]
"""The layouts in which a part reads a tensor, by choice of the part."""

Steps: TypeAlias = frozenset[Moved]


class StepNetwork(NamedTuple):
    """Variables are the parts, with their numbers, and then tensors. ``classes`` has for each the first one
    that chooses with it.
    """

    network: CostNetwork
    classes: list[int]


@final
class StepTables:
    """Makes the networks of ``step``; costs of equal tensors and nodes are worked out once for all."""

    def __init__(self, step: Subgraph, mesh: Mesh, prices: Prices) -> None:
        self._step, self._none = step, Layout.replicated(mesh)
        self._tariff = Tariff(prices)
        self._states: dict[object, _States] = {}
        self._seconds: dict[tuple[str, Choice], float] = {}

    def network(self, parts: Sequence[Part]) -> StepNetwork:
        """The network of ``parts``, with all of their choices.

        Raises `TooWideError` if a tensor may be brought to too many sets of layouts.
        """
        network = CostNetwork()
        for part in parts:
            nodes = [self._step.nodes[name] for name in part.members]
            network.add([math.fsum(map(self._node_seconds, nodes, chosen)) for chosen in part.choices])
        classes = classes_of(self._step, parts, network.own)
        places = {name: (i, k) for i, part in enumerate(parts) for k, name in enumerate(part.members)}
        firsts: dict[object, int] = {}
        for ref, readers in _readers(self._step, parts, places).items():
            i, k = places[ref[0]]
            have = tuple([chosen[k].outputs[ref[1]] for chosen in parts[i].choices])
            if self._step.spec(ref).dtype is dtypes.resource:
                for j, wants in readers.items():
                    network.add_pair(i, j, _equal(have, wants))
                continue
            states = self._states_of(ref, have, tuple(readers.values()))
            if states.direct is not None:
                (j,) = readers
                network.add_pair(i, j, states.direct)
                continue
            number = network.add(states.costs)
            classes.append(firsts.setdefault((classes[i], k, ref[1], id(states)), number))
            network.add_pair(i, number, states.producer)
            for j, table in zip(readers, states.readers, strict=True):
                network.add_pair(number, j, table)
        return StepNetwork(network, classes)

    def _node_seconds(self, node: Node, choice: Choice) -> float:
        key = node.name, choice
        if key not in self._seconds:
            self._seconds[key] = self._tariff.node(self._step, node, *choice)
        return self._seconds[key]

    def _states_of(self, ref: Ref, have: tuple[Layout, ...], readers: tuple[Wants, ...]) -> _States:
        spec, zero = self._step.spec(ref), is_zero(self._step.nodes[ref[0]])
        is_fetched = ref in self._step.fetches
        key = have, readers, spec, zero, is_fetched
        if key not in self._states:
            ways = _Ways(self._tariff, spec, zero)
            self._states[key] = _states(ways, have, readers, self._none if is_fetched else None)
        return self._states[key]


def _readers(
    step: Subgraph, parts: Sequence[Part], places: Mapping[str, tuple[int, int]]
) -> dict[Ref, dict[int, Wants]]:
    """The parts that read each tensor, by their numbers. A variable, and the value that a cast of its own
    part reads, are as they are stored.
    """
    found: dict[Ref, dict[int, list[set[Layout]]]] = defaultdict(dict)
    for i, part in enumerate(parts):
        for k, name in enumerate(part.members):
            node = step.nodes[name]
            for at, ref in enumerate(node.inputs):
                is_stored = step.spec(ref).dtype is dtypes.resource or node.op is cast_op
                if is_stored and places[ref[0]][0] == i:
                    continue
                wants = found[ref].setdefault(i, [set() for _ in part.choices])
                for want, chosen in zip(wants, part.choices, strict=True):
                    want.add(chosen[k].inputs[at])
    for ref in step.fetches:
        found.setdefault(ref, {})
    return {
        ref: {i: tuple(map(frozenset, wants)) for i, wants in readers.items()}
        for ref, readers in found.items()
    }


def _equal(have: Sequence[Layout], wants: Wants) -> Table:
    return np.array([[0.0 if want == {layout} else IMPOSSIBLE for want in wants] for layout in have])


# --- what a tensor is brought to


class _States(NamedTuple):
    """The states of a tensor, with their ``costs``; what goes together with the choices of its producer, in
    rows, and with those of each reader, in columns. ``direct``: the costs of the choices of the producer with
    those of its only reader, which need no states.
    """

    costs: Table
    producer: Table
    readers: Sequence[Table]
    direct: Table | None


@final
class _Ways:
    """The steps that bring a tensor to layouts."""

    def __init__(self, tariff: Tariff, spec: TensorSpec, is_zero: bool) -> None:
        self._tariff, self._spec, self._is_zero = tariff, spec, is_zero

    def __call__(self, have: Layout, wanted: Iterable[Layout]) -> Steps | None:
        """None if one of ``wanted`` cannot be had."""
        found = set[Moved]()
        for layout in wanted:
            way = self._tariff.way(have, given(have, layout, self._is_zero), self._spec)
            if way is None:
                return None
            found.update(way)
        return frozenset(found)


def _states(
    ways: Callable[[Layout, Iterable[Layout]], Steps | None],
    have: Sequence[Layout],
    readers: Sequence[Wants],
    fetched: Layout | None,
) -> _States:
    needs = {layout: [[ways(layout, want) for want in wants] for wants in readers] for layout in set(have)}
    if len(readers) == 1 and fetched is None:
        direct = [[_cost(need) for need in needs[layout][0]] for layout in have]
        return _States(np.zeros(0), np.zeros(0), (), np.array(direct))
    states: list[tuple[Layout, Steps]] = []
    for layout in dict.fromkeys(have):
        start = frozenset[Moved]() if fetched is None else ways(layout, [fetched])
        assert start is not None, "a tensor can be whole"
        states += [(layout, known) for known in _unions(start, needs[layout])]
        if len(states) > MOST_STATES:
            raise TooWideError
    producer = [[0.0 if mine is layout else IMPOSSIBLE for mine, _ in states] for layout in have]
    tables = [
        np.array([[_covers(known, need) for need in needs[layout][r]] for layout, known in states])
        for r in range(len(readers))
    ]
    costs = np.array([_cost(known) for _, known in states])
    return _States(costs, np.array(producer), tables, None)


def _unions(start: Steps, needs: Sequence[Sequence[Steps | None]]) -> list[Steps]:
    """The sets that hold ``start`` and one need of each reader."""
    found = {start: None}
    for reader in needs:
        options = dict.fromkeys(need for need in reader if need is not None)
        found = dict.fromkeys(known | need for known in found for need in options)
        if len(found) > MOST_STATES:
            raise TooWideError
    return list(found)


def _covers(known: Steps, need: Steps | None) -> float:
    return IMPOSSIBLE if need is None or not need <= known else 0.0


def _cost(steps: Steps | None) -> float:
    return IMPOSSIBLE if steps is None else math.fsum(moved.seconds for moved in steps)
