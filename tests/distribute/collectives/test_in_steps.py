"""Collectives as parts of steps: in loops and branches, with shapes that only the step knows, under any
schedule of the devices' programs, and between the tasks of a cluster.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import flowrt as tf
from flowrt.distribute import collectives
from flowrt.distribute.launch.local_cluster import ReservedPorts
from flowrt.errors import FailedPreconditionError, InvalidArgumentError
from flowrt.graph.collectives.algorithms import ALGORITHMS, Group, algorithms_for
from flowrt.graph.passes.placement.partition import partition, task_of
from flowrt.graph.resources import step_context as steps
from flowrt.graph.resources.step_groups import StepGroup
from flowrt.graph.shapes import num_elements
from tests.contracts.check_collectives import CollectiveCall, arrays, check, expected
from tests.distribute.collectives.expanded import build, device, perform, placed, placeholders

NAMES = [(k, name) for k, found in ALGORITHMS.items() for name in found if k != "Barrier"]


def session(p: int, **options: Any) -> tf.Session:
    return tf.Session(config=tf.ConfigProto(device_count={"CPU": p}), **options)


@pytest.mark.parametrize(("kind", "lowering"), NAMES)
def test_sizes_that_only_the_step_knows(kind: str, lowering: str) -> None:
    for p in (2, 3):
        if lowering not in algorithms_for(kind, Group((0,) * p)):
            continue
        call = CollectiveCall(kind, arrays(1 if kind in ("Broadcast", "Scatter") else p, np.float32, 7, 2))
        with tf.Graph():
            feeds, values = {}, []
            for rank, array in enumerate(call.values):
                with tf.device(device(rank)):
                    fed = tf.placeholder(tf.float32, [None, 2])
                    values.append(tf.boolean_mask(fed, fed[:, 0] > 0))
                feeds[fed] = array
            results = build(call, values, [device(rank) for rank in range(p)], lowering)
            with session(p) as s:
                found = s.run([r for r in results if r is not None], feeds)
        for result, want in zip(found, [w for w in expected(p, call) if w is not None], strict=True):
            np.testing.assert_array_equal(result, want)


@pytest.mark.parametrize("seed", range(5))
def test_any_order_of_the_programs_gives_the_same(seed: int) -> None:
    calls = [
        CollectiveCall("AllReduce", arrays(3, np.float32, 7)),
        CollectiveCall("AllToAll", arrays(3, np.float32, 5)),
        CollectiveCall("Gather", arrays(3, np.float32, 2), {"root": 1}),
    ]
    check(lambda p, c: perform(p, c, seed=seed), 3, calls)
    check(lambda p, c: perform(p, c, "ring", seed=seed), 3, calls[:1])


@pytest.mark.parametrize("lowering", ["ring", "native"])
def test_in_a_loop(lowering: str) -> None:
    """Three ranks average what they have, and add their numbers, five times."""
    with tf.Graph():
        start = []
        for rank in range(3):
            with tf.device(device(rank)):
                start.append(tf.constant([float(rank), 0.0]) * 1.0)

        def body(i: Any, *values: Any) -> list[Any]:
            placed = []
            for rank, value in enumerate(values):
                with tf.device(device(rank)):
                    placed.append(tf.add(value, float(rank)))
            return [i + 1, *collectives.all_reduce(placed, "mean", lowering=lowering)]

        results = tf.while_loop(lambda i, *_: i < 5, body, [0, *start])
        gradients = tf.gradients(results[1], start)
        with session(3) as s:
            values, found = s.run([results[1:], gradients])
    np.testing.assert_allclose(values, [[6.0, 5.0]] * 3)
    np.testing.assert_allclose(found, [[1 / 3, 1 / 3]] * 3, rtol=1e-6)


def test_in_a_branch() -> None:
    with tf.Graph():
        flag = tf.placeholder(tf.bool, [])
        values = []
        for rank in range(2):
            with tf.device(device(rank)):
                values.append(tf.constant([1.0, 2.0]) * (rank + 1.0))
        results = tf.cond(flag, lambda: collectives.all_reduce(values), lambda: [v * 1.0 for v in values])
        with session(2) as s:
            np.testing.assert_allclose(s.run(results, {flag: True}), [[3, 6]] * 2)
            np.testing.assert_allclose(s.run(results, {flag: False}), [[1, 2], [2, 4]])


def test_values_of_different_sizes() -> None:
    values = [np.full((rows, 2), rows, np.float32) for rows in (1, 0, 3)]
    for lowering in ("ring", "hypercube"):
        check(lambda p, c: perform(p, c, lowering), 3, [CollectiveCall("AllGather", values)])  # noqa: B023
    check(perform, 3, [CollectiveCall("Gather", values, {"root": 1})])


def test_native_ranks_on_one_device_and_in_steps_at_once() -> None:
    """Each of several threads has its own value: steps do not meet."""
    with tf.Graph():
        value = tf.placeholder(tf.float64, [1000])
        values = []
        for rank in range(5):
            with tf.device(device(rank // 2)):
                values.append(value * float(rank))
        total, *_ = collectives.all_reduce(values, lowering="native")
        parts = collectives.reduce_scatter(collectives.all_reduce(values, "max"), lowering="native")
        with session(3) as s, ThreadPoolExecutor(4) as pool:

            def run(number: int) -> bool:
                for _ in range(10):
                    found = s.run([total, *parts], {value: np.full(1000, float(number))})
                    if not all(np.all(f == (20 if i else 10) * number) for i, f in enumerate(found)):
                        return False
                return True

            assert all(pool.map(run, range(4), timeout=200))


def test_a_rank_of_a_step_that_fails_leaves_nobody_waiting() -> None:
    def fail() -> Any:
        raise ValueError("on purpose")

    with tf.Graph():
        values = []
        for rank in range(3):
            with tf.device(device(rank)):
                given = tf.py_func(fail, [], tf.float32) if rank == 1 else tf.ones([2])
                values.append(tf.reshape(given, [2]))
        results = collectives.all_reduce(values, lowering="native")
        with session(3) as s, pytest.raises(tf.errors.OpError, match="on purpose"):
            s.run(results)


def test_a_barrier_orders_what_is_behind_it() -> None:
    come: list[int] = []
    with tf.Graph():
        behind = []
        ops = []
        for rank in range(3):
            with tf.device(device(rank)):
                ops.append(tf.py_func(lambda r=rank: come.append(r), [], [], stateful=True))
        with tf.control_dependencies(ops):
            done = collectives.barrier([device(rank) for rank in range(3)])
        for rank in range(3):
            with tf.control_dependencies([done[rank]]), tf.device(device(rank)):
                behind.append(tf.py_func(lambda: np.int64(len(come)), [], tf.int64))
        with session(3) as s:
            assert s.run(behind) == [3, 3, 3]


# --- bad input


def test_values_that_differ_are_shown() -> None:
    with tf.Graph():
        a, b, c = (tf.zeros(shape) for shape in ([2, 3], [2, 3], [2, 4]))
        with pytest.raises(InvalidArgumentError, match=r"rank 0 has \[2, 3\], rank 2 has \[2, 4\]"):
            collectives.all_reduce([a, b, c])
        with pytest.raises(InvalidArgumentError, match=r"differ along axis 0 only; .* \[2, 3\].* \[2, 4\]"):
            collectives.all_gather([a, c])
        with pytest.raises(InvalidArgumentError, match="rank 0 has float32, rank 1 has int32"):
            collectives.all_reduce([a, tf.zeros([2, 3], tf.int32)])


def test_wrong_arguments() -> None:
    with tf.Graph():
        a, b = tf.zeros([2]), tf.zeros([2])
        for wrong, text in [
            (
                lambda: collectives.all_reduce([a, b], "median"),
                "one of sum, mean, prod, min, max; got 'median'",
            ),
            (lambda: collectives.reduce([a, b], root=2), r"root: expected a rank in \[0, 2\); got 2"),
            (lambda: collectives.all_reduce(a), "expected a list with one value per rank"),
            (lambda: collectives.all_reduce([]), "expected a list with one value per rank"),
            (
                lambda: collectives.all_gather([tf.zeros([]), tf.zeros([])]),
                "at least one dimension; got a scalar",
            ),
            (lambda: collectives.all_to_all([a, b], axis=1), "axis"),
        ]:
            with pytest.raises(InvalidArgumentError, match=text):
                wrong()
        results = collectives.all_reduce([a, b], lowering="rign")
        with session(2) as s, pytest.raises(InvalidArgumentError, match=r"ring, tree, .*; got 'rign'"):
            s.run(results)


# --- tasks


@pytest.fixture(scope="module")
def target() -> Iterator[str]:
    """A cluster of two tasks, each with two devices."""
    with ReservedPorts(2) as reserved:
        tasks = tf.train.ClusterSpec({"w": [f"127.0.0.1:{port}" for port in reserved.ports]})
        config = tf.ConfigProto(device_count={"CPU": 2})
        servers = [tf.train.Server(tasks, "w", i, config=config) for i in range(2)]
        yield servers[0].target
        for server in servers:
            server.stop()


@pytest.mark.parametrize("lowering", ["auto", "ring", "halving_doubling", "hierarchical"])
def test_between_the_devices_of_two_tasks(target: str, lowering: str) -> None:
    arrays_ = arrays(4, np.float32, 1001)
    call = CollectiveCall("AllReduce", arrays_)
    with tf.Graph():
        values = []
        for rank, array in enumerate(arrays_):
            with tf.device(device(rank, 2)):
                values.append(tf.identity(tf.Variable(array).initialized_value()))
        results = collectives.all_reduce(values, lowering=lowering)
        gathered = collectives.all_gather(results)
        with tf.Session(target) as s:
            for _ in range(2):
                found, everything = s.run([results, gathered])
    for rank in range(4):
        np.testing.assert_array_equal(found[rank], expected(4, call)[rank])
        np.testing.assert_array_equal(everything[rank], np.concatenate(expected(4, call)))


def test_a_rank_is_waited_for_as_long_as_its_step_lasts(monkeypatch: pytest.MonkeyPatch) -> None:
    """A minute passes at each look at the clock."""
    clock = SimpleNamespace(monotonic=itertools.count(0.0, 60.0).__next__)
    monkeypatch.setattr(steps, "time", clock)
    group, looked = StepGroup(), threading.Event()

    class Step:
        checks = 0

        def check(self) -> None:
            self.checks += 1
            if self.checks == 3:
                looked.set()

        def remaining_s(self) -> None:
            return None

    def take() -> Any:
        with steps.step_scope(Step()):
            return group.take("edge", 0)

    group.give("edge", 0, 2, 1.0, lambda values: {0: sum(values)})
    with ThreadPoolExecutor(1) as pool:
        taken = pool.submit(take)
        assert looked.wait(30)
        group.give("edge", 1, 2, 2.0, lambda values: {0: sum(values)})
        assert taken.result(30) == 3.0


def test_native_between_tasks_is_refused(target: str) -> None:
    with tf.Graph():
        values = []
        for rank in range(4):
            with tf.device(device(rank, 2)):
                values.append(tf.identity(tf.Variable(tf.zeros([2])).initialized_value()))
        results = collectives.all_reduce(values, lowering="native")
        with tf.Session(target) as s, pytest.raises(FailedPreconditionError, match="ranks in several tasks"):
            s.run(results)


def test_gradients_between_tasks(target: str) -> None:
    """Of a product at a rank of one task, scattered to all ranks and gathered in the other task."""
    with tf.Graph():
        values = []
        for rank in range(4):
            with tf.device(device(rank, 2)):
                values.append(tf.identity(tf.Variable(np.full(3, rank + 1.0)).initialized_value()))
        total = collectives.reduce(values, "prod", root=2)
        spread = collectives.scatter(total, [device(rank, 2) for rank in range(4)], root=2)
        joined = collectives.gather(spread, root=1)
        gradients = tf.gradients(joined * [1.0, 2.0, 3.0], values)
        with tf.Session(target) as s:
            found = s.run(gradients)
    for rank in range(4):
        np.testing.assert_allclose(found[rank], np.array([1.0, 2, 3]) * 24 / (rank + 1))


def test_what_crosses_between_tasks() -> None:
    """Of four ranks in two tasks: by the hierarchy half as much as by pairs."""
    crossing = {}
    for lowering in ("halving_doubling", "hierarchical"):
        with tf.Graph():
            feeds = placeholders(arrays(4, np.float32, 400), ranks_a_task=2)
            results = collectives.all_reduce(list(feeds), lowering=lowering)
            parts = partition(placed(4, results, feeds, ranks_a_task=2), task_of)
        sends = [(n, part) for part in parts.values() for n in part if n.op.name == "_Send"]
        crossing[lowering] = sum(num_elements(part.spec(n.inputs[0]).shape) or 0 for n, part in sends)
    assert crossing == {"halving_doubling": 1600, "hierarchical": 800}
