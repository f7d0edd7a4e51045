"""The cheapest layouts of a step over a mesh of devices.

Each part of the step chooses layouts (`flowrt.plan.layout_choices`); a choice costs the seconds of its nodes,
and each tensor the seconds of its redistributions (`flowrt.plan.layout_costs`). A tensor that several nodes
read is a variable of the search too: its choice is the set of layouts that it is brought to, so that what its
readers share is counted once. That makes a network of costs of single choices and of pairs, which is solved

    by elimination    exactly, if its tables are small enough: see `flowrt.plan.cost_network`
    by HiGHS          as a mixed-integer program, if highspy is installed: see `flowrt.plan.milp`
    by a beam         otherwise

and `Found` says which way was taken. A limit of the bytes of variables, if the cheapest layouts break it, is
a row of the mixed-integer program; without HiGHS bytes get a price, which rises until the limit is kept.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple, final

import numpy as np

from flowrt import dtypes
from flowrt.errors import InvalidArgumentError
from flowrt.graph.layouts.layout import Layout
from flowrt.graph.layouts.mesh import Mesh
from flowrt.graph.node import Ref, Subgraph, TensorSpec
from flowrt.graph.ops.base.identities import cast_op
from flowrt.graph.passes.layouts.propagate_layouts import is_zero
from flowrt.graph.passes.layouts.step_layouts import Layouts
from flowrt.plan.chosen_layouts import Seeds, differences, layouts_of, propagated, seeds_of
from flowrt.plan.cost_network import IMPOSSIBLE, CostNetwork, Table, TooWideError, beam, cheapest, solved
from flowrt.plan.layout_choices import Part, parts_of
from flowrt.plan.layout_costs import Moved, Prices, StepCost, Tariff, cost_of, given, state_bytes


class Way(Enum):
    """How layouts were found."""

    ELIMINATION = "elimination, exact"
    MILP = "mixed-integer program"
    BEAM = "beam"


@final
@dataclass(frozen=True)
class Found:
    """The cheapest layouts of a step.

    ``seeds`` are what a script can say: layouts of variables by name, and of the batch. ``as_propagated`` is
    the cost of the layouts that a session finds from these, and ``differing`` has the nodes that have others
    there.
    """

    layouts: Layouts
    cost: StepCost
    way: Way
    seeds: Seeds
    as_propagated: StepCost
    differing: tuple[str, ...]


def cheapest_layouts(step: Subgraph, mesh: Mesh, prices: Prices, limit_bytes: int | None = None) -> Found:
    """The cheapest layouts of ``step``, with static shapes, over ``mesh``, of axes of space; those that its
    nodes have already do not count. A device may have ``limit_bytes`` of variables.

    Raises `InvalidArgumentError` for a mesh with an axis of time or of stages, `ResourceExhaustedError` if
    the variables do not fit in parts either.
    """
    if mesh.stages is not None or any(axis.is_time for axis in mesh.axes):
        raise InvalidArgumentError(f"cheapest_layouts: expected a mesh with axes of space; got {mesh}")
    parts = parts_of(step, mesh)
    network = network_of(step, parts, mesh, prices)
    choices, way = _solve(network, _bytes(step, parts), limit_bytes)
    layouts = layouts_of(step, mesh, parts, choices[: len(parts)])
    seeds = seeds_of(layouts)
    again = propagated(step, mesh, seeds)
    return Found(
        layouts, cost_of(layouts, prices), way, seeds, cost_of(again, prices), differences(layouts, again)
    )


def _solve(network: CostNetwork, nbytes: Mapping[int, Table], limit: int | None) -> tuple[list[int], Way]:
    try:
        choices, way = solved(network, cheapest), Way.ELIMINATION
    except TooWideError:
        choices, way = solved(network, beam), Way.BEAM
    return choices, way


def _bytes(step: Subgraph, parts: Sequence[Part]) -> dict[int, Table]:
    """The bytes of variables on a device, by choice, of the parts that have some."""
    return {
        i: np.array(
            [sum(state_bytes(step.nodes[name], layout) for name in part.handles) for layout in part.stored],
            float,
        )
        for i, part in enumerate(parts)
        if part.stored
    }


def network_of(step: Subgraph, parts: Sequence[Part], mesh: Mesh, prices: Prices) -> CostNetwork:
    """The costs of the choices of ``parts``, as variables with the numbers of the parts, and of what tensors
    are brought to, as further ones.
    """
    return _Build(step, parts, mesh, prices).network()


@final
class _Build:
    def __init__(self, step: Subgraph, parts: Sequence[Part], mesh: Mesh, prices: Prices) -> None:
        self._step, self._parts, self._none = step, parts, Layout.replicated(mesh)
        self._tariff, self._network = Tariff(prices), CostNetwork()
        self._number = {name: i for i, part in enumerate(parts) for name in part.members}
        self._place = {name: k for part in parts for k, name in enumerate(part.members)}
        self._sets: dict[object, _Sets] = {}
        """Of equal tensors with equal readers."""

    def network(self) -> CostNetwork:
        for part in self._parts:
            nodes = [self._step.nodes[name] for name in part.members]
            self._network.add(
                [
                    math.fsum(
                        self._tariff.node(self._step, node, *choice)
                        for node, choice in zip(nodes, chosen, strict=True)
                    )
                    for chosen in part.choices
                ]
            )
        readers = self._readers()
        for ref, wanted in readers.items():
            self._add_tensor(ref, wanted)
        return self._network

    def _readers(self) -> dict[Ref, dict[int, list[set[Layout]]]]:
        """The layouts that each part wants of each tensor, by choice; what is fetched is wanted whole."""
        found: dict[Ref, dict[int, list[set[Layout]]]] = defaultdict(dict)
        for i, part in enumerate(self._parts):
            for k, name in enumerate(part.members):
                node = self._step.nodes[name]
                for at, ref in enumerate(node.inputs):
                    if self._number[ref[0]] == i and (self._is_handle(ref) or node.op is cast_op):
                        continue  # a variable, or a cast of its value, is as it is stored
                    wants = found[ref].setdefault(i, [set() for _ in part.choices])
                    for want, chosen in zip(wants, part.choices, strict=True):
                        want.add(chosen[k].inputs[at])
        return found

    def _is_handle(self, ref: Ref) -> bool:
        return self._step.spec(ref).dtype is dtypes.resource

    def _have(self, ref: Ref) -> list[Layout]:
        """The layouts in which ``ref`` is computed, by choice of its part."""
        part, k = self._parts[self._number[ref[0]]], self._place[ref[0]]
        return [chosen[k].outputs[ref[1]] for chosen in part.choices]

    def _add_tensor(self, ref: Ref, readers: Mapping[int, Sequence[set[Layout]]]) -> None:
        i, have, spec = self._number[ref[0]], self._have(ref), self._step.spec(ref)
        if self._is_handle(ref):
            for j, wanted in readers.items():
                self._network.add_pair(i, j, _equal(have, wanted))
            return
        zero = is_zero(self._step.nodes[ref[0]])
        fetched = self._none if ref in self._step.fetches else None
        key = (tuple(have), tuple(tuple(map(frozenset, w)) for w in readers.values()), spec, zero, fetched)
        if key not in self._sets:
            self._sets[key] = self._sets_of(have, list(readers.values()), spec, zero, fetched)
        sets = self._sets[key]
        if len(readers) == 1 and fetched is None:
            (j,) = readers
            self._network.add_pair(i, j, sets.direct)
            return
        hub = self._network.add(sets.costs)
        self._network.add_pair(i, hub, sets.producer)
        for j, table in zip(readers, sets.readers, strict=True):
            self._network.add_pair(hub, j, table)

    def _sets_of(
        self,
        have: Sequence[Layout],
        readers: Sequence[Sequence[set[Layout]]],
        spec: TensorSpec,
        zero: bool,
        fetched: Layout | None,
    ) -> _Sets:
        def steps(layout: Layout, wanted: Iterable[Layout]) -> frozenset[Moved] | None:
            ways = [self._tariff.way(layout, given(layout, each, zero), spec) for each in wanted]
            return None if None in ways else frozenset(moved for way in ways for moved in way or ())

        return _sets(have, readers, steps, fetched)


class _Sets(NamedTuple):
    """The sets of layouts to which a tensor may be brought: ``states`` are pairs of the layout in which it is
    computed and the steps to others; ``costs`` their seconds. The tables say what goes together: states with
    choices of the producer, in rows, and of each reader, in columns. ``direct``: the costs of choices of the
    producer with those of an only reader.
    """

    states: list[tuple[Layout, frozenset[Moved]]]
    costs: Table
    producer: Table
    readers: list[Table]
    direct: Table


def _sets(
    have: Sequence[Layout],
    readers: Sequence[Sequence[set[Layout]]],
    steps: Callable[[Layout, Iterable[Layout]], frozenset[Moved] | None],
    fetched: Layout | None,
) -> _Sets:
    distinct = list(dict.fromkeys(have))
    needs = {
        layout: [[steps(layout, wanted) for wanted in reader] for reader in readers] for layout in distinct
    }
    states: list[tuple[Layout, frozenset[Moved]]] = []
    for layout in distinct:
        start = frozenset() if fetched is None else steps(layout, [fetched]) or frozenset()
        found = {start: None}
        for reader in needs[layout]:
            options = dict.fromkeys(need for need in reader if need is not None)
            found = {known | need: None for known in found for need in options}
        states += [(layout, known) for known in found]
    producer = np.array([[0.0 if h is s else IMPOSSIBLE for s, _ in states] for h in have])
    tables = [
        np.array(
            [
                [IMPOSSIBLE if need is None or not need <= known else 0.0 for need in needs[layout][r]]
                for layout, known in states
            ]
        )
        for r in range(len(readers))
    ]
    direct = (
        np.array([[IMPOSSIBLE if need is None else _seconds(need) for need in needs[h][0]] for h in have])
        if readers
        else np.zeros((len(have), 1))
    )
    costs = np.array([_seconds(known) for _, known in states])
    return _Sets(states, costs, producer, tables, direct)


def _seconds(steps: Iterable[Moved]) -> float:
    return math.fsum(moved.seconds for moved in steps)


def _equal(have: Sequence[Layout], wanted: Sequence[set[Layout]]) -> Table:
    return np.array([[0.0 if want == {h} else IMPOSSIBLE for want in wanted] for h in have])
