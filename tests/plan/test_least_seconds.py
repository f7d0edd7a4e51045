"""What choices take at least: no step that is played takes less, so none is left out that would be best."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import cache

import pytest

from flowrt.graph.pipeline.replay import replay
from flowrt.graph.pipeline.schedules import order
from flowrt.graph.pipeline.times import Times
from flowrt.plan import planning
from flowrt.plan.choice import Choice
from flowrt.plan.cluster.cluster_file import DeviceKind, Wire, this_host
from flowrt.plan.compiled_costs import CompiledCosts
from flowrt.plan.least_seconds import least_seconds
from flowrt.plan.model import Model, Stage, Took
from flowrt.plan.planning import Planned
from flowrt.plan.stage_search import Shared, describe
from flowrt.plan.step.costs import Costs, Rates
from flowrt.plan.step.device_parts import part_alone
from flowrt.plan.step.emitted import THERE
from flowrt.plan.step.fewer_blocks import EqualBlocks
from flowrt.plan.task import Task, costs_of
from tests.plan import test_assembled, test_fewer_blocks

DTYPES = ("float32", "float64")
DEVICE = DeviceKind("device", dict.fromkeys(DTYPES, 1e8), 1 << 30, 1e8, dict.fromkeys(DTYPES, 1.0))
NETS = {"mlp": test_assembled.mlp, "layers": lambda: test_fewer_blocks.recorded(10, batch=64)}


@cache
def task(net: str) -> Task:
    recorded, cluster = NETS[net](), this_host(4, DEVICE)
    return Task(recorded, cluster, costs_of(recorded, cluster))


@pytest.fixture(autouse=True)
def _patience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(planning, "SEARCH_S", math.inf)


@cache
def all_played(net: str) -> Planned:
    """The best choices by estimates, whatever they take at least."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Task, "least_seconds", lambda self, choice: 0.0)
        return task(net).planned(12)


@pytest.mark.parametrize("net", NETS)
def test_no_step_takes_less(net: str) -> None:
    found = all_played(net).candidates
    assert len({(each.choice.dp, each.choice.tp, each.choice.pp) for each in found}) > 3
    for each in found:
        least = task(net).least_seconds(each.choice)
        assert 0.1 * each.seconds < least <= each.seconds, describe(each.choice)


TRANSFERS = {
    "gathered": Choice(dp=4, sharding=1),
    "gathered behind turns": Choice(dp=4, sharding=2, micro_batches=4),
    "shared layers": Choice(dp=2, tp=2, micro_batches=4),
    "both": Choice(dp=2, tp=2, sharding=1, micro_batches=2),
    "interleaved": Choice(tp=2, pp=2, micro_batches=8, schedule="interleaved", chunks=2),
    "zb_h1": Choice(tp=2, pp=2, micro_batches=8, schedule="zb_h1"),
}


@pytest.mark.parametrize("choice", TRANSFERS.values(), ids=TRANSFERS)
def test_no_step_takes_less_with_the_transfers_that_are_counted(choice: Choice) -> None:
    """On links so slow that these are most of what devices wait for."""
    cluster = this_host(4, DEVICE)
    cluster = replace(cluster, host=replace(cluster.host, link=Wire(1e-6, 1e6)))
    recorded = NETS["layers"]()
    found = Task(recorded, cluster, costs_of(recorded, cluster), {"tp": choice.tp})
    least, played = found.least_seconds(choice), found.given(choice).best.seconds
    assert 0.3 * played < least <= played


@pytest.mark.parametrize("net", NETS)
def test_what_is_not_played_is_not_better(net: str) -> None:
    found, every = task(net).planned(12), all_played(net)
    assert found.best.choice == every.best.choice
    assert found.slower
    played = {each.choice: each.seconds for each in every.candidates}
    for choice, seconds in found.slower:
        assert found.best.seconds <= seconds <= played[choice]
    assert played.keys() == {each.choice for each in (*found.candidates, *found.slower)}


@pytest.mark.parametrize("schedule", ["1f1b", "zb_h1", "gpipe"])
def test_least_seconds_are_those_of_the_schedule(schedule: str) -> None:
    """Four stages without transfers: with the exact replay, and what the optimizers take behind it."""
    stages = [Stage(Took(f), Took(b), 0, 0, 0, 0, Took(w), Took(u)) for f, b, w, u in
              ((8, 12, 4, 1), (8, 20, 4, 0), (4, 12, 8, 2), (12, 16, 8, 3))]  # fmt: skip
    found = least_seconds(
        Choice(pp=4, micro_batches=4, schedule=schedule), Model(tuple(stages), 1), Shared(),
        task("mlp").machine, 4,
    )  # fmt: skip
    times = [
        Times(f / 4, (b - w) / 4, w / 4) for f, b, w in ((8, 12, 4), (8, 20, 4), (4, 12, 8), (12, 16, 8))
    ]
    played = replay(order(schedule, 4, 4), times)
    ends = [float(played.end[line[-1]]) for line in played.schedule.actions]
    assert found == pytest.approx(max(end + u for end, u in zip(ends, (1, 0, 2, 3), strict=True)))


# --- seconds of operations


def test_few_blocks_take_as_long_as_all_when_they_are_compiled() -> None:
    step, costs = (
        test_fewer_blocks.recorded(10).step(has_parts=False),
        Costs(Rates({"float32": 1e9}, 1e8, 1e-6)),
    )
    blocks = EqualBlocks(step)
    few, all_blocks = CompiledCosts(blocks.fewer(4), costs), CompiledCosts(blocks.fewer(100), costs)
    assert blocks.fewer(4).left_out
    assert [few(step, node) for node in step] == [all_blocks(step, node) for node in step]


@pytest.mark.parametrize("net", NETS)
def test_nothing_that_is_compiled_is_lost(net: str) -> None:
    step, costs = NETS[net]().step(has_parts=False), Costs(Rates({"float32": 1e9}, 1e8, 1e-6))
    partition = part_alone(step).partition
    expected = sum(costs(partition.subgraph, node) for node in partition.subgraph
                   if partition.buffers.storage.get(node.name) not in THERE)  # fmt: skip
    compiled = CompiledCosts(EqualBlocks(step).fewer(4), costs)
    assert sum(compiled(step, node).seconds(1.0) for node in step) == pytest.approx(expected)
    assert expected < sum(costs(step, node) for node in step)
