"""All-reduces among devices of one task: the same bits in any order of the ranks, as on one device."""

import itertools
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import flowrt as tf
from flowrt import dtypes
from flowrt.device.spec import parse_device
from flowrt.distribute import collectives
from flowrt.errors import InvalidArgumentError
from flowrt.executor.program.edge_keys import contribution_keys
from flowrt.executor.program.joint_reduction import JointReductions
from flowrt.executor.verify.verify_program import checking
from flowrt.graph.node import Node
from flowrt.graph.ops.collective.transfer import contribute_op
from flowrt.graph.passes.pipeline import CompileOptions, compile_step
from flowrt.graph.passes.placement.partition import partition
from flowrt.graph.passes.prepare.prune import StepRequest
from flowrt.graph.passes.prepare.verify import verify_subgraph
from flowrt.tf1.graph_import.import_partitions import join_parts
from tests.distribute.collectives.expanded import device

RANKS = 8


def contributions(shape: tuple[int, ...], count: int, **attrs: Any) -> list[Node]:
    """The nodes of ``count`` ranks."""
    devices = tuple([f"/job:localhost/replica:0/task:0/device:CPU:{i}" for i in range(count)])
    known = {"reduction": "sum", "T": dtypes.float32, **attrs}
    return [
        Node(
            f"c/{rank}", contribute_op, (("x", 0),), (),
            {"tensor_name": "c", "devices": devices, "rank": rank, "shape": shape, **known},
            devices[rank], None, (),
        )
        for rank in range(count)
    ]  # fmt: skip


def joined(
    nodes: list[Node], values: list[Any], order: Any, step: JointReductions, sent: dict[str, Any]
) -> Any:
    """The results by rank, if ranks come in this order."""
    sent.clear()
    shape, dtype = nodes[0].attrs["shape"], nodes[0].attrs["T"].np
    for rank in order:
        step.of(nodes[rank], lambda: np.empty(shape, dtype)).contribute(rank, values[rank])
    return [sent[key] for key in contribution_keys(nodes[0])]


@pytest.mark.parametrize("count", [2, 3, 5])
@pytest.mark.parametrize("reduction", ["sum", "mean", "prod", "min", "max"])
def test_any_order_of_ranks_gives_the_same_bits(count: int, reduction: str) -> None:
    sent: dict[str, Any] = {}
    step = JointReductions(sent.__setitem__)
    nodes = contributions((7,), count, reduction=reduction)
    values = [np.random.default_rng(i).standard_normal(7, np.float32) for i in range(count)]
    before = [value.copy() for value in values]
    reduce = {"sum": np.add, "mean": np.add, "prod": np.multiply, "min": np.minimum, "max": np.maximum}
    expected = reduce[reduction].reduce(values) / (count if reduction == "mean" else 1)
    found = [joined(nodes, values, order, step, sent) for order in itertools.permutations(range(count))]
    assert len({result.tobytes() for results in found for result in results}) == 1
    np.testing.assert_allclose(found[0][0], expected, rtol=1e-5)
    np.testing.assert_array_equal(values, before)


def test_ranks_on_threads_add_each_value_once() -> None:
    sent: dict[str, Any] = {}
    step = JointReductions(sent.__setitem__)
    nodes = contributions((1000,), RANKS)
    values = [np.full(1000, 2.0**i, np.float32) for i in range(RANKS)]
    joint = step.of(nodes[0], lambda: np.empty(1000, np.float32))
    for _ in range(50):
        sent.clear()
        threads = [threading.Thread(target=joint.contribute, args=(r, values[r])) for r in range(RANKS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(sent) == RANKS
        assert all((result == 255).all() for result in sent.values())


# --- in steps


def ranks_of(count: int) -> list[Any]:
    """A value of [4, 6] on each device, computed there."""
    values = []
    for i in range(count):
        with tf.device(f"/cpu:{i}"):
            values.append(tf.sin(tf.constant(np.arange(24.0).reshape(4, 6) + i)))
    return values


def run(build: Callable[[list[Any]], Any], count: int, seed: int | None = None, threads: int = 1) -> Any:
    with tf.Graph().as_default() as graph:
        results = build(ranks_of(count))
        config = tf.ConfigProto(device_count={"CPU": count}, inter_op_parallelism_threads=threads)
        with checking(), tf.Session(graph=graph, config=config, seed=seed) as session:
            found = [session.run(results) for _ in range(3)]
    for again in found[1:]:
        for one, other in zip(found[0], again, strict=True):
            np.testing.assert_array_equal(one, other)
    return found[0]


def on_devices(values: list[Any], build: Callable[..., Any]) -> list[Any]:
    """``build`` of each value, on its device."""
    found = []
    for i, value in enumerate(values):
        with tf.device(f"/cpu:{i}"):
            found.append(build(value))
    return found


BUILDS: dict[str, Callable[[list[Any], str], Any]] = {
    "sum": lambda v, lowering: collectives.all_reduce(v, lowering=lowering),
    "mean": lambda v, lowering: collectives.all_reduce(v, "mean", lowering=lowering),
    "max": lambda v, lowering: collectives.all_reduce(v, "max", lowering=lowering),
    "gather": lambda v, lowering: collectives.all_gather(v, axis=1, lowering=lowering),
    "scatter": lambda v, lowering: collectives.reduce_scatter(v, axis=1, lowering=lowering),
    "of integers": lambda v, lowering: collectives.all_reduce(
        on_devices(v, lambda x: tf.cast(x * 9, tf.int32)), "mean", lowering=lowering
    ),
    "one after the other": lambda v, lowering: collectives.all_gather(
        on_devices(collectives.all_reduce(v, lowering=lowering), lambda x: x[:2] * 2), lowering=lowering
    ),
    "two in a chain": lambda v, lowering: collectives.all_gather(
        collectives.reduce_scatter(v, axis=0, lowering=lowering), lowering=lowering
    ),
    "of values of others": lambda v, lowering: collectives.all_reduce(v[::-1], lowering=lowering),
    "of large values": lambda v, lowering: on_devices(
        collectives.all_reduce(on_devices(v, lambda x: tf.tile(x, [50, 50]) + 1), lowering=lowering),
        lambda x: x[:2] * 2,
    ),
    "one is read elsewhere": lambda v, lowering: [
        sum(collectives.all_reduce(v, lowering=lowering)[1:], tf.zeros([4, 6], tf.float64))
    ],
}


@pytest.mark.parametrize("count", [2, 5])
@pytest.mark.parametrize("case", BUILDS)
def test_a_step_computes_what_an_algorithm_does(case: str, count: int) -> None:
    joint = run(lambda values: BUILDS[case](values, "auto"), count)
    ring = run(lambda values: BUILDS[case](values, "ring"), count)
    for one, other in zip(joint, ring, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-12)


@pytest.mark.parametrize("case", BUILDS)
def test_no_schedule_changes_a_bit(case: str) -> None:
    def build(values: list[Any]) -> Any:
        return BUILDS[case](values, "auto")

    expected = run(build, 3)
    for found in [*(run(build, 3, seed=seed) for seed in range(10)), run(build, 3, threads=2)]:
        for one, other in zip(found, expected, strict=True):
            np.testing.assert_array_equal(one, other)


def test_a_fetched_total_is_the_callers_own() -> None:
    with tf.Graph().as_default():
        totals = collectives.all_reduce(ranks_of(2))
        with tf.Session(config=tf.ConfigProto(device_count={"CPU": 2})) as session:
            first, second = session.run(totals)
            first[...] = 0
            assert second.any()
            np.testing.assert_array_equal(session.run(totals)[0], second)


def test_what_waits_for_a_collective_runs_after_it() -> None:
    with tf.Graph().as_default():
        total, _ = collectives.all_reduce(ranks_of(2))
        for i in range(3):  # on a rank of it, on the other, on none
            with tf.device(f"/cpu:{i}"), tf.control_dependencies([total.op]):
                assert run_one(tf.identity(float(i)), 3) == i


def run_one(tensor: Any, count: int) -> Any:
    with checking(), tf.Session(config=tf.ConfigProto(device_count={"CPU": count})) as session:
        return session.run(tensor)


def parts_of(build: Callable[[], list[Any]], count: int) -> tuple[Any, dict[str, Any]]:
    """The step before the cut, and its parts."""
    with tf.Graph().as_default() as graph:
        results = build()
        options = CompileOptions(devices=[parse_device(device(i)) for i in range(count)])
        placed = compile_step(StepRequest(graph, results, [], {}, ()), options)
    return placed, partition(placed)


def test_each_rank_has_two_operations() -> None:
    placed, parts = parts_of(lambda: collectives.all_reduce(ranks_of(RANKS)), RANKS)
    for part in parts.values():
        verify_subgraph(part)
    assert [node.op.name for node in placed if node.op.name == "AllReduce"] == ["AllReduce"]
    assert {
        tuple([node.op.name for node in part if node.op.name in ("_Contribute", "_Recv", "_Send", "AddV2")])
        for part in parts.values()
    } == {("_Contribute", "_Recv")}


def test_a_receive_waits_for_the_contribution_that_its_sender_needs() -> None:
    def build() -> list[Any]:
        totals = collectives.all_reduce(ranks_of(3))
        with tf.device("/cpu:1"):
            answer = totals[1] * 2
        with tf.device("/cpu:0"):
            return [answer + 1]

    _, parts = parts_of(build, 3)
    first = parts[device(0)]
    verify_subgraph(first)
    (received,) = [node for node in first if node.op.name == "_Recv" and "mul" in node.attrs["tensor_name"]]
    assert any(first.nodes[name].op.name == "_Contribute" for name in received.controls)


def test_a_collective_that_is_run_without_its_results() -> None:
    with tf.Graph().as_default():
        total, _ = collectives.all_reduce(ranks_of(2))
        assert run_one(total.op, 2) is None


def test_an_algorithm_that_is_named_is_expanded() -> None:
    placed, _ = parts_of(lambda: collectives.all_reduce(ranks_of(4), lowering="tree"), 4)
    assert sum(node.op.name == "AddV2" for node in placed) == 3


def test_parts_are_imported_as_the_whole_collective() -> None:
    placed, parts = parts_of(lambda: collectives.all_reduce(ranks_of(3), "max"), 3)
    nodes = {name: node for part in parts.values() for name, node in part.nodes.items()}
    (whole,) = [node for node in join_parts(nodes).values() if node.op.name == "AllReduce"]
    (before,) = [node for node in placed if node.op.name == "AllReduce"]
    assert (whole.inputs, whole.attrs["reduction"], whole.name) == (before.inputs, "max", before.name)
    del nodes[f"{before.name}/_contribute_1"]
    with pytest.raises(
        InvalidArgumentError, match=r"expected contributions of ranks 0 to 2 to .*; got \[0, 2\]"
    ):
        join_parts(nodes)
