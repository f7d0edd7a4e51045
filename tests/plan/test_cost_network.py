"""Networks of costs against all combinations of choices."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from flowrt.plan.layouts import milp
from flowrt.plan.layouts.cost_network import (
    IMPOSSIBLE,
    CostNetwork,
    TooWideError,
    beam,
    cheapest,
    merged,
    rest_of,
    with_price,
)
from tests.each import nightly


def random_network(seed: int, most_choices: int = 4, count: int = 6) -> CostNetwork:
    """A network with costs in tenths, so that many are equal, and with pairs that cannot be."""
    rng = np.random.default_rng(seed)
    network, count = CostNetwork(), int(rng.integers(1, count + 1))
    for _ in range(count):
        network.add(rng.integers(0, 10, rng.integers(1, most_choices + 1)) / 10)
    for i, j in itertools.combinations(range(count), 2):
        if rng.random() < 0.5:
            table = rng.integers(0, 10, (len(network.own[i]), len(network.own[j]))) / 10
            table[1:, 1:][rng.random((len(table) - 1, table.shape[1] - 1)) < 0.2] = IMPOSSIBLE
            network.add_pair(i, j, table)
            if rng.random() < 0.2:
                network.add_pair(j, i, np.full(table.T.shape, 0.1))
    return network


def all_choices(network: CostNetwork) -> list[tuple[int, ...]]:
    return list(itertools.product(*[range(len(costs)) for costs in network.own]))


@pytest.mark.parametrize("seed", nightly(range(200), 20))
def test_elimination_finds_the_least(seed: int) -> None:
    network = random_network(seed)
    least = min(map(network.cost, all_choices(network)))
    rest = rest_of(network)
    assert network.cost(cheapest(network)) == pytest.approx(least)
    assert network.cost(rest.complete(cheapest(rest.network))) == pytest.approx(least)
    assert network.cost(beam(network)) >= least - 1e-9
    assert network.cost(beam(network, 10**6)) == pytest.approx(least)


@pytest.mark.parametrize("seed", nightly(range(60), 20))
def test_highs_finds_the_least_within_a_limit(seed: int) -> None:
    pytest.importorskip("highspy")
    network, rng = random_network(seed), np.random.default_rng(seed)
    amounts = {i: rng.integers(0, 5, len(costs)).astype(float) for i, costs in enumerate(network.own)}

    def needed(choices: tuple[int, ...]) -> float:
        return sum(amounts[i][choice] for i, choice in enumerate(choices))

    most = float(rng.integers(1, 8))
    inside = [network.cost(c) for c in all_choices(network) if needed(c) <= most]
    least = min([cost for cost in inside if cost < IMPOSSIBLE], default=None)
    found = milp.best_found(network, milp.Limit(amounts, most))
    assert (found is None) == (least is None)
    if found is not None:
        assert needed(tuple(found.choices)) <= most
        assert network.cost(found.choices) == pytest.approx(least)
        assert found.at_least == pytest.approx(least)
    free = milp.best_found(network)
    assert free is not None
    assert network.cost(free.choices) == pytest.approx(min(map(network.cost, all_choices(network))))


def test_what_is_too_wide_is_refused() -> None:
    network = CostNetwork()
    for _ in range(6):
        network.add(np.zeros(4))
    for i, j in itertools.combinations(range(6), 2):
        network.add_pair(i, j, np.eye(4))
    assert network.cost(cheapest(network)) == 2.0
    with pytest.raises(TooWideError):
        cheapest(network, limit=4**5)


def test_variables_of_one_class_choose_together() -> None:
    network = CostNetwork()
    for costs in ([0, 1], [3, 0], [1, 1]):
        network.add(costs)
    network.add_pair(0, 1, np.array([[5.0, 0.0], [0.0, 7.0]]))
    network.add_pair(1, 2, np.array([[0.0, 1.0], [2.0, 3.0]]))
    small, places = merged(network, [0, 0, 2])
    assert places == [0, 0, 1]
    for choice, other in itertools.product(range(2), repeat=2):
        assert small.cost([choice, other]) == network.cost([choice, choice, other])


def test_a_price_is_for_each_unit() -> None:
    network = CostNetwork()
    network.add([1.0, 2.0])
    assert with_price(network, {0: np.array([4.0, 1.0])}, 0.5).own[0].tolist() == [3.0, 2.5]
    assert network.own[0].tolist() == [1.0, 2.0]
