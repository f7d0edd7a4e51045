"""Collectives of one session with a device a rank, by the contract: every algorithm, and native ones, for
which nobody has to join a group.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest

import flowrt as tf
from flowrt.distribute import collectives
from flowrt.distribute.launch.local_cluster import ReservedPorts
from flowrt.graph.collectives.algorithms import ALGORITHMS, Group, algorithms_for
from flowrt.graph.collectives.cost import LINKS_VARIABLE
from tests.contracts.check_collectives import CheckCollectives, CollectiveCall, Meet, Perform, arrays, check
from tests.distribute.collectives.expanded import perform, placed, placeholders
from tests.distribute.collectives.group_parts import meet


class TestExpanded(CheckCollectives):
    @pytest.fixture(params=sorted({name for found in ALGORITHMS.values() for name in found}))
    def perform(self, request: pytest.FixtureRequest) -> Perform:
        return functools.partial(perform_by, request.param)

    @pytest.fixture(params=sorted(ALGORITHMS["Barrier"]))
    def meet(self, request: pytest.FixtureRequest) -> Meet:
        return functools.partial(meet, lowering=request.param)


def perform_by(
    lowering: str, p: int, calls: Sequence[CollectiveCall], **cluster: Any
) -> list[list[Any] | None]:
    """By one algorithm, the ``calls`` that have it; "auto" takes one of these."""
    having = [call for call in calls if lowering in algorithms_for(call.kind, Group((0,) * p))]
    found = iter(perform(p, having, lowering, **cluster) if having else ())
    return [next(found) if any(call is one for one in having) else None for call in calls]


@pytest.fixture(scope="module")
def target() -> Iterator[str]:
    """A cluster of three tasks, each with three devices."""
    with ReservedPorts(3) as reserved:
        tasks = tf.train.ClusterSpec({"w": [f"127.0.0.1:{port}" for port in reserved.ports]})
        config = tf.ConfigProto(device_count={"CPU": 3})
        servers = [tf.train.Server(tasks, "w", i, config=config) for i in range(3)]
        yield servers[0].target
        for server in servers:
            server.stop()


class TestHierarchicalBetweenTasks(CheckCollectives):
    """The one algorithm that asks which ranks have one task."""

    @pytest.fixture
    def perform(self, target: str) -> Perform:
        return functools.partial(perform_by, "hierarchical", target=target, ranks_a_task=3)

    @pytest.fixture
    def meet(self) -> Meet:
        return functools.partial(meet, lowering="hierarchical")


class TestNativeInOneStep(CheckCollectives):
    @pytest.fixture
    def perform(self) -> Perform:
        return functools.partial(perform, lowering="native")

    @pytest.fixture
    def meet(self) -> Meet:
        return functools.partial(meet, lowering="native")


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


LOWERINGS = ("auto", "native")


@pytest.mark.parametrize("lowering", LOWERINGS)
@pytest.mark.parametrize("reduction", ["min", "max"])
def test_an_order_of_complex_numbers_is_refused_when_it_is_built(lowering: str, reduction: str) -> None:
    expected = (
        rf"test_expanded.py:\d+\): reduction {reduction}: expected real numbers, which have an order; got"
    )
    for reduce in (collectives.all_reduce, collectives.reduce, collectives.reduce_scatter):
        with tf.Graph(), pytest.raises(tf.errors.DTypeError, match=expected):
            reduce([tf.constant([1 + 2j, 3.0]) for _ in range(3)], reduction, lowering=lowering)


@pytest.mark.parametrize("lowering", LOWERINGS)
def test_booleans_are_moved(lowering: str) -> None:
    """Five for three ranks: a rank's parts have different sizes."""
    given = np.array([[True, False, False, True, True], [False] * 5, [True] * 5])
    devices = [f"/cpu:{rank}" for rank in range(3)]
    with tf.Graph(), tf.Session(config=tf.ConfigProto(device_count={"CPU": 3})) as session:
        fed = tf.placeholder(tf.bool, [3, 5])
        values = []
        for rank, device in enumerate(devices):
            with tf.device(device):
                values.append(tf.identity(fed[rank]))
        found = session.run(
            {
                "all_gather": collectives.all_gather(values, lowering=lowering),
                "gather": [collectives.gather(values, lowering=lowering)],
                "broadcast": collectives.broadcast(values[0], devices, lowering=lowering),
                "scatter": collectives.scatter(values[0], devices, lowering=lowering),
                "all_to_all": collectives.all_to_all(values, lowering=lowering),
            },
            {fed: given},
        )
    cut = [np.array_split(row, 3) for row in given]
    expected = {
        "all_gather": [given.reshape(-1)] * 3,
        "gather": [given.reshape(-1)],
        "broadcast": [given[0]] * 3,
        "scatter": cut[0],
        "all_to_all": [np.concatenate([row[rank] for row in cut]) for rank in range(3)],
    }
    for kind, arrays_of_ranks in expected.items():
        for one, other in zip(found[kind], arrays_of_ranks, strict=True):
            assert one.dtype == bool
            np.testing.assert_array_equal(one, other, kind)


def test_links_that_are_none_are_refused_where_they_are_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(LINKS_VARIABLE, "fast")
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"FLOWRT_LINKS: expected .*got 'fast'"):
        perform(2, [CollectiveCall("AllReduce", arrays(2, np.float32, 3))])
