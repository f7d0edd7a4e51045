"""Collectives of one session with a device a rank, by the contract: every algorithm, and native ones, for
which nobody has to join a group.
"""

from __future__ import annotations

import functools

import numpy as np
import pytest

import flowrt as tf
from flowrt.distribute import collectives
from flowrt.graph.collectives.algorithms import ALGORITHMS, Group, algorithms_for
from flowrt.graph.collectives.cost import LINKS_VARIABLE
from tests.contracts.check_collectives import CheckCollectives, CollectiveCall, Perform, arrays, check
from tests.distribute.collectives.expanded import perform, placed, placeholders


class TestExpanded(CheckCollectives):
    @pytest.fixture
    def perform(self) -> Perform:
        return perform


class TestNativeInOneStep(CheckCollectives):
    @pytest.fixture
    def perform(self) -> Perform:
        return functools.partial(perform, lowering="native")


@pytest.mark.parametrize("p", (1, 2, 3, 5, 8))
@pytest.mark.parametrize(
    ("kind", "lowering"), [(k, name) for k, found in ALGORITHMS.items() for name in found]
)
def test_every_algorithm(kind: str, lowering: str, p: int) -> None:
    if kind == "Barrier" or lowering not in algorithms_for(kind, Group((0,) * p)):
        return
    count = 1 if kind in ("Broadcast", "Scatter") else p
    roots = [{"root": p - 1}] if kind in ("Broadcast", "Scatter", "Gather", "Reduce") else [{}]
    calls = [
        CollectiveCall(kind, arrays(count, dtype, *shape), attrs)
        for attrs in roots
        for dtype, shape in [
            (np.float32, (11, 2)),
            (np.int64, (p,)),
            (np.float16, (1, 3)),
            (np.float64, (0,)),
        ]
    ]
    check(functools.partial(perform, lowering=lowering), p, calls)


def test_bfloat16() -> None:
    kind = tf.bfloat16.as_numpy_dtype
    for lowering in ("ring", "tree"):
        check(
            functools.partial(perform, lowering=lowering),
            3,
            [CollectiveCall("AllReduce", arrays(3, kind, 7))],
        )


@pytest.mark.parametrize(
    ("links", "lowering"),
    [("between=1e-2,1e-12", "halving_doubling"), ("between=1e-9,1e-9", "ring"), ("", "ring")],
)
def test_the_links_of_the_environment_choose_the_algorithm(
    links: str, lowering: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(LINKS_VARIABLE, links)
    with tf.Graph():
        feeds = placeholders(arrays(5, np.float32, 1 << 20), ranks_a_task=1)
        sums = collectives.all_reduce(list(feeds))
        assert f"AllReduce/_{lowering}/" in " ".join(placed(5, sums, feeds, ranks_a_task=1).nodes)


def test_links_that_are_none_are_refused_where_they_are_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(LINKS_VARIABLE, "fast")
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"FLOWRT_LINKS: expected .*got 'fast'"):
        perform(2, [CollectiveCall("AllReduce", arrays(2, np.float32, 3))])
