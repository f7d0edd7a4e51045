"""The one property of layouts: whatever the mesh and the layouts, results are those of one device."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import pytest

import flowrt as tf
from flowrt.graph.layouts.attributes import SUMMED
from flowrt.graph.layouts.layout import format_layout
from tests.each import nightly
from tests.graph.passes.layouts.random_layouts import (
    CONFIG,
    give,
    give_stages,
    random_layout,
    random_mesh,
    random_schedule,
    staged_mesh,
)
from tests.graph.passes.layouts.random_nets import RandomNet
from tests.graph.random_graphs import CALLS, CONTROL_FLOW, NOISE, RandomGraph

GRAPHS = 300
PER_TEST = 5


def results(drawn: RandomGraph, fetches: Any, update: Any) -> list[Any]:
    """Values before and after two updates of the variable, and the variable."""
    with drawn.graph, tf.Session(config=CONFIG) as session:
        session.run(drawn.variable.initializer)
        found = [session.run(fetches, drawn.point)]
        for _ in range(2):
            session.run(update, drawn.point)
            found.append(session.run(fetches, drawn.point))
        return [*found, session.run(drawn.variable)]


def check(
    seed: int, calls: int = 12, kinds: Sequence[Any] = CALLS, sums: bool = False, stages: bool = False
) -> None:
    """One random graph under one random mesh, with random layouts of its inputs, variable and tensors; with
    ``sums``, also of what contracts a dimension of the variable; with ``stages``, at random stages.
    """
    rng = np.random.default_rng(seed)
    drawn = RandomGraph(seed, calls, kinds)
    schedule = random_schedule(rng, 1) if stages else None
    if schedule is not None:
        give_stages(rng, drawn.graph, schedule.stages)
    with drawn.graph:
        slopes = [g for y in drawn.ys for g in tf.gradients(y, drawn.xs) if g is not None]
        fetches = [*drawn.ys, *map(tf.convert_to_tensor, slopes)]
        changes = [t for t in drawn.made if t.shape.as_list() == [3, 3]]
        update = drawn.variable.assign_add(0.1 * tf.stop_gradient(changes[int(rng.integers(len(changes)))]))
    expected = results(drawn, fetches, update)
    mesh = random_mesh(rng) if schedule is None else staged_mesh(rng, schedule)
    in_time = schedule is None
    stored = random_layout(rng, mesh, (3, 3), in_time=False)
    used = stored if rng.random() < 0.5 else random_layout(rng, mesh, (3, 3), in_time)
    with drawn.graph:
        give(drawn.variable, used, stored, schedule)
        if sums:
            summed = format_layout(random_layout(np.random.default_rng(seed), mesh, (3,), in_time))
            op = drawn.variable.op
            op.mutate(attrs={**op.node.attrs, SUMMED: summed})
        for x in drawn.xs[:-1]:
            give(x, random_layout(rng, mesh, x.shape.as_list(), in_time), schedule=schedule)
    found = results(drawn, fetches, update)
    what = f"seed {seed}, mesh {mesh}, variable {used} stored {stored}, {schedule and schedule.name}"
    for before, after in zip(expected, found, strict=True):
        for one, many in zip(before, after, strict=True):
            np.testing.assert_allclose(many, one, 1e-9, 1e-12, err_msg=what)


@pytest.mark.parametrize("first", nightly(range(0, GRAPHS, PER_TEST), 2))
def test_results_are_those_of_one_device(first: int) -> None:
    for seed in range(first, first + PER_TEST):
        check(seed)


@pytest.mark.parametrize("first", nightly(range(0, GRAPHS // 5, PER_TEST), 1))
def test_sums_in_parts_too(first: int) -> None:
    for seed in range(first, first + PER_TEST):
        check(seed, sums=True)


@pytest.mark.parametrize("first", nightly(range(0, GRAPHS // 5, PER_TEST), 1))
def test_loops_branches_and_draws_too(first: int) -> None:
    for seed in range(first, first + PER_TEST):
        check(seed, 8, (*CALLS, *NOISE, *2 * CONTROL_FLOW))


@pytest.mark.parametrize("first", nightly(range(0, GRAPHS // 5, PER_TEST), 1))
def test_stages_too(first: int) -> None:
    """With one micro-batch: such graphs mix the rows of a batch."""
    for seed in range(first, first + PER_TEST):
        check(seed, stages=True)
        check(seed, 6, (*CALLS, *NOISE, RandomGraph.loop, RandomGraph.scanned), stages=True)
        check(seed, 8, (*CALLS, *NOISE, *2 * CONTROL_FLOW), stages=True)


class Pipelined(NamedTuple):
    """A random net, whose variables change in each of three steps."""

    losses: list[float]
    variables: list[Any]


def trained(net: RandomNet, strategy: Any) -> Pipelined:
    with tf.Graph().as_default(), tf.Session(config=CONFIG) as session:
        tf.set_random_seed(1)
        step = net.build(strategy)
        session.run(tf.global_variables_initializer())
        losses = [session.run([step.loss, step.train], net.feeds(step.x))[0] for _ in range(3)]
        return Pipelined(losses, session.run(tf.global_variables()))


def nets_of_two_processes() -> list[RandomNet]:
    """Nets of which two processes have equally many devices."""
    return [net for net in map(RandomNet, range(12)) if net.num_devices % 2 == 0]


@pytest.mark.parametrize("first", nightly(range(0, 100, PER_TEST), 1))
def test_micro_batches_of_random_nets(first: int) -> None:
    """Random schedules, stages, rows and copies of the pipeline, with recomputation or without."""
    for seed in range(first, first + PER_TEST):
        net = RandomNet(seed)
        strategy = net.strategy()
        expected, found = trained(net, None), trained(net, strategy)
        what = f"seed {seed}, {strategy!r}, {strategy.kept}"
        np.testing.assert_allclose(found.losses, expected.losses, 1e-9, err_msg=what)
        for many, one in zip(found.variables, expected.variables, strict=True):
            np.testing.assert_allclose(many, one, 1e-9, 1e-12, err_msg=what)
