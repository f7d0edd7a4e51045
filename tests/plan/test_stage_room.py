"""Stages of plans that are cut so that they fit: estimates, graphs and files have the same cut."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import flowrt as tf
from flowrt.errors import ResourceExhaustedError
from flowrt.graph.passes.layouts.stages.assign_stages import stage_of
from flowrt.plan.choice import Choice
from flowrt.plan.cluster.cluster_file import this_host
from flowrt.plan.machine import CORE
from flowrt.plan.plan_file import Plan, read_plan, write_plan
from flowrt.plan.step.applied import applied
from flowrt.plan.task import Task, costs_of
from tests.distribute.strategies.nets_with_layouts import Net
from tests.plan import test_applied

ENOUGH = 150_000
"""For one of the two variables, with its gradient and Adam's states of 32 KiB each, but not for both."""


def tables() -> Any:
    """Two variables that take no time, and layers behind them."""
    h = x = tf.placeholder(tf.float32, [8, 16])
    for name in ("first", "second"):
        h = tf.tanh(h + tf.reduce_sum(tf.get_variable(name, [448, 16]), 0))
    for layer in range(6):
        h = tf.layers.dense(h, 16, tf.nn.relu, name=f"layer{layer}")
    loss = tf.reduce_mean(tf.square(h - x))
    return Net({x: np.zeros((8, 16))}, loss, tf.train.AdamOptimizer(0.1).minimize(loss))


def task(memory: int) -> Task:
    """On two devices, which are a pipeline."""
    recorded = test_applied.recorded(tables)
    cluster = this_host(2, replace(CORE, memory=memory))
    return Task(recorded, cluster, costs_of(recorded, cluster), {"pp": 2})


def test_pipelines_that_do_not_fit_are_cut_otherwise() -> None:
    """By costs, both variables are at the first stage."""
    ample = task(1 << 30).planned(1).best
    assert ample.choice.memory is None
    best = task(ENOUGH).planned(1).best
    assert best.choice.memory == ENOUGH
    assert best.estimate.nbytes <= ENOUGH < ample.estimate.nbytes
    assert best.nbytes <= ENOUGH
    with pytest.raises(ResourceExhaustedError, match="the smallest needs"):
        task(60_000).estimates()


CHOICES = [
    Choice(pp=2, micro_batches=4, memory=ENOUGH),
    Choice(pp=2, dp=2, micro_batches=2, schedule="gpipe", remat=True, memory=ENOUGH),
]


@pytest.mark.parametrize("choice", CHOICES, ids=str)
def test_a_script_written_for_the_strategy_has_the_same_stages(choice: Choice) -> None:
    carried = test_applied.carried_out(tables, choice)
    written = test_applied.written(tables, choice)
    text_of = test_applied.text_of
    assert text_of(carried, choice.devices) == text_of(written, choice.devices)
    for step in (written, applied(test_applied.recorded(tables), choice)):
        assert [stage_of(step.nodes[name].attrs) for name in ("first", "second")] == [0, 1]


def test_a_file_has_the_memory(tmp_path: Path) -> None:
    path = str(tmp_path / "plan.json")
    write_plan(path, Plan(CHOICES[0], {}))
    assert read_plan(path).choice == CHOICES[0]
