"""A network of costs: variables with few choices each, and costs of choices and of pairs of choices.

`cheapest` finds choices of least total cost exactly: it eliminates one variable after another, the one with
the smallest table of neighbours first, and keeps for each combination of these the best choice (Bertele and
Brioschi 1972, nonserial dynamic programming). Tables grow with the width of the network: what is too wide is
a `TooWideError`. `beam` goes through the variables in order and keeps the best 64 beginnings.

Before, `rest_of` removes choices that are never better than another one of their variable (Goldstein 1994),
and variables with two neighbours at most, in turns.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias, final

import numpy as np
from numpy.typing import NDArray

Table: TypeAlias = NDArray[np.float64]
Choices: TypeAlias = NDArray[np.intp]
Pair: TypeAlias = tuple[int, int]

IMPOSSIBLE = 1e6
"""Cost of what cannot be, in seconds: larger than all others together."""

LIMIT = 10_000_000
"""Entries of the largest table, times the variables that it is about."""

BEAM = 64

MOST_NEIGHBOURS = 2
"""A variable with as many is settled by a pair of its neighbours: most nodes only pass tensors on."""


class TooWideError(Exception):
    """The tables of an exact search would be larger than the limit."""


@final
class CostNetwork:
    """Variables are numbers from 0: ``own[i]`` has the cost of each choice of variable i, ``pairs[i, j]``,
    for i < j, that of each choice of i with each of j.
    """

    def __init__(self) -> None:
        self.own: list[Table] = []
        self.pairs: dict[Pair, Table] = {}

    def add(self, costs: Any) -> int:
        """Add a variable; return its number."""
        self.own.append(np.array(costs, float))
        return len(self.own) - 1

    def add_pair(self, i: int, j: int, costs: Table) -> None:
        """Add ``costs``, by choices of i and of j."""
        if i == j:
            self.own[i] = self.own[i] + costs.diagonal()
            return
        key, table = ((i, j), costs) if i < j else ((j, i), costs.T)
        self.pairs[key] = self.pairs[key] + table if key in self.pairs else table

    def cost(self, choices: Sequence[int]) -> float:
        """The total cost of a choice for each variable."""
        own = math.fsum(costs[c] for costs, c in zip(self.own, choices, strict=True))
        return own + math.fsum(table[choices[i], choices[j]] for (i, j), table in self.pairs.items())

    def neighbours(self) -> list[set[int]]:
        found: list[set[int]] = [set() for _ in self.own]
        for i, j in self.pairs:
            found[i].add(j)
            found[j].add(i)
        return found

    def table(self, i: int, j: int) -> Table:
        """The costs of choices of i, in rows, with choices of j."""
        return self.pairs[i, j] if i < j else self.pairs[j, i].T


# --- choices and variables that can be settled before


class _Step(NamedTuple):
    """The best choice of ``variable`` for each combination of those of ``scope``; ``left`` are the choices of
    each of these at that time.
    """

    variable: int
    scope: tuple[int, ...]
    left: tuple[Choices, ...]
    best: Choices

    def settle(self, choices: list[int]) -> None:
        at = [np.searchsorted(left, choices[j]) for j, left in zip(self.scope, self.left, strict=True)]
        choices[self.variable] = int(self.best[tuple(at)])


@final
class _Reduction:
    """A network while choices and variables leave it, but for those ``kept``. Numbers of variables stay;
    ``left`` has the numbers of the choices of each that are left, ``own`` and ``around`` the costs of these.
    """

    def __init__(self, network: CostNetwork, kept: Collection[int] = ()) -> None:
        self._kept = frozenset(kept)
        self.own = [costs.copy() for costs in network.own]
        self.left = [np.arange(len(costs)) for costs in network.own]
        self.around: list[dict[int, Table]] = [{} for _ in network.own]
        for (i, j), table in network.pairs.items():
            self.around[i][j], self.around[j][i] = table, table.T
        self.steps: list[_Step] = []
        self.gone: set[int] = set()

    def run(self) -> None:
        """Remove choices that are never better, and variables with two neighbours or fewer, until nothing
        changes.
        """
        queue = dict.fromkeys(range(len(self.own)))
        while queue:
            i = next(iter(queue))
            del queue[i]
            if i in self.gone or i in self._kept:
                continue
            around = list(self.around[i])
            if self._prune(i):
                queue |= dict.fromkeys([i, *around])
            elif len(around) <= MOST_NEIGHBOURS or len(self.left[i]) == 1:
                self._eliminate(i)
                queue |= dict.fromkeys(around)

    def _prune(self, i: int) -> bool:
        own = self.own[i]
        gain = own[:, None] - own[None, :]
        """The least that choosing the second instead of the first saves."""
        for table in self.around[i].values():
            gain += (table[:, None] - table[None]).min(2)
        kept = np.ones(len(own), bool)
        for a in reversed(range(len(own))):
            better = gain[a] >= 0
            better[a] = False
            kept[a] = not (better & kept).any()
        if kept.all():
            return False
        self.own[i], self.left[i] = own[kept], self.left[i][kept]
        for j, table in list(self.around[i].items()):
            self._put(i, j, table[kept])
        return True

    def _put(self, i: int, j: int, table: Table) -> None:
        self.around[i][j], self.around[j][i] = table, table.T

    def _eliminate(self, i: int) -> None:
        around = self.around[i]
        self.gone.add(i)
        for j in around:
            del self.around[j][i]
        if len(self.left[i]) == 1:
            for j, table in around.items():
                self.own[j] = self.own[j] + table[0]
            self.steps.append(_Step(i, (), (), self.left[i][0]))
            return
        scope = tuple(around)
        total = self.own[i].reshape(-1, *[1] * len(scope))
        for at, table in enumerate(around.values()):
            total = total + table.reshape(
                [len(table), *[table.shape[1] if k == at else 1 for k in range(len(scope))]]
            )
        best, least = self.left[i][total.argmin(0)], total.min(0)
        self.steps.append(_Step(i, scope, tuple(self.left[j] for j in scope), best))
        if len(scope) == 1:
            self.own[scope[0]] = self.own[scope[0]] + least
        elif scope:
            j, k = scope
            self._put(j, k, self.around[j][k] + least if k in self.around[j] else least)

    def rest(self) -> tuple[CostNetwork, list[int]]:
        """The network that is left, and the numbers of its variables here."""
        numbers = [i for i in range(len(self.own)) if i not in self.gone]
        new = {i: at for at, i in enumerate(numbers)}
        rest = CostNetwork()
        rest.own = [self.own[i] for i in numbers]
        rest.pairs = {
            (new[i], new[j]): table for i in numbers for j, table in self.around[i].items() if i < j
        }
        return rest, numbers

    def complete(self, chosen: Sequence[int], numbers: Sequence[int]) -> list[int]:
        """A choice for each variable of the first network, from those of `rest`."""
        choices = [0] * len(self.own)
        for i, choice in zip(numbers, chosen, strict=True):
            choices[i] = int(self.left[i][choice])
        for step in reversed(self.steps):
            step.settle(choices)
        return choices


class Rest(NamedTuple):
    """The rest of a network: ``numbers`` are those of its variables in the first one, and ``complete`` makes
    choices for all of these from those for the rest.
    """

    network: CostNetwork
    numbers: Sequence[int]
    complete: Callable[[Sequence[int]], list[int]]


def rest_of(network: CostNetwork, kept: Collection[int] = ()) -> Rest:
    """``network`` without what can be settled before; all choices of the variables ``kept`` stay."""
    reduction = _Reduction(network, kept)
    reduction.run()
    rest, numbers = reduction.rest()
    return Rest(rest, numbers, lambda chosen: reduction.complete(chosen, numbers))


# --- elimination


def cheapest(network: CostNetwork, limit: int = LIMIT) -> list[int]:
    """The choices of least total cost. Raises `TooWideError` if a table would have more than ``limit``."""
    order = _order(network, limit)
    tables: list[dict[tuple[int, ...], Table]] = [{} for _ in network.own]
    """The tables of each variable that were not used yet, by their variables, it being the next to go."""
    rank = {i: at for at, i in enumerate(order)}
    for (i, j), table in network.pairs.items():
        first = min(i, j, key=rank.__getitem__)
        tables[first][i, j] = table
    steps: list[tuple[int, tuple[int, ...], Choices]] = []
    for i in order:
        scope = tuple(sorted({j for key in tables[i] for j in key} - {i}))
        total = _spread(network.own[i], (i,), (i, *scope))
        for key, table in tables[i].items():
            total = total + _spread(table, key, (i, *scope))
        steps.append((i, scope, np.broadcast_to(total, _sizes(network, (i, *scope))).argmin(0)))
        if scope:
            first, least = min(scope, key=rank.__getitem__), total.min(0)
            before = tables[first].get(scope)
            tables[first][scope] = least if before is None else before + least
        tables[i] = {}
    choices = [0] * len(order)
    for i, scope, best in reversed(steps):
        choices[i] = int(best[tuple(choices[j] for j in scope)])
    return choices


def _sizes(network: CostNetwork, scope: Sequence[int]) -> tuple[int, ...]:
    return tuple(len(network.own[i]) for i in scope)


def _spread(table: Table, key: Sequence[int], scope: Sequence[int]) -> Table:
    """``table``, of the variables ``key``, with a dimension for each of ``scope``."""
    by_place = sorted(range(len(key)), key=lambda axis: scope.index(key[axis]))
    sizes = dict(zip(key, table.shape, strict=True))
    return table.transpose(by_place).reshape([sizes.get(i, 1) for i in scope])


def _order(network: CostNetwork, limit: int) -> list[int]:
    """An order in which variables can be eliminated. Raises `TooWideError` if there is none by two rules: the
    variable that joins the least pairs of neighbours first, or the one with the smallest table.
    """
    for rule in (_joined, _entries):
        order = _order_by(rule, network, limit)
        if order is not None:
            return order
    raise TooWideError


Around: TypeAlias = Sequence[set[int]]
Rule: TypeAlias = Callable[[int, Sequence[float], Around], float]


def _entries(i: int, sizes: Sequence[float], around: Around) -> float:
    """The logarithm of the size of a table of i and its neighbours."""
    return sizes[i] + sum(sizes[j] for j in around[i])


def _joined(i: int, sizes: Sequence[float], around: Around) -> float:
    """The pairs of neighbours that are none yet, weighed by their sizes."""
    ends = sorted(around[i])
    return sum(sizes[j] + sizes[k] for at, j in enumerate(ends) for k in ends[at + 1 :] if k not in around[j])


def _order_by(rule: Rule, network: CostNetwork, limit: int) -> list[int] | None:
    around, order = network.neighbours(), list[int]()
    sizes = [math.log(len(costs)) for costs in network.own]

    def score(i: int) -> tuple[float, float]:
        return rule(i, sizes, around), _entries(i, sizes, around)

    current = {i: score(i) for i in range(len(sizes))}
    queue = [(known, i) for i, known in current.items()]
    heapq.heapify(queue)
    while queue:
        known, i = heapq.heappop(queue)
        if current.get(i) != known:
            continue
        if _entries(i, sizes, around) + math.log(max(1, len(around[i]))) > math.log(limit):
            return None
        order.append(i)
        del current[i]
        ends = around[i]
        for j in ends:
            around[j] |= ends
            around[j] -= {i, j}
        for j in set(ends).union(*[around[j] for j in ends]):
            if j in current and (again := score(j)) != current[j]:
                current[j] = again
                heapq.heappush(queue, (again, j))
    return order


# --- a beam


def beam(network: CostNetwork, width: int = BEAM) -> list[int]:
    """Choices of a low total cost: the best of ``width`` beginnings, variable by variable. A beginning counts
    with the least that its pairs with later variables cost.
    """
    neighbours = network.neighbours()
    chosen, costs = np.zeros((1, 0), int), np.zeros(1)
    for i, own in enumerate(network.own):
        total = costs[:, None] + own[None, :]
        for j in neighbours[i]:
            table = network.table(j, i)
            if j < i:
                total = total + (table - table.min(1, keepdims=True))[chosen[:, j]]
            else:
                total = total + table.min(0)
        best = np.argsort(total, axis=None, kind="stable")[:width]
        rows, last = np.unravel_index(best, total.shape)
        chosen = np.concatenate([chosen[rows], last[:, None]], axis=1)
        costs = total[rows, last]
    return [int(choice) for choice in chosen[0]]


# --- other networks


def with_price(network: CostNetwork, amounts: Mapping[int, Table], price: float) -> CostNetwork:
    """``network`` with ``price`` for each unit of the ``amounts`` that choices of some variables need."""
    priced = CostNetwork()
    priced.own = list(network.own)
    for i, amount in amounts.items():
        priced.own[i] = priced.own[i] + price * amount
    priced.pairs = network.pairs
    return priced


def merged(network: CostNetwork, classes: Sequence[int]) -> tuple[CostNetwork, list[int]]:
    """``network`` with one variable for each class, of variables that have choices of one meaning; and the
    number of each variable there.
    """
    numbers: dict[int, int] = {}
    places = [numbers.setdefault(each, len(numbers)) for each in classes]
    small = CostNetwork()
    small.own = [np.zeros(0)] * len(numbers)
    for place, costs in zip(places, network.own, strict=True):
        small.own[place] = small.own[place] + costs if len(small.own[place]) else costs
    for (i, j), table in network.pairs.items():
        small.add_pair(places[i], places[j], table)
    return small, places
