"""Copies of variables between meshes: right for any two layouts, and no byte more than what lacks."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest

import flowrt as tf
from flowrt.device.spec import parse_device
from flowrt.distribute.launch.local_cluster import ReservedPorts
from flowrt.errors import DTypeError, InvalidArgumentError, UnimplementedError
from flowrt.graph.node import Subgraph
from flowrt.graph.passes.layouts.lower_copies import lower_copies
from flowrt.graph.passes.layouts.variable_shards import shards_of
from flowrt.graph.passes.prepare.infer import infer_shapes
from flowrt.graph.passes.prepare.prune import extract
from tests.each import nightly

CPUS = 6
CONFIG = tf.ConfigProto(device_count={"CPU": CPUS})
DEVICES = [parse_device(f"/job:localhost/replica:0/task:0/device:CPU:{index}") for index in range(CPUS)]


def mesh(axes: Sequence[tuple[str, int]], first: int = 0) -> tf.distribute.Mesh:
    """On the CPUs from ``first`` on."""
    count = math.prod(size for _, size in axes)
    return tf.distribute.Mesh(axes, [f"/cpu:{first + index}" for index in range(count)])


def variable(name: str, over: Any, value: Any, layout: Any, stored: Any = None) -> tf.Variable:
    initial = tf.constant(value)
    if over is None:
        return tf.get_variable(name, initializer=initial)
    with tf.distribute.LayoutStrategy(over).scope():
        return tf.get_variable(name, initializer=initial, layout=layout, stored=stored)


@pytest.fixture(autouse=True)
def graph() -> Iterator[None]:
    with tf.Graph().as_default():
        yield


MESHES = [None, [("a", 2)], [("a", 3)], [("a", 2), ("b", 2)], [("a", 1), ("b", 3)]]


def drawn(rng: random.Random, rank: int) -> tuple[Any, list[Any]]:
    """A mesh, or none, and a layout over it."""
    axes = rng.choice(MESHES)
    if axes is None:
        return None, [None] * rank
    entries: list[Any] = [[] for _ in range(rank)]
    for name, _ in axes:
        where = rng.randrange(rank + 1)
        if where < rank:
            entries[where].append(name)
    over = mesh(axes, rng.randrange(CPUS - math.prod(size for _, size in axes) + 1))
    return over, [tuple(names) or None for names in entries]


@pytest.mark.parametrize("seed", nightly(range(40), 10))
def test_any_layout_is_copied_to_any_other(seed: int) -> None:
    """Of even, uneven and empty parts; scalars, too."""
    rng = random.Random(seed)
    pairs = []
    for number in range(3):
        shape = rng.choice([(), (7,), (6, 4), (1, 5), (3, 4, 2)])
        value = np.arange(math.prod(shape), dtype=np.float32).reshape(shape) + 1
        source = variable(f"source{number}", *_at(drawn(rng, len(shape)), value))
        pairs.append((value, source, variable(f"target{number}", *_at(drawn(rng, len(shape)), 0 * value))))
    copy = tf.distribute.copy_variables([s for _, s, _ in pairs], [t for _, _, t in pairs])
    with tf.Session(config=CONFIG) as session:
        for each in tf.global_variables():
            session.run(each.initializer)
        session.run(copy)
        for value, source, target in pairs:
            np.testing.assert_array_equal(session.run(target), value)
            np.testing.assert_array_equal(session.run(source), value)


def _at(drawn: tuple[Any, Any], value: Any) -> tuple[Any, Any, Any]:
    return drawn[0], value, drawn[1]


def lowered(copy: tf.Operation) -> Subgraph:
    return lower_copies(infer_shapes(extract(tf.get_default_graph(), [], [copy], {})), DEVICES)


def sent_bytes(step: Subgraph) -> int:
    """Of tensors that are read on another device, once a device."""
    edges = {
        (ref, node.device)
        for node in step
        for ref in node.inputs
        if step.nodes[ref[0]].device not in ("", node.device) and node.device
    }
    return sum(
        math.prod(step.spec(ref).shape) * step.spec(ref).dtype.np.itemsize  # type: ignore[arg-type]
        for ref, _ in edges
    )


def lacking_bytes(source: tf.Variable, target: tf.Variable) -> int:
    """Of the elements that devices of the target keep, and do not have of the source."""
    numbers = np.arange(math.prod(source.shape.as_list())).reshape(source.shape.as_list())
    have: dict[str, set[int]] = {}
    for shard in shards_of(source.op.node, DEVICES):
        assert shard.handle is not None
        have.setdefault(shard.handle.device, set()).update(numbers[shard.slices].flat)
    wanted = [(s.handle, numbers[s.slices].flat) for s in shards_of(target.op.node, DEVICES)]
    return 4 * sum(len(set(part) - have.get(handle.device, set())) for handle, part in wanted if handle)


@pytest.mark.parametrize("first", [0, 1, 3])
@pytest.mark.parametrize(
    ("before", "after"), list(itertools.product([["a", None], [None, "a"], [None, None]], repeat=2))
)
def test_only_what_a_device_lacks_is_sent(before: Any, after: Any, first: int) -> None:
    """From two devices to three, which may be among them."""
    value = np.zeros((6, 5), np.float32)
    source = variable("source", mesh([("a", 2)]), value, before)
    target = variable("target", mesh([("a", 3)], first), value, after)
    step = lowered(tf.distribute.copy_variables([source], [target]))
    assert sent_bytes(step) == lacking_bytes(source, target)


def test_a_weight_kept_in_parts_is_moved_to_fewer_devices_after_it_was_trained() -> None:
    value = np.arange(12, dtype=np.float32).reshape(6, 2)
    actor = variable("actor", mesh([("dp", 3)]), value, [None, None], stored=["dp", None])
    smaller = variable("smaller", mesh([("tp", 2)], 4), 0 * value, [None, "tp"])
    copy = tf.distribute.copy_variables({"w": actor}, {"w": smaller})
    train = tf.train.MomentumOptimizer(1.0, 0.5).minimize(tf.reduce_sum(actor * actor), var_list=[actor])
    with tf.Session(config=CONFIG) as session:
        for each in tf.global_variables():
            session.run(each.initializer)
        for _ in range(2):
            session.run(train)
            session.run(copy)
            np.testing.assert_array_equal(session.run(smaller), session.run(actor))
        assert np.any(session.run(smaller) != value)


def test_copies_of_narrower_dtype_are_set_with_the_variable() -> None:
    value = np.arange(8, dtype=np.float32)
    source = variable("source", None, value, None)
    policy = tf.distribute.Precision("bfloat16")
    over = mesh([("dp", 2)])
    with tf.distribute.FullyShardedStrategy(over, "dp", stage=2, min_bytes=0, policy=policy).scope():
        target = tf.get_variable("target", initializer=tf.constant(0 * value))
        product = tf.matmul(tf.ones([1, 8]), tf.reshape(target, [8, 1]))
    copy = tf.distribute.copy_variables([source], [target])
    with tf.Session(config=CONFIG) as session:
        session.run([source.initializer])
        session.run([target.initializer])
        session.run(copy)
        np.testing.assert_array_equal(session.run(target), value)
        assert session.run(product) == [[28.0]]


def test_a_copy_between_the_tasks_of_a_cluster() -> None:
    value = np.arange(10, dtype=np.float32).reshape(5, 2)
    with ReservedPorts(2) as reserved:
        spec = {"worker": [f"127.0.0.1:{port}" for port in reserved.ports]}
        servers = [tf.train.Server(spec, "worker", index) for index in range(2)]
        names = [f"/job:worker/replica:0/task:{index}/device:CPU:0" for index in range(2)]
        source = variable("source", tf.distribute.Mesh([("a", 2)], names), value, ["a", None])
        target = variable("target", tf.distribute.Mesh([("a", 1)], names[1:]), 0 * value, ["a", None])
        copy = tf.distribute.copy_variables([source], [target])
        with tf.Session(servers[0].target) as session:
            for each in (source, target):
                session.run(each.initializer)
            session.run(copy)
            np.testing.assert_array_equal(session.run(target), value)
        for server in servers:
            server.stop()


def test_a_copy_comes_after_what_was_written_before_it_and_before_what_is_written_later() -> None:
    """In the order in which the operations of one step were made."""
    source = variable("source", None, np.ones(4, np.float32), None)
    target = variable("target", mesh([("a", 2)], 1), np.zeros(4, np.float32), ["a"])
    with tf.device("/cpu:3"):
        earlier = source.assign(tf.fill([4], tf.reduce_sum(tf.ones([100, 100])) / 1e4 * 5.0))
    copy = tf.distribute.copy_variables([source], [target])
    with tf.device("/cpu:0"):
        later = source.assign_add(np.ones(4, np.float32))
    with tf.Session(config=CONFIG) as session:
        session.run([source.initializer])
        session.run([later.op, copy, earlier.op])
        np.testing.assert_array_equal(session.run(target), np.full(4, 5.0))
        np.testing.assert_array_equal(session.run(source), np.full(4, 6.0))


# --- mistakes


def test_all_that_does_not_match_is_named() -> None:
    a = variable("a", None, np.zeros((2, 3), np.float32), None)
    b = variable("b", None, np.zeros((3, 2), np.float32), None)
    c = variable("c", None, np.zeros((2, 3), np.float64), None)
    copy = tf.distribute.copy_variables
    with pytest.raises(
        InvalidArgumentError, match=r"target lacks 'kernel'. Nearest: kernels; source lacks 'kernels'"
    ):
        copy({"kernel": a}, {"kernels": a})
    with pytest.raises(InvalidArgumentError, match=r"same keys; target lacks 'u'; source lacks 'w'$"):
        copy({"u": a}, {"w": a})
    shapes = r"0: a float32\[2, 3\] for b float32\[3, 2\]; 1: a float32\[2, 3\] for c float64\[2, 3\]"
    with pytest.raises(InvalidArgumentError, match=shapes):
        copy([a, a], [b, c])
    with pytest.raises(InvalidArgumentError, match="as many variables in target as in source, 2; got 1"):
        copy([a, b], [a])
    with pytest.raises(InvalidArgumentError, match="each variable once in target; got a twice"):
        copy([a, a], [a, a])
    with pytest.raises(InvalidArgumentError, match="two mappings or two lists"):
        copy({"a": a}, [a])
    with pytest.raises(DTypeError, match="expected a variable"):
        copy([a], [tf.zeros([2, 3])])


def test_a_step_that_copies_does_nothing_else_in_layouts() -> None:
    value = np.zeros(4, np.float32)
    source = variable("source", mesh([("a", 2)]), value, ["a"])
    target = variable("target", mesh([("a", 3)]), value, ["a"])
    copy = tf.distribute.copy_variables([source], [target])
    with tf.Session(config=CONFIG) as session:
        session.run(source.initializer)
        with pytest.raises(UnimplementedError, match="Run the copy in a step of its own"):
            session.run([copy, tf.reduce_sum(source)])


def test_a_mesh_that_is_too_large_is_one_error() -> None:
    value = np.zeros(4, np.float32)
    source = variable("source", None, value, None)
    target = variable("target", tf.distribute.Mesh([("a", 9)]), value, ["a"])
    copy = tf.distribute.copy_variables([source], [target])
    with (
        tf.Session(config=CONFIG) as session,
        pytest.raises(InvalidArgumentError, match="expected 9 devices; got 6"),
    ):
        session.run(copy)
