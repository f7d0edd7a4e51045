"""All schedules, numbers of stages and of micro-batches: the numbers of one device, in one process and in
several. Most of them run nightly.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence

import numpy as np
import pytest

import flowrt as tf
from flowrt.graph.pipeline.schedules import TABLE
from tests.distribute.strategies.nets_in_stages import GRID, GRID_NETS, Trained, agree, trained
from tests.distribute.strategies.test_multi_worker_pipeline import answers
from tests.each import daily

SCHEDULES = [*TABLE]
EVERY_DAY = {
    ("skip connections", "1f1b", 4, 4), ("skip connections", "zbv", 2, 4),
    ("skip connections", "interleaved", 4, 8), ("tied embeddings", "zb_h2", 4, 4),
    ("tied embeddings", "gpipe", 2, 8),
}  # fmt: skip
"""A few: `test_pipeline` and `test_multi_worker_pipeline` have others."""


@functools.cache
def on_one_device(net: str) -> Trained:
    return trained(GRID_NETS[net])


@pytest.mark.parametrize(("net", "schedule", "p", "m"), daily(GRID, lambda *case: case in EVERY_DAY), ids=str)
def test_one_process(net: str, schedule: str, p: int, m: int) -> None:
    strategy = tf.distribute.PipelineStrategy(tf.distribute.Mesh([("pp", p)]), "pp", m, schedule)
    agree(trained(GRID_NETS[net], strategy), on_one_device(net), f"{net}, {schedule}, p={p}, m={m}")


@pytest.mark.slow
@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize(("processes", "stages"), [(2, 2), (4, 4), (2, 4)])
def test_several_processes(schedule: str, processes: int, stages: int) -> None:
    """One or two devices a process."""
    cases = [case for case in GRID if case[1] == schedule and case[2] == stages]
    for case, (first, *others) in zip(
        cases, answers([_word(case) for case in cases], processes), strict=True
    ):
        losses, variables = first
        assert not isinstance(losses, str), (case, first)
        found = Trained(losses, {name: np.array(value) for name, value in variables.items()})
        agree(found, on_one_device(case[0]), str(case))
        assert others == [first] * (processes - 1), case


def _word(case: Sequence[str | int]) -> str:
    return "grid " + "/".join(map(str, case))
