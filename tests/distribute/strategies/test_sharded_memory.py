"""What a fully sharded step has in memory: the events of each unit by the clock, the pools' most bytes."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import pytest

import flowrt as tf
from flowrt.executor.buffers.buffer_assignment import Storage
from flowrt.graph.node import Ref
from flowrt.graph.ops.collective.together import GRAIN, gather_together_op, take_apart_op
from tests.distribute.strategies.standing_workers import Answers
from tests.distribute.strategies.test_offload import LAYER, LAYERS, UNITS, WIDTH, layers, mesh

SMALL = 128 << 10
"""All else that a step has: the activations of 4 rows, and numbers."""


class Event(NamedTuple):
    """``what`` happens to the unit of ``layer`` at that time: it is gathered, used, or its memory is free."""

    nanoseconds: int
    what: str
    layer: int
    stretch: int


def session_of(size: int) -> Any:
    """A session of `layers` at stage 3, on devices other than the host's. Its variables are set one by one:
    the plan of an initializer would keep memory of its own.
    """
    with tf.distribute.FullyShardedStrategy(mesh(size), units=UNITS).scope():
        net = layers()
    session = tf.Session(config=tf.ConfigProto(device_count={"CPU": size + 1}))
    rng = np.random.default_rng(0)
    for variable in tf.global_variables():
        variable.load(rng.uniform(0.0, 0.1, variable.shape.as_list()).astype(np.float32), session)
    return session, net


def traced(session: Any, fetches: Any, feeds: Any) -> tuple[list[Any], dict[tuple[str, str], Any]]:
    """The parts of a step on the devices of the mesh, and when its nodes ran, by device and name."""
    metadata, options = tf.RunMetadata(), tf.RunOptions(trace_level=tf.RunOptions.FULL_TRACE)
    session.run(fetches, feeds)
    session.run(fetches, feeds, options=options, run_metadata=metadata)
    plan = [plan for request in session._requests.values() for plan in request.plans.values()][-1]
    parts = [part for part in plan.partitions.values() if not part.device.name.endswith("CPU:0")]
    ran = {
        (stats.device, node.node_name): (
            node.all_start_nanos + node.op_start_rel_nanos,
            node.all_start_nanos + node.op_end_rel_nanos,
        )
        for stats in metadata.step_stats.dev_stats
        for node in stats.node_stats
    }
    return parts, ran


def gathered_units(part: Any) -> dict[str, list[Ref]]:
    """What is gathered of each unit in each stretch on this part's device: the node, and its views."""
    nodes = part.subgraph.nodes
    return {
        nodes[node.inputs[0][0]].name: [(node.name, i) for i in range(len(node.outputs))]
        for node in part.subgraph
        if node.op is take_apart_op
    }


def events_of(part: Any, ran: dict[tuple[str, str], Any]) -> list[Event]:
    """By the clock: a unit is free when the last of its readers has ended."""
    found = []
    for name, views in gathered_units(part).items():
        layer, _, stretch = name.removeprefix("layer").partition("/w/ReadVariableOp/stretch")
        which = int(layer), int(re.split("[@/]", stretch)[0])
        readers = [other.name for other in part.subgraph if not {*views}.isdisjoint(other.inputs)]
        times = [ran[part.device.name, reader] for reader in readers]
        found.append(Event(ran[part.device.name, name][0], "gather", *which))
        found += [Event(start, "use", *which) for start, _ in times]
        found.append(Event(max(end for _, end in times), "free", *which))
    return sorted(found)


def test_each_unit_is_gathered_used_and_freed_in_each_pass_by_the_clock() -> None:
    """Forward, and again backward, but for the first and the last unit; never more than two are there."""
    with tf.Graph().as_default():
        session, net = session_of(2)
        with session:
            parts, ran = traced(session, [net.loss, net.train], net.feeds)
    assert len(parts) == 2
    for part in parts:
        log = events_of(part, ran)
        for layer in range(LAYERS):
            mine = [event.what for event in log if event.layer == layer]
            once = ["gather", "use", "free"]
            assert mine == {0: once, LAYERS - 1: ["gather", "use", "use", "free"]}.get(layer, once * 2), log
        gathers = [event.layer for event in log if event.what == "gather"]
        assert gathers == [*range(LAYERS), *range(LAYERS - 2, 0, -1)]
        here: set[int] = set()
        for event in log:
            (here.discard if event.what == "free" else here.add)(event.stretch)
            assert len(here) <= 2, log
        assert not here
        check_reuse(part, log)


def check_reuse(part: Any, log: Sequence[Event]) -> None:
    """Units that are gathered to the same bytes are not there at the same time."""
    memory, span = part.buffers.memory, {}
    for event in log:
        begin, _ = span.get(event.stretch, (event.nanoseconds, 0))
        span[event.stretch] = begin, event.nanoseconds
    placed = {
        int(re.split("[@/]", name.partition("/stretch")[2])[0]): memory.offsets[name, 0]
        for name in gathered_units(part)
    }
    assert set(placed) == set(span)
    for one, at in placed.items():
        for other, there in placed.items():
            if one < other and abs(at - there) < LAYER:
                assert span[one][1] <= span[other][0] or span[other][1] <= span[one][0], (one, other)


class Most(NamedTuple):
    """The bytes of a pool before the step, and the most in it, and the gathers of units that both passes
    need.
    """

    kept: int
    nbytes: int
    gathers: int


def most_of_parameters(mesh: Any, count: int, **workers: Any) -> list[Most]:
    """Of each device of ``mesh`` that is here, in a step of layers, each a unit of ``count`` variables. The
    gradient of what is added in front of frozen layers needs all of these again, and nothing else that is
    large: they have no gradients, no states and no messages of these.
    """
    with tf.distribute.FullyShardedStrategy(mesh, units=r"layer\d|\w+", **workers).scope():
        x = tf.placeholder(tf.float32, [4, WIDTH])
        h = x + tf.get_variable("in_front", [WIDTH])
        for layer in range(LAYERS):
            columns = [
                tf.get_variable(f"layer{layer}/w{i}", [WIDTH, WIDTH // count], trainable=False)
                for i in range(count)
            ]
            h = tf.nn.relu(tf.concat([tf.matmul(h, each) for each in columns], 1))
        train = tf.train.AdamOptimizer(1e-3).minimize(tf.reduce_mean(tf.square(h)))
    with tf.Session(config=tf.ConfigProto(device_count={"CPU": 5})) as session:
        for variable in tf.global_variables():
            variable.load(np.full(variable.shape.as_list(), 0.01, np.float32), session)
        kept = [device.pool.stats().bytes_in_use for device in session.devices]
        for _ in range(2):
            session.run(train, {x: np.ones((4, WIDTH))})
        plan = [plan for request in session._requests.values() for plan in request.plans.values()][-1]
        parts = {part.device.name: gathered_units(part) for part in plan.partitions.values()}
        return [
            Most(nbytes, device.pool.stats().peak_bytes_in_use, sum(map(is_in_both_passes, found)))
            for nbytes, device in zip(kept, session.devices, strict=True)
            if (found := parts.get(device.name))
        ]


def is_in_both_passes(gather: str) -> bool:
    return any(gather.startswith(f"layer{i}/") for i in range(1, LAYERS - 1))


@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize("size", [2, 4])
def test_the_most_bytes_of_parameters_in_both_passes(size: int, count: int) -> None:
    """Their parts and two units."""
    with tf.Graph().as_default():
        found = most_of_parameters(mesh(size), count)
    assert len(found) == size
    check_most(found, size)


@pytest.mark.parametrize("size", [2, pytest.param(4, marks=pytest.mark.slow)])
def test_so_it_is_in_processes(answers: Answers, size: int) -> None:
    for found in answers("peaks", size):
        check_most([Most(*each) for each in found], size)


def check_most(found: Sequence[Most], size: int) -> None:
    for most in found:
        assert most.gathers == 2 * (LAYERS - 2)
        assert most.kept <= LAYERS * LAYER // size + SMALL
        assert most.nbytes <= most.kept + 2 * LAYER + SMALL


@pytest.mark.parametrize("size", [1, 2, 4])
def test_the_most_bytes_of_a_pool(size: int) -> None:
    """Forward, the parts and two units. In training also the states, the gradients in parts, and two units'
    gradients, and what a ring of 4 devices has in messages of these.
    """
    whole = LAYERS * LAYER
    with tf.Graph().as_default():
        session, net = session_of(size)
        with session:
            devices = session.devices[1:]
            states = 3 * whole // size
            before = [device.pool.stats().bytes_in_use for device in devices]
            assert all(states <= nbytes <= states + SMALL for nbytes in before)
            session.run(net.loss, net.feeds)
            for device in devices:
                assert (
                    device.pool.stats().peak_bytes_in_use <= states + (2 if size > 1 else 0) * LAYER + SMALL
                )
    with tf.Graph().as_default():
        session, net = session_of(size)
        with session:
            devices = session.devices[1:]
            session.run(net.train, net.feeds)
            units = {1: 0, 2: 4, 4: 8}[size]  # one device has its variables whole, where they are
            for device in devices:
                most = states + whole // size + units * LAYER + SMALL
                assert device.pool.stats().peak_bytes_in_use <= most


@pytest.mark.parametrize("size", [2, 4])
def test_a_unit_is_gathered_by_one_operation_into_one_allocation(size: int) -> None:
    """Of which its variables are views, one behind the other, on each device; cut in whatever dimension."""
    shapes = {"a": [8, 5], "b": [5, 8], "c": [8], "d": [8, 8]}
    strategy = tf.distribute.FullyShardedStrategy(mesh(size), units=r"u\d", min_bytes=0)
    with tf.Graph().as_default():
        with strategy.scope():
            x = tf.placeholder(tf.float32, [4, 8])
            h = x
            for unit in ("u0", "u1", "u2"):
                a, b, c, d = (tf.get_variable(f"{unit}/{name}", shape) for name, shape in shapes.items())
                h = tf.tanh(h @ a @ b + c) @ d
        config = tf.ConfigProto(device_count={"CPU": size + 1})
        with tf.Session(config=config) as session:
            session.run(tf.global_variables_initializer())
            expected = rows = np.random.default_rng(0).standard_normal((4, 8))
            values = iter(session.run(tf.global_variables()))
            for a, b, c, d in zip(*[values] * 4, strict=True):
                expected = np.tanh(expected @ a @ b + c) @ d
            for _ in range(3):
                np.testing.assert_allclose(session.run(h, {x: rows}), expected, 1e-3, 1e-5)
            plan = [plan for request in session._requests.values() for plan in request.plans.values()][-1]
        for part in plan.partitions.values():
            if part.device.name.endswith("CPU:0"):
                continue
            gathers = [node for node in part.subgraph if node.op is gather_together_op]
            assert len(gathers) == 3
            for gather in gathers:
                (views,) = [
                    node
                    for node in part.subgraph
                    if node.op is take_apart_op and node.inputs == ((gather.name, 0),)
                ]
                assert part.buffers.storage[gather.name] is Storage.BUFFER
                assert part.buffers.storage[views.name] is Storage.VIEW
                sizes = [-(-int(np.prod(spec.shape)) * 4 // GRAIN) * GRAIN for spec in views.outputs]
                assert part.buffers.memory.sizes[gather.name, 0] == sum(sizes)
