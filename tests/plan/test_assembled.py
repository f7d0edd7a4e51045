"""Programs of all turns, from parts with few of them: those of the step that is lowered whole."""

from __future__ import annotations

import re
from contextlib import nullcontext
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest

import flowrt as tf
from flowrt.errors import UnimplementedError
from flowrt.graph.collectives.cost import DEFAULT_LINKS, Link, Links
from flowrt.graph.passes.layouts.stages.order_actions import turns_in_order
from flowrt.graph.pipeline.schedules import order
from flowrt.plan.choice import Choice
from flowrt.plan.cluster.cluster_file import DeviceKind, this_host
from flowrt.plan.player import Player
from flowrt.plan.replay.played import ClassProgram, Message, Work
from flowrt.plan.step.applied import applied
from flowrt.plan.step.assembled import assembled, few_turns
from flowrt.plan.step.costs import Costs, Rates
from flowrt.plan.step.device_parts import DevicePart, parts_of
from flowrt.plan.step.emitted import THERE, class_program
from flowrt.plan.step.recorded import Recorded, RecordingStrategy
from flowrt.viz.compile_request import compile_request
from tests.distribute.strategies import nets_in_stages
from tests.each import nightly

COSTS = Costs(Rates({"float32": 1e12, "float64": 5e11}, 1e11, 1e-6))
DEVICE = DeviceKind("device", {"float32": 1e9}, 1 << 30, 1e9, {"float32": 1.0})
FAST = Links(Link(0.0, 1e-12), Link(0.0, 1e-12))
"""Links for which no collectives are joined: each gradient is transferred as soon as it is there."""
GAPS = 1.11
"""An arena is at most this much larger than what lives in it."""


@cache
def gpt() -> Recorded:
    """A decoder with a matrix of words that its first and its last stage share."""
    with tf.Graph().as_default() as graph, RecordingStrategy().scope():
        net = nets_in_stages.gpt(lambda where: nullcontext(), 4, (48,), rate=0.0)
        feeds: Any = {tensor: np.asarray(value) for tensor, value in net.feeds(0).items()}
        return Recorded(compile_request(graph, [net.train], feeds))


@cache
def mlp() -> Recorded:
    """Layers with large feeds."""
    with tf.Graph().as_default() as graph, RecordingStrategy().scope():
        x = h = tf.placeholder(tf.float32, [96, 256])
        for layer in range(6):
            h = tf.layers.dense(h, 64, tf.nn.relu, name=f"layer{layer}")
        loss = tf.reduce_mean(tf.square(tf.layers.dense(h, 256) - x))
        train = tf.train.AdamOptimizer(1e-3).minimize(loss)
        return Recorded(compile_request(graph, [train], {x: np.zeros((96, 256))}))


NETS = {"gpt": gpt, "mlp": mlp}


def both(
    recorded: Recorded, choice: Choice, links: Links = DEFAULT_LINKS
) -> tuple[list[DevicePart], list[DevicePart]]:
    """The parts with all turns, and with few."""
    step, turns = applied(recorded, choice), few_turns(choice.micro_batches)
    assert turns is not None
    return parts_of(step, links), parts_of(step, links, turns)


def programs_of(parts: list[DevicePart], choice: Choice) -> tuple[ClassProgram, ...]:
    schedule = (
        turns_in_order(parts[0].mesh)
        if choice.pp == 1
        else order(choice.schedule, choice.pp, choice.micro_batches, choice.chunks)
    )
    turns = few_turns(choice.micro_batches)
    assert turns is not None
    return assembled(parts, COSTS, frozenset(), schedule, turns)


def without_counts(work: Work) -> Work:
    """``work`` without the numbers of sums and slices, which count the turns that were lowered before."""

    def changed(text: str) -> str:
        return re.sub(r"/(sum|part|begin|size|sent)(_\d+)?(?=/|$)", r"/\1", text)

    meets = (
        work.meets._replace(tag=changed(work.meets.tag)) if isinstance(work.meets, Message) else work.meets
    )
    return replace(work, name=changed(work.name), meets=meets)


CASES = [
    ("gpt", Choice(pp=2, micro_batches=8)),
    pytest.param(
        "gpt", Choice(pp=4, dp=2, micro_batches=12, schedule="gpipe", remat=True), marks=pytest.mark.slow
    ),
    pytest.param(
        "gpt", Choice(pp=2, micro_batches=8, schedule="interleaved", chunks=2), marks=pytest.mark.slow
    ),
    pytest.param("gpt", Choice(pp=4, dp=2, micro_batches=8, schedule="zb_h1"), marks=pytest.mark.slow),
    pytest.param("gpt", Choice(dp=2, micro_batches=6), marks=pytest.mark.slow),
    pytest.param("gpt", Choice(dp=2, micro_batches=6, sharding=1), marks=pytest.mark.slow),
    ("gpt", Choice(dp=2, micro_batches=6, sharding=3)),
    ("mlp", Choice(pp=3, micro_batches=4)),
    ("mlp", Choice(pp=4, dp=2, micro_batches=12)),
    ("mlp", Choice(pp=2, micro_batches=8, schedule="interleaved", chunks=2, remat=True)),
    ("mlp", Choice(pp=4, dp=2, micro_batches=12, schedule="zb_h1", remat=True)),
    ("mlp", Choice(micro_batches=6)),
]


@pytest.mark.parametrize(("net", "choice"), CASES, ids=str)
def test_programs_are_those_of_the_whole_step(net: str, choice: Choice) -> None:
    check_equal(*both(NETS[net](), choice), choice)


@pytest.mark.parametrize("sharding", nightly([3, 0, 1, 2], 1))
def test_turns_are_one_after_the_other(sharding: int) -> None:
    """What a turn keeps is free before the next one begins, also if gradients and variables in parts are
    transferred one by one.
    """
    choice = Choice(dp=2, micro_batches=6, sharding=sharding)
    (part,), few = both(gpt(), choice, FAST)
    storage = part.partition.buffers.storage
    computed = [node for node in part.partition.schedule.order if storage.get(node.name) not in THERE]
    actions = [part.actions.get(node.name) for node in computed]
    turns = [action.micro_batch for action in actions if action is not None]
    assert turns == sorted(turns)
    assert set(turns) == set(range(6))
    check_equal([part], few, choice)


def check_equal(whole: list[DevicePart], few: list[DevicePart], choice: Choice) -> None:
    """The programs made of ``few`` turns are those of the ``whole`` step, and need as many bytes."""
    for part, less, found in zip(whole, few, programs_of(few, choice), strict=True):
        expected = class_program(part, COSTS, frozenset())
        assert list(map(without_counts, found.works)) == list(map(without_counts, expected.works))
        assert found.position == expected.position
        memory, gaps = part.partition.buffers.memory, less.partition.buffers.memory
        assert found.held["activations"] - (gaps.nbytes - gaps.lower_bound) == memory.lower_bound
        assert 1 / GAPS <= found.held["activations"] / memory.nbytes <= GAPS
        for kind in ("weights", "copies", "states", "received"):
            assert found.held[kind] == expected.held[kind]


def test_a_part_of_all_turns_cannot_be_made_of_few() -> None:
    """What is added up along the batch reads all of it."""
    with tf.Graph().as_default() as graph, RecordingStrategy().scope():
        x = tf.placeholder(tf.float32, [24, 8])
        loss = tf.reduce_sum(tf.square(tf.cumsum(tf.layers.dense(x, 8))))
        train = tf.train.GradientDescentOptimizer(0.1).minimize(loss)
        step = Recorded(compile_request(graph, [train], {x: np.zeros((24, 8))}))
    choice = Choice(micro_batches=6)
    whole = parts_of(applied(step, choice))
    with pytest.raises(UnimplementedError, match="joined over its turns"):
        parts_of(applied(step, choice), turns=few_turns(6))
    found, _ = Player(step, this_host(1, DEVICE), lambda parts: COSTS)(choice)
    assert found == tuple(class_program(part, COSTS, frozenset(step.variables)) for part in whole)


def test_what_is_computed_once_in_the_middle_of_the_turns() -> None:
    """The gradient of the mean is the same in all turns, and is made where the last stage first needs it."""
    choice = Choice(dp=2, pp=2, micro_batches=12, schedule="interleaved", chunks=2)
    check_equal(*both(mlp(), choice), choice)
