"""The cheapest layouts of a step over a mesh of devices.

Each part of the step chooses layouts (`layout_choices`); a choice costs the seconds of its nodes, and each
tensor the seconds of its redistributions (`layout_costs`). A tensor that several nodes read is a variable of
the search too: its choice is the set of layouts that it is brought to, so that what its readers share is
counted once. That makes a network of costs of choices alone and in pairs, which is solved

    by elimination    exactly, if its tables are small enough: see `cost_network`
    axis by axis      so again for each axis in turn, the others as they are, until nothing gets cheaper
    by a beam         if one axis is too much alone
    by HiGHS          as a mixed-integer program in which equal blocks choose once, if it is installed, and
                      what was found may not be the best: see `milp`

and `Found` says which way was taken. A limit of the bytes of variables, if the cheapest layouts break it,
gives each byte a price that rises until the limit is kept, and is a row of the mixed-integer program.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple, TypeAlias, final

import numpy as np

from flowrt.errors import InvalidArgumentError, ResourceExhaustedError
from flowrt.graph.layouts.mesh import Mesh
from flowrt.graph.node import Subgraph
from flowrt.graph.passes.layouts.step_layouts import Layouts
from flowrt.plan.layouts import milp
from flowrt.plan.layouts.chosen_layouts import (
    Seeds,
    differences,
    layouts_of,
    numbers_of,
    propagated,
    seeds_of,
)
from flowrt.plan.layouts.cost_network import (
    CostNetwork,
    Table,
    TooWideError,
    beam,
    cheapest,
    merged,
    rest_of,
    with_price,
)
from flowrt.plan.layouts.layout_choices import Part, parts_of
from flowrt.plan.layouts.layout_costs import Prices, StepCost, cost_of, state_bytes
from flowrt.plan.layouts.layout_tables import StepTables


class Way(Enum):
    """The way in which layouts were found."""

    ELIMINATION = "elimination: exact"
    PRICE = "elimination, with a price of bytes"
    AXES = "elimination, axis by axis"
    MILP = "mixed-integer program"
    BEAM = "beam"


@final
@dataclass(frozen=True)
class Found:
    """The cheapest layouts of a step that were found.

    No layouts take less than ``at_least`` seconds, as far as that is known. ``seeds`` are what a script can
    say: layouts of variables by name, and of the batch. ``as_propagated`` is the cost of the layouts that a
    session finds from these, and ``differing`` has the nodes with other layouts there.
    """

    layouts: Layouts
    cost: StepCost
    way: Way
    at_least: float
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
    chosen = cheapest_choices(step, parts, mesh, prices, limit_bytes)
    layouts = layouts_of(step, mesh, parts, chosen.choices)
    seeds = seeds_of(layouts)
    again = propagated(step, mesh, seeds)
    return Found(
        layouts=layouts,
        cost=cost_of(layouts, prices),
        way=chosen.way,
        at_least=chosen.at_least,
        seeds=seeds,
        as_propagated=cost_of(again, prices),
        differing=differences(layouts, again),
    )


Solver: TypeAlias = Callable[[CostNetwork], Sequence[int]]


def _cheapest_or_beam(network: CostNetwork) -> Sequence[int]:
    try:
        return cheapest(network)
    except TooWideError:
        return beam(network)


class Chosen(NamedTuple):
    """A choice for each part, their cost, and how they were found."""

    choices: list[int]
    cost: float
    way: Way
    at_least: float = 0.0


def cheapest_choices(
    step: Subgraph, parts: Sequence[Part], mesh: Mesh, prices: Prices, limit_bytes: int | None = None
) -> Chosen:
    """A choice for each of ``parts``, as `cheapest_layouts`."""
    return _Search(step, parts, mesh, prices, limit_bytes).found()


class _Plan(NamedTuple):
    """A choice for each part, and their cost, or that of a network with a price of bytes."""

    choices: list[int]
    cost: float


@final
class _Search:
    """The search among ``parts`` of ``step``."""

    def __init__(
        self, step: Subgraph, parts: Sequence[Part], mesh: Mesh, prices: Prices, limit: int | None
    ) -> None:
        self._step, self._parts, self._mesh, self._limit = step, parts, mesh, limit
        self._tables = StepTables(step, mesh, prices)
        self._amounts = _bytes(step, parts)
        self._whole: _Problem | None = None
        if limit is not None:
            self._check(limit)

    def _check(self, limit: int) -> None:
        """Raise `ResourceExhaustedError` if variables are larger than ``limit`` in the smallest parts."""
        least = int(sum(amount.min() for amount in self._amounts.values()))
        if least > limit:
            raise ResourceExhaustedError(
                f"layouts over {self._mesh}: expected at most {limit:,} bytes of variables on a device; got "
                f"{least:,}, with all of them in the smallest parts. More devices, or a limit of {least:,}, "
                "would do"
            )

    def found(self) -> Chosen:
        ways: dict[Way, Callable[[float], _Plan]] = {
            Way.ELIMINATION: self._by_elimination,
            Way.AXES: self._axis_by_axis,
            Way.BEAM: self._by_beam,
        }
        for way, solve in ways.items():
            try:
                found = self._within_limit(way, solve)
            except TooWideError:
                continue
            return found if found.cost <= found.at_least * (1 + 1e-9) else self._improved(found)
        raise AssertionError("a beam is never too wide")

    # --- a limit of bytes

    def _within_limit(self, way: Way, solve: Callable[[float], _Plan]) -> Chosen:
        """The best that ``solve`` finds with different prices of a byte. A solution with a price is the best
        of those with as many bytes; less the price of the limit, its cost is below that of any within it.
        """
        choices, cost = solve(0.0)
        is_exact = way is Way.ELIMINATION
        if self._fits(choices):
            return Chosen(choices, cost, way, cost if is_exact else 0.0)
        assert self._limit is not None
        way, at_least = (Way.PRICE if is_exact else way), cost if is_exact else 0.0
        low, high, best = 0.0, cost / self._limit, _Plan([], math.inf)
        for _ in range(MOST_PRICES):
            if best.cost <= at_least * (1 + CLOSE):
                break
            price = high if best.cost == math.inf else (low + high) / 2
            choices, priced = solve(price)
            at_least = max(at_least, priced - price * self._limit if is_exact else 0.0)
            if not self._fits(choices):
                low, high = price, high if best.choices else 4 * high
                continue
            high = price
            cost = priced - price * self._used(choices)
            best = min(best, _Plan(choices, cost), key=lambda plan: plan.cost)
        if not best.choices:
            raise TooWideError
        return Chosen(best.choices, best.cost, way, at_least)

    def _used(self, choices: Sequence[int]) -> float:
        return sum(float(amount[choices[i]]) for i, amount in self._amounts.items())

    def _fits(self, choices: Sequence[int]) -> bool:
        return self._limit is None or self._used(choices) <= self._limit

    # --- ways

    def _problem(self) -> _Problem:
        """All choices of all parts."""
        if self._whole is None:
            self._whole = _Problem(self._tables, self._parts, self._amounts)
        return self._whole

    def _by_elimination(self, price: float) -> _Plan:
        return self._problem().solved(cheapest, price)

    def _by_beam(self, price: float) -> _Plan:
        return self._problem().solved(beam, price)

    def _axis_by_axis(self, price: float) -> _Plan:
        """The best choices on one axis, the others as they are, in turn until nothing gets cheaper; from the
        first axis on, or from the last, of whole tensors and of data parallelism. Raises `TooWideError` for
        a mesh of one axis.
        """
        axes = range(len(self._mesh.axes))
        if len(axes) == 1:
            raise TooWideError
        ways = [(start, order) for start in self._starts for order in (axes, axes[::-1])]
        found = [self._in_turn(start, order, price) for start, order in ways]
        return min(found, key=lambda plan: plan.cost)

    @functools.cached_property
    def _starts(self) -> list[list[int]]:
        """Choices to begin with: all whole, and data parallelism on all axes."""
        names = tuple(axis.name for axis in self._mesh.axes)
        parallel = propagated(self._step, self._mesh, Seeds({}, {}, names))
        return [[0] * len(self._parts), numbers_of(parallel, self._parts)]

    def _in_turn(self, start: Sequence[int], order: Sequence[int], price: float) -> _Plan:
        best = _Plan(list(start), math.inf)
        while True:
            before = best.cost
            for axis in order:
                kept = [
                    _along(part, choice, axis) for part, choice in zip(self._parts, best.choices, strict=True)
                ]
                parts = [_only(part, numbers) for part, numbers in zip(self._parts, kept, strict=True)]
                amounts = {i: amount[kept[i]] for i, amount in self._amounts.items()}
                found = _Problem(self._tables, parts, amounts).solved(_cheapest_or_beam, price)
                if found.cost < best.cost:
                    chosen = zip(kept, found.choices, strict=True)
                    best = found._replace(choices=[numbers[c] for numbers, c in chosen])
            if best.cost >= before * (1 - 1e-9):
                return best

    def _improved(self, found: Chosen) -> Chosen:
        """``found``, or the better choices that HiGHS finds."""
        try:
            problem = self._problem()
        except TooWideError:
            return found
        if not milp.is_installed() or problem.entries > MOST_ENTRIES:
            return found
        solution = problem.best_found(self._limit)
        if solution is None or solution.cost >= found.cost:
            return found
        return solution._replace(at_least=found.at_least)


MOST_PRICES = 24
"""Prices of a byte that are tried, at most."""

CLOSE = 1e-3
"""Prices end where no layouts are cheaper by more than this part."""

MOST_ENTRIES = 2_000_000
"""Pairs of choices of the largest network that HiGHS is asked for."""


def _along(part: Part, choice: int, axis: int) -> list[int]:
    """The choices of ``part`` with the placements of ``choice`` on all axes but ``axis``."""

    def others(number: int) -> list[tuple[object, ...]]:
        layouts = [layout for member in part.choices[number] for side in member for layout in side]
        return [(*each.placements[:axis], *each.placements[axis + 1 :]) for each in layouts]

    wanted = others(choice)
    return [number for number in range(len(part.choices)) if others(number) == wanted]


def _only(part: Part, numbers: Sequence[int]) -> Part:
    """``part`` with some of its choices."""
    stored = tuple(part.stored[i] for i in numbers) if part.stored else ()
    return part._replace(choices=tuple(part.choices[i] for i in numbers), stored=stored)


@final
class _Problem:
    """The network of ``parts``, whole and with equal blocks as one."""

    def __init__(self, tables: StepTables, parts: Sequence[Part], amounts: Mapping[int, Table]) -> None:
        self._count, self._amounts = len(parts), amounts
        self._network, classes = tables.network(parts)
        self._small, self._places = merged(self._network, classes)

    @property
    def entries(self) -> int:
        """The pairs of choices if equal blocks choose once."""
        return sum(table.size for table in self._small.pairs.values())

    def solved(self, solve: Solver, price: float) -> _Plan:
        """The choices that ``solve`` finds, with a ``price`` of each byte."""
        network = with_price(self._network, self._amounts, price) if price else self._network
        rest = rest_of(network)
        choices = rest.complete(solve(rest.network))
        return _Plan(choices[: self._count], network.cost(choices))

    def best_found(self, limit: int | None) -> Chosen | None:
        """The best choices that HiGHS finds within ``limit`` if equal blocks choose once."""
        amounts: dict[int, Table] = {}
        for i, amount in self._amounts.items():
            place = self._places[i]
            amounts[place] = amounts[place] + amount if place in amounts else amount
        rest = rest_of(self._small, () if limit is None else amounts)
        row = None
        if limit is not None:
            row = milp.Limit({at: amounts[i] for at, i in enumerate(rest.numbers) if i in amounts}, limit)
        found = milp.best_found(rest.network, row)
        if found is None:
            return None
        choices = rest.complete(found.choices)
        of_parts = [choices[place] for place in self._places[: self._count]]
        return Chosen(of_parts, self._small.cost(choices), Way.MILP)


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
