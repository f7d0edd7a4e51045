"""The cheapest layouts of nets, held against all combinations, what is emitted, and plans made by hand."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from itertools import product
from typing import Any

import numpy as np
import pytest

from flowrt.errors import InvalidArgumentError, ResourceExhaustedError
from flowrt.graph.layouts.mesh import Axis, Mesh
from flowrt.graph.node import Subgraph
from flowrt.graph.passes.layouts.lower_layouts import lowered_by
from flowrt.graph.passes.layouts.propagate_layouts import propagate
from flowrt.graph.passes.layouts.step_layouts import Layouts
from flowrt.plan.layouts import milp
from flowrt.plan.layouts.chosen_layouts import Seeds, layouts_of, propagated
from flowrt.plan.layouts.equal_blocks import classes_of
from flowrt.plan.layouts.layout_choices import parts_of
from flowrt.plan.layouts.layout_costs import Prices, cost_of, state_bytes
from flowrt.plan.layouts.layout_search import Way, cheapest_choices, cheapest_layouts
from tests.distribute.strategies.nets_with_layouts import COLUMNS, NETS, Net, gpt, of_net, trained
from tests.each import daily, nightly
from tests.plan.random_steps import chosen_only, costs_of_all, random_net, trimmed
from tests.plan.steps import mesh_of, prices, step_of, step_under

CHEAP, MEDIUM, DEAR = prices(1e-7, 1e-13), prices(1e-6, 1e-12), prices(1e-6, 1e-10)

MESHES = [{"dp": 2}, {"dp": 4}, {"dp": 3}, {"dp": 2, "tp": 2}]


def emitted(layouts: Layouts) -> tuple[Counter[str], Counter[str]]:
    """The counts of collectives that a lowering in ``layouts`` emits, and the bytes that all receive."""
    counts, nbytes = Counter[str](), Counter[str]()
    for move in lowered_by(layouts).moves:
        if move.step.collective != "Slice":
            counts[move.step.collective] += 1
            nbytes[move.step.collective] += move.nbytes
    return counts, nbytes


SEEDS = nightly(range(200), 12)
"""The first ones have each mesh with each depth of a net."""


@pytest.mark.parametrize("seed", SEEDS)
def test_no_combination_of_choices_is_cheaper(seed: int) -> None:
    rng, of_links = np.random.default_rng(seed), [CHEAP, MEDIUM, DEAR, prices(0.0, 1e-9)]
    step, mesh = step_of(lambda: random_net(seed, 1 + seed % 3)), mesh_of(**MESHES[seed % 4])
    parts, price = trimmed(parts_of(step, mesh), 400, rng), of_links[rng.integers(4)]
    every = dict(costs_of_all(step, parts, price))
    found = cheapest_choices(step, parts, mesh, price)
    assert found.way is Way.ELIMINATION
    assert found.cost == pytest.approx(min(every.values()), rel=1e-9)
    assert every[tuple(found.choices)] == pytest.approx(found.cost, rel=1e-9)
    layouts = layouts_of(step, mesh, parts, found.choices)
    assert cost_of(layouts, price).seconds == pytest.approx(found.cost, rel=1e-9)
    for choices in rng.permutation(list(every))[:4]:
        only = cheapest_choices(step, chosen_only(parts, choices), mesh, price)
        assert only.cost == pytest.approx(every[tuple(choices)], rel=1e-9)


@pytest.mark.parametrize("seed", nightly(range(60), 12))
def test_no_combination_within_the_limit_is_cheaper(seed: int) -> None:
    rng = np.random.default_rng(seed)
    step, mesh = step_of(lambda: random_net(seed, 1 + seed % 3)), mesh_of(**MESHES[seed % 4])
    parts, price = trimmed(parts_of(step, mesh), 400, rng), [CHEAP, MEDIUM, DEAR][rng.integers(3)]
    every = dict(costs_of_all(step, parts, price))

    def nbytes(choices: Sequence[int]) -> int:
        return sum(
            state_bytes(step.nodes[name], part.stored[choice])
            for part, choice in zip(parts, choices, strict=True)
            for name in part.handles
        )

    limit = int(rng.choice([nbytes(choices) for choices in every]))
    least = min(cost for choices, cost in every.items() if nbytes(choices) <= limit)
    found = cheapest_choices(step, parts, mesh, price, limit)
    assert nbytes(found.choices) <= limit
    assert found.at_least <= least * (1 + 1e-9)
    assert found.cost >= least * (1 - 1e-9)
    if milp.is_installed() or found.way is Way.ELIMINATION:
        assert found.cost == pytest.approx(least, rel=1e-9)


@pytest.mark.parametrize("build", NETS.values(), ids=NETS)
@pytest.mark.parametrize(
    "axes", [{"dp": 4}, pytest.param({"dp": 2, "tp": 2}, marks=pytest.mark.slow)], ids=str
)
def test_what_is_counted_is_what_is_emitted(build: Callable[[], Net], axes: dict[str, int]) -> None:
    found = cheapest_layouts(step_of(build), mesh_of(**axes), CHEAP)
    assert emitted(found.layouts) == (found.cost.collectives, found.cost.moved_bytes)
    assert found.cost == cost_of(found.layouts, CHEAP)


def by_hand(step: Subgraph, layouts: Mapping[str, Sequence[Any]], axis: str) -> list[Seeds]:
    """Data parallel, fully sharded, and Megatron's layouts, along ``axis``."""
    sharded = {
        node.name: [axis, *[None] * (len(node.attrs["shape"]) - 1)]
        for node in step
        if node.op.name == "VarHandleOp" and node.attrs["shape"] and node.attrs["shape"][0] % 4 == 0
    }
    whole = {name: [None] * len(entries) for name, entries in sharded.items()}
    return [Seeds({}, {}, axis), Seeds(whole, sharded, axis), Seeds(layouts, {}, None)]


@pytest.mark.parametrize(
    ("net", "price"),
    daily(
        product([name for name in NETS if name != "lstm"], [CHEAP, MEDIUM, DEAR]),
        lambda net, price: net == "mlp" or price is MEDIUM,
    ),
)
def test_plans_by_hand_are_not_cheaper(net: str, price: Prices) -> None:
    step, mesh = step_of(NETS[net]), mesh_of(tp=4)
    found = cheapest_layouts(step, mesh, price)
    assert found.way is Way.ELIMINATION
    named = by_name(step, of_net(NETS[net], COLUMNS))
    for seeds in by_hand(step, named, "tp"):
        assert cost_of(propagated(step, mesh, seeds), price).seconds >= found.cost.seconds * (1 - 1e-9)
    assert found.as_propagated.seconds >= found.cost.seconds * (1 - 1e-9)


def by_name(step: Subgraph, layouts: Mapping[str, Sequence[Any]]) -> dict[str, Sequence[Any]]:
    """Those of ``layouts``, by expression, of the variables of ``step``."""
    names = [node.name for node in step if node.op.name == "VarHandleOp"]
    return {
        name: entries for name in names for pattern, entries in layouts.items() if re.fullmatch(pattern, name)
    }


def block() -> Net:
    return gpt(blocks=1, width=64, length=64)


def test_a_block_is_megatrons_where_links_are_cheap_and_data_parallel_where_they_are_dear() -> None:
    step, mesh = step_of(block), mesh_of(tp=4)
    megatron, parallel = (cheapest_layouts(step, mesh, price) for price in (MEDIUM, DEAR))
    weights = {name: e for name, e in megatron.seeds.variables.items() if name.startswith("block0")}
    norms = {"block0/first": [None], "block0/second": [None]}
    assert weights == {**by_name(step, {p: e for p, e in COLUMNS.items() if "block" in p}), **norms}
    assert megatron.as_propagated.collectives == {"AllReduce": 4}
    assert parallel.seeds.batch == "tp"
    assert all(set(entries) <= {None} for entries in parallel.seeds.variables.values())
    assert parallel.cost.collectives == {"AllReduce": 10}


def test_what_a_session_finds_from_the_seeds_is_reported() -> None:
    step, mesh = step_of(block), mesh_of(tp=4)
    parallel = cheapest_layouts(step, mesh, DEAR)
    again = propagated(step, mesh, parallel.seeds)
    assert cost_of(again, DEAR) == parallel.as_propagated
    assert parallel.as_propagated.seconds <= parallel.cost.seconds * 1.001
    assert len(parallel.differing) < 5
    megatron = cheapest_layouts(step, mesh, MEDIUM)
    assert "block0/add_1" in megatron.differing, "the sums between products, in parts, are not said in seeds"


@pytest.mark.parametrize(
    ("build", "price"),
    daily(
        product([*NETS.values(), block], [CHEAP, MEDIUM]),
        lambda build, price: (build is block) == (price is MEDIUM),
    ),
)
def test_a_session_with_the_seeds_has_the_layouts_that_are_reported(
    build: Callable[[], Net], price: Prices
) -> None:
    mesh = mesh_of(tp=4)
    found = cheapest_layouts(step_of(build), mesh, price)
    seeds = found.seeds._replace(stored={})
    step = step_under(build, mesh, seeds)
    assert propagated(step_of(build), mesh, seeds).outputs == propagate(step, mesh).outputs
    if not found.seeds.stored:
        assert cost_of(propagate(step, mesh), price) == found.as_propagated


@pytest.mark.parametrize("net", ["mlp", "gpt"])
def test_seeds_train_as_one_device_does(net: str) -> None:
    mesh = Mesh([("tp", 4)])
    seeds = cheapest_layouts(step_of(NETS[net]), mesh, CHEAP).seeds
    losses, _ = trained(NETS[net], mesh, seeds.batch, seeds.variables, steps=3)
    assert losses == pytest.approx(trained(NETS[net], steps=3)[0], rel=1e-6)


def test_a_limit_of_bytes_puts_variables_in_parts() -> None:
    step, mesh = step_of(NETS["mlp"]), mesh_of(dp=4)
    whole = cheapest_layouts(step, mesh, DEAR)
    limit = whole.cost.state_bytes // 2
    found = cheapest_layouts(step, mesh, DEAR, limit)
    assert whole.cost.state_bytes > limit >= found.cost.state_bytes
    assert found.cost.seconds > whole.cost.seconds
    assert found.at_least <= found.cost.seconds
    assert emitted(found.layouts) == (found.cost.collectives, found.cost.moved_bytes)
    with pytest.raises(ResourceExhaustedError, match=r"at most 100 bytes .* got \d"):
        cheapest_layouts(step, mesh, DEAR, 100)


def test_an_axis_of_time_is_refused() -> None:
    with pytest.raises(InvalidArgumentError, match=r"expected a mesh with axes of space; got \[time m=2\]"):
        cheapest_layouts(step_of(NETS["mlp"]), Mesh([Axis("m", 2, True)]), CHEAP)


def test_equal_blocks_are_found() -> None:
    step, mesh = step_of(lambda: gpt(blocks=5)), mesh_of(tp=2)
    parts = parts_of(step, mesh)
    classes = classes_of(step, parts, [np.zeros(len(part.choices)) for part in parts])
    first = {name: classes[i] for i, part in enumerate(parts) for name in part.members}
    for name in ("block{}/query", "block{}/w2", "block{}/Softmax", "block{}/w1"):
        assert len({first[name.format(block)] for block in range(1, 4)}) == 1
    assert first["block1/query"] != first["block1/key"]
    step = step_of(lambda: random_net(0, 3))
    parts = parts_of(step, mesh)
    found = classes_of(step, parts, [np.zeros(len(part.choices)) for part in parts])
    assert found == list(range(len(parts)))
