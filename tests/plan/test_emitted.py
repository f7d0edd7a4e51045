"""Emitted programs are those that real processes run."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import flowrt as tf
from flowrt.errors import UnimplementedError
from flowrt.executor.analysis.cost import node_seconds
from flowrt.executor.buffers.buffer_assignment import Storage
from flowrt.plan.replay.played import ClassProgram, Lane, Meeting, Message
from flowrt.plan.step.device_parts import device_parts
from flowrt.plan.step.emitted import class_program, emitted
from tests.distribute.strategies import nets_in_stages
from tests.distribute.strategies.standing_workers import StandingWorkers
from tests.each import daily
from tests.plan.cases import CASES, request_of, requested, wide

SCRIPT = Path(__file__).with_name("part_script.py")
EVERY_RUN = ("tp x turns gpt", "stage 3", "wide 1f1b")
"""Cases that meet all of what others do one by one."""

GRAIN = 256
"""Bytes: the pool's chunks are multiples."""

Axis, Mesh = tf.distribute.Axis, tf.distribute.Mesh


@pytest.fixture(scope="module")
def two_workers() -> Iterator[StandingWorkers]:
    with StandingWorkers(SCRIPT, 2) as workers:
        yield workers


@pytest.mark.parametrize("case", daily(zip(CASES), lambda case: case in EVERY_RUN))
def test_a_part_is_what_a_process_runs_and_keeps(two_workers: StandingWorkers, case: str) -> None:
    real = two_workers.ask(case)
    request = requested(case)
    weights = frozenset(v.op.name for v in request.graph.get_collection("trainable_variables"))
    for part in device_parts(request):
        theirs = real[part.rank]
        expected = [re.sub(r"/layouts\d+", "/plan", line) for line in theirs["operations"]]
        found = [f"{node.op.name} {node.name} {node.outputs}" for node in part.partition.schedule.order]
        assert _without_feeds(found) == _without_feeds(expected)
        assert {*found} == {*expected}
        held = class_program(part, node_seconds, weights).held
        assert held["activations"] == theirs["arena"]
        assert held["weights"] + held["states"] + held["copies"] == theirs["variables"]
        if theirs["pooled"]:
            arena = -(-held["activations"] // GRAIN) * GRAIN
            assert arena + theirs["pooled"] == theirs["peak"]


def _without_feeds(operations: Sequence[str]) -> list[str]:
    """Those of which the order is that of time: feeds are there before the step."""
    return [operation for operation in operations if not operation.startswith("_Feed ")]


def _played(strategy: Any, seconds: Any = node_seconds) -> tuple[ClassProgram, ...]:
    return emitted(request_of(strategy, wide), seconds)


def _meetings(program: ClassProgram) -> list[Meeting]:
    return [work.meets for work in program.works if isinstance(work.meets, Meeting)]


LAYER = 4 * 256 * 256


@pytest.mark.parametrize("count", [2, 8, 256])
def test_fully_sharded_programs_gather_twice_and_scatter_once(count: int) -> None:
    strategy = tf.distribute.FullyShardedStrategy(
        Mesh([("dp", count)]), stage=3, units=r"layer\d", min_bytes=0
    )
    (program,) = _played(strategy)
    by_kind = {
        kind: [m.nbytes for m in _meetings(program) if m.kind == kind]
        for kind in ("all_gather", "reduce_scatter")
    }
    assert by_kind["all_gather"] == [LAYER] * 4  # the first layer once, as nothing needs the gradient of its
    assert by_kind["reduce_scatter"] == [LAYER] * 3  # input, and the last, as its passes follow each other
    assert program.held["weights"] == 3 * LAYER // count
    assert program.held["states"] == 6 * LAYER // count + 8


def test_works_are_in_the_order_of_the_thread() -> None:
    """What follows a wait starts behind the meeting; a meeting starts behind what the thread did before."""
    strategy = tf.distribute.LayoutStrategy(Mesh([("dp", 4)]), "dp")
    (program,) = _played(strategy)
    last = None
    for number, work in enumerate(program.works):
        assert all(before < number for before in work.after)
        if work.lane is Lane.COMPUTE:
            last = number
        else:
            assert last is None or last in work.after
    assert [(m.kind, m.axes, m.nbytes) for m in _meetings(program)] == [
        ("all_reduce", ("dp",), 3 * LAYER + 4)  # the loss too
    ]
    awaited = {n for work in program.works if work.lane is Lane.COMPUTE for n in work.after}
    assert awaited.issuperset(n for n, work in enumerate(program.works) if work.meets)


def test_all_seconds_of_nodes_are_in_works() -> None:
    """Each node that computes is in one work, those of an action together."""
    strategy = tf.distribute.PipelineStrategy(Mesh([("pp", 2)]), "pp", 4, "1f1b")
    request = request_of(strategy, wide)
    programs = emitted(request, lambda subgraph, node: 1.0)
    for part, program in zip(device_parts(request), programs, strict=True):
        computing = [w for w in program.works if w.lane is Lane.COMPUTE]
        travelling = {"_GroupStart", "_GroupWait", "_TaggedSend", "_TaggedRecv", "_GroupAgree"}
        storage = part.partition.buffers.storage
        there = (Storage.CONSTANT, Storage.RESOURCE, Storage.VIEW)
        nodes = [
            n
            for n in part.partition.schedule.order
            if n.op.name not in travelling and storage[n.name] not in there
        ]
        assert sum(w.seconds for w in computing) == len(nodes)
        actions = [str(w.action) for w in computing if w.action is not None]
        in_order = list(dict.fromkeys(actions))
        expected = strategy.schedule.actions[program.position]
        assert in_order == [str(action) for action in expected]


def test_messages_of_a_pipeline_have_two_ends() -> None:
    strategy = tf.distribute.PipelineStrategy(Mesh([("pp", 4), ("dp", 2)]), "pp", 8, "1f1b", batch="dp")
    programs = emitted(request_of(strategy, partial(nets_in_stages.gpt, rate=0.0)), node_seconds)
    sent, received = set(), set()
    for program in programs:
        for work in program.works:
            if isinstance(work.meets, Message):
                other, tag, nbytes, is_sent = work.meets
                ends = (program.position, other) if is_sent else (other, program.position)
                (sent if is_sent else received).add((*ends, tag, nbytes))
    assert sent == received
    assert len(sent) >= 2 * 8 * 3  # forward and backward, of each micro-batch, over three edges


def test_a_step_without_a_mesh_is_one_program_that_meets_nobody() -> None:
    (program,) = _played(None)
    assert all(work.meets is None for work in program.works)
    assert len(program.works) == 1


def test_a_mesh_on_named_devices_is_emitted_as_one_of_processes() -> None:
    named = Mesh([("dp", 2)], ["/cpu:0", "/cpu:1"])
    expected = _played(tf.distribute.LayoutStrategy(Mesh([("dp", 2)]), "dp"))
    assert _played(tf.distribute.LayoutStrategy(named, "dp")) == expected


def test_a_loop_that_exchanges_something_is_refused() -> None:
    strategy = tf.distribute.LayoutStrategy(Mesh([("tp", 2)]))

    def build() -> Any:
        with strategy.scope():
            x = tf.ones([4, 8])
            w = tf.get_variable("w", [8, 8], layout=["tp", None])
            out = tf.while_loop(lambda i, h: i < 3, lambda i, h: (i + 1, tf.matmul(h, w)), (0, x))[1]
        return {}, tf.reduce_sum(out), tf.no_op()

    with pytest.raises(UnimplementedError, match="exchange nothing"):
        emitted(request_of(strategy, build, is_in_scope=False), node_seconds)


def test_pieces_of_an_all_to_all_are_one_meeting() -> None:
    strategy = tf.distribute.LayoutStrategy(Mesh([("tp", 4)]))

    def build() -> Any:
        w = tf.get_variable("w", [8, 16], layout=["tp", None])
        rows = tf.square(w)
        columns = tf.distribute.relayout(rows, [None, "tp"])
        return {}, tf.reduce_sum(tf.sin(columns)), tf.no_op()

    (program,) = emitted(request_of(strategy, build), node_seconds)
    exchanges = [m for m in _meetings(program) if m.kind == "all_to_all"]
    assert exchanges == [Meeting("all_to_all", ("tp",), 4 * 8 * 16)]
